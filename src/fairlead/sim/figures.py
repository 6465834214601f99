"""What one simulated run came to: waits, completions, losses and shares, of all and by class, tenant and workload.

A figure is a plain number under a flat name (`wait.p99`, `refused`), or None where there is nothing to measure.  Waits
are of what was given room, completions (from arrival to end) of what was done; those turned away are counted in
`refused`, `expired`, `evicted` and `withdrawn`, as parts of what arrived.  `lost` is the four together.

A DAG counts as one in `dags` and `dag.p99`: it lasts from its arrival until the last of its jobs has ended, and is lost
if one of them was.  Where jobs are told apart by workload there are no whole DAGs, and so none of these figures.

`share` is the part a group had of all that was given, over the run; `fair` is what it would have had if all that was
given had been divided max-min fairly by what each group brought (see `shares`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.sim.shares import fair_shares, levels, queued, served

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fairlead.sim.result import Result, Row

    Figures = dict[str, float | None]

DIMENSIONS = ("all", "class", "tenant", "workload")
MOST_GROUPS = 40  # of one dimension; the smaller ones are taken together
OTHERS = "(others)"
EVERYBODY = "all"
PERCENTILES = (50, 90, 95, 99, 99.9)
# Where a curve of waits is drawn; one in a thousand is the last that can be told from a usual run.
CURVE = (0, 10, 25, 50, 75, 80, 90, 95, 98, 99, 99.5, 99.8, 99.9)
LOSSES = ("refused", "expired", "evicted", "withdrawn")
IMPORTANCE = ("system", "interactive", "default", "bulk")  # as the gateway ranks them
FAIR_BINS = 400
BINS = 125  # of a line over time in a report: an eighth of a result's


class Measure(NamedTuple):
    """A figure's meaning: its unit, and whether less or more of it is better (or neither)."""

    label: str
    unit: str
    better: str = ""


def _measures() -> dict[str, Measure]:
    found: dict[str, Measure] = {}
    for name, of in (("wait", "wait"), ("completion", "completion"), ("dag", "DAG")):
        found[f"{name}.mean"] = Measure(f"mean {of}", "seconds", "less")
        for part in PERCENTILES:
            found[f"{name}.p{part:g}"] = Measure(f"p{part:g} {of}", "seconds", "less")
        found[f"{name}.max"] = Measure(f"longest {of}", "seconds", "less")
    return found | {
        "arrived": Measure("arrived", "count"),
        "done": Measure("done", "count", "more"),
        "throughput": Measure("done per second", "rate", "more"),
        "refused": Measure("refused", "part", "less"),
        "expired": Measure("expired waiting", "part", "less"),
        "evicted": Measure("preempted for good", "part", "less"),
        "withdrawn": Measure("withdrawn", "part", "less"),
        "lost": Measure("lost", "part", "less"),
        "unfinished": Measure("unfinished", "part", "less"),
        "dags": Measure("DAGs", "count"),
        "dags_lost": Measure("DAGs lost", "part", "less"),
        "deadlines": Measure("with a deadline", "count"),
        "missed": Measure("deadlines missed", "part", "less"),
        "promoted": Measure("promotions", "count"),
        "preempted": Measure("preemptions", "count"),
        "share": Measure("share", "part"),
        "fair": Measure("max-min fair share", "part"),
        "misplaced": Measure("given past its fair owner", "part", "less"),
        "utilisation": Measure("utilisation", "part", "more"),
    }


MEASURES = _measures()


class Summary(NamedTuple):
    """One run, summed up; `groups` is dimension, group, figures."""

    policy: str
    seed: int
    horizon: float
    slots: float | None
    totals: dict[str, int]
    groups: dict[str, dict[str, Figures]]
    curves: dict[str, list[tuple[float, float]]]
    timeline: dict[str, Any]


def summarise(result: Result) -> Summary:
    """Sum a run up; what is left needs no ticket of it."""
    classes = _parted(result.tickets, "class")
    return Summary(
        result.policy,
        result.seed,
        result.horizon,
        result.slots,
        dict(sorted(result.totals.items())),
        groups_of(result),
        {name: _curve(part) for name, part in classes.items()},
        _timeline(result, classes),
    )


def groups_of(
    result: Result, dimensions: Sequence[str] = DIMENSIONS, *, shares: bool = True
) -> dict[str, dict[str, Figures]]:
    """Tell the figures of a run, by dimension and group; without shares it takes half the time."""
    groups: dict[str, dict[str, Figures]] = {}
    for dimension in dimensions:
        parts = _parted(result.tickets, dimension)
        weighs = result.weighs
        fair = fair_shares(parts, result.horizon, FAIR_BINS, weighs=weighs) if shares else {}
        groups[dimension] = {}
        for name, part in parts.items():
            share, due = fair.get(name, (None, None))
            found = figures(part, result.horizon)
            if dimension != "workload":
                found |= _dag_figures(part)
            groups[dimension][name] = found | {"share": share, "fair": due}
    if EVERYBODY in groups:
        everybody = groups[EVERYBODY][EVERYBODY]
        everybody["utilisation"] = _utilisation(result)
        everybody["misplaced"] = _misplaced(groups.get("tenant", {}))
    return groups


