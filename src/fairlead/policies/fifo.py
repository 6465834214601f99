"""First come, first served."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.core.capacity import STOP
from fairlead.core.lanes import Lane
from fairlead.core.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from fairlead.core.policy import Admit
    from fairlead.core.ticket import Ticket


class FIFO(Policy):
    """Serve in order of arrival.

    >>> from fairlead.core import Gate, Ticket
    >>> from fairlead.capacities import Slots
    >>> gate = Gate(FIFO(), Slots(1))
    """

    _lane_type = Lane

    # All tickets, as long as they share their scopes and none of these has refused one.
    _lane: Lane | None = None

    def __init__(self, *, name: str = "", limit: int | None = None) -> None:
        self.name = name
        self.limit = limit
        if type(self) is FIFO:
            self.steady = True
            self._lane = self.only_lane = Lane((), False)

    def push(self, ticket: Ticket, now: float) -> bool:
        lane = self._lane
        if lane is not None and ticket.scopes is not lane.name:
            lane = self._other_scopes(lane, ticket.scopes)
        if lane is None:
            self._insert(ticket, ticket.scopes, None)
            return self._size > 1
        ticket.place = lane
        lane.entries.append(ticket)
        return len(lane.entries) - lane.dead > 1

    def _other_scopes(self, lane: Lane, scopes: tuple[Hashable, ...]) -> Lane | None:
        """Tell the lane of who comes with other scopes than those before, if it is the same one."""
        if len(lane.entries) > lane.dead:
            self._part_by_scopes(lane)
            return None
        lane.name, lane.scoped = scopes, bool(scopes)
        self.only_lane = None if scopes else lane
        return lane

    def _part_by_scopes(self, lane: Lane) -> None:
        """There is more to it than arrival from now on: the lane becomes one among others."""
        self._lane = self.only_lane = None
        self._size = len(lane.entries) - lane.dead
        self._lanes[lane.name] = lane
        self._ready.add(lane)

    def pick(self, admit: Admit, now: float) -> Ticket | None:
        lane = self._lane
        if lane is None:
            return Policy.pick(self, admit, now)
        entries = lane.entries
        if len(entries) == lane.dead:
            return None
        ticket: Ticket = entries[0]
        if ticket.place is not lane:
            ticket = lane.head()
        refusal = admit(ticket)
        if refusal is not None:
            if refusal is not STOP and lane.scoped:
                self._part_by_scopes(lane)
                self._park(lane, refusal)
            return None
        entries.popleft()
        ticket.place = None
        return ticket

    def remove(self, ticket: Ticket, now: float) -> None:
        if self._lane is None:
            super().remove(ticket, now)
        else:
            ticket.place = None
            self._lane.discard()

    def head(self, now: float) -> Ticket | None:
        if self._lane is None:
            return super().head(now)
        return self._lane.head() if len(self) else None

    def __len__(self) -> int:
        lane = self._lane
        return self._size if lane is None else len(lane.entries) - lane.dead

    def __iter__(self) -> Iterator[Ticket]:
        return super().__iter__() if self._lane is None else iter(self._lane)
