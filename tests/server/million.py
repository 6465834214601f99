"""A million jobs in a database, written by the database itself: half a minute instead of an hour.

Of every hundred runs of one job each, 90 completed, 5 failed, 1 was cancelled and 4 have not begun.  The first three of
those that have not ended are active: the oldest, so that a list by age has to look far.
"""

import asyncio
import sqlite3
import time

import asyncpg

from fairlead.jobs.stores.opening import open_store
from fairlead.jobs.stores.postgres_connections import read_url

STATE = (
    "CASE WHEN n % 100 < 90 THEN 'completed' WHEN n % 100 < 95 THEN 'failed' WHEN n % 100 < 96 THEN 'cancelled' "
    "WHEN n < 400 THEN 'active' ELSE 'created' END"
)
TENANT = "CASE n % 10 WHEN 0 THEN 'acme' WHEN 1 THEN 'globex' ELSE '' END"
RARE = f"CASE WHEN n % 100000 = 7 THEN 'rare' ELSE {TENANT} END"


def fill_sqlite(path: str, runs: int) -> None:
    """Write runs into an SQLite file that a store has made."""
    asyncio.run(_made(f"sqlite:///{path}"))
    now = time.time()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA synchronous = OFF")
        db.execute(
            "INSERT INTO dags "
            "(state, left, failed, jobs, created_at, started_at, completed_on, tenant, name, announced) "
            "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < ?) "
            f"SELECT {STATE}, iif(n % 100 < 96, 0, 1), iif(n % 100 BETWEEN 90 AND 94, 1, 0), 1, ?1 + n / 1e4, "
            f"iif(n % 100 < 96 OR n < 400, ?2, NULL), iif(n % 100 < 96, ?2 + 1, NULL), {RARE}, 'report', 1 FROM c",
            (runs, now),
        )
        db.execute(
            "INSERT INTO jobs (id, state, waits, start_at, ready_at, name, task, executor, level, height, own_sla, "
            "retries, retry_delay, payload, completed_on) SELECT id << 20, state, 0, 0, created_at, 'make', 'make', "
            "'elsewhere', 0, 1, 0, 0, 1, '[[],{}]', completed_on FROM dags"
        )
        db.execute(
            "UPDATE counts SET jobs = (SELECT count(*) FROM dags WHERE dags.state = counts.state)"
        )
        db.execute("ANALYZE")
    db.close()


async def _made(url: str) -> None:
    store = open_store(url)
    await store.open()
    await store.close()


async def fill_postgres(url: str, runs: int) -> None:
    """Write runs into a schema that a store has made."""
    schema = read_url(url).schema
    db = await asyncpg.connect(url.partition("?")[0])
    numbers = f"FROM generate_series(1, {runs}) AS g(n)"
    await db.execute(
        f"INSERT INTO {schema}.dags (dag, state, remaining, failed, jobs, created_at, started_at, completed_on, "
        f"tenant, name, announced) SELECT n, {STATE}, CASE WHEN n % 100 < 96 THEN 0 ELSE 1 END, "
        f"CASE WHEN n % 100 BETWEEN 90 AND 94 THEN 1 ELSE 0 END, 1, {schema}.clock() + n / 1e4, "
        f"CASE WHEN n % 100 < 96 OR n < 400 THEN {schema}.clock() END, "
        f"CASE WHEN n % 100 < 96 THEN {schema}.clock() END, {RARE}, 'report', true {numbers}"
    )
    await db.execute(
        f"INSERT INTO {schema}.jobs (dag, node, state, waits, level, height, retries, own_sla, alone, retry_delay, "
        f"start_at, ready_at, claimed_at, name, task, executor, payload) SELECT n, 0, {STATE}, 0, 0, 1, 0, false, "
        f"true, 1, 0, {schema}.clock(), CASE WHEN n % 100 < 96 OR n < 400 THEN {schema}.clock() END, 'make', 'make', "
        f"'elsewhere', '[[],{{}}]' {numbers}"
    )
    await db.execute(f"SELECT setval('{schema}.dag_numbers', {runs})")
    await db.execute(f"ANALYZE {schema}.dags; ANALYZE {schema}.jobs")
    await db.close()
