"""The plots of a report, each drawn from its document as one SVG."""

from __future__ import annotations

from math import log10
from typing import TYPE_CHECKING, Any

from fairlead.sim.drawing import (
    SERIES,
    Canvas,
    Scale,
    Tick,
    around,
    decades,
    even_ticks,
    time_ticks,
)
from fairlead.sim.words import amount, duration, part, relative

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Document = Mapping[str, Any]

OUTCOMES = ("done", "refused", "expired", "evicted", "withdrawn", "unfinished")
SHORTEST = 0.0001  # waits beneath are drawn at the foot of a logarithmic axis
FURTHEST = 1000  # a factor beyond which nothing is told apart
DEEPEST = 2000  # times the longest wait is longer than the shortest that is told from the foot
COMPARED = ("wait.p50", "wait.p95", "wait.p99", "completion.p95")


def series(index: int) -> str:
    """Name the class that gives a series its colour."""
    return f"s{index % SERIES}"


def kind(index: int) -> str:
    """Name the class that gives a class of tickets its colour, which no policy has."""
    return f"k{index % SERIES}"


def names_of(document: Document) -> list[str]:
    """Name the policies, the first first."""
    return [policy["name"] for policy in document["policies"]]


def wait_curves(document: Document, group: str, index: int) -> str:
    """Draw how long a class waits at each percentile, under each policy; the axis gives each nine the same room."""
    curves = [
        (place, name, document["curves"][name].get(group, []))
        for place, name in enumerate(names_of(document))
    ]
    waits = [max(wait, SHORTEST) for _, _, points in curves for _, wait in points]
    if not waits:
        return ""
    low, high = around(max(min(waits), max(waits) / DEEPEST), max(waits))
    told = "; ".join(
        f"{name}: {', '.join(f'p{at:g} {duration(wait)}' for at, wait in points if at in {50, 90, 99})}"
        for _, name, points in curves
        if points
    )
    canvas = Canvas(f"wait{index}", 360, 236, f"Waits of {group} by percentile", told)
    furthest = max(at for _, _, points in curves for at, _ in points)
    across = Scale(0, max(90.0, furthest), 58, 336, lambda at: -log10(1 - at / 100))
    down = Scale(low, high, 196, 14, log10)
    canvas.y_axis(down, decades(low, high, duration), 58, 336)
    ticks = [Tick(at, f"p{at:g}") for at in (50, 90, 99, 99.9) if at <= across.high]
    canvas.x_axis(across, ticks, 14, 196)
    canvas.text(197, 230, "part of the tickets that wait no longer", "label", "middle")
    for place, name, points in curves:
        drawn = [(across(at), down(max(wait, low))) for at, wait in points]
        canvas.path(drawn, f"line {series(place)}")
        for (x, y), (at, wait) in zip(drawn, points, strict=True):
            if at in {50, 90, 95, 99, 99.9}:
                canvas.dot(x, y, f"dot {series(place)}", f"{name}: p{at:g} {duration(wait)}", 3)
    return str(canvas)


def timeline(document: Document, policy: str, index: int) -> str:
    """Draw what ran and what waited over time under one policy, by class, on the same scales for all policies."""
    lines = document["timelines"]
    own = lines[policy]
    seconds = max(line["seconds"] for line in lines.values()) or 1.0
    slots = next(one["slots"] for one in document["policies"] if one["name"] == policy)
    classes = document["groups"]["class"]
    most_running = max([_tallest(line["running"]) for line in lines.values()] + [slots or 0, 1e-9])
    most_waiting = max([_tallest(line["waiting"]) for line in lines.values()] + [1.0])
    peak = _tallest(own["waiting"])
    canvas = Canvas(
        f"time{index}",
        720,
        306,
        f"In use and waiting over time under {policy}",
        f"Over {duration(own['seconds'])}; about {peak:,.0f} waited at the worst time.",
    )
    across = Scale(0, seconds, 58, 708)
    for title, what, top, bottom, most in (
        ("in use", "running", 22, 128, most_running),
        ("waiting", "waiting", 164, 276, most_waiting),
    ):
        down = Scale(0, most * 1.04, bottom, top)
        canvas.text(58, top - 8, title, "label strong")
        canvas.y_axis(down, even_ticks(most, "{:,g}".format, 4), 58, 708)
        _stack(canvas, own, what, classes, across, down)
        canvas.x_axis(across, time_ticks(seconds) if what == "waiting" else [], top, bottom)
        if what == "running":
            # Of all, also of those who were preempted and came again.
            step = own["seconds"] / max(1, len(own["used"]))
            used = [(across((at + 0.5) * step), down(one)) for at, one in enumerate(own["used"])]
            canvas.path(used, "used")
        if what == "running" and slots:
            canvas.line(58, down(slots), 708, down(slots), "limit")
            canvas.text(706, down(slots) - 4, f"{slots:g} slots", "label", "end")
    return str(canvas)


