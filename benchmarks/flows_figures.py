"""What the docs tell of the flows suite; `make bench ARGS="flows --docs"` puts it there."""

from __future__ import annotations

from benchmarks.figures import Chapter, Figures, Row
from benchmarks.flows import AIOLIMITER, REPORTED
from benchmarks.flows_service import BARE, CHECK
from benchmarks.flows_shared import ERROR, FIXED, OURS
from benchmarks.harness import figure

INTRODUCTION = """
Every case admits. Tables in CPU time are this process's, or the server's where one answers, which is a process of its
own on loopback.
[What was measured, in short](flows.md#what-it-costs).
"""
LOOP, THREAD = "Flows: nobody waits, check and end on", "Flows: nobody waits, check and end in"
QUEUE, SHARED, EXACT = "Flows: weighted", "Flows: a quota shared", "Flows: how exact"
FIXED_WINDOW = "fixed window"  # the cheaper one


def rows(figures: Figures) -> list[Row]:
    """What was measured, in words: the figure and its target."""
    quota, concurrency, both = (f"fairlead, {name}" for name in REPORTED)
    found = [
        ("check and end, nobody waits: quota", f"{figure(figures.of(LOOP, quota))} µs", ""),
        ("the same: concurrency", f"{figure(figures.of(LOOP, concurrency))} µs", ""),
        ("the same: both", f"{figure(figures.of(LOOP, both))} µs", ""),
    ]
    for title, peer, least in (
        (LOOP, f"limits.aio, {FIXED_WINDOW}", "≥ 2×"),
        (LOOP, AIOLIMITER, "≥ 0.5×"),
        (THREAD, f"limits, {FIXED_WINDOW}", "≥ 2×"),
    ):
        if figures.has(title, peer):
            where = "quota, in threads" if title == THREAD else "quota"
            rate = figures.ratio(title, peer, quota)
            found.append((f"{where}: its rate, of that of {peer}", f"{figure(rate)}×", least))
    flat = next(iter(name for name in figures.table(QUEUE)["values"] if "on one bucket" in name))
    found.append((f"a flow that waits, {flat}", f"{figure(figures.of(QUEUE, flat))} µs", "≤ 5"))
    if figures.has(SHARED):
        rate = 1e6 / figures.of(SHARED, OURS)
        found.append(
            ("quota through Redis, decisions a second per process", f"{rate:,.0f}", "≥ 100,000")
        )
        if figures.has(SHARED, FIXED):
            times = figures.ratio(SHARED, FIXED, OURS)
            found.append(("the same, of the rate of limits.aio", f"{figure(times)}×", "≥ 15×"))
        error = figure(figures.of(EXACT, ERROR))
        found.append(("its error at three times the quota", f"{error} %", "≤ 1 %"))
    for wire in ("HTTP", "gRPC"):
        title = f"Flows: {wire}, time"
        if figures.has(title):
            checks = f"{1e6 / figures.of(title, CHECK):,.0f}"
            # By CPU: on the wall client and server take the two cores from each other.
            part = f"{figure(figures.ratio(f'Flows: {wire}, CPU', BARE, CHECK))}×"
            found.append((f"checks over {wire}, a second per process", checks, ""))
            found.append(("the same, of the rate of a bare handler, by CPU", part, "≥ 0.7×"))
    return found


CHAPTER = Chapter("flows", "Flows", INTRODUCTION, ("docs/flows.md",), rows)
