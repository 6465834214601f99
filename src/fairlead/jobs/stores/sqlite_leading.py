"""Leases: who leads, which workers live, and what the scheduler is told.

Leases run on the host's monotonic clock, which every process here shares and nobody can set.  It begins again at a
boot; so a lease counts only while what is left of it is not more than it ever was.
"""

from __future__ import annotations

import json
from sys import intern
from typing import TYPE_CHECKING, Any

from fairlead.jobs.records import NOBODY, Beat, News, ReadyJob, RunningJob, WorkerRow
from fairlead.jobs.stores.sqlite_rows import (
    ACTIVE_JOINED,
    AMONG,
    IS_READY,
    JOINED,
    NODE,
    OF_RUN,
    READY,
    READY_JOB,
    RUNNING_JOB,
    SHIFT,
    compact,
    gathered,
    id_of,
    key_of,
    ready_among,
    ready_jobs,
    running_job,
    tell,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Mapping, Sequence

    from fairlead.jobs.records import Id

# At a start a million of these are read: a column at a time is read fastest.  Left to itself, SQLite would walk the
# whole table in order.
READY_PAGE = (
    f"WITH page ({', '.join(ReadyJob._fields)}) AS (SELECT {READY} "
    f"FROM jobs INDEXED BY jobs_ready CROSS JOIN dags ON dags.id = jobs.id >> {SHIFT} "
    f"WHERE {IS_READY} AND jobs.id > ? ORDER BY jobs.id LIMIT ?) "
    f"SELECT {', '.join(f'json_group_array({name})' for name in ReadyJob._fields)} FROM page"
)
EXPIRED = "(lease_until - ?1 <= 0 OR lease_until - ?1 > lease)"


def lead(
    connection: sqlite3.Connection, process: str, lease: float, monotonic: float
) -> int | None:
    """Become or stay the one who leads."""
    holder, epoch, expired = connection.execute(
        f"SELECT process, epoch, {EXPIRED} FROM leader",
        (monotonic,),
    ).fetchone()
    if holder != process:
        if holder is not None and not expired:
            return None
        epoch += 1
        # Whoever begins to lead reads everything that is ready and running; older news would only repeat it.
        connection.execute("DELETE FROM news")
    connection.execute(
        "UPDATE leader SET process = ?, epoch = ?, lease = ?, lease_until = ?",
        (process, epoch, lease, monotonic + lease),
    )
    return int(epoch)


def resign(connection: sqlite3.Connection, process: str) -> None:
    """Stop leading."""
    connection.execute("UPDATE leader SET process = NULL WHERE process = ?", (process,))


def leader(connection: sqlite3.Connection, monotonic: float) -> str | None:
    """Tell who leads."""
    holder, expired = connection.execute(
        f"SELECT process, {EXPIRED} FROM leader", (monotonic,)
    ).fetchone()
    return None if holder is None or expired else str(holder)


def ready(
    connection: sqlite3.Connection, after: tuple[int, int] | None, limit: int
) -> list[ReadyJob]:
    """Page through what is ready by the index of exactly that."""
    first = -1 if after is None else key_of(*after)
    found = connection.execute(READY_PAGE, (first, limit)).fetchone()
    dags, nodes, names, tasks, executors, tenants, *rest = map(json.loads, found)
    # A million jobs share the few names of tasks, executors and tenants there are.
    shared = (map(intern, column) for column in (tasks, executors, tenants))
    return list(map(ReadyJob._make, zip(dags, nodes, names, *shared, *rest, strict=True)))


def running(connection: sqlite3.Connection) -> list[RunningJob]:
    """Tell all that is active."""
    rows = gathered(
        connection, RUNNING_JOB, f"{ACTIVE_JOINED} WHERE jobs.state = 'active' ORDER BY jobs.id"
    )
    return [running_job(row) for row in rows]


def reread(connection: sqlite3.Connection, dag: int) -> tuple[list[ReadyJob], list[RunningJob]]:
    """Tell what of one run is ready and what is active, in one statement and so at one instant."""
    found = connection.execute(
        "SELECT '[' || coalesce(group_concat(value), '') || ']' FROM (SELECT json_array(jobs.state = 'active', "
        f"json(iif(jobs.state = 'active', {RUNNING_JOB}, {READY_JOB}))) AS value "
        f"FROM {JOINED} WHERE {OF_RUN} AND (jobs.state = 'active' OR {IS_READY}) ORDER BY jobs.id)",
        (dag, dag),
    ).fetchone()
    waiting, active = [], []
    for runs, row in json.loads(found[0]):
        if runs:
            active.append(running_job(row))
        else:
            waiting.append(row)
    return ready_jobs(waiting), active


def orphans(connection: sqlite3.Connection, ack: float, now: float) -> list[RunningJob]:
    """Tell active jobs of unknown workers, or claimed too long ago and never acknowledged.

    A claim of the future is one from before the clock was set back: it counts as too long ago.
    """
    rows = gathered(
        connection,
        RUNNING_JOB,
        f"{ACTIVE_JOINED} WHERE jobs.state = 'active' AND (jobs.worker NOT IN (SELECT id FROM workers) "
        "OR jobs.acked = 0 AND (jobs.claimed_at <= ? OR jobs.claimed_at > ?)) ORDER BY jobs.id",
        now - ack,
        now + 1,
    )
    return [running_job(row) for row in rows]


def take_away(connection: sqlite3.Connection, jobs: Sequence[RunningJob]) -> set[Id]:
    """Take these claims from their workers, as far as they are still not acknowledged; tell which."""
    fences = {key_of(job.dag, job.node): job.fence for job in jobs}
    taken = [
        key
        for key, fence in gathered(
            connection,
            "json_array(jobs.id, jobs.fence)",
            f"jobs WHERE {AMONG} AND jobs.state = 'active' AND jobs.acked = 0",
            compact(list(fences)),
        )
        if fences[key] == fence
    ]
    connection.execute(f"UPDATE jobs SET worker = {NOBODY} WHERE {AMONG}", (compact(taken),))
    return {id_of(key) for key in taken}


def has_news(connection: sqlite3.Connection) -> bool:
    """Look for news without the lock."""
    return connection.execute("SELECT 1 FROM news LIMIT 1").fetchone() is not None


def take_news(connection: sqlite3.Connection) -> News:
    """Take all news, and tell how the things it is about stand now."""
    bodies = json.loads(
        connection.execute("SELECT json_group_array(json(body)) FROM news").fetchone()[0]
    )
    connection.execute("DELETE FROM news")

    def said(word: str) -> list[Any]:
        return [thing for body in bodies for thing in body.get(word, ())]

    refreshed = sorted(set(said("refresh")))
    ended = {key_of(*job) for job in said("ended")}
    hopeful = {key_of(*job) for job in said("ready")} | ended
    found = {job[:2]: job for job in ready_among(connection, sorted(hopeful))} if hopeful else {}
    if refreshed:
        # Each run's jobs by a range of the index: a run of a million jobs has few that are ready.
        rows = gathered(
            connection,
            READY_JOB,
            "json_each(?) AS run CROSS JOIN dags ON dags.id = run.value CROSS JOIN jobs INDEXED BY jobs_ready "
            f"ON jobs.id BETWEEN (dags.id << {SHIFT}) AND (dags.id << {SHIFT}) + {NODE} WHERE {IS_READY}",
            compact(refreshed),
        )
        found.update((job[:2], job) for job in ready_jobs(rows))
    still = active_among(connection, ended)
    over = over_among(connection, sorted(set(said("over"))))
    return News(
        ready=[found[job] for job in sorted(found)],
        ended=sorted(id_of(key) for key in ended - still),
        refreshed=refreshed,
        settings=any(body.get("settings") for body in bodies),
        workers=any(body.get("workers") for body in bodies),
        runs_ended=over,
    )


def active_among(connection: sqlite3.Connection, keys: set[int]) -> set[int]:
    if not keys:
        return set()
    rows = gathered(
        connection,
        "json_array(jobs.id)",
        f"jobs WHERE {AMONG} AND jobs.state = 'active'",
        compact(sorted(keys)),
    )
    return {row[0] for row in rows}


def over_among(connection: sqlite3.Connection, dags: list[int]) -> list[int]:
    """Tell which of these runs have ended (and were not begun again)."""
    if not dags:
        return []
    rows = gathered(
        connection,
        "json_array(value)",
        "json_each(?) LEFT JOIN dags ON dags.id = value WHERE dags.id IS NULL OR completed_on IS NOT NULL",
        compact(dags),
    )
    return [row[0] for row in rows]


def workers(connection: sqlite3.Connection, monotonic: float) -> list[WorkerRow]:
    """Tell all workers."""
    rows = connection.execute(
        f"SELECT id, name, executor, slots, process, beats, {EXPIRED}, draining, tasks FROM workers ORDER BY id",
        (monotonic,),
    )
    return [
        WorkerRow._make(
            [
                *told,
                bool(expired),
                bool(draining),
                None if tasks is None else frozenset(json.loads(tasks)),
            ]
        )
        for *told, expired, draining, tasks in rows.fetchall()
    ]


def register(
    connection: sqlite3.Connection,
    name: str,
    process: str,
    executors: Mapping[str, int],
    tasks: Collection[str] | None,
    lease: float,
    monotonic: float,
) -> dict[str, int]:
    """Make one worker per executor."""
    numbers = {}
    known = None if tasks is None else compact(sorted(tasks))
    for executor, slots in executors.items():
        connection.execute("INSERT OR IGNORE INTO executors VALUES (?)", (executor,))
        made = connection.execute(
            "INSERT INTO workers (name, executor, slots, process, lease, lease_until, tasks) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (name, executor, slots, process, lease, monotonic + lease, known),
        )
        numbers[executor] = int(made.lastrowid or 0)
    tell(connection, workers=True)
    return numbers


def know(connection: sqlite3.Connection, numbers: Sequence[int], tasks: Collection[str]) -> None:
    """Replace the tasks that workers know."""
    connection.execute(
        "UPDATE workers SET tasks = ? WHERE id IN (SELECT value FROM json_each(?))",
        (compact(sorted(tasks)), compact(list(numbers))),
    )
    tell(connection, workers=True)


def beat(
    connection: sqlite3.Connection, numbers: Sequence[int], lease: float, monotonic: float
) -> Beat:
    """Renew leases; hear what to cancel."""
    ours = compact(list(numbers))
    connection.execute(
        "UPDATE workers SET beats = beats + 1, lease = ?, lease_until = ? "
        "WHERE id IN (SELECT value FROM json_each(?))",
        (lease, monotonic + lease, ours),
    )
    alive = gathered(
        connection,
        "json_array(id)",
        "workers WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id",
        ours,
    )
    cancel = gathered(
        connection,
        "json_array(id, fence)",
        "jobs WHERE state = 'active' AND worker IN (SELECT value FROM json_each(?)) AND cancelling = 1 ORDER BY id",
        ours,
    )
    return Beat([row[0] for row in alive], [(*id_of(key), fence) for key, fence in cancel])


def bury(
    connection: sqlite3.Connection, numbers: Sequence[int], monotonic: float, now: float
) -> list[int]:
    """Forget those of these workers that are silent."""
    silent = [
        row[0]
        for row in gathered(
            connection,
            "json_array(id)",
            f"workers WHERE {EXPIRED} AND id IN (SELECT value FROM json_each(?2)) ORDER BY id",
            monotonic,
            compact(list(numbers)),
        )
    ]
    if silent:
        connection.execute(
            "INSERT INTO graves SELECT id, process, ? FROM workers WHERE id IN (SELECT value FROM json_each(?))",
            (now, compact(silent)),
        )
        retire(connection, silent)
    return silent


def retire(connection: sqlite3.Connection, numbers: Sequence[int]) -> None:
    """Forget workers."""
    connection.execute(
        "DELETE FROM workers WHERE id IN (SELECT value FROM json_each(?))",
        (compact(list(numbers)),),
    )
    tell(connection, workers=True)


def drain(connection: sqlite3.Connection, numbers: Sequence[int]) -> None:
    """Note that nothing more should be claimed for these workers."""
    connection.execute(
        "UPDATE workers SET draining = 1 WHERE id IN (SELECT value FROM json_each(?))",
        (compact(list(numbers)),),
    )
    tell(connection, workers=True)
