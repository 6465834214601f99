"""A policy that fails costs nobody a slot, and the gate goes on."""

import pytest

from fairlead.capacities import InFlight, Slots, TokenBucket
from fairlead.core import Change, Outcome, Policy, State, Ticket
from fairlead.errors import ConfigError, FairleadError, PolicyError
from fairlead.policies import Classes, FairQueue, Level, Planner
from fairlead.testing import CheckedGate


class Faulty(Policy):
    """Does as it is told: raise, lie, or work."""

    fault = ""

    def push(self, ticket, now):
        if self.fault == "push":
            raise ZeroDivisionError("push")
        super().push(ticket, now)

    def pick(self, admit, now):
        if self.fault == "pick":
            raise ZeroDivisionError("pick")
        if self.fault == "admitted":
            admit(next(iter(self)))
            raise ZeroDivisionError("admitted")
        if self.fault == "foreign":
            return Ticket("foreign")
        if self.fault == "another":
            first, second = list(self)[:2]
            admit(first)
            return second
        if self.fault == "both":
            first, second = list(self)[:2]
            admit(first)
            admit(second)
            return second
        if self.fault == "nothing":
            admit(next(iter(self)))
            return None
        return super().pick(admit, now)


def waiting(capacity) -> tuple[CheckedGate, Faulty, list[Ticket]]:
    policy = Faulty()
    gate = CheckedGate(policy, capacity)
    tickets = [Ticket(number) for number in range(4)]
    for ticket in tickets:
        gate.offer(ticket, 0.0)
    return gate, policy, tickets


def test_a_push_that_raises_leaves_the_ticket_out():
    gate, policy, (a, *rest) = waiting(Slots(1))
    policy.fault = "push"
    ticket = Ticket("bad")
    with pytest.raises(
        PolicyError, match=r"Faulty could not queue <Ticket bad new>.*push"
    ) as error:
        gate.offer(ticket, 1.0)
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    assert (ticket.state, gate.waiting) == (State.NEW, 3)
    policy.fault = ""
    assert gate.finish(a, 2.0) == [rest[0]]


@pytest.mark.parametrize("fault", ["pick", "admitted", "foreign", "another", "both", "nothing"])
@pytest.mark.parametrize(
    "capacity",
    [lambda: Slots(1), lambda: InFlight(1), lambda: TokenBucket(0.001, burst=1)],
    ids=["slots", "in flight", "tokens"],
)
def test_a_pick_that_fails_gives_the_room_back(fault: str, capacity):
    gate, policy, (a, b, c, d) = waiting(capacity())
    policy.fault = fault
    with pytest.raises(PolicyError, match="Faulty"):
        gate.finish(a, 1.0, Outcome.LOST)
    assert (gate.active, gate.waiting) == (0, 3)
    assert gate.capacity.audit(gate.holders) is None
    policy.fault = ""
    assert gate.advance(1.0) == [b]
    assert gate.finish(b, 2.0, Outcome.LOST) == [c]
    assert d.state is State.WAITING


def test_an_offer_that_raises_leaves_the_ticket_out():
    gate, policy, _ = waiting(TokenBucket(1.0, burst=1))
    policy.fault = "pick"
    ticket = Ticket("unlucky")
    with pytest.raises(PolicyError):
        gate.offer(ticket, 0.5)
    assert (ticket.state, gate.waiting) == (State.REFUSED, 3)
    assert "Faulty raised" in str(ticket.reason)
    assert ticket not in list(policy)


def test_an_offer_that_fails_after_its_ticket_started_takes_it_back():
    class OneOnly(Policy):
        picks = 0

        def pick(self, admit, now):
            self.picks += 1
            if self.picks > 1:
                raise ZeroDivisionError("no more")
            return super().pick(admit, now)

        shortcut = False

    gate = CheckedGate(OneOnly(), Slots(2))
    gate.adjust(Change("slots", "resize", (0,)), 0.0)
    first = Ticket("first")
    gate.offer(first, 0.0)
    gate.policy.picks = 0  # type: ignore[attr-defined]
    gate.capacity.resize(2)  # type: ignore[attr-defined]
    gate._full = False
    second = Ticket("second")
    with pytest.raises(PolicyError, match="no more"):
        gate.offer(second, 1.0)
    assert second.state is State.REFUSED
    assert gate.advance(1.0) == [first]  # what had started by then is told next
    assert (first.state, gate.active, gate.waiting) == (State.RUNNING, 1, 0)


