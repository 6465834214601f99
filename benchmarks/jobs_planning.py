"""Planning: a round of the frontier with very many jobs ready, and what each of them takes in memory.

python -m benchmarks.jobs_planning N      bytes per ready job, in a process of its own

A round is what the scheduler does when jobs have ended: take their slots back, and choose who starts next, with the
clock half a second further on each time.  Every job has an SLA of its own, so scores rise all the time; 16 slots.
"""

from __future__ import annotations

import gc
import random
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from time import process_time

from benchmarks.harness import Measure, Table, Target
from benchmarks.memory import peak
from benchmarks.sizes import Sizes
from fairlead.jobs.frontier import Frontier
from fairlead.jobs.planners import (
    EarliestDeadlineExecutionPlanner,
    GlobalPriorityExecutionPlanner,
    HRRNExecutionPlanner,
    SJFSExecutionPlanner,
)
from fairlead.jobs.records import ReadyJob

NOW = 1_700_000_000.0
SLOTS = 16
PAGE = 5_000  # as many are read at once
ROUNDS = 20
ESTIMATES = (1.0, 5.0, 30.0, None)
PLANNERS = {
    "global": GlobalPriorityExecutionPlanner,
    "HRRN": HRRNExecutionPlanner,
    "SJFS": SJFSExecutionPlanner,
    "earliest deadline": EarliestDeadlineExecutionPlanner,
}
SHAPES = {"one DAG": 1_000_000_000, "DAGs of 100": 100, "DAGs of one": 1}


def ready(first: int, count: int, nodes: int, rng: random.Random) -> list[ReadyJob]:
    """Make a page of ready jobs, in DAGs of so many nodes."""
    return [
        ReadyJob(
            dag=number // nodes + 1,
            node=number % nodes,
            name=f"page-{number}",
            task="extract",
            executor="ocr",
            tenant="",
            level=number % 5,
            height=rng.uniform(1, 100),
            estimate=ESTIMATES[number % 4],
            soft=NOW + rng.uniform(-100_000, 400_000),
            hard=None,
            ready_at=NOW - 3000 + number / 1000 + rng.uniform(0, 2),
            start_at=0.0,
            active=False,
        )
        for number in range(first, first + count)
    ]


def filled(planner: str, nodes: int, count: int) -> Frontier:
    """Make a frontier with so many ready jobs."""
    made = PLANNERS[planner]()
    frontier = Frontier(planners=lambda executor: made)
    frontier.resize("ocr", SLOTS, NOW)
    rng = random.Random(1)
    for first in range(0, count, PAGE):
        frontier.add(ready(first, min(PAGE, count - first), nodes, rng), NOW)
    return frontier


def rounds(planner: str, shape: str, count: int) -> float:
    """Tell the milliseconds of a round in which every slot is taken back and given out again."""
    frontier = filled(planner, SHAPES[shape], count)
    gc.collect()
    gc.freeze()
    now, running, spent = NOW, frontier.started(), 0.0
    for _ in range(ROUNDS):
        now += 0.5
        ended = [(job.dag, job.node) for job in running]
        begun = process_time()
        frontier.ended(ended, now)
        running = frontier.started()
        spent += process_time() - begun
        if not running:
            break
    gc.unfreeze()
    return spent / ROUNDS * 1e3


def adding(shape: str, count: int) -> float:
    """Tell the microseconds that adding a job takes."""
    planner = GlobalPriorityExecutionPlanner()
    frontier = Frontier(planners=lambda executor: planner)
    rng = random.Random(1)
    spent = 0.0
    for first in range(0, count, PAGE):
        page = ready(first, min(PAGE, count - first), SHAPES[shape], rng)
        begun = process_time()
        frontier.add(page, NOW)
        spent += process_time() - begun
    return spent / count * 1e6


def measured(count: int, nodes: int) -> float:
    command = [sys.executable, "-m", "benchmarks.jobs_planning", str(count), str(nodes)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    return float(done.stdout)


def tables(sizes: Sizes) -> Iterator[Table]:
    scale = [count for count in sizes.scale if count <= 100_000]
    names = [f"{count:,} ready" for count in scale]
    cases: dict[str, Measure] = {
        f"{planner}, {name}": partial(rounds, planner, "DAGs of 100", count)
        for planner in PLANNERS
        for name, count in zip(names, scale, strict=True)
    }
    yield Table(
        title=f"Jobs: a planning round, {SLOTS} slots given out anew, every job with an SLA of its own",
        unit="ms per round",
        cases=cases,
        columns=names,
        targets=[Target(f"{planner}, {names[-1]}", 20) for planner in PLANNERS],
        at_most=3,
    )
    cases = {
        f"{shape}, {name}": partial(rounds, "global", shape, count)
        for shape in SHAPES
        for name, count in zip(names, scale, strict=True)
    }
    yield Table(
        title=f"Jobs: a planning round by the default planner, {SLOTS} slots, by the size of DAGs",
        unit="ms per round",
        cases=cases,
        columns=names,
        targets=[Target(f"{shape}, {names[-1]}", 20) for shape in SHAPES],
        at_most=3,
    )
    yield Table(
        title=f"Jobs: adding {scale[-1]:,} ready jobs to the frontier",
        unit="µs per job",
        cases={shape: partial(adding, shape, scale[-1]) for shape in SHAPES},
        at_most=3,
    )
    yield Table(
        title=f"Jobs: memory of {sizes.memory:,} ready jobs",
        unit="bytes per job, peak, own process each",
        cases={shape: partial(measured, sizes.memory, nodes) for shape, nodes in SHAPES.items()},
        targets=[Target(shape, 1024) for shape in SHAPES],
        at_most=1,
        notes=[
            "Names, times and estimates of the jobs included; one round, the figures do not vary."
        ],
    )


if __name__ == "__main__":
    before = peak()
    count = int(sys.argv[1])
    kept = filled("global", int(sys.argv[2]), count)
    print((peak() - before) / count)
