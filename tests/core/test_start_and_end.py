"""Starting is an offer that starts at once, ending a finish that nobody waits for: nobody can tell them apart."""

from __future__ import annotations

import random
from math import inf
from typing import Any

import pytest

from fairlead.capacities import Both, InFlight, Reserved, Slots, TokenBucket
from fairlead.core import Change, Gate, Recorder, State, Ticket
from fairlead.errors import PolicyError
from fairlead.policies import FIFO, Classes, FairQueue, Level, Planner
from fairlead.testing import CheckedGate

POLICIES: dict[str, Any] = {
    "fifo": FIFO,
    "classes": lambda: Classes(
        Level("low", lambda: FairQueue("tenant"), queue_limit=2, wait_limit=3.0, starvation=2.0),
        Level("high", lambda: FairQueue("tenant")),
    ),
    "planner": lambda: Planner(lambda tickets, now: [one for one in tickets if one.cost < 3]),
}
CAPACITIES: dict[str, Any] = {
    "slots": lambda: Slots(3),
    "reserved": lambda: Reserved(3, floors=(0, 1), linger=2.0, name="slots"),
    "both": lambda: Both(Slots(3), TokenBucket(1.0, 2.0)),
    "in flight": lambda: InFlight(3, name="slots"),
}


def started(gate: Gate, ticket: Ticket, now: float) -> tuple[bool, list[Ticket]]:
    if not gate.start(ticket, now):
        return False, list(gate.offer(ticket, now))
    changed = gate.advance(now) if gate.due <= now else []  # as a door's timer does
    return True, [other for other in changed if other is not ticket]


def drive(policy: str, capacity: str, seed: int, short: type[Gate] = CheckedGate) -> list[int]:
    """Ask two gates for the same, of which one takes short cuts; return how many started and ended so."""
    rng, now, cuts = random.Random(seed), 0.0, [0, 0]
    one = short(POLICIES[policy](), CAPACITIES[capacity]())
    other = CheckedGate(POLICIES[policy](), CAPACITIES[capacity]())
    pairs: list[tuple[Ticket, Ticket]] = []
    for number in range(150):
        now += rng.choice((0.0, 0.0, 0.25, 1.0))
        told: list[list[Ticket]] = [[], []]
        deed = rng.random()
        running = [pair for pair in pairs if pair[1] in other.holders]
        if deed < 0.5 or not running:
            rank = rng.randrange(2)
            about: dict[str, Any] = {
                "cost": rng.choice((1.0, 1.0, 2.0)),
                "tenant": rng.choice("ab"),
                "rank": rank,
                "wait_until": now + 3.0 if rng.random() < 0.2 else inf,
                "hold_until": now + 2.0 if rng.random() < 0.1 else inf,
                "evictable": rank == 0 and rng.random() < 0.5,
                "can_preempt": rank == 1 and rng.random() < 0.3,
            }
            pairs.append((Ticket(number, **about), Ticket(number, **about)))
            done, told[0] = started(one, pairs[-1][0], now)
            cuts[0] += done
            told[1] = list(other.offer(pairs[-1][1], now))
        elif deed < 0.92:
            first, second = rng.choice(running)
            done = one.end(first, now)
            cuts[1] += done
            told = [[] if done else list(one.finish(first, now)), list(other.finish(second, now))]
        elif deed < 0.95 and capacity in ("slots", "reserved"):
            change = Change("slots", "resize", (rng.choice((1, 2, 3, 4)),))
            told = [list(gate.adjust(change, now)) for gate in (one, other)]
        else:
            now += 1.0
            told = [list(gate.advance(now)) for gate in (one, other)]
        assert [ticket.key for ticket in told[0]] == [ticket.key for ticket in told[1]]
        for first, second in pairs:
            assert first.state is second.state
            assert (first.started_at, first.arrived_at) == (second.started_at, second.arrived_at)
        assert [one.waiting, one.active, one.late] == [other.waiting, other.active, other.late]
        assert one.next_wakeup(now) == other.next_wakeup(now)
        assert one.capacity.room() == other.capacity.room()
    return cuts


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("policy", POLICIES)
def test_to_others_these_are_offers_and_finishes(policy: str, capacity: str) -> None:
    cuts = [drive(policy, capacity, seed) for seed in range(30)]
    starts, ends = (sum(column) for column in zip(*cuts, strict=True))
    assert ends > 40
    if policy == "planner":
        assert starts == 0, "whoever withholds is asked"
    else:
        assert starts > 40


class Barging(CheckedGate):
    """Starts though somebody waits."""

    def start(self, ticket: Ticket, now: float) -> bool:
        waiting, self.waiting = self.waiting, 0
        try:
            return Gate.start(self, ticket, now)
        finally:
            self.waiting = waiting


class Forgetful(CheckedGate):
    """Ends, and lets nobody who waits have the room."""

    def end(self, ticket: Ticket, now: float) -> bool:
        waiting, self.waiting = self.waiting, 0
        try:
            return Gate.end(self, ticket, now)
        finally:
            self.waiting = waiting


class Free(CheckedGate):
    """Starts and charges nobody for it."""

    def start(self, ticket: Ticket, now: float) -> bool:
        self._charges = False
        return super().start(ticket, now)


@pytest.mark.parametrize("gate", [Barging, Forgetful, Free])
def test_a_gate_that_cuts_otherwise_is_caught(gate: type[Gate]) -> None:
    with pytest.raises(AssertionError):
        for seed in range(200):
            drive("classes", "both", seed, gate)


def test_who_holds_nothing_does_not_end() -> None:
    gate = CheckedGate(FIFO(), Slots(1))
    ticket = Ticket("once")
    assert not gate.end(ticket, 0.0)
    assert gate.start(ticket, 0.0)
    assert not gate.start(ticket, 0.0)
    assert gate.end(ticket, 1.0)
    assert not gate.end(ticket, 1.0)
    assert (ticket.state, gate.active, gate.late) == (State.DONE, 0, 0)


class Choosy(Classes):
    def charge(self, ticket: Ticket, amount: float, now: float) -> None:
        raise ZeroDivisionError


def test_a_policy_that_does_not_charge_is_named_and_costs_no_room() -> None:
    gate = CheckedGate(Choosy(Level("only")), Reserved(1, floors=(0,)))
    ticket = Ticket("first")
    with pytest.raises(PolicyError, match="Choosy could not charge"):
        gate.start(ticket, 0.0)
    assert (ticket.state, gate.active, gate.capacity.room()) == (State.NEW, 0, {"slots": 1})


def test_who_follows_what_is_offered_sees_all_of_it() -> None:
    gate = Recorder(FIFO(), Slots(1))
    ticket = Ticket("seen")
    assert not gate.start(ticket, 0.0)
    gate.offer(ticket, 0.0)
    assert not gate.end(ticket, 1.0)
    assert ticket.state is State.RUNNING
