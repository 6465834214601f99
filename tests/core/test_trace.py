"""A recording replayed gives the same verdicts, through JSON too, and also where verbs failed."""

import json

import pytest

from fairlead.capacities import Both, Pools, Slots, TokenBucket
from fairlead.core import Change, Gate, Outcome, Policy, Recorder, State, Ticket, replay
from fairlead.errors import ConfigError, Misuse, PolicyError
from fairlead.policies import FIFO, Aging, Classes, FairQueue, Level


def fresh(make: type[Gate] = Gate) -> Gate:
    return make(
        Classes(Level("bulk", lambda: FairQueue("tenant")), Level("top", Aging, wait_limit=9.0)),
        Both(Pools({"ocr": 1}), TokenBucket(1.0, burst=5)),
    )


def recorded() -> tuple[Recorder, list[list[tuple[int, str]]]]:
    gate = fresh(Recorder)
    assert isinstance(gate, Recorder)
    told = []
    tickets = [
        Ticket(
            f"job {number}",
            rank=number % 2,
            tenant="ab"[number % 2],
            pool="ocr",
            cost=1 + number % 2,
            labels={"n": str(number)},
            can_preempt=number == 3,
            evictable=True,
        )
        for number in range(6)
    ]

    def note(own, changed):
        told.append([(tickets.index(t), t.state.value) for t in (*own, *changed)])

    for number, ticket in enumerate(tickets):
        note([ticket], gate.offer(ticket, float(number)))
    gate.commit(tickets[0])
    note([tickets[0]], [])
    note([tickets[0]], gate.finish(tickets[0], 7.0, Outcome.FAILED, spent=0.5))
    note(tickets[1:3], gate.withdraw(tickets[1:3], 8.0))
    note([], gate.adjust(Change("pools", "resize", ("ocr", 3)), 9.0))
    note([], gate.advance(20.0))
    return gate, told


def test_a_replay_gives_the_same_verdicts():
    gate, told = recorded()
    assert replay(gate.entries, fresh()) == told
    assert {state for verdicts in told for _, state in verdicts} >= {
        "running",
        "waiting",
        "done",
        "withdrawn",
    }


def test_a_recording_survives_json():
    gate, told = recorded()
    entries = json.loads(json.dumps(gate.entries))
    assert replay(entries, fresh()) == told


def test_a_recorder_decides_as_any_gate_does():
    gate, told = recorded()
    again = fresh(Recorder)
    assert replay(gate.entries, again) == told
    assert isinstance(again, Recorder)
    assert json.dumps(again.entries) == json.dumps(gate.entries)


def test_what_a_policy_writes_on_a_ticket_is_not_recorded_as_the_callers():
    gate, _ = recorded()
    assert all(
        entry[3]["wait_until"] == float("inf") for entry in gate.entries if entry[0] == "offer"
    )


def test_a_replay_goes_on_where_a_verb_failed():
    gate = Recorder(Classes(Level("only")), Slots(1))
    a, b = Ticket("a"), Ticket("b")
    gate.offer(a, 0.0)
    with pytest.raises(Misuse):
        gate.offer(a, 1.0)
    with pytest.raises(ConfigError):
        gate.offer(Ticket("bad", rank=4), 1.0)
    with pytest.raises(ConfigError):
        gate.adjust(Change("slots", "resize", (-1,)), 2.0)
    with pytest.raises(Misuse):
        gate.commit(b)
    gate.finish(Ticket("stranger"), 3.0)
    gate.withdraw([Ticket("stranger")], 3.0)
    gate.offer(b, 4.0)
    gate.finish(a, 5.0)
    again = Gate(Classes(Level("only")), Slots(1))
    verdicts = replay(gate.entries, again)
    assert verdicts[-1] == [(0, "done"), (2, "running")]
    assert (again.late, again.active, b.state) == (1, 1, State.RUNNING)


def test_a_replay_needs_no_sets_in_order():
    """Scopes and flows are named by strings, whose hashes differ from run to run; verdicts must not."""

    class Tenants(Policy):
        def key(self, ticket):
            return 0

    runs = []
    for names in ("abc", ("x1", "x2", "x3")):
        gate = Recorder(Tenants(), TokenBucket(0.5, burst=1, by=lambda ticket: ticket.tenant))
        for number in range(12):
            gate.offer(Ticket(number, tenant=names[number % 3]), number * 0.1)
        gate.advance(30.0)
        runs.append(
            replay(gate.entries, Gate(Tenants(), TokenBucket(0.5, burst=1, by=lambda t: t.tenant)))
        )
    assert runs[0] == runs[1]


