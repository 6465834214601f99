"""Shares and priorities of the built-in scheduler, in virtual time: workers that end when a clock says so."""

from heapq import heappop, heappush
from random import Random
from typing import Any

import pytest

from fairlead.streams.gating import GateScheduler
from fairlead.streams.jobs import Job
from fairlead.streams.queue import JobsQueue
from tests.streams.staging import job


class World:
    """A clock, workers whose calls take the time they are told, and what each topic has waited."""

    def __init__(self, concurrency: int, weights: dict[str, float] | None = None) -> None:
        self.now = 0.0
        self.queue = JobsQueue(concurrency, self._begin, clock=lambda: self.now)
        self.scheduler = GateScheduler(self.queue, weights=weights or {})
        self.scheduler.gate.now = lambda: self.now
        self.seconds: dict[str, Any] = {}  # how long a call of a topic takes
        self.latency: dict[str, list[float]] = {}
        self.served: dict[str, int] = {}
        self._events: list[tuple[float, int, Any]] = []
        self._count = 0

    def at(self, when: float, deed: Any) -> None:
        self._count += 1
        heappush(self._events, (when, self._count, deed))

    def give(self, topic: str, partition: int, size: int, **options: Any) -> None:
        made = job(topic, partition, size, **options)
        self.queue.give([made])
        self.scheduler.on_schedule_consumption([made])

    def _begin(self, made: Job) -> None:
        self.at(self.now + self.seconds[made.topic](), lambda: self._end(made))

    def _end(self, made: Job) -> None:
        assert made.given_at is not None
        self.latency.setdefault(made.topic, []).append(self.now - made.given_at)
        self.served[made.topic] = self.served.get(made.topic, 0) + len(made.messages)
        self.queue.done(made)
        self.ended(made)  # the partition's next batch waits before the room is given back
        self.scheduler.settle(made)

    def ended(self, made: Job) -> None:
        pass

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, deed = heappop(self._events)
            deed()
        self.scheduler.close()


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("weights", [{"a": 3.0, "b": 1.0}, {"a": 5.0, "b": 3.0, "c": 2.0}])
def test_topics_share_within_five_per_cent_of_their_weights(concurrency, weights):
    """Every partition has a backlog; topics have batches of different sizes that take different times."""
    world = World(concurrency, weights)
    random = Random(7)
    sizes = dict(zip(weights, (20, 50, 7), strict=False))

    def again(made: Job) -> None:
        world.give(made.topic, made.partition, sizes[made.topic])

    world.ended = again  # type: ignore[method-assign]
    for topic in weights:
        world.seconds[topic] = lambda: random.uniform(0.001, 0.02)
        for partition in range(8):
            world.give(topic, partition, sizes[topic])
    world.run(20.0)
    total = sum(world.served.values())
    for topic, weight in weights.items():
        share = weight / sum(weights.values())
        assert world.served[topic] / total == pytest.approx(share, rel=0.05)


def p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


@pytest.mark.parametrize("concurrency", [4, 8])
def test_a_flood_on_a_low_topic_leaves_the_p99_of_a_high_one(concurrency):
    """Batches of the high topic come at half of what the workers can do; the low one has every worker it is left."""

    def waited(flood: bool) -> float:
        world = World(concurrency)
        random = Random(11)
        world.seconds["high"] = world.seconds["low"] = lambda: random.uniform(0.005, 0.015)
        when = 0.0
        for number in range(2000):
            when += random.expovariate(concurrency * 0.5 / 0.01)
            world.at(when, lambda n=number: world.give("high", n, 10, priority=80))
        if flood:

            def again(made: Job) -> None:
                if made.topic == "low":
                    world.give("low", made.partition, 10, priority=20)

            world.ended = again  # type: ignore[method-assign]
            for partition in range(100):
                world.give("low", partition, 10, priority=20)
        world.run(when)
        if flood:
            assert world.served["low"] > 0.5 * world.served["high"], "there was no flood"
        return p99(world.latency["high"])

    assert waited(flood=True) <= 1.5 * waited(flood=False)
