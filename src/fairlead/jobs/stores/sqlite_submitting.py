"""Storing runs: rows of runs and jobs in a few wide statements, and schedules, which submit by themselves."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fairlead.errors import ConfigError
from fairlead.jobs.conflicts import KeptJob, KeptRun, check_stored
from fairlead.jobs.records import NewJob, NewRun, Schedule, Submitted
from fairlead.jobs.states import CREATED
from fairlead.jobs.stores import sqlite_archive, sqlite_runs
from fairlead.jobs.stores.sqlite_rows import NODE, SHIFT, compact, count, not_before, tell

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence

LONG = 2_000  # characters of a payload that lies apart
SIZES = (256, 32, 4, 1)  # rows per statement: few sizes, so that prepared statements are used again

DAG = "id state left jobs created_at start_at soft hard soft_due hard_due tenant name key".split()
JOB = (
    "id state waits start_at ready_at name task executor level height estimate soft hard own_sla soft_due hard_due "
    "retries retry_delay timeout needs uses dependents payload"
).split()


@lru_cache
def wide(table: str, columns: tuple[str, ...], rows: int) -> str:
    row = f"({', '.join('?' * len(columns))})"
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES {', '.join([row] * rows)}"


def insert(
    connection: sqlite3.Connection,
    table: str,
    columns: Sequence[str],
    rows: Sequence[tuple[Any, ...]],
) -> None:
    """Insert many rows in few steps."""
    done, named = 0, tuple(columns)
    for size in SIZES:
        while len(rows) - done >= size:
            flat = [value for row in rows[done : done + size] for value in row]
            connection.execute(wide(table, named, size), flat)
            done += size


def submit(
    connection: sqlite3.Connection, runs: Sequence[NewRun], now: float, *, compare: bool = False
) -> list[Submitted]:
    """Store runs whose keys are free; with `compare`, refuse all if a key belongs to another DAG."""
    following = next_dag(connection)
    taken = keys_taken(connection, runs)
    if compare and taken:
        holders = [Submitted(taken.get((run.tenant, run.key or ""), 0), False) for run in runs]
        check_stored(runs, holders, kept_runs(connection, taken.values()))
    answers: list[Submitted] = []
    dags: list[tuple[Any, ...]] = []
    jobs: list[tuple[Any, ...]] = []
    keys: list[tuple[Any, ...]] = []
    payloads: list[tuple[Any, ...]] = []
    fresh: list[int] = []
    for run in runs:
        if run.key is not None:
            holder = taken.get((run.tenant, run.key))
            if holder is not None:
                answers.append(Submitted(holder, False))
                continue
            taken[run.tenant, run.key] = following
            keys.append((run.tenant, run.key, following))
        dags.append(dag_values(following, run, now))
        jobs += job_values(following, run, now, payloads)
        answers.append(Submitted(following, True))
        fresh.append(following)
        following += 1
    insert(connection, "dags", DAG, dags)
    insert(connection, "jobs", JOB, jobs)
    insert(connection, "keys", ("tenant", "key", "dag"), keys)
    insert(connection, "payloads", ("id", "payload"), payloads)
    if fresh:
        count(connection, {CREATED: len(jobs)})
        tell(connection, refresh=fresh)
    return answers


def kept_runs(connection: sqlite3.Connection, dags: Iterable[int]) -> dict[int, KeptRun]:
    """Read what is compared of runs, also of archived ones."""
    found: dict[int, KeptRun] = {}
    for dag in dags:
        run = sqlite_runs.run(connection, dag)
        if run is None:
            continue
        jobs = sqlite_runs.jobs(connection, dag)
        payloads = sqlite_archive.payloads(connection, dag)
        found[dag] = KeptRun(
            run.name,
            [KeptJob(job.name, job.task, job.needs, payloads.get(job.node)) for job in jobs],
        )
    return found


def next_dag(connection: sqlite3.Connection) -> int:
    """Tell the number that the next run gets; under the write lock nobody else takes it."""
    found = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'dags'").fetchone()
    return int(found[0]) + 1 if found else 1


def keys_taken(
    connection: sqlite3.Connection, runs: Sequence[NewRun]
) -> dict[tuple[str, str], int]:
    """Find the keys that are taken already."""
    wanted = [(run.tenant, run.key) for run in runs if run.key is not None]
    if not wanted:
        return {}
    found = connection.execute(
        "SELECT json_group_array(json_array(keys.tenant, keys.key, keys.dag)) FROM json_each(?) AS wanted "
        "JOIN keys ON tenant = json_extract(value, '$[0]') AND keys.key = json_extract(value, '$[1]')",
        (compact(wanted),),
    ).fetchone()
    return {(tenant, key): dag for tenant, key, dag in json.loads(found[0])}


def dag_values(dag: int, run: NewRun, now: float) -> tuple[Any, ...]:
    if not 0 < len(run.jobs) <= NODE:
        raise ConfigError(f"run {run.name!r} has {len(run.jobs)} jobs; a run has 1 to {NODE}")
    left = len(run.jobs)
    # fmt: off
    return (
        dag, CREATED, left, left, now, run.start_at, run.soft, run.hard, run.soft, run.hard, run.tenant, run.name,
        run.key,
    )
    # fmt: on


def job_values(
    dag: int, run: NewRun, now: float, payloads: list[tuple[Any, ...]]
) -> list[tuple[Any, ...]]:
    start_at = 0.0 if run.start_at is None else not_before(run.start_at)
    first = max(now, start_at)
    dependents: dict[int, list[int]] = {}
    for node, job in enumerate(run.jobs):
        for need in job.needs:
            dependents.setdefault(need, []).append(node)
    rows = []
    key = dag << SHIFT
    for node, job in enumerate(run.jobs):
        payload: str | None = job.payload
        if len(job.payload) > LONG:
            payloads.append((key + node, job.payload))
            payload = None
        rows.append(job_value(key + node, job, start_at, first, dependents.get(node), payload))
    return rows


def job_value(
    key: int,
    job: NewJob,
    start_at: float,
    first: float,
    dependents: list[int] | None,
    payload: str | None,
) -> tuple[Any, ...]:
    own = job.own_sla
    # fmt: off
    return (
        key, CREATED, len(job.needs), start_at, None if job.needs else first, job.name, job.task, job.executor,
        job.level, job.height, job.estimate, job.soft, job.hard, own, job.soft if own else None,
        job.hard if own else None, job.retries, job.retry_delay, job.timeout, listed(job.needs), listed(job.uses),
        listed(dependents), payload,
    )
    # fmt: on


def listed(numbers: Sequence[int] | None) -> str | None:
    return f"[{','.join(map(str, numbers))}]" if numbers else None


def schedules(connection: sqlite3.Connection) -> list[Schedule]:
    """List schedules by name."""
    rows = connection.execute(
        "SELECT name, cron, timezone, run, misfire, cursor, paused FROM schedules ORDER BY name"
    )
    return [
        Schedule(name, cron, timezone, json.loads(run), misfire, cursor, bool(paused))
        for name, cron, timezone, run, misfire, cursor, paused in rows.fetchall()
    ]


def put_schedule(connection: sqlite3.Connection, schedule: Schedule) -> None:
    """Add or replace a schedule; new ticks count from the new cursor, unless that is the older one."""
    name, cron, timezone, run, misfire, cursor, paused = schedule
    connection.execute(
        "INSERT INTO schedules VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET cron = excluded.cron, "
        "timezone = excluded.timezone, run = excluded.run, misfire = excluded.misfire, paused = excluded.paused, "
        "cursor = CASE WHEN (cron, timezone) = (excluded.cron, excluded.timezone) THEN cursor "
        "ELSE max(cursor, excluded.cursor) END",
        (name, cron, timezone, compact(run), misfire, cursor, paused),
    )
    tell(connection, settings=True)


def drop_schedule(connection: sqlite3.Connection, name: str) -> bool:
    """Remove a schedule."""
    gone = connection.execute("DELETE FROM schedules WHERE name = ?", (name,)).rowcount > 0
    if gone:
        tell(connection, settings=True)
    return gone


def fire(
    connection: sqlite3.Connection, name: str, tick: float, run: NewRun | None, now: float
) -> Submitted | None:
    """Move a schedule's cursor past a tick, and submit its run; who comes second moves nothing."""
    moved = connection.execute(
        "UPDATE schedules SET cursor = ? WHERE name = ? AND cursor < ?", (tick, name, tick)
    )
    if not moved.rowcount or run is None:
        return None
    return submit(connection, [run], now)[0]
