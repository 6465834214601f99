"""Run the cases of a table side by side, and print medians, spreads, ratios and verdicts.

Round 1 runs every case once, round 2 again in a rotated order, and so on, so that the slow drift of a shared machine
hits all cases alike.  Cases return CPU time of the process: other users of the machine disturb caches and clock speed.
Two calibration loops run in every round of every table; a figure means little without them, a ratio does.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import cycle
from statistics import median
from time import process_time

Measure = Callable[[], float]
Values = Mapping[str, Sequence[float]]

HEAP = "heapq push + pop of (key, seq, obj), 1,000 entries"
LOOP = "one turn of an empty Python loop"


@dataclass(frozen=True, slots=True)
class Target:
    """At most `limit` times the fastest of `against`, or `limit` above `over`, or `limit` in the table's unit."""

    case: str
    limit: float
    against: tuple[str, ...] = ()
    over: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Cases to compare.

    With `columns`, a case is called "row, column", the table is printed as a grid, and from its first to its last
    column no row may grow more than `growth` times.
    """

    title: str
    unit: str
    cases: Mapping[str, Measure]
    base: str = ""
    targets: Sequence[Target] = ()
    notes: Sequence[str] = ()
    columns: Sequence[str] = ()
    growth: float = 0.0
    at_most: int = 1000  # rounds; for cases that take long and vary little
    done: Callable[[], object] | None = None  # lets go of what the cases keep from round to round


@dataclass(frozen=True, slots=True)
class Verdict:
    text: str
    value: float | None  # None: a case it needs was left out or failed
    met: bool


@dataclass(frozen=True, slots=True)
class Result:
    table: Table
    rounds: int
    values: Values
    errors: Mapping[str, str] = field(default_factory=dict)

    def verdicts(self) -> list[Verdict]:
        verdicts = [judge(target, self) for target in self.table.targets]
        return [*verdicts, judge_growth(self)] if self.table.growth else verdicts


def run(table: Table, rounds: int) -> Result:
    """Run every case once per round; one that raises is left out from then on, and its error kept."""
    rounds = min(rounds, table.at_most)
    cases: dict[str, Measure] = {HEAP: heap_loop, LOOP: empty_loop, **table.cases}
    names = list(cases)
    values: dict[str, list[float]] = {name: [] for name in names}
    errors: dict[str, str] = {}
    print(table.title, end=" ", file=sys.stderr, flush=True)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            if name in errors:
                continue
            gc.collect()
            try:
                values[name].append(cases[name]())
            except Exception as error:
                errors[name] = f"{type(error).__name__}: {error}"
                del values[name]
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    if table.done is not None:
        table.done()
    gc.unfreeze()  # see steady.py
    return Result(table, rounds, values, errors)


def heap_loop(pairs: int = 20_000, entries: int = 1_000) -> float:
    """CPU µs per push and pop, with keys 0..100; ratios to it hold on other machines too."""
    heap: list[tuple[int, int, object]] = []
    for seq in range(entries):
        heappush(heap, (seq * 7919 % 101, seq, object()))
    thing = object()
    began = process_time()
    for seq in range(entries, entries + pairs):
        heappush(heap, (seq * 7919 % 101, seq, thing))
        heappop(heap)
    return (process_time() - began) / pairs * 1e6


def empty_loop(turns: int = 500_000) -> float:
    """CPU µs per turn."""
    began = process_time()
    for _ in range(turns):
        pass
    return (process_time() - began) / turns * 1e6


def judge(target: Target, result: Result) -> Verdict:
    """Compare medians; the range is that of the same figure round by round."""
    known = {name: list(seen) for name, seen in result.values.items() if seen}
    against = min(
        (name for name in target.against if name in known),
        key=lambda name: median(known[name]),
        default=None,
    )
    relative = "×" if target.against else f" {result.table.unit.split(',')[0]}"
    wanted = f"{target.case}: target ≤ {target.limit:g}{relative}"
    if target.over:
        wanted += f" over {target.over}"
    needs_other = target.against or target.over
    other = known.get(target.over or against or "")
    mine = known.get(target.case)
    if mine is None or (needs_other and other is None):
        return Verdict(f"{wanted}: not measured", None, False)
    if against:
        wanted += f" {against}"

    def compare(value: float, base: float) -> float:
        return value / base if target.against else value - base

    bases = other or [0.0]
    value = compare(median(mine), median(bases))
    # A case that failed half way has fewer rounds, but is not among the known; an absolute one has a single base.
    each = [compare(one, base) for one, base in zip(mine, cycle(bases), strict=False)]
    spread = f"{figure(min(each))}–{figure(max(each))}"
    met = value <= target.limit
    word = "ok" if met else "MISSED"
    return Verdict(f"{wanted}: {figure(value)}{relative} ({spread}) {word}", value, met)


def judge_growth(result: Result) -> Verdict:
    """Find the row that grew most from the first column to the last."""
    first, last = result.table.columns[0], result.table.columns[-1]
    grown = {}
    for name, seen in result.values.items():
        less = result.values.get(name.removesuffix(last) + first)
        if seen and less and name.endswith(f", {last}"):
            grown[name.removesuffix(f", {last}")] = median(seen) / median(less)
    wanted = f"growth from {first} to {last}: target ≤ {result.table.growth:g}×"
    if not grown:
        return Verdict(f"{wanted}: not measured", None, False)
    row = max(grown, key=lambda row: grown[row])
    met = grown[row] <= result.table.growth
    word = "ok" if met else "MISSED"
    return Verdict(f"{wanted}: at most {figure(grown[row])}× ({row}) {word}", grown[row], met)


def figure(value: float) -> str:
    """Three digits, give or take."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 or not size else f"{value:.3f}"
