"""First come, first served."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.core.lanes import Lane
from fairlead.core.policy import Policy

if TYPE_CHECKING:
    from fairlead.core.ticket import Ticket


class FIFO(Policy):
    """Serve in order of arrival.

    >>> from fairlead.core import Gate, Ticket
    >>> from fairlead.capacities import Slots
    >>> gate = Gate(FIFO(), Slots(1))
    """

    _lane_type = Lane

    def __init__(self, *, name: str = "", limit: int | None = None) -> None:
        self.name = name
        self.limit = limit

    def push(self, ticket: Ticket, now: float) -> None:
        self._insert(ticket, ticket.scopes, None)
