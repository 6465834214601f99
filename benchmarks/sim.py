"""The simulator: how many tickets pass in a second, and how near it comes to a real door in real time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import cache, partial
from time import process_time
from typing import Any, NamedTuple

from benchmarks.harness import Measure, Table, Target
from benchmarks.sizes import Sizes
from fairlead import Scheduler
from fairlead.sim import Arrival, Scenario, read_policy, read_scenario, simulate

CLASS_PRIORITIES = (("bulk", 10), ("default", 50), ("interactive", 90))
SLOTS = 12
LOAD = 0.95
SERVICE = 0.1  # seconds, on average

FIFO, AGING, CLASSES = "first come, first served", "tasks: priorities that age", "three classes"
FAIR, GATEWAY, FLOWS = "fair among 100 tenants", "gateway: classes, reservations", "flows"
STREAMS, KEYED = "streams: three topics", "streams: three topics, by key"
PARTITIONS = 12  # of each topic


def topics(**more: Any) -> dict[str, Any]:
    """Each class is a topic, and each tenant a key: it chooses the partition."""
    return {
        name: {"priority": priority, "partitions": PARTITIONS, **more}
        for name, priority in CLASS_PRIORITIES
    }


POLICIES: dict[str, dict[str, Any]] = {
    FIFO: {"policy": "fifo", "capacity": {"slots": SLOTS}},
    AGING: {"preset": "tasks", "max_concurrency": SLOTS},
    CLASSES: {
        "policy": {"classes": {"bulk": {"starvation": "30s"}, "default": {}, "interactive": {}}},
        "capacity": {"slots": SLOTS},
    },
    FAIR: {"policy": {"fair": {"by": "tenant"}}, "capacity": {"slots": SLOTS}},
    GATEWAY: {
        "preset": "gateway",
        "capacity": SLOTS,
        "classes": {
            "interactive": {"reserved_floor": 2, "can_preempt": False},
            "system": {"reserved_floor": 1, "can_preempt": False},
            "bulk": {"queue_size": 1_000_000, "queue_timeout": "1d"},
            "default": {"queue_size": 1_000_000, "queue_timeout": "1d"},
        },
    },
    FLOWS: {"preset": "flows", "concurrency": {"max_concurrency": SLOTS}},
    STREAMS: {"preset": "streams", "concurrency": SLOTS, "topics": topics()},
    KEYED: {"preset": "streams", "concurrency": SLOTS, "topics": topics(by_key=True)},
}
TARGET = 10.0  # µs a ticket: 100,000 a second


def load(count: int) -> Scenario:
    """Three classes, a hundred tenants, priorities: nearly all that the slots can do."""
    rate = LOAD * SLOTS / SERVICE
    service = {"exponential": f"{SERVICE * 1000:g}ms"}
    sources = [
        {
            "kind": "poisson",
            "rate": rate / 3,
            "class": name,
            "priority": priority,
            "tenants": [f"tenant-{number}" for number in range(100)],
            "service": service,
        }
        for name, priority in CLASS_PRIORITIES
    ]
    return read_scenario({"count": count, "arrivals": sources})


def passes(policy: dict[str, Any], count: int) -> float:
    """CPU µs a ticket: from the scenario to the result, drawing and rows and all."""
    scenario, spec = load(count), read_policy(policy)
    began = process_time()
    result = simulate(scenario, spec, 1)
    took = process_time() - began
    if result.totals["done"] != count:
        raise AssertionError(f"of {count} tickets {result.totals['done']} were done")
    return took / count * 1e6


def drawing(count: int) -> float:
    """CPU µs an arrival, of the above."""
    scenario = load(count)
    began = process_time()
    scenario.arrivals(1)
    return (process_time() - began) / count * 1e6


# Fidelity

DAY = 40.0  # seconds of the scenario
OPTIONS: dict[str, Any] = {"max_concurrency": 40, "starvation_timeout": 5.0}


def crowd(scale: float, seed: int) -> list[Arrival]:
    """Half of what forty slots can do, and two bursts beyond; all times multiplied by the scale."""
    service = {"lognormal": {"median": "600ms", "p95": "2s"}}
    sources = [
        {"kind": "poisson", "rate": 16, "priority": 50, "service": service},
        {"kind": "poisson", "rate": 9, "priority": 90, "service": service},
        *(
            {"kind": "burst", "size": 400, "at": at * DAY, "priority": 10, "service": service}
            for at in (0.05, 0.5)
        ),
    ]
    drawn = read_scenario({"seconds": DAY, "arrivals": sources}).arrivals(seed)
    return [one._replace(at=one.at * scale, service=one.service * scale) for one in drawn]


class Seen(NamedTuple):
    """What happened to one at the real door: seconds from the beginning."""

    came: float
    started: float
    ended: float


async def real(given: Sequence[Arrival], options: dict[str, Any]) -> list[Seen]:
    """Let all of them come to the real door in real time."""
    seen: dict[int, Seen] = {}
    loop = asyncio.get_running_loop()
    began = loop.time() + 0.05
    tasks: list[asyncio.Task[None]] = []
    async with Scheduler.bounded(**options) as scheduler:

        async def visit(number: int, arrival: Arrival) -> None:
            came = loop.time() - began

            async def work() -> None:
                started = loop.time() - began
                await asyncio.sleep(arrival.service)
                seen[number] = Seen(came, started, loop.time() - began)

            await scheduler.submit(arrival.priority, work)

        def come(number: int, arrival: Arrival) -> None:
            tasks.append(loop.create_task(visit(number, arrival)))

        for number, arrival in enumerate(given):
            loop.call_at(began + arrival.at, come, number, arrival)
        await asyncio.sleep(given[-1].at + 0.1)
        await asyncio.gather(*tasks)
    return [seen[number] for number in range(len(given))]


def simulated(given: Sequence[Arrival], options: dict[str, Any]) -> list[float]:
    """The wait of each in the simulator."""
    policy = read_policy({"preset": "tasks", **options})
    rows = simulate(Scenario.of(given), policy, 0).tickets
    return [row.wait or 0.0 for row in rows]


def percentile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


class Fidelity:
    """One run of the door for all the percentiles of a round; the simulator before it, and on its record."""

    def __init__(self, scale: float) -> None:
        self.given = crowd(scale, 7)
        self.options = OPTIONS | {"starvation_timeout": OPTIONS["starvation_timeout"] * scale}
        self.foretold = simulated(self.given, self.options)
        self.rounds: dict[str, int] = {}
        self.seen = cache(self._run)

    def _run(self, turn: int) -> tuple[list[float], list[float]]:
        """The waits at the door, and those the simulator finds in the record of that run."""
        seen = asyncio.run(real(self.given, self.options))
        record = [
            one._replace(at=what.came, service=what.ended - what.started)
            for one, what in zip(self.given, seen, strict=True)
        ]
        return [what.started - what.came for what in seen], simulated(record, self.options)

    def off(self, name: str, part: float, priority: int, recorded: bool) -> float:
        """Percent between the percentile at the door and in the simulator."""
        self.rounds[name] = turn = self.rounds.get(name, 0) + 1
        chosen = [
            number
            for number, arrival in enumerate(self.given)
            if priority in (ALL, arrival.priority)
        ]
        waits, replayed = self.seen(turn)
        told = replayed if recorded else self.foretold
        here = percentile([waits[number] for number in chosen], part)
        there = percentile([told[number] for number in chosen], part)
        return abs(here - there) / max(there, 1e-3) * 100


ALL, LOW, MIDDLE = -1, 10, 50
PARTS = {
    "p50 of all": (0.50, ALL),
    "p90 of all": (0.90, ALL),
    "p99 of all": (0.99, ALL),
    "p50 of priority 10": (0.50, LOW),
    "p95 of priority 10": (0.95, LOW),
    "p95 of priority 50": (0.95, MIDDLE),
}


def tables(sizes: Sizes) -> Iterator[Table]:
    count = sizes.simulated
    cases: dict[str, Measure] = {
        name: partial(passes, policy, count) for name, policy in POLICIES.items()
    }
    yield Table(
        title=f"Simulator: {count:,} tickets",
        unit="µs CPU per ticket, drawn, simulated and written down",
        cases=cases | {"of which drawing": partial(drawing, count)},
        base=FIFO,
        targets=[Target(name, TARGET) for name in (FIFO, AGING, CLASSES)],
        notes=[
            "10 µs are 100,000 tickets per second. One core; slots "
            f"{SLOTS}, load {LOAD:.0%}, exponential work."
        ],
        at_most=3,
    )
    scale = sizes.storm / 5
    fidelity = Fidelity(scale)
    waits = ", ".join(
        f"{name} {percentile(fidelity.foretold, part):.2f} s"
        for name, (part, priority) in PARTS.items()
        if priority == ALL
    )
    kinds = {"foretold": False, "replayed from its record": True}
    comparisons: dict[str, Measure] = {}
    for kind, recorded in kinds.items():
        for name, said in PARTS.items():
            full = f"{name}, {kind}"
            comparisons[full] = partial(fidelity.off, full, *said, recorded)
    yield Table(
        title="Simulator: waits against the real tasks door in real time",
        unit="% between the two, of the same arrivals",
        cases=comparisons,
        targets=[Target(name, 5.0) for name in comparisons],
        notes=[
            f"{len(fidelity.given):,} arrivals in {DAY * scale:g} s at forty slots, two bursts among "
            f"them; simulated {waits}. Foretold: from the scenario alone, before the run; there a "
            "machine whose timers are late adds its own. Replayed: from when work came and how long "
            "it took in that very run."
        ],
        at_most=3,
    )
