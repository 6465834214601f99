"""The metrics of flows in Prometheus' text format, read when somebody looks."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from fairlead.capacities import TokenBucket
from fairlead.flows.counts import BOUNDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import Metric

    from fairlead.flows.point import Point
    from fairlead.flows.points import Points
    from fairlead.ledger.ledger import Ledger

PREFIX = "fairlead_flows_"


def render(points: Points) -> tuple[bytes, str]:
    """Write everything; return the text and its content type."""
    return generate_latest(_Snapshot(points)), CONTENT_TYPE_LATEST


def families(points: Points) -> Iterator[Metric]:
    """Tell everything, for whoever writes it together with others."""
    return _Snapshot(points).collect()


class _Snapshot:
    """What a scrape collects from: a registry of one collector."""

    def __init__(self, points: Points) -> None:
        self._points = points

    def collect(self) -> Iterator[Metric]:
        points = list(self._points.points.values())
        yield from _tokens(points)
        yield from _counters(points)
        yield _waits(points)
        yield from _gauges(points)
        yield _alerts(points)
        unknown = CounterMetricFamily(
            PREFIX + "unknown_control_points",
            "Flows that nothing limits.",
            labels=["control_point"],
        )
        for name, count in dict(self._points.unknown).items():
            unknown.add_metric([name], count)
        yield unknown
        if self._points.ledger is not None:
            yield from _ledger(self._points.ledger)


def _tokens(points: list[Point]) -> Iterator[Metric]:
    labels = ["control_point", "workload"]
    families = [
        CounterMetricFamily(PREFIX + f"{kind}_tokens", text, labels=labels)
        for kind, text in (
            ("incoming", "Tokens asked for and answered."),
            ("accepted", "Tokens granted."),
            ("rejected", "Tokens refused."),
        )
    ]
    for point in points:
        by_name: dict[str, list[float]] = {}
        for workload in list(point.counts.workloads.values()):
            sums = by_name.setdefault(workload.name, [0.0, 0.0])
            sums[0] += workload.accepted_tokens
            sums[1] += workload.rejected_tokens
        for name, (accepted, rejected) in by_name.items():
            for family, value in zip(
                families, (accepted + rejected, accepted, rejected), strict=True
            ):
                family.add_metric([point.name, name], value)
    yield from families


def _counters(points: list[Point]) -> Iterator[Metric]:
    flows = CounterMetricFamily(
        PREFIX + "decisions", "Flows by what became of them.", labels=["control_point", "decision"]
    )
    for point in points:
        accepted = sum(one.accepted_flows for one in list(point.counts.workloads.values()))
        flows.add_metric([point.name, "accepted"], accepted)
        for reason, count in point.counts.reasons.items():
            flows.add_metric([point.name, reason], count)
    yield flows
    yield from (
        _family(CounterMetricFamily, name, text, points, read)
        for name, text, read in (
            ("ends", "Flows whose work is done.", lambda one: one.counts.ended_flows),
            ("failures", "Flows whose work failed.", lambda one: one.counts.failed_flows),
            ("late_ends", "Ends after others had the tokens.", lambda one: one.counts.late_ends),
            ("forgotten", "Flows that nobody ended.", lambda one: one.counts.forgotten),
            (
                "preempted_tokens",
                "Tokens that flows overtook, against the order of arrival.",
                lambda one: one.counts.preempted_tokens,
            ),
            (
                "delayed_tokens",
                "Tokens that overtook flows, against the order of arrival.",
                lambda one: one.counts.delayed_tokens,
            ),
            ("on_time", "Flows that waited and kept their place.", lambda one: one.counts.on_time),
            (
                "bad_labels",
                "Labels that could not be used.",
                lambda one: sum(one.resolver.bad_labels.values()),
            ),
            (
                "missing_labels",
                "Labels that were not given.",
                lambda one: sum(one.resolver.missing_labels.values()),
            ),
        )
    )


def _gauges(points: list[Point]) -> Iterator[Metric]:
    yield from (
        _family(GaugeMetricFamily, name, text, points, read)
        for name, text, read in (
            ("queue_length", "Flows that wait.", lambda one: one.gate.waiting),
            ("queued_tokens", "Tokens that wait.", lambda one: one.queued),
            ("in_flight", "Flows whose work is not done.", lambda one: one.in_flight),
            ("bucket_level", "Tokens in the quota's one bucket.", _level),
            ("load_multiplier", "Part of the recent load that passes; absent: all.", _multiplier),
            (
                "wanted_load_multiplier",
                "Part of the recent load that would pass if nothing ran dry; absent: all.",
                _wanted,
            ),
            (
                "fairness_index",
                "Jain's index of service by weight.",
                lambda one: one.counts.fairness_index(),
            ),
            ("concurrency_limit", "Tokens that may be in flight.", _limit),
        )
    )


def _alerts(points: list[Point]) -> Metric:
    text = "Whether less than the recent load passes, or would in a dry run (1)."
    labels = ["control_point", "controller", "severity"]
    family = GaugeMetricFamily(PREFIX + "load_alert", text, labels=labels)
    for point in points:
        said = point.settings.load
        if said is not None and point.load is not None:
            alerts = point.load.alerts(point.runtime.now())
            family.add_metric([point.name, said.controller, said.alerter.severity], alerts)
    return family


def _ledger(ledger: Ledger) -> Iterator[Metric]:
    """How this process stands with the ledger: whether it is connected, what it was lent, what went wrong."""
    said = ledger.describe()
    text = "Whether limits are kept in common now (1), or each by its own policy (0)."
    connected = said["state"] == "connected"
    yield GaugeMetricFamily(PREFIX + "ledger_connected", text, value=connected)
    text = "Processes that share the limits."
    yield GaugeMetricFamily(PREFIX + "ledger_live_nodes", text, value=said["live_nodes"])
    for name, key, text in (
        ("ledger_round_trips", "round_trips", "Exchanges with the ledger."),
        ("ledger_losses", "losses", "Times the ledger was lost."),
        ("ledger_lost_seconds", "lost_seconds", "Seconds without the ledger."),
    ):
        yield CounterMetricFamily(PREFIX + name, text, value=said[key])
    for key, text in (
        ("asked", "Tokens asked of the ledger."),
        ("granted", "Tokens it lent."),
        ("returned", "Tokens given back to it."),
        ("faults", "Answers that could not be used."),
        ("switches", "Times a limit went over to the policy for a loss."),
    ):
        family = CounterMetricFamily(PREFIX + "ledger_" + key, text, labels=["limit"])
        for limit in said["limits"]:
            family.add_metric([limit["name"]], limit[key])
        yield family
    text = "Whether another process has other settings for a limit (1)."
    differing = GaugeMetricFamily(PREFIX + "ledger_differing", text, labels=["limit"])
    for limit in said["limits"]:
        differing.add_metric([limit["name"]], bool(limit["other_rule"]))
    yield differing


def _level(point: Point) -> float | None:
    quota = point.parts.quota
    unkeyed = point.settings.quota is not None and point.settings.quota.limit_by_label_key is None
    return quota.level(point.runtime.now()) if unkeyed and isinstance(quota, TokenBucket) else None


def _multiplier(point: Point) -> float | None:
    decision = point.load.decision if point.load is not None else None
    return decision.load_multiplier if decision is not None else None


def _wanted(point: Point) -> float | None:
    decision = point.load.decision if point.load is not None else None
    return decision.wanted if decision is not None else None


def _limit(point: Point) -> float | None:
    return getattr(point.parts.concurrency, "limit", None)


def _waits(points: list[Point]) -> Metric:
    family = HistogramMetricFamily(
        PREFIX + "wait_seconds", "Seconds that accepted flows waited.", labels=["control_point"]
    )
    bounds = (*(repr(bound) for bound in BOUNDS), "+Inf")
    for point in points:
        counts = list(point.counts.waits)
        accepted = sum(one.accepted_flows for one in list(point.counts.workloads.values()))
        counts[0] += accepted - sum(counts)  # those that did not wait at all
        buckets = list(zip(bounds, accumulate(counts), strict=True))
        family.add_metric([point.name], buckets, point.counts.wait_total)
    return family


def _family(
    kind: type[Metric],
    name: str,
    text: str,
    points: list[Point],
    read: Callable[[Point], float | None],
) -> Metric:
    family = kind(PREFIX + name, text, labels=["control_point"])  # type: ignore[call-arg]
    for point in points:
        value = read(point)
        if value is not None:
            family.add_metric([point.name], value)  # type: ignore[attr-defined]
    return family
