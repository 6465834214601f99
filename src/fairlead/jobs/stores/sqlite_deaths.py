"""The deaths of processes that ran jobs, as far as they are remembered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.jobs.stores.sqlite_rows import compact, gathered, id_of, key_of

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Sequence

    from fairlead.jobs.records import Id


def graves(connection: sqlite3.Connection, workers: Collection[int]) -> dict[int, str]:
    """Return the processes of workers that were buried."""
    rows = gathered(
        connection,
        "json_array(worker, process)",
        "graves WHERE worker IN (SELECT value FROM json_each(?))",
        compact(list(workers)),
    )
    return dict(rows)


def deaths(
    connection: sqlite3.Connection, jobs: Sequence[Id], since: float
) -> dict[Id, tuple[int, int]]:
    """Count deaths since a time, alone and in company."""
    rows = gathered(
        connection,
        "json_array(job, sum(alone), sum(NOT alone))",
        "deaths WHERE job IN (SELECT value FROM json_each(?)) AND at > ? GROUP BY job",
        compact([key_of(*job) for job in jobs]),
        since,
    )
    return {id_of(key): (alone, company) for key, alone, company in rows}


def any_old(connection: sqlite3.Connection, before: float) -> bool:
    """Look for what is to be forgotten, without the lock."""
    found = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM deaths WHERE at <= ?1) OR EXISTS (SELECT 1 FROM graves WHERE at <= ?1)",
        (before,),
    ).fetchone()
    return bool(found[0])


def forget(connection: sqlite3.Connection, before: float) -> None:
    """Forget what is older."""
    connection.execute("DELETE FROM deaths WHERE at <= ?", (before,))
    connection.execute("DELETE FROM graves WHERE at <= ?", (before,))
