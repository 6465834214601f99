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
    from typing import TypeVar

    Answer = TypeVar("Answer")

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
        waiting = self.waiting
        if not self._cut(super().start, ticket, now):
            return False
        assert not waiting, f"{ticket!r} was started past {waiting} who wait"
        assert ticket in self.holders, f"{ticket!r} was started, and holds no room"
        return True

    def end(self, ticket: Ticket, now: float) -> bool:
        waiting, held = self.waiting, ticket in self.holders
        if not self._cut(super().end, ticket, now):
            return False
        assert not waiting, f"{ticket!r} was ended, and its room is not offered to {waiting}"
        assert held > (ticket in self.holders), f"{ticket!r} was ended, and gave no room back"
        return True

    def line_up(self, ticket: Ticket, now: float) -> bool:
        waiting = self.waiting
        if not self._cut(super().line_up, ticket, now):
            return False
        assert ticket.state is State.WAITING, f"{ticket!r} was lined up, and does not wait"
        assert self.waiting == waiting + 1, f"{ticket!r} was lined up, and is not counted"
        return True

    def relay(self, ticket: Ticket, now: float) -> Ticket | None:
        waiting, active, held = self.waiting, self.active, ticket in self.holders
        following = self._cut(super().relay, ticket, now)
        if following is not None:
            assert held > (ticket in self.holders), f"{ticket!r} was relayed, and gave no room back"
            assert (self.waiting, self.active) == (waiting - 1, active), "one ends, one starts"
        return following

    def _cut(self, cut: Callable[[Ticket, float], Answer], ticket: Ticket, now: float) -> Answer:
        """Check a short cut as the verb it stands for; one that is declined has changed nothing."""
        self._known.setdefault(ticket, ticket.state)
        before = self._standing(ticket)
        try:
            answer = cut(ticket, now)
        except FairleadError:
            self._check_failed([ticket])
            raise
        if not answer:
            assert self._standing(ticket) == before, (
                f"{ticket!r} took no short cut, and something has changed"
            )
            return answer
        # What is over as it begins is left to `advance`.
        self._check([] if answer is True else [answer], [ticket], settled=now < self.due)
        return answer

    def _standing(self, ticket: Ticket) -> tuple[object, ...]:
        held = ticket in self.holders
        return ticket.state, held, self.waiting, self.active, self.late, self.now, self._seq

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
            self._check_failed(own)
            raise
        self._check(changed, own)
        return changed

    def _check_failed(self, own: Sequence[Ticket]) -> None:
        self._check_moves(self._untold, own)  # they are told by the next verb
        self._check_books()

    def _check(
        self, changed: Sequence[Any], own: Sequence[Ticket], *, settled: bool = True
    ) -> None:
        assert len(set(map(id, changed))) == len(changed), f"told twice: {changed}"
        self._check_moves(changed, own)
        self._check_books()
        if settled and not self._untold:
            self._check_nobody_waits_in_vain()
            self._check_wakeup()

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
