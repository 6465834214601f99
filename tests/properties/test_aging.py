"""Aging equals its definition on every history, at every instant, without ever looking at all that waits."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from fairlead.capacities import InFlight, Slots
from fairlead.core import Capacity, Gate, State, Ticket
from fairlead.core.lanes import Lane
from fairlead.policies import Aging
from fairlead.policies.aging import Rising

# The rate is a binary fraction and times are multiples of 1/8, so that brute force and constants agree to the last bit.
RATE, CEILING = 2.0, 100


def rule(ticket: Ticket, now: float) -> tuple[float, int]:
    """The written rule: highest effective priority first, then arrival."""
    grown = ticket.priority + RATE * (now - ticket.arrived_at)
    return -max(ticket.priority, min(CEILING, grown)), ticket.seq


class History:
    """Random offers, finishes, withdrawals and lapses of time; every start is compared with brute force."""

    def __init__(self, policy: Aging, capacity: Capacity, seed: int) -> None:
        self.gate = Gate(policy, capacity)
        self.rng = random.Random(seed)
        self.now = 0.0
        self.waiting: list[Ticket] = []
        self.wrong = 0

    def run(self, steps: int) -> int:
        rng = self.rng
        priorities = rng.choice((range(101), (0, 50, 100), range(90, 101), range(0, 101, 20)))
        for _ in range(steps):
            self.now += rng.choice((0.0, 0.0, 0.125, 1.0, 5.0, 20.0))
            deed = rng.random()
            if deed < 0.55:
                ticket = Ticket(priority=rng.choice(priorities), tenant=rng.choice("abc"))
                before = [*self.waiting, ticket]
                self.compare(before, [*self.gate.offer(ticket, self.now), ticket])
                self.waiting = [one for one in before if one.state is State.WAITING]
            elif deed < 0.9 and self.gate.holders:
                holder = rng.choice(list(self.gate.holders))
                self.compare(self.waiting, list(self.gate.finish(holder, self.now)))
            elif self.waiting:
                leaver = rng.choice(self.waiting)
                self.gate.withdraw([leaver], self.now)
            self.waiting = [one for one in self.waiting if one.state is State.WAITING]
        return self.wrong

    def compare(self, before: list[Ticket], changed: list[Ticket]) -> None:
        started = [one for one in changed if one.state is State.RUNNING]
        for one in started:
            # Whoever shares its scopes and still waits must rank later.
            rivals = [other for other in before if other.state is State.WAITING]
            rivals = [other for other in rivals if other.scopes == one.scopes]
            self.wrong += any(rule(other, self.now) < rule(one, self.now) for other in rivals)


def one_slot() -> Capacity:
    return Slots(1)


def scoped() -> Capacity:
    return InFlight(2, by=lambda ticket: ticket.tenant)


@pytest.mark.parametrize("capacity", [one_slot, scoped])
def test_every_start_is_the_one_brute_force_would_choose(capacity: Callable[[], Capacity]):
    wrong = [History(Aging(RATE), capacity(), seed).run(60) for seed in range(2_000)]
    assert sum(wrong) == 0


class OffByOne(Aging):
    """Ages by one point too many."""

    def _new_order(self) -> Rising:
        return Rising(self.rate + 1, self.ceiling)


class LateCeiling(Rising):
    """Takes `<` for `<=` at the ceiling."""

    def best(self, now: float) -> Lane | None:
        before = self._ceiling
        self._ceiling += 1e-4
        try:
            return super().best(now)
        finally:
            self._ceiling = before


class JustBelow(Aging):
    def _new_order(self) -> Rising:
        return LateCeiling(self.rate, self.ceiling)


class NoCeiling(Aging):
    """Forgets that arrival decides at the ceiling: the priority keeps growing."""

    def _new_order(self) -> Rising:
        return Rising(self.rate, float("inf"))


@pytest.mark.parametrize("mutant", [OffByOne, JustBelow, NoCeiling])
@pytest.mark.parametrize("capacity", [one_slot, scoped])
def test_brute_force_notices(mutant: type[Aging], capacity: Callable[[], Capacity]):
    wrong = [History(mutant(RATE), capacity(), seed).run(60) for seed in range(500)]
    assert sum(wrong) > 0


TABLE = {0: 0, 5: 10, 10: 20, 15: 30, 20: 40, 25: 50, 30: 60, 40: 80, 45: 90, 50: 100, 55: 100}


@pytest.mark.parametrize("timeout", [30.0, 60.0, 10.0])
def test_the_table_holds_at_each_of_its_times(timeout: float):
    aging = Aging.over(timeout)
    background = Ticket(priority=0)
    background.arrived_at = 100.0
    for at, effective in TABLE.items():
        now = 100.0 + at * timeout / 30.0
        assert aging.effective(background, now) == pytest.approx(effective, abs=1e-9)
        assert aging.steps(background, now + 1e-9) == effective // 10  # a third of 10 s is no float


@pytest.mark.parametrize(("at", "effective"), [row for row in TABLE.items() if row[1] < 100])
def test_a_background_ticket_ranks_as_the_table_says(at: int, effective: int):
    """At each time of the table it goes before a newcomer of that priority, and after one just above it."""
    for newcomer_priority, first in ((effective, "old"), (effective + 1, "new")):
        gate = Gate(Aging.over(30.0), Slots(1))
        gate.offer(Ticket("running", priority=100), 0.0)
        gate.offer(Ticket("old", priority=0), 0.0)
        gate.offer(Ticket("new", priority=newcomer_priority), float(at))
        (started,) = gate.finish(next(iter(gate.holders)), float(at))
        assert started.key == first


def test_at_the_ceiling_arrival_decides():
    gate = Gate(Aging.over(30.0), Slots(1))
    gate.offer(Ticket("running"), 0.0)
    for name, priority, at in (("low", 0, 0.0), ("high", 90, 1.0), ("top", 100, 49.0)):
        gate.offer(Ticket(name, priority), at)
    order = []
    for _ in range(3):
        (started,) = gate.finish(next(iter(gate.holders)), 50.0)
        order.append(started.key)
    assert order == ["low", "high", "top"]


class Counting(Rising):
    """Counts how often a lane is put into a heap again."""

    moves = 0

    def best(self, now: float) -> Lane | None:
        lanes = {id(entry[2]): entry for entry in self._rising}
        capped = {id(entry[1]): entry for entry in self._capped}
        best = super().best(now)
        type(self).moves += sum(lanes.get(id(entry[2])) is not entry for entry in self._rising)
        type(self).moves += sum(capped.get(id(entry[1])) is not entry for entry in self._capped)
        return best


class CountedAging(Aging):
    def _new_order(self) -> Rising:
        return Counting(self.rate, self.ceiling)


def test_no_pick_looks_at_all_that_waits():
    """With 200,000 waiting, half of which reach the ceiling at one instant, a pick moves lanes, not tickets."""
    Counting.moves = 0
    gate = Gate(CountedAging(RATE), Slots(1))
    gate.offer(Ticket("running"), 0.0)
    for number in range(200_000):
        gate.offer(Ticket(number, number % 101), number * 1e-4)
    before = Counting.moves
    now, most = 40.0, 0
    for _ in range(1_000):
        now += 0.02
        gate.finish(next(iter(gate.holders)), now)
        most = max(most, Counting.moves - before)
        before = Counting.moves
    assert 0 < most <= 2 * 101
    assert Counting.moves <= 4 * 1_000 + 2 * 101
