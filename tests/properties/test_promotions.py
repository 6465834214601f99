"""The cure for starvation is bounded both ways: nobody starves, and nobody is overtaken without end.

The windows of P7, exactly: of any k consecutive dispatches at most one is a promotion past somebody who could have
gone, so of any n at most ⌈n/k⌉.  The one exception passes nobody: when nobody else may go and nothing was dispatched
for a class's whole threshold, a promotion past an idle reservation needs no budget.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from math import ceil, inf
from typing import Any

import pytest

from fairlead.capacities import InFlight, Reserved, Slots
from fairlead.core import Capacity, Gate, Policy, Ticket
from fairlead.policies import FIFO, Aging, Classes, FairQueue, Level
from fairlead.testing import CheckedGate

BULK, NORMAL, INTERACTIVE, SYSTEM = range(4)
THRESHOLD = 30.0


def four_classes(k: int = 4, make: type[Classes] | None = None) -> Classes:
    return (make or Classes)(
        Level("bulk", starvation=THRESHOLD),
        Level("normal", starvation=THRESHOLD),
        Level("interactive", starvation=THRESHOLD),
        Level("system"),
        budget=k,
    )


class SeedAlgorithm(Classes):
    """The original's cure: whatever is past its threshold goes first, the lowest class first, without a budget."""

    def _promote(self, now: float, *, last_resort: bool) -> Ticket | None:
        self._turn = 0
        return super()._promote(now, last_resort=last_resort)

    def _may_promote(self, rank: int, now: float, last_resort: bool) -> bool:
        return now >= self._starved_at(rank, now)


def overload(
    policy: Policy, *, work: float = 1.0, slots: int = 1, aged: int = 2_000, seed: int = 0
) -> Iterator[Ticket]:
    """Yield what is started while aged bulk waits without end and interactive work keeps coming."""
    gate = Gate(policy, Slots(slots))
    rng = random.Random(seed)
    for _ in range(slots):
        gate.offer(Ticket("first", rank=SYSTEM), 0.0)
    for _ in range(aged):
        gate.offer(Ticket(rank=BULK), 0.0)
    now = 10 * THRESHOLD
    while True:
        gate.offer(Ticket(rank=INTERACTIVE), now)
        if rng.random() < 0.5:
            gate.offer(Ticket(rank=INTERACTIVE), now)
        now += work
        yield from gate.finish(rng.choice(list(gate.holders)), now)


def first(count: int, tickets: Iterator[Ticket]) -> list[Ticket]:
    return [next(tickets) for _ in range(count)]


@pytest.mark.parametrize("k", [1, 2, 4, 7])
@pytest.mark.parametrize("work", [0.1, 1.0, 2 * THRESHOLD])
@pytest.mark.parametrize("slots", [1, 3])
def test_promotions_are_at_most_one_in_k_over_every_window(k: int, work: float, slots: int):
    started = first(1_000, overload(four_classes(k), work=work, slots=slots))
    promoted = [ticket.promoted for ticket in started]
    for size in (1, 2, k - 1, k, k + 1, 3 * k, 100):
        most = max(sum(promoted[at : at + size]) for at in range(len(promoted) - size + 1))
        assert most <= ceil(size / k)


@pytest.mark.parametrize("work", [1.0, 2 * THRESHOLD])
def test_interactive_keeps_its_part_beside_an_aged_bulk_backlog(work: float):
    """Also when each piece of work takes longer than the threshold, so that every dispatch follows a silence."""
    shares = Counter(ticket.rank for ticket in first(1_000, overload(four_classes(4), work=work)))
    assert shares[INTERACTIVE] >= 750
    assert shares[BULK] >= 250 - 1
    seed_shares = Counter(
        ticket.rank for ticket in first(1_000, overload(four_classes(4, SeedAlgorithm), work=work))
    )
    assert seed_shares[INTERACTIVE] < 10


def test_a_waiting_system_request_is_passed_by_at_most_one_promotion():
    for seed in range(200):
        policy = four_classes(4)
        tickets = overload(policy, seed=seed)
        first(random.Random(seed).randrange(20), tickets)
        gate_now = 10 * THRESHOLD + 1_000.0
        urgent = Ticket("urgent", rank=SYSTEM)
        urgent.arrived_at, urgent.seq = gate_now, 10**9
        policy.push(urgent, gate_now)
        passed = 0
        while policy.pick(lambda ticket: None, gate_now) is not urgent:
            passed += 1
        assert passed <= 1


