"""The report of a simulation as one JSON document: figures, differences, lines over time, and sentences.

Everything the HTML page shows is in this document, and it is made of the summaries alone: the same scenario, policies
and seeds give the same bytes.  Numbers are kept to six figures, so that the last bit of a sum decides nothing.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead import __version__
from fairlead.errors import ConfigError
from fairlead.sim.compare import CONFIDENCE, differences, estimates, gather
from fairlead.sim.figures import DIMENSIONS, EVERYBODY, MEASURES, order_of
from fairlead.sim.words import amount, part, relative

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fairlead.sim.figures import Summary

    Document = dict[str, Any]

NOBODY = "Nobody arrives in this scenario; look at its seconds, start and end"
FORM = 1  # of the document; another one may mean something else by the same names


class Contender(NamedTuple):
    """A policy with its document, and what became of it under each seed."""

    name: str
    text: str
    runs: Sequence[Summary]


def make_report(scenario: str, text: str, contenders: Sequence[Contender]) -> Document:
    """Put the report together; the first policy is the one the others are compared with."""
    if not contenders or not contenders[0].runs:
        raise ConfigError(
            "there is nothing to report: simulate one policy or more, with one seed or more"
        )
    seeds = [run.seed for run in contenders[0].runs]
    groups = {name: _groups(name, contenders) for name in DIMENSIONS}
    values = {
        contender.name: gather([run.groups for run in contender.runs], groups)
        for contender in contenders
    }
    first = contenders[0].name
    document: Document = {
        "form": FORM,
        "fairlead": __version__,
        "scenario": {"name": scenario, "text": text},
        "seeds": seeds,
        "confidence": CONFIDENCE,
        "measures": {name: measure._asdict() for name, measure in MEASURES.items()},
        "groups": groups,
        "policies": [_policy(contender) for contender in contenders],
        "figures": {name: estimates(found) for name, found in values.items()},
        "differences": {
            other.name: differences(values[first], values[other.name]) for other in contenders[1:]
        },
        "curves": {one.name: _curves(one.runs, groups["class"]) for one in contenders},
        "timelines": {one.name: one.runs[0].timeline for one in contenders},
    }
    document = rounded(document)
    document["sentences"] = [*_about_seeds(contenders), *sentences(document)]
    return document


def dump(document: Document) -> str:
    """Write the document; keys stand in the order in which they were made, which is always the same."""
    return json.dumps(document, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def rounded(value: Any) -> Any:
    """Keep six figures of each number."""
    if isinstance(value, float):
        return float(f"{value:.6g}") + 0.0  # and no negative zero
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    return value


def _policy(contender: Contender) -> Document:
    runs = contender.runs
    totals: dict[str, int] = {}
    for run in runs:
        for name, number in run.totals.items():
            totals[name] = totals.get(name, 0) + number
    return {
        "name": contender.name,
        "text": contender.text,
        "slots": runs[0].slots,
        "seconds": sum(run.horizon for run in runs) / len(runs),
        "totals": dict(sorted(totals.items())),
    }


def _groups(dimension: str, contenders: Sequence[Contender]) -> list[str]:
    found = {
        name: None
        for contender in contenders
        for run in contender.runs
        for name in run.groups[dimension]
    }
    return order_of(found)


def _curves(runs: Sequence[Summary], classes: Sequence[str]) -> Document:
    """Average the waits at each percentile that every seed can tell."""
    told: Document = {}
    for name in classes:
        found = [dict(run.curves[name]) for run in runs if run.curves.get(name)]
        if found:
            shared = [at for at in found[0] if all(at in curve for curve in found)]
            told[name] = [[at, sum(curve[at] for curve in found) / len(found)] for at in shared]
    return told


def _about_seeds(contenders: Sequence[Contender]) -> list[str]:
    """Say so if another seed changes nothing: then an interval of no width is no confidence."""
    for contender in contenders:
        if not any(run.groups["class"] for run in contender.runs):
            return []  # nobody came, and that is what there is to say
        first, *others = (run.groups for run in contender.runs)
        if not others or any(groups != first for groups in others):
            return []
    return [
        "Nothing in this scenario is left to chance: every seed gives the same, and one is enough."
    ]


def sentences(document: Document) -> list[str]:
    """Say what the comparison shows, whichever way it points; without a second policy, what the one did."""
    first, *others = [policy["name"] for policy in document["policies"]]
    if not document["groups"]["class"]:
        return [f"{NOBODY}."]
    if not others:
        return _alone(document, first) or ["Nobody was given room."]
    said = []
    for other in others:
        for name in document["groups"]["class"]:
            said += _about_class(document, first, other, name)
        said += _about_all(document, first, other)
    return said or ["The policies make no difference here that is worth a word."]


def _alone(document: Document, policy: str) -> list[str]:
    said = []
    for name, found in document["figures"][policy].get("class", {}).items():
        if "wait.p99" in found:
            lost = found["lost"]["mean"]
            loss = f"{part(lost)} of it was lost" if lost else "none of it was lost"
            waits = ", ".join(
                f"{amount(f'wait.{at}', found[f'wait.{at}']['mean'])} at {at}"
                for at in ("p50", "p99")
            )
            said.append(f"{name} waited {waits}; {loss}.")
    return said


def _about_class(document: Document, first: str, other: str, name: str) -> list[str]:
    found = document["differences"][other].get("class", {}).get(name, {})
    told = []
    for measure, wording in (("wait.p99", "waits {} at p99"), ("lost", "loses {}")):
        difference = found.get(measure)
        if difference is None or difference["verdict"] == "same":
            continue
        after = document["figures"][other]["class"][name][measure]["mean"]
        before = document["figures"][first]["class"][name][measure]["mean"]
        if max(before, after) < (0.0005 if measure == "lost" else 0.0001):
            continue  # nothing anybody would notice
        if (
            measure == "lost"
            and difference["verdict"] == "unclear"
            and difference["low"] is not None
        ):
            continue
        told.append(
            f"{wording.format(amount(measure, after))} instead of {amount(measure, before)}"
            f"{_how_sure(difference)}"
        )
    return [f"Under {other}, {name} {' and '.join(told)}."] if told else []


def _about_all(document: Document, first: str, other: str) -> list[str]:
    found = document["differences"][other].get(EVERYBODY, {}).get(EVERYBODY, {})
    difference = found.get("misplaced")
    if difference is None or difference["verdict"] in {"same", "unclear"}:
        return []
    before, after = (
        document["figures"][name][EVERYBODY][EVERYBODY]["misplaced"]["mean"]
        for name in (first, other)
    )
    if max(before, after) < 0.005:
        return []
    return [
        f"Under {other}, {part(after)} of what was given went past its max-min fair owner among the tenants, "
        f"against {part(before)} under {first}."
    ]


def _how_sure(difference: Mapping[str, Any]) -> str:
    said = [] if difference["relative"] is None else [relative(difference["relative"])]
    if difference["low"] is None:
        said.append("one seed")
    elif difference["verdict"] == "unclear":
        said.append("no clear difference")
    return f" ({', '.join(said)})" if said else ""
