"""Whom to evict, and whom the room is for.

A victim is of a strictly lower class, in the same pool, and the newest of the lowest class: the least important work,
and the least of it lost.  What has been committed, promoted, started on a claim or evicted too often before is
immune.  The holders that may be evicted are indexed, so that the choice costs the same however many there are.

The one a holder is evicted for leaves the policy and becomes a *claim*, served before any pick, from whichever room
comes first. A claim stands until it is served or its owner leaves; then the victim's room, still on its way, is for the
next who would evict."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from fairlead.core.capacity import Capacity
    from fairlead.core.ticket import Ticket

IMMUNE_AFTER = 3  # evictions of one and the same request


class Evictions:
    """Evictable holders by pool and rank, newest last; the evicted ones; and the claims on their room."""

    __slots__ = ("_pools", "claims", "grounds", "owed", "preemptors")

    def __init__(self) -> None:
        self._pools: dict[Hashable, dict[int, dict[Ticket, None]]] = {}
        self.claims: dict[Ticket, None] = {}
        # Scopes where a victim may be found that was not there.
        self.grounds: dict[Hashable, None] = {}
        self.preemptors = 0  # waiting tickets that may evict, claims among them
        self.owed: dict[Ticket, None] = {}  # evicted, their room has not come back yet

    def expose(self, ticket: Ticket) -> None:
        """A ticket that may be evicted has started."""
        if not ticket.promoted and ticket.evictions < IMMUNE_AFTER:
            self._pools.setdefault(ticket.pool, {}).setdefault(ticket.rank, {})[ticket] = None

    def shield(self, ticket: Ticket) -> None:
        """A ticket may no longer be evicted: it is committed, evicted, or has ended."""
        ranks = self._pools.get(ticket.pool)
        holders = ranks.get(ticket.rank) if ranks else None
        if ranks and holders and ticket in holders:
            del holders[ticket]
            if not holders:
                del ranks[ticket.rank]
                if not ranks:
                    del self._pools[ticket.pool]

    def victim(self, head: Ticket, capacity: Capacity, now: float) -> Ticket | None:
        """Find the holder whose room would really admit the head: one evicted already, or one to evict now."""
        if len(self.owed) > len(self.claims):
            on_its_way = [victim for victim in self.owed if victim.pool == head.pool]
            sold = sum(claim.pool == head.pool for claim in self.claims)
            if len(on_its_way) > sold:
                for victim in on_its_way:
                    if capacity.refusal(head, now, victim) is None:
                        return victim
        for victim in self._below(head):
            if capacity.refusal(head, now, victim) is None:
                return victim
        return None

    def _below(self, ticket: Ticket) -> Iterator[Ticket]:
        """Tell the newest holder of each class strictly below the ticket's, lowest class first."""
        ranks = self._pools.get(ticket.pool, {})
        for rank in sorted(ranks):
            if rank >= ticket.rank:
                return
            yield next(reversed(ranks[rank]))
