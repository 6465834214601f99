"""The report of a simulation as one HTML file: nothing is fetched, nothing runs, and it reads in light and dark."""

from __future__ import annotations

import re
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from fairlead.sim import plots
from fairlead.sim.report_tables import (
    COMPLETIONS,
    DAGS,
    GLANCE,
    OUTCOMES,
    TURNS,
    WAITS,
    WHOLE,
    swatch,
    table,
)
from fairlead.sim.words import duration, part

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Document = Mapping[str, Any]

# Whatever a scenario or a policy is called, this page can neither run nor fetch anything.
SECURITY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
# On a phone it is scrolled sideways, which somebody with a keyboard can do only where he can stop.
WIDE = '<figure class="wide" tabindex="0">'
MANY = 8  # groups, above which their tables are folded away


def report_html(document: Document) -> str:
    """Write a report as one page of HTML that needs nothing else."""
    title = document["scenario"]["name"]
    names = plots.names_of(document)
    parts = [
        ("short", "In short", _in_short(document)),
        ("glance", "At a glance", _glance(document)),
        ("differences", "Differences", _differences(document)),
        ("waits", "Waits", _waits(document)),
        ("dags", "DAGs", _dags(document)),
        ("time", "Over time", _over_time(document)),
        ("outcomes", "Outcomes", _outcomes(document)),
        ("shares", "Shares", _shares(document)),
        ("tenants", "Tenants", _everything(document, "tenant")),
        ("workloads", "Workloads", _everything(document, "workload")),
        ("method", "How to read this", _method(document)),
        ("inputs", "What was simulated", _inputs(document)),
    ]
    shown = [(name, heading, body) for name, heading, body in parts if body]
    links = "".join(f'<a href="#{name}">{heading}</a>' for name, heading, _ in shown)
    sections = "".join(
        f'<section id="{name}" aria-labelledby="{name}-h"><h2 id="{name}-h">{heading}</h2>{body}</section>'
        for name, heading, body in shown
    )
    style = files("fairlead.sim").joinpath("report.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{SECURITY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'
        f"<title>{escape(title)} – Fairlead simulation</title><style>\n{style}</style></head><body>"
        '<a class="skip" href="#main">Skip to the report</a>'
        f'<header><p class="kicker">Fairlead simulation</p><h1>{escape(title)}</h1>{_facts(document)}'
        f"{_legend('Policies', names, 'compared with the first' if len(names) > 1 else '')}</header>"
        f'<nav aria-label="Sections">{links}</nav><main id="main">{sections}</main>'
        f"<footer>Made by Fairlead {escape(document['fairlead'])}. The same scenario, policies and seeds make the same "
        "file, byte for byte.</footer></body></html>\n"
    )


def _facts(document: Document) -> str:
    seeds = document["seeds"]
    first = document["policies"][0]
    arrived = document["figures"][first["name"]]["all"]["all"]["arrived"]["mean"]
    facts = [
        (f"{arrived:,.0f}", "tickets a run"),
        (duration(first["seconds"]), "of virtual time"),
        (
            str(len(document["policies"])),
            "policy" if len(document["policies"]) == 1 else "policies",
        ),
        (str(len(seeds)), "seed" if len(seeds) == 1 else f"seeds ({seeds[0]}–{seeds[-1]})"),
    ]
    if first["slots"] is not None:
        facts.insert(2, (f"{first['slots']:g}", "slots"))
    cells = "".join(f"<div><dt>{label}</dt><dd>{value}</dd></div>" for value, label in facts)
    return f'<dl class="facts">{cells}</dl>'


def _legend(
    title: str, names: Sequence[str], note: str = "", mark: Callable[[int], str] = plots.series
) -> str:
    items = "".join(
        f"<li>{swatch(mark(place))}{escape(name)}{f' <small>{note}</small>' if note and place else ''}</li>"
        for place, name in enumerate(names)
    )
    return f'<ul class="legend" aria-label="{escape(title)}">{items}</ul>'


def _in_short(document: Document) -> str:
    said = "".join(f"<li>{_kept(sentence)}</li>" for sentence in document["sentences"])
    return f'<ul class="said">{said}</ul>'


def _kept(sentence: str) -> str:
    """Escape a sentence, and keep figures and their units on one line."""
    return re.sub(r"(?<=[0-9]) (?=(%|pp|[µm]?s|min|h)\b|%)", "&nbsp;", escape(sentence))


def _glance(document: Document) -> str:
    return (
        table(document, "class", GLANCE, "Each class, with 95 % confidence over the seeds")
        + table(document, "all", GLANCE, "Everybody together", "who")
        + table(document, "all", WHOLE, "The whole", "who")
    )


def _differences(document: Document) -> str:
    drawn = []
    for index, other in enumerate(plots.names_of(document)[1:], 1):
        plot = plots.differences(document, other, index)
        first = escape(plots.names_of(document)[0])
        if plot:
            drawn.append(
                f"{WIDE}{plot}<figcaption>{swatch(plots.series(index))}{escape(other)} against {first}. A bar "
                "that touches “same” is no clear difference.</figcaption></figure>"
            )
    return "".join(drawn)


def _waits(document: Document) -> str:
    drawn = [
        f"<figure><h3>{escape(group)}</h3>{plot}</figure>"
        for index, group in enumerate(document["groups"]["class"])
        if (plot := plots.wait_curves(document, group, index))
    ]
    wide = "" if len(drawn) in {1, 2, 4} else " three"
    tables = _folded(
        "All percentiles by class",
        table(document, "class", WAITS, "Waits of what was given room, by class")
        + table(document, "class", COMPLETIONS, "From arrival to end of what was done, by class"),
    )
    return f'{_policies(document)}<div class="grid{wide}">{"".join(drawn)}</div>{tables}'


