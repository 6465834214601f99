"""Is a scheduler healthy?  A verdict from successive snapshots of its counters.

Each call of `verdict` takes a sample and compares it with those of the last `window` seconds, 60 by default.  (A sample
that would stand alone is compared with the one before it, however old: rare calls must overlook nothing.)
The first sample is taken when a `Health` is made.  Every change below is newest sample minus oldest.

Unhealthy, any of:
  - work timed out: `total_expired` grew;
  - work was refused: `total_refused` grew, and the scheduler is not shutting down (which refuses by design);
  - the queue is at its limit: `queued_count >= max_queue_size > 0`;
  - work is stuck: for half the window or longer nothing completed, while the queue grew and never shrank.
Warning, any of:
  - the queue is nearly full: 80 % of `max_queue_size` or more;
  - the queue grows steadily: of up to 6 samples spread evenly over those kept, at least 4, each is no smaller than the
    one before, and the growth is more than `max_concurrency` (more than 1 where that is unknown);
  - promotions rise rapidly: more promotions than completions;
  - more runs than may: `active_count > max_concurrency`, as after a `resize` to fewer slots;
  - the scheduler is shutting down.
Healthy otherwise: the queue may fluctuate, but it is bounded, and no more runs than may.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from fairlead.config import seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fairlead.tasks import SchedulerStats

NEARLY_FULL = 0.8  # of max_queue_size
STUCK_FOR = 0.5  # of the window
POINTS, FEWEST_POINTS = 6, 4  # samples among which growth is looked for
MOST_SAMPLES = 600  # kept at once, however often anyone asks


class Observed(Protocol):
    """What can be watched: a Scheduler, a ThreadScheduler, or a bound view of one."""

    def stats(self) -> SchedulerStats:
        """Take a snapshot of the counters."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be said of a scheduler: its status, why, and the figures it was decided on."""

    status: Literal["healthy", "warning", "unhealthy"]
    reasons: tuple[str, ...]
    indicators: Mapping[str, Any]


class Sample(NamedTuple):
    """The counters a verdict needs, at one time."""

    at: float
    queued: int
    completed: int
    promotions: int
    refused: int
    expired: int


class Health:
    """A watch over one scheduler.

    >>> from fairlead import Scheduler
    >>> Health(Scheduler.bounded(max_concurrency=4)).verdict().status
    'healthy'
    """

    def __init__(
        self,
        scheduler: Observed,
        *,
        clock: Callable[[], float] = time.monotonic,
        window: Any = 60.0,
    ) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._window = seconds(window, "window")
        self._samples: tuple[Sample, ...] = (self._sample(scheduler.stats()),)

    def verdict(self) -> Verdict:
        """Sample the counters and judge them."""
        stats = self._scheduler.stats()
        samples = _recent((*self._samples, self._sample(stats)), self._window)
        self._samples = samples
        return judge(stats, samples, self._window)

    def _sample(self, stats: SchedulerStats) -> Sample:
        return Sample(
            self._clock(),
            stats.queued_count,
            stats.total_completed,
            stats.starvation_promotions,
            stats.total_refused,
            stats.total_expired,
        )


def judge(stats: SchedulerStats, samples: Sequence[Sample], window: float) -> Verdict:
    """Decide by the rules above; `stats` is the snapshot the newest sample was taken from."""
    bad = tuple(_unhealthy(stats, samples, window))
    doubtful = tuple(_warning(stats, samples))
    first, last = samples[0], samples[-1]
    indicators = {
        "seconds": round(last.at - first.at, 3),
        "samples": len(samples),
        "activeCount": stats.active_count,
        "maxConcurrency": stats.max_concurrency,
        "queuedCount": stats.queued_count,
        "maxQueueSize": stats.max_queue_size,
        "queueGrowth": last.queued - first.queued,
        "completed": last.completed - first.completed,
        "promotions": last.promotions - first.promotions,
        "refused": last.refused - first.refused,
        "expired": last.expired - first.expired,
        "shuttingDown": stats.shutting_down,
    }
    status: Literal["healthy", "warning", "unhealthy"]
    status = "unhealthy" if bad else "warning" if doubtful else "healthy"
    return Verdict(status, bad + doubtful, indicators)


