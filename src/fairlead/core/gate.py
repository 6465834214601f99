"""The gate: the pure state machine that joins one policy (who is next) and one capacity (is there room).

It knows no clock, no loop, no thread and no lock.  Each verb is handed `now`, brings the gate to that instant, does its one deed,
starts as many waiting tickets as it can, and returns the *other* tickets it changed: RUNNING ones are to be started by
the caller, EXPIRED ones told that they waited (or held) too long, EVICTED ones cancelled and then finished.

The invariants, asserted after every verb by `fairlead.testing.CheckedGate`:

- Room is held by tickets, not counted: active is the number of holders, and each gives back exactly once.
- No ticket waits that could start, unless one ranked before it waits for the same scope.
- A newcomer starts at once only if nobody waits: a slot given back is handed over, never raced for.
- Things due before `now` have happened, in the order of their times, before a verb at `now` does anything; a late
  timer therefore changes no verdict.  At one instant: the deed first, then starts, then expiries.

A scope that refused somebody is *closed*: whoever ranks later is not asked.  It opens when the capacity says so, when
`ready_at` has come, when a ticket of that scope arrives (it may rank earlier), and when the one who closed it leaves.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.core.capacity import FULL, NEVER, STOP
from fairlead.core.deadlines import Deadlines
from fairlead.core.eviction import Victims
from fairlead.core.explain import Explanation, explain
from fairlead.core.scopes import Scopes
from fairlead.core.ticket import (
    DONE,
    EVICTED,
    EXPIRED,
    NEW,
    REFUSED,
    RUNNING,
    WAITING,
    WITHDRAWN,
    Outcome,
    Ticket,
)
from fairlead.errors import ConfigError, FairleadError, Misuse, PolicyError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from fairlead.core.capacity import Capacity
    from fairlead.core.policy import Policy
    from fairlead.core.ticket import State

GONE = object()


class Change(NamedTuple):
    """A change of settings: call `verb(*args)` on the capacity or policy of that name."""

    part: str
    verb: str
    args: tuple[Any, ...] = ()


class Gate:
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

    def __init__(self, policy: Policy, capacity: Capacity, *, reserve_after: float = inf) -> None:
        self.policy = policy
        self.capacity = capacity
        self.reserve_after = reserve_after  # the age at which a ticket closes all its scopes
        self.now = -inf
        self.waiting = 0
        self.due = inf  # nothing happens by itself before this instant (a lower bound)
        self.late = 0  # finishes of tickets that held nothing any more
        self.holders: dict[Ticket, None] = {}
        self._seq = 0
        self._full = False  # the capacity refused everybody; only give, adjust or time can change that
        self._admitted: Ticket | None = None  # what `_admit` took room for and `pick` has yet to return
        self._scopes = Scopes()
        self._deadlines = Deadlines()
        self._victims = Victims()
        self._claims: dict[Ticket, None] = {}  # those a holder was evicted for, served before any pick
        self._owed = 0  # victims whose room has not come back yet
        self._hunting = False  # something changed that may give a waiting preemptor a victim

    @property
    def active(self) -> int:
        """The number of tickets that hold room."""
        return len(self.holders)

    def closed_by(self, scope: Hashable) -> Ticket | None:
        """Tell which waiting ticket a scope was closed for."""
        return self._scopes.closed.get(scope)

    def claimed(self, ticket: Ticket) -> bool:
        """Tell whether another ticket was evicted for this one, which waits for its room."""
        return ticket in self._claims

    # The verbs

    def offer(self, ticket: Ticket, now: float) -> Sequence[Ticket]:
        """Ask for a turn; the answer is `ticket.state`."""
        if ticket.state is not NEW:
            raise Misuse(f"{ticket!r} was offered before; make a new ticket for each turn")
        changed = self._arrive(now) if now > self.due else []
        if now > self.now:
            self.now = now
        else:
            now = self.now  # a clock that steps back stands still
        capacity = self.capacity
        self._seq = ticket.seq = self._seq + 1
        if ticket.arrived_at == -inf:
            ticket.arrived_at = now
        if capacity.scoped:
            ticket.scopes = capacity.scopes(ticket)
        if not self.waiting and not self._full and self.policy.shortcut:
            refusal = capacity.refusal(ticket, now)
            if refusal is None:
                self._full = capacity.take(ticket, now) is True
                self._start(ticket, now)
                if self.policy.charges:
                    self.policy.charge(ticket, ticket.cost, now)
                if self.due <= now:
                    self._settle(now, changed)
                return changed
            if refusal is NEVER:
                self._refuse(ticket, now)
                return changed
        self._push(ticket, now)
        if not self._full or self._hunting or self.due <= now:
            self._settle(now, changed)
        if ticket.state is WAITING and self.policy.limited and ticket not in self._claims:
            limit = self.policy.overflow(ticket)
            if limit is not None:
                self._drop(ticket, REFUSED, now)
                ticket.reason = limit
                self._settle(now, changed)
        if changed and ticket in changed:
            changed.remove(ticket)
        return changed

    def finish(
        self,
        ticket: Ticket,
        now: float,
        outcome: Outcome = Outcome.OK,
        spent: float | None = None,
    ) -> Sequence[Ticket]:
        """End a ticket's work: its room is given back.  A second finish is counted and frees nothing."""
        changed = self._arrive(now) if now > self.due else []
        if now > self.now:
            self.now = now
        else:
            now = self.now
        if self.holders.pop(ticket, GONE) is GONE:
            self.late += 1
            return changed
        self._release(ticket, now, outcome, spent)
        if ticket.state is RUNNING:
            ticket.state = DONE
        if self.waiting or self.due <= now:
            self._settle(now, changed)
        elif self.capacity.opened:
            self.capacity.opened.clear()
        return changed

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
        changed = self._arrive(now)
        part = self.capacity.part(change.part) or self.policy.part(change.part)
        verb = None if change.verb.startswith("_") else getattr(part, change.verb, None)
        if not callable(verb):
            raise ConfigError(f"nothing here is called {change.part!r} and can {change.verb!r}")
        verb(*change.args)
        self._full = False
        self._hunting = True
        self._settle(self.now, changed)
        return changed

    def commit(self, ticket: Ticket) -> bool:
        """Pass the point of no return; False if the ticket was evicted first."""
        if ticket.state is EVICTED:
            return False
        if ticket.state is not RUNNING:
            raise Misuse(f"{ticket!r} cannot be committed: it is not running")
        ticket.committed = True
        self._victims.discard(ticket)
        return True

    def advance(self, now: float) -> Sequence[Ticket]:
        """Let time pass: expire, promote, refill, dispatch."""
        changed = self._arrive(now)
        self._settle(self.now, changed)
        return changed

    def next_wakeup(self, now: float) -> float:
        """Tell when `advance` could next matter; inf if never."""
        self.due = min(self._scopes.soonest(), self._deadlines.soonest())
        if self.policy.timed and self.waiting and not self._full:
            self.due = min(self.due, self.policy.wakes_at(self.now))
        return self.due

    def explain(self, ticket: Ticket, now: float) -> Explanation:
        """Say why a ticket waits, by the predicates the dispatcher uses."""
        return explain(self, ticket, max(now, self.now))

    # Time

    def _arrive(self, now: float) -> list[Ticket]:
        """Bring the gate to `now`, letting what was due before happen at its own time."""
        changed: list[Ticket] = []
        if now > self.due:
            while (at := self.next_wakeup(self.now)) < now:
                self.now = max(at, self.now)
                self._settle(self.now, changed)
        self.now = max(now, self.now)
        return changed

    def _settle(self, now: float, changed: list[Ticket]) -> None:
        """Open what is due, start what may start, then expire what waited or held too long, until nothing moves."""
        hunted = False
        while True:
            due = self.due <= now
            if due:
                for scope in self._scopes.ripe(now):
                    self._full = False
                    self._open(scope, now)
            if self.waiting:
                self._dispatch(now, changed)
                if self._hunting and not hunted:
                    hunted = self._hunt(now, changed)
            if not (due and self._expire(now, changed)):
                break
        if due:
            self.next_wakeup(now)
        elif self.policy.timed and self.waiting and not self._full:
            self.due = min(self.due, self.policy.wakes_at(now))

    def _expire(self, now: float, changed: list[Ticket]) -> bool:
        expired = 0
        told: set[int] | None = None
        while (ticket := self._deadlines.pop(now)) is not None:
            expired += 1
            if ticket.state is WAITING:
                self._drop(ticket, EXPIRED, now)
                ticket.reason = "waited as long as it may"
                changed.append(ticket)
                continue
            del self.holders[ticket]
            self._release(ticket, now, Outcome.OK, None)
            ticket.state = EXPIRED
            ticket.reason = "held its room as long as it may"
            if told is None:
                told = set(map(id, changed))
            if id(ticket) not in told:  # else it was started and ended within one late verb
                changed.append(ticket)
        return expired > 0 and self.waiting > 0

    def _remember(self, at: float, ticket: Ticket) -> None:
        self._deadlines.add(at, ticket)
        if at < self.due:
            self.due = at

    # Waiting

    def _push(self, ticket: Ticket, now: float) -> None:
        try:
            self.policy.push(ticket, now)
        except FairleadError:
            raise
        except Exception as error:
            raise PolicyError(f"{_name(self.policy)} could not queue {ticket!r}: {error!r}") from error
        ticket.state = WAITING
        self.waiting += 1
        if self.capacity.watches:
            self.capacity.enter(ticket, now)
        if ticket.wait_until < inf:
            self._remember(ticket.wait_until, ticket)
        if ticket.can_preempt:
            self._hunting = True
        if self._scopes.closed:
            self._reopen(ticket, now)

    def _drop(self, ticket: Ticket, state: State, now: float) -> None:
        if ticket in self._claims:
            del self._claims[ticket]
        else:
            self.policy.remove(ticket, now)
        ticket.state = state
        self._stopped_waiting(ticket, now)

    def _stopped_waiting(self, ticket: Ticket, now: float) -> None:
        """A ticket starts or leaves: the scopes it closed, if any, may be asked for by the next."""
        self.waiting -= 1
        if self.capacity.watches:
            self.capacity.leave(ticket, now)
        if ticket.wait_until < inf:
            self._deadlines.forget()
        if self._scopes.closed:
            self._reopen(ticket, now)

    def _refuse(self, ticket: Ticket, now: float) -> None:
        ticket.state = REFUSED
        ticket.reason = self.capacity.describe(ticket, now, NEVER)

    # Starting

    def _dispatch(self, now: float, changed: list[Ticket]) -> None:
        """Start as many as possible: claims first, then in the policy's order."""
        capacity = self.capacity
        if capacity.opened:
            self._see_opened(now)
        if self._claims:
            self._serve_claims(now, changed)
        pick, admit = self.policy.pick, self._admit  # looked up once: benchmarks/gate.py
        while not self._full and self.waiting > len(self._claims):
            try:
                ticket = pick(admit, now)
            except Exception as error:
                self._undo(now)
                if isinstance(error, FairleadError):
                    raise
                raise PolicyError(f"{_name(self.policy)} raised {error!r} in pick") from error
            if ticket is None:
                break
            if ticket is not self._admitted:
                self._undo(now)
                raise PolicyError(f"{_name(self.policy)} returned {ticket!r}, which was not admitted")
            self._admitted = None
            if ticket.state is WAITING:  # else it can never fit, and was refused
                self._start(ticket, now)
            self._stopped_waiting(ticket, now)
            changed.append(ticket)
            if capacity.opened:
                self._see_opened(now)

    def _admit(self, ticket: Ticket) -> Hashable | None:
        """Ask for room on behalf of a candidate; None means taken."""
        now = self.now
        closed = self._scopes.closed
        if closed and not ticket.promoted:
            for scope in ticket.scopes:
                if closed.get(scope, ticket) is not ticket:
                    return scope
        capacity = self.capacity
        refusal = capacity.refusal(ticket, now)
        if refusal is None:
            self._full = capacity.take(ticket, now) is True
            self._admitted = ticket
            return None
        if refusal is NEVER:
            self._refuse(ticket, now)
            self._admitted = ticket  # to be taken out of the queue, though not to be started
            return None
        at = capacity.ready_at(ticket, now, refusal)
        if at < inf:
            self._scopes.expect(refusal, at, ticket, now)
            self.due = min(self.due, self._scopes.soonest())
        if refusal is FULL:
            self._full = True
            return STOP
        if refusal is not STOP:
            closed[refusal] = ticket
            if now - ticket.arrived_at >= self.reserve_after:
                for scope in ticket.scopes:
                    closed.setdefault(scope, ticket)
        return refusal

    def _undo(self, now: float) -> None:
        """The policy failed after room was taken: give it back, so that its error costs nobody a slot."""
        ticket, self._admitted = self._admitted, None
        if ticket is not None and ticket.state is WAITING:
            self.capacity.give(ticket, now)
            self.capacity.refund(ticket, ticket.cost, now)
            self._full = False

    def _start(self, ticket: Ticket, now: float) -> None:
        ticket.state = RUNNING
        ticket.started_at = now
        self.holders[ticket] = None
        if ticket.evictable:
            self._victims.add(ticket)
            self._hunting = True
        if ticket.hold_until < inf:
            self._remember(ticket.hold_until, ticket)

    def _release(self, ticket: Ticket, now: float, outcome: Outcome, spent: float | None) -> None:
        self.capacity.give(ticket, now)
        self._full = False
        if ticket.hold_until < inf:
            ticket.hold_until = inf
            self._deadlines.forget()
        if ticket.evictable:
            self._victims.discard(ticket)
            if ticket.state is EVICTED:
                self._owed -= 1
        if outcome is Outcome.LOST:
            spent = 0.0
        if spent is not None and spent != ticket.cost:
            self.capacity.refund(ticket, ticket.cost - spent, now)
            if self.policy.charges:
                self.policy.charge(ticket, spent - ticket.cost, now)

    # Scopes

    def _see_opened(self, now: float) -> None:
        opened = self.capacity.opened
        for scope in opened:
            if scope in self._scopes.closed:
                self._open(scope, now)
        opened.clear()

    def _reopen(self, ticket: Ticket, now: float) -> None:
        """A ticket came or went: whoever ranks first in its scopes may be another now."""
        for scope in ticket.scopes:
            if scope in self._scopes.closed:
                self._open(scope, now)

    def _open(self, scope: Hashable, now: float) -> None:
        self._scopes.closed.pop(scope, None)
        self.policy.open(scope, now)

    # Evicting

    def _hunt(self, now: float, changed: list[Ticket]) -> bool:
        """Evict at most one holder, for the head of the line, and only if that would really admit it."""
        self._hunting = False
        head = self.policy.head(now)
        if head is None or not head.can_preempt:
            return False
        if self._owed > len(self._claims):
            self._claim(head, now)  # the room of an earlier victim has no taker any more
            return True
        for victim in self._victims.below(head):
            if self.capacity.refusal(head, now, victim) is None:
                self._victims.discard(victim)
                victim.state = EVICTED
                self._owed += 1
                changed.append(victim)
                self._claim(head, now)
                return True
        return False

    def _claim(self, ticket: Ticket, now: float) -> None:
        self.policy.remove(ticket, now)
        self._claims[ticket] = None

    def _serve_claims(self, now: float, changed: list[Ticket]) -> None:
        for ticket in list(self._claims):
            if self.capacity.refusal(ticket, now) is None:
                self._full = self.capacity.take(ticket, now) is True
                del self._claims[ticket]
                self._start(ticket, now)
                self._victims.discard(ticket)  # what was started at the price of another stays
                self._stopped_waiting(ticket, now)
                changed.append(ticket)
                if self.policy.charges:
                    self.policy.charge(ticket, ticket.cost, now)


def _name(policy: Policy) -> str:
    return f"policy {policy.name!r}" if policy.name else f"policy {type(policy).__name__}"