def starve(policy: Classes, slots: int = 1) -> Gate:
    """A full gate in which every class below the top has long waited, and the top never ends."""
    gate = CheckedGate(policy, Slots(slots))
    for _ in range(slots):
        gate.offer(Ticket("first", rank=SYSTEM), 0.0)
    for rank in (BULK, NORMAL, INTERACTIVE):
        for _ in range(20):
            gate.offer(Ticket(rank=rank), 0.0)
    for _ in range(200):
        gate.offer(Ticket(rank=SYSTEM), 0.0)
    return gate


def releases(gate: Gate, count: int) -> list[Ticket]:
    started: list[Ticket] = []
    for number in range(count):
        now = 2 * THRESHOLD + number
        started += gate.finish(next(iter(gate.holders)), now)
    return started


@pytest.mark.parametrize("k", [1, 2, 4])
def test_promotions_rotate_over_the_starved_classes(k: int):
    started = releases(starve(four_classes(k)), 12 * k)
    promoted = [ticket.rank for ticket in started if ticket.promoted]
    assert promoted == [BULK, NORMAL, INTERACTIVE] * 4


@pytest.mark.parametrize("k", [1, 2, 4])
def test_a_head_past_its_threshold_is_admitted_within_classes_times_k_releases(k: int):
    """Three classes can starve, so 3k: whichever class it is, wherever the rotation stands; and 3k is reached."""
    worst = 0
    for rank in (BULK, NORMAL, INTERACTIVE):
        for before in range(3 * k):
            gate = starve(four_classes(k))
            releases(gate, before)
            started = releases(gate, 3 * k)
            waits = [number + 1 for number, ticket in enumerate(started) if ticket.rank == rank]
            assert waits, "no ticket of the class was admitted"
            worst = max(worst, waits[0])
    assert worst == 3 * k
    # The original serves the lowest class first, for as long as it has anything aged.
    started = releases(starve(four_classes(k, SeedAlgorithm)), 3 * k)
    assert all(ticket.rank == BULK for ticket in started)


def all_reserved(policy: Policy) -> Gate:
    return CheckedGate(policy, Reserved(4, (0, 0, 0, 4), lend=False))


def test_a_pool_reserved_by_an_idle_class_admits_aged_bulk_by_time_alone():
    """C12: nothing is ever released, so only the clock can help; one ticket per threshold passes the reservation."""
    gate = all_reserved(four_classes(4))
    bulk = [Ticket(number, rank=BULK) for number in range(3)]
    for ticket in bulk:
        gate.offer(ticket, 0.0)
    started_at = []
    for _ in bulk:
        now = gate.next_wakeup(gate.now)
        started_at += [now for _ in gate.advance(now)]
    assert started_at == [THRESHOLD, 2 * THRESHOLD, 3 * THRESHOLD]
    assert [ticket.promoted for ticket in bulk] == [True] * 3


def test_a_late_timer_promotes_no_more_than_a_punctual_one():
    gate = all_reserved(four_classes(4))
    bulk = [Ticket(number, rank=BULK) for number in range(3)]
    for ticket in bulk:
        gate.offer(ticket, 0.0)
    gate.advance(2 * THRESHOLD)
    assert [ticket.started_at for ticket in bulk[:2]] == [THRESHOLD, 2 * THRESHOLD]
    assert bulk[2].started_at > 2 * THRESHOLD


def test_a_reservation_held_for_work_that_cannot_run_gives_way_in_the_end():
    """The class above waits for a quota of its own and its reservation is held: nobody runs, so bulk may."""

    class Quota(Reserved):
        def refusal(
            self, ticket: Ticket, now: float, without: Ticket | None = None
        ) -> object | None:
            if ticket.rank == SYSTEM:
                return ("quota", "system")
            return super().refusal(ticket, now, without)

        def scopes(self, ticket: Ticket) -> tuple[object, ...]:
            own = super().scopes(ticket)
            return (*own, ("quota", "system")) if ticket.rank == SYSTEM else own

    gate = Gate(four_classes(4), Quota(4, (0, 0, 0, 4)))
    stuck = Ticket("stuck", rank=SYSTEM)
    gate.offer(stuck, 0.0)
    bulk = [Ticket(number, rank=BULK) for number in range(2)]
    for ticket in bulk:
        gate.offer(ticket, 0.0)
    gate.advance(THRESHOLD)
    gate.advance(2 * THRESHOLD)
    assert [ticket.started_at for ticket in bulk] == [THRESHOLD, 2 * THRESHOLD]


