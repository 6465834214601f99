"""A recording replayed gives the same verdicts, through JSON too, and also where verbs failed."""

import json

import pytest

from fairlead.capacities import Both, Pools, Slots, TokenBucket
from fairlead.core import Change, Gate, Outcome, Policy, Recorder, State, Ticket, replay
from fairlead.errors import ConfigError, Misuse, PolicyError
from fairlead.policies import Aging, Classes, FairQueue, Level


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
