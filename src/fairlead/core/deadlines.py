"""The ends of waits and of holds: one heap with lazy deletion, compacted when half of it is dead."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING

from fairlead.core.ticket import DONE, EVICTED, RUNNING, WAITING

if TYPE_CHECKING:
    from fairlead.core.ticket import Ticket


class Deadlines:
    """Tickets by `wait_until` while they wait and by `hold_until` while they hold."""

    __slots__ = ("_dead", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, Ticket]] = []
        self._dead = 0

    def add(self, at: float, ticket: Ticket) -> None:
        heappush(self.heap, (at, ticket.seq, ticket))

    def forget(self) -> None:
        """One entry no longer matters: its ticket has stopped waiting, or holding, before its time."""
        self._dead = dead = self._dead + 1
        if dead * 2 > len(self.heap) + 64:
            # Most of them are done, which is quickly seen: benchmarks/flows.py.
            self.heap = [
                entry for entry in self.heap if entry[2].state is not DONE and _matters(entry)
            ]
            heapify(self.heap)
            self._dead = 0

    def soonest(self) -> float:
        """Tell the first end that matters; inf if there is none."""
        heap = self.heap
        if not heap:
            return inf
        while heap and not _matters(heap[0]):
            heappop(heap)
            self._dead -= 1
        return heap[0][0] if heap else inf

    def pop(self, now: float) -> Ticket | None:
        """Take out the first ticket whose end has come."""
        if self.soonest() > now:
            return None
        self._dead -= 1  # the caller ends it, and with that calls `forget` for an entry already out
        return heappop(self.heap)[2]


def _matters(entry: tuple[float, int, Ticket]) -> bool:
    at, _, ticket = entry
    if ticket.state is WAITING:
        return at == ticket.wait_until
    return (ticket.state is RUNNING or ticket.state is EVICTED) and at == ticket.hold_until
