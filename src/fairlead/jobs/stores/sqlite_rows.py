"""How rows become records, and the few statements that every verb needs.

Batches travel as JSON, one value each way (see `sqlite_lanes`).  SQLite writes reals to JSON with 15 digits (17 since
3.43), so instants that must compare equal on both sides are kept to a tenth of a millisecond (`instant`).
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from fairlead.jobs.records import Id, JobRow, ReadyJob, RunningJob, RunRow

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Mapping, Sequence

SHIFT = 20
MOST_NODES = 1 << SHIFT
NODE = MOST_NODES - 1

IS_READY = "jobs.state IN ('created', 'retry') AND jobs.waits = 0"
IS_UNSTARTED = "jobs.state IN ('created', 'retry', 'suspended')"
AMONG = "jobs.id IN (SELECT value FROM json_each(?))"
OF_RUN = f"jobs.id BETWEEN (? << {SHIFT}) AND (? << {SHIFT}) + {NODE}"

# In the order of ReadyJob's fields.
READY = (
    f"jobs.id >> {SHIFT}, jobs.id & {NODE}, jobs.name, jobs.task, jobs.executor, dags.tenant, jobs.level, "
    "jobs.height, jobs.estimate, jobs.soft, jobs.hard, jobs.ready_at, jobs.start_at, dags.started_at IS NOT NULL"
)
READY_JOB = f"json_array({READY})"
RUNNING_JOB = (
    "json_array(jobs.id, jobs.task, jobs.executor, dags.tenant, jobs.worker, jobs.fence, jobs.acked, "
    "jobs.claimed_at, jobs.attempts, jobs.crashes, jobs.retries, jobs.retry_delay, jobs.cancelling, jobs.name, "
    "jobs.timeout)"
)
JOINED = f"jobs JOIN dags ON dags.id = jobs.id >> {SHIFT}"
# Left to itself, SQLite would walk all jobs for the sake of their order.
ACTIVE_JOINED = f"jobs INDEXED BY jobs_active CROSS JOIN dags ON dags.id = jobs.id >> {SHIFT}"
RUN = (
    "id, name, tenant, key, state, soft, hard, created_at, start_at, started_at, completed_on, left, jobs, "
    "cancelling, failed"
)
JOB = (
    "id, name, task, executor, state, needs, waits, level, estimate, soft, hard, attempts, crashes, retries, "
    "start_at, ready_at, claimed_at, started_at, completed_on, worker, cancelling, result, error"
)


def instant(time: float) -> float:
    """Round an instant down, so that it says the same in SQL, in JSON and here."""
    return math.floor(time * 10_000) / 10_000


def not_before(time: float) -> float:
    """Round an instant up: what waits for it never comes too early."""
    return math.ceil(time * 10_000) / 10_000


def key_of(dag: int, node: int) -> int:
    return dag << SHIFT | node


def id_of(key: int) -> Id:
    return key >> SHIFT, key & NODE


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def clean(text: str | None) -> str | None:
    """Let nothing that a job returned or raised stand in the way of its own end."""
    if text is None or text.isascii():
        return text
    return text.encode("utf-8", "replace").decode()


def nodes(text: str | None) -> tuple[int, ...]:
    return tuple(json.loads(text)) if text else ()


def gathered(
    connection: sqlite3.Connection, what: str, source: str, *bound: Any
) -> list[list[Any]]:
    """Select rows (`what` is a json_array) as one value."""
    found = connection.execute(
        f"SELECT '[' || coalesce(group_concat(value), '') || ']' FROM (SELECT {what} AS value FROM {source})",
        bound,
    ).fetchone()
    rows: list[list[Any]] = json.loads(found[0])
    return rows


def ready_jobs(rows: Iterable[Sequence[Any]]) -> list[ReadyJob]:
    return list(map(ReadyJob._make, rows))


def running_job(row: Sequence[Any]) -> RunningJob:
    key, task, executor, tenant, worker, fence, acked, claimed_at, *rest = row
    attempts, crashes, retries, delay, cancelling, name, timeout = rest
    # fmt: off
    return RunningJob(
        key >> SHIFT, key & NODE, task, executor, tenant, worker, fence, bool(acked), claimed_at, attempts, crashes,
        retries, delay, bool(cancelling), name, timeout,
    )
    # fmt: on


def run_row(row: Sequence[Any]) -> RunRow:
    told, cancelling, *failed = row[:13], row[13], *row[14:]  # of old archives there is no more
    return RunRow._make([*told, bool(cancelling), *(failed or [0])])


def job_row(row: Sequence[Any]) -> JobRow:
    key, name, task, executor, state, needs, *rest = row
    *middle, cancelling, result, error = rest
    dag, node = id_of(key)
    first = (dag, node, name, task, executor, state, nodes(needs))
    return JobRow._make([*first, *middle, bool(cancelling), result, error])


def ready_among(connection: sqlite3.Connection, keys: Iterable[int]) -> list[ReadyJob]:
    """Tell which of these jobs are ready."""
    rows = gathered(
        connection,
        READY_JOB,
        f"{JOINED} WHERE {AMONG} AND {IS_READY} ORDER BY jobs.id",
        compact(list(keys)),
    )
    return ready_jobs(rows)


def count(connection: sqlite3.Connection, changes: Mapping[str, int]) -> None:
    """Keep the number of jobs in each state."""
    told = {state: change for state, change in changes.items() if change}
    if told:
        connection.execute(
            "UPDATE counts SET jobs = jobs + change.value FROM json_each(?) AS change WHERE state = change.key",
            (compact(told),),
        )


def tell(connection: sqlite3.Connection, **body: Any) -> None:
    """Leave a line for the scheduler, if there is one: whoever begins to lead reads everything anyway."""
    connection.execute(
        "INSERT INTO news (body) SELECT ? FROM leader WHERE process IS NOT NULL", (compact(body),)
    )
