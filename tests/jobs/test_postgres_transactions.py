"""Submitting in the caller's own transaction, and keys that are unique whoever writes and whoever rolls back."""

import asyncio
import random
from collections.abc import AsyncIterator

import asyncpg
import psycopg
import psycopg.rows
import pytest

from fairlead.errors import ConfigError, Misuse, SchemaMismatch, StoreUnavailable
from fairlead.jobs.records import Submitted
from fairlead.jobs.stores.postgres import PostgresStore
from tests.engines_postgres import dropped, new_schema, plain, shared_url, wiped
from tests.jobs.store_contract import new_run
from tests.sizes import REPEATS

SCHEMA = "test_transactions"
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def store() -> AsyncIterator[PostgresStore]:
    store = PostgresStore(await wiped(shared_url(), SCHEMA))
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def connection(store: PostgresStore) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    connection = await asyncpg.connect(plain(store.url))
    yield connection
    await connection.close()


async def test_a_run_is_seen_with_the_commit_and_not_before(store, connection):
    transaction = connection.transaction()
    await transaction.start()
    (run,) = await store.submit([new_run(["a", "b"], key="k")], connection=connection)
    assert run.new
    assert await store.run(run.dag) is None
    assert await store.ready(None, 10) == []
    assert (await store.take_news("me")).refreshed == []
    await transaction.commit()
    assert await store.run(run.dag) is not None
    assert (await store.take_news("me")).refreshed == [run.dag]
    assert await store.submit([new_run(key="k")]) == [Submitted(run.dag, False)]


async def test_nothing_is_left_of_a_run_that_was_rolled_back(store, connection):
    with pytest.raises(ZeroDivisionError):
        async with connection.transaction():
            (run,) = await store.submit([new_run(key="k")], connection=connection)
            raise ZeroDivisionError
    assert await store.run(run.dag) is None
    assert await store.find("", "k") is None
    assert (await store.take_news("me")).refreshed == []
    (again,) = await store.submit([new_run(key="k")])
    assert again.new


async def test_a_savepoint_that_is_rolled_back_takes_its_run_with_it(store, connection):
    async with connection.transaction():
        (kept,) = await store.submit([new_run()], connection=connection)
        with pytest.raises(ZeroDivisionError):
            async with connection.transaction():
                await store.submit([new_run()], connection=connection)
                raise ZeroDivisionError
    assert [run.dag for run in await store.runs()] == [kept.dag]


async def test_a_commit_elsewhere_is_hinted_at(store, connection):
    await asyncio.wait_for(store._hints.listening.wait(), 10)
    while await store.wait_for_news(0.05):
        pass
    async with connection.transaction():
        await store.submit([new_run()], connection=connection)
    assert await store.wait_for_news(10)


async def test_a_connection_of_a_pool_will_do(store):
    async with (
        asyncpg.create_pool(plain(store.url), min_size=1, max_size=1) as pool,
        pool.acquire() as proxy,
        proxy.transaction(),
    ):
        (run,) = await store.submit([new_run()], connection=proxy)
    assert await store.run(run.dag) is not None


@pytest.mark.parametrize("rows", [psycopg.rows.tuple_row, psycopg.rows.dict_row])
async def test_an_async_connection_of_psycopg_will_do(store, rows):
    async with await psycopg.AsyncConnection.connect(plain(store.url), row_factory=rows) as one:
        (run,) = await store.submit([new_run(["a", "b"], key="k")], connection=one)
        assert await store.run(run.dag) is None
        await one.commit()
        assert await store.run(run.dag) is not None
        (other,) = await store.submit([new_run()], connection=one)
        await one.rollback()
    assert await store.run(other.dag) is None


async def test_a_sync_connection_of_psycopg_will_do(store):
    with psycopg.connect(plain(store.url)) as one:
        with one.transaction():
            one.execute("SELECT 1")
            (run,) = await store.submit([new_run({"a": [], "b": ["a"]})], connection=one)
            assert await store.run(run.dag) is None
        assert [job.needs for job in await store.jobs(run.dag)] == [(), (0,)]


async def test_whatever_cursors_a_connection_of_psycopg_makes(store):
    """Those of its own factory may want another kind of placeholders."""
    with psycopg.connect(plain(store.url), cursor_factory=psycopg.RawCursor) as one:
        (run,) = await store.submit([new_run()], connection=one)
    assert await store.run(run.dag) is not None
    async with await psycopg.AsyncConnection.connect(
        plain(store.url), cursor_factory=psycopg.AsyncRawCursor
    ) as other:
        (run,) = await store.submit([new_run()], connection=other)
    assert await store.run(run.dag) is not None


