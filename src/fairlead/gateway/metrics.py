"""What a gateway counts, and how a scrape reads it.

Counting is one addition to a plain list, by rank.  What can be read elsewhere (in flight, depth, capacity) is read when
somebody looks, not kept.  Tenants are labels only as far as `tenant_labels` lets them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from itertools import accumulate
from time import monotonic
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from fairlead.core.ticket import NEW, REFUSED, WITHDRAWN, Outcome, Ticket
from fairlead.gateway.settings import CLASSES
from fairlead.gateway.tenant_labels import OTHER, TenantLabels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from prometheus_client import Metric

    from fairlead.gateway.admission import Admission
    from fairlead.gateway.exchange import Exchange
    from fairlead.gateway.pool import Pool

PREFIX = "fairlead_gateway_"
BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

# How asking for a slot ended ...
ADMITTED = "admitted"
QUEUE_FULL = "rejected_queue_full"
QUEUE_TIMEOUT = "rejected_queue_timeout"
NO_CAPACITY = "rejected_no_capacity"
CLIENT_GONE = "client_cancelled"  # 499: it left while it waited
# ... and how holding one did.  Admitted requests end in exactly one of these.
COMPLETED = "completed"
FAILED = "failed"
DISCONNECTED = "disconnected"
PREEMPTED = "preempted"
# What that means to a gate.
MEANING = {
    COMPLETED: Outcome.OK,
    FAILED: Outcome.FAILED,
    DISCONNECTED: Outcome.IGNORED,
    PREEMPTED: Outcome.OK,
}

# Read of each pool and class when somebody looks: the fields of `pool.Reading`.
GAUGES = {
    "inflight": "Requests that hold a slot.",
    "queue_depth": "Requests that wait.",
    "queue_limit": "Requests that may wait.",
    "reserved": "Slots reserved, after scaling and before lending.",
    "reserved_asked": "Slots that reservations ask for, before scaling.",
    "class_pressure": "How near a class is to its limits, 0 to 1.",
}


class Histogram:
    """Observations of one class: how many fell in each bucket, and their sum."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one."""
        self.counts[bisect_left(BOUNDS, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """The buckets as Prometheus has them: each counts all beneath it too."""
        bounds = (*(repr(bound) for bound in BOUNDS), "+Inf")
        return list(zip(bounds, accumulate(self.counts), strict=True))


class Metrics:
    """All counters of a gateway."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        classes = range(len(CLASSES))
        self.waited = [Histogram() for _ in classes]  # of those admitted after a wait
        self.first_byte = [Histogram() for _ in classes]
        self.refused: Counter[tuple[int, str]] = Counter()
        self.completed = [0 for _ in classes]
        self.ended: Counter[tuple[int, str]] = Counter()
        self.preemptions: Counter[tuple[int, int]] = Counter()
        self.promotions = [0 for _ in classes]
        self.unknown: Counter[str] = Counter()
        # Counted for many a request: a Counter takes three times as long.
        self.clamps: defaultdict[tuple[str, int, int], int] = defaultdict(int)
        self.tenants: defaultdict[str, int] = defaultdict(int)
        self.labels = TenantLabels(self.tenants, self._merge)
        self.refused_requests: Counter[str] = Counter()  # by code; they never asked for a slot
        self.reloads = 0
        self.refused_reloads = 0
        # How many backends are in which state, where there is a fleet.
        self.backends: Callable[[], Mapping[str, int]] | None = None
        # Where a watched gateway notes the requests that no gate has decided on.
        self.ledger: Callable[[Ticket, float], object] | None = None

    def _merge(self, tenant: str) -> None:
        """Count what a tenant did that has no label any more among the others."""
        for counts in (self.tenants, self.unknown):
            if tenant in counts:
                counts[OTHER] += counts.pop(tenant)
        for key in [key for key in self.clamps if key[0] == tenant]:
            self.clamps[OTHER, key[1], key[2]] += self.clamps.pop(key)

    def admitted(self, rank: int) -> int:
        """Tell how many requests of a class have been given a slot."""
        inflight = sum(pool.capacity.inflight[rank] for pool in self._admission.pools.values())
        ended = sum(self.ended[rank, outcome] for outcome in (FAILED, DISCONNECTED, PREEMPTED))
        return inflight + self.completed[rank] + ended

    # Each request that gets no slot is counted by exactly one of these three, once.

    def turn_away(self, exchange: Exchange, outcome: str, why: str) -> None:
        """Count a request that wanted a slot; note its end where its gate has not decided it."""
        exchange.outcome = outcome
        self.refused[exchange.rank, outcome] += 1
        if exchange.state is NEW or exchange.moves:
            exchange.state = WITHDRAWN if outcome is CLIENT_GONE else REFUSED
            self._note(exchange, why, getattr(exchange, "pool_of_slots", None))

    def refuse(self, exchange: Exchange, code: str, why: str) -> None:
        """Count a request that was answered with an error before it asked for a slot."""
        exchange.outcome = f"rejected_{code}"
        self.refused_requests[code] += 1
        exchange.state = REFUSED
        self._note(exchange, f"{code}: {why}")

    def refuse_unread(self, code: str) -> None:
        """Count what was refused before it was a request of HTTP with a class."""
        self.refused_requests[code] += 1
        ticket = Ticket()
        ticket.state = REFUSED
        self._note(ticket, code)

    def _note(self, ticket: Ticket, why: str, pool: Pool | None = None) -> None:
        """Note an end that no gate has decided: in the ledger of the pool asked, or of the door if none was."""
        ticket.reason = why
        noting = None if pool is None else getattr(pool.gate, "turn_away", None)
        if pool is not None and noting is not None:
            pool.runtime.enter("gateway")  # a gate that nothing was offered to has no clock yet
            noting(ticket, pool.runtime.clock())
        elif self.ledger is not None:
            self.ledger(ticket, monotonic())

    def count_refused_reload(self) -> None:
        """Count a configuration that was read and not applied."""
        self.refused_reloads += 1

    def render(self) -> tuple[bytes, str]:
        """Write everything in Prometheus' text format."""
        return generate_latest(self), CONTENT_TYPE_LATEST

    def collect(self) -> Iterator[Metric]:
        """Read everything at this moment, as a registry of prometheus_client would."""
        # Of a label that changed hands while a request of its tenant was on its way.
        tenants = {*self.tenants, *self.unknown, *(key[0] for key in self.clamps)}
        for tenant in tenants - {OTHER}:
            if tenant not in self.labels:
                self._merge(tenant)
        yield from self._counters()
        yield _histogram(
            "queue_wait_seconds", "Seconds that admitted requests waited.", self._waits()
        )
        yield _histogram(
            "time_to_first_byte_seconds",
            "Seconds from admission to the first byte of the response's body.",
            self.first_byte,
        )
        yield from self._gauges()

    def _waits(self) -> list[Histogram]:
        merged = []
        for rank, waited in enumerate(self.waited):
            histogram = Histogram()
            histogram.total = waited.total
            histogram.counts = list(waited.counts)
            histogram.counts[0] += self.admitted(rank) - sum(waited.counts)  # those at once
            merged.append(histogram)
        return merged

    def _counters(self) -> Iterator[Metric]:
        admissions = _counter("admissions", "How asking for a slot ended.", "class", "outcome")
        ends = _counter("requests", "How admitted requests ended.", "class", "outcome")
        for rank, name in enumerate(CLASSES):
            admissions.add_metric([name, ADMITTED], self.admitted(rank))
            for outcome in (QUEUE_FULL, QUEUE_TIMEOUT, NO_CAPACITY, CLIENT_GONE):
                admissions.add_metric([name, outcome], self.refused[rank, outcome])
            admissions.add_metric([name, PREEMPTED], self.ended[rank, PREEMPTED])
            ends.add_metric([name, COMPLETED], self.completed[rank])
            for outcome in (FAILED, DISCONNECTED, PREEMPTED):
                ends.add_metric([name, outcome], self.ended[rank, outcome])
        yield admissions
        yield ends
        preemptions = _counter("preemptions", "Requests preempted.", "victim_class", "by_class")
        for (victim, by), count in self.preemptions.items():
            preemptions.add_metric([CLASSES[victim], CLASSES[by]], count)
        yield preemptions
        promotions = _counter("promotions", "Starved requests let past higher classes.", "class")
        for rank, name in enumerate(CLASSES):
            promotions.add_metric([name], self.promotions[rank])
        yield promotions
        clamps = _counter(
            "clamps", "Classes lowered to the tenant's ceiling.", "tenant", "requested", "effective"
        )
        for (tenant, requested, effective), count in self.clamps.items():
            clamps.add_metric([tenant, CLASSES[requested], CLASSES[effective]], count)
        yield clamps
        text = "Priorities no class is called by."
        yield _by_label("unknown_priorities", text, "tenant", self.unknown)
        yield _by_label("tenant_requests", "Requests by tenant.", "tenant", self.tenants)
        text = "Requests refused before they asked for a slot."
        yield _by_label("refused_requests", text, "code", self.refused_requests)
        reloads = _counter("reloads", "Times the configuration file was read again.", "outcome")
        reloads.add_metric(["applied"], self.reloads)
        reloads.add_metric(["refused"], self.refused_reloads)
        yield reloads

    def _gauges(self) -> Iterator[Metric]:
        pools = list(self._admission.pools.values())
        for name, text in GAUGES.items():
            family = GaugeMetricFamily(PREFIX + name, text, labels=["class", "pool"])
            for pool in pools:
                for rank, label in enumerate(CLASSES):
                    family.add_metric([label, pool.name], getattr(pool.reading(rank), name))
            yield family
        capacity = GaugeMetricFamily(PREFIX + "capacity", "Slots of the fleet.", labels=["pool"])
        use = GaugeMetricFamily(PREFIX + "utilization", "Slots in use / slots.", labels=["pool"])
        for pool in pools:
            capacity.add_metric([pool.name], pool.capacity.total)
            use.add_metric([pool.name], pool.utilization())
        yield capacity
        yield use
        yield from self._tenant_slots(pools)
        if self.backends is not None:
            text = "Backends by state."
            states = GaugeMetricFamily(PREFIX + "backends", text, labels=["state"])
            for state, count in self.backends().items():
                states.add_metric([state], count)
            yield states
        if self._admission.sharing is not None:
            yield from _shared(self._admission.sharing.describe())
        fallback = bool(self._admission.plain)
        text = "Whether the plain limiter runs instead of classes."
        yield GaugeMetricFamily(PREFIX + "fallback_active", text, value=fallback)
        text = "Whether that is because the configuration is wrong."
        degraded = bool(self._admission.problems)
        yield GaugeMetricFamily(PREFIX + "degraded", text, value=degraded)

    def _tenant_slots(self, pools: Iterable[Pool]) -> Iterator[Metric]:
        """What tenants hold, in pools where they are bounded, and may hold; those without a label count together."""
        bounded = [pool for pool in pools if pool.room.tenants.bounded]
        if not bounded:
            return
        held = GaugeMetricFamily(
            PREFIX + "tenant_inflight", "Slots that a tenant holds.", labels=["tenant", "pool"]
        )
        most = GaugeMetricFamily(
            PREFIX + "tenant_max_slots", "Slots that it may hold.", labels=["tenant", "pool"]
        )
        for pool in bounded:
            tenants, counts = pool.room.tenants, Counter[str]()
            for tenant, slots in tenants.held().items():
                label = str(tenant)
                counts[label if label in self.labels else OTHER] += slots
            for label, slots in counts.items():
                held.add_metric([label, pool.name], slots)
                if label is not OTHER and (bound := tenants.limit(label)) is not None:
                    most.add_metric([label, pool.name], bound)
        yield held
        yield most


def _shared(said: dict[str, Any]) -> Iterator[Metric]:
    """How the ledger of a shared capacity stands."""
    for name, text, value in (
        (
            "connected",
            "Whether the ledger of the shared capacity answers.",
            said["state"] == "connected",
        ),
        ("gateways", "Processes that share the capacity and are alive.", said["live_nodes"]),
    ):
        yield GaugeMetricFamily(f"{PREFIX}shared_capacity_{name}", text, value=value)
    losses = _counter("shared_capacity_losses", "Times the ledger was lost.")
    losses.add_metric([], said["losses"])
    yield losses
    seconds = _counter("shared_capacity_lost_seconds", "Seconds without the ledger.")
    seconds.add_metric([], said["lost_seconds"])
    yield seconds


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(PREFIX + name, text, labels=labels)


def _by_label(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = _counter(name, text, label)
    for value, count in counts.items():
        family.add_metric([value], count)
    return family


def _histogram(name: str, text: str, by_rank: list[Histogram]) -> Metric:
    family = HistogramMetricFamily(PREFIX + name, text, labels=["class"])
    for rank, histogram in enumerate(by_rank):
        family.add_metric([CLASSES[rank]], histogram.buckets(), histogram.total)
    return family