def figures(rows: Sequence[Row], horizon: float) -> Figures:
    """Tell what happened to some tickets, all but their share."""
    waits = _waits(rows)
    completions = sorted(took for row in rows if (took := row.took) is not None)
    found: Figures = {}
    found |= _spread("wait", waits) | _spread("completion", completions)
    arrived = len(rows)
    states: dict[str, int] = {}
    for row in rows:
        states[row.state] = states.get(row.state, 0) + 1
    done = states.get("done", 0)
    found["arrived"] = arrived
    found["done"] = done
    found["throughput"] = done / horizon if horizon > 0 else None
    for name in LOSSES:
        found[name] = states.get(name, 0) / arrived if arrived else None
    lost = sum(states.get(name, 0) for name in LOSSES)
    found["lost"] = lost / arrived if arrived else None
    found["unfinished"] = (arrived - done - lost) / arrived if arrived else None
    timed = [row for row in rows if row.deadline is not None]
    found["deadlines"] = len(timed)
    found["missed"] = sum(row.late for row in timed) / len(timed) if timed else None
    found["promoted"] = sum(int(row.promoted) for row in rows)
    found["preempted"] = sum(int(row.preempted) for row in rows)
    return found


def _spread(name: str, ordered: Sequence[float]) -> Figures:
    """Tell the mean, the percentiles and the longest of some durations."""
    found: Figures = {f"{name}.mean": sum(ordered) / len(ordered) if ordered else None}
    for part in PERCENTILES:
        found[f"{name}.p{part:g}"] = percentile(ordered, part)
    found[f"{name}.max"] = ordered[-1] if ordered else None
    return found


def _dag_figures(rows: Sequence[Row]) -> Figures:
    """Tell how long whole DAGs took, if there are any."""
    dags: dict[int, list[Row]] = {}
    for row in rows:
        if row.dag >= 0:
            dags.setdefault(row.dag, []).append(row)
    if not dags:
        return {}
    # What runs or waits yet when time is up is neither done nor lost.
    lost = sum(any(row.state in LOSSES for row in jobs) for jobs in dags.values())
    took = sorted(
        max(row.ended or 0.0 for row in jobs) - min(row.at for row in jobs)
        for jobs in dags.values()
        if all(row.state == "done" for row in jobs)
    )
    return _spread("dag", took) | {"dags": len(dags), "dags_lost": lost / len(dags)}


def percentile(ordered: Sequence[float], part: float) -> float | None:
    """Tell the smallest value that at least `part` percent do not exceed."""
    if not ordered:
        return None
    # In thousandths of a percent, for 99.9 / 100 * 1000 is a little more than 999.
    rank = -(-len(ordered) * round(part * 1000) // 100_000)
    return ordered[max(0, rank - 1)]


def order_of(names: Iterable[str]) -> list[str]:
    """Put groups in the order in which they are shown: known classes by importance, then by name."""

    def place(name: str) -> tuple[int, bool, str]:
        rank = IMPORTANCE.index(name) if name in IMPORTANCE else len(IMPORTANCE)
        return rank, name == OTHERS, name

    return sorted(names, key=place)


def _waits(rows: Sequence[Row]) -> list[float]:
    return sorted(row.started - row.at for row in rows if row.started is not None)


def _parted(rows: Sequence[Row], dimension: str) -> dict[str, list[Row]]:
    """Divide tickets by a dimension; an absent name is one too."""
    if dimension == EVERYBODY:
        return {EVERYBODY: list(rows)}
    read: dict[str, Callable[[Row], Any]] = {
        "class": lambda row: row.cls,
        "tenant": lambda row: row.tenant,
        "workload": lambda row: row.workload,
    }
    name_of = read[dimension]
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault(str(name_of(row) or "–"), []).append(row)
    if len(parts) <= MOST_GROUPS:
        return {name: parts[name] for name in order_of(parts)}
    largest = sorted(parts, key=lambda name: (-len(parts[name]), name))
    kept = {name: parts[name] for name in order_of(largest[: MOST_GROUPS - 1])}
    kept[OTHERS] = [row for name in largest[MOST_GROUPS - 1 :] for row in parts[name]]
    return kept


def _curve(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Tell the wait at each percentile that enough tickets support."""
    waits = _waits(rows)
    points = []
    for part in CURVE:
        found = percentile(waits, part)
        if found is not None and len(waits) * (100 - part) >= 100:
            points.append((float(part), found))
    return points


def _utilisation(result: Result) -> float | None:
    """Tell how much of the slots was used, on average over the run."""
    if not result.slots or not result.utilisation:
        return None
    used = sum(level for _, level in result.utilisation) / len(result.utilisation)
    return used / result.slots


def _misplaced(tenants: Mapping[str, Figures]) -> float | None:
    """Tell what part of all that was given went to other tenants than max-min fairness would have given it to."""
    pairs = [(found["share"], found["fair"]) for found in tenants.values()]
    known = [(share, due) for share, due in pairs if share is not None and due is not None]
    # Both are sums of many small parts: what is beneath a millionth is only how they were added.
    return round(sum(max(0.0, share - due) for share, due in known), 6) if known else None


def _timeline(result: Result, classes: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """Tell who waited and who ran over time, as averages within equal parts of the run."""
    horizon = result.horizon
    step = -(-len(result.utilisation) // BINS) or 1
    used = [level for _, level in result.utilisation]
    parts = [used[begin : begin + step] for begin in range(0, len(used), step)]
    return {
        "seconds": horizon,
        "waiting": {
            name: levels(queued(rows, horizon), horizon, BINS) for name, rows in classes.items()
        },
        "running": {
            name: levels(served(rows, horizon, weighs=result.weighs), horizon, BINS)
            for name, rows in classes.items()
        },
        "used": [sum(part) / len(part) for part in parts],
    }
