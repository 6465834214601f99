"""Ending jobs: what an ending does to its job, to those that wait for it, and to its run.

All of it happens in one transaction under the write lock, so rows are read, everything is decided here, and then
written in a few wide statements.  A run keeps count of what is left and of what failed, so that nobody
ever counts its jobs again.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fairlead.jobs.records import Ending, Finished, Id, RunEnd
from fairlead.jobs.states import (
    ACTIVE,
    CANCELLED,
    COMPLETED,
    EXPIRED,
    FAILED,
    RETRY,
    SKIPPED,
    SUSPENDED,
    TERMINAL,
    TRANSITIONS,
)
from fairlead.jobs.stores.sqlite_rows import (
    AMONG,
    IS_UNSTARTED,
    JOINED,
    NODE,
    SHIFT,
    clean,
    compact,
    count,
    gathered,
    key_of,
    not_before,
    ready_among,
    tell,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence

ACTIVE_JOB = (
    "json_array(jobs.id, jobs.fence, jobs.cancelling, jobs.dependents, jobs.own_sla, dags.state)"
)


class Tally:
    """What a transaction does to the numbers: jobs by state, and what is left of each run."""

    def __init__(self) -> None:
        self.states: dict[str, int] = {}
        self.runs: dict[int, list[int]] = {}  # dag -> [ended, failed or expired, cancelled]

    def move(self, key: int, before: str, after: str) -> None:
        states = self.states
        states[before] = states.get(before, 0) - 1
        states[after] = states.get(after, 0) + 1
        if after in TERMINAL:
            run = self.runs.setdefault(key >> SHIFT, [0, 0, 0])
            run[0] += 1
            if after in (FAILED, EXPIRED):
                run[1] += 1
            elif after == CANCELLED:
                run[2] += 1

    def write(self, connection: sqlite3.Connection, now: float) -> list[RunEnd]:
        """Write the numbers down; tell which runs have ended with that."""
        count(connection, self.states)
        if not self.runs:
            return []
        rows = gathered(
            connection,
            "json_array(id, left, failed, cancelled)",
            "dags WHERE id IN (SELECT value FROM json_each(?))",
            compact(sorted(self.runs)),
        )
        ended: list[RunEnd] = []
        on: list[tuple[int, ...]] = []
        over: dict[tuple[str, int, int], list[int]] = {}  # runs by how they ended
        for dag, left, failed, cancelled in rows:
            fewer, more_failed, more_cancelled = self.runs[dag]
            failed += more_failed
            cancelled += more_cancelled
            if left > fewer:
                on.append((dag, left - fewer, failed, cancelled))
                continue
            state = FAILED if failed else CANCELLED if cancelled else COMPLETED
            ended.append(RunEnd(dag, state))
            over.setdefault((state, failed, cancelled), []).append(dag)
        write_runs(connection, on, over, now)
        return ended


def write_runs(
    connection: sqlite3.Connection,
    on: list[tuple[int, ...]],
    over: dict[tuple[str, int, int], list[int]],
    now: float,
) -> None:
    if on:
        connection.execute(
            "UPDATE dags SET left = json_extract(value, '$[1]'), failed = json_extract(value, '$[2]'), "
            "cancelled = json_extract(value, '$[3]') FROM json_each(?) WHERE dags.id = json_extract(value, '$[0]')",
            (compact(on),),
        )
    for ending, dags in over.items():
        # A deadline that was kept need not be watched any more; one that was missed is still to be told.
        connection.execute(
            "UPDATE dags SET left = 0, state = ?, failed = ?, cancelled = ?, completed_on = ?, "
            "soft_due = CASE WHEN soft_due < ? THEN soft_due END, "
            "hard_due = CASE WHEN hard_due < ? THEN hard_due END WHERE id IN (SELECT value FROM json_each(?))",
            (*ending, now, now, now, compact(dags)),
        )


def finish(
    connection: sqlite3.Connection, process: str, endings: Sequence[Ending], now: float
) -> Finished:
    """Apply the endings whose fence still holds."""
    active = {
        row[0]: row
        for row in gathered(
            connection,
            ACTIVE_JOB,
            f"{JOINED} WHERE {AMONG} AND jobs.state = 'active'",
            compact([key_of(ending.dag, ending.node) for ending in endings]),
        )
    }
    applied: list[Id] = []
    refused: list[Id] = []
    tally = Tally()
    completed: dict[int, str | None] = {}  # job -> its result
    others: list[tuple[Any, ...]] = []
    died: list[tuple[Any, ...]] = []
    paused: list[int] = []
    promised: list[int] = []  # jobs with an SLA of their own
    unblocked: dict[int, int] = {}  # job -> how many of its dependencies completed
    late: list[int] = []  # dependents of what completed though its run was cancelled
    fruitless: list[int] = []  # jobs that now will never run
    again: list[int] = []
    for ending in endings:
        key = key_of(ending.dag, ending.node)
        row = active.get(key)
        if row is None or row[1] != ending.fence:
            refused.append((ending.dag, ending.node))
            continue
        # A second ending for the same claim finds it gone.
        del active[key]
        applied.append((ending.dag, ending.node))
        _, _, cancelling, dependents, own_sla, run_state = row
        state = CANCELLED if cancelling and ending.state in (RETRY, FAILED) else ending.state
        if state not in TRANSITIONS[ACTIVE]:
            raise ValueError(f"job {ending.dag}.{ending.node} cannot go from active to {state!r}")
        tally.move(key, ACTIVE, state)
        if own_sla and state != RETRY:
            promised.append(key)
        if dependents and state != RETRY:
            run = key & ~NODE
            following = [run + node for node in json.loads(dependents)]
            if state == COMPLETED:
                for child in following:
                    unblocked[child] = unblocked.get(child, 0) + 1
                if cancelling:
                    late += following
            else:
                fruitless += following
        if state == COMPLETED:
            completed[key] = clean(ending.result)
            continue
        others.append(other_values(key, state, ending, now))
        if ending.death is not None:
            died.append((key, now, ending.death.alone, clean(ending.death.beside)))
        if state == RETRY:
            (paused if run_state == SUSPENDED else again).append(key)
    write_endings(connection, completed, others, now)
    if died:
        connection.executemany("INSERT INTO deaths VALUES (?, ?, ?, ?)", died)
    if paused:
        suspend(connection, paused, tally)
    if unblocked:
        again += unblock(connection, unblocked, now)
    if late:
        cancel_skipped(connection, late, tally)
    if fruitless:
        promised += skip(connection, fruitless, tally, now)
    if promised:
        keep_promises(connection, promised, now)
    ended = tally.write(connection, now)
    ready = ready_among(connection, again) if again else []
    if applied and not is_leader(connection, process):
        tell(
            connection,
            ended=applied,
            ready=[(job.dag, job.node) for job in ready],
            over=[run.dag for run in ended],
        )
    return Finished(applied, refused, ready, ended)


def is_leader(connection: sqlite3.Connection, process: str) -> bool:
    """Tell whether this process leads: it hears of its own endings without news."""
    found = connection.execute("SELECT 1 FROM leader WHERE process = ?", (process,)).fetchone()
    return found is not None


def other_values(key: int, state: str, ending: Ending, now: float) -> tuple[Any, ...]:
    start_at = not_before(now + ending.delay) if state == RETRY and ending.delay > 0 else 0
    done = None if state == RETRY else now
    return (key, state, start_at, ending.attempts, ending.crashes, clean(ending.error), done)


def write_endings(
    connection: sqlite3.Connection,
    completed: dict[int, str | None],
    others: list[tuple[Any, ...]],
    now: float,
) -> None:
    if completed:
        connection.execute(
            "UPDATE jobs SET state = 'completed', result = given.value, error = NULL, completed_on = ?, "
            "fence = NULL, cancelling = 0 FROM json_each(?) AS given WHERE jobs.id = CAST(given.key AS INTEGER)",
            (now, compact(completed)),
        )
    if others:
        # What is to run again belongs to nobody; what has ended still tells who ran it.
        connection.execute(
            "UPDATE jobs SET state = json_extract(value, '$[1]'), start_at = json_extract(value, '$[2]'), "
            "attempts = coalesce(json_extract(value, '$[3]'), attempts), "
            "crashes = coalesce(json_extract(value, '$[4]'), crashes), "
            "error = coalesce(json_extract(value, '$[5]'), error), completed_on = json_extract(value, '$[6]'), "
            "worker = CASE WHEN json_extract(value, '$[1]') = 'retry' THEN NULL ELSE worker END, "
            "fence = NULL, acked = 0, cancelling = 0 "
            "FROM json_each(?) WHERE jobs.id = json_extract(value, '$[0]')",
            (compact(others),),
        )


def suspend(connection: sqlite3.Connection, keys: list[int], tally: Tally) -> None:
    """Hold back what came for a retry while its run is paused."""
    connection.execute(
        f"UPDATE jobs SET state = 'suspended' WHERE {AMONG}",
        (compact(keys),),
    )
    for key in keys:
        tally.move(key, RETRY, SUSPENDED)


def unblock(connection: sqlite3.Connection, counted: dict[int, int], now: float) -> list[int]:
    """Count dependencies down, whatever state the dependents are in; tell whose are all done."""
    changes = compact(list(counted.items()))
    connection.execute(
        "UPDATE jobs SET waits = waits - json_extract(value, '$[1]'), "
        "ready_at = CASE WHEN waits = json_extract(value, '$[1]') THEN coalesce(ready_at, max(?, start_at)) "
        "ELSE ready_at END FROM json_each(?) WHERE jobs.id = json_extract(value, '$[0]')",
        (now, changes),
    )
    return list(counted)


def cancel_skipped(connection: sqlite3.Connection, keys: list[int], tally: Tally) -> None:
    """Call cancelled what a cancel skipped and now has all it needs; in its run it counts as that already."""
    changed = connection.execute(
        f"UPDATE jobs SET state = 'cancelled' WHERE {AMONG} AND jobs.state = 'skipped' AND waits = 0",
        (compact(keys),),
    ).rowcount
    states = tally.states
    states[SKIPPED] = states.get(SKIPPED, 0) - changed
    states[CANCELLED] = states.get(CANCELLED, 0) + changed


def skip(
    connection: sqlite3.Connection, keys: Iterable[int], tally: Tally, now: float
) -> list[int]:
    """Skip what has not started, and all that depends on it; tell which have an SLA of their own."""
    promised: list[int] = []
    wave = list(dict.fromkeys(keys))
    while wave:
        rows = gathered(
            connection,
            "json_array(jobs.id, jobs.state, jobs.dependents, jobs.own_sla)",
            f"jobs WHERE {AMONG} AND {IS_UNSTARTED}",
            compact(wave),
        )
        if not rows:
            break
        connection.execute(
            f"UPDATE jobs SET state = 'skipped', completed_on = ? WHERE {AMONG}",
            (now, compact([row[0] for row in rows])),
        )
        following: dict[int, None] = {}
        for key, state, dependents, own_sla in rows:
            tally.move(key, state, SKIPPED)
            if own_sla:
                promised.append(key)
            if dependents:
                following.update(
                    dict.fromkeys((key & ~NODE) + node for node in json.loads(dependents))
                )
        wave = list(following)
    return promised


def keep_promises(connection: sqlite3.Connection, keys: list[int], now: float) -> None:
    """Stop watching deadlines that were kept."""
    connection.execute(
        "UPDATE jobs SET soft_due = CASE WHEN soft_due < ? THEN soft_due END, "
        f"hard_due = CASE WHEN hard_due < ? THEN hard_due END WHERE {AMONG}",
        (now, now, compact(keys)),
    )
