"""Room for everybody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.core.capacity import Capacity

if TYPE_CHECKING:
    from collections.abc import Hashable

    from fairlead.core.ticket import Ticket


class Unlimited(Capacity):
    """Admit everything at once; who runs is still known and counted."""

    name = "unlimited"

    def refusal(self, ticket: Ticket, now: float, without: Ticket | None = None) -> Hashable | None:
        return None

    def take(self, ticket: Ticket, now: float) -> None:
        """Nothing is used up."""

    def give(self, ticket: Ticket, now: float) -> None:
        """Nothing comes back."""
