"""Our own records as arrivals: JSON lines, the rows of a running Fairlead, and the verbs of a `Recorder`.

A line of ours says  {"t": 12.5, "class": "bulk", "tenant": "acme", "kind": "report", "tokens": 3, "service_ms": 250}
and may say priority, deadline (an instant on the clock of t), patience_ms, estimate_ms, id, deps (ids), dag, pool,
door, and of a batch of a stream partition, batch_cost and keys (how many of its records each has; null: not known).
What a running Fairlead noted of a ticket (arrived, started, ended, rank, cost, key) reads the same way.
"""

from __future__ import annotations

import json
from math import inf
from statistics import median
from typing import TYPE_CHECKING, Any

from fairlead.config import shown
from fairlead.core.ticket import Ticket
from fairlead.core.trace import replay
from fairlead.documents.values import LONGEST
from fairlead.errors import ConfigError, FairleadError
from fairlead.sim.arrivals import MOST_ARRIVALS
from fairlead.sim.batches import unbatched
from fairlead.sim.graphs import followers_of, in_a_circle
from fairlead.sim.result import Arrival

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from fairlead.sim.sources import Trace
    from fairlead.sim.traces import Lines

LONGEST_LINE = 1_000_000
LARGEST = 1e15  # beyond, a number of seconds could not tell one from the next


class _Bad(ConfigError):
    """Something in one line; the message says what."""


def _number(row: Mapping[str, Any], *names: str) -> float | None:
    """Find the first of these that is given; infinite is not given."""
    for name in names:
        value = row.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise _Bad(f"{name} must be a number; got {shown(value)}")
        if value in (inf, -inf):
            continue
        if abs(value) > LARGEST:  # compared as it is: a whole number may be too large for a float
            raise _Bad(f"{name} must be {LARGEST:g} at most; got {shown(value)}")
        return float(value)
    return None


def _text(row: Mapping[str, Any], *names: str) -> str:
    for name in names:
        value = row.get(name)
        if isinstance(value, str):
            return value
        if isinstance(value, list | tuple) and value and isinstance(value[0], str):
            return value[0]  # a workload of flows is a name and a priority
        if value is not None and isinstance(value, int | float):
            return str(value)
        if value is not None:
            raise _Bad(f"{name} must be text; got {shown(value)}")
    return ""


def _class_of(row: Mapping[str, Any], classes: Sequence[str]) -> str:
    said = _text(row, "class", "cls")
    if said:
        return said
    rank = row.get("rank")
    if isinstance(rank, int) and 0 <= rank < len(classes):
        return classes[rank]
    return "default"


def _service(row: Mapping[str, Any]) -> float | None:
    """How long its work took, if the row knows."""
    said = _number(row, "service_ms")
    service = _number(row, "service") if said is None else said / 1000.0
    if service is None:
        started, ended = _number(row, "started"), _number(row, "ended")
        if started is not None and ended is not None and row.get("state", "done") == "done":
            service = ended - started
    if service is not None and service < 0:
        raise _Bad(f"its work may not take less than no time; got {service:g} s")
    if service is not None and service > LONGEST:
        raise _Bad(f"its work may take {LONGEST:,.0f} s at most; got {service:g} s")
    return service


def _arrival(row: Mapping[str, Any], classes: Sequence[str]) -> tuple[Arrival, bool]:
    """Read one row; False where nobody knows how long its work would have taken."""
    at = _number(row, "t", "arrived", "at")
    if at is None:
        raise _Bad("needs t, the instant at which it came")
    service = _service(row)
    priority = _number(row, "priority")
    cost = _number(row, "tokens", "cost")
    if cost is not None and cost < 0:
        raise _Bad(f"tokens must be 0 or more; got {cost:g}")
    patience, estimate = _number(row, "patience_ms"), _number(row, "estimate_ms")
    commits = _number(row, "commits_ms")
    dag, partition = row.get("dag"), _text(row, "partition")
    arrival = Arrival(
        at,
        0.0 if service is None else service,
        _class_of(row, classes),
        _text(row, "tenant"),
        _text(row, "workload", "kind"),
        50 if priority is None else max(0, min(100, int(priority))),
        1.0 if cost is None else cost,
        _number(row, "deadline"),
        None if patience is None else max(0.0, patience / 1000.0),
        _text(row, "id", "key"),
        (),
        _text(row, "pool"),
        dag if isinstance(dag, int) and not isinstance(dag, bool) else -1,
        commits=None if commits is None else max(0.0, commits / 1000.0),
        estimate=None if estimate is None else max(0.0, estimate / 1000.0),
        labels=_batch(row, partition, cost),
        door=_text(row, "door"),
    )
    return arrival, service is not None


