"""First come, first served."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.core.lanes import Lane
from fairlead.core.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from fairlead.core.policy import Admit
    from fairlead.core.ticket import Ticket


class Queue(Policy):
    """Lanes in order of arrival: what FIFO and Aging share, with few calls on the hot path (benchmarks/gate.py)."""

    _lane_type = Lane

    def _append(self, ticket: Ticket, name: Hashable) -> None:
        lane = self._lanes.get(name)
        if lane is None:
            self._insert(ticket, name, None)
            return
        ticket.place = lane
        lane.entries.append(ticket)
        self._size += 1
        if lane.order is None:
            self._ready.add(lane)

    def pick(self, admit: Admit, now: float) -> Ticket | None:
        lane = self._ready.best(now)
        if lane is None or lane.scoped:
            return super().pick(admit, now)
        entries = lane.entries
        ticket: Ticket = entries[0]
        if ticket.place is not lane:
            ticket = lane.head()
        if admit(ticket) is not None:
            return None  # what refuses a ticket without scopes refuses all that follow
        entries.popleft()
        ticket.place = None
        self._size -= 1
        if len(entries) == lane.dead:
            self._drop(lane)
        return ticket


class FIFO(Queue):
    """Serve in order of arrival.

    >>> from fairlead.core import Gate, Ticket
    >>> from fairlead.capacities import Slots
    >>> gate = Gate(FIFO(), Slots(1))
    """

    def __init__(self, *, name: str = "", limit: int | None = None) -> None:
        self.name = name
        self.limit = limit
        if type(self) is FIFO:
            self.steady = True
            self.only_lane = Lane((), False)

    def push(self, ticket: Ticket, now: float) -> bool:
        lane = self.only_lane
        if lane is not None:
            if not ticket.scopes:
                ticket.place = lane
                lane.entries.append(ticket)
                return len(lane.entries) - lane.dead > 1
            self._part_by_scopes(lane)
        self._append(ticket, ticket.scopes)
        return self._size > 1

    def _part_by_scopes(self, lane: Lane) -> None:
        """There is more to it than arrival from now on: the lane becomes one among others."""
        self.only_lane = None
        self._size = len(lane.entries) - lane.dead
        self._lanes[()] = lane
        if self._size:
            self._ready.add(lane)

    def pick(self, admit: Admit, now: float) -> Ticket | None:
        lane = self.only_lane
        if lane is None:
            return Policy.pick(self, admit, now)
        entries = lane.entries
        if len(entries) == lane.dead:
            return None
        ticket: Ticket = entries[0]
        if ticket.place is not lane:
            ticket = lane.head()
        if admit(ticket) is not None:
            return None
        entries.popleft()
        ticket.place = None
        return ticket

    def remove(self, ticket: Ticket, now: float) -> None:
        if self.only_lane is None:
            super().remove(ticket, now)
        else:
            ticket.place = None
            self.only_lane.discard()

    def head(self, now: float) -> Ticket | None:
        if self.only_lane is None:
            return super().head(now)
        return self.only_lane.head() if len(self) else None

    def __len__(self) -> int:
        lane = self.only_lane
        return self._size if lane is None else len(lane.entries) - lane.dead

    def __iter__(self) -> Iterator[Ticket]:
        return super().__iter__() if self.only_lane is None else iter(self.only_lane)
