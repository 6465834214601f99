"""Whom to evict: the holders that may still be sent away, indexed so that the choice costs the same however many there are.

A victim is of a strictly lower class, in the same pool, and the newest of the lowest class: the least important work, and the least
of it lost.  What has been committed, promoted, started on a claim or evicted too often before is immune.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from fairlead.core.ticket import Ticket

IMMUNE_AFTER = 3  # evictions of one and the same request


class Victims:
    """Evictable holders by pool and rank, newest last."""

    __slots__ = ("_pools",)

    def __init__(self) -> None:
        self._pools: dict[Hashable, dict[int, dict[Ticket, None]]] = {}

    def add(self, ticket: Ticket) -> None:
        if not ticket.promoted and ticket.evictions < IMMUNE_AFTER:
            self._pools.setdefault(ticket.pool, {}).setdefault(ticket.rank, {})[ticket] = None

    def discard(self, ticket: Ticket) -> None:
        ranks = self._pools.get(ticket.pool)
        holders = ranks.get(ticket.rank) if ranks else None
        if ranks and holders and ticket in holders:
            del holders[ticket]
            if not holders:
                del ranks[ticket.rank]
                if not ranks:
                    del self._pools[ticket.pool]

    def below(self, ticket: Ticket) -> Iterator[Ticket]:
        """Tell the newest holder of each class strictly below the ticket's, lowest class first."""
        ranks = self._pools.get(ticket.pool, {})
        for rank in sorted(ranks):
            if rank >= ticket.rank:
                return
            yield next(reversed(ranks[rank]))

    def __contains__(self, ticket: Ticket) -> bool:
        return ticket in self._pools.get(ticket.pool, {}).get(ticket.rank, {})