def _batch(row: Mapping[str, Any], partition: str, records: float | None) -> dict[str, str] | None:
    """What is known of a batch of a stream, as labels; None if it is none."""
    cost, keys = _number(row, "batch_cost"), row.get("keys")
    if not partition:
        if keys is not None:
            raise _Bad("keys are those of a batch of a stream, which tells its partition too")
        return None
    if cost is not None and cost < 0:
        raise _Bad(f"batch_cost must be 0 or more; got {cost:g}")
    if keys is not None:
        counts = keys.values() if isinstance(keys, dict) else [0]
        if not all(type(one) is int and one > 0 for one in counts) or sum(counts) != records:
            raise _Bad(f"keys must tell how many of its records each key has; got {shown(keys)}")
    labels = {"partition": partition} | ({} if cost is None else {"cost": repr(cost)})
    return labels if keys is not None or "keys" not in row else labels | {"keyless": "yes"}


def arrivals_of(
    rows: Iterable[Mapping[str, Any]], classes: Sequence[str] = (), *, most: int = MOST_ARRIVALS
) -> list[Arrival]:
    """Make arrivals of the rows of a running Fairlead (or of lines of ours); times stay as they are.

    A ticket that never got to its end (refused, expired, still waiting) is taken to need what others of its class
    needed, in the middle; `classes` names the ranks, lowest first.  A batch of a stream becomes its records, or as
    few of them together as there may be arrivals (`most`).
    """
    found = [row for row in rows if not _lost(row)]
    return _joined(found, [_arrival(row, classes) for row in found], most)


def _lost(row: Mapping[str, Any]) -> bool:
    return row.get("state") == "lost"  # it never really began


def _joined(
    rows: Sequence[Mapping[str, Any]],
    read: Sequence[tuple[Arrival, bool]],
    most: int = MOST_ARRIVALS,
) -> list[Arrival]:
    known: dict[str, list[float]] = {}
    for arrival, sure in read:
        if sure:
            known.setdefault(arrival.cls, []).append(arrival.service)
    everyone = [service for services in known.values() for service in services]
    otherwise = median(everyone) if everyone else 0.0
    middle = {name: median(services) for name, services in known.items()}
    numbers = {arrival.key: index for index, (arrival, _) in enumerate(read) if arrival.key}
    committed: dict[str, list[float]] = {}
    for arrival, _ in read:
        if arrival.commits is not None:
            committed.setdefault(arrival.cls, []).append(arrival.commits)
    usual = {name: median(commits) for name, commits in committed.items()}
    result = []
    for row, (arrival, sure) in zip(rows, read, strict=True):
        if not sure:
            arrival = arrival._replace(service=middle.get(arrival.cls, otherwise))
        if arrival.commits is None and arrival.cls in usual:  # preempted, or turned away, before
            arrival = arrival._replace(commits=usual[arrival.cls])
        deps = row.get("deps")
        if deps:
            arrival = arrival._replace(deps=_deps(arrival, deps, numbers))
        result.append(arrival)
    return _graphs(unbatched(result, [row.get("keys") or {} for row in rows], most))


def _deps(arrival: Arrival, deps: Any, numbers: Mapping[str, int]) -> tuple[int, ...]:
    if not isinstance(deps, list | tuple):
        raise _Bad(f"deps must be a list of ids; got {shown(deps)}")
    unknown = [dep for dep in deps if str(dep) not in numbers]
    if unknown:
        raise _Bad(f"depends on {shown(unknown[0])}, and no line has that id")
    return tuple(dict.fromkeys(numbers[str(dep)] for dep in deps))


