"""Ten times more than fits: who waits, who is refused and how fast, and how soon all is well again.

The product as users run it, `fairlead gateway --config`, in front of a backend that takes 200 ms for each request and
is allowed 20 at once: 100 requests a second.  A calm with interactive requests alone, then ten times what fits, most
of it bulk, then calm again.  Arrivals are random and do not wait for answers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic, sleep
from typing import NamedTuple

from benchmarks import gateway_plot
from benchmarks.gateway_kept import Shared
from benchmarks.gateway_processes import (
    PATIENCE,
    ROOT,
    Child,
    cpu_time,
    fairlead_gateway,
    kept_waiting,
    resident,
    server,
)
from benchmarks.harness import Measure, Table, Target
from benchmarks.sizes import Sizes

SLOTS = 20
SERVICE = 0.2  # seconds per request
FITS = SLOTS / SERVICE  # requests a second
OVERLOAD = 10
INTERACTIVE = 0.4 * FITS  # requests a second, all the time

CONFIG = """
listen: 127.0.0.1:0
admin: {{listen: 127.0.0.1:0}}
upstreams:
  - {{url: "{upstream}", capacity: {slots}}}
priority_scheduler:
  enabled: true
  default_max_class: interactive
  classes:
    system: {{reserved_floor: 0}}
    interactive: {{reserved_floor: 10}}
    default: {{reserved_per_slot: 0.0}}
    bulk: {{queue_size: 100}}
"""

CALM_P50, CALM_P99 = "interactive p50, calm", "interactive p99, calm"
STORM_P50, STORM_P99 = "interactive p50, overload", "interactive p99, overload"
BULK_P50, BULK_P99 = "bulk p50, served during overload", "bulk p99, served during overload"
REFUSED_P50, REFUSED_P99 = "429 p50, overload", "429 p99, overload"
RECOVERY = "recovery: load ends to all well"
COST = "CPU of the gateway, per request"
STOLEN = "the gateway ready to run but without a CPU, per second"
TIMES = (
    CALM_P50,
    CALM_P99,
    STORM_P50,
    STORM_P99,
    BULK_P50,
    BULK_P99,
    REFUSED_P50,
    REFUSED_P99,
    RECOVERY,
    COST,
    STOLEN,
)
OFFERED, FAST, SLOW = "offered", "interactive, 200", "bulk, 200"
TOLD, KILLED, OTHER = "refused, 429", "bulk preempted, 503", "anything else"
RATES = (OFFERED, FAST, SLOW, TOLD, KILLED, OTHER)
BEFORE, PEAK, GROWTH = "before", "peak", "growth"
MEMORY = (BEFORE, PEAK, GROWTH)


class Answer(NamedTuple):
    """One request, as its client saw it; times in seconds since the beginning."""

    kind: str
    due: float
    latency: float
    status: int


class Phases(NamedTuple):
    """When the overload begins and ends, and when the watching does."""

    storm: float
    calm_again: float
    end: float

    @classmethod
    def of(cls, storm: float) -> Phases:
        return cls(storm, 2 * storm, 2 * storm + max(0.8 * storm, 2.0))


def tables(sizes: Sizes) -> Iterator[Table]:
    """Three tables of the same runs: times, answers, memory."""
    shared = Shared(lambda number: experiment(number, sizes))

    def cases(names: Sequence[str]) -> dict[str, Measure]:
        return {name: shared.figure(name) for name in names}

    notes = [
        f"{FITS:.0f} requests a second fit ({SLOTS} slots, {SERVICE * 1e3:.0f} ms each); "
        f"{INTERACTIVE:.0f} interactive ones a second all the time, and {sizes.storm:g} s of overload.",
        "The latencies are the gateway's own only on a machine that nobody else uses: see the last line.",
        "All well: every bulk request is answered, and interactive ones take less than 1.5 times their calm p99.",
    ]
    if sizes.plot:
        notes.append(f"Drawn: {sizes.plot}.")
    yield Table(
        title=f"Overload: {OVERLOAD} times what fits, answers",
        unit="ms, as clients see it",
        cases=cases(TIMES),
        targets=[
            Target(STORM_P99, 2, (CALM_P99,)),
            Target(REFUSED_P99, 20),
            Target(RECOVERY, 5000),
        ],
        notes=notes,
        at_most=3,
    )
    yield Table(
        title="Overload: what became of the requests, in the runs of the table above",
        unit="requests a second during the overload",
        cases=cases(RATES),
        at_most=3,
    )
    yield Table(
        title="Overload: memory of the gateway, in the runs of the tables above",
        unit="MiB resident",
        cases=cases(MEMORY),
        targets=[Target(GROWTH, 32)],
        at_most=3,
    )


def experiment(number: int, sizes: Sizes) -> Mapping[str, float]:
    """Run it once, draw it if asked to, and tell its figures."""
    phases = Phases.of(sizes.storm)
    with server("backend", str(SERVICE)) as backend:
        config = CONFIG.format(upstream=backend.url, slots=SLOTS)
        with fairlead_gateway(config) as gateway:
            used, stolen = cpu_time(gateway.process), kept_waiting(gateway.process)
            answers, memory = storm(gateway, phases, number)
            used, stolen = (
                cpu_time(gateway.process) - used,
                kept_waiting(gateway.process) - stolen,
            )
    if sizes.plot and (ROOT / sizes.plot).parent.is_dir():
        (ROOT / sizes.plot).write_text(gateway_plot.draw(answers, phases, f"{OVERLOAD}× overload"))
    noise = {COST: used / len(answers) * 1e3, STOLEN: stolen / phases.end * 1e3}
    return {**noise, **figures(answers, memory, phases)}


def storm(gateway: Child, phases: Phases, seed: int) -> tuple[list[Answer], list[float]]:
    """Send everything; tell every answer, and the gateway's memory from moment to moment."""
    bulk = OVERLOAD * FITS - INTERACTIVE
    plan = {
        "seed": seed,
        "streams": [
            {"kind": "interactive", "rate": INTERACTIVE, "from": 0, "until": phases.end},
            {"kind": "bulk", "rate": bulk, "from": phases.storm, "until": phases.calm_again},
        ],
    }
    memory = [resident(gateway.process)]
    command = [sys.executable, "-m", "benchmarks.gateway_load", "storm"]
    command += [str(gateway.port), json.dumps(plan)]
    said = said_by(command, phases.end + PATIENCE, lambda: memory.append(resident(gateway.process)))
    return [Answer(*answer) for answer in json.loads(said)], memory


