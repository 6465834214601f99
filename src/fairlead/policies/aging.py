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
from fairlead.core.policy import Policy
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Hashable

    from fairlead.core.policy import Admit
    from fairlead.core.ticket import Ticket

STEP = 10  # one promotion, in points of priority
# Added and taken away again, it rounds to 2 millionths: products of times are off by less, and equals have to tie.
GRAIN = 2.0**33
SLACK = 1e-5  # points of priority; more than what the grain rounds away


class Rising(Order):
    """Lanes of one priority each, by effective priority."""

    __slots__ = ("_capped", "_ceiling", "_rate", "_rising", "first", "first_before", "first_until")

    def __init__(self, rate: float, ceiling: float) -> None:
        self._rate = rate
        self._ceiling = ceiling
        self._rising: list[tuple[float, int, Lane]] = []
        self._capped: list[tuple[int, Lane]] = []
        # The lane found first last time.  It is first again while its head has arrived before `first_before`, so that
        # it ranks before all others, and until `first_until`: so long its heads stay below the ceiling.
        self.first: Lane | None = None
        self.first_before = self.first_until = 0.0

    def add(self, lane: Lane) -> None:
        self.first = None
        lane.order = self
        head = lane.head()
        constant = self._rate * head.arrived_at - head.priority + GRAIN - GRAIN
        lane.entry = entry = (constant, head.seq, lane)
        heappush(self._rising, entry)

    def best(self, now: float) -> Lane | None:
        first = self.first
        head: Ticket
        if first is not None and first.order is self and now < self.first_until:
            head = first.entries[0]
            if head.arrived_at < self.first_before and head.place is first:
                return self.first  # as is usual while a burst drains
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
                    self.first = None  # whoever has reached the ceiling goes before it
                else:
                    break
            if not capped:
                if not rising:
                    return None
                return self._found(rising[0][2])
            arrived = capped[0]
            lane = arrived[1]
            if lane.entry is arrived:
                if lane.head().seq == arrived[0]:
                    return lane
                self.add(lane)  # the next head may still be rising
            heappop(capped)

    def _found(self, first: Lane) -> Lane:
        """Note for how long a lane stays first, a little less than exactly: what is closer is looked at again."""
        self.first = first
        head: Ticket = first.entries[0]
        rising, rate, priority = self._rising, self._rate, head.priority
        size = len(rising)  # of a heap, the second stands at 1 or 2
        second = min(rising[1][0] if size > 1 else inf, rising[2][0] if size > 2 else inf)
        behind, below = second + priority - SLACK, self._ceiling - priority - SLACK
        self.first_before = behind / rate if rate else inf * behind
        self.first_until = head.arrived_at + (below / rate if rate else inf * below)
        return first


class Aging(Policy):
    """Serve the highest effective priority; equal ones in order of arrival.

    >>> aging = Aging.over(30.0)
    >>> aging.rate, aging.ceiling
    (2.0, 100)
    """

    _lane_type = Lane
    _ready: Rising

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

    def _new_order(self) -> Rising:
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

    # Two steps of every ticket, with few calls: benchmarks/tasks.py, benchmarks/gate.py.

    def push(self, ticket: Ticket, now: float) -> None:
        name: Hashable = ticket.priority
        if ticket.scopes:
            name = name, ticket.scopes
        try:
            lane = self._lanes[name]
        except KeyError:
            self._insert(ticket, name, None)
            return
        ticket.place = lane
        lane.entries.append(ticket)
        self._size += 1
        if lane.order is None:
            self._ready.add(lane)

    def pick(self, admit: Admit, now: float) -> Ticket | None:
        order = self._ready
        lane = order.first
        ticket: Ticket
        if (  # what `best` asks first, without the call
            lane is None
            or lane.order is not order
            or now >= order.first_until
            or (ticket := lane.entries[0]).arrived_at >= order.first_before
            or ticket.place is not lane
        ):
            lane = order.best(now)
            if lane is None:
                return None
            ticket = lane.head()
        if lane.scoped:
            return super().pick(admit, now)
        if admit(ticket) is not None:
            return None  # what refuses a ticket without scopes refuses all that follow
        entries = lane.entries
        entries.popleft()
        ticket.place = None
        self._size -= 1
        if len(entries) == lane.dead:
            self._drop(lane)
        return ticket

    def explain(self, ticket: Ticket, now: float) -> str | None:
        return f"priority {ticket.priority} has aged to {self.effective(ticket, now):g}"
