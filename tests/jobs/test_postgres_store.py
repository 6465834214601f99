"""PostgreSQL held to the contract of stores: over loopback, and behind pgbouncer in transaction mode."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest

from fairlead.errors import StoreUnavailable
from fairlead.jobs.stores.base import Store
from fairlead.jobs.stores.opening import open_store
from tests.engines_postgres import (
    Pgbouncer,
    dropped,
    external,
    pgbouncer,
    shared,
    shared_url,
    wiped,
)
from tests.jobs.store_contract import StoreContract, alike, new_run

SCHEMA = "test_contract"


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    url = shared_url()
    yield url
    if external():
        asyncio.run(dropped(url, SCHEMA))


class TestPostgres(StoreContract):
    @pytest.fixture
    async def store(self, server_url: str) -> AsyncIterator[Store]:
        store = open_store(await wiped(server_url, SCHEMA))
        await store.open()
        yield store
        await store.close()

    @pytest.mark.parametrize("start_at", [None, 1.0, 9e9])
    async def test_rows_of_runs_that_are_alike_are_those_of_any_others(
        self, server_url: str, store: Store, start_at: float | None
    ):
        """Two functions store the same runs: they are to write the same columns, also those that nobody shows."""
        options = {"estimate": 2.5, "height": 7.5, "timeout": 3.0, "retries": 4}
        first = new_run(tenant="acme", start_at=start_at, of_jobs=options)
        runs = alike(first, ["a", "b"], ["x", "y"], ["1", "2"])
        await store.submit(runs)
        await store.submit(list(runs))
        connection = await asyncpg.connect(server_url)
        try:
            for table in ("dags", "jobs"):
                found = await connection.fetch(f"SELECT * FROM {SCHEMA}.{table} ORDER BY dag")
                rows = [
                    {
                        name: value
                        for name, value in row.items()
                        if name not in ("dag", "created_at", "ready_at")
                    }
                    for row in found
                ]
                assert rows[:2] == rows[2:]
        finally:
            await connection.close()

    @pytest.mark.parametrize("keyed", [True, False])
    async def test_runs_whose_answer_was_lost_are_stored_once(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, keyed: bool
    ):
        """With keys the store asks again, and finds them; without, nobody can know, and it is the caller's to say."""
        fetch = asyncpg.Connection.fetch
        lost: list[str] = []

        async def losing(self: Any, sql: str, *args: Any, **given: Any) -> Any:
            answer = await fetch(self, sql, *args, **given)
            if "fresh FROM" in sql and not lost:
                lost.append(sql)
                raise ConnectionResetError("cut after it was committed")
            return answer

        monkeypatch.setattr(asyncpg.Connection, "fetch", losing)
        if keyed:
            runs = [new_run(key="a"), new_run(key="b")]
            assert [one.new for one in await store.submit(runs)] == [False, False]
        else:
            with pytest.raises(StoreUnavailable):
                await store.submit(alike(new_run(), ["a", "b"], ["x", "y"], ["1", "2"]))
        assert len(lost) == 1
        assert len(await store.runs()) == 2


@pytest.fixture(scope="module")
def pooler() -> Iterator[Pgbouncer]:
    if external():
        pytest.skip("FAIRLEAD_TEST_POSTGRES is not ours to put a pooler before")
    with pgbouncer(shared()) as running:
        yield running


class TestPostgresBehindPgbouncer(StoreContract):
    @pytest.fixture
    async def store(self, server_url: str, pooler: Pgbouncer) -> AsyncIterator[Store]:
        await wiped(server_url, SCHEMA)
        store = open_store(f"{pooler.url_of()}?schema={SCHEMA}")
        await store.open()
        yield store
        await store.close()

    async def test_a_hint_comes_when_something_is_written_elsewhere(self, store: Store):
        """There is no listening through a pooler; whoever waits is not told, and looks by itself."""
        while await store.wait_for_news(0.0):
            pass
        twin = store.twin()
        await twin.open()
        await twin.submit([new_run()])
        await twin.close()
        assert not await store.wait_for_news(0.1)
