"""Making ready jobs active, and handing to workers all they need to run them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fairlead.jobs.records import Claim, Claimed
from fairlead.jobs.states import ACTIVE
from fairlead.jobs.stores.sqlite_rows import (
    AMONG,
    IS_READY,
    JOINED,
    NODE,
    SHIFT,
    compact,
    count,
    gathered,
    key_of,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence

CLAIMED = (
    "json_array(jobs.id, jobs.state, dags.state, jobs.worker, jobs.fence, jobs.name, jobs.task, jobs.payload, "
    "jobs.uses, jobs.attempts, jobs.crashes, jobs.retries, jobs.retry_delay, jobs.timeout, "
    "EXISTS (SELECT 1 FROM deaths WHERE deaths.job = jobs.id AND NOT deaths.alone))"
)


def claim(
    connection: sqlite3.Connection,
    process: str,
    epoch: int,
    claims: Sequence[Claim],
    acked: bool,
    now: float,
) -> list[Claimed]:
    """Claim what is ready and due, if this process leads."""
    if not leads(connection, process, epoch):
        return []
    wanted = {key_of(claim.dag, claim.node): claim for claim in claims}
    rows = gathered(
        connection,
        CLAIMED,
        f"{JOINED} WHERE {AMONG} AND {IS_READY} AND jobs.start_at <= ?",
        compact(list(wanted)),
        now + 1e-5,  # an instant that came as JSON may be off by its last digit
    )
    if rows:
        fences: dict[int, dict[int, int]] = {}  # by worker and job
        for row in rows:
            claim = wanted[row[0]]
            fences.setdefault(claim.worker, {})[row[0]] = claim.fence
        for worker, given in fences.items():
            connection.execute(
                "UPDATE jobs SET state = 'active', worker = ?, fence = given.value, acked = ?, claimed_at = ?, "
                "started_at = ? FROM json_each(?) AS given WHERE jobs.id = CAST(given.key AS INTEGER)",
                (worker, acked, now, now if acked else None, compact(given)),
            )
        begin_runs(connection, rows, now)
        changes = {ACTIVE: len(rows)}
        for row in rows:
            changes[row[1]] = changes.get(row[1], 0) - 1
        count(connection, changes)
    inputs = inputs_of(connection, rows)
    order = {key: place for place, key in enumerate(wanted)}
    rows.sort(key=lambda row: order[row[0]])
    return [claimed(row, wanted[row[0]].worker, wanted[row[0]].fence, inputs) for row in rows]


def leads(connection: sqlite3.Connection, process: str, epoch: int) -> bool:
    found = connection.execute(
        "SELECT 1 FROM leader WHERE process = ? AND epoch = ?", (process, epoch)
    ).fetchone()
    return found is not None


def begin_runs(connection: sqlite3.Connection, rows: list[list[Any]], now: float) -> None:
    """Make runs active with their first job."""
    fresh = {row[0] >> SHIFT for row in rows if row[2] != ACTIVE}
    if fresh:
        connection.execute(
            "UPDATE dags SET state = 'active', started_at = coalesce(started_at, ?) "
            "WHERE id IN (SELECT value FROM json_each(?)) AND state = 'created'",
            (now, compact(sorted(fresh))),
        )


def inputs_of(connection: sqlite3.Connection, rows: Iterable[list[Any]]) -> dict[int, str]:
    """Fetch what lies apart: long payloads (under their job's key) and the results that jobs use."""
    wanted: set[int] = set()
    long: set[int] = set()
    for row in rows:
        if row[7] is None:
            long.add(row[0])
        if row[8]:
            row[8] = json.loads(row[8])
            run = row[0] & ~NODE
            wanted.update(run + node for node in row[8])
    found: dict[int, str] = {}
    if long:
        found.update(
            (~key, payload)
            for key, payload in gathered(
                connection,
                "json_array(id, payload)",
                "payloads WHERE id IN (SELECT value FROM json_each(?))",
                compact(sorted(long)),
            )
        )
    if wanted:
        found.update(
            (key, result)
            for key, result in gathered(
                connection, "json_array(id, result)", f"jobs WHERE {AMONG}", compact(sorted(wanted))
            )
        )
    return found


def claimed(row: list[Any], worker: int, fence: int, inputs: dict[int, str]) -> Claimed:
    key, _, _, _, _, name, task, payload, uses, *tries, timeout, suspect = row
    attempts, crashes, retries, delay = tries
    if payload is None:
        payload = inputs[~key]
    run = key & ~NODE
    results = {node: inputs[run + node] for node in uses} if uses else {}
    # fmt: off
    return Claimed(
        key >> SHIFT, key & NODE, worker, fence, name, task, payload, results, attempts, crashes, retries, delay,
        timeout, bool(suspect),
    )
    # fmt: on


def fetch(connection: sqlite3.Connection, workers: Sequence[int], now: float) -> list[Claimed]:
    """Acknowledge what was claimed for these workers, if they are still known."""
    rows = gathered(
        connection,
        CLAIMED,
        f"{JOINED} WHERE jobs.state = 'active' AND jobs.acked = 0 "
        "AND jobs.worker IN (SELECT value FROM json_each(?)) "
        "AND jobs.worker IN (SELECT id FROM workers) ORDER BY jobs.claimed_at, jobs.id",
        compact(list(workers)),
    )
    if not rows:
        return []
    connection.execute(
        f"UPDATE jobs SET acked = 1, started_at = ? WHERE {AMONG}",
        (now, compact([row[0] for row in rows])),
    )
    inputs = inputs_of(connection, rows)
    return [claimed(row, row[3], row[4], inputs) for row in rows]


def waiting_for(connection: sqlite3.Connection, workers: Sequence[int]) -> bool:
    """Tell whether anything was claimed for these workers and not acknowledged, without the lock."""
    found = connection.execute(
        "SELECT 1 FROM jobs WHERE state = 'active' AND worker IN (SELECT value FROM json_each(?)) "
        "AND acked = 0 LIMIT 1",
        (compact(list(workers)),),
    ).fetchone()
    return found is not None
