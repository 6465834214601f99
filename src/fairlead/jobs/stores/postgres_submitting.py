"""Submissions on their way into PostgreSQL: runs turned into columns, and the caller's own connection.

`submit(connection=…)` takes a connection of asyncpg (also one of a pool) or of psycopg (async, or sync, which is then
used in a thread while `submit` waits) with an open transaction.  Everything happens in that transaction: nobody sees
the run before it commits, and nothing is left of it if it does not.
"""

from __future__ import annotations

import asyncio
import sys
from itertools import chain, repeat
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import asyncpg

from fairlead.config import shown
from fairlead.errors import ConfigError, Misuse, SchemaMismatch, StoreUnavailable
from fairlead.jobs.records import AlikeRuns, Submitted
from fairlead.jobs.stores.postgres_connections import PASSING, UNMIGRATED, judged, migrate_command
from fairlead.jobs.stores.postgres_rows import columns, numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlead.jobs.records import NewJob, NewRun
    from fairlead.jobs.stores.postgres_connections import Address

# The parameters of the function `submit`: how many runs, their columns, whether there are keys, and columns of jobs.
# `texts` are never null.
RUNS = "int texts texts text[] float8[] float8[] float8[] int[] bool"
JOBS = (
    "int[] int[] texts texts texts texts text[] text[] text[] int[] "
    "int[] float8[] float8[] float8[] float8[] bool[] int[] float8[] float8[] float8[]"
)
TYPES = f"{RUNS} {JOBS}".split()
# Every text is followed by the separator, the last one too: of nothing but an empty text no array could be made.
FOR_ASYNCPG = {
    "texts": f"trim_array(string_to_array(${{}}::text, ${len(TYPES) + 1}::text), 1)",
    "int[]": "${}::text::int[]",
}
SUBMIT = "SELECT owners, fresh FROM fairlead.submit({})".format(
    ", ".join(
        FOR_ASYNCPG.get(kind, f"${{}}::{kind}").format(place) for place, kind in enumerate(TYPES, 1)
    )
)
SUBMIT_BY_PSYCOPG = "SELECT owners, fresh FROM fairlead.submit({})".format(
    ", ".join(f"%s::{kind}" for kind in TYPES).replace("texts", "text[]")
)
SUBMIT_ALIKE = (
    "SELECT owners, fresh FROM fairlead.submit_alike($1::int, {}, {}, {}, $6::text, $7::text, $8::text, "
    "$9::float8, $10::float8, $11::int, $12::float8, $13::float8, $14::float8)"
).format(*(f"trim_array(string_to_array(${place}::text, $2::text), 1)" for place in (3, 4, 5)))
SEPARATOR = "\x1f"  # in no name, and escaped in JSON
NOTIFY = "SELECT pg_notify({}, '')"


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
    """Tell the statement by which asyncpg stores runs, and its arguments."""
    if isinstance(runs, AlikeRuns):
        return [SUBMIT_ALIKE, *_columns_of_alike(runs)]
    return [SUBMIT, *_for_asyncpg(columns_of(runs))]


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


def _for_asyncpg(told: Sequence[Any]) -> list[Any]:
    """Write texts as one text and numbers as another: an array takes the driver many times as long."""
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


async def submit_on(
    connection: Any, address: Address, channel: str, runs: Sequence[NewRun]
) -> list[Submitted]:
    """Store runs in the transaction that is open on somebody's connection."""
    if isinstance(connection, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy):
        if not connection.is_in_transaction():
            raise _no_transaction()
        try:
            sql, *told = call_of(runs)
            rows = await connection.fetch(address.with_schema(sql), *told)
            await connection.fetch(NOTIFY.format("$1"), channel)
        except asyncpg.PostgresError as error:
            if (judgement := judged(error, address)) is None:
                raise
            raise judgement from error
        return submitted(rows)

    psycopg = sys.modules.get("psycopg")
    if psycopg is None or not isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
        raise ConfigError(
            "connection= must be a connection of asyncpg or psycopg with an open transaction; "
            f"got {shown(connection)}"
        )
    idle = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    if connection.autocommit and idle:
        raise _no_transaction()
    columns = columns_of(runs)
    sql = address.with_schema(SUBMIT_BY_PSYCOPG)
    # A cursor of our own: those that the connection makes may read placeholders in another way.
    try:
        if isinstance(connection, psycopg.Connection):
            found = await asyncio.to_thread(_submit_in_thread, connection, sql, columns, channel)
        else:
            async with psycopg.AsyncCursor(
                connection, row_factory=psycopg.rows.tuple_row
            ) as cursor:
                await cursor.execute(sql, columns)
                found = await cursor.fetchall()
                await cursor.execute(NOTIFY.format("%s"), [channel])
    except psycopg.Error as error:
        code = error.sqlstate or "08"
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
    return submitted(found)


def _submit_in_thread(connection: Any, sql: str, columns: list[Any], channel: str) -> list[Any]:
    psycopg: Any = sys.modules["psycopg"]
    with psycopg.Cursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
        cursor.execute(sql, columns)
        found: list[Any] = cursor.fetchall()
        cursor.execute(NOTIFY.format("%s"), [channel])
    return found


def _no_transaction() -> Misuse:
    return Misuse(
        "connection= has no open transaction; open one first, "
        "as in `async with connection.transaction():`, or leave connection= out"
    )
