"""What people do to runs: look, cancel, pause, resume, retry, change an SLA."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fairlead.jobs.records import JobRow, RunRow
from fairlead.jobs.states import (
    CANCELLED,
    COMPLETED,
    CREATED,
    RETRY,
    SKIPPED,
    SUSPENDED,
)
from fairlead.jobs.stores.sqlite_archive import archived_jobs, archived_run
from fairlead.jobs.stores.sqlite_finishing import Tally, keep_promises
from fairlead.jobs.stores.sqlite_rows import (
    AMONG,
    IS_UNSTARTED,
    JOB,
    NODE,
    OF_RUN,
    RUN,
    SHIFT,
    compact,
    count,
    gathered,
    job_row,
    key_of,
    not_before,
    run_row,
    tell,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

FEW = ("active", "suspended", "failed", "cancelled")  # the states of which there is an index
IS_FEW = f"state IN {FEW}"
GOES_ON = "iif(started_at IS NULL, 'created', 'active')"  # the state of a run that is not paused


def run(connection: sqlite3.Connection, dag: int) -> RunRow | None:
    """Find a run, also in the archive."""
    row = connection.execute(f"SELECT {RUN} FROM dags WHERE id = ?", (dag,)).fetchone()
    return run_row(row) if row else archived_run(connection, dag)


def find(connection: sqlite3.Connection, tenant: str, key: str) -> int | None:
    """Find a run by its key."""
    row = connection.execute(
        "SELECT dag FROM keys WHERE tenant = ? AND key = ?", (tenant, key)
    ).fetchone()
    return int(row[0]) if row else None


def runs(
    connection: sqlite3.Connection,
    state: str | None,
    tenant: str | None,
    before: int | None,
    limit: int,
) -> list[RunRow]:
    """List runs, newest first."""
    terms, bound = ["1"], []
    for term, value in (("state = ?", state), ("tenant = ?", tenant), ("id < ?", before)):
        if value is not None:
            terms.append(term)
            bound.append(value)
    table = "dags"
    if tenant:
        terms.append("tenant <> ''")  # as its indexes say
    if state in FEW:
        table = f"dags INDEXED BY {'dags_few_tenant' if tenant else 'dags_few'}"
        terms.append(IS_FEW)
    rows = connection.execute(
        f"SELECT {RUN} FROM {table} WHERE {' AND '.join(terms)} ORDER BY id DESC LIMIT ?",
        (*bound, limit),
    )
    return [run_row(row) for row in rows.fetchall()]


def jobs(connection: sqlite3.Connection, dag: int, limit: int | None = None) -> list[JobRow]:
    """List a run's jobs in order, or the first of them."""
    rows = connection.execute(
        f"SELECT {JOB} FROM jobs WHERE {OF_RUN} ORDER BY id LIMIT ?",
        (dag, dag, -1 if limit is None else limit),
    ).fetchall()
    return [job_row(row) for row in rows] if rows else archived_jobs(connection, dag)[:limit]


def some_jobs(connection: sqlite3.Connection, dag: int, nodes: Sequence[int]) -> list[JobRow]:
    """List these jobs of a run, in order."""
    if dag >> (62 - SHIFT):
        return []
    wanted = {node for node in nodes if 0 <= node <= NODE}
    keys = compact([key_of(dag, node) for node in wanted])
    rows = connection.execute(f"SELECT {JOB} FROM jobs WHERE {AMONG} ORDER BY id", (keys,))
    found = [job_row(row) for row in rows.fetchall()]
    return found or [job for job in archived_jobs(connection, dag) if job.node in wanted]


def living(connection: sqlite3.Connection, dag: int) -> str | None:
    """Tell the state of a run that has neither ended nor is being cancelled."""
    row = connection.execute(
        "SELECT state FROM dags WHERE id = ? AND completed_on IS NULL AND NOT cancelling", (dag,)
    ).fetchone()
    return row[0] if row else None


