"""Upkeep: missed deadlines, ends to announce, the archive, and small tables that are read and written whole."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING

from fairlead.jobs.records import JobRow, Missed, RunRow
from fairlead.jobs.stores.sqlite_rows import (
    JOB,
    NODE,
    OF_RUN,
    RUN,
    SHIFT,
    compact,
    count,
    id_of,
    job_row,
    key_of,
    run_row,
    tell,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping, Sequence

KINDS = ((1, "soft"), (2, "hard"))


def any_missed(connection: sqlite3.Connection, now: float) -> bool:
    """Look for a missed deadline without the lock."""
    found = connection.execute(
        " UNION ALL ".join(
            f"SELECT 1 FROM {table} WHERE {kind}_due IS NOT NULL AND {kind}_due < ?1"
            for table in ("dags", "jobs")
            for _, kind in KINDS
        )
        + " LIMIT 1",
        (now,),
    )
    return found.fetchone() is not None


def missed(connection: sqlite3.Connection, now: float) -> list[Missed]:
    """Tell each missed deadline once."""
    found = []
    for table in ("dags", "jobs"):
        for bit, kind in KINDS:
            where = f"{kind}_due IS NOT NULL AND {kind}_due < ?"
            of_run = f"(SELECT {kind} FROM dags WHERE id = jobs.id >> {SHIFT})"
            rows = connection.execute(
                f"SELECT id, {kind}_due, {of_run if table == 'jobs' else 'NULL'} FROM {table} "
                f"WHERE {where} ORDER BY id",
                (now,),
            ).fetchall()
            if not rows:
                continue
            connection.execute(
                f"UPDATE {table} SET {kind}_due = NULL, told = told | {bit} WHERE {where}",
                (now,),
            )
            for key, at, of_run in rows:
                dag, node = (key, None) if table == "dags" else id_of(key)
                if at != of_run:  # what a job has of its run, the run tells
                    found.append(Missed(dag, node, kind, at))
    return found


def unannounced(connection: sqlite3.Connection, limit: int) -> list[RunRow]:
    """Tell ended runs whose end was not announced."""
    rows = connection.execute(
        f"SELECT {RUN} FROM dags INDEXED BY dags_unannounced "
        "WHERE completed_on IS NOT NULL AND announced = 0 ORDER BY id LIMIT ?",
        (limit,),
    )
    return [run_row(row) for row in rows.fetchall()]


def announced(connection: sqlite3.Connection, runs: Sequence[RunRow]) -> None:
    """Note announcements."""
    connection.executemany(
        "UPDATE dags SET announced = 1 WHERE id = ? AND completed_on = ?",
        [(run.dag, run.completed_on) for run in runs],
    )


def archive(connection: sqlite3.Connection, before: float, limit: int) -> int:
    """Move runs that ended before a time to the archive; their keys stay taken."""
    runs = connection.execute(
        f"SELECT {RUN} FROM dags WHERE completed_on IS NOT NULL AND completed_on < ? ORDER BY completed_on LIMIT ?",
        (before, limit),
    ).fetchall()
    changes: dict[str, int] = {}
    for run in runs:
        dag = run[0]
        jobs = connection.execute(
            f"SELECT {JOB} FROM jobs WHERE {OF_RUN} ORDER BY id",
            (dag, dag),
        ).fetchall()
        for job in jobs:
            changes[job[4]] = changes.get(job[4], 0) - 1
        packed = zlib.compress(compact(jobs).encode())
        calls = payloads(connection, dag) if run[3] is not None else {}
        connection.execute("INSERT INTO archive VALUES (?, ?, ?)", (dag, compact(run), packed))
        connection.execute(
            f"DELETE FROM payloads WHERE id BETWEEN (? << {SHIFT}) AND (? << {SHIFT}) + {NODE}",
            (dag, dag),
        )
        if calls:  # of a run with a key: its DAG is compared with those that use the key again
            packed = zlib.compress(compact(list(calls.items())).encode())
            connection.execute("INSERT INTO payloads VALUES (?, ?)", (key_of(dag, NODE), packed))
        connection.execute(f"DELETE FROM jobs WHERE {OF_RUN}", (dag, dag))
        connection.execute("DELETE FROM dags WHERE id = ?", (dag,))
    count(connection, changes)
    return len(runs)


def payloads(connection: sqlite3.Connection, dag: int) -> dict[int, str]:
    """Read the calls of a run's jobs, by node; of an archived run without a key there are none."""
    packed = connection.execute(
        "SELECT payload FROM payloads WHERE id = ?", (key_of(dag, NODE),)
    ).fetchone()
    if packed is not None:  # no job has this node: a run has fewer
        return dict(json.loads(zlib.decompress(packed[0])))
    rows = connection.execute(
        "SELECT jobs.id, coalesce(jobs.payload, payloads.payload) FROM jobs "
        f"LEFT JOIN payloads ON payloads.id = jobs.id WHERE {OF_RUN}",
        (dag, dag),
    )
    return {key & NODE: payload for key, payload in rows.fetchall()}


def archived_run(connection: sqlite3.Connection, dag: int) -> RunRow | None:
    row = connection.execute("SELECT run FROM archive WHERE dag = ?", (dag,)).fetchone()
    return run_row(json.loads(row[0])) if row else None


def archived_jobs(connection: sqlite3.Connection, dag: int) -> list[JobRow]:
    row = connection.execute("SELECT jobs FROM archive WHERE dag = ?", (dag,)).fetchone()
    return [job_row(job) for job in json.loads(zlib.decompress(row[0]))] if row else []


def states(connection: sqlite3.Connection) -> dict[str, int]:
    """Count jobs by state."""
    return dict(connection.execute("SELECT state, jobs FROM counts").fetchall())


def oldest_ready(connection: sqlite3.Connection) -> float | None:
    """Tell since when the oldest ready job has been ready."""
    found: float | None = connection.execute(
        "SELECT min(ready_at) FROM jobs INDEXED BY jobs_ready WHERE state IN ('created', 'retry') AND waits = 0"
    ).fetchone()[0]
    return found


def executors(connection: sqlite3.Connection) -> set[str]:
    """Tell every executor that was ever registered."""
    return {row[0] for row in connection.execute("SELECT name FROM executors").fetchall()}


def estimates(connection: sqlite3.Connection) -> dict[str, tuple[float, int]]:
    """Tell what was learned of tasks."""
    rows = connection.execute("SELECT task, mean, runs FROM estimates").fetchall()
    return {task: (mean, runs) for task, mean, runs in rows}


def learn(connection: sqlite3.Connection, learned: Mapping[str, tuple[float, int]]) -> None:
    """Store what was learned."""
    connection.executemany(
        "INSERT OR REPLACE INTO estimates VALUES (?, ?, ?)",
        [(task, mean, runs) for task, (mean, runs) in learned.items()],
    )


def settings(connection: sqlite3.Connection) -> dict[str, str]:
    """Tell what was set at run time."""
    return dict(connection.execute("SELECT name, value FROM settings").fetchall())


def set_setting(connection: sqlite3.Connection, name: str, value: str | None) -> None:
    """Set or unset something."""
    if value is None:
        connection.execute("DELETE FROM settings WHERE name = ?", (name,))
    else:
        connection.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, value))
    tell(connection, settings=True)
