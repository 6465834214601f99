"""Scopes that are closed, for whom, and until when at the latest; and who is asked again when one opens."""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf, nextafter
from typing import TYPE_CHECKING

from fairlead.core.capacity import FULL, STOP, Hold, Later
from fairlead.core.ticket import WAITING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from fairlead.core.capacity import Capacity
    from fairlead.core.policy import Policy
    from fairlead.core.ticket import Ticket


class Scopes:
    """Who closed which scope, and one timer per refusal that ends by itself."""

    __slots__ = (
        "_capacity",
        "_count",
        "_policy",
        "reserve_after",
        "_timer_of",
        "closed",
        "everyone_at",
        "timers",
    )

    def __init__(self, policy: Policy, capacity: Capacity, reserve_after: float) -> None:
        self._policy = policy
        self._capacity = capacity
        self.reserve_after = reserve_after
        self.closed: dict[Hashable, Ticket] = {}
        self.everyone_at = inf  # when a STOP or FULL may end: a timer of its own, as it is no scope
        self.timers: list[tuple[float, int, Hashable]] = []
        self._timer_of: dict[Hashable, float] = {}
        self._count = 0  # tells timers of one instant apart, so that scopes are never compared

    def close(self, scope: Hashable, ticket: Ticket, now: float) -> None:
        """A scope refused the ticket; if it is old, all its scopes are kept for it.

        Claims and promotions are asked past a closed scope.  One that is refused too leaves it to the one it was closed
        for: a ticket that closed several is woken by any of them only while it is known as the closer of each.
        """
        closed = self.closed
        former = closed.get(scope, ticket)
        if former is not ticket and former.state is WAITING:
            return
        closed[scope] = ticket
        if now - ticket.arrived_at >= self.reserve_after:
            for other in ticket.scopes:
                if type(other) is not Hold:  # a class has no one place to keep
                    closed.setdefault(other, ticket)

    def open(self, scope: Hashable, now: float) -> None:
        """Let the best-ranked of those a scope kept out be asked."""
        closed = self.closed
        closer = closed.pop(scope, None)
        self._policy.open(scope, now)
        if closer is not None and now - closer.arrived_at >= self.reserve_after:
            # It closed all its scopes and is parked under one: it is asked before those it keeps out.
            for other in closer.scopes:
                if closed.get(other) is closer:
                    del closed[other]
                    self._policy.open(other, now)

    def reopen(self, ticket: Ticket, now: float) -> None:
        """A ticket came or went: whoever ranks first in its scopes may be another now."""
        for scope in ticket.scopes:
            if scope in self.closed:
                self.open(scope, now)

    def see_opened(self, now: float) -> float:
        """Open what has gained room, as the capacity tells; tell when the first timer of all is due."""
        opened = self._capacity.opened
        if self.closed:
            for scope in list(self.closed) if FULL in opened else opened:
                if type(scope) is Later and scope.at > now:
                    if scope.scope in self.closed:
                        self._set_timer(*scope)
                elif (gained := scope.scope if type(scope) is Later else scope) in self.closed:
                    self.open(gained, now)
        opened.clear()
        return self.soonest()

    def expect(self, refusal: Hashable, at: float, now: float) -> float:
        """Set the timer of a refusal, unless an earlier one is set; tell when the refusal may end."""
        if at <= now:  # one that says "now" and refuses must not stop time
            at = nextafter(now, inf)
        if refusal is not STOP and refusal is not FULL:
            self._set_timer(refusal, at)
        elif at < self.everyone_at:
            self.everyone_at = at
        return at

    def _set_timer(self, scope: Hashable, at: float) -> None:
        if at < self._timer_of.get(scope, inf):
            self._timer_of[scope] = at
            self._count += 1
            heappush(self.timers, (at, self._count, scope))

    def soonest(self) -> float:
        timers, at = self.timers, self.everyone_at
        return timers[0][0] if timers and timers[0][0] < at else at

    def ripe(self, now: float) -> list[Hashable]:
        """Take out the scopes whose time has come."""
        ripe: list[Hashable] = []
        timers, timer_of = self.timers, self._timer_of
        while timers and timers[0][0] <= now:
            at, _, scope = heappop(timers)
            if timer_of.get(scope) == at:  # else an earlier timer has replaced it
                del timer_of[scope]
                ripe.append(scope)
        return ripe