def said_by(command: Sequence[str], seconds: float, meanwhile: Callable[[], None]) -> str:
    """Run a command, looking at other things meanwhile; tell all it said.

    What it has said is whole only if it came to its end by itself: a storm that was cut short, or failed, is told as
    such and not read.
    """
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as client:
        told: list[str] = []
        talking = watch(client, told)
        by = monotonic() + seconds
        try:
            while talking() and monotonic() < by:
                sleep(0.1)
                meanwhile()
            if talking():
                raise RuntimeError(f"the storm did not end within {seconds:g} s")
            client.wait(PATIENCE)  # it has closed its mouth, and is about to go
        finally:
            client.kill()
    if client.returncode:
        raise RuntimeError(f"the storm failed, with code {client.returncode}")
    return "".join(told)


def watch(client: subprocess.Popen[str], told: list[str]) -> Callable[[], bool]:
    """Read what a process says beside other things; the function tells whether it still talks."""

    def read() -> None:
        if client.stdout is not None:
            told.append(client.stdout.read())

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread.is_alive


def percentile(values: Sequence[float], part: float) -> float:
    """The value that `part` of them do not exceed; in ms."""
    if not values:
        raise RuntimeError("there is nothing to take a percentile of")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] * 1e3


def figures(answers: Sequence[Answer], memory: Sequence[float], phases: Phases) -> dict[str, float]:
    """What the tables show."""
    calm = [one for one in answers if one.due < phases.storm]
    during = [one for one in answers if phases.storm <= one.due < phases.calm_again]
    fast_then = [one.latency for one in calm if one.status == 200]
    fast = [one.latency for one in during if one.kind == "interactive" and one.status == 200]
    slow = [one.latency for one in during if one.kind == "bulk" and one.status == 200]
    refused = [one.latency for one in during if one.status == 429]
    killed = [one for one in during if one.kind == "bulk" and one.status == 503]
    length = phases.calm_again - phases.storm
    calm_p99 = percentile(fast_then, 0.99)
    late = [
        one.due + one.latency
        for one in answers
        if one.due + one.latency > phases.calm_again
        and (one.kind == "bulk" or one.latency * 1e3 > 1.5 * calm_p99)
    ]
    recovery = max(late, default=phases.calm_again) - phases.calm_again
    served = len(fast) + len(slow) + len(refused) + len(killed)
    return {
        CALM_P50: percentile(fast_then, 0.5),
        CALM_P99: calm_p99,
        STORM_P50: percentile(fast, 0.5),
        STORM_P99: percentile(fast, 0.99),
        BULK_P50: percentile(slow, 0.5),
        BULK_P99: percentile(slow, 0.99),
        REFUSED_P50: percentile(refused, 0.5),
        REFUSED_P99: percentile(refused, 0.99),
        RECOVERY: recovery * 1e3,
        OFFERED: len(during) / length,
        FAST: len(fast) / length,
        SLOW: len(slow) / length,
        TOLD: len(refused) / length,
        KILLED: len(killed) / length,
        OTHER: (len(during) - served) / length,
        BEFORE: memory[0],
        PEAK: max(memory),
        GROWTH: max(memory) - memory[0],
    }
