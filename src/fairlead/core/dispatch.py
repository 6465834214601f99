"""What happens between a verb and its answer: time passes, tickets start, wait, leave, and are evicted.

The verbs stand in `fairlead.core.gate`, with the invariants; here is the one loop they share, `_settle`: open what is
due, start as many as possible, expire what waited or held too long, until nothing moves."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from fairlead.core.capacity import FULL, NEVER, STOP
from fairlead.core.deadlines import Deadlines
from fairlead.core.eviction import Evictions
from fairlead.core.failing import Failing
from fairlead.core.part import claim
from fairlead.core.policy import Policy
from fairlead.core.preemption import Preempting
from fairlead.core.scopes import Scopes
from fairlead.core.ticket import EVICTED, EXPIRED, REFUSED, RUNNING, WAITING, Outcome
from fairlead.errors import FairleadError

if TYPE_CHECKING:
    from collections.abc import Hashable

    from fairlead.core.capacity import Capacity
    from fairlead.core.policy import Admit
    from fairlead.core.ticket import State, Ticket

GONE = object()


class Dispatcher(Preempting, Failing):
    """The state of a gate and the moves of its tickets; `Gate` adds the verbs."""

    def __init__(self, policy: Policy, capacity: Capacity, *, reserve_after: float = inf) -> None:
        claim(policy, capacity)
        self.policy = policy
        self.capacity = capacity
        self.now = -inf
        self._since = -inf  # what this verb tells as started has started at this instant or later
        self.waiting = 0
        self.due = inf  # nothing happens by itself before this instant (a lower bound)
        self.late = 0  # finishes of tickets that held nothing any more
        self.holders: dict[Ticket, bool] = {}  # watched (see `_watch`) or not
        self._seq = 0
        # Nobody who waits can start, until something is given, adjusted or due; or, where a STOP lasts, until one
        # comes who ranks first, or one leaves.
        self._full = False
        self._admitted: list[Ticket] = []  # the one that has room, and `pick` has yet to return it
        self._untold: list[Ticket] = []  # changed by a verb that then failed; told by the next one
        self._failed: FairleadError | None = None  # as a verb caught up; raised after its deed
        self._scopes = Scopes(policy, capacity, reserve_after)
        self._closed = self._scopes.closed
        self._deadlines = Deadlines()
        self._evictions = Evictions()
        self._claims = self._evictions.claims
        self._hunting = False  # something changed that may give a waiting preemptor a victim
        # Fixed for good, and asked for every ticket: benchmarks/gate.py.
        self._scoped = capacity.scoped
        self._charges = policy.charges
        self._counted: Any = capacity if capacity.counts else None
        self._lasts = capacity.lasts and not capacity.scoped
        # Is more to be done for one that waits no longer than to count it?  Also once one had a deadline, or may evict.
        self._notes = capacity.watches or capacity.scoped
        # The capacity, as long as a slot that changes hands is all there is to one that starts and was no newcomer.
        self._relays: Any = None if self._notes else self._counted
        plain = policy.shortcut and type(policy).skips is Policy.skips
        self._all_skip = plain or not policy.withholds
        self._plain = capacity.counts and self._all_skip and not self._charges
        self._draws = capacity.spends and self._all_skip and not self._charges
        # Where there is room for one there is room for any: to be asked is to be admitted.
        self._asker: Admit = self._admitted.append if capacity.counts else self._admit

    # Time

    def next_wakeup(self, now: float) -> float:
        """Tell when `advance` could next matter; inf if never."""
        if self._untold:
            return self.now
        self._look_ahead()
        if self.policy.timed and self.waiting and not self._full:
            self.due = min(self.due, self.policy.wakes_at(self.now))
        return self.due

    def _look_ahead(self) -> None:
        # Here and in `_arrive` a min(), or a call for what is empty, costs more: benchmarks/flows.py.
        scopes, deadlines = self._scopes, self._deadlines
        at = scopes.soonest() if scopes.timers else scopes.everyone_at
        if deadlines.heap and (ends := deadlines.soonest()) < at:
            at = ends
        self.due = at

    def _arrive(self, now: float, own: Ticket | None = None) -> list[Ticket]:
        """Bring the gate to `now`, letting what was due before happen at its own time; tell of all but the caller's."""
        changed, self._untold = self._untold, []
        self._since = -inf if changed else self.now
        if not changed and self.now < now:
            self._since = now if now <= self.due else max(self.now, self.due)
        if now > self.due:
            while (at := self.next_wakeup(self.now)) < now:
                self.now = max(at, self.now)
                try:
                    self._settle(self.now, changed)
                except FairleadError as error:
                    self._failed, self._untold = error, []
                    break  # what is to be given back is given back all the same
        if now > self.now:  # NaN moves nothing
            self.now = now
        if own is not None and own in changed:
            changed.remove(own)
        return changed

    def _settle(self, now: float, changed: list[Ticket]) -> None:
        """Open what is due, start what may start, then expire what waited or held too long, until nothing moves."""
        while True:
            if self.due <= now:
                scopes = self._scopes
                if scopes.everyone_at <= now:
                    scopes.everyone_at = inf
                    self._full = False
                if scopes.timers:
                    for scope in scopes.ripe(now):
                        self._full = False
                        scopes.open(scope, now)
                self._look_ahead()
            if self.waiting:
                self._dispatch(now, changed)
            elif self.capacity.opened:
                self.capacity.opened.clear()
            # Asked again: what has just started may be due to end.
            if self.due <= now and self._expire(now, changed):
                continue
            # Last, for nobody is evicted for room that comes by itself at this very instant.
            if self.waiting and self._hunting:
                self._hunt(now, changed)
            break
        if self.due <= now:
            self.next_wakeup(now)
        elif self.policy.timed and self.waiting and not self._full:
            self.due = min(self.due, self.policy.wakes_at(now))
        if (failed := self._failed) is not None:
            self._tell_later(changed)
            raise failed

    def _expire(self, now: float, changed: list[Ticket]) -> bool:
        expired = False
        while (ticket := self._deadlines.pop(now)) is not None:
            expired = True
            if ticket.state is WAITING:
                self._drop(ticket, EXPIRED, now)
                ticket.reason = "waited as long as it may"
                changed.append(ticket)
                continue
            self._tell_end(ticket, changed)
            del self.holders[ticket]
            self._release(ticket, now, Outcome.OK, None)
            ticket.state = EXPIRED
            ticket.reason = "held its room as long as it may"
        return expired

    def _remember(self, at: float, ticket: Ticket) -> None:
        self._notes = True
        self._deadlines.add(at, ticket)
        if at < self.due:
            self.due = at

    def _tell_end(self, ticket: Ticket, changed: list[Ticket]) -> None:
        """Tell a holder's end, unless it was also started or evicted in the course of this verb, and told then."""
        recent = ticket.started_at >= self._since or ticket.state is EVICTED
        if not (recent and any(ticket is told for told in reversed(changed))):
            changed.append(ticket)

    # Waiting

    def _turn_away(self, tickets: list[Ticket], now: float, changed: list[Ticket]) -> None:
        """Of those enlisted, the last beyond a limit are refused."""
        for ticket in reversed(tickets):
            if ticket.state is WAITING and ticket not in self._claims:
                limit = self.policy.overflow(ticket)
                if limit is not None:
                    self._drop(ticket, REFUSED, now)
                    ticket.reason = limit
                    changed.append(ticket)
        self._settle(now, changed)

    def _drop(self, ticket: Ticket, state: State, now: float) -> None:
        if ticket in self._claims:
            del self._claims[ticket]
            self._rouse(ticket.scopes)  # the room on its way to it has no taker any more
        else:
            self.policy.remove(ticket, now)
        if self._lasts:
            self._full = False  # it may be the one who was refused, before or after it had a claim
        ticket.state = state
        self._stopped_waiting(ticket, now)

    def _stopped_waiting(self, ticket: Ticket, now: float) -> None:
        """A ticket starts or leaves: the scopes it closed, if any, may be asked for by the next."""
        self.waiting -= 1
        if ticket.can_preempt:
            self._evictions.preemptors -= 1
        if self.capacity.watches:
            self.capacity.leave(ticket, now)
        if ticket.wait_until < inf:
            self._deadlines.forget()
        if self._closed:
            self._scopes.reopen(ticket, now)

    def _refuse(self, ticket: Ticket, now: float) -> None:
        ticket.state = REFUSED
        ticket.reason = self.capacity.describe(ticket, now, NEVER)

    # Starting

    def _dispatch(self, now: float, changed: list[Ticket]) -> None:
        """Start as many as possible: claims first, then in the policy's order."""
        capacity, counted = self.capacity, self._counted
        if counted is not None:
            self._full = counted.used >= counted.total
        elif capacity.opened and self._closed:
            self.due = min(self.due, self._scopes.see_opened(now))
        elif capacity.opened:
            capacity.opened.clear()
        if self._claims and not self._serve_claims(now, changed):
            return
        # Steps are written out below where a call would say it shorter: benchmarks/gate.py.
        policy, admitted, claims = self.policy, self._admitted, len(self._claims)
        while self.waiting > claims and not self._full:
            try:
                ticket = policy.pick(self._asker, now)
            except Exception as error:
                self._misled(error, now, changed)
            if len(admitted) != 1 or admitted[0] is not ticket:
                if ticket is None and not admitted:
                    break
                self._misled(ticket, now, changed)
            del admitted[0]
            if counted is not None:
                counted.used = used = counted.used + 1
                self._full = used >= counted.total
            if ticket.state is WAITING:  # else it can never fit, and was refused
                ticket.state = RUNNING
                ticket.started_at = now
                self.holders[ticket] = False
                if ticket.evictable or ticket.hold_until < inf:
                    self._watch(ticket)
            if self._notes:
                self._stopped_waiting(ticket, now)
            else:
                self.waiting -= 1
            changed.append(ticket)
            if capacity.opened:
                self._scopes.see_opened(now)

    def _admit(self, ticket: Ticket) -> Hashable | None:
        """Ask for room on behalf of a candidate; None means taken."""
        now = self.now
        closed = self._closed
        if closed and not ticket.promoted:
            for scope in ticket.scopes:
                if closed.get(scope, ticket) is not ticket:
                    return scope
        capacity = self.capacity
        refusal = capacity.admit(ticket, now)
        if refusal is None:
            self._full = capacity.full
            self._admitted.append(ticket)
            return None
        if refusal is NEVER:
            self._refuse(ticket, now)
            self._admitted.append(ticket)  # to be taken out of the queue, though not to be started
            return None
        at = capacity.ends_at if capacity.foretells else capacity.ready_at(ticket, now, refusal)
        ends = self._scopes.expect(refusal, at, now)
        if ends < self.due:
            self.due = ends
        if refusal is FULL:
            self._full = True
            return STOP
        if refusal is not STOP:
            self._scopes.close(refusal, ticket, now)
        elif self._lasts and self.policy.steady:
            self._full = True
        return refusal

    def _watch(self, ticket: Ticket) -> None:
        """A ticket that has just started may be evicted, or holds its room only for a time."""
        self.holders[ticket] = True
        if ticket.evictable:
            self._evictions.expose(ticket)
            if self._evictions.preemptors:
                self._rouse(ticket.scopes)
        if ticket.hold_until < inf:
            self._remember(ticket.hold_until, ticket)

    def _release(self, ticket: Ticket, now: float, outcome: Outcome, spent: float | None) -> None:
        self.capacity.give(ticket, now)
        self._full = False
        if ticket.hold_until < inf:
            ticket.hold_until = inf
            self._deadlines.forget()
        if ticket.evictable:
            self._evictions.shield(ticket)
            self._evictions.owed.pop(ticket, None)
        if outcome is Outcome.LOST:
            spent = 0.0
        if spent is not None and spent != ticket.cost:
            self.capacity.refund(ticket, ticket.cost - spent, now)
            if self._charges:
                self.policy.charge(ticket, spent - ticket.cost, now)