def _stack(
    canvas: Canvas,
    own: Mapping[str, Any],
    what: str,
    classes: Sequence[str],
    across: Scale,
    down: Scale,
) -> None:
    """Lay the classes upon each other, the most important at the foot."""
    height: list[float] = []
    for place, name in enumerate(classes):
        levels = own[what].get(name)
        if not levels or not any(levels):
            continue
        height = height or [0.0] * len(levels)
        step = own["seconds"] / len(levels)
        grown = [below + level for below, level in zip(height, levels, strict=True)]
        mean = sum(levels) / len(levels)
        canvas.area(
            [(across((at + 0.5) * step), down(level)) for at, level in enumerate(grown)],
            [(across((at + 0.5) * step), down(level)) for at, level in enumerate(height)],
            f"area {kind(place)}",
            f"{name}: {mean:,.3g} on average, {max(levels):,.3g} at most",
        )
        height = grown


def _tallest(levels: Mapping[str, Sequence[float]]) -> float:
    return max((sum(parts) for parts in zip(*levels.values(), strict=True)), default=0.0)


def shares(document: Document, dimension: str) -> str:
    """Draw each group's share under each policy against its max-min fair one."""
    figures = document["figures"]
    names = names_of(document)
    groups = [
        group
        for group in document["groups"][dimension]
        if any("share" in figures[name].get(dimension, {}).get(group, {}) for name in names)
    ][:24]
    if not groups:
        return ""
    row = 14 * len(names) + 14
    height = 40 + row * len(groups)
    found = {
        (name, group): figures[name][dimension].get(group, {}) for name in names for group in groups
    }
    highest = max(
        one[measure]["mean"]
        for one in found.values()
        for measure in ("share", "fair")
        if measure in one
    )
    canvas = Canvas(
        f"share-{dimension}",
        720,
        height,
        f"Shares by {dimension}, against max-min fair ones",
        "; ".join(
            f"{group}: "
            + ", ".join(
                f"{name} {part(found[name, group]['share']['mean'])} (fair {part(found[name, group]['fair']['mean'])})"
                for name in names
                if "share" in found[name, group]
            )
            for group in groups
        ),
    )
    across = Scale(0, highest * 1.02 or 1.0, 150, 700)
    canvas.x_axis(across, even_ticks(highest, part, 6), 6, height - 30, grid=True)
    for line, group in enumerate(groups):
        top = 8 + line * row
        canvas.text(140, top + row / 2, _cut(group, 20), "name", "end")
        for place, name in enumerate(names):
            one = found[name, group]
            if "share" not in one:
                continue
            y = top + 4 + place * 14
            had, due = one["share"]["mean"], one["fair"]["mean"]
            tip = f"{group} under {name}: had {part(had)}, max-min fair {part(due)}"
            canvas.rect(
                across(0), y, max(1.0, across(had) - across(0)), 10, f"bar {series(place)}", tip
            )
            canvas.line(across(due), y - 2, across(due), y + 12, "due")
    return str(canvas)


