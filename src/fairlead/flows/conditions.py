"""Conditions on signals: a comparison, one that must hold for a while, and several of which none may say no."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Literal

from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

Condition = Literal["gt", "lt", "gte", "lte"]


class Decider:
    """A comparison that must hold for a while: True after `true_for` seconds of it, False after `false_for` without.

    It starts as False.  An input that is not known gives None, and the time that counted towards a change is forgotten.

    >>> busy = Decider("gt", true_for=5.0, false_for=20.0)
    >>> [busy.decide(0.9, 0.8, now) for now in (0.0, 4.9, 5.0)]
    [False, False, True]
    >>> [busy.decide(0.7, 0.8, now) for now in (6.0, 25.9, 26.0)]
    [True, True, False]
    """

    def __init__(
        self, condition: Condition, *, true_for: float = 0.0, false_for: float = 0.0
    ) -> None:
        check_condition(condition)
        for name, value in (("true_for", true_for), ("false_for", false_for)):
            if not value >= 0:
                raise ConfigError(f"{name} must be 0 seconds or more; got {value!r}")
        self._condition = condition
        self._needs = {True: true_for, False: false_for}
        self._state = False
        self._since: float | None = None  # since when the comparison has said otherwise

    def decide(self, left: float | None, right: float | None, now: float) -> bool | None:
        """Compare, and tell what has held for long enough."""
        if left is None or right is None or isnan(left) or isnan(right):
            self._since = None
            return None
        said = holds(left, self._condition, right)
        if said is self._state:
            self._since = None
            return said
        if self._since is None:
            self._since = now
        if now - self._since >= self._needs[said]:
            self._state, self._since = said, None
        return self._state


def all_confirm(confirmations: Iterable[bool | None]) -> bool | None:
    """Tell False if one is False, else None if one is not known, else True (also of none at all).

    >>> all_confirm([True, None]), all_confirm([None, False]), all_confirm([])
    (None, False, True)
    """
    seen = set(confirmations)
    if False in seen:
        return False
    return None if None in seen else True


def holds(left: float, condition: Condition, right: float) -> bool:
    """Compare as the condition says."""
    if condition == "gt":
        return left > right
    if condition == "gte":
        return left >= right
    return left < right if condition == "lt" else left <= right


def check_condition(condition: str) -> None:
    """Refuse what is no condition."""
    if condition not in ("gt", "lt", "gte", "lte"):
        raise ConfigError(f"a condition is gt, lt, gte or lte; got {condition!r}")
