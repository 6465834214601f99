"""The gate: the pure state machine that joins one policy (who is next) and one capacity (is there room).

It knows no clock, no loop, no thread and no lock.  Each verb is handed `now`, brings the gate to that instant, does its
one deed, starts as many waiting tickets as it can, and returns the *other* tickets it changed: RUNNING ones are to be
started by the caller, EXPIRED ones told that they waited (or held) too long, EVICTED ones cancelled and then finished.

The invariants, asserted after every verb by `fairlead.testing.CheckedGate`:

- Room is held by tickets, not counted: active is the number of holders, and each gives back exactly once.
- No ticket waits that could start, unless one ranked before it waits for the same scope.
- A newcomer never takes room that a waiter ranked before it could use: a slot given back is handed over, not raced for.
- Things due before `now` have happened, in the order of their times, before a verb at `now` does anything; a late
  timer therefore changes no verdict.  At one instant: the deed first, then starts, then expiries.

A scope that refused somebody is *closed*: whoever ranks later is not asked.  It opens when the capacity says so, when
`ready_at` has come, when a ticket of that scope arrives (it may rank earlier), and when the one who closed it leaves.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.core.capacity import Capacity
from fairlead.core.dispatch import GONE
from fairlead.core.explain import Explanation, explain
from fairlead.core.policy import Policy
from fairlead.core.shortcuts import DECLINED, Shortcuts
from fairlead.core.telling import Telling
from fairlead.core.ticket import (
    DONE,
    EVICTED,
    NEW,
    REFUSED,
    RUNNING,
    UNSET,
    WAITING,
    WITHDRAWN,
    Outcome,
    Ticket,
)
from fairlead.errors import ConfigError, FairleadError, Misuse

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


OK = Outcome.OK
relay = Shortcuts.relay  # also where a subclass declines it: finish itself goes on by it


class Change(NamedTuple):
    """A change of settings: call `verb(*args)` on the capacity or policy of that name."""

    part: str
    verb: str
    args: tuple[Any, ...] = ()


class Gate(Telling, Shortcuts):
    """Join a policy and a capacity.

    >>> from fairlead.policies import FIFO
    >>> from fairlead.capacities import Slots
    >>> gate, first, second = Gate(FIFO(), Slots(1)), Ticket("first"), Ticket("second")
    >>> gate.offer(first, now=0.0), gate.offer(second, now=1.0)
    ([], [])
    >>> first, second
    (<Ticket first running>, <Ticket second waiting>)
    >>> gate.finish(first, now=2.0)
    [<Ticket second running>]
    """

    def __init_subclass__(cls) -> None:
        """Decline the short cuts past an `offer` or a `finish` of its own: it is there to see all of them."""
        order = cls.__mro__

        def of(name: str) -> int:
            return next(at for at, one in enumerate(order) if name in one.__dict__)

        own = min(of("offer"), of("finish"))
        if own < order.index(Gate):
            for name, declined in DECLINED.items():
                if own < of(name):
                    setattr(cls, name, declined)

    # The verbs

    def offer(self, ticket: Ticket, now: float) -> Sequence[Ticket]:
        """Ask for a turn; the answer is `ticket.state`.  If this raises, the ticket waits nowhere and holds nothing."""
        if ticket.state is not NEW:
            raise Misuse(f"{ticket!r} was offered before; make a new ticket for each turn")
        if self._plain and not self._full and not self.waiting and self.now <= now < self.due:
            # Nobody waits, nothing is due, room is a number: all that follows, for this case (benchmarks/tasks.py).
            used, total = self._counted.used + 1, self._counted.total
            if used <= total and not ticket.evictable and ticket.hold_until == inf:
                self._counted.used = used
                self._full = used == total
                self.now = ticket.started_at = now
                if ticket.arrived_at == UNSET:
                    ticket.arrived_at = now
                self._seq = ticket.seq = self._seq + 1
                ticket.state = RUNNING
                self.holders[ticket] = False
                return []
        if self._scoped:
            ticket.scopes = self.capacity.scopes(ticket)
        changed = self._arrive(now) if now > self.due else []
        if now >= self.now:
            self.now = now
        else:
            now = self.now  # a clock that steps back stands still
        self._seq = ticket.seq = self._seq + 1
        if ticket.arrived_at == UNSET:
            ticket.arrived_at = now
        # Else what is due comes first; a bound that nothing stands behind any more decides nothing.
        at_once = not self._full and (now < self.due or now < self.next_wakeup(now))
        if at_once and (
            self._outranks(ticket, now) if self.waiting else self._all_skip or self._skips(ticket)
        ):
            capacity = self.capacity
            refusal = capacity.admit(ticket, now)
            if refusal is None:
                if self._charges:
                    try:
                        self.policy.charge(ticket, ticket.cost, now)
                    except Exception as error:  # it may find the ticket wrong
                        self._not_charged(ticket, now, error, changed)
                self._full = capacity.full
                ticket.state = RUNNING
                ticket.started_at = now
                self.holders[ticket] = False
                if ticket.evictable or ticket.hold_until < inf:
                    self._watch(ticket)
                if self.due <= now:
                    self._settle(now, changed)  # it may end it again, and tell so
                    return [other for other in changed if other is not ticket]
                return changed
        try:
            behind = self.policy.push(ticket, now)
        except Exception as error:
            self._blame("queue", ticket, error, changed)
        ticket.state = WAITING
        self.waiting += 1
        if self.capacity.watches:
            self.capacity.enter(ticket, now)
        if ticket.wait_until < inf:
            self._remember(ticket.wait_until, ticket)
        if ticket.hold_until < inf:
            self._relays = None
        if ticket.can_preempt:
            self._may_evict(ticket)
        if self._closed:
            self._scopes.reopen(ticket, now)
        if self._lasts and not behind:
            self._full = False
        if not self._full or self._hunting or self.due <= now:
            try:
                self._settle(now, changed)
            except FairleadError as error:
                self._retract(ticket, now, error)
                raise
        if self.policy.limited and ticket.state is WAITING and ticket not in self._claims:
            limit = self.policy.overflow(ticket)
            if limit is not None:
                self._drop(ticket, REFUSED, now)
                ticket.reason = limit
                self._settle(now, changed)
        if changed and ticket in changed:
            changed.remove(ticket)
        return changed

    def enlist(self, tickets: Iterable[Ticket], now: float) -> Sequence[Ticket]:
        """Ask for a turn for many at once: all wait, then the best start.  Its own tickets are told with the others.

        If this raises, none of them waits anywhere or holds anything.
        """
        tickets = list(tickets)
        if any(ticket.state is not NEW for ticket in tickets) or len(set(tickets)) < len(tickets):
            raise Misuse("a ticket was offered before; make a new ticket for each turn")
        changed = self._arrive(now)
        now = self.now
        scoped, scopes, push = self._scoped, self.capacity.scopes, self.policy.push
        for ticket in tickets:  # calls bound once, for benchmarks/jobs_planning.py
            if scoped:
                ticket.scopes = scopes(ticket)
            self._seq = ticket.seq = self._seq + 1
            if ticket.arrived_at == UNSET:
                ticket.arrived_at = now
            try:
                push(ticket, now)
            except Exception as error:
                self._recant(tickets, now, error)
                self._blame("queue", ticket, error, changed)
            ticket.state = WAITING
            self.waiting += 1
            if self.capacity.watches:
                self.capacity.enter(ticket, now)
            if ticket.wait_until < inf:
                self._remember(ticket.wait_until, ticket)
            if ticket.hold_until < inf:
                self._relays = None
            if ticket.can_preempt:
                self._may_evict(ticket)
            if self._closed:
                self._scopes.reopen(ticket, now)
        if self._lasts:
            self._full = False
        try:
            self._settle(now, changed)
            if self.policy.limited:
                self._turn_away(tickets, now, changed)
        except FairleadError as error:
            self._recant(tickets, now, error)
            raise
        return changed

    def _outranks(self, ticket: Ticket, now: float) -> bool:
        """Say whether a newcomer may be asked at once, though others wait: all of them rank after it."""
        if self._claims or self.capacity.opened:
            return False
        if self._closed and any(scope in self._closed for scope in ticket.scopes):
            return False  # its coming opens them, and who wakes may be promoted past it
        try:
            return self.policy.outranks(ticket, now)
        except Exception:
            return False  # `push` will say what is wrong with it

    def finish(
        self,
        ticket: Ticket,
        now: float,
        outcome: Outcome = Outcome.OK,
        spent: float | None = None,
    ) -> Sequence[Ticket]:
        """End a ticket's work: its room is given back.  A second finish is counted and frees nothing."""
        if spent is not None and not 0 <= spent < inf:
            raise Misuse(f"{ticket!r} cannot have spent {spent!r}; give a finite number, 0 or more")
        counted = self._counted
        if counted is not None and self._full and self.waiting and outcome is OK and spent is None:
            following = relay(self, ticket, now)
            if following is not None:
                return [
                    following
                ]  # nothing has become due: whoever holds for a time is not relayed
        changed = []
        if self.now <= now < self.due:
            self.now = now
        else:
            changed = self._arrive(now, ticket)
            now = self.now
        watched = self.holders.pop(ticket, GONE)
        if watched is GONE:
            self.late += 1
            if self.due <= now:
                self._settle(now, changed)
            return changed
        if watched or outcome is not OK or spent is not None:
            self._release(ticket, now, outcome, spent)
        elif counted is None:
            self.capacity.give(ticket, now)
            if not self._lasts or self.capacity.opened:
                self._full = False
        else:
            counted.used -= 1
            self._full = False
        if ticket.state is RUNNING:
            ticket.state = DONE
        if self.waiting and (not self._full or self._hunting):
            if self.due > now and not self._hunting:
                self._dispatch(now, changed)  # all that `_settle` does, if nothing else is due
                if self.due > now and not self._hunting:
                    if self.policy.timed and self.waiting and not self._full:
                        self.due = min(self.due, self.policy.wakes_at(now))
                    return changed
            self._settle(now, changed)
        elif self.due <= now:
            self._settle(now, changed)
        elif self.capacity.opened:
            self.capacity.opened.clear()
        return changed

    def finish_all(
        self, tickets: Iterable[Ticket], now: float, outcome: Outcome = Outcome.OK
    ) -> Sequence[Ticket]:
        """End the work of many: all their room is given back, then the best start."""
        tickets = list(tickets)
        changed = self._arrive(now)
        now = self.now
        for ticket in tickets:
            watched = self.holders.pop(ticket, GONE)
            if watched is GONE:
                self.late += 1
                continue
            if watched or outcome is not OK:
                self._release(ticket, now, outcome, None)
            else:
                self.capacity.give(ticket, now)
            if ticket.state is RUNNING:
                ticket.state = DONE
        self._full = False
        self._settle(now, changed)
        own = set(tickets)
        return [ticket for ticket in changed if ticket not in own]

    def withdraw(self, tickets: Iterable[Ticket], now: float) -> Sequence[Ticket]:
        """Stop waiting, one or many with one dispatch; tickets that do not wait are left alone."""
        changed = self._arrive(now)
        for ticket in tickets:
            if ticket.state is WAITING:
                self._drop(ticket, WITHDRAWN, self.now)
        self._settle(self.now, changed)
        return changed

    def adjust(self, change: Change, now: float) -> Sequence[Ticket]:
        """Change a setting of the policy or the capacity, found by name, and start what may start now."""
        # Not by truth: a policy or a capacity that is empty may have a length of 0.
        part: Any = self.capacity.part(change.part)
        if part is None:
            part = self.policy.part(change.part)
        # The verbs of the contracts are the gate's own to call.
        private = (
            change.verb.startswith("_")
            or hasattr(Capacity, change.verb)
            or hasattr(Policy, change.verb)
        )
        verb = None if private else getattr(part, change.verb, None)
        if not callable(verb):
            raise ConfigError(f"nothing here is called {change.part!r} and can {change.verb!r}")
        changed = self._arrive(now)
        try:
            verb(*change.args)
        except Exception:
            self._tell_later(changed)
            raise
        self._full = False
        self._rouse(self._scopes.closed)
        self._settle(self.now, changed)
        return changed

    def surrender(self) -> list[Ticket]:
        """Give up the tickets that run, for another gate to adopt; this one is used no more."""
        holders, self.holders = list(self.holders), {}
        return holders

    def adopt(self, tickets: Iterable[Ticket], now: float) -> None:
        """Take over tickets that run already: they hold room here, above the limit if need be."""
        self.now = max(self.now, now)
        for ticket in tickets:
            self._seq = ticket.seq = self._seq + 1
            if self._scoped:
                ticket.scopes = self.capacity.scopes(ticket)
            self._full = self.capacity.adopt(ticket, now) is True
            self.holders[ticket] = False
            if ticket.evictable or ticket.hold_until < inf:
                self._watch(ticket)

    def commit(self, ticket: Ticket) -> bool:
        """Pass the point of no return; False if the ticket was evicted first."""
        if ticket.state is EVICTED:
            return False
        if ticket.state is not RUNNING:
            raise Misuse(f"{ticket!r} cannot be committed: it is not running")
        ticket.committed = True
        self._evictions.shield(ticket)
        return True

    def advance(self, now: float) -> Sequence[Ticket]:
        """Let time pass: expire, promote, refill, dispatch."""
        if self._untold:  # the verb before this failed; to dispatch at once would fail again
            changed, self._untold = self._untold, []
            return changed
        changed = self._arrive(now)
        self._settle(self.now, changed)
        return changed

    def explain(self, ticket: Ticket, now: float) -> Explanation:
        """Say why a ticket waits, by the predicates the dispatcher uses."""
        return explain(self, ticket, max(now, self.now))
