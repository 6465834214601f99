"""What passed a gate, as lines that the simulator reads: one ticket each, with when it came and how long it took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.server.snapshots import name_of, workload_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from fairlead.observe.passed import Passed
    from fairlead.server.batch_keys import Held

Job = tuple[int, int]  # the number of its run and its place in it


def in_turn(rows: Iterable[Passed]) -> list[Passed]:
    """Sort as they came: rows are kept as they ended, and whoever reads the lines keeps what came at once in order."""
    return sorted(rows, key=lambda row: (row.arrived, row.seq))


def lines_of(rows: Iterable[Passed]) -> Iterator[dict[str, Any]]:
    """Describe tickets as they came."""
    return map(line_of, in_turn(rows))


def line_of(row: Passed) -> dict[str, Any]:
    """Describe one ticket; instants are seconds since the epoch, and `service_ms` is null if its work was not done."""
    done = row.state == "done" and row.started is not None
    committed = {} if row.committed is None else {"commits_ms": row.committed * 1000}
    return committed | {
        "t": row.arrived,
        "kind": row.gate,
        "class": row.cls,
        "rank": row.rank,
        "tenant": None if row.tenant is None else name_of(row.tenant),
        "workload": workload_of(row.workload),
        "priority": row.priority,
        "tokens": row.cost,
        "service_ms": (row.ended - (row.started or 0.0)) * 1000 if done else None,
        "deps": [],
        "deadline": row.deadline,
        "patience_ms": None if row.patience is None else row.patience * 1000,
        "key": name_of(row.key),
        "state": row.state,
        "started": row.started,
        "ended": row.ended,
    }


def batch_lines(rows: Iterable[Passed]) -> Iterator[dict[str, Any]]:
    """Describe batches of streams: `tokens` records of one partition, and `batch_cost` if they count otherwise.

    By when a batch should have begun is left out: the simulator counts by when work should have ended.  Where order is
    kept by key, `keys` is how many records each key had, and null if that is not known (any more).
    """
    for row in in_turn(rows):
        place: Any = row.key  # topic and partition
        held: Held = row.more
        line = line_of(row) | {"partition": place[1], "tokens": held.records, "deadline": None}
        if row.cost != held.records:
            line["batch_cost"] = row.cost
        if held.keys is not None:
            line["keys"] = held.keys.counts()
        yield line


def job_of(row: Passed) -> Job:
    """Tell which job a row of the jobs' gate is about."""
    run, _, node = str(row.key).partition(".")
    return int(run), int(node)


def job_lines(
    rows: Iterable[Passed], needs: Mapping[Job, Sequence[int]]
) -> Iterator[dict[str, Any]]:
    """Describe jobs with what each waited for, in the order in which they became ready.

    A job all of whose needs are told too may come (`t`) as soon as they may: when it really came, `ready`, was for the
    slots to say.  If one of them is not told, because it ended before, `ready` is the best that is known.  Each further
    try waits for the one before it, and comes no sooner than it did.  A wait that was broken off to begin again,
    because something about the job had changed, was no try.
    """
    tries: dict[Job, int] = {}
    latest: dict[Job, tuple[str, float]] = {}  # the last try, and since when it may come
    ordered = in_turn(rows)
    last = {job_of(row): row for row in ordered}
    for row in ordered:
        job = job_of(row)
        if row.state == "withdrawn" and last[job] is not row:
            continue
        line = line_of(row) | {"pool": row.cls, "dag": job[0], "ready": row.arrived}
        if row.estimate is not None:
            line["estimate_ms"] = row.estimate * 1000
        if row.state != "lost":
            wanted = [(job[0], node) for node in needs.get(job, ())]
            if job in latest:
                line["deps"] = [latest[job][0]]
            else:
                known = [latest[one] for one in wanted if one in latest]
                line["deps"] = [name for name, _ in known]
                if known and len(known) == len(wanted):
                    line["t"] = max(at for _, at in known)
            tries[job] = tries.get(job, 0) + 1
            again = f"#{tries[job]}" if tries[job] > 1 else ""
            line["id"] = f"{row.key}{again}"
            latest[job] = (line["id"], line["t"])
        yield line
