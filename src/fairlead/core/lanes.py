"""Waiting tickets in lanes, and lanes in order: the machinery below every policy that keeps tickets itself.

A *lane* holds tickets that share their scopes, so what refuses its head refuses all of it.  A lane is *ready* or
*parked* under the scope that refused it, always in exactly one `Order`.  When a scope opens, one lane of its group
is woken, the best-ranked; the wake is passed on unless that same scope refuses again.  So an open scope with
10,000 lanes behind it costs one question, not 10,000.

Each lane knows its one valid heap entry; others are dropped when they surface, never searched for.  An entry may rank
its lane too early, since heads move on to later ranks, and is corrected then; never too late: a newcomer that becomes
head has its lane added anew."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from fairlead.core.ticket import Ticket


class Lane:
    """Tickets in order of arrival; removed ones stay in the deque until they surface or outnumber the living."""

    # The dead are counted, not the living: few tickets are removed, and all are added and most popped.
    __slots__ = ("dead", "entries", "entry", "name", "order", "scoped", "woken_by")

    def __init__(self, name: Hashable, scoped: bool) -> None:
        self.name = name
        self.scoped = scoped
        self.dead = 0
        self.order: Order | None = None
        self.entry: Any = None
        self.woken_by: Hashable | None = None
        self.entries: Any = deque()

    def add(self, ticket: Ticket, key: Any) -> bool:
        """Append; say whether it became the head of a lane that had one."""
        self.entries.append(ticket)
        return False

    def head(self) -> Ticket:
        entries = self.entries
        ticket: Ticket = entries[0]
        while ticket.place is not self:
            entries.popleft()
            self.dead -= 1
            ticket = entries[0]
        return ticket

    def pop(self) -> None:
        """Take the head out; `head` has just returned it."""
        self.entries.popleft()

    def rank(self) -> Any:
        return self.head().seq

    def discard(self) -> None:
        """One ticket inside has been removed: its place is no longer this lane."""
        self.dead += 1
        if 2 * self.dead > len(self.entries) + 16:
            self.compact()

    def compact(self) -> None:
        self.entries = deque(self)
        self.dead = 0

    def __iter__(self) -> Iterator[Ticket]:
        return (ticket for ticket in self.entries if ticket.place is self)


class KeyLane(Lane):
    """Tickets by a key, smallest first, arrival among equals."""

    __slots__ = ()

    def __init__(self, name: Hashable, scoped: bool) -> None:
        super().__init__(name, scoped)
        self.entries = []

    def add(self, ticket: Ticket, key: Any) -> bool:
        entry = (key, ticket.seq, ticket)
        try:
            heappush(self.entries, entry)
        except TypeError:
            # The sift stopped half way: the key cannot be compared.  Put the heap in order without it.
            self.entries = [kept for kept in self.entries if kept is not entry]
            heapify(self.entries)
            raise
        return self.entries[0] is entry

    def head(self) -> Ticket:
        entries = self.entries
        while entries[0][2].place is not self:
            heappop(entries)
            self.dead -= 1
        ticket: Ticket = entries[0][2]
        return ticket

    def pop(self) -> None:
        heappop(self.entries)

    def rank(self) -> Any:
        self.head()
        return self.entries[0][:2]

    def compact(self) -> None:
        self.entries = [entry for entry in self.entries if entry[2].place is self]
        heapify(self.entries)
        self.dead = 0

    def __iter__(self) -> Iterator[Ticket]:
        return (entry[2] for entry in self.entries if entry[2].place is self)


class Order:
    """Lanes by the rank of their head, smallest first."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[Any, Lane]] = []

    def add(self, lane: Lane) -> None:
        """Make the lane a member; it leaves the order it was in."""
        lane.order = self
        lane.entry = entry = (lane.rank(), lane)
        heappush(self._heap, entry)

    def best(self, now: float) -> Lane | None:
        heap = self._heap
        while heap:
            entry = heap[0]
            lane = entry[1]
            if lane.entry is not entry:
                heappop(heap)
                continue
            if len(heap) == 1:
                return lane
            rank = lane.rank()
            if rank == entry[0]:
                return lane
            lane.entry = entry = (rank, lane)
            heapreplace(heap, entry)
        return None