def _graphs(arrivals: list[Arrival]) -> list[Arrival]:
    """Number the graphs: what depends on one another, directly or through others, is one; in a circle nobody begins."""
    if not any(arrival.deps for arrival in arrivals):
        return arrivals
    parent = list(range(len(arrivals)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    followers = followers_of(arrivals)
    stuck = in_a_circle(arrivals, followers)
    if stuck is not None:
        raise _Bad(f"{shown(stuck.key)} depends on itself, through others")
    for dep, waiting in followers.items():
        for index in waiting:
            parent[root(index)] = root(dep)
    sizes: dict[int, int] = {}
    for index in range(len(arrivals)):
        sizes[root(index)] = sizes.get(root(index), 0) + 1
    names: dict[tuple[str, int], int] = {}

    def numbered(index: int, arrival: Arrival) -> Arrival:
        if sizes[root(index)] == 1 and arrival.dag < 0:
            return arrival
        graph = ("given", arrival.dag) if arrival.dag >= 0 else ("found", root(index))
        return arrival._replace(dag=names.setdefault(graph, len(names)))

    return [numbered(index, arrival) for index, arrival in enumerate(arrivals)]


def see_size(path: Path, count: int) -> None:
    """See that a file does not fill the memory."""
    if count > MOST_ARRIVALS:
        raise ConfigError(
            f"{path} holds more than {MOST_ARRIVALS:,} arrivals; cut a part out of it"
        )


def _objects(path: Path, lines: Lines, kind: type) -> Iterator[tuple[int, Any]]:
    """Read one JSON value of a kind from each line that is not empty."""
    called = "an object" if kind is dict else "a list"
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            see_size(path, number)
            if not line.strip():
                continue
            if len(line) > LONGEST_LINE:
                lines.wrong(number, f"is longer than {LONGEST_LINE:,} characters; is it a trace?")
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                lines.wrong(number, f"is no JSON: {shown(str(error))}")
                continue
            if isinstance(value, kind):
                yield number, value
            else:
                lines.wrong(number, f"must be {called}; got {shown(value)}")


def jsonl(path: Path, lines: Lines, classes: Sequence[str] = ()) -> list[Arrival]:
    """Read lines of ours, or those that `fairlead record` wrote."""
    rows: list[Mapping[str, Any]] = []
    read: list[tuple[Arrival, bool]] = []
    for number, row in _objects(path, lines, dict):
        if _lost(row):
            continue
        try:
            read.append(_arrival(row, classes))
            rows.append(row)
        except _Bad as error:
            lines.wrong(number, str(error))
    lines.stop()
    try:
        return _joined(rows, read)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def recorder(source: Trace, folder: Path, path: Path, lines: Lines) -> list[Arrival]:
    """Read the verbs of a `Recorder`, one a line; they are replayed under the policy they were recorded under.

    Verbs tell when work was offered and when it ended, not when it started: that is for the policy to say.
    """
    from fairlead.core import Gate
    from fairlead.sim.building import read_policy

    if source.recorded_under is None:
        raise ConfigError(
            f"{path}: verbs do not tell when work started; name the policy that decided it "
            "with recorded_under"
        )
    site = read_policy(folder / source.recorded_under).build()
    if not isinstance(site.gate, Gate):
        raise ConfigError(
            "recorded_under: flows and jobs are recorded as rows; use fairlead record"
        )
    entries = [tuple(entry) for _, entry in _objects(path, lines, list)]
    lines.stop()
    made: list[Ticket] = []
    limits: list[float] = []  # of their waits, before the policy shortens them

    def make(**fields: Any) -> Ticket:
        made.append(Ticket(**fields))
        limits.append(float(made[-1].wait_until))
        return made[-1]

    try:
        replay(entries, site.gate, make)
    except (FairleadError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise ConfigError(f"{path} is no log of verbs: {error!r}") from None
    ends = _ends(entries)
    classes = source.classes or site.classes
    rows = [
        _noted(ticket, limit, ends.get(number))
        for number, (ticket, limit) in enumerate(zip(made[1:], limits[1:], strict=True))
    ]
    try:
        return arrivals_of(rows, classes)
    except _Bad as error:
        raise ConfigError(f"{path}: {error}") from None


def _ends(entries: Sequence[tuple[Any, ...]]) -> dict[int, float]:
    ends: dict[int, float] = {}
    for verb, now, *rest in entries:
        if verb == "finish":
            ends.setdefault(rest[0], now)
        elif verb == "finish_all":
            for number in rest[0]:
                ends.setdefault(number, now)
    return ends


def _noted(ticket: Ticket, limit: float, ended: float | None) -> dict[str, Any]:
    state = ticket.state.value
    return {
        "arrived": ticket.arrived_at,
        "started": ticket.started_at,
        "ended": ended,
        "state": state,
        "rank": ticket.rank,
        "tenant": ticket.tenant,
        "workload": ticket.workload,
        "cost": ticket.cost,
        "priority": ticket.priority,
        "deadline": ticket.deadline,
        "patience_ms": (limit - ticket.arrived_at) * 1000,
        "pool": ticket.pool,
        "key": None if ticket.key is None else str(ticket.key),
    }
