"""The figures of a running app, for metrics, `top` and tests: read, never decided upon."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlead.streams.broker import Tp
    from fairlead.streams.listener import Listener
    from fairlead.streams.runtime import Runtime


@dataclass(slots=True)
class TopicCounts:
    """What was counted of one topic; written under the listener's lock."""

    records: int = 0  # read
    consumed: int = 0  # done: their call returned
    calls: int = 0  # of `consume` that have ended, whichever way
    seconds: float = 0.0  # that these calls took
    failures: int = 0
    retries: int = 0
    dead_letters: int = 0  # that their topic has taken
    dead_letters_filed: int = 0
    dead_letters_skipped: int = 0


@dataclass(slots=True)
class Counts:
    """What one listener has counted since it began."""

    topics: dict[str, TopicCounts]
    commits: int = 0
    refused: int = 0
    rebalances: int = 0
    resets: int = 0

    def total(self, name: str) -> int:
        """Add up a count of all topics."""
        return sum(getattr(one, name) for one in self.topics.values())


@dataclass(frozen=True, slots=True)
class PartitionFigures:
    """One partition that is held."""

    tp: Tp
    generation: int
    position: int | None
    committed: int | None
    buffered: int
    running: int
    paused: bool
    end: int | None
    """Where the partition ends: as the broker last said, or what was read since; never below `position`."""
    lag: int | None
    """How many offsets before `end` nothing is done yet; None while nobody knows."""


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """One subscription group."""

    group_id: str
    partitions: tuple[PartitionFigures, ...]
    blocked: bool
    """Whether work that waits or runs keeps it from being polled."""
    polled_ago: float
    records: int
    failures: int
    retries: int
    dead_letters: int
    commits: int
    refused_commits: int
    rebalances: int
    resets: int


@dataclass(frozen=True, slots=True)
class Withheld:
    """A job that its scheduler has not let go."""

    topic: str
    partition: int
    group_id: str
    kind: str
    state: str
    age: float


@dataclass(frozen=True, slots=True)
class Statistics:
    """A running app."""

    busy: int
    enqueued: int
    waiting: int
    concurrency: int
    handed_back: int
    scheduler: str
    scheduler_calls: int
    scheduler_seconds: float
    scheduler_slowest: float
    scheduler_slow: int
    scheduler_raised: int
    scheduler_hangs: int
    scheduler_away: bool  # one of its calls hangs, or did until a moment ago: jobs go round it
    withheld: tuple[Withheld, ...]
    groups: dict[str, GroupFigures]


def statistics_of(runtime: Runtime) -> Statistics:
    """Read the figures."""
    now = time.monotonic()
    queue, calls = runtime.queue, runtime.calls
    counts = queue.statistics
    return Statistics(
        busy=counts["busy"],
        enqueued=counts["enqueued"],
        waiting=counts["waiting"],
        concurrency=queue.concurrency,
        handed_back=queue.handed_back,
        scheduler=calls.name,
        scheduler_calls=calls.calls,
        scheduler_seconds=calls.seconds,
        scheduler_slowest=calls.slowest,
        scheduler_slow=calls.slow,
        scheduler_raised=calls.raised,
        scheduler_hangs=calls.hangs,
        scheduler_away=calls.away,
        withheld=tuple(
            Withheld(job.topic, job.partition, job.group_id, job.kind, job.state, now - since)
            for job, since in runtime.withheld()
        ),
        groups={
            # A scheduler that takes batches of later polls does not keep its groups from being polled.
            name: _group(listener, queue.blocked(name) and not calls.scheduler.buffered, now)
            for name, listener in runtime.listeners.items()
        },
    )


def _group(listener: Listener, blocked: bool, now: float) -> GroupFigures:
    with listener.lock:
        partitions = tuple(
            PartitionFigures(
                one.tp,
                one.partition.generation,
                one.partition.position,
                one.committed,
                one.partition.buffered,
                one.partition.calls,
                one.paused,
                one.end,
                one.lag,
            )
            for one in listener.holdings.values()
        )
    return GroupFigures(
        listener.group_id,
        partitions,
        blocked,
        now - listener.polled_at,
        listener.counts.total("records"),
        listener.counts.total("failures"),
        listener.counts.total("retries"),
        listener.counts.total("dead_letters"),
        listener.counts.commits,
        listener.counts.refused,
        listener.counts.rebalances,
        listener.counts.resets,
    )
