"""FairQueue keeps its two bounds, exactly and tightly, on every mix; variants of it do not.

The pairwise bound and the bound on the lag are derived in `fairlead.policies.fair`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest

from fairlead.capacities import TokenBucket
from fairlead.core import Gate, State, Ticket
from fairlead.policies import FairQueue
from tests.properties.fair_mutants import (
    BankedCredit,
    EligibleFinish,
    SelfClocked,
    StartTagClock,
    Unclamped,
    Unrestrained,
)
from tests.properties.fairness import (
    EXACT,
    Arrival,
    Lags,
    Mix,
    Pairs,
    fluid_finishes,
    random_mix,
    serve,
)
from tests.sizes import times

Make = Callable[..., FairQueue] | type[Unrestrained]


def measure(make: Make, mix: Mix) -> tuple[Pairs, Lags]:
    pairs, lags = Pairs(), Lags()
    serve(make("tenant", weights=mix.weights, name="fair"), mix, pairs, lags)
    return pairs, lags


def survey(make: Make, seeds: range, *, bursts: int = 40) -> tuple[float, float]:
    """Tell the worst of both bounds, as fractions of what is allowed."""
    worst_pair = worst_lag = 0.0
    for seed in seeds:
        mix = random_mix(seed, flows=2 + seed % 6, bursts=bursts, changing=seed % 3 == 0)
        pairs, lags = measure(make, mix)
        worst_pair, worst_lag = max(worst_pair, pairs.worst), max(worst_lag, lags.worst)
    return worst_pair, worst_lag


def test_both_bounds_hold_on_random_mixes_and_are_reached():
    worst_pair, worst_lag = survey(FairQueue, range(3_000), bursts=30)
    assert 0.999 < worst_pair <= EXACT
    assert 0.999 < worst_lag <= EXACT


@pytest.mark.slow
def test_both_bounds_hold_on_thousands_of_larger_mixes():
    worst_pair, worst_lag = survey(FairQueue, range(10_000, 10_000 + times(10_000)))
    assert worst_pair <= EXACT
    assert worst_lag <= EXACT


@pytest.mark.parametrize("make", [EligibleFinish, Unclamped, BankedCredit, Unrestrained])
def test_without_its_rules_the_pairwise_bound_breaks(make: Make):
    worst_pair, _ = survey(make, range(300))
    assert worst_pair > 1.5


@pytest.mark.parametrize("make", [SelfClocked, EligibleFinish, BankedCredit, Unrestrained])
def test_without_its_rules_the_lag_grows(make: Make):
    _, worst_lag = survey(make, range(300))
    assert worst_lag > 1.5


def test_the_pairwise_bound_holds_when_room_comes_with_time():
    for seed in range(300):
        mix = random_mix(seed, flows=2 + seed % 6, bursts=30)
        bucket = TokenBucket(1.0, burst=max(one.cost for one in mix.arrivals))
        gate = Gate(FairQueue("tenant", weights=mix.weights), bucket)
        pairs = Pairs()
        for flow, weight in mix.weights.items():
            pairs.weigh(flow, weight, 0.0)

        def started(tickets: list[Ticket], now: float, pairs: Pairs = pairs) -> None:
            for ticket in tickets:
                pairs.start(ticket.tenant, ticket.cost, now, waited=True)
                pairs.leave(ticket.tenant, now)

        now = 0.0
        for one in mix.arrivals:
            while (wakeup := gate.next_wakeup(now)) <= one.at:
                now = wakeup
                started(list(gate.advance(now)), now)
            now = one.at
            ticket = Ticket(cost=one.cost, tenant=one.flow)
            others = list(gate.offer(ticket, now))
            if ticket.state is State.WAITING:
                pairs.join(one.flow, one.cost, now)
            else:
                pairs.start(one.flow, one.cost, now, waited=False)
            started(others, now)
        while gate.waiting:
            now = gate.next_wakeup(now)
            assert now < inf
            started(list(gate.advance(now)), now)
        assert pairs.worst <= EXACT


def test_the_lag_bound_is_tight():
    """A light request joins when all others stand before it: each of them goes first, once, with its largest."""
    others = range(1, 9)
    mix = Mix(
        weights=dict.fromkeys(range(9), 1.0),
        arrivals=[Arrival(0.0, other, 10_000.0) for other in others for _ in range(3)]
        + [Arrival(10_000.5, 0, 1.0)],
    )
    _, lags = measure(FairQueue, mix)
    assert lags.worst <= EXACT
    starts = serve(FairQueue("tenant", weights=mix.weights), mix)
    started, _ = starts[-1]
    in_front = 10_000.0 * len(others)
    # One of the eight was served before it came, and that one's next request ranks behind it.
    assert started - 10_000.5 >= 0.999 * (in_front - 10_000.0)
    assert fluid_finishes(mix)[-1] - 10_000.5 == pytest.approx(9.0)


def test_two_flows_of_one_size_each_are_never_further_behind_the_fluid_than_one_request():
    """With two flows nobody else can come and go, and the bound holds against GPS itself; it is reached."""
    worst = 0.0
    for seed in range(2_000):
        mix = random_mix(seed, flows=2, bursts=20)
        sizes = {flow: mix.largest(flow) for flow in mix.weights}
        mix.arrivals = [
            Arrival(one.at, one.flow, sizes[one.flow]) for one in mix.arrivals if one.flow < 2
        ]
        if not mix.arrivals:
            continue
        finishes = serve(FairQueue("tenant", weights=mix.weights), mix)
        for one, (_, finish), ideal in zip(
            mix.arrivals, finishes, fluid_finishes(mix), strict=True
        ):
            other = mix.largest(1 - one.flow)
            assert finish <= ideal + other + 1e-6 * finish
            if other:
                worst = max(worst, (finish - ideal) / other)
    assert worst > 0.99


def test_the_first_request_after_idling_is_soon_served_whoever_comes_and_goes():
    """Against GPS itself: fluid finish + Σⱼ (Lⱼ + wⱼ·c₀/wᵢ), the corollary for x = 0."""
    for seed in range(500):
        mix = random_mix(seed, flows=5, bursts=30)
        mix.arrivals = [Arrival(one.at, one.flow, one.cost) for one in mix.arrivals]
        finishes = serve(FairQueue("tenant", weights=mix.weights), mix)
        ideals = fluid_finishes(mix)
        busy_until = dict.fromkeys(mix.weights, -inf)
        last = dict.fromkeys(mix.weights, 0.0)
        sizes = {flow: mix.largest(flow) for flow in mix.weights}
        for one, (started, finish), ideal in zip(mix.arrivals, finishes, ideals, strict=True):
            if one.at > busy_until[one.flow]:
                first = max(one.cost, last[one.flow])
                allowed = sum(
                    sizes[other] + mix.weights[other] * first / mix.weights[one.flow]
                    for other in mix.weights
                    if other != one.flow
                )
                assert finish <= ideal + allowed + 1e-6 * finish
            busy_until[one.flow] = max(busy_until[one.flow], started)
            last[one.flow] = one.cost


def one_shots(make: Make, newcomers: int) -> float:
    """How far a backlogged flow falls behind its fluid finish while two one-shot flows arrive per request served."""
    mix = Mix({0: 1.0}, [Arrival(0.0, 0, 1.0) for _ in range(20)])
    for number in range(newcomers):
        mix.weights[number + 1] = 1.0
        mix.arrivals.append(Arrival(0.5 + number * 0.97, number + 1, 1.0))
    finishes = serve(make("tenant", weights=mix.weights), mix)
    lags = [
        finish - ideal
        for one, (_, finish), ideal in zip(mix.arrivals, finishes, fluid_finishes(mix), strict=True)
        if one.flow == 0
    ]
    return max(lags)


def test_a_stream_of_one_shot_flows_starves_nobody():
    assert one_shots(FairQueue, 500) < 10
    assert one_shots(StartTagClock, 500) > 100
