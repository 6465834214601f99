"""P8: the order of starts equals the written rule on every history; P6-A: no wait is longer than the rule allows."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import ceil, inf
from typing import Any

import pytest
from hypothesis import given, settings, target
from hypothesis import strategies as st

from fairlead.capacities import Slots
from fairlead.core import Gate, Policy, State, Ticket
from fairlead.policies import FIFO, Aging, Classes, Level
from tests.sizes import times

Rule = Callable[[Ticket, float], Any]


class ShortestFirst(Policy):
    def key(self, ticket: Ticket) -> float:
        return ticket.cost


def arrival(ticket: Ticket, now: float) -> Any:
    return ticket.seq


def aged(ticket: Ticket, now: float) -> Any:
    grown = ticket.priority + 2.0 * (now - ticket.arrived_at)
    return -max(ticket.priority, min(100, grown)), ticket.seq


def shortest(ticket: Ticket, now: float) -> Any:
    return ticket.cost, ticket.seq


def strict(ticket: Ticket, now: float) -> Any:
    return -ticket.rank, ticket.seq


def strict_then_aged(ticket: Ticket, now: float) -> Any:
    return -ticket.rank, aged(ticket, now)


SHAPES: dict[str, tuple[Callable[[], Policy], Rule]] = {
    "fifo": (FIFO, arrival),
    "aging": (Aging, aged),
    "a key": (ShortestFirst, shortest),
    "classes": (lambda: Classes(*[Level(name) for name in "abc"]), strict),
    "classes of aging": (
        lambda: Classes(*[Level(name, inside=Aging) for name in "abc"]),
        strict_then_aged,
    ),
}


class Model:
    """The reference: a list, sorted by the rule whenever a slot is free."""

    def __init__(self, rule: Rule, slots: int) -> None:
        self.rule = rule
        self.free = slots
        self.waiting: list[Ticket] = []
        self.started: list[Ticket] = []

    def settle(self, now: float) -> None:
        while self.free and self.waiting:
            self.waiting.sort(key=lambda ticket: self.rule(ticket, now))
            self.started.append(self.waiting.pop(0))
            self.free -= 1


def differences(make: Callable[[], Policy], rule: Rule, seed: int, steps: int = 50) -> int:
    """Play one random history to the gate and to the model; count the verbs after which they disagree."""
    rng = random.Random(seed)
    slots = rng.randint(1, 3)
    gate, model = Gate(make(), Slots(slots)), Model(rule, slots)
    priorities = rng.choice((range(101), (0, 100), range(95, 101), (50,)))
    now, started, wrong = 0.0, list[Ticket](), 0
    for _ in range(steps):
        now += rng.choice((0.0, 0.0, 0.125, 1.0, 5.0, 20.0))
        deed = rng.random()
        if deed < 0.55:
            ticket = Ticket(
                priority=rng.choice(priorities), cost=rng.randrange(1, 5), rank=rng.randrange(3)
            )
            changed = [*gate.offer(ticket, now)]
            started += [one for one in [ticket, *changed] if one.state is State.RUNNING]
            model.waiting.append(ticket)
        elif deed < 0.9 and started and gate.holders:
            holder = rng.choice(list(gate.holders))
            started += gate.finish(holder, now)
            model.free += 1
        elif model.waiting:
            leavers = rng.sample(model.waiting, rng.randint(1, min(3, len(model.waiting))))
            gate.withdraw(leavers, now)
            model.waiting = [one for one in model.waiting if one not in leavers]
        model.settle(now)
        wrong += started != model.started
    return wrong


@pytest.mark.parametrize("shape", SHAPES)
def test_the_order_is_the_written_rule(shape: str):
    make, rule = SHAPES[shape]
    assert sum(differences(make, rule, seed) for seed in range(1_000)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_the_order_is_the_written_rule_on_thousands_of_longer_histories(shape: str):
    make, rule = SHAPES[shape]
    seeds = range(10_000, 10_000 + times(10_000))
    assert sum(differences(make, rule, seed, 80) for seed in seeds) == 0


class NewestFirst(Policy):
    def key(self, ticket: Ticket) -> float:
        return -ticket.seq


class TiesByAge(Policy):
    """Shortest first, but the newest of equals."""

    def key(self, ticket: Ticket) -> tuple[float, int]:
        return ticket.cost, -ticket.seq


MUTANTS: dict[str, tuple[Callable[[], Policy], Rule]] = {
    "fifo, newest first": (NewestFirst, arrival),
    "a key, ties by age": (TiesByAge, shortest),
    "aging, a quarter faster": (lambda: Aging(2.5), aged),
    "aging, a ceiling of 99": (lambda: Aging(2.0, 99), aged),
    "classes that ignore ranks": (FIFO, strict),
    "classes upside down": (lambda: UpsideDown(*[Level(name) for name in "abc"]), strict),
}


class UpsideDown(Classes):
    def _pick_from(self, rank: int, admit: Any, now: float) -> Ticket | None:
        waiting = [rank for rank, size in enumerate(self._sizes) if size]
        return super()._pick_from(waiting[0], admit, now)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_model_notices(mutant: str):
    make, rule = MUTANTS[mutant]
    assert sum(differences(make, rule, seed) for seed in range(200)) > 0


# P6-A.  A ticket of priority p reaches the ceiling after (100 − p)/2 s; from then on only what was submitted earlier
# goes before it.  So with one slot it waits no longer than that, plus the work in progress, plus the work submitted
# before it.


def longest_excess(others: list[tuple[float, int, float]], priority: int, arrives_at: float) -> Any:
    """Run one history; tell the wait of the watched ticket and what the rule allows."""
    gate = Gate(Aging.over(30.0), Slots(1))
    watched = Ticket("watched", priority, 1.0)
    arrivals = [(at, Ticket(cost=work, priority=rank)) for at, rank, work in others]
    arrivals = sorted([*arrivals, (arrives_at, watched)], key=lambda one: one[0])
    earlier = sum(ticket.cost for at, ticket in arrivals[: [t for _, t in arrivals].index(watched)])
    longest = max((ticket.cost for _, ticket in arrivals if ticket is not watched), default=0.0)
    while watched.state is not State.RUNNING:
        holder = next(iter(gate.holders), None)
        free_at = inf if holder is None else holder.started_at + holder.cost
        if holder is not None and (not arrivals or free_at <= arrivals[0][0]):
            gate.finish(holder, free_at)
        else:
            at, ticket = arrivals.pop(0)
            gate.offer(ticket, at)
    climb = (100 - priority) / 2.0
    return watched.started_at - watched.arrived_at, climb + longest, earlier


TIMES = st.integers(0, 800).map(lambda eighth: eighth / 8)
OTHERS = st.lists(
    st.tuples(TIMES, st.integers(0, 100), st.sampled_from((0.5, 1.0, 4.0, 8.0))), max_size=60
)


@settings(max_examples=600)
@given(others=OTHERS, priority=st.integers(0, 100), arrives_at=TIMES)
def test_no_wait_is_longer_than_the_climb_and_what_came_before(
    others: list[tuple[float, int, float]], priority: int, arrives_at: float
):
    waited, own, earlier = longest_excess(others, priority, arrives_at)
    target(waited - own - earlier)
    assert waited <= own + earlier
    step = 5.0 * ceil((100 - priority) / 10) + 5.0
    assert waited <= step + earlier + max((work for _, _, work in others), default=0.0)


def test_the_bound_on_the_wait_is_tight():
    """Newcomers of priority 100 pass it until it reaches the ceiling; then what came before it goes first."""
    others = (
        [(0.0, 100, 1.0)] + [(0.375, 0, 1.0)] * 10 + [(at + 0.75, 100, 1.0) for at in range(80)]
    )
    waited, own, earlier = longest_excess(others, priority=0, arrives_at=0.5)
    assert (own, earlier) == (51.0, 11.0)
    # The first ended during the climb, and of the newcomer in progress at the ceiling half was over.
    assert waited == own + earlier - 1.5
