"""The tables of a report: a row for each group and policy, each figure with its confidence and its difference."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from fairlead.sim.plots import names_of, series
from fairlead.sim.words import NOTHING, amount, change, margin, relative

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Document = Mapping[str, Any]

WAITS = ("wait.mean", "wait.p50", "wait.p90", "wait.p95", "wait.p99", "wait.p99.9", "wait.max")
COMPLETIONS = tuple(name.replace("wait", "completion") for name in WAITS)
DAGS = ("dags", *(name.replace("wait", "dag") for name in WAITS), "dags_lost")
OUTCOMES = (
    "arrived",
    "done",
    "throughput",
    "refused",
    "expired",
    "evicted",
    "withdrawn",
    "unfinished",
)
TURNS = ("missed", "deadlines", "preempted", "promoted", "share", "fair")
GLANCE = ("wait.p50", "wait.p99", "completion.p95", "done", "lost", "missed")
WHOLE = ("throughput", "utilisation", "misplaced", "preempted", "promoted")
_SAID = {"better": "better", "worse": "worse", "unclear": "no clear difference", "other": "differs"}
_MARK = {"better": "✓", "worse": "✗", "unclear": "≈", "other": "≠"}


def table(
    document: Document, dimension: str, measures: Sequence[str], caption: str, label: str = ""
) -> str:
    """Write the figures of a dimension; columns in which nobody has a figure are left out."""
    names = names_of(document)
    figures = document["figures"]
    groups = document["groups"][dimension]
    used = [measure for measure in measures if _told(document, dimension, measure)]
    if not groups or not used:
        return ""
    heads = "".join(
        f'<th scope="col">{escape(document["measures"][measure]["label"])}</th>' for measure in used
    )
    policy = '<th scope="col" class="policy">policy</th>' if len(names) > 1 else ""
    rows = []
    for group in groups:
        for place, name in enumerate(names):
            found = figures[name].get(dimension, {}).get(group, {})
            against = document["differences"].get(name, {}).get(dimension, {}).get(group, {})
            cells = "".join(
                _cell(measure, found.get(measure), against.get(measure)) for measure in used
            )
            head = ""
            if place == 0:
                head = f'<th scope="rowgroup" rowspan="{len(names)}" class="group">{escape(group)}</th>'
            who = f'<th scope="row" class="policy">{swatch(series(place))}{escape(name)}</th>'
            rows.append(f"<tr>{head}{who if policy else ''}{cells}</tr>")
        rows.append("</tbody><tbody>")
    rows.pop()
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>"
        f'<th scope="col" class="group">{escape(label or dimension)}</th>{policy}{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def swatch(mark: str) -> str:
    """Draw a policy's or a class's colour."""
    return f'<i class="swatch {mark}"></i>'


def _told(document: Document, dimension: str, measure: str) -> bool:
    """Tell whether a column says anything: a loss that nobody had does not."""
    found = [
        one[measure]["mean"]
        for figures in document["figures"].values()
        for one in figures.get(dimension, {}).values()
        if measure in one
    ]
    keeps = measure in {"arrived", "done", "lost"} or measure.startswith(("wait", "completion"))
    return bool(found) and (keeps or any(found))


def _cell(measure: str, found: Mapping[str, Any] | None, against: Mapping[str, Any] | None) -> str:
    if found is None:
        return f"<td>{NOTHING}</td>"
    spread = margin(measure, found)
    sure = f' <small class="sure">{escape(spread)}</small>' if spread else ""
    return f"<td>{escape(amount(measure, found['mean']))}{sure}{_difference(measure, against)}</td>"


def _difference(measure: str, against: Mapping[str, Any] | None) -> str:
    if against is None or against["verdict"] == "same":
        return ""
    kind = against["verdict"]
    by = against["relative"]
    size = relative(by) if by is not None and "." in measure else change(measure, against["mean"])
    sure = "one seed: no confidence"
    if against["low"] is not None:
        sure = f"95 %: {change(measure, against['low'])} to {change(measure, against['high'])}"
    return (
        f'<span class="delta {kind}" title="{escape(sure)}"><b aria-hidden="true">{_MARK[kind]}</b> '
        f'{escape(size)}<span class="unseen">, {_SAID[kind]}, {escape(sure)}</span></span>'
    )
