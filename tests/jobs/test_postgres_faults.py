"""What may happen to PostgreSQL while jobs run: cut sessions, restarts, crashes, silence; nothing lost or done twice.

A small scheduler here does what the real one does after any doubt: it reads everything anew.  A trigger in the database
keeps the ledger, and refuses a second end of any job.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress

import asyncpg
import pytest

from fairlead.errors import StoreUnavailable
from fairlead.jobs.records import Claim, Ending, NewRun
from fairlead.jobs.states import COMPLETED, RETRY
from fairlead.jobs.stores.postgres import PostgresStore
from fairlead.jobs.stores.postgres_connections import DRIVER
from tests.engines_postgres import (
    Postgres,
    external,
    new_schema,
    pgbouncer,
    plain,
    postgres,
    with_schema,
)
from tests.jobs.store_contract import new_run
from tests.sizes import REPEATS

Harm = Callable[[asyncio.Event], Coroutine[None, None, None]]  # until the event

LEDGER = """
CREATE TABLE "{0}".ledger (dag bigint, node integer, state text);
CREATE FUNCTION "{0}".note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF OLD.state IN ('completed', 'failed', 'expired', 'cancelled', 'skipped') AND NEW.state <> OLD.state THEN
        RAISE EXCEPTION 'job %.% ended twice: % and then %', OLD.dag, OLD.node, OLD.state, NEW.state;
    END IF;
    IF NEW.state = 'completed' AND OLD.state <> 'completed' THEN
        INSERT INTO "{0}".ledger VALUES (NEW.dag, NEW.node, NEW.state);
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER note BEFORE UPDATE ON "{0}".jobs FOR EACH ROW EXECUTE FUNCTION "{0}".note();
"""

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A server of this file's own: it is going to suffer."""
    if external():
        pytest.skip("FAIRLEAD_TEST_POSTGRES is not ours to break")
    with postgres() as running:
        yield running


async def prepared(server: Postgres, options: str = "") -> str:
    """Make a schema with a ledger; give its URL."""
    schema = new_schema()
    url = with_schema(server.url, schema) + options
    await PostgresStore(url).migrate()
    connection = await asyncpg.connect(server.url)
    await connection.execute(LEDGER.format(schema))
    await connection.close()
    return url


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def layers(wide: int, deep: int, draw: random.Random) -> NewRun:
    """Make a run of layers, each job needing up to three of the layer before."""
    shape: dict[str, list[str]] = {}
    for layer in range(deep):
        for place in range(wide):
            count = min(wide, 3) if layer else 0
            needs = draw.sample(range(wide), count)
            shape[f"{layer}-{place}"] = [f"{layer - 1}-{need}" for need in needs]
    return new_run(shape)


class Miniature:
    """The smallest scheduler that can be trusted, and a worker in it."""

    def __init__(self, store: PostgresStore, name: str, seed: int) -> None:
        self.store = store
        self.name = name
        self.troubles = 0
        self.claimed = 0
        self._draw = random.Random(seed)

    async def run(self, ended: asyncio.Event) -> None:
        """Lead and work until told to stop, whatever happens."""
        while not ended.is_set():
            try:
                epoch = await self.store.lead(self.name, 30.0)
                if epoch is None:
                    await asyncio.sleep(0.02)
                    continue
                worker = (await self.store.register(self.name, self.name, {"ocr": 8}, 60.0))["ocr"]
                await self._work(epoch, worker, ended)
            except StoreUnavailable:
                self.troubles += 1
                await asyncio.sleep(0.005)

    async def _work(self, epoch: int, worker: int, ended: asyncio.Event) -> None:
        # What runs according to the store is ours alone to know: take it back.
        for job in await self.store.running():
            await self.store.finish(self.name, [Ending(job.dag, job.node, job.fence, RETRY)])
        while not ended.is_set():
            ready = await self.store.ready(None, 50)
            if not ready:
                return
            claims = [Claim(job.dag, job.node, worker, self._draw.getrandbits(62)) for job in ready]
            claimed = await self.store.claim(self.name, epoch, claims, acked=True)
            if not claimed:
                return
            self.claimed += len(claimed)
            endings = [Ending(job.dag, job.node, job.fence, COMPLETED, "1") for job in claimed]
            await self.store.finish(self.name, endings)


