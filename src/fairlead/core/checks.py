"""Reading the settings of policies and capacities."""

from __future__ import annotations

from math import inf
from numbers import Real
from operator import attrgetter
from typing import TYPE_CHECKING

from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from fairlead.core.ticket import Ticket


def is_number(value: object, least: float = -inf) -> bool:
    """Tell whether a value is a real number of at least `least`; infinity counts, text and NaN do not.

    >>> is_number(5, 0), is_number("5s", 0), is_number(float("nan"))
    (True, False, False)
    """
    return isinstance(value, Real) and bool(value >= least)  # type: ignore[operator]


def read_by(by: str | Callable[[Ticket], Hashable]) -> Callable[[Ticket], Hashable]:
    """Read what tickets are told apart by: the name of one of their attributes, or a function.

    >>> from fairlead.core import Ticket
    >>> read_by("tenant")(Ticket(tenant="acme"))
    'acme'
    """
    if isinstance(by, str):
        return attrgetter(by)
    if not callable(by):
        raise ConfigError(
            f'by= needs the name of an attribute, such as "tenant", or a function of a ticket; got {by!r}'
        )
    return by
