"""First come, first served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

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

    _line: Lane

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        # Who has no scopes stands in one line; it is by itself, not among the lanes, until somebody has any.
        self._line = Lane((), False)
        return self

    def __init__(self, *, name: str = "", limit: int | None = None) -> None:
        self.name = name
        self.limit = limit
        self.steady = type(self) is FIFO

    def push(self, ticket: Ticket, now: float) -> bool:
        if ticket.scopes or self._lanes:
            if not self._lanes:
                self._join_lanes()
            self._append(ticket, ticket.scopes)
        else:
            ticket.place = line = self._line
            line.entries.append(ticket)
            self._size += 1
        return self._size > 1

    def _join_lanes(self) -> None:
        self._lanes[()] = self._line
        if self._size:
            self._ready.add(self._line)

    def pick(self, admit: Admit, now: float) -> Ticket | None:
        if self._lanes:
            return Policy.pick(self, admit, now)
        if not self._size:
            return None
        line = self._line
        ticket: Ticket = line.entries[0]
        if ticket.place is not line:
            ticket = line.head()
        if admit(ticket) is not None:
            return None
        line.entries.popleft()
        ticket.place = None
        self._size -= 1
        return ticket

    def head(self, now: float) -> Ticket | None:
        if self._lanes:
            return super().head(now)
        return self._line.head() if self._size else None

    def __iter__(self) -> Iterator[Ticket]:
        return super().__iter__() if self._lanes else iter(self._line)