async def until_ended(server: Postgres, url: str, dags: list[int], longest: float) -> None:
    """Wait, by a connection of our own, until every run has ended."""
    schema = PostgresStore(url)._address.schema
    deadline = time.monotonic() + longest
    while True:
        with suppress(*DRIVER):
            connection = await asyncpg.connect(server.url, timeout=5)
            try:
                left = await connection.fetchval(
                    f'SELECT count(*) FROM "{schema}".dags WHERE completed_on IS NULL', timeout=5
                )
            finally:
                connection.terminate()
            if not left:
                return
        assert time.monotonic() < deadline, "runs are stuck"
        await asyncio.sleep(0.02)


async def check(url: str, dags: list[int], size: int) -> None:
    """See that every job of every run has completed, once."""
    schema = PostgresStore(url)._address.schema
    connection = await asyncpg.connect(plain(url))
    rows = await connection.fetch(f'SELECT dag, node FROM "{schema}".ledger')
    counts = await connection.fetch(
        f'SELECT dag, remaining, failed, cancelled, state FROM "{schema}".dags'
    )
    active = await connection.fetchval(f'SELECT count(*) FROM "{schema}".active_jobs()')
    await connection.close()
    assert len(rows) == len(set(map(tuple, rows))) == size * len(dags)
    assert {tuple(row)[1:] for row in counts} == {(0, 0, 0, "completed")}
    assert {row[0] for row in counts} == set(dags)
    assert active == 0


async def storm(
    server: Postgres, url: str, harm: Harm, *, runs: int = 4, wide: int = 8, deep: int = 6
) -> int:
    """Run DAGs with two schedulers while `harm` is done; give how often they were troubled."""
    draw = random.Random(7)
    async with opened(url) as first, opened(url) as second:
        dags = [
            one.dag for one in await first.submit([layers(wide, deep, draw) for _ in range(runs)])
        ]
        ended = asyncio.Event()
        crew = [Miniature(first, "first", 1), Miniature(second, "second", 2)]
        tasks = [asyncio.create_task(one.run(ended)) for one in crew]
        harming = asyncio.create_task(harm(ended))
        try:
            await until_ended(server, url, dags, 60)
        finally:
            ended.set()
            await asyncio.gather(*tasks)
            await harming
    await check(url, dags, wide * deep)
    return sum(one.troubles for one in crew)


def terminating(url: str, every: float) -> Harm:
    """End every other session again and again."""

    async def harm(ended: asyncio.Event) -> None:
        draw = random.Random(3)
        connection = await asyncpg.connect(url)
        try:
            while not ended.is_set():
                await connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                    "AND backend_type = 'client backend' AND random() < 0.5"
                )
                await asyncio.sleep(draw.uniform(0, 2 * every))
        finally:
            await connection.close()

    return harm


async def test_sessions_ended_again_and_again_lose_nothing(server: Postgres):
    # A quick machine is through between two blows: the storm goes on until it has struck some work.
    troubles = 0
    while troubles < 3 * REPEATS:
        url = await prepared(server)
        troubles += await storm(server, url, terminating(server.url, 0.02), runs=4, deep=12)


async def test_sessions_behind_a_pooler_ended_again_and_again_lose_nothing(server: Postgres):
    url = await prepared(server)
    schema = PostgresStore(url)._address.schema
    with pgbouncer(server) as pooler:
        through = with_schema(pooler.url_of(), schema)
        await storm(server, through, terminating(server.url, 0.05), runs=3 * REPEATS)


