"""Submissions on their way into PostgreSQL: runs turned into columns, and the caller's own connection.

`submit(connection=…)` takes a connection of asyncpg (also one of a pool) or of psycopg (async, or sync, which is then
used in a thread while `submit` waits) with an open transaction; `jobs.sync` takes the sync ones.  Everything happens in
that transaction: nobody sees the run before it commits, and nothing is left of it if it does not.

What is stored, and whether a key is another DAG's, is decided by `store_runs` alone.  It reaches the database through a
function that runs one statement (`$1` for the first value), whichever driver that is of.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import contextmanager
from itertools import chain, repeat
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import asyncpg

from fairlead.config import shown
from fairlead.errors import ConfigError, KeyConflict, Misuse, SchemaMismatch, StoreUnavailable
from fairlead.jobs.conflicts import KeptJob, KeptRun, check_stored
from fairlead.jobs.records import AlikeRuns, Submitted
from fairlead.jobs.stores.at_once import at_once
from fairlead.jobs.stores.postgres_connections import PASSING, UNMIGRATED, judged, migrate_command
from fairlead.jobs.stores.postgres_rows import columns, numbers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from fairlead.jobs.records import NewJob, NewRun
    from fairlead.jobs.stores.postgres_connections import Address

    Fetch = Callable[..., Awaitable[Sequence[Any]]]

# The parameters of the function `submit`: how many runs, their columns, whether there are keys, and columns of jobs.
# `texts` are never null.
RUNS = "int texts texts text[] float8[] float8[] float8[] int[] bool"
JOBS = (
    "int[] int[] texts texts texts texts text[] text[] text[] int[] "
    "int[] float8[] float8[] float8[] float8[] bool[] int[] float8[] float8[] float8[]"
)
TYPES = f"{RUNS} {JOBS}".split()
# Every text is followed by the separator, the last one too: of nothing but an empty text no array could be made.
AS_TEXT = {
    "texts": f"trim_array(string_to_array(${{}}::text, ${len(TYPES) + 1}::text), 1)",
    "int[]": "${}::text::int[]",
}
SUBMIT = "SELECT owners, fresh FROM fairlead.submit({})".format(
    ", ".join(
        AS_TEXT.get(kind, f"${{}}::{kind}").format(place) for place, kind in enumerate(TYPES, 1)
    )
)
SUBMIT_ALIKE = (
    "SELECT owners, fresh FROM fairlead.submit_alike($1::int, {}, {}, {}, $6::text, $7::text, $8::text, "
    "$9::float8, $10::float8, $11::int, $12::float8, $13::float8, $14::float8)"
).format(*(f"trim_array(string_to_array(${place}::text, $2::text), 1)" for place in (3, 4, 5)))
# What is compared of runs whose keys are taken, wherever they are by now.
STORED = """
SELECT d.dag, d.name, j.name, j.task, j.needs, j.payload, j.node
FROM fairlead.{0}dags d JOIN fairlead.{0}jobs j ON j.dag = d.dag WHERE d.dag = ANY ($1::bigint[])"""
STORED = f"{STORED.format('')} UNION ALL {STORED.format('archived_')} ORDER BY 1, 7"
SEPARATOR = "\x1f"  # in no name, and escaped in JSON
NOTIFY = "SELECT pg_notify($1, '')"


def columns_of(runs: Sequence[NewRun]) -> list[Any]:
    """Turn runs and all their jobs into one list per column, as the function `submit` takes them."""
    names, parts, tenants, keys, softs, hards, starts = columns(runs, 7)
    jobs = list(chain.from_iterable(parts))
    sizes = list(map(len, parts))
    single = len(jobs) == len(runs) and all(sizes)
    places = chain.from_iterable(map(repeat, range(1, len(runs) + 1), sizes))
    return [
        len(runs),
        *map(_once, (names, tenants)),
        *map(_told, (keys, softs, hards, starts)),
        None if single else sizes,
        keys.count(None) < len(keys),
        None if single else list(places),
        None if single else list(chain.from_iterable(map(range, sizes))),
        *_columns_of_jobs(jobs, runs),
        _told(starts if single else list(chain.from_iterable(map(repeat, starts, sizes)))),
    ]


def _columns_of_jobs(jobs: Sequence[NewJob], runs: Sequence[NewRun]) -> list[Any]:
    (names, tasks, executors, payloads, needs, uses, levels, heights, *rest) = columns(jobs, 15)
    estimates, softs, hards, owns, retries, delays, timeouts = rest
    linked = any(needs)
    return [
        *map(_once, (names, tasks, executors, payloads)),
        [_array(one) for one in needs] if linked else None,
        [_array(one) for one in uses] if linked else None,
        [_array(one) for one in _fed(runs)] if linked else None,
        [len(one) for one in needs] if linked else None,
        levels if any(levels) else None,
        _once(heights) if any(heights) else None,
        *map(_told, (estimates, softs, hards)),
        owns if any(owns) else None,
        _once(retries) if any(retries) else None,
        _once(delays),
        _told(timeouts),
    ]


def call_of(runs: Sequence[NewRun]) -> list[Any]:
    """Make the statement that stores runs, and its values."""
    if isinstance(runs, AlikeRuns):
        return [SUBMIT_ALIKE, *_columns_of_alike(runs)]
    return [SUBMIT, *_as_text(columns_of(runs))]


def _columns_of_alike(runs: AlikeRuns) -> list[Any]:
    """Write runs that are alike as the function `submit_alike` takes them."""
    first = runs.first
    (job,) = first.jobs
    texts = list(map(_once, (runs.names, runs.job_names, runs.payloads)))
    separator = _separator(chain.from_iterable(texts))
    return [
        len(runs),
        separator,
        *(separator.join(column) + separator for column in texts),
        first.tenant,
        job.task,
        job.executor,
        job.height,
        job.estimate,
        job.retries,
        job.retry_delay,
        job.timeout,
        first.start_at,
    ]


def _separator(texts: Iterable[str]) -> str:
    """Choose what stands after each text, and in none."""
    found = any(SEPARATOR in text for text in texts)
    return SEPARATOR + token_hex(8) if found else SEPARATOR


def _as_text(told: Sequence[Any]) -> list[Any]:
    """Write texts as one text and numbers as another: an array takes a driver many times as long."""
    all_texts = chain.from_iterable(
        column or () for column, kind in zip(told, TYPES, strict=True) if kind == "texts"
    )
    separator = _separator(all_texts)
    return [*map(_written, told, TYPES, repeat(separator)), separator]


def _written(column: Any, kind: str, separator: str) -> Any:
    if kind == "texts":
        return separator.join(column) + separator if column else None
    return numbers(column) if kind == "int[]" else column


def _told(column: list[Any]) -> list[Any] | None:
    """Leave out a column without a value."""
    return column if column.count(None) < len(column) else None


def _once(column: list[Any]) -> list[Any]:
    """Tell only the first of values that are all the same; none may be None."""
    same = column and column.count(column[0]) == len(column)
    return column[:1] if same else column


def submitted(rows: Sequence[Any]) -> list[Submitted]:
    """Read the answer of the function `submit`."""
    ((owners, fresh),) = rows
    make = tuple.__new__  # what the record's own maker does, in a third of the time
    return [make(Submitted, each) for each in zip(owners, fresh or repeat(True), strict=False)]


def _fed(runs: Sequence[NewRun]) -> list[list[int]]:
    """Tell for each job which jobs of its run need it."""
    fed: list[list[int]] = []
    for run in runs:
        start = len(fed)
        fed.extend([] for _ in run.jobs)
        for node, job in enumerate(run.jobs):
            for needed in job.needs:
                fed[start + needed].append(node)
    return fed


def _array(nodes: Sequence[int]) -> str | None:
    return "{" + ",".join(map(str, nodes)) + "}" if nodes else None


def has_key(runs: Sequence[NewRun]) -> bool:
    """Whether a run has a key; runs that are alike have none."""
    return not isinstance(runs, AlikeRuns) and any(run.key is not None for run in runs)


def needs_undo(runs: Sequence[NewRun], compare: bool) -> bool:
    """Whether a key of another DAG may be found after other runs of the call were stored."""
    return compare and len(runs) > 1 and has_key(runs)


async def store_runs(fetch: Fetch, runs: Sequence[NewRun], compare: bool) -> list[Submitted]:
    """Store runs; with `compare`, raise KeyConflict if a key belongs to another DAG.

    One statement, and a second one only if a key is taken.  If `needs_undo`, the caller undoes the first on an error.
    """
    answers = submitted(await fetch(*call_of(runs)))
    if compare and (taken := sorted({dag for dag, new in answers if not new})):
        check_stored(runs, answers, _stored(await fetch(STORED, taken)))
    return answers


def _stored(rows: Iterable[Any]) -> dict[int, KeptRun]:
    """Gather jobs into their runs."""
    jobs: dict[int, tuple[str, list[KeptJob]]] = {}
    for dag, called, name, task, needs, payload, _ in rows:
        jobs.setdefault(dag, (called, []))[1].append(KeptJob(name, task, needs, payload))
    return {dag: KeptRun(*found) for dag, found in jobs.items()}


async def _submit_inside(
    fetch: Fetch, channel: str, runs: Sequence[NewRun], compare: bool
) -> list[Submitted]:
    """Store runs in an open transaction; a KeyConflict leaves that as it was."""
    undo = needs_undo(runs, compare)
    if undo:
        await fetch("SAVEPOINT fairlead_submit")
    try:
        answers = await store_runs(fetch, runs, compare)
    except KeyConflict:
        if undo:
            await fetch("ROLLBACK TO SAVEPOINT fairlead_submit")
            await fetch("RELEASE SAVEPOINT fairlead_submit")
        raise
    if undo:
        await fetch("RELEASE SAVEPOINT fairlead_submit")
    if any(new for _, new in answers):
        await fetch(NOTIFY, channel)
    return answers


async def submit_on(
    connection: Any, address: Address, channel: str, runs: Sequence[NewRun], compare: bool
) -> list[Submitted]:
    """Store runs in the transaction that is open on the caller's connection."""
    if isinstance(connection, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy):
        if not connection.is_in_transaction():
            raise no_transaction("async with connection.transaction():")

        async def fetch(sql: str, *args: Any) -> Any:
            return await connection.fetch(address.with_schema(sql), *args)

        with told(address):
            return await _submit_inside(fetch, channel, runs, compare)

    psycopg = sys.modules.get("psycopg")
    if psycopg is not None and isinstance(connection, psycopg.Connection):
        return await asyncio.to_thread(submit_through, connection, address, channel, runs, compare)
    if psycopg is None or not isinstance(connection, psycopg.AsyncConnection):
        raise ConfigError(
            "connection= must be a connection of asyncpg or psycopg with an open transaction; "
            f"got {shown(connection)}; for SQLAlchemy and Django there is jobs.sync.submit"
        )
    _check_transaction(connection, "async with connection.transaction():")
    # A cursor of our own: those that the connection makes may read placeholders in another way.
    async with psycopg.AsyncRawCursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:

        async def fetch_by_cursor(sql: str, *args: Any) -> Any:
            await cursor.execute(address.with_schema(sql), args or None)
            return await cursor.fetchall() if cursor.description else []

        with told(address):
            return await _submit_inside(fetch_by_cursor, channel, runs, compare)


