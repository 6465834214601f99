"""Random mixes through the door, tokens and priorities as labels, against the bounds `fairlead.policies.fair` states.

`tests/properties/test_fair_bounds.py` holds the bounds of the queue itself; here the labels, the classes around it and
the flows' own life come between.
"""

import asyncio
from math import inf
from typing import Any

import pytest

from fairlead.flows.scheduler import FlowScheduler
from tests.flows.door import balanced, concurrency, now, point_of, run, scheduler, until
from tests.properties.fairness import (
    EXACT,
    Arrival,
    Lags,
    Mix,
    Pairs,
    Watch,
    fluid_finishes,
    random_mix,
)
from tests.sizes import REPEATS

UNIT = 1e-3  # seconds of work per token
LABELED = {
    "workload_label_key": "workload",
    "priority_label_key": "priority",
    "tokens_label_key": "tokens",
}


def door(**more: Any) -> FlowScheduler:
    """One request at a time, whatever it costs."""
    return scheduler(concurrency=concurrency(1), scheduler=LABELED | more)


async def served(flows: FlowScheduler, mix: Mix, *watches: Watch) -> list[float]:
    """Run a mix, a token taking a millisecond of work; tell when each arrival finished (inf: it gave up)."""
    began = now()
    gate = point_of(flows).gate
    finishes = [inf] * len(mix.arrivals)
    running: set[int] = set()
    for flow, weight in mix.weights.items():
        for watch in watches:
            watch.weigh(flow, weight, 0.0)

    def time() -> float:
        return (now() - began) / UNIT

    async def one(number: int, arrival: Arrival) -> None:
        labels = {
            "workload": str(arrival.flow),
            "priority": repr(mix.weights[arrival.flow]),
            "tokens": repr(arrival.cost),
        }
        waits = gate.active > 0
        if waits:
            for watch in watches:
                watch.join(arrival.flow, arrival.cost, time())
        try:
            flow = await flows.start_flow("p", labels)
        except asyncio.CancelledError:
            for watch in watches:
                watch.leave(arrival.flow, time())
            return
        assert flow.should_run()
        assert not flow.ignored
        assert gate.active == 1
        running.add(number)
        for watch in watches:
            watch.start(arrival.flow, arrival.cost, time(), waited=waits)
            if waits:
                watch.leave(arrival.flow, time())
        await asyncio.sleep(arrival.cost * UNIT)
        finishes[number] = time()
        flow.end()

    tasks: list[asyncio.Task[None]] = []

    def give_up(number: int) -> None:
        if number not in running:
            tasks[number].cancel()

    loop = asyncio.get_running_loop()
    for number, arrival in enumerate(mix.arrivals):
        if arrival.at > time():
            await until(began + arrival.at * UNIT)
        tasks.append(loop.create_task(one(number, arrival)))
        await asyncio.sleep(0)  # it asks now: of those who come at one instant each is in its place
        if arrival.gives_up_at < inf:
            loop.call_at(began + arrival.gives_up_at * UNIT, give_up, number)
    await asyncio.gather(*tasks)
    return finishes


def survey(flows: FlowScheduler, seeds: range) -> tuple[float, float]:
    """Tell the worst of both bounds, as fractions of what is allowed; one door serves all the mixes."""

    async def main() -> tuple[float, float]:
        pair = lag = 0.0
        for seed in seeds:
            pairs, lags = Pairs(), Lags()
            await served(flows, random_mix(seed, flows=2 + seed % 6, bursts=14), pairs, lags)
            balanced(flows)
            pair, lag = max(pair, pairs.worst), max(lag, lags.worst)
        return pair, lag

    result: tuple[float, float] = run(main(), 1e7)
    return result


def test_both_bounds_hold_and_are_reached():
    pair, lag = survey(door(), range(800))
    assert 0.999 < pair <= EXACT
    assert 0.99 < lag <= EXACT


@pytest.mark.slow
def test_both_bounds_hold_on_thousands_of_mixes():
    pair, lag = survey(door(), range(20_000, 20_000 + 10_000 * REPEATS))
    assert pair <= EXACT
    assert lag <= EXACT


def test_among_users_too():
    """All flows of one workload: users are equal, so weights are 1."""

    async def main():
        flows = scheduler(
            concurrency=concurrency(1),
            scheduler={"tokens_label_key": "tokens", "fairness_label_key": "workload"},
        )
        worst = 0.0
        for seed in range(200):
            mix = random_mix(seed, flows=2 + seed % 6, bursts=14)
            mix.weights = dict.fromkeys(mix.weights, 1.0)
            pairs = Pairs()
            await served(flows, mix, pairs)
            balanced(flows)
            worst = max(worst, pairs.worst)
        return worst

    assert 0.99 < run(main()) <= EXACT


def test_two_workloads_of_one_size_each_are_within_one_request_of_the_fluid():
    async def main():
        flows, worst = door(), 0.0
        for seed in range(200):
            mix = random_mix(seed, flows=2, bursts=12)
            sizes = {flow: mix.largest(flow) for flow in mix.weights}
            mix.arrivals = [
                Arrival(one.at, one.flow, sizes[one.flow]) for one in mix.arrivals if one.flow < 2
            ]
            if not mix.arrivals:
                continue
            finishes = await served(flows, mix)
            for one, finish, ideal in zip(mix.arrivals, finishes, fluid_finishes(mix), strict=True):
                other = mix.largest(1 - one.flow)
                assert finish <= ideal + other + 1e-6 * max(1.0, finish)
                if other:
                    worst = max(worst, (finish - ideal) / other)
        return worst

    assert run(main()) > 0.99


@pytest.mark.parametrize(
    "ignored", [{"priority_label_key": None}, {"workload_label_key": None}], ids=str
)
def test_a_door_that_does_not_read_a_label_breaks_them(ignored):
    """The control: the bounds are not met by chance."""
    pair, _ = survey(door(**ignored), range(60))
    assert pair > 1.5