@pytest.mark.parametrize("how", ["fast", "immediate", "kill"])
async def test_a_restart_in_the_middle_is_survived(server: Postgres, how: str):
    url = await prepared(server)

    async def harm(_ended: asyncio.Event) -> None:
        for _ in range(REPEATS):
            await server.restart(how)

    await storm(server, url, harm, runs=6, deep=12)


async def test_a_store_is_of_use_again_soon_after_the_database_is_back(server: Postgres):
    url = await prepared(server)
    async with opened(url) as store:
        await store.submit([new_run()])
        await asyncio.to_thread(server.stop, "immediate")
        begun = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"cannot be reached|refuses for now"):
            await store.submit([new_run()])
        assert time.monotonic() - begun < 2
        server.launch()
        await asyncio.to_thread(server.wait_until_ready)
        assert len(await store.ready(None, 10)) == 1
        await store.submit([new_run()])
        assert len(await store.ready(None, 10)) == 2
        await asyncio.wait_for(store._hints.listening.wait(), 10)


async def test_a_database_that_says_nothing_is_given_up(server: Postgres):
    url = await prepared(server, "&timeout=0.5")
    async with opened(url) as store:
        await store.submit([new_run()])
        server.freeze()
        try:
            begun = time.monotonic()
            with pytest.raises(StoreUnavailable, match="does not answer"):
                await store.ready(None, 10)
            assert time.monotonic() - begun < 3
        finally:
            server.thaw()
        assert len(await store.ready(None, 10)) == 1


async def test_a_database_that_is_read_only_for_a_while_is_waited_for(server: Postgres):
    url = await prepared(server)
    async with opened(url) as store:
        await store.submit([new_run()])
        connection = await asyncpg.connect(server.url)
        await connection.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        await connection.execute("SELECT pg_reload_conf()")
        try:
            with pytest.raises(StoreUnavailable, match="read-only"):
                async with asyncio.timeout(5):
                    while True:  # sessions hear of it a little later
                        await store.submit([new_run()])
            before = len(await store.ready(None, 100))
        finally:
            await connection.execute("SET default_transaction_read_only = off")
            await connection.execute("ALTER SYSTEM RESET default_transaction_read_only")
            await connection.execute("SELECT pg_reload_conf()")
            await connection.close()
        deadline = time.monotonic() + 5
        while True:
            with suppress(StoreUnavailable):
                await store.submit([new_run()])
                break
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        assert len(await store.ready(None, 100)) == before + 1


async def test_a_full_house_is_trouble_that_passes(server: Postgres):
    url = await prepared(server)
    async with opened(url) as store:
        await store.submit([new_run()])
        await store._connections.close()
        held = []
        with suppress(asyncpg.TooManyConnectionsError):
            while True:
                held.append(await asyncpg.connect(server.url))
        with pytest.raises(StoreUnavailable, match=r"too many clients|connection slots"):
            await store._connections.open()
        for connection in held:
            await connection.close()
        await store._connections.open()
        assert len(await store.ready(None, 10)) == 1


async def test_a_lock_that_is_not_given_is_trouble_that_passes(server: Postgres):
    url = await prepared(server, "&timeout=0.3")
    schema = PostgresStore(url)._address.schema
    async with opened(url) as store:
        (run,) = await store.submit([new_run()])
        holder = await asyncpg.connect(server.url)
        try:
            async with holder.transaction():
                await holder.execute(f'SELECT FROM "{schema}".dags FOR UPDATE')
                with pytest.raises(StoreUnavailable):
                    await store.cancel(run.dag)
        finally:
            await holder.close()
        assert await store.cancel(run.dag)


async def test_without_hints_everything_is_found_by_looking(server: Postgres):
    url = await prepared(server, "&listen=off")

    async def harm(_ended: asyncio.Event) -> None:
        return

    async with opened(url) as store, opened(url) as other:
        await other.submit([new_run()])
        assert not await store.wait_for_news(0.05)
        assert len((await store.take_news("me")).ready) == 1
        for job in await store.ready(None, 10):
            await store.cancel(job.dag)
    url = await prepared(server, "&listen=off")
    await storm(server, url, harm)
