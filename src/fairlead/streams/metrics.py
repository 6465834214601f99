"""The metrics of an app in Prometheus' text format.

Nothing is counted here: at each scrape a collector reads the counts that listeners, queue and scheduler keep anyway, so
an app pays for metrics while somebody looks.  Labels are bounded by the app: its topics, its subscription groups, the
methods of a scheduler, and the partitions it holds; beyond `MOST_SERIES` of these, a topic's lag is told in one sum.
"""

from __future__ import annotations

import time
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from fairlead.streams.calling import BOUNDS
from fairlead.streams.statistics import statistics_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client import Metric

    from fairlead.streams.app import StreamApp
    from fairlead.streams.runtime import Runtime
    from fairlead.streams.statistics import Statistics

PREFIX = "fairlead_streams_"
MOST_SERIES = 2000  # partitions with a lag of their own
ALL = "all"  # stands for the number of a partition where these are too many

Rows = list[tuple[list[str], float]]


class StreamMetrics:
    """A collector over one app: register it with `prometheus_client`, or `render` it.

    >>> from prometheus_client import CollectorRegistry
    >>> from fairlead.streams import StreamApp
    >>> from fairlead.testing.streams import MemoryBroker
    >>> CollectorRegistry().register(StreamMetrics(StreamApp(broker=MemoryBroker(), group="billing")))
    """

    def __init__(self, app: StreamApp) -> None:
        self._app = app

    def render(self) -> tuple[bytes, str]:
        """Write everything; return the text and its content type."""
        return generate_latest(self), CONTENT_TYPE_LATEST

    def collect(self) -> Iterator[Metric]:
        """Tell everything, as a registry of one collector does."""
        runtime = self._app.started
        up = runtime is not None and not runtime.stopped
        yield _gauge("up", "Whether the app consumes (1).", [([], up)])
        yield _gauge(
            "workers", "Jobs that may run at once.", [([], self._app.settings.concurrency)]
        )
        if runtime is None:
            return
        figures = statistics_of(runtime)
        yield from _queue(runtime, figures)
        yield from _lag(figures)
        yield from _by_topic(runtime)
        yield from _by_group(runtime, figures)
        yield from _scheduler(runtime, figures)


def _queue(runtime: Runtime, figures: Statistics) -> Iterator[Metric]:
    yield _gauge("busy", "Jobs that workers have now.", [([], figures.busy)])
    yield _gauge("enqueued", "Jobs that wait for a worker.", [([], figures.enqueued)])
    yield _counter(
        "handed_back", "Queued jobs given up because the app stops.", [([], figures.handed_back)]
    )
    topics = runtime.topics
    in_flight = dict.fromkeys(topics, 0)
    for job in runtime.queue.given():
        in_flight[job.topic] += len(job.messages)
    counts, ages = dict.fromkeys(topics, 0), dict.fromkeys(topics, 0.0)
    now = time.monotonic()
    for job, since in runtime.withheld():
        counts[job.topic] += 1
        ages[job.topic] = max(ages[job.topic], now - since)
    for name, text, values in (
        ("in_flight", "Records handed to the scheduler and not done yet.", in_flight),
        ("withheld", "Jobs that the scheduler has not let go.", counts),
        ("withheld_oldest_seconds", "Since when the oldest of them is withheld.", ages),
    ):
        yield _gauge(name, text, [([topic], value) for topic, value in values.items()], ["topic"])


def _lag(figures: Statistics) -> Iterator[Metric]:
    held = [one for group in figures.groups.values() for one in group.partitions]
    known = [(one.tp.topic, str(one.tp.partition), one.lag) for one in held if one.lag is not None]
    if len(known) > MOST_SERIES:
        sums: dict[str, int] = {}
        for topic, _, lag in known:
            sums[topic] = sums.get(topic, 0) + lag
        known = [(topic, ALL, lag) for topic, lag in sums.items()]
    rows: Rows = [([topic, partition], lag) for topic, partition, lag in sorted(known)]
    yield _gauge(
        "lag", "Offsets written and not done yet, of what is held.", rows, ["topic", "partition"]
    )


