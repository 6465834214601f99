"""Reading the settings of policies and capacities."""

from __future__ import annotations

from math import inf
from numbers import Real


def is_number(value: object, least: float = -inf) -> bool:
    """Tell whether a value is a real number of at least `least`; infinity counts, text and NaN do not.

    >>> is_number(5, 0), is_number("5s", 0), is_number(float("nan"))
    (True, False, False)
    """
    return isinstance(value, Real) and bool(value >= least)  # type: ignore[operator]