def test_what_had_started_before_the_failure_is_told_by_the_next_verb():
    class ThirdFails(Policy):
        picks = 0

        def pick(self, admit, now):
            self.picks += 1
            if self.picks == 3:
                raise ZeroDivisionError("third")
            return super().pick(admit, now)

    gate = CheckedGate(ThirdFails(), Slots(0))
    a, b, c = (Ticket(key) for key in "abc")
    for ticket in (a, b, c):
        gate.offer(ticket, 0.0)
    gate.policy.picks = 0  # type: ignore[attr-defined]
    with pytest.raises(PolicyError):
        gate.adjust(Change("slots", "resize", (4,)), 1.0)
    assert [ticket.state for ticket in (a, b, c)] == [State.RUNNING, State.RUNNING, State.WAITING]
    assert gate.next_wakeup(1.0) == 1.0
    assert gate.finish(a, 2.0) == [b, c]


def test_our_own_errors_are_passed_on_as_they_are():
    class Strict(Policy):
        def push(self, ticket, now):
            raise ConfigError("no such class")

    gate = CheckedGate(Strict(), Slots(0))
    with pytest.raises(ConfigError, match="no such class"):
        gate.offer(Ticket("a"), 0.0)


def test_keys_that_cannot_be_ordered_leave_the_queue_as_it_was():
    class Odd(Policy):
        def key(self, ticket):
            return ticket.work

    gate = CheckedGate(Odd(), Slots(0))
    for work in (3, 1, 2):
        gate.offer(Ticket(work, work=work), 0.0)
    for bad in ("four", float("nan")):
        with pytest.raises(FairleadError):
            gate.offer(Ticket("bad", work=bad), 0.0)
    assert gate.waiting == 3
    assert [t.key for t in gate.adjust(Change("slots", "resize", (3,)), 1.0)] == [1, 2, 3]


def test_a_flow_that_cannot_be_named_leaves_the_ticket_out_also_beside_free_room():
    gate = CheckedGate(FairQueue(lambda ticket: dict(ticket.labels or {})["tenant"]), Slots(1))
    for _ in range(2):
        with pytest.raises(PolicyError):
            gate.offer(Ticket("nameless"), 0.0)
        assert gate.waiting == 0
        gate.offer(Ticket("a", labels={"tenant": "a"}), 0.0)
    assert (gate.active, gate.waiting) == (1, 1)


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (lambda waiting, now: [Ticket("stranger"), *waiting], "does not wait here"),
        (lambda waiting, now: [*waiting, *waiting], "twice"),
        (lambda waiting, now: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_plan_that_makes_no_sense_is_named(plan, says: str):
    gate = CheckedGate(Planner(plan, name="odd"), Slots(2))
    with pytest.raises(PolicyError, match=rf"odd.*{says}"):
        gate.offer(Ticket("a"), 0.0)
    assert (gate.active, gate.waiting) == (len(gate.holders), 0)


def test_a_fair_queue_says_at_once_what_is_wrong_with_a_key():
    """Also when nobody waits, and it has yet no need of the key: later it would fail another ticket's offer."""
    gate = CheckedGate(FairQueue(), Slots(1))
    odd = Ticket("odd", tenant=["a list"])  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="could not charge"):
        gate.offer(odd, 0.0)
    assert (odd.state, gate.active, gate.waiting) == (State.NEW, 0, 0)
    first, second = Ticket("first", tenant="a"), Ticket("second", tenant="a")
    gate.advance(0.0)
    gate.offer(first, 1.0)
    gate.offer(second, 1.0)
    assert gate.finish(first, 2.0) == [second]