def test_a_failing_policy_fails_again():
    class Once(Policy):
        failed = False

        def pick(self, admit, now):
            if not self.failed:
                self.failed = True
                raise ZeroDivisionError
            return super().pick(admit, now)

    gate = Recorder(Once(), Slots(1))
    a, b = Ticket("a"), Ticket("b")
    gate.offer(a, 0.0)
    gate.offer(b, 0.0)
    with pytest.raises(PolicyError):
        gate.finish(a, 1.0)
    assert gate.advance(2.0) == [b]
    assert replay(gate.entries, Gate(Once(), Slots(1)))[-1] == [(1, "running")]


def started(entries, gate: Gate) -> dict[object, float]:
    """Replay a recording; tell when each ticket started."""
    tickets: list[Ticket] = []

    def make(**fields):
        tickets.append(Ticket(**fields))
        return tickets[-1]

    replay(entries, gate, make)
    return {ticket.key: ticket.started_at for ticket in tickets[1:]}


def test_a_replay_goes_on_where_a_verb_failed_with_any_error():
    def gate_of(make: type[Gate]):
        bucket = TokenBucket(1, burst=5, by=lambda ticket: ticket.labels["user"])  # type: ignore[index]
        return make(FIFO(), Both(Slots(5), bucket))

    gate = gate_of(Recorder)
    gate.offer(Ticket("a", labels={"user": "x"}), 0.0)
    with pytest.raises(TypeError):
        gate.offer(Ticket("b"), 1.0)
    with pytest.raises(TypeError):
        gate.adjust(Change("slots", "resize"), 1.0)
    gate.offer(Ticket("c", labels={"user": "x"}), 2.0)
    assert started(gate.entries, gate_of(Gate)) == {"a": 0.0, "b": float("inf"), "c": 2.0}


@pytest.mark.parametrize("through_json", [False, True])
def test_a_ticket_put_right_after_its_offer_failed_is_replayed_as_it_was_offered(through_json):
    def gate_of(make: type[Gate]):
        return make(Classes(Level("bulk"), Level("top")), Slots(1))

    gate = gate_of(Recorder)
    a, b, c = Ticket("a"), Ticket("b", rank=5), Ticket("c")
    gate.offer(a, 0.0)
    with pytest.raises(ConfigError):
        gate.offer(b, 0.0)
    b.rank, b.tenant = 1, ("team", 7)
    gate.offer(c, 1.0)
    gate.offer(b, 1.0)
    gate.finish(a, 2.0)
    gate.finish(b, 3.0)
    entries = json.loads(json.dumps(gate.entries)) if through_json else gate.entries
    assert started(entries, gate_of(Gate)) == {"a": 0.0, "b": 2.0, "c": 3.0}


def test_what_a_caller_changes_later_does_not_change_the_recording():
    gate = Recorder(FairQueue("tenant", name="fair"), Slots(1))
    weights, labels = {"a": 1, "b": 1}, {"user": "x"}
    gate.offer(Ticket("a", labels=labels), 0.0)
    gate.adjust(Change("fair", "set_weights", (weights,)), 1.0)
    before = json.dumps(gate.entries)
    weights["a"] = 10
    labels["user"] = "y"
    assert json.dumps(gate.entries) == before


def test_other_limits_of_classes_survive_json():
    def gate_of(make: type[Gate]):
        return make(Classes(Level("bulk"), Level("top"), name="classes"), Slots(1))

    gate = gate_of(Recorder)
    a, b, c = (Ticket(key) for key in "abc")
    gate.offer(a, 0.0)
    levels = (Level("bulk", FIFO, queue_limit=1), Level("top", starvation=5.0))
    gate.adjust(Change("classes", "retune", (levels, 2)), 1.0)
    gate.offer(b, 1.0)
    gate.offer(c, 1.0)
    assert c.state is State.REFUSED
    again = gate_of(Gate)
    verdicts = replay(json.loads(json.dumps(gate.entries)), again)
    assert verdicts[-1] == [(2, "refused")]
    assert again.policy.budget == 2
    assert again.policy.levels[1].starvation == 5.0
