"""What the docs tell of the jobs suite; `make bench ARGS="jobs --docs"` puts it there."""

from __future__ import annotations

from benchmarks.figures import Chapter, Figures, Row
from benchmarks.harness import figure
from benchmarks.jobs import (
    FLOOR,
    FULL_POSTGRES,
    FULL_SQLITE,
    HUEY,
    LAYERS,
    NODES,
    PGQUEUER,
    PGQUEUER_FREE,
    PROCRASTINATE,
    RANDOM,
    RUNS,
    STORE,
)

INTRODUCTION = """
No-op jobs, stored durably before and completed durably after; everything Fairlead promises is on. Every case is a
process of its own beside a PostgreSQL with its defaults, on the same two cores.
[What was measured, in short](jobs.md#what-it-costs).
"""
DRAIN, ENQUEUE, EMBEDDED = (
    "Jobs: drain of no-op jobs, PostgreSQL",
    "Jobs: enqueue",
    "Jobs: drain of no-op jobs, SQLite",
)
GRAPHS, START, MEMORY = "Jobs: a DAG", "Jobs: start-up", "Jobs: memory"


def rows(figures: Figures) -> list[Row]:
    """What was measured, in words: the figure and its target."""
    found: list[Row] = []
    if figures.has(DRAIN, RUNS):
        rate = 1e6 / figures.of(DRAIN, RUNS)
        found.append(("drain on PostgreSQL, runs of one job, a second", f"{rate:,.0f}", ""))
        rate = 1e6 / figures.of(DRAIN, NODES)
        found.append(("the same, jobs of one wide DAG", f"{rate:,.0f}", ""))
    for peer, name, least in (
        (PGQUEUER, "PgQueuer (batches of 100, 200 at once)", "≥ 2×"),
        (PGQUEUER_FREE, "PgQueuer (batches of 100, no limit)", ""),
        (PROCRASTINATE, "Procrastinate", "≥ 20×"),
        (FLOOR, "bare claim and complete", "≥ 0.4×"),
    ):
        found += _times(figures, DRAIN, peer, RUNS, f"the rate of {name}", least)
    found += _times(
        figures, ENQUEUE, PGQUEUER, STORE, "the rate of PgQueuer when enqueueing in batches", "≥ 2×"
    )
    found += _times(
        figures, ENQUEUE, PGQUEUER, RUNS, "that rate, when each job is a run of its own", "≥ 2×"
    )
    if figures.has(EMBEDDED, RUNS):
        rate = 1e6 / figures.of(EMBEDDED, RUNS)
        found.append(("drain on SQLite, a second", f"{rate:,.0f}", "≥ 10,000"))
        found += _times(figures, EMBEDDED, HUEY, RUNS, "the rate of huey on SQLite", "≥ 5×")
    for case in (LAYERS, RANDOM):
        if figures.has(GRAPHS, case):
            words = f"a DAG of {case.partition(', ')[2]}, on PostgreSQL, per node"
            found.append((words, f"{figure(figures.of(GRAPHS, case))} µs", "≤ 300 µs"))
    for case in (FULL_POSTGRES, FULL_SQLITE):
        if figures.has(START, case):
            store = case.partition(", ")[2]
            seconds, memory = figures.of(START, case), figures.of(MEMORY, case)
            words = f"start-up with 1,000,000 ready jobs, {store}"
            found.append((words, f"{figure(seconds)} s", "≤ 10 s"))
            found.append((f"memory per ready job, {store}", f"{figure(memory)} bytes", "≤ 1 KiB"))
    return found


def _times(figures: Figures, title: str, peer: str, case: str, words: str, least: str) -> list[Row]:
    if not (figures.has(title, peer) and figures.has(title, case)):
        return []
    return [(f"of {words}", f"{figure(figures.ratio(title, peer, case))}×", least)]


CHAPTER = Chapter("jobs", "Jobs", INTRODUCTION, ("docs/jobs.md",), rows)
