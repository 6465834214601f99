"""Bytes per unit of work that waits: the growth of peak memory, each case in a process of its own.

python -m benchmarks.memory NAME N      what the suite starts
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.harness import Measure, Table, Target
from benchmarks.peers import SEMAPHORE, WORKERS, Run, semaphore, workers_with_futures
from benchmarks.sizes import Sizes
from benchmarks.tasks import SPAWN, SUBMIT, spawn, submit

CASES: dict[str, Run] = {
    SEMAPHORE: semaphore,
    WORKERS: workers_with_futures,
    SPAWN: spawn,
    SUBMIT: submit,
}


def peak() -> int:
    """The most memory this process has had, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        # Not ru_maxrss: on Linux a child begins with its parent's.
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


async def hold(name: str, n: int, tell: Callable[[float], None]) -> None:
    """Queue n units of work behind some that do not end, tell the bytes each took, then let them go."""
    go, begun = asyncio.Event(), asyncio.Event()

    async def blocked() -> None:
        begun.set()
        await go.wait()

    before = peak()
    everything = asyncio.ensure_future(CASES[name](blocked, n))
    await begun.wait()
    for _ in range(3):  # tasks take a turn of the loop to begin and to wait
        await asyncio.sleep(0)
    tell((peak() - before) / n)
    go.set()
    await everything


def measured(name: str, n: int) -> float:
    command = [sys.executable, "-m", "benchmarks.memory", name, str(n)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return float(done.stdout)


def tables(sizes: Sizes) -> Iterator[Table]:
    cases: dict[str, Measure] = {name: partial(measured, name, sizes.memory) for name in CASES}
    yield Table(
        title=f"Memory: {sizes.memory:,} units of work waiting",
        unit="bytes per unit of work, peak, own process each",
        cases=cases,
        base=SEMAPHORE,
        targets=[Target(SPAWN, 600)],
        at_most=1,
        notes=["One round: the figures do not vary."],
    )


def print_and_leave(size: float) -> None:
    """Running what waits would only take time."""
    print(size, flush=True)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(hold(sys.argv[1], int(sys.argv[2]), print_and_leave))