def _unhealthy(stats: SchedulerStats, samples: Sequence[Sample], window: float) -> Iterator[str]:
    first, last = samples[0], samples[-1]
    span = last.at - first.at
    if expired := last.expired - first.expired:
        yield (
            f"work is timing out: {expired} waited too long in the last {span:.3g} s; raise max_concurrency if "
            "resources allow, or submit less"
        )
    refused = last.refused - first.refused
    if refused and not stats.shutting_down:
        yield (
            f"work is being refused: {refused} in the last {span:.3g} s; slow down where work is submitted, or "
            "raise max_concurrency or max_queue_size if resources allow"
        )
    if 0 < stats.max_queue_size <= stats.queued_count:
        yield (
            f"the queue is full ({stats.queued_count}/{stats.max_queue_size} waiting), and what comes now is refused: "
            "work arrives faster than it completes; look for slow or failing downstream services"
        )
    if (
        span >= STUCK_FOR * window
        and last.completed == first.completed
        and last.queued > first.queued
        and _never_shrinks(samples)
    ):
        yield (
            f"nothing completed in the last {span:.3g} s while the queue grew by {last.queued - first.queued} to "
            f"{last.queued} ({stats.active_count} running): check that what the running work waits for responds"
        )


def _warning(stats: SchedulerStats, samples: Sequence[Sample]) -> Iterator[str]:
    first, last = samples[0], samples[-1]
    span = last.at - first.at
    if 0 < NEARLY_FULL * stats.max_queue_size <= stats.queued_count < stats.max_queue_size:
        yield (
            f"the queue is nearly full ({stats.queued_count}/{stats.max_queue_size} waiting): slow down where work is "
            "submitted, or raise max_concurrency if resources allow"
        )
    growth = last.queued - first.queued
    points = _spread(samples)
    steadily = len(points) >= FEWEST_POINTS and _never_shrinks(points)
    if steadily and growth > (stats.max_concurrency or 1):
        cure = (
            "" if stats.max_queue_size else "set max_queue_size so that memory stays bounded, and "
        )
        yield (
            f"the queue grows steadily: by {growth} to {last.queued} in the last {span:.3g} s, so work arrives faster "
            f"than it completes; {cure}raise max_concurrency if resources allow"
        )
    promotions, completed = last.promotions - first.promotions, last.completed - first.completed
    if promotions > completed:
        yield (
            f"promotions rise rapidly: {promotions} against {completed} completions in the last {span:.3g} s, so low "
            "priority waits long; raise max_concurrency, or review what is submitted with high priority"
        )
    if stats.max_concurrency is not None and stats.active_count > stats.max_concurrency:
        yield (
            f"{stats.active_count} run where {stats.max_concurrency} may: normal for a while after resize() to fewer "
            "slots; otherwise report it"
        )
    if stats.shutting_down:
        yield (
            f"the scheduler is shutting down ({stats.active_count} running, {stats.queued_count} waiting) and takes "
            "nothing new: send work elsewhere"
        )


def _never_shrinks(samples: Sequence[Sample]) -> bool:
    return all(later.queued >= earlier.queued for earlier, later in pairwise(samples))


def _spread(samples: Sequence[Sample]) -> list[Sample]:
    """Pick up to POINTS samples evenly, so that asking often does not make the verdict jumpy."""
    if len(samples) <= POINTS:
        return list(samples)
    return [samples[step * (len(samples) - 1) // (POINTS - 1)] for step in range(POINTS)]


def _recent(samples: tuple[Sample, ...], window: float) -> tuple[Sample, ...]:
    """Drop what is older than the window, but leave two to compare; thin out what is left beyond MOST_SAMPLES."""
    since = samples[-1].at - window
    fresh = next(index for index, sample in enumerate(samples) if sample.at >= since)
    kept = samples[min(fresh, len(samples) - 2) :]
    if len(kept) > MOST_SAMPLES:
        kept = (*kept[:-1:2], kept[-1])
    return kept