def test_waiting_for_its_own_quota_is_not_starvation():
    policy = four_classes(2)
    capacity: Capacity = InFlight(1, by=lambda ticket: ticket.tenant)
    gate = CheckedGate(policy, capacity)
    gate.offer(Ticket("holder", rank=BULK, tenant="a"), 0.0)
    gate.offer(Ticket("own quota", rank=BULK, tenant="a"), 0.0)
    gate.offer(Ticket("running", rank=SYSTEM, tenant="b"), 0.0)
    for number in range(5):
        gate.offer(Ticket(number, rank=SYSTEM, tenant="b"), 1.0)
    for number in range(5):
        (holder,) = [one for one in gate.holders if one.tenant == "b"]
        gate.finish(holder, 5 * THRESHOLD + number)
    assert policy.promotions == 0


def test_promotions_reach_into_nested_queues():
    policy = Classes(
        Level("bulk", inside=lambda: FairQueue("tenant"), starvation=THRESHOLD),
        Level("urgent"),
        budget=4,
    )
    gate = CheckedGate(policy, Slots(1))
    gate.offer(Ticket(rank=1), 0.0)
    for tenant in "ab":
        for _ in range(5):
            gate.offer(Ticket(rank=0, tenant=tenant), 0.0)
    for _ in range(50):
        gate.offer(Ticket(rank=1), 0.0)
    promoted = [ticket for ticket in releases(gate, 32) if ticket.promoted]
    assert [ticket.tenant for ticket in promoted] == list("abababab")


def test_the_older_one_behind_a_younger_head_is_promoted_when_its_own_time_has_come():
    """The first of a nested queue need not be the oldest: when it goes, the next may be starved already."""
    policy = Classes(
        Level("bulk", inside=lambda: FairQueue("tenant"), starvation=5.0), Level("top"), budget=2
    )
    gate = CheckedGate(policy, Slots(1))
    gate.offer(Ticket("served much", rank=0, tenant="b", cost=9), -1.0)
    old = Ticket("old", rank=0, tenant="b")
    gate.offer(old, 0.0)
    for number in range(2):
        gate.offer(Ticket(number, rank=1), 0.0)
    fresh = Ticket("fresh", rank=0, tenant="a")
    gate.offer(fresh, 4.0)
    for now in (5.5, 5.6, 6.0):
        gate.finish(next(iter(gate.holders)), now)
    assert fresh in gate.holders
    for number in range(9):
        gate.offer(Ticket(number, rank=1), 6.1)
    assert gate.finish(fresh, 6.5) == [old]
    assert old.promoted


def test_a_promotion_comes_when_the_first_of_a_class_is_starved_not_later():
    """By comparison with one that looks at the head of every class before each pick."""

    class Looks(Classes):
        def pick(self, admit, now):
            self._starving_at = -inf
            return super().pick(admit, now)

    def order(make: type[Classes], inside, seed: int) -> list[object]:
        levels = (Level("bulk", inside, starvation=5.0), Level("mid", inside, starvation=9.0))
        gate = Gate(make(*levels, Level("top"), budget=2), Slots(1))
        rng, now, started = random.Random(seed), 0.0, []
        for number in range(300):
            now += rng.choice((0.0, 0.3, 1.0))
            waiting = gate.waiters()
            if rng.random() < 0.5:
                fields: dict[str, Any] = {"tenant": rng.choice("abc"), "rank": rng.randrange(3)}
                gate.offer(Ticket(number, rng.choice((0, 50)), rng.choice((1, 5)), **fields), now)
            elif waiting and rng.random() < 0.3:
                gate.withdraw([rng.choice(waiting)], now)
            elif gate.holders:
                started += [t.key for t in gate.finish(next(iter(gate.holders)), now)]
        return started

    for inside in (FIFO, lambda: FairQueue("tenant")):
        for seed in range(60):
            assert order(Classes, inside, seed) == order(Looks, inside, seed)


@pytest.mark.parametrize("wakes", ["at a finish", "by itself"])
def test_the_older_one_behind_a_younger_head_that_leaves_is_promoted_at_once(wakes):
    policy = Classes(Level("bulk", inside=Aging, starvation=5.0), Level("top"), budget=1)
    capacity = Slots(1) if wakes == "at a finish" else Reserved(1, (0, 1), lend=False)
    gate = CheckedGate(policy, capacity)
    if wakes == "at a finish":
        for number in range(9):
            gate.offer(Ticket(number, rank=1), 0.0)
    old = Ticket("old", rank=0, priority=0)
    gate.offer(old, 0.0)
    fresh = Ticket("fresh", rank=0, priority=100)
    gate.offer(fresh, 4.0)
    if wakes == "at a finish":
        gate.finish(next(iter(gate.holders)), 5.5)
        gate.withdraw([fresh], 6.0)
        assert gate.finish(next(iter(gate.holders)), 6.5) == [old]
    else:
        assert gate.withdraw([fresh], 6.0) == [old]
