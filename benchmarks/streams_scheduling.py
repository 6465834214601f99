"""What scheduling costs: batches that are there already, through scheduler and queue, with workers that do nothing."""

from __future__ import annotations

from collections import deque
from time import process_time
from typing import Any

from benchmarks.streams_fairlead import SCHEDULERS
from fairlead.streams import Consumer
from fairlead.streams.broker import Batch, Message, Tp
from fairlead.streams.calling import SchedulerCalls, after
from fairlead.streams.gating import GateScheduler
from fairlead.streams.holdings import Holding
from fairlead.streams.jobs import CONSUMPTION, Job
from fairlead.streams.queue import JobsQueue
from fairlead.streams.settings import read_topic

TOPICS, PARTITIONS, CONCURRENCY = 2, 8, 8  # partitions of each topic


class Nothing(Consumer):
    def consume(self, messages: Any) -> None:
        pass


class Intake:
    """Stands for the listener's: the next batch of a partition waits when one has finished."""

    def go_on(self, holding: Holding) -> None:
        pass


class Listener:
    intake = Intake()


def cost(name: str, rounds: int) -> float:
    """CPU µs per batch of 100, in rounds of one batch per partition: given, scheduled, started, ended, managed."""
    started: deque[Job] = deque()
    topics = {f"t{number}": tuple(range(PARTITIONS)) for number in range(TOPICS)}
    queue = JobsQueue(CONCURRENCY, started.append, assignments=topics)
    kind = SCHEDULERS[name]
    scheduler = GateScheduler(queue, weights={}) if kind is None else kind(queue)
    calls = SchedulerCalls(scheduler, queue, lambda group, why: None)
    read = {topic: read_topic(topic, Nothing, {}) for topic in topics}
    holdings = [
        Holding(read[topic], Tp(topic, number), 1, CONCURRENCY, Listener())
        for topic, numbers in topics.items()
        for number in numbers
    ]
    batches = [
        Batch(one.tp, [Message(*one.tp, offset) for offset in range(100)]) for one in holdings
    ]
    used = 0.0
    for _ in range(rounds):
        jobs = []
        for holding, batch in zip(holdings, batches, strict=True):
            holding.partition.deliver(batch)
            jobs.append(Job(CONSUMPTION, holding, holding.partition.take(0.0), blocking=True))
        began = process_time()
        queue.give(jobs)
        calls.consumption("default", jobs)
        while started:
            job = started.popleft()
            queue.done(job)
            after(calls, job)
            if kind is not None:
                calls.manage("default")
        used += process_time() - began
        for job in jobs:
            if not job.ended or job.taken is None:
                raise RuntimeError(f"{name} has not let {job} go")
            job.holding.partition.finish(job.taken)
    if isinstance(scheduler, GateScheduler):
        scheduler.close()
    return used / rounds / len(holdings) * 1e6