def _dags(document: Document) -> str:
    """Whole DAGs, from their arrival to the end of their last job; nothing where there are none."""
    by_class = table(document, "class", DAGS, "Whole DAGs, by class")
    by_tenant = table(document, "tenant", DAGS, "Whole DAGs, by tenant")
    if not by_class:
        return ""
    return (
        "<p>A DAG lasts from its arrival until the last of its jobs has ended, and is lost if one of them was.</p>"
        f"{by_class}{by_tenant}"
    )


def _policies(document: Document) -> str:
    names = plots.names_of(document)
    return _legend("Colours", names) if len(names) > 1 else ""


def _over_time(document: Document) -> str:
    classes = document["groups"]["class"]
    seed = document["seeds"][0]
    drawn = "".join(
        f"{WIDE}<h3>{escape(name)}</h3>{plots.timeline(document, name, index)}</figure>"
        for index, name in enumerate(plots.names_of(document))
    )
    return (
        f"<p>One run each, with seed {seed}; every point is the mean of a short part of the time.</p>"
        f"{_legend('Classes', classes, mark=plots.kind)}{drawn}"
    )


def _outcomes(document: Document) -> str:
    arrived = [
        outcome
        for outcome in plots.OUTCOMES
        if any(
            found.get(outcome, {}).get("mean")
            for figures in document["figures"].values()
            for found in figures.get("class", {}).values()
        )
    ]
    items = "".join(f'<li><i class="swatch outcome {name}"></i>{name}</li>' for name in arrived)
    return (
        f'<ul class="legend" aria-label="Outcomes">{items}</ul>{WIDE}{plots.outcomes(document)}</figure>'
        + table(document, "class", OUTCOMES, "What became of what arrived, by class")
        + table(document, "class", TURNS, "Deadlines, preemptions, promotions and shares, by class")
    )


def _shares(document: Document) -> str:
    drawn = [
        f"{WIDE}<h3>by {dimension}</h3>{plot}</figure>"
        for dimension in ("tenant", "class", "workload")
        if len(document["groups"][dimension]) > 1 and (plot := plots.shares(document, dimension))
    ]
    if not drawn:
        return ""
    first, *others = plots.names_of(document)
    misplaced = ""
    if len(document["groups"]["tenant"]) > 1:
        told = [
            f"{part(document['figures'][name]['all']['all']['misplaced']['mean'])} under {escape(name)}"
            for name in (first, *others)
            if "misplaced" in document["figures"][name]["all"]["all"]
        ]
        misplaced = f" Given to other tenants than max-min fairness would: {', '.join(told)}."
    return (
        "<p>Bars are the share a group had of all that was given; the upright mark is what a fluid would have given "
        "it: at each moment divided max-min fairly by what each had brought and not yet been given."
        f"{_kept(misplaced)}</p>{_policies(document)}{''.join(drawn)}"
    )


def _everything(document: Document, dimension: str) -> str:
    groups = document["groups"][dimension]
    if len(groups) < 2:
        return ""
    shown = (*GLANCE[:3], "arrived", *GLANCE[3:], "share", "fair")
    glance = table(document, dimension, shown, f"Each {dimension}")
    rest = (
        table(document, dimension, WAITS, f"Waits by {dimension}")
        + table(document, dimension, COMPLETIONS, f"Completions by {dimension}")
        + table(document, dimension, OUTCOMES, f"What became of what arrived, by {dimension}")
        + table(document, dimension, TURNS, f"Deadlines, preemptions and promotions by {dimension}")
    )
    first = glance if len(groups) <= MANY else _folded(f"All {len(groups)}", glance)
    return first + _folded(f"All figures by {dimension}", rest)


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def _method(document: Document) -> str:
    seeds = len(document["seeds"])
    sure = (
        "Every policy met the same arrivals under the same seed. A figure is its mean over the seeds, ± half its 95 % "
        "confidence interval (Student’s t). Differences are taken seed by seed first (paired), which removes what the "
        "seeds themselves differ by; ✓ better, ✗ worse, ≈ the interval holds zero: no clear difference."
        if seeds > 1
        else "There is one seed, so there is no confidence in a difference: it may be luck. Give --seeds 5 or more."
    )
    return (
        f"<ul><li>{sure}</li><li>Waits are of tickets that were given room, completions (from arrival to end) of those "
        "that were done. A policy that refuses more may so show shorter waits: read both with <em>lost</em>, which is "
        "all that was refused, expired while waiting, was preempted for good or was withdrawn.</li><li>A percentile is "
        "the smallest value that so many percent do not exceed.</li><li>A deadline is missed by what ends after it and "
        "by what never is done.</li></ul>"
    )


def _inputs(document: Document) -> str:
    scenario = document["scenario"]
    blocks = (
        [_folded("The scenario", f"<pre>{escape(scenario['text'])}</pre>")]
        if scenario["text"]
        else []
    )
    for policy in document["policies"]:
        totals = ", ".join(f"{name} {number:,}" for name, number in policy["totals"].items())
        note = f"<p>Counted over all seeds: {escape(totals)}.</p>" if totals else ""
        blocks.append(
            _folded(f"The policy {policy['name']}", f"<pre>{escape(policy['text'])}</pre>{note}")
        )
    return "".join(blocks)