def outcomes(document: Document) -> str:
    """Draw what became of each class under each policy."""
    names, classes = names_of(document), document["groups"]["class"]
    row = 18 * len(names) + 12
    height = 36 + row * len(classes)
    canvas = Canvas(
        "outcomes",
        720,
        height,
        "What became of each class",
        "The parts of what arrived that were done and lost; the figures are in the tables.",
    )
    across = Scale(0, 1, 150, 690)
    canvas.x_axis(across, even_ticks(1, part, 5), 6, height - 26)
    for line, group in enumerate(classes):
        top = 6 + line * row
        canvas.text(140, top + row / 2, _cut(group, 20), "name", "end")
        for place, name in enumerate(names):
            figures = document["figures"][name].get("class", {}).get(group, {})
            _outcome(canvas, figures, across, top + place * 18, f"{group} under {name}")
            canvas.rect(144, top + place * 18, 4, 14, f"bar {series(place)}", name)
    return str(canvas)


def _outcome(canvas: Canvas, figures: Mapping[str, Any], across: Scale, y: float, who: str) -> None:
    arrived = figures.get("arrived", {}).get("mean", 0)
    at = 0.0
    for outcome in OUTCOMES:
        found = figures.get(outcome, {}).get("mean", 0)
        size = (found / arrived if arrived else 0.0) if outcome == "done" else found
        if size > 0:
            tip = f"{who}: {part(size)} {outcome}"
            canvas.rect(
                across(at), y, across(at + size) - across(at), 14, f"outcome {outcome}", tip
            )
            at += size


def differences(document: Document, other: str, index: int) -> str:
    """Draw by which part each class's waits and completions differ from the first policy's, with confidence."""
    first = names_of(document)[0]
    rows: list[tuple[str, str, dict[str, Any], float]] = []
    for group in document["groups"]["class"]:
        for measure in COMPARED:
            found = document["differences"][other].get("class", {}).get(group, {}).get(measure)
            base = document["figures"][first].get("class", {}).get(group, {}).get(measure)
            if found and base and base["mean"] > SHORTEST:
                rows.append((group, measure, found, base["mean"]))
    if not rows:
        return ""
    ratios = [max(1 + one["mean"] / base, 1 / FURTHEST) for _, _, one, base in rows]
    low, high = min(0.5, *ratios) / 1.3, max(2.0, *ratios) * 1.3
    height = 44 + 20 * len(rows)
    canvas = Canvas(
        f"diff{index}",
        720,
        height,
        f"Waits and completions under {other}, against {first}",
        "; ".join(
            f"{group} {measure} {relative(one['mean'] / base)}"
            for group, measure, one, base in rows
        ),
    )
    across = Scale(low, high, 210, 590, log10)
    shown: list[Tick] = []
    for factor in (1, 10, 100, 1000, 2, 5, 20, 50):
        for tick in (Tick(factor, f"×{factor}"), Tick(1 / factor, f"÷{factor}")):
            apart = min((abs(across(tick.value) - across(one.value)) for one in shown), default=99)
            if low <= tick.value <= high and apart >= 40:
                shown.append(tick if factor > 1 else Tick(1, "same"))
    canvas.x_axis(across, shown, 8, height - 30, grid=True)
    canvas.line(across(1), 8, across(1), height - 30, "zero")
    for line, (group, measure, one, base) in enumerate(rows):
        y = 20 + line * 20
        canvas.text(
            200, y + 4, f"{_cut(group, 16)} {document['measures'][measure]['label']}", "name", "end"
        )
        verdict = one["verdict"]
        if one["low"] is not None:
            ends = (across(1 + one[end] / base) for end in ("low", "high"))
            canvas.line(next(ends), y, next(ends), y, f"whisker {verdict}")
        now = base + one["mean"]
        tip = f"{group} {measure}: {amount(measure, base)} → {amount(measure, now)}"
        canvas.dot(across(1 + one["mean"] / base), y, f"point {verdict}", tip, 5)
        canvas.text(612, y + 4, f"{relative(one['mean'] / base)} → {amount(measure, now)}", "tick")
    return str(canvas)


def _cut(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