async def test_a_connection_without_a_transaction_is_refused(store, connection):
    with pytest.raises(Misuse, match="no open transaction"):
        await store.submit([new_run()], connection=connection)
    with (
        psycopg.connect(plain(store.url), autocommit=True) as one,
        pytest.raises(Misuse, match="no open transaction"),
    ):
        await store.submit([new_run()], connection=one)
    assert await store.runs() == []


async def test_anything_else_is_refused(store):
    with pytest.raises(ConfigError, match="asyncpg or psycopg"):
        await store.submit([new_run()], connection=object())


async def test_a_connection_to_a_database_without_the_schema_is_refused():
    elsewhere = PostgresStore(f"{shared_url()}?schema={new_schema()}")
    connection = await asyncpg.connect(shared_url())
    with pytest.raises(SchemaMismatch, match="fairlead db migrate"):
        async with connection.transaction():
            await elsewhere.submit([new_run()], connection=connection)
    await connection.close()
    with (
        psycopg.connect(shared_url()) as one,
        pytest.raises(SchemaMismatch, match="fairlead db migrate"),
    ):
        await elsewhere.submit([new_run()], connection=one)


async def test_a_key_waits_for_whoever_has_it(store, connection):
    transaction = connection.transaction()
    await transaction.start()
    (first,) = await store.submit([new_run(key="k")], connection=connection)
    second = asyncio.create_task(store.submit([new_run(key="k")]))
    await asyncio.wait({second}, timeout=0.1)
    assert not second.done(), "whether the key is taken is not decided yet"
    await transaction.commit()
    assert await second == [Submitted(first.dag, False)]


async def test_a_key_goes_to_the_next_if_its_owner_rolls_back(store, connection):
    transaction = connection.transaction()
    await transaction.start()
    (first,) = await store.submit([new_run(key="k")], connection=connection)
    second = asyncio.create_task(store.submit([new_run(key="k")]))
    await asyncio.wait({second}, timeout=0.1)
    await transaction.rollback()
    ((dag, new),) = await second
    assert new
    assert dag != first.dag
    assert await store.run(first.dag) is None


async def test_a_key_that_a_snapshot_cannot_see_is_told_plainly(store, connection):
    async with connection.transaction(isolation="repeatable_read"):
        await connection.fetch("SELECT 1")
        await store.submit([new_run(key="k")])
        with pytest.raises(StoreUnavailable, match="run the transaction again"):
            await store.submit([new_run(key="k")], connection=connection)
    async with connection.transaction(isolation="repeatable_read"):
        ((_, new),) = await store.submit([new_run(key="k")], connection=connection)
        assert not new


async def test_keys_of_one_call_may_come_in_any_order(store):
    """Calls with the same keys in other orders wait for each other, and never in a ring."""
    draw = random.Random(5)
    keys = [f"k{place}" for place in range(20)]

    async def submit() -> list[int]:
        mixed = draw.sample(keys, len(keys))
        found = await store.submit([new_run(key=key) for key in mixed])
        return [run.dag for _, run in sorted(zip(mixed, found, strict=True))]

    told = await asyncio.gather(*(submit() for _ in range(12)))
    assert len({tuple(one) for one in told}) == 1
    assert len(await store.runs(limit=1000)) == len(keys)


@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read"])
@pytest.mark.parametrize("writers", [16, pytest.param(64, marks=pytest.mark.slow)])
async def test_a_key_has_one_run_whoever_rolls_back(store, isolation, writers):
    keys = [f"k{place}" for place in range(10 * REPEATS)]
    owners: dict[str, int] = {}

    async def write(seed: int) -> None:
        draw = random.Random(seed)
        one = await asyncpg.connect(plain(store.url))
        try:
            for key in draw.sample(keys, len(keys)):
                last = seed == 0  # one of them never gives up
                while True:
                    transaction = one.transaction(isolation=isolation)
                    await transaction.start()
                    try:
                        (run,) = await store.submit([new_run(["a", "b"], key=key)], connection=one)
                    except StoreUnavailable:
                        await transaction.rollback()
                        continue
                    if not last and draw.random() < 0.5:
                        await transaction.rollback()
                        break
                    await transaction.commit()
                    assert owners.setdefault(key, run.dag) == run.dag
                    break
        finally:
            await one.close()

    await asyncio.gather(*(write(seed) for seed in range(writers)))
    found = await store.runs(limit=10_000)
    assert {run.key: run.dag for run in found} == owners
    assert len(found) == len(owners) == len(keys)
    assert sum((await store.states()).values()) == 2 * len(keys)


async def test_cleaning_up():
    """Leave nothing in a server that is not ours."""
    await dropped(shared_url(), SCHEMA)