def unstarted(connection: sqlite3.Connection, dag: int) -> list[list[Any]]:
    return gathered(
        connection,
        "json_array(jobs.id, jobs.state, jobs.own_sla, jobs.waits)",
        f"jobs WHERE {OF_RUN} AND {IS_UNSTARTED}",
        dag,
        dag,
    )


def cancel(connection: sqlite3.Connection, dag: int, now: float) -> bool:
    """Cancel what could start, skip what waits for others, and ask what runs to stop.

    What is skipped counts as cancelled in its run: though what runs may still complete, the run as a whole does not.
    """
    if living(connection, dag) is None:
        return False
    rows = unstarted(connection, dag)
    tally = Tally()
    for key, state, _, waits in rows:
        tally.move(key, state, SKIPPED if waits else CANCELLED)
        if waits:
            tally.runs[dag][2] += 1
    if rows:
        connection.execute(
            "UPDATE jobs SET state = iif(waits > 0, 'skipped', 'cancelled'), completed_on = ? "
            f"WHERE {OF_RUN} AND {IS_UNSTARTED}",
            (now, dag, dag),
        )
    if promised := [row[0] for row in rows if row[2]]:
        keep_promises(connection, promised, now)
    connection.execute(
        f"UPDATE jobs SET cancelling = 1 WHERE {OF_RUN} AND jobs.state = 'active'",
        (dag, dag),
    )
    connection.execute(
        "UPDATE dags SET cancelling = 1, "
        f"state = iif(state = 'suspended', {GOES_ON}, state) WHERE id = ?",
        (dag,),
    )
    ended = tally.write(connection, now)
    tell(connection, refresh=[dag], over=[run.dag for run in ended])
    return True


def pause(connection: sqlite3.Connection, dag: int) -> bool:
    """Suspend what has not started."""
    if living(connection, dag) in (None, SUSPENDED):
        return False
    moved = {SUSPENDED: 0}
    for _, state, _, _ in unstarted(connection, dag):
        if state != SUSPENDED:
            moved[state] = moved.get(state, 0) - 1
            moved[SUSPENDED] += 1
    connection.execute(
        "UPDATE jobs SET state = 'suspended' "
        f"WHERE {OF_RUN} AND jobs.state IN ('created', 'retry')",
        (dag, dag),
    )
    connection.execute("UPDATE dags SET state = 'suspended' WHERE id = ?", (dag,))
    count(connection, moved)
    tell(connection, refresh=[dag])
    return True


def resume(connection: sqlite3.Connection, dag: int) -> bool:
    """Undo a pause: what has failed before waits for a retry, the rest for its first start."""
    if living(connection, dag) != SUSPENDED:
        return False
    again, fresh = connection.execute(
        "SELECT coalesce(sum(attempts + crashes > 0), 0), coalesce(sum(attempts + crashes = 0), 0) "
        f"FROM jobs WHERE {OF_RUN} AND jobs.state = 'suspended'",
        (dag, dag),
    ).fetchone()
    connection.execute(
        "UPDATE jobs SET state = iif(attempts + crashes > 0, 'retry', 'created') "
        f"WHERE {OF_RUN} AND jobs.state = 'suspended'",
        (dag, dag),
    )
    connection.execute(
        f"UPDATE dags SET state = {GOES_ON} WHERE id = ?",
        (dag,),
    )
    count(connection, {SUSPENDED: -again - fresh, RETRY: again, CREATED: fresh})
    tell(connection, refresh=[dag])
    return True


