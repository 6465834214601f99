"""Priorities that grow while a ticket waits, without ever being recomputed.

The effective priority is  min(ceiling, priority + rate · (now − arrived)).  Below the ceiling the order of two tickets
never changes with time: p₁ + r(t − a₁) > p₂ + r(t − a₂)  ⇔  r·a₁ − p₁ < r·a₂ − p₂, a constant of each ticket.  At the
ceiling all are equal and arrival decides.  So tickets of one priority are always in order of arrival, a lane each, and
two small heaps over the lanes' heads do the rest: *rising* by that constant, *capped* by arrival.  A head moves from
rising to capped when its constant falls to  r·now − ceiling; at most one move per lane is pending at any time, so no
pass over the waiting is ever made.  At the default rate +10 comes every 5 s.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from math import inf
from typing import TYPE_CHECKING, Self

from fairlead.core.checks import is_number
from fairlead.core.lanes import Lane, Order
from fairlead.errors import ConfigError
from fairlead.policies.fifo import Queue

if TYPE_CHECKING:
    from fairlead.core.ticket import Ticket

STEP = 10  # one promotion, in points of priority
# Added and taken away again, it rounds to 2 millionths: products of times are off by less, and equals have to tie.
GRAIN = 2.0**33
SLACK = 1e-5  # points of priority; more than what the grain rounds away


class Rising(Order):
    """Lanes of one priority each, by effective priority."""

    __slots__ = ("_before", "_capped", "_ceiling", "_first", "_lead", "_rate", "_rising")

    def __init__(self, rate: float, ceiling: float) -> None:
        self._rate = rate
        self._ceiling = ceiling
        self._rising: list[tuple[float, int, Lane]] = []
        self._capped: list[tuple[int, Lane]] = []
        # The lane found first last time.  It is first again while its head has arrived `_before` that instant, so
        # that it ranks before all others, and less than `_lead` seconds ago, so that it is below the ceiling.
        self._first: Lane | None = None
        self._before = self._lead = 0.0

    def add(self, lane: Lane) -> None:
        self._first = None
        lane.order = self
        head = lane.head()
        constant = self._rate * head.arrived_at - head.priority + GRAIN - GRAIN
        lane.entry = entry = (constant, head.seq, lane)
        heappush(self._rising, entry)

    def best(self, now: float) -> Lane | None:
        first = self._first
        if first is not None and first.order is self:
            head: Ticket = first.entries[0]
            arrived_at: float = head.arrived_at
            if arrived_at < self._before and now < arrived_at + self._lead and head.place is first:
                return self._first  # as is usual while a burst drains
        rate = self._rate
        reached = rate * now - self._ceiling + GRAIN - GRAIN
        rising, capped = self._rising, self._capped
        while True:
            while rising:
                entry = rising[0]
                lane = entry[2]
                if lane.entry is not entry:
                    heappop(rising)
                    continue
                head = lane.entries[0]
                if head.place is not lane:
                    head = lane.head()
                if head.seq != entry[1]:
                    constant = rate * head.arrived_at - head.priority + GRAIN - GRAIN
                    lane.entry = entry = (constant, head.seq, lane)
                    size = len(rising)
                    if (size > 1 and rising[1] < entry) or (size > 2 and rising[2] < entry):
                        heapreplace(rising, entry)
                        continue
                    rising[0] = entry
                if entry[0] <= reached:
                    heappop(rising)
                    lane.entry = arrived = (head.seq, lane)
                    heappush(capped, arrived)
                    self._first = None  # whoever has reached the ceiling goes before it
                else:
                    break
            if not capped:
                if not rising:
                    return None
                self._found(rising[0][2])
                return self._first
            arrived = capped[0]
            lane = arrived[1]
            if lane.entry is arrived:
                if lane.head().seq == arrived[0]:
                    return lane
                self.add(lane)  # the next head may still be rising
            heappop(capped)

    def _found(self, first: Lane) -> None:
        """Note for how long a lane stays first, a little less than exactly: what is closer is looked at again."""
        self._first = first
        rising, rate, priority = self._rising, self._rate, first.entries[0].priority
        size = len(rising)  # of a heap, the second stands at 1 or 2
        second = min(rising[1][0] if size > 1 else inf, rising[2][0] if size > 2 else inf)
        behind, below = second + priority - SLACK, self._ceiling - priority - SLACK
        self._before = behind / rate if rate else inf * behind
        self._lead = below / rate if rate else inf * below


class Aging(Queue):
    """Serve the highest effective priority; equal ones in order of arrival.

    >>> aging = Aging.over(30.0)
    >>> aging.rate, aging.ceiling
    (2.0, 100)
    """

    def __init__(
        self,
        rate: float = 2.0,
        ceiling: float = 100,
        *,
        name: str = "",
        limit: int | None = None,
    ) -> None:
        if not (is_number(rate, 0) and rate < inf):
            raise ConfigError(f"rate must be points per second, 0 or more; got {rate!r}")
        if not is_number(ceiling):
            raise ConfigError(f"ceiling must be a priority, such as 100; got {ceiling!r}")
        self.rate = rate
        self.ceiling = ceiling
        self.name = name
        self.limit = limit
        self._ready = self._new_order()

    @classmethod
    def over(cls, starvation_timeout: float, *, name: str = "", limit: int | None = None) -> Self:
        """Age as the table says at 30 s (+10 per 5 s), in proportion at any other timeout."""
        return cls(60.0 / starvation_timeout, name=name, limit=limit)

    def _new_order(self) -> Order:
        return Rising(self.rate, self.ceiling)

    def effective(self, ticket: Ticket, now: float) -> float:
        """Tell the priority a waiting ticket has grown to."""
        grown = ticket.priority + self.rate * (now - ticket.arrived_at)
        return min(float(self.ceiling), grown)

    def steps(self, ticket: Ticket, now: float) -> int:
        """Count the promotions, steps of +10, a ticket has gained by waiting."""
        return max(0, int((self.effective(ticket, now) - ticket.priority + 1e-6) // STEP))

    def promotions(self, now: float) -> int:
        """Count the steps gained by all who wait: a look at those who have gained any, none at the others."""
        total = 0
        for lane in self._lanes.values():
            for ticket in lane:
                steps = self.steps(ticket, now)
                if not steps:
                    break  # a lane is in order of arrival
                total += steps
        return total

    def push(self, ticket: Ticket, now: float) -> None:
        priority, scopes = ticket.priority, ticket.scopes
        self._append(ticket, (priority, scopes) if scopes else priority)

    def explain(self, ticket: Ticket, now: float) -> str | None:
        return f"priority {ticket.priority} has aged to {self.effective(ticket, now):g}"
