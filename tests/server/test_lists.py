"""Lists of very many runs: the same pages whatever is in between, by indexes.

How long the views of a million take is measured by `make bench ARGS="dashboard"`.
"""

import sqlite3
from pathlib import Path
from typing import Any

import asyncpg

from fairlead.jobs.stores.opening import open_store
from fairlead.jobs.stores.postgres_connections import read_url
from fairlead.jobs.stores.sqlite_runs import runs
from tests.engines_postgres import dropped, new_schema, shared_url, with_schema
from tests.server.million import fill_postgres, fill_sqlite
from tests.server.rig import configured, run, served


async def walked(client: Any, query: str) -> list[int]:
    """Follow a list to its end."""
    found: list[int] = []
    cursor = ""
    while True:
        page = await client.get(f"/api/v1/jobs/runs?limit=500{query}{cursor}")
        found += [int(item["id"]) for item in page["items"]]
        if page["next"] is None:
            return found
        cursor = f"&cursor={page['next']}"


def expected(count: int, state: str | None, tenant: str | None) -> list[int]:
    def state_of(n: int) -> str:
        part = n % 100
        if part < 96:
            return "completed" if part < 90 else "failed" if part < 95 else "cancelled"
        return "active" if n < 400 else "created"

    def tenant_of(n: int) -> str:
        return "rare" if n % 100_000 == 7 else {0: "acme", 1: "globex"}.get(n % 10, "")

    return [
        n
        for n in range(count, 0, -1)
        if state in (None, state_of(n)) and tenant in (None, tenant_of(n))
    ]


async def check_pages(url: str, tmp_path: Path, count: int) -> None:
    async with served(configured(tmp_path, jobs={"database": url})) as client:
        for state, tenant in (
            (None, None),
            ("active", None),
            ("failed", "acme"),
            ("created", None),
            (None, "rare"),
            ("active", "acme"),
            ("failed", "rare"),
            ("suspended", None),
        ):
            query = f"&state={state}" * bool(state) + f"&tenant={tenant}" * bool(tenant)
            assert await walked(client, query) == expected(count, state, tenant), query


def test_pages_of_sqlite_hold_every_run_once(tmp_path: Path):
    fill_sqlite(str(tmp_path / "m.db"), 3000)
    run(lambda: check_pages(f"sqlite:///{tmp_path}/m.db", tmp_path, 3000))


def test_pages_of_postgres_hold_every_run_once(tmp_path: Path):
    async def test() -> None:
        schema = new_schema()
        url = with_schema(shared_url(), schema)
        await open_store(url).migrate()
        await fill_postgres(url, 3000)
        await check_pages(url, tmp_path, 3000)
        await dropped(shared_url(), schema)

    run(test)


def test_a_tenants_list_in_sqlite_goes_by_its_index(tmp_path: Path):
    fill_sqlite(str(tmp_path / "m.db"), 2000)
    with sqlite3.connect(tmp_path / "m.db") as db:
        sql = "SELECT id FROM dags WHERE 1 AND tenant = ? AND id < ? AND tenant <> '' ORDER BY id DESC LIMIT 50"
        (plan,) = db.execute(f"EXPLAIN QUERY PLAN {sql}", ("acme", 1000)).fetchall()
        assert "dags_tenant (tenant=? AND id<?)" in plan[3]
        asked: list[str] = []
        db.set_trace_callback(asked.append)
        runs(db, "failed", "rare", 1000, 50)
        db.set_trace_callback(None)
        (plan,) = db.execute(f"EXPLAIN QUERY PLAN {asked[0]}").fetchall()
        assert "dags_few_tenant (tenant=? AND state=? AND id<?)" in plan[3]
    db.close()


def test_rare_states_in_postgres_go_by_their_indexes():
    async def test() -> None:
        schema = new_schema()
        url = with_schema(shared_url(), schema)
        await open_store(url).migrate()
        await fill_postgres(url, 20_000)
        db = await asyncpg.connect(url.partition("?")[0])
        dags = f"SELECT dag FROM {read_url(url).schema}.dags d WHERE"
        for where, index in (
            ("d.tenant = 'rare' AND d.tenant <> ''", "dags_tenant"),
            ("d.completed_on IS NULL AND d.paused", "dags_paused"),
            ("d.completed_on IS NULL AND d.started_at IS NOT NULL", "dags_begun"),
            (
                "d.state <> 'completed' AND d.completed_on IS NOT NULL AND d.state = 'cancelled'",
                "dags_unwell",
            ),
        ):
            rows = await db.fetch(f"EXPLAIN {dags} {where} ORDER BY d.dag DESC LIMIT 50")
            assert index in "".join(row[0] for row in rows), (where, rows)
        await db.close()
        await dropped(shared_url(), schema)

    run(test)
