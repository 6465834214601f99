"""A zoo of bad schedulers: the pace of one group while the scheduler is bad to another one.

Both are listeners of one process and members of one Kafka group.  Whatever a scheduler can be called for happens to
the bad group in the course of a run: batches, ticks, the end of its partitions, a dead letter, and in the end the
farewell; to some, which are compared to each other, also a visitor of the Kafka group who takes a partition away.  A
run in which a scheduler was not bad in every method it is there for has failed.

There is one worker, and the good group always has work for it: with more, a round of batches that is no multiple of
their number leaves some idle, and that differs from run to run by more than is judged.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.streams_meter import Figures, Meter
from benchmarks.streams_peers import group
from fairlead.streams import Consumer, StreamApp, StreamScheduler
from fairlead.streams.jobs import Job, Kind

BAD = "bad"
# A rebalance of the mock takes the session less a second; without heartbeats in between, members are thrown out.
MEMBER = {"session.timeout.ms": 3000, "heartbeat.interval.ms": 300}
WORK = 0.01  # seconds of a call of the good group
BATCH = 100  # records of one
PATIENCE = 15.0  # seconds
GRACE = 2.0
DEAD = "dead"  # added to the name of the bad topic

LIFECYCLE = tuple(f"schedule_{kind}" for kind in Kind if kind is not Kind.CONSUMPTION)
METHODS = ("schedule_consumption", "manage", "clear", *LIFECYCLE)


class Right(StreamScheduler):
    """Pushes everything as it comes; the bad ones are derived from it, and bad to the group `bad` alone."""

    bad_in: tuple[str, ...] = ()  # methods
    visited = False

    def __init__(self, queue: Any) -> None:
        super().__init__(queue)
        self.late = threading.Event()  # set when the run has been going on for a while
        self.was_bad: dict[str, int] = {}
        self.pushed: list[Job] = []  # of the bad group

    def schedule_consumption(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if job.group_id != BAD:
                self.queue << job
            elif not self.misbehave(job):
                self.pushed.append(job)
                self.queue << job

    def misbehave(self, job: Job) -> bool:
        """Do something bad to a job; say whether that was all."""
        return False

    def note(self, method: str) -> int:
        self.was_bad[method] = self.was_bad.get(method, 0) + 1
        return self.was_bad[method]

    def fail(self, method: str) -> None:
        self.note(method)
        raise RuntimeError("never")

    def one_has_finished(self) -> bool:
        """Say whether a job of the bad group has finished since this was asked: whom `manage` is called for."""
        finished = [job for job in self.pushed if job.finished]
        self.pushed = [job for job in self.pushed if not (job.finished or job.cleared)]
        return bool(finished)


class RightVisited(Right):
    visited = True


class Raises(Right):
    bad_in: tuple[str, ...] = ("schedule_consumption",)

    def misbehave(self, job: Job) -> bool:
        self.fail("schedule_consumption")
        return True


class RaisesInClear(Raises):
    bad_in = ("schedule_consumption", "clear")

    def clear(self, group_id: str) -> None:
        self.fail("clear")


class RaisesInManage(Right):
    bad_in = ("manage",)

    def manage(self) -> None:
        if self.one_has_finished():
            self.fail("manage")


class RaisesInTheRest(RightVisited):
    bad_in = LIFECYCLE


class RaisesInTwins(RightVisited):
    """Not always where that would keep the group from ever getting to the others."""

    bad_in = tuple(f"on_{method}" for method in METHODS)
    times = 2


class Forgets(Right):
    bad_in = ("schedule_consumption",)

    def misbehave(self, job: Job) -> bool:
        self.note("schedule_consumption")
        return True


class PushesTwice(Right):
    bad_in = ("schedule_consumption",)

    def misbehave(self, job: Job) -> bool:
        self.note("schedule_consumption")
        self.queue << job << job
        return True


class UnlocksTwice(Right):
    bad_in = ("schedule_consumption",)

    def misbehave(self, job: Job) -> bool:
        self.note("schedule_consumption")
        self.queue.lock(job)
        self.queue.unlock(job)
        self.queue.unlock(job)
        return True


class KeepsJobs(Right):
    """Pushes, whenever it may, jobs that were cleared."""

    bad_in = ("schedule_consumption", "manage")

    def __init__(self, queue: Any) -> None:
        super().__init__(queue)
        self.kept: list[Job] = []

    def misbehave(self, job: Job) -> bool:
        self.kept.append(job)
        self.fail("schedule_consumption")
        return True

    def manage(self) -> None:
        if self.kept:
            self.note("manage")
            self.queue << self.kept.pop()


class Hangs(Right):
    """For good, once the run has been going on for a while: before, nobody would see it."""

    bad_in = ("schedule_consumption",)

    def misbehave(self, job: Job) -> bool:
        if self.late.is_set():
            self.note("schedule_consumption")
            threading.Event().wait()
        return False


class HangsInManage(Right):
    bad_in = ("manage",)

    def manage(self) -> None:
        if self.late.is_set():
            self.note("manage")
            threading.Event().wait()


def _raising(method: str) -> Callable[..., None]:
    def called(self: Right, jobs: Sequence[Job]) -> None:
        if jobs[0].group_id == BAD:
            self.fail(method)
        self._push(jobs)

    return called


def _raising_twin(method: str) -> Callable[..., None]:
    def called(self: RaisesInTwins, *about: Any) -> None:
        often = method in LIFECYCLE or self.was_bad.get(f"on_{method}", 0) < self.times
        if often and (self.one_has_finished() if not about else _of_bad(about[0])):
            self.fail(f"on_{method}")
        getattr(super(RaisesInTwins, self), f"on_{method}")(*about)

    return called


def _of_bad(about: Any) -> bool:
    return about == BAD if isinstance(about, str) else about[0].group_id == BAD


for one in LIFECYCLE:
    setattr(RaisesInTheRest, one, _raising(one))
for one in METHODS:
    setattr(RaisesInTwins, f"on_{one}", _raising_twin(one))

ZOO: dict[str, type[Right]] = {
    one.__name__: one
    for one in (
        Right,
        Raises,
        RaisesInManage,
        RaisesInClear,
        Forgets,
        PushesTwice,
        UnlocksTwice,
        KeepsJobs,
        Hangs,
        HangsInManage,
        RightVisited,
        RaisesInTheRest,
        RaisesInTwins,
    )
}
BASES = {  # whom each is compared to
    name: RightVisited.__name__ if one.visited else Right.__name__
    for name, one in ZOO.items()
    if one.bad_in
}


def zoo(servers: str, topic: str, records: int, look: bool, *, scheduler: str) -> Figures:
    """The pace of the good group; `topic` names both: good,bad."""
    logging.disable(logging.CRITICAL)
    good, bad = topic.split(",")
    meter = Meter(records)
    begun = threading.Event()

    class Good(Consumer):
        async def consume(self, messages: Sequence[Any]) -> None:
            await asyncio.sleep(WORK)
            meter.hit(len(messages))
            begun.set()

    class Bad(Consumer):
        async def consume(self, messages: Sequence[Any]) -> None:
            if messages[0].offset == 0:
                raise ValueError("to be buried")

        async def tick(self) -> None: ...

        async def eofed(self) -> None: ...

    members = group()
    app = StreamApp(
        servers,
        members,
        concurrency=1,
        scheduler=ZOO[scheduler],
        tick_interval="1s",
        kafka=MEMBER,
    )
    app.topic(good, Good, subscription_group="good", batch_size=BATCH)
    app.topic(
        bad,
        Bad,
        subscription_group=BAD,
        batch_size=BATCH,
        max_retries=1,
        retry_backoff="10ms",
        dead_letter=f"{bad}-{DEAD}",
    )
    app.start()
    made = app.runtime.calls.scheduler
    assert isinstance(made, Right)
    if not begun.wait(60):
        raise RuntimeError("the first record did not come")
    if made.visited:
        held = app.runtime.listeners[BAD].holdings  # only what was read of is told farewell
        wait_for(
            lambda: sum(one.had_records for one in list(held.values())) == 2,
            "the bad group has read nothing",
        )
        visit(servers, members, bad)
    made.late.set()
    write(servers, bad)
    if not meter.done.wait(120):
        raise RuntimeError("the records did not come")
    before_the_end = [method for method in made.bad_in if "shutdown" not in method]
    hangs = scheduler.startswith("Hangs")

    def was_bad() -> bool:
        found = app.statistics().scheduler_hangs
        return found == hangs and all(method in made.was_bad for method in before_the_end)

    # A short run may be over first.
    wait_for(was_bad, f"{scheduler} was bad only in {made.was_bad}")
    app.stop(GRACE)
    if not set(made.bad_in) <= set(made.was_bad):
        raise RuntimeError(f"{scheduler} was bad only in {made.was_bad}")
    return meter.figures()


def wait_for(happened: Callable[[], bool], else_say: str) -> None:
    """Look again and again until a claim holds."""
    by = time.monotonic() + PATIENCE
    while not happened():
        if time.monotonic() > by:
            raise RuntimeError(else_say)
        time.sleep(0.02)


def visit(servers: str, members: str, topic: str) -> None:
    """Join, take a partition, and leave."""
    from confluent_kafka import Consumer as Client

    client = Client(
        {
            "bootstrap.servers": servers,
            "group.id": members,
            **MEMBER,
            "partition.assignment.strategy": "cooperative-sticky",
        }
    )
    client.subscribe([topic])

    def joined() -> bool:
        client.poll(0.05)
        return bool(client.assignment())

    wait_for(joined, "the visitor was given no partition")
    # Not waited for: in the midst of another rebalance the client may take very long to leave.
    threading.Thread(target=client.close, daemon=True).start()


def write(servers: str, topic: str) -> None:
    """Write one more record to each of two partitions."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
    for partition in (0, 1):
        producer.produce(topic, b"x", partition=partition)
    producer.flush(10)
