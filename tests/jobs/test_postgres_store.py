"""PostgreSQL held to the contract of stores: over loopback, and behind pgbouncer in transaction mode."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest

from fairlead.errors import StoreUnavailable
from fairlead.jobs.records import Ending, RunEnd
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
from tests.jobs.store_contract import WORKER, Hand, StoreContract, alike, new_run

SCHEMA = "test_contract"
MOVING = f"""
CREATE FUNCTION {SCHEMA}.moving() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {SCHEMA}.dags SET name = 'moved' WHERE dag = new.dag;
    RETURN new;
END $$;
CREATE TRIGGER moving AFTER UPDATE ON {SCHEMA}.jobs FOR EACH ROW EXECUTE FUNCTION {SCHEMA}.moving()"""
BLOCKED = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"""
# What is each row's own, however it came to be.
OWN = set("dag created_at ready_at claimed_at started_at completed_on fence acked".split())


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
                rows = [{name: row[name] for name in dict(row) if name not in OWN} for row in found]
                assert rows[:2] == rows[2:]
        finally:
            await connection.close()

    @pytest.mark.parametrize("slas", [{}, {"soft": 5.0, "hard": 9e9}, {"soft": 9e9}])
    async def test_rows_of_runs_that_end_plainly_are_those_of_any_others(
        self, server_url: str, hand: Hand, slas: dict[str, float]
    ):
        """Jobs alone in their runs that have completed have statements of their own, if nothing else ends with them."""
        plain, other = [await hand.submit(**slas) for _ in range(2)]
        chain = await hand.submit(["a", "b"])
        for dag in (plain, other, chain):
            await hand.claim(dag, 0)
        told = await hand.end(plain, 0, "completed", result="1")
        assert told.ended == [RunEnd(plain, "completed")]
        ends = [Ending(dag, 0, hand.fences[dag, 0], "completed", "1") for dag in (other, chain)]
        told = await hand.store.finish(WORKER, ends)
        assert told.ended == [RunEnd(other, "completed")]
        assert await hand.state(chain) == "active"
        connection = await asyncpg.connect(server_url)
        try:
            for table in ("dags", "jobs"):
                found = await connection.fetch(
                    f"SELECT * FROM {SCHEMA}.{table} WHERE dag = ANY ($1) ORDER BY dag",
                    [plain, other],
                )
                ours, theirs = map(dict, found)
                assert ours["completed_on"] > ours["started_at"] > ours.get("created_at", 0.0)
                for name in ours:
                    if name not in OWN:
                        assert ours[name] == theirs[name], name
        finally:
            await connection.close()

    async def test_runs_that_a_trigger_moves_meanwhile_end_all_the_same(
        self, server_url: str, hand: Hand
    ):
        """People hang triggers on our tables; the place at which a run was locked is then no longer its own."""
        dags = [await hand.submit(soft=5.0) for _ in range(3)]
        for dag in dags:
            await hand.claim(dag, 0)
        connection = await asyncpg.connect(server_url)
        try:
            await connection.execute(MOVING)
            ends = [Ending(dag, 0, hand.fences[dag, 0], "completed", "1") for dag in dags]
            told = await hand.store.finish(WORKER, ends)
        finally:
            await connection.execute(
                f"DROP FUNCTION IF EXISTS {SCHEMA}.moving CASCADE"
            )  # tables are kept
            await connection.close()
        assert sorted(told.ended) == [RunEnd(dag, "completed") for dag in dags]
        for dag in dags:
            run = await hand.store.run(dag)
            assert run is not None
            assert (run.name, run.state, run.left) == ("moved", "completed", 0)
            assert run.completed_on is not None
            assert run.started_at is not None

    @pytest.mark.parametrize("change", ["missed = 1", "cancelling = true", "paused = true"])
    async def test_an_ending_that_waited_for_its_run_ends_it_as_it_is_by_then(
        self, server_url: str, hand: Hand, change: str
    ):
        """The run is where the change has put it, not where it was when the ending began to wait."""
        dags = [await hand.submit() for _ in range(3)]
        for dag in dags:
            await hand.claim(dag, 0)
        connection = await asyncpg.connect(server_url)
        try:
            async with connection.transaction():
                changing = f"UPDATE {SCHEMA}.dags SET {change} WHERE dag = $1"
                await connection.execute(changing, dags[1])
                ends = [Ending(dag, 0, hand.fences[dag, 0], "completed", "1") for dag in dags]
                ending = asyncio.create_task(hand.store.finish(WORKER, ends))
                while not ending.done() and not await connection.fetchval(BLOCKED):
                    pass
                assert not ending.done()
            told = await ending
        finally:
            await connection.close()
        assert sorted(told.ended) == [RunEnd(dag, "completed") for dag in dags]
        for dag in dags:
            run = await hand.store.run(dag)
            assert run is not None
            assert (run.state, run.left) == ("completed", 0)
            assert run.completed_on is not None

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
