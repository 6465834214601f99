"""The same records through a real stream app, on a broker in memory, and through the simulator: the same batches.

The app runs as it always does, with its listener and its workers, but under a clock that the test moves, and its
consumers return when the test says so.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import combinations, groupby
from math import inf
from operator import attrgetter
from random import Random
from typing import Any

import pytest

from fairlead.core import State, Ticket
from fairlead.sim import Arrival, Scenario, read_policy, simulate
from fairlead.sim.streams_site import StreamGate
from fairlead.streams import Consumer, runtime
from fairlead.streams.jobs import CONSUMPTION, Job
from fairlead.streams.queue import JobsQueue
from fairlead.testing import ManualClock
from fairlead.testing.streams import MemoryBroker
from tests.sim.model import balanced, run
from tests.streams.staging import app_on, until

TOPICS: dict[str, dict[str, Any]] = {
    "orders": {"priority": 80, "partitions": 2, "batch_size": 3},
    "audit": {"priority": 50, "weight": 3.0, "partitions": 3, "batch_size": 4, "by_key": True},
    "mail": {"priority": 50, "partitions": 2, "batch_size": 2},
}
PLACES = [(name, number) for name in TOPICS for number in range(TOPICS[name]["partitions"])]
TOLD = "mail"  # the topic whose consumer tells what its batches cost
Place = tuple[str, int, int]  # topic, partition, and the first record of a batch
# A batch as it began: topic, partition, and the records in it by their numbers.
Began = tuple[str, int, tuple[int, ...]]


def records(seed: int, count: int = 60) -> list[Arrival]:
    """Records in a rush, on a grid of powers of two so that sums are exact.

    At one instant one a partition at most, of one of three keys, in the order in which the broker hands them out:
    that of their names, beginning after the one it served last.
    """
    random = Random(seed)
    made: list[Arrival] = []
    at, served = 0.0, ("", 0)
    while len(made) < count:
        at += random.randrange(1, 2048) / 4096
        chosen = random.sample(PLACES, random.choice([1, 1, 2, 5]))
        chosen.sort(key=lambda one: (one <= served, one))
        served = chosen[-1]
        for topic, partition in chosen:
            service = random.randrange(1, 4096) / 4096
            labels = {"partition": str(partition), "key": random.choice("xyz")}
            if topic == TOLD:
                labels["cost"] = str(random.randrange(1, 64) / 8)
            made.append(Arrival(at, service, workload=topic, labels=labels))
    return made


class Stage:
    """A stream app whose time is the test's."""

    def __init__(self, given: list[Arrival], concurrency: int) -> None:
        self.given = given
        self.clock = ManualClock(float(int(time.monotonic())))
        self.begun = self.clock.now
        self.order: list[Began] = []
        self.going: dict[Place, threading.Event] = {}
        self._noted = threading.Lock()
        self._batches: dict[Place, tuple[int, ...]] = {}
        self._events: list[tuple[float, int, Place, int]] = []  # ends of single records
        self._count = 0
        self._started: deque[Place] = deque()
        self._written = 0
        self._broker = MemoryBroker({name: one["partitions"] for name, one in TOPICS.items()})
        self.app = app_on(self._broker, concurrency=concurrency)
        for name, one in TOPICS.items():
            options = {key: one[key] for key in one if key not in ("partitions", "by_key")}
            if one.get("by_key"):
                options["parallel_by"] = attrgetter("key")
            self.app.topic(name, self._consumer(name == TOLD), **options)

    def _consumer(self, told: bool) -> type[Consumer]:
        stage = self

        def cost(self: Consumer, messages: Any) -> float:
            labels: Any = [stage.given[int(one.value)].labels for one in messages]
            return sum(float(one["cost"]) for one in labels)

        def consume(self: Consumer, messages: Any) -> None:
            go = threading.Event()
            with stage._noted:
                batch = tuple(int(one.value) for one in messages)
                place = (self.topic, self.partition, batch[0])
                stage._batches[place] = batch
                stage.going[place] = go
            assert go.wait(60.0)

        own = {"consume": consume} | ({"cost": cost} if told else {})
        return type("Waiting", (Consumer,), own)

    def play(self) -> list[Began]:
        """Let every record come at its instant and every batch take its time; tell the batches as they began."""
        numbered = list(enumerate(self.given))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runtime, "JobsQueue", self._queue)
            self.app.start()
            try:
                until(lambda: len(self._holdings()) == len(PLACES))
                for at, group in groupby(numbered, key=lambda one: one[1].at):
                    self._end_until(at)
                    self._write(at, [number for number, _ in group])
                self._end_until(float("inf"))
            finally:
                for go in list(self.going.values()):
                    go.set()
                self.app.stop(5.0)
        return self.order

    def _queue(self, concurrency: int, start: Callable[[Job], None], **options: Any) -> JobsQueue:
        def noted(job: Job) -> None:
            if job.kind is CONSUMPTION:
                self._started.append(_place(job))
            start(job)

        return JobsQueue(concurrency, noted, **options, clock=self.clock)

    def _holdings(self) -> list[Any]:
        (listener,) = self.app.runtime.listeners.values()
        return list(listener.holdings.values())

    def _quiet(self) -> bool:
        """Say whether everything that can be known is known to the gate, and all it has started has begun."""
        (listener,) = self.app.runtime.listeners.values()
        gate = self.app.runtime.calls.scheduler.gate  # type: ignore[attr-defined]
        with listener.lock, gate.lock:
            read = sum(one.records for one in listener.counts.topics.values())
            cut = sum(one.partition.calls for one in listener.holdings.values())
            ready = min(one.partition.ready_at() for one in listener.holdings.values())
            core = gate.gate
            return (
                read == self._written
                and ready == inf
                and cut == core.waiting + core.active
                and core.active == len(self.going)
            )

    def _look(self) -> None:
        """Note what was started since, in the order in which it was."""
        until(self._quiet)
        while self._started:
            place = self._started.popleft()
            self.order.append((*place[:2], self._batches[place]))
            self._work_on(place, 0)

    def _work_on(self, place: Place, index: int) -> None:
        self._count += 1
        took = self.given[self._batches[place][index]].service
        heappush(self._events, (self.clock.now - self.begun + took, self._count, place, index))

    def _write(self, at: float, numbers: list[int]) -> None:
        self.clock.now = self.begun + at
        with self._broker.changing():
            for number in numbers:
                one = self.given[number]
                assert one.labels is not None
                partition = int(one.labels["partition"])
                key = one.labels["key"].encode()
                value = str(number).encode()
                self._broker.write(one.workload, value, key=key, partition=partition)
                self._written += 1
        self._look()

    def _end_until(self, at: float) -> None:
        while self._events and self._events[0][0] <= at:
            now, _, place, index = heappop(self._events)
            self.clock.now = self.begun + now
            if index + 1 < len(self._batches[place]):
                self._work_on(place, index + 1)
                continue
            job = next(one for one in self.app.runtime.queue.running() if _place(one) == place)
            ticket, go = job.ticket, self.going[place]
            with self._noted:
                del self.going[place]
            go.set()
            until(partial(_done, ticket))
            self._look()


