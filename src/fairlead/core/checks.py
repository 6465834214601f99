"""Reading the settings of policies and capacities."""

from __future__ import annotations

from math import inf
from numbers import Real


def is_number(value: object, least: float = -inf) -> bool:
    """Tell whether a value is a number from `least` on, be it without end; a text is none, nor is NaN.

    >>> is_number(5, 0), is_number("5s", 0), is_number(float("nan"))
    (True, False, False)
    """
    return isinstance(value, Real) and bool(value >= least)  # type: ignore[operator]