def retry(connection: sqlite3.Connection, dag: int, now: float) -> bool:
    """Begin an ended run again with what did not complete."""
    row = connection.execute(
        "SELECT start_at FROM dags WHERE id = ? AND completed_on IS NOT NULL AND state <> 'completed'",
        (dag,),
    ).fetchone()
    if row is None:
        return False
    # A start that was asked for and is still ahead holds for the new attempts, too.
    start_at = not_before(row[0]) if row[0] is not None and row[0] > now else 0
    rows = gathered(
        connection,
        "json_array(id, state, needs)",
        f"jobs WHERE {OF_RUN} ORDER BY id",
        dag,
        dag,
    )
    done = {key & NODE for key, state, _ in rows if state == COMPLETED}
    fresh = []
    moved = {CREATED: 0}
    for key, state, needs in rows:
        if state != COMPLETED:
            waits = sum(node not in done for node in json.loads(needs or "[]"))
            fresh.append((key, waits, None if waits else max(now, start_at)))
            moved[state] = moved.get(state, 0) - 1
            moved[CREATED] += 1
    connection.execute(
        "UPDATE jobs SET state = 'created', waits = json_extract(value, '$[1]'), "
        "ready_at = json_extract(value, '$[2]'), start_at = ?, attempts = 0, crashes = 0, worker = NULL, acked = 0, "
        "claimed_at = NULL, started_at = NULL, completed_on = NULL, error = NULL, "
        "soft_due = iif(own_sla AND NOT told & 1, soft, NULL), hard_due = iif(own_sla AND NOT told & 2, hard, NULL) "
        "FROM json_each(?) WHERE jobs.id = json_extract(value, '$[0]')",
        (start_at, compact(fresh)),
    )
    connection.execute(f"DELETE FROM deaths WHERE {OF_RUN.replace('jobs.id', 'job')}", (dag, dag))
    connection.execute(
        f"UPDATE dags SET state = {GOES_ON}, left = ?, failed = 0, cancelled = 0, "
        "cancelling = 0, announced = 0, completed_on = NULL, "
        "soft_due = iif(told & 1, NULL, soft), hard_due = iif(told & 2, NULL, hard) WHERE id = ?",
        (len(fresh), dag),
    )
    count(connection, moved)
    tell(connection, refresh=[dag])
    return True


def set_sla(
    connection: sqlite3.Connection,
    dag: int,
    soft: float | None,
    hard: float | None,
    node: int | None,
) -> bool:
    """Change SLAs; a new one that is missed is told again."""
    if node is None:
        old = connection.execute("SELECT soft, hard FROM dags WHERE id = ?", (dag,)).fetchone()
        if old is None:
            return False
        connection.execute(
            "UPDATE dags SET soft = ?1, hard = ?2, told = 0, soft_due = iif(completed_on IS NULL, ?1, NULL), "
            "hard_due = iif(completed_on IS NULL, ?2, NULL) WHERE id = ?3",
            (soft, hard, dag),
        )
        # A job with one SLA of its own has the other of its run, but never a soft one after a hard one.
        own_hard = "own_sla AND hard IS NOT ? AND hard < ?"
        connection.execute(
            f"UPDATE jobs SET soft = iif({own_hard}, hard, ?), soft_due = iif({own_hard}, hard, NULL) "
            f"WHERE {OF_RUN} AND (NOT own_sla OR soft IS ?)",
            (old[1], soft, soft, old[1], soft, dag, dag, old[0]),
        )
        connection.execute(
            "UPDATE jobs SET hard = ?, hard_due = NULL, soft = iif(soft > ?, ?, soft), "
            "soft_due = iif(soft_due > ?, ?, soft_due) "
            f"WHERE {OF_RUN} AND (NOT own_sla OR hard IS ?)",
            (hard, hard, hard, hard, hard, dag, dag, old[1]),
        )
    else:
        if not 0 <= node <= NODE or dag >> (62 - SHIFT):
            return False
        changed = connection.execute(
            "UPDATE jobs SET soft = ?1, hard = ?2, own_sla = 1, told = 0, "
            "soft_due = iif(completed_on IS NULL, ?1, NULL), hard_due = iif(completed_on IS NULL, ?2, NULL) "
            "WHERE id = ?3",
            (soft, hard, key_of(dag, node)),
        )
        if not changed.rowcount:
            return False
    tell(connection, refresh=[dag], settings=True)
    return True