def _done(ticket: Ticket) -> bool:
    return ticket.state is State.DONE


def _place(job: Job) -> Place:
    return job.topic, job.partition, int(job.messages[0].value or b"")


def simulated(given: list[Arrival], concurrency: int) -> list[Began]:
    order: list[Began] = []
    start: Callable[[StreamGate, Job], None] = StreamGate._start

    def noted(self: StreamGate, job: Job) -> None:
        order.append((job.topic, job.partition, tuple(one.work for one in self._tickets(job))))
        start(self, job)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StreamGate, "_start", noted)
        balanced(run(given, {"preset": "streams", "concurrency": concurrency, "topics": TOPICS}))
    return order


def beside(given: list[Arrival], concurrency: int) -> bool:
    """Say whether records of one partition ran at one time, which only other keys may."""
    result = run(given, {"preset": "streams", "concurrency": concurrency, "topics": TOPICS})
    places: dict[Any, list[tuple[float, float, str]]] = {}
    for one, row in zip(given, result.tickets, strict=True):
        assert one.labels is not None
        assert row.started is not None
        assert row.ended is not None
        time = (row.started, row.ended, one.labels["key"])
        places.setdefault((one.workload, one.labels["partition"]), []).append(time)
    found = False
    for (topic, _), times in places.items():
        for first, second in combinations(sorted(times), 2):
            if first[1] > second[0]:
                assert TOPICS[topic].get("by_key")
                assert first[2] != second[2]
                found = True
    return found


def streams_agree(seed: int, concurrency: int) -> None:
    given = records(seed)
    order = simulated(given, concurrency)
    assert Stage(given, concurrency).play() == order
    assert any(len(batch) > 1 for *_, batch in order)  # or this would say little
    assert concurrency == 1 or beside(given, concurrency)


@pytest.mark.parametrize("concurrency", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_a_stream_app_gives_the_same_order(seed, concurrency):
    streams_agree(seed, concurrency)


@pytest.mark.parametrize(
    ("tenants", "labels", "took"),
    [
        (("acme", "bolt"), None, 1.0),
        (("acme", "bolt"), {"partition": "0"}, 1.0),
        (("acme", "acme"), {"partition": "0"}, 2.0),
        (("acme", "bolt"), {"partition": "0", "key": "a"}, 2.0),
    ],
)
def test_records_without_a_key_are_in_order_by_their_tenant(tenants, labels, took):
    topics = {"orders": {"by_key": True, "batch_size": 1}}
    policy = read_policy({"preset": "streams", "concurrency": 2, "topics": topics})
    given = [Arrival(0.0, 1.0, tenant=one, workload="orders", labels=labels) for one in tenants]
    assert simulate(Scenario.of(given), policy, 0).horizon == took