def submit_through(
    connection: Any, address: Address, channel: str, runs: Sequence[NewRun], compare: bool
) -> list[Submitted]:
    """Store runs in the transaction that is open on a sync connection of psycopg."""
    psycopg: Any = sys.modules["psycopg"]
    _check_transaction(connection, "with connection.transaction():")
    with psycopg.RawCursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:

        async def fetch(sql: str, *args: Any) -> Any:
            cursor.execute(address.with_schema(sql), args or None)
            return cursor.fetchall() if cursor.description else []

        with told(address):
            return at_once(_submit_inside(fetch, channel, runs, compare))


@contextmanager
def told(address: Address) -> Iterator[None]:
    """Say errors of a caller's connection in our words."""
    psycopg: Any = sys.modules.get("psycopg")
    drivers = (
        (asyncpg.PostgresError,) if psycopg is None else (asyncpg.PostgresError, psycopg.Error)
    )
    try:
        yield
    except drivers as error:
        if isinstance(error, asyncpg.PostgresError):
            if (judgement := judged(error, address)) is None:
                raise
            raise judgement from error
        code = getattr(error, "sqlstate", None) or "08"
        if code in UNMIGRATED:
            raise SchemaMismatch(
                f"the database of this connection has no Fairlead schema {address.schema!r}; "
                f"run: {migrate_command(address)}"
            ) from error
        if code.startswith(PASSING):
            raise StoreUnavailable(
                f"nothing was stored ({' '.join(str(error).split())}); run the transaction again"
            ) from error
        raise


def _check_transaction(connection: Any, how: str) -> None:
    psycopg: Any = sys.modules["psycopg"]
    idle = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    if connection.autocommit and idle:
        raise no_transaction(how)


def no_transaction(how: str) -> Misuse:
    """Refuse a connection that would store the run at once."""
    return Misuse(
        "connection= has no open transaction; open one first, "
        f"as in `{how}`, or leave connection= out"
    )
