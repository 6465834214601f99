"""The metrics of jobs in Prometheus' text format, read when somebody looks.

Jobs by state and the oldest ready job are counted in the database, by each scrape anew, so that they agree with the
counters beside them.  A count that takes long is used for twenty times as long: counting never takes more than a
twentieth of the time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from fairlead.errors import FairleadError
from fairlead.jobs.states import TRANSITIONS
from fairlead.jobs.timing import BOUNDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client import Metric

    from fairlead.jobs.counting import Counts
    from fairlead.jobs.scheduling import Scheduler
    from fairlead.jobs.service import Jobs
    from fairlead.jobs.timing import Timings
    from fairlead.jobs.worker import Crew

PREFIX = "fairlead_jobs_"
SHARE = 20.0  # counting takes at most this part of the time
QUICK = 0.05  # seconds; a count that takes no longer is made for every scrape
PATIENCE = 2.0  # seconds a scrape waits for its count

log = logging.getLogger("fairlead.jobs")


class Counted(NamedTuple):
    """What was counted in the database."""

    states: dict[str, int]
    oldest_ready: float | None
    at: float  # on the store's clock


class Metrics:
    """The metrics of one serving process."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._counted: Counted | None = None
        self._reachable = False
        self._count_at = 0.0  # when the next count may begin; of one under way, when it began
        self._counting: asyncio.Task[None] | None = None

    async def render(self) -> tuple[bytes, str]:
        """Write everything; return the text and its content type."""
        await self.refresh()
        return generate_latest(self), CONTENT_TYPE_LATEST

    async def refresh(self) -> None:
        """Count what is stored, and wait for the count; but not again for a count that has kept a scrape waiting."""
        clock = time.monotonic()
        counting = self._counting
        if counting is None and clock >= self._count_at:
            self._count_at = clock
            counting = self._counting = asyncio.create_task(self._count())
        if counting is not None and (left := self._count_at + PATIENCE - clock) > 0:
            await asyncio.wait({counting}, timeout=left)

    async def close(self) -> None:
        """Count no more."""
        if self._counting is not None:
            self._counting.cancel()
            await asyncio.gather(self._counting, return_exceptions=True)

    async def _count(self) -> None:
        begun = time.monotonic()
        try:
            store = await self._jobs.store()
            states = await store.states()
            self._counted = Counted(states, await store.oldest_ready(), store.now())
            self._reachable = True
        except FairleadError as error:
            self._reachable = False
            log.warning("jobs cannot be counted for the metrics: %s", error)
        finally:
            self._counting = None
            taken = time.monotonic() - begun
            self._count_at = time.monotonic() + (SHARE * taken if taken > QUICK else 0.0)

    def collect(self) -> Iterator[Metric]:
        """Tell everything, as a registry of one collector does."""
        yield _gauge("database_reachable", "Whether the database answered last.", self._reachable)
        if self._counted is not None:
            yield from _stored(self._counted)
        scheduler, crew = self._jobs.scheduler, self._jobs.crew
        if scheduler is not None:
            yield from _counters(scheduler.counts)
            yield _histogram(
                "wait_seconds", "Seconds from ready to claimed.", scheduler.counts.waits
            )
            yield _histogram(
                "run_seconds", "Seconds that jobs ran in this process.", scheduler.counts.runs
            )
            yield from _leader(scheduler, self._jobs.executors)
        if crew is not None:
            yield from _local(crew)


def _stored(counted: Counted) -> Iterator[Metric]:
    states = dict.fromkeys(TRANSITIONS, 0) | counted.states
    yield _by("stored", "Jobs in the database, by state.", "state", states)
    age = 0.0 if counted.oldest_ready is None else max(0.0, counted.at - counted.oldest_ready)
    yield _gauge("oldest_ready_seconds", "Since when the oldest ready job has waited.", age)


def _counters(counts: Counts) -> Iterator[Metric]:
    for name, text, value in (
        ("claimed", "Jobs that were claimed for a worker.", counts.claimed),
        ("claims_lost", "Claims that came too late.", counts.lost_claims),
        ("rescued", "Jobs taken back from workers that died or kept silent.", counts.rescued),
        ("quarantined", "Jobs failed for crashing, alone in their processes.", counts.quarantined),
        (
            "company_deaths",
            "Jobs whose process died with other jobs in it; that counts against none.",
            counts.company_deaths,
        ),
        ("takeovers", "Times this process became the one that plans.", counts.takeovers),
        ("planner_seconds", "Seconds spent on planning.", counts.planning_seconds),
        ("planner_rounds", "Rounds of planning.", counts.planning_rounds),
    ):
        yield CounterMetricFamily(PREFIX + name, text, value=value)
    for name, text, label, values in (
        ("ended", "Tries that ended in this process, by state.", "state", counts.ended),
        (
            "runs_ended",
            "Runs whose last job ended in this process, by state.",
            "state",
            counts.runs_ended,
        ),
        ("sla_missed", "SLAs that were missed.", "sla", counts.missed),
    ):
        family = CounterMetricFamily(PREFIX + name, text, labels=[label])
        for key, value in values.items():
            family.add_metric([key], value)
        yield family


def _leader(scheduler: Scheduler, declared: Iterable[str]) -> Iterator[Metric]:
    yield _gauge("leader", "Whether this process plans (1) or stands by (0).", scheduler.leading)
    still = time.monotonic() - scheduler.progressed_at
    yield _gauge("scheduler_still_seconds", "Since the last turn of the scheduler's loop.", still)
    frontier = scheduler.frontier
    if frontier is None:
        return  # the one who leads tells of all workers
    slots = dict.fromkeys(declared, 0) | scheduler.roster.slots()
    yield _by("slots", "Slots of workers that take jobs.", "executor", slots)
    busy = scheduler.roster.busy()
    yield _by("busy", "Slots in use.", "executor", busy)


def _local(crew: Crew) -> Iterator[Metric]:
    yield _by("local_slots", "Slots of this process.", "executor", crew.slots)
    yield _by("local_busy", "Slots of this process in use.", "executor", crew.running)
    text = "Slots of this process held by jobs that were told to stop and do not."
    yield _by("stuck", text, "executor", crew.stuck)
    away = {name: float(trouble is not None) for name, trouble in crew.troubles.items()}
    yield _by("local_away", "Whether the cluster that this process uses is away.", "executor", away)
    for name, text, value in (
        ("leases_lost", "Times a worker of this process lost its lease.", crew.leases_lost),
        ("abandoned", "Calls that were told to stop and did not.", crew.abandoned),
    ):
        yield CounterMetricFamily(PREFIX + name, text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def _by(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _histogram(name: str, text: str, timings: Timings) -> Metric:
    family = HistogramMetricFamily(PREFIX + name, text, labels=["task", "executor"])
    bounds = (*(repr(bound) for bound in BOUNDS), "+Inf")
    for labels, one in timings.histograms.items():
        buckets = list(zip(bounds, accumulate(one.counts), strict=True))
        family.add_metric(labels, buckets, one.total)
    return family
