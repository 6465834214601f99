"""Fairlead's own cases of the jobs suite: everything it promises is on, and nothing is set but slots.

A drain ends when the database says that every run has ended, not when the last function returned.
"""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from benchmarks.jobs_floors import NODE
from benchmarks.jobs_meter import BATCH, Figures, Meter, batches, enqueued, tell_and_leave
from benchmarks.jobs_peers import fresh_schema

SLOTS = 2000
GRAPH_NODES = 1_000
FILL = "fill"  # seconds to store them all
START = "start"  # seconds from `async with jobs` to the first job
BYTES = "bytes"  # of memory per ready job
SQLITE = "sqlite"  # instead of a URL: a file that is removed afterwards

names = count()


class Service(NamedTuple):
    """A `Jobs` that is not started yet, and its tasks."""

    jobs: Any
    noop: Any
    node: Any

    def wide(self, width: int) -> Any:
        """A DAG of jobs that wait for nothing."""
        from fairlead.jobs import Dag

        dag = Dag(f"wide-{next(names)}")
        for _ in range(width):
            dag.add(self.noop)
        return dag


@asynccontextmanager
async def service(
    url: str, meter: Meter | None = None, slots: int = SLOTS, fresh: bool = True
) -> AsyncIterator[Service]:
    """Make a service, on an empty and migrated database if it is to be fresh."""
    from fairlead.jobs import Jobs

    with tempfile.TemporaryDirectory() as folder:
        if url == SQLITE:
            url = f"sqlite:///{Path(folder, 'jobs.db')}"
        elif fresh and url.startswith("postgres"):
            await fresh_schema(url)
        if fresh:
            await migrate(url)
        jobs = Jobs(url, executors={"default": slots})

        @jobs.task()
        async def noop() -> None:
            if meter is not None:
                meter.hit()

        @jobs.task()
        async def node(*needs: int) -> int:
            return 1

        try:
            yield Service(jobs, noop, node)
        finally:
            await jobs.close()


async def migrate(url: str) -> None:
    from fairlead.jobs.stores.opening import open_store

    store = open_store(url)
    await store.migrate()
    await store.close()


async def drained(url: str, jobs: int, widths: Sequence[int]) -> Figures:
    """Store DAGs of these widths, then start the service and drain them."""
    meter = Meter(jobs)
    async with service(url, meter) as made:
        ours = made.jobs
        dags = [made.wide(width) for width in widths]
        waiting = iter(dags)
        stored: list[Any] = []

        async def batch(size: int) -> None:
            chosen = list(islice(waiting, size))  # of one wide DAG there is nothing left after it
            stored.extend(await ours.submit_all(chosen))

        await ours.store()  # connected, as the others are by now
        figures = await enqueued(batch, jobs)
        if len(stored) != len(dags):
            raise RuntimeError(f"{len(stored)} of {len(dags)} DAGs were stored")
        meter.start()
        async with ours:
            await meter.wait()
            for run in stored[-1:] + stored[:1]:
                await ours.wait(run)
            meter.stop()
            await check_all_completed(ours, jobs)
        return figures | meter.figures()


async def check_all_completed(ours: Any, jobs: int) -> None:
    """What the database says at the end, for a figure of lost work would be worth nothing."""
    store = await ours.store()
    until = time.monotonic() + 10
    while (states := await store.states()).get("completed", 0) < jobs:
        if time.monotonic() > until:
            raise RuntimeError(f"not everything completed: {states}")
        await asyncio.sleep(0.01)


async def runs(url: str, jobs: int) -> Figures:
    """Runs of one job each, submitted a thousand at a time."""
    return await drained(url, jobs, [1] * jobs)


async def nodes(url: str, jobs: int) -> Figures:
    """One DAG as wide as can be."""
    return await drained(url, jobs, [1, jobs - 1])


async def store(url: str, jobs: int) -> Figures:
    """Only enqueue: a thousand jobs with each submission."""
    async with service(url) as made:
        # The first prepares what the others ask; a run of one job would ask something else.
        waiting = iter([made.wide(width) for width in (2, *batches(jobs))])
        return await enqueued(lambda _: made.jobs.submit(next(waiting)), jobs)


# DAGs


def layers(count: int = 10, width: int = 100, fan: int = 3) -> list[list[int]]:
    """Ten layers of a hundred, each node with three dependencies in the layer before."""
    return [
        [(layer - 1) * width + (place * 7 + k * 13) % width for k in range(fan)] if layer else []
        for layer in range(count)
        for place in range(width)
    ]


def tangle(size: int = GRAPH_NODES, reach: int = 100) -> list[list[int]]:
    """A random DAG that is more long than wide: one to three dependencies among the last hundred nodes."""
    random = Random(5)
    return [
        sorted(random.sample(range(max(0, node - reach), node), min(node, random.randint(1, 3))))
        for node in range(size)
    ]


def chain(size: int = 100) -> list[list[int]]:
    """One after another: every node is a commit that nobody shares."""
    return [[node - 1] if node else [] for node in range(size)]


async def graph(url: str, needs: list[list[int]], times: int) -> Figures:
    """µs per node from submission to the outcome, in a service that runs already."""
    from fairlead.jobs import Dag

    async with service(url) as made, made.jobs as ours:
        await ours.wait(await ours.submit(made.wide(1)))
        took = []
        for _ in range(max(1, times)):
            dag = Dag(f"graph-{next(names)}")
            all_nodes: list[Any] = []
            for wanted in needs:
                all_nodes.append(dag.add(made.node, *(all_nodes[need] for need in wanted)))
            began = time.perf_counter()
            outcome = await ours.wait(await ours.submit(dag))
            took.append(time.perf_counter() - began)
            if outcome.state != "completed":
                raise RuntimeError(f"the DAG ended {outcome.state}")
        return {NODE: min(took) / len(needs) * 1e6}


# A million jobs


async def fill(url: str, jobs: int) -> Figures:
    """Store ready jobs, ten thousand in each run, and leave them there."""
    width = 10 * BATCH
    began = time.perf_counter()
    async with service(url) as made:
        for first in range(0, jobs, width):
            await made.jobs.submit(made.wide(min(width, jobs - first)))
    return {FILL: time.perf_counter() - began}


async def start(url: str, jobs: int) -> Figures:
    """Start a service on a database full of ready jobs, and look at its memory once it runs them."""
    meter = Meter(1)
    async with service(url, meter, slots=1, fresh=False) as made:
        gc.collect()
        before = resident()
        began = time.perf_counter()
        async with made.jobs:
            await meter.wait()
            took = time.perf_counter() - began
            await settled(jobs)
            tell_and_leave({START: took, BYTES: (resident() - before) / jobs})
    return {}


def resident() -> int:
    """Bytes of memory this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def settled(jobs: int) -> None:
    """Wait until memory no longer grows: what is not in the frontier yet is still being read."""
    before = 0
    while (now := resident()) > before + 64 * 1024:
        before = now
        await asyncio.sleep(1.0 if jobs > BATCH else 0.1)
