"""What really happened at a gate, in the figures of the simulator, so that it can stand beside what was simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.sim.figures import figures
from fairlead.sim.result import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Groups = dict[str, dict[str, dict[str, Any]]]

# How the ends of a gate count among those of the simulator; work that failed has had its slot until its end.
STATES = {"failed": "done", "disconnected": "withdrawn"}
NO_TICKETS = ("lost", "moved")  # never really begun, or offered elsewhere
DIMENSIONS: dict[str, Callable[[Row], str]] = {
    "all": lambda row: "all",
    "class": lambda row: row.cls,
    "tenant": lambda row: row.tenant or "–",
}


def observed(lines: Iterable[Mapping[str, Any]]) -> Groups:
    """Return the figures of recorded lines, by dimension and group; rates are over the time they span."""
    rows = [_row(line) for line in lines if line["state"] not in NO_TICKETS]
    began = min((row.at for row in rows), default=0.0)
    horizon = max((row.ended or row.at for row in rows), default=0.0) - began
    groups: Groups = {}
    for dimension, parts in _parted(rows).items():
        groups[dimension] = {name: dict(figures(part, horizon)) for name, part in parts.items()}
    add_wasted(groups, rows)
    return groups


def add_wasted(groups: Groups, rows: Sequence[Row]) -> None:
    """Add the seconds of work that preemptions threw away."""
    for dimension, parts in _parted(rows).items():
        for name, part in parts.items():
            if name in groups.get(dimension, {}):
                groups[dimension][name]["wasted"] = sum(map(_wasted, part))


def _wasted(row: Row) -> float:
    if row.state != "evicted" or row.started is None or row.ended is None:
        return 0.0
    return max(0.0, row.ended - row.started)


def _parted(rows: Sequence[Row]) -> dict[str, dict[str, list[Row]]]:
    found: dict[str, dict[str, list[Row]]] = {}
    for dimension, name_of in DIMENSIONS.items():
        parts = found.setdefault(dimension, {})
        for row in rows:
            parts.setdefault(name_of(row), []).append(row)
    return found


def _row(line: Mapping[str, Any]) -> Row:
    state = STATES.get(line["state"], line["state"])
    return Row(
        line["t"],
        line["started"],
        line["ended"],
        state,
        line["class"],
        line["tenant"] or "",
        deadline=line["deadline"],
        preempted=int(state == "evicted"),
    )