def catching_up(policy: Faulty) -> tuple[CheckedGate, Faulty, Ticket, Ticket]:
    """A slot is free, the policy failed to give it to one who waits until 5.0, and one holds the other slot."""
    gate = CheckedGate(policy, Slots(2))
    first, second, third = (Ticket(key) for key in ("first", "second", "third"))
    third.wait_until = 5.0
    for ticket in (first, second, third):
        gate.offer(ticket, 0.0)
    policy.fault = "pick"
    with pytest.raises(PolicyError):
        gate.finish(first, 1.0)
    return gate, policy, second, third


@pytest.mark.parametrize("verb", ["finish", "finish_all"])
def test_a_policy_that_fails_as_a_late_gate_catches_up_costs_no_slot(verb: str):
    gate, policy, second, third = catching_up(Faulty())
    with pytest.raises(PolicyError, match="Faulty raised"):
        gate.finish(second, 6.0) if verb == "finish" else gate.finish_all([second], 6.0)
    assert (second.state, gate.active) == (State.DONE, 0)
    assert gate.capacity.audit(gate.holders) is None
    policy.fault = ""
    assert gate.advance(7.0) == [third]
    assert gate.late == 0


def test_a_policy_that_fails_as_a_late_gate_catches_up_undoes_no_change_and_keeps_nobody():
    gate, _, _, _ = catching_up(Faulty())
    with pytest.raises(PolicyError):
        gate.adjust(Change("slots", "resize", (3,)), 6.0)
    assert gate.capacity.total == 3  # type: ignore[attr-defined]
    gate, _, _, third = catching_up(Faulty())
    with pytest.raises(PolicyError, match="Faulty raised"):
        gate.withdraw([third], 6.0)
    assert (third.state, gate.waiting) == (State.WITHDRAWN, 0)


def test_a_failure_that_does_not_recur_is_told_after_the_deed():
    class FailsOnce(Faulty):
        def pick(self, admit, now):
            try:
                return super().pick(admit, now)
            finally:
                self.fault = ""

    gate, policy, second, third = catching_up(FailsOnce())
    policy.fault = "pick"
    with pytest.raises(PolicyError, match="FailsOnce raised"):
        gate.finish(second, 6.0)
    assert (second.state, third.state) == (State.DONE, State.RUNNING)
    assert gate.next_wakeup(6.0) == 6.0
    assert gate.advance(6.0) == [third]
    assert gate.finish(third, 7.0) == []  # and told once


def test_who_comes_as_something_is_due_and_the_policy_fails_holds_nothing():
    class Impolite(Faulty):
        def outranks(self, ticket, now):
            return True

    gate, _, _, _ = catching_up(Impolite())
    with pytest.raises(PolicyError):
        gate.adjust(Change("slots", "resize", (3,)), 2.0)
    for now in (5.0, 6.0):  # as it is due, and after
        with pytest.raises(PolicyError):
            gate.offer(late := Ticket("late"), now)
        assert late.state is not State.RUNNING
        assert late not in gate.holders


class Moody(Classes):
    """Classes of which only so many picks go well."""

    picks = 100

    def pick(self, admit, now):
        self.picks -= 1
        if self.picks < 0:
            raise ZeroDivisionError("pick")
        return super().pick(admit, now)


def test_what_a_failed_verb_started_and_the_next_one_evicts_is_told_once():
    policy = Moody(Level("bulk"), Level("system"))
    gate = CheckedGate(policy, InFlight(3))
    gate.offer(Ticket("expires", cost=2, hold_until=1.0), 0.0)
    gate.offer(Ticket("stays"), 0.0)
    started, waits = Ticket("started", evictable=True), Ticket("waits")
    gate.offer(started, 0.0)
    gate.offer(waits, 0.0)
    policy.picks = 1
    with pytest.raises(PolicyError):
        gate.advance(5.0)  # at 1.0 one starts, and the next cannot be picked
    assert (started.state, started.started_at) == (State.RUNNING, 1.0)
    policy.picks = 100
    head = Ticket("head", cost=2, rank=1, can_preempt=True)
    changed = gate.offer(head, 6.0)
    assert [ticket.key for ticket in changed] == ["expires", "started"]
    assert started.state is State.EVICTED
