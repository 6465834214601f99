"""Deadlines of waiting and of holding, ties at one instant, and timers that come late."""

import random
from math import inf

import pytest

from fairlead.capacities import Reserved, Slots, TokenBucket
from fairlead.core import Gate, State, Ticket
from fairlead.core.deadlines import Deadlines
from fairlead.policies import FIFO, Classes, Level
from fairlead.testing import CheckedGate


def test_a_wait_ends_at_its_time_and_not_before():
    gate = CheckedGate(FIFO(), Slots(0))
    a = Ticket("a", wait_until=5.0)
    gate.offer(a, 0.0)
    assert gate.next_wakeup(0.0) == 5.0
    assert gate.advance(4.999) == []
    assert gate.advance(5.0) == [a]
    assert (a.state, a.reason) == (State.EXPIRED, "waited as long as it may")
    assert gate.next_wakeup(5.0) == inf


def test_a_ticket_that_may_not_wait_is_tried_once():
    gate = CheckedGate(FIFO(), Slots(1))
    a, b = Ticket("a", wait_until=0.0), Ticket("b", wait_until=0.0)
    assert gate.offer(a, 0.0) == []
    assert gate.offer(b, 0.0) == []
    assert (a.state, b.state) == (State.RUNNING, State.EXPIRED)


def test_a_deadline_already_past_is_tried_once_too():
    gate = CheckedGate(FIFO(), Slots(0))
    a = Ticket("a", wait_until=1.0)
    gate.offer(a, 9.0)
    assert a.state is State.EXPIRED


def test_at_one_instant_the_deed_comes_first_then_starts_then_expiries():
    gate = CheckedGate(FIFO(), Slots(1))
    a, b, c = Ticket("a"), Ticket("b", wait_until=5.0), Ticket("c", wait_until=5.0)
    for ticket in (a, b, c):
        gate.offer(ticket, 0.0)
    assert gate.finish(a, 5.0) == [b, c]
    assert (b.state, c.state) == (State.RUNNING, State.EXPIRED)


def test_a_finish_at_the_end_of_a_hold_counts():
    gate = CheckedGate(FIFO(), Slots(1))
    a = Ticket("a", hold_until=5.0)
    gate.offer(a, 0.0)
    gate.finish(a, 5.0)
    assert (a.state, gate.late) == (State.DONE, 0)


def test_a_lost_holder_is_ended_and_its_late_finish_frees_nothing():
    gate = CheckedGate(FIFO(), Slots(1))
    a, b = Ticket("a", hold_until=5.0), Ticket("b")
    gate.offer(a, 0.0)
    gate.offer(b, 0.0)
    assert gate.next_wakeup(0.0) == 5.0
    assert gate.advance(5.0) == [a, b]
    assert (a.state, b.state) == (State.EXPIRED, State.RUNNING)
    assert gate.finish(a, 6.0) == []
    assert (gate.late, gate.active) == (1, 1)


def test_a_hold_that_is_over_when_it_begins_ends_in_the_same_verb():
    gate = CheckedGate(FIFO(), Slots(1))
    a, b = Ticket("a"), Ticket("b", hold_until=1.0)
    gate.offer(a, 0.0)
    gate.offer(b, 0.0)
    assert gate.finish(a, 2.0) == [b]
    assert b.state is State.EXPIRED
    assert gate.active == 0


def test_what_starts_and_ends_in_one_late_verb_is_told_once():
    gate = CheckedGate(FIFO(), TokenBucket(1.0, burst=1))
    a, b = Ticket("a"), Ticket("b", hold_until=2.0)
    gate.offer(a, 0.0)
    gate.offer(b, 0.0)
    assert gate.advance(10.0) == [b]
    assert (b.state, b.started_at) == (State.EXPIRED, 1.0)


def test_the_finisher_is_not_told_of_its_own_end():
    gate = CheckedGate(FIFO(), Slots(1))
    a = Ticket("a", hold_until=1.0)
    gate.offer(a, 0.0)
    assert gate.finish(a, 5.0) == []
    assert (a.state, gate.late) == (State.EXPIRED, 1)


def test_a_class_bounds_the_wait_of_its_tickets():
    gate = CheckedGate(Classes(Level("bulk", wait_limit=3.0)), Slots(0))
    a, b = Ticket("a"), Ticket("b", wait_until=1.0)
    gate.offer(a, 0.0)
    gate.offer(b, 0.0)
    assert (a.wait_until, b.wait_until) == (3.0, 1.0)
    assert gate.advance(3.0) == [b, a]


def test_the_heap_of_deadlines_stays_within_twice_the_living():
    deadlines = Deadlines()
    for number in range(10_000):
        ticket = Ticket(number, wait_until=1e9)
        ticket.seq = number
        ticket.state = State.WAITING
        deadlines.add(ticket.wait_until, ticket)
        ticket.state = State.RUNNING
        deadlines.forget()
    assert len(deadlines.heap) < 200


def verdicts(late: bool, seed: int, make: type[Gate] = CheckedGate) -> list[tuple[object, ...]]:
    """Run one day's verbs, with a timer on time or with none at all."""
    rng = random.Random(seed)
    gate = make(
        Classes(
            Level("bulk", wait_limit=30.0, starvation=5.0), Level("interactive", wait_limit=10.0)
        ),
        Reserved(3, (0, 2), linger=4.0),
    )
    now = 0.0
    tickets: list[Ticket] = []
    for number in range(80):
        now += rng.choice((0.0, 0.5, 3.0, 12.0))
        while not late and gate.next_wakeup(gate.now) < now:
            gate.advance(gate.next_wakeup(gate.now))
        if rng.random() < 0.6 or not tickets:
            hold = rng.choice((2.0, 6.0, inf))
            tickets.append(Ticket(number, rank=rng.randrange(2), hold_until=now + hold))
            gate.offer(tickets[-1], now)
        else:
            gate.finish(rng.choice(tickets[-6:]), now)
    gate.advance(1e6)
    return [(t.key, t.state, t.started_at, t.reason, t.promoted) for t in tickets]


@pytest.mark.parametrize("seed", range(10))
def test_a_late_timer_changes_no_verdict(seed: int):
    assert verdicts(late=True, seed=seed) == verdicts(late=False, seed=seed)


class Forgetful(Gate):
    """The mutant: things due before now happen at now."""

    def _arrive(self, now: float, own: Ticket | None = None) -> list[Ticket]:
        self.now = max(now, self.now)
        return []


def test_a_gate_that_lets_late_things_happen_late_is_caught():
    assert any(
        verdicts(late=True, seed=seed, make=Forgetful) != verdicts(late=False, seed=seed)
        for seed in range(10)
    )
