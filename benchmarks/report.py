"""Results as Markdown for people and the docs, and as JSON for machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from benchmarks.harness import HEAP, LOOP, Result, figure


def markdown(result: Result) -> str:
    """One section: the table, its calibration, its notes, what failed, and the verdicts."""
    table = result.table
    lines = [f"### {table.title}", ""]
    lines += grid(result) if table.columns else listing(result)
    lines += [
        "",
        f"{table.unit}; median of {result.rounds} rounds. Calibration: {calibration(result)}.",
    ]
    lines += table.notes
    lines += [f"**Failed:** {name}: {error}" for name, error in result.errors.items()]
    verdicts = result.verdicts()
    if verdicts:
        lines += ["", *(f"- {verdict.text}" for verdict in verdicts)]
    return "\n".join(lines) + "\n"


def listing(result: Result) -> Iterator[str]:
    table = result.table
    base = result.values.get(table.base)
    yield f"| case | median | min–max |{f' ratio to {table.base} |' if table.base else ''}"
    yield f"|---|---:|---:|{'---:|' if table.base else ''}"
    for name in table.cases:
        seen = result.values.get(name)
        if seen:
            row = f"| {name} | {figure(median(seen))} | {spread(seen)} |"
            if table.base:
                row += f" {figure(median(seen) / median(base))}× |" if base else " – |"
            yield row


def grid(result: Result) -> Iterator[str]:
    """One row per shape, one column per size, and the growth from the first to the last."""
    table = result.table
    yield f"| case | {' | '.join(table.columns)} | growth |"
    yield f"|---|{'---:|' * (len(table.columns) + 1)}"
    for row in dict.fromkeys(name.rsplit(", ", 1)[0] for name in table.cases):
        cells = [result.values.get(f"{row}, {column}") or () for column in table.columns]
        shown = [f"{figure(median(seen))} ({spread(seen)})" if seen else "–" for seen in cells]
        measured = [median(seen) for seen in cells if seen]
        growth = f"{figure(measured[-1] / measured[0])}×" if len(measured) > 1 else "–"
        yield f"| {row} | {' | '.join(shown)} | {growth} |"


def calibration(result: Result) -> str:
    parts = []
    for name in (HEAP, LOOP):
        seen = result.values[name]
        parts.append(f"{name} {figure(median(seen))} µs ({spread(seen)})")
    return "; ".join(parts)


def spread(values: Sequence[float]) -> str:
    return f"{figure(min(values))}–{figure(max(values))}"


def plain(result: Result) -> dict[str, Any]:
    """What --json keeps: every value of every round."""
    table = result.table
    return {
        "title": table.title,
        "unit": table.unit,
        "rounds": result.rounds,
        "base": table.base,
        "values": {name: list(seen) for name, seen in result.values.items()},
        "errors": dict(result.errors),
        "verdicts": [
            {"text": verdict.text, "value": verdict.value, "met": verdict.met}
            for verdict in result.verdicts()
        ],
    }


def summary(results: Sequence[Result]) -> str:
    """Count the verdicts of a whole run and repeat those that were missed."""
    verdicts = [verdict for result in results for verdict in result.verdicts()]
    missed = [verdict for verdict in verdicts if not verdict.met]
    failed = sum(len(result.errors) for result in results)
    lines = ["### Summary", "", f"{len(verdicts) - len(missed)} of {len(verdicts)} targets met."]
    if failed:
        lines.append(f"{failed} cases failed.")
    lines += [f"- {verdict.text}" for verdict in missed]
    return "\n".join(lines) + "\n"
