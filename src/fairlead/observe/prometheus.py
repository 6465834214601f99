"""The metrics of a scheduler in the Prometheus formats.

Nothing is counted here: at each scrape a collector reads one snapshot, so that a scheduler pays for metrics only while
somebody looks.  prometheus_client is imported then, not before.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from fairlead.tasks import SchedulerStats

PREFIX = "fairlead_scheduler_"


def render(stats: SchedulerStats, media: str) -> tuple[bytes, str]:
    """Write the metrics in the format `media` names; return the text and its exact content type."""
    from prometheus_client.exposition import choose_encoder

    encoder, content_type = choose_encoder(media)
    return encoder(_Snapshot(stats)), content_type


class _Snapshot:
    """What a scrape collects from: a registry of one collector."""

    def __init__(self, stats: SchedulerStats) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        yield from gauges(self._stats)
        yield from counters(self._stats)
        yield waits(self._stats)


def gauges(stats: SchedulerStats) -> Iterator[Metric]:
    """Yield what goes up and down."""
    from prometheus_client.core import GaugeMetricFamily

    for name, value, text in (
        (
            "enabled",
            stats.enabled,
            "Whether the scheduler is bounded (1) or runs everything at once (0).",
        ),
        ("active_count", stats.active_count, "Tasks that run now."),
        ("queued_count", stats.queued_count, "Tasks that wait now."),
        ("max_concurrency", stats.max_concurrency, "Tasks that may run at once."),
        (
            "max_queue_size",
            stats.max_queue_size,
            "Tasks that may wait at once; 0 is without limit.",
        ),
        ("shutting_down", stats.shutting_down, "Whether the scheduler takes nothing new (1)."),
    ):
        if value is not None:
            yield GaugeMetricFamily(PREFIX + name, text, value=value)


def counters(stats: SchedulerStats) -> Iterator[Metric]:
    """Yield what only goes up."""
    from prometheus_client.core import CounterMetricFamily

    high, low = stats.high_priority_completed, stats.low_priority_completed
    completed = CounterMetricFamily(
        PREFIX + "completed",
        "Tasks that ran to an end: result, error or cancellation while running.",
        labels=["tier"],
    )
    for tier, value in (
        ("high", high),
        ("normal", stats.total_completed - high - low),
        ("low", low),
    ):
        completed.add_metric([tier], value)
    yield completed
    for name, value, text in (
        ("submitted", stats.total_submitted, "Tasks taken on; a refusal is not a submission."),
        ("failed", stats.total_failed, "Tasks that ended with an error, a part of completed."),
        ("cancelled", stats.total_cancelled, "Tasks that left before they started."),
        (
            "expired",
            stats.total_expired,
            "Tasks that waited longer than they may, a part of cancelled.",
        ),
        (
            "refused",
            stats.total_refused,
            "Tasks not taken on: the queue was full, or shutdown had begun.",
        ),
        ("clamped", stats.total_clamped, "Priorities outside 0..100 that were brought within."),
        (
            "starvation_promotions",
            stats.starvation_promotions,
            "Promotions gained by waiting: steps of +10, or starved classes served.",
        ),
    ):
        yield CounterMetricFamily(PREFIX + name, text, value=value)


def waits(stats: SchedulerStats) -> Metric:
    """Make the histogram of waits; a snapshot counts each bucket alone, Prometheus all up to its bound."""
    from prometheus_client.core import HistogramMetricFamily
    from prometheus_client.utils import floatToGoString

    family = HistogramMetricFamily(
        PREFIX + "wait_seconds",
        "Time from submission to start, by tier of the original priority.",
        labels=["tier"],
        unit="seconds",
    )
    for tier in ("high", "normal", "low"):
        histogram = stats.waits[tier]
        bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
        family.add_metric([tier], buckets, histogram.total)
    return family
