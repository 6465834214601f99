"""Databases that cannot be used, however long one waits: refused at the start, with what to change."""

from collections.abc import Iterator

import pytest

from fairlead.errors import StoreError, StoreUnavailable
from fairlead.jobs.stores.postgres import PostgresStore
from tests.engines_postgres import Postgres, external, pgbouncer, postgres

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    if external():
        pytest.skip("a server that somebody else uses is not turned into a replica")
    with postgres() as running:
        yield running


async def test_bad_input_a_pooler_in_statement_mode(server: Postgres):
    await PostgresStore(server.url).migrate()
    with pgbouncer(server, mode="statement") as pooler:
        store = PostgresStore(pooler.url_of())
        for use in (store.open, store.migrate):
            with pytest.raises(StoreError, match="pool_mode = transaction") as refused:
                await use()
            assert not isinstance(refused.value, StoreUnavailable), "waiting does not help"


async def test_bad_input_a_read_replica(server: Postgres):
    await PostgresStore(server.url).migrate()
    server.stop("fast")
    (server.data / "standby.signal").touch()
    server.start()
    store = PostgresStore(server.url)
    with pytest.raises(StoreError, match=r"read replica.*the primary") as refused:
        await store.open()
    assert not isinstance(refused.value, StoreUnavailable)
    server.stop("fast")
    (server.data / "standby.signal").unlink()
    server.start()
    await store.open()
    await store.close()
