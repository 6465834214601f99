"""A gate that checks itself after every verb: for tests of gates, doors, policies and capacities, ours and yours."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from fairlead.core.capacity import NEVER, STOP
from fairlead.core.gate import Change, Gate
from fairlead.core.ticket import Outcome, State, Ticket
from fairlead.errors import FairleadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

ENDED = frozenset({State.DONE, State.REFUSED, State.EXPIRED, State.WITHDRAWN})
MOVES = {
    # Of a batch one may start and be evicted for another in one verb.
    State.NEW: {State.WAITING, State.RUNNING, State.REFUSED, State.EXPIRED, State.EVICTED},
    State.WAITING: {State.RUNNING, State.REFUSED, State.EXPIRED, State.WITHDRAWN, State.EVICTED},
    State.RUNNING: {State.DONE, State.EVICTED, State.EXPIRED},
    State.EVICTED: {State.EXPIRED},
}


class CheckedGate(Gate):
    """A gate that raises AssertionError as soon as an invariant of the core is broken.

    >>> from fairlead.policies import FIFO
    >>> from fairlead.capacities import Slots
    >>> gate = CheckedGate(FIFO(), Slots(1))
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._known: dict[Ticket, State] = {}

    def offer(self, ticket: Ticket, now: float) -> Sequence[Ticket]:
        self._known.setdefault(ticket, ticket.state)
        return self._checked([ticket], super().offer, ticket, now)

    def draw(self, ticket: Ticket, now: float) -> bool:
        before = self.waiting, ticket.state
        drawn = super().draw(ticket, now)
        if drawn:
            assert before == (0, State.NEW), f"{ticket!r} was drawn past {before[0]} who wait"
            assert ticket.state is State.RUNNING, f"{ticket!r} was drawn, and does not run"
        else:
            assert ticket.state is before[1], f"{ticket!r} was not drawn, and has changed"
        assert ticket not in self.holders, f"{ticket!r} was drawn, and holds room"
        self._check_books()
        return drawn

    def start(self, ticket: Ticket, now: float) -> bool:
        before = self.waiting, ticket.state
        self._known.setdefault(ticket, ticket.state)
        started = super().start(ticket, now)
        if started:
            assert before == (0, State.NEW), f"{ticket!r} was started past {before[0]} who wait"
            assert ticket in self.holders, f"{ticket!r} was started, and holds no room"
            self._checked([ticket], list)
        else:
            assert (self.waiting, ticket.state) == before, f"{ticket!r} did not start: a change"
        return started

    def end(self, ticket: Ticket, now: float) -> bool:
        before = self.waiting, ticket.state, ticket in self.holders
        ended = super().end(ticket, now)
        after = self.waiting, ticket.state, ticket in self.holders
        if ended:
            assert before == (0, State.RUNNING, True), f"{ticket!r} has ended, and it did not run"
            assert after == (0, State.DONE, False), f"{ticket!r} has ended, and holds room"
            self._checked([ticket], list)
        else:
            assert after == before, f"{ticket!r} has not ended, and has changed"
        return ended

    def line_up(self, ticket: Ticket, now: float) -> bool:
        before = self.waiting, ticket.state
        self._known.setdefault(ticket, ticket.state)
        lined_up = super().line_up(ticket, now)
        if lined_up:
            after = before[0] + 1, State.WAITING
            assert before[1] is State.NEW, f"{ticket!r} lined up twice"
            assert (self.waiting, ticket.state) == after, f"{ticket!r} lined up, and does not wait"
            self._checked([ticket], list)
        else:
            assert (self.waiting, ticket.state) == before, f"{ticket!r} did not line up: a change"
        return lined_up

    def relay(self, ticket: Ticket, now: float) -> Ticket | None:
        waiting, active, held = self.waiting, self.active, ticket in self.holders

        def verb() -> list[Ticket]:
            following = Gate.relay(self, ticket, now)
            return [] if following is None else [following]

        changed = self._checked([ticket], verb)
        if changed:
            assert held, f"{ticket!r} was relayed, and held no room"
            assert ticket not in self.holders, f"{ticket!r} was relayed, and holds room"
            assert (self.waiting, self.active) == (waiting - 1, active), "one ends, one starts"
            return changed[0]
        assert (ticket in self.holders) is held, f"{ticket!r} was not relayed, and has changed"
        return None

    def enlist(self, tickets: Iterable[Ticket], now: float) -> Sequence[Ticket]:
        tickets = list(tickets)
        for ticket in tickets:
            self._known.setdefault(ticket, ticket.state)
        changed = self._checked(tickets, super().enlist, tickets, now)
        for ticket in tickets:
            told = ticket.state is not State.WAITING
            assert (ticket in changed) is told, f"{ticket!r} was enlisted, and told is {not told}"
        return changed

    def finish(
        self,
        ticket: Ticket,
        now: float,
        outcome: Outcome = Outcome.OK,
        spent: float | None = None,
    ) -> Sequence[Ticket]:
        return self._checked([ticket], super().finish, ticket, now, outcome, spent)

    def finish_all(
        self, tickets: Iterable[Ticket], now: float, outcome: Outcome = Outcome.OK
    ) -> Sequence[Ticket]:
        tickets = list(tickets)
        return self._checked(tickets, super().finish_all, tickets, now, outcome)

    def withdraw(self, tickets: Iterable[Ticket], now: float) -> Sequence[Ticket]:
        tickets = list(tickets)
        return self._checked(tickets, super().withdraw, tickets, now)

    def adjust(self, change: Change, now: float) -> Sequence[Ticket]:
        return self._checked([], super().adjust, change, now)

    def commit(self, ticket: Ticket) -> bool:
        committed = super().commit(ticket)
        self._check_books()
        return committed

    def advance(self, now: float) -> Sequence[Ticket]:
        return self._checked([], super().advance, now)

    def _checked(
        self, own: list[Ticket], verb: Callable[..., Sequence[Ticket]], *args: Any
    ) -> Sequence[Ticket]:
        try:
            changed = verb(*args)
        except FairleadError:
            self._check_moves(self._untold, own)  # they are told by the next verb
            self._check_books()
            raise
        assert len(set(map(id, changed))) == len(changed), f"told twice: {changed}"
        self._check_moves(changed, own)
        self._check_books()
        if not self._untold:
            self._check_nobody_waits_in_vain()
            self._check_wakeup()
        return changed

    def _check_moves(self, changed: Sequence[Ticket], own: Sequence[Ticket]) -> None:
        """A ticket moves along the diagram, ends once, and every move of another ticket is told."""
        told = {*changed, *own}
        for ticket, before in list(self._known.items()):
            after = ticket.state
            if after is not before:
                assert after in MOVES.get(before, ()), f"{ticket!r} went from {before} to {after}"
                assert ticket in told, f"{ticket!r} went from {before.value} and nobody was told"
                self._known[ticket] = after
            if after in ENDED:
                del self._known[ticket]

    def _check_books(self) -> None:
        """Counts equal what can be counted; capacity agrees with the holders."""
        waiting = list(self.policy)
        assert len(waiting) == len(self.policy), (
            f"{len(waiting)} tickets iterated of {len(self.policy)}"
        )
        assert len(set(map(id, waiting))) == len(waiting), "a ticket waits twice"
        assert self.waiting == len(waiting) + len(self._claims), (
            "the count of waiting tickets is off"
        )
        preemptors = sum(ticket.can_preempt for ticket in (*waiting, *self._claims))
        assert self._evictions.preemptors == preemptors, "the count of waiting preemptors is off"
        for ticket in waiting:
            assert ticket.state is State.WAITING, f"{ticket!r} stands in the queue"
        for ticket in self.holders:
            assert ticket.state in (State.RUNNING, State.EVICTED), f"{ticket!r} holds room"
        fault = self.capacity.audit(self.holders)
        assert fault is None, fault

    def _check_nobody_waits_in_vain(self) -> None:
        """No admissible ticket waits beside free room, unless one ranked before it waits for the same."""
        claims = [self.capacity.refusal(ticket, self.now) for ticket in self._claims]
        assert STOP in claims or None not in claims, (
            f"of {list(self._claims)} one has a claim and room, and waits"
        )
        refusals = {ticket: self.capacity.refusal(ticket, self.now) for ticket in self.policy}
        if self._lasts and self.policy.steady and not claims:
            head = self.policy.head(self.now)
            assert head is None or refusals[head] is STOP, f"{head!r} is first and need not wait"
        if STOP in claims or STOP in refusals.values():
            return
        for ticket, refusal in refusals.items():
            if not self.policy.skips(ticket):
                continue  # the policy may withhold it
            if refusal is None or (refusal is NEVER and not self._full):
                closer = self.closed_by(self.closed_to(ticket))
                assert closer is not None, f"{ticket!r} waits beside free room"
                assert closer.state is State.WAITING, f"{closer!r} keeps {ticket!r} waiting"

    def _check_wakeup(self) -> None:
        """The next wake-up is never late: for an end of a wait or hold, or for room that comes with time."""
        wakeup = self.next_wakeup(self.now)
        for ticket in [*self.policy, *self._claims]:
            assert ticket.wait_until >= wakeup, (
                f"{ticket!r} expires at {ticket.wait_until}, before {wakeup}"
            )
            assert ticket.wait_until > self.now, f"{ticket!r} should have expired"
        for ticket in self.holders:
            assert ticket.hold_until >= wakeup, f"{ticket!r} is to be ended before {wakeup}"
        head = self.policy.head(self.now) if self._lasts and self.policy.steady else None
        if head is not None:
            at = self.capacity.ready_at(head, self.now, STOP)
            assert at >= wakeup, f"{head!r}, who is first, has room at {at}, before {wakeup}"
        for scope, closer in self._scopes.closed.items():
            if closer.state is State.WAITING and self.capacity.refusal(closer, self.now) == scope:
                at = self.capacity.ready_at(closer, self.now, scope)
                assert at >= wakeup, f"{scope!r} opens at {at}, before {wakeup}"
        assert wakeup > self.now or wakeup == inf, f"the gate would wake at {wakeup} for ever"
