"""Scopes that are closed, for whom, and until when at the latest."""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf, nextafter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from fairlead.core.ticket import Ticket


class Scopes:
    """Who closed which scope, and one timer per scope that refused somebody."""

    __slots__ = ("_count", "_timer_of", "_timers", "closed")

    def __init__(self) -> None:
        self.closed: dict[Hashable, Ticket] = {}
        self._timers: list[tuple[float, int, Hashable]] = []
        self._count = 0  # tells timers of one instant apart, so that scopes are never compared
        self._timer_of: dict[Hashable, float] = {}

    def expect(self, scope: Hashable, at: float, now: float) -> None:
        """Set the timer of a scope, unless an earlier one is set."""
        if at < self._timer_of.get(scope, inf):
            at = max(at, nextafter(now, inf))  # one that says "now" and refuses must not stop time
            self._timer_of[scope] = at
            self._count += 1
            heappush(self._timers, (at, self._count, scope))

    def soonest(self) -> float:
        return self._timers[0][0] if self._timers else inf

    def ripe(self, now: float) -> Iterator[Hashable]:
        """Take out the scopes whose time has come."""
        timers = self._timers
        while timers and timers[0][0] <= now:
            at, _, scope = heappop(timers)
            if self._timer_of.get(scope) == at:  # else an earlier timer has replaced it
                del self._timer_of[scope]
                yield scope
