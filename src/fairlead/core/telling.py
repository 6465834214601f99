"""What a gate tells of itself: who waits, who holds room, what is closed; nothing changes by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from fairlead.core.policy import Policy
    from fairlead.core.scopes import Scopes
    from fairlead.core.ticket import Ticket


class Telling:
    """The questions a gate answers; the state is that of `Dispatcher`."""

    policy: Policy
    holders: dict[Ticket, bool]
    _claims: dict[Ticket, None]
    _scopes: Scopes

    @property
    def reserve_after(self) -> float:
        """The age at which a ticket closes all its scopes."""
        return self._scopes.reserve_after

    @property
    def active(self) -> int:
        """The number of tickets that hold room."""
        return len(self.holders)

    def closed_to(self, ticket: Ticket) -> Hashable | None:
        """Tell the first of a ticket's scopes that is closed for another one, which ranks earlier."""
        closed = self._scopes.closed
        return next((one for one in ticket.scopes if closed.get(one, ticket) is not ticket), None)

    def closed_by(self, scope: Hashable) -> Ticket | None:
        """Tell which waiting ticket a scope was closed for."""
        return self._scopes.closed.get(scope)

    def claimed(self, ticket: Ticket) -> bool:
        """Tell whether another ticket was evicted for this one, which waits for its room."""
        return ticket in self._claims

    def waiters(self) -> list[Ticket]:
        """All tickets that wait: claims, then what the policy holds."""
        return [*self._claims, *self.policy]
