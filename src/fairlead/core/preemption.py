"""Room taken from one for another: who is evicted, for whom, and how that one then comes first.

A *claim* is a waiting ticket for which another was evicted.  It has left the policy, and takes whichever room comes
first: the victim still holds its own until its work has ended.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from fairlead.core.capacity import FULL, NEVER, STOP
from fairlead.core.ticket import EVICTED, RUNNING, Evicted

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from fairlead.core.capacity import Capacity
    from fairlead.core.eviction import Evictions
    from fairlead.core.policy import Policy
    from fairlead.core.scopes import Scopes
    from fairlead.core.ticket import Ticket


class Preempting:
    """The moves of a gate that cost a holder its room; the state is that of `Dispatcher`."""

    policy: Policy
    capacity: Capacity
    due: float
    holders: dict[Ticket, bool]
    _charges: bool
    _claims: dict[Ticket, None]
    _evictions: Evictions
    _full: bool
    _hunting: bool
    _notes: bool
    _relays: Any
    _scopes: Scopes

    if TYPE_CHECKING:

        def _refuse(self, ticket: Ticket, now: float) -> None: ...
        def _stopped_waiting(self, ticket: Ticket, now: float) -> None: ...
        def _tell_end(self, ticket: Ticket, changed: list[Ticket]) -> None: ...
        def _watch(self, ticket: Ticket) -> None: ...

    def _hunt(self, now: float, changed: list[Ticket]) -> None:
        """Evict at most one holder, for the head of a line, and only if that would really admit it.

        The head of the line is the policy's, or, where a scope is closed, the one it was closed for.
        """
        self._hunting = False
        grounds, self._evictions.grounds = self._evictions.grounds, {}
        if self._evictions.preemptors <= len(self._claims):
            return  # nobody would; and to ask a planner for its head costs a plan
        closed = self._scopes.closed
        for head in (self.policy.head(now), *(closed.get(scope) for scope in grounds)):
            if head is None or not head.can_preempt or head in self._claims:
                continue
            if head.wait_until <= now or self.capacity.refusal(head, now) is None:
                continue  # it is about to give up; or order alone keeps it waiting
            victim = self._evictions.victim(head, self.capacity, now)
            if victim is None:
                continue
            if victim.state is RUNNING:
                self._evictions.shield(victim)
                self._evictions.owed[victim] = None
                self._tell_end(victim, changed)
                victim.state = EVICTED
                victim.reason = Evicted(head.key, head.rank)
            self.policy.remove(head, now)
            self._claims[head] = None
            return

    def _may_evict(self, ticket: Ticket) -> None:
        """A ticket starts to wait that may evict."""
        self._evictions.preemptors += 1
        self._notes, self._relays = True, None
        self._rouse(ticket.scopes)

    def _rouse(self, scopes: Iterable[Hashable]) -> None:
        self._hunting = True
        for scope in scopes:
            self._evictions.grounds[scope] = None

    def _serve_claims(self, now: float, changed: list[Ticket]) -> bool:
        """Start the claims that have room; like any head of a line, one that has none keeps later ones from it."""
        for ticket in list(self._claims):
            refusal = self.capacity.refusal(ticket, now)
            if refusal is None:
                if self._charges:
                    self.policy.charge(ticket, ticket.cost, now)
                self._full = self.capacity.take(ticket, now) is True
                ticket.state = RUNNING
                ticket.started_at = now
                self.holders[ticket] = False
                if ticket.evictable or ticket.hold_until < inf:
                    self._watch(ticket)
                self._evictions.shield(ticket)  # what was started at the price of another stays
            elif refusal is NEVER:
                self._refuse(ticket, now)
            else:
                at = self.capacity.ready_at(ticket, now, refusal)
                self.due = min(self.due, self._scopes.expect(refusal, at, now))
                if refusal is FULL or refusal is STOP:
                    self._full = refusal is FULL
                    return False
                self._scopes.close(refusal, ticket, now)
                continue
            del self._claims[ticket]
            self._stopped_waiting(ticket, now)
            changed.append(ticket)
        return True
