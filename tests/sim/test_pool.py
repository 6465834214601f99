"""A pool of slots that doors share, simulated: never more than there is, never less than could be, and by weight."""

import asyncio
from random import Random
from typing import Any

import pytest

from fairlead.errors import ConfigError
from fairlead.sim import Arrival, Scenario, read_policy, simulate

API, JOBS, STREAMS = "gateway/default", "jobs/leader", "streams/workers"
EXECUTORS, WORKERS, PARTITIONS = 3, 2, 3


def pool(slots: int, **weights: float) -> dict[str, Any]:
    named = {door: weights.get(door.partition("/")[0], 1.0) for door in (API, JOBS, STREAMS)}
    topics = {"orders": {"partitions": PARTITIONS, "batch_size": 1}}
    return {
        "preset": "pool",
        "capacity": {"slots": slots},
        "policy": {"fair": {"weights": named}},
        "doors": {
            JOBS: {"preset": "jobs", "executors": {"default": EXECUTORS}},
            STREAMS: {"preset": "streams", "concurrency": WORKERS, "topics": topics},
        },
    }


def arrival(at: float, door: str, service: float = 1.0, partition: int = 0) -> Arrival:
    if door != STREAMS:
        return Arrival(at, service, door=door)
    return Arrival(at, service, workload="orders", door=door, labels={"partition": str(partition)})


def crowd(seed: int, count: int = 150) -> list[Arrival]:
    """More than there is room for, on a grid of powers of two so that sums are exact."""
    random = Random(seed)
    at, made = 0.0, []
    for _ in range(count):
        at += random.randrange(0, 1024) / 4096
        door, service = random.choice([API, JOBS, STREAMS]), random.randrange(1, 4096) / 2048
        made.append(arrival(at, door, service, random.randrange(PARTITIONS)))
    return made


def played(given: list[Arrival], policy: dict[str, Any]) -> Any:
    result = simulate(Scenario.of(given), read_policy(policy), 0)
    assert result.totals["done"] == len(given)
    return result


def instants(result: Any) -> list[float]:
    return sorted({at for row in result.tickets for at in (row.at, row.started, row.ended)})


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("seed", range(4))
def test_no_slot_is_used_twice_and_none_is_idle_that_somebody_could_use(seed, slots):
    given = crowd(seed)
    result = played(given, pool(slots))
    both = list(zip(given, result.tickets, strict=True))
    for now in instants(result):  # after all that happened at that instant
        runs = [one for one, row in both if row.started <= now < row.ended]
        assert len(runs) <= slots
        jobs = sum(one.door == JOBS for one in runs)
        held = {one.labels["partition"] for one in runs if one.labels}
        assert jobs <= EXECUTORS
        assert len(held) <= WORKERS
        assert len(held) == sum(one.door == STREAMS for one in runs)
        if len(runs) == slots:
            continue
        for one, row in both:
            if row.at <= now < row.started:  # for lack of room of its own
                assert one.door != API
                assert one.door != JOBS or jobs == EXECUTORS
                full = len(held) == WORKERS
                assert not one.labels or one.labels["partition"] in held or full


def test_slots_go_to_doors_by_weight():
    given = [arrival(0.0, door, 1.0, n % 3) for door in (API, JOBS, STREAMS) for n in range(40)]
    result = played(given, pool(4, gateway=2.0))
    early = [one.door for one, row in zip(given, result.tickets, strict=True) if row.ended <= 16.0]
    # Of the first instant the slots go to whoever came first: two of them would have been others'.
    assert {door: early.count(door) for door in (API, JOBS, STREAMS)} == {
        API: 34,
        JOBS: 15,
        STREAMS: 15,
    }


def test_the_result_is_the_same_beside_a_running_loop():
    given = crowd(9)

    async def beside() -> Any:
        return played(given, pool(2))

    assert asyncio.run(beside()).dump() == played(given, pool(2)).dump()


def test_jobs_of_a_pool_wait_for_what_they_need():
    first, second = arrival(0.0, JOBS), arrival(0.0, JOBS)._replace(deps=(1,))
    result = played([arrival(0.0, API), first, second], pool(3))
    assert [row.started for row in result.tickets] == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            [arrival(0.0, "flows/a")],
            "the pool has no door 'flows/a'; its doors are gateway/default",
        ),
        ([arrival(0.0, STREAMS, 1.0, 7)], "orders has no partition '7'"),
        ([arrival(0.0, API), arrival(0.0, JOBS)._replace(deps=(0,))], "depends on one at another"),
    ],
)
def test_what_belongs_to_no_door_is_refused(wrong, said):
    with pytest.raises(ConfigError, match=said):
        played(wrong, pool(1))