def _by_topic(runtime: Runtime) -> Iterator[Metric]:
    held = dict.fromkeys(runtime.topics, 0)
    buffered = dict.fromkeys(runtime.topics, 0)
    burying = dict.fromkeys(runtime.topics, 0)
    counts = {}
    for listener in runtime.listeners.values():
        counts.update(listener.counts.topics)
        with listener.lock:
            for one in listener.holdings.values():
                held[one.tp.topic] += 1
                buffered[one.tp.topic] += one.partition.buffered
                burying[one.tp.topic] += one.partition.burying
    for name, text, values in (
        ("partitions", "Partitions held.", held),
        ("buffered", "Records read that are in no job yet.", buffered),
        ("dead_letters_waiting", "Dead letters that are not stored yet.", burying),
    ):
        yield _gauge(name, text, [([topic], value) for topic, value in values.items()], ["topic"])
    for name, text, count in (
        ("read", "Records read.", "records"),
        ("consumed", "Records done: their call of consume returned.", "consumed"),
        ("calls", "Calls of consume that have ended.", "calls"),
        ("consume_seconds", "Seconds that these calls took.", "seconds"),
        ("failures", "Calls of consume that raised.", "failures"),
        ("retries", "Failures after which the records are tried again.", "retries"),
        ("dead_letters", "Records written to a dead-letter topic.", "dead_letters"),
        (
            "dead_letters_filed",
            "Records written to a file, because their dead-letter topic did not take them.",
            "dead_letters_filed",
        ),
        (
            "dead_letters_skipped",
            "Records skipped, because their dead-letter topic did not take them.",
            "dead_letters_skipped",
        ),
    ):
        rows = [([topic], getattr(one, count)) for topic, one in counts.items()]
        yield _counter(name, text, rows, ["topic"])


def _by_group(runtime: Runtime, figures: Statistics) -> Iterator[Metric]:
    groups = figures.groups
    for name, text, value in (
        ("group_blocked", "Whether work of the group keeps it from being polled.", "blocked"),
        ("group_polled_seconds", "Since when the group was not polled.", "polled_ago"),
    ):
        rows = [([key], float(getattr(one, value))) for key, one in groups.items()]
        yield _gauge(name, text, rows, ["group"])
    still = time.monotonic()
    yield _gauge(
        "listener_still_seconds",
        "Since the last turn of the listener's loop.",
        [([key], max(0.0, still - one.beat_at)) for key, one in runtime.listeners.items()],
        ["group"],
    )
    for name, text, value in (
        ("commits", "Commits that were stored.", "commits"),
        ("commits_refused", "Commits that were refused, to be tried again.", "refused_commits"),
        ("rebalances", "Times that partitions came or went.", "rebalances"),
        ("resets", "Times that the group started anew after a failure.", "resets"),
    ):
        yield _counter(
            name, text, [([key], getattr(one, value)) for key, one in groups.items()], ["group"]
        )


def _scheduler(runtime: Runtime, figures: Statistics) -> Iterator[Metric]:
    family = HistogramMetricFamily(
        PREFIX + "scheduler_seconds", "Time inside the scheduler's methods.", labels=["method"]
    )
    bounds = [*map(repr, BOUNDS), "+Inf"]
    for method, timing in sorted(runtime.calls.timings.items()):
        buckets = list(zip(bounds, accumulate(timing.counts), strict=True))
        family.add_metric([method], buckets, timing.seconds)
    yield family
    hanging = runtime.calls.hanging()
    yield _gauge(
        "scheduler_hanging_seconds",
        "For how long a call of the scheduler has not returned.",
        [([], 0.0 if hanging is None else hanging[1])],
    )
    yield _gauge(
        "scheduler_away",
        "Whether a call of the scheduler hangs, or did until a moment ago, so that jobs go round it.",
        [([], figures.scheduler_away)],
    )
    yield _counter(
        "scheduler_hangs",
        "Times that a call of the scheduler hung.",
        [([], figures.scheduler_hangs)],
    )
    yield _counter(
        "scheduler_raised", "Calls of the scheduler that raised.", [([], figures.scheduler_raised)]
    )
    yield _counter("scheduler_slow", "Calls that took over 100 ms.", [([], figures.scheduler_slow)])
    yield _counter(
        "withheld_reports",
        "Warnings that a job was withheld past withheld_limit.",
        [([], runtime.withheld_reports)],
    )


def _gauge(
    name: str, text: str, rows: Iterable[tuple[list[str], float]], labels: Iterable[str] = ()
) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=list(labels))
    for values, value in rows:
        family.add_metric(values, float(value))
    return family


def _counter(
    name: str, text: str, rows: Iterable[tuple[list[str], float]], labels: Iterable[str] = ()
) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text, labels=list(labels))
    for values, value in rows:
        family.add_metric(values, value)
    return family
