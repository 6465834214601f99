"""A second signal, when PostgreSQL has stopped answering: the process ends at once, and says what it leaves."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from fairlead.jobs import Jobs
from fairlead.jobs.stores.postgres import PostgresStore
from tests.engines_postgres import Postgres, external, new_schema, postgres, with_schema
from tests.jobs.operations_rig import go
from tests.server.rig import Process

APP = """\
import asyncio
from pathlib import Path
from fairlead.jobs import Jobs

jobs = Jobs({url!r}, executors={{"default": {slots!r}}}, poll="100ms")


@jobs.task
async def long():
    Path("begun").touch()
    await asyncio.Event().wait()
"""
# Seconds: more than it may take on a busy machine, less than the database is waited for.
SOON = 10.0


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A server of this file's own: it is going to be frozen."""
    if external():
        pytest.skip("FAIRLEAD_TEST_POSTGRES is not ours to break")
    with postgres() as running:
        yield running


@pytest.fixture
def database(server: Postgres) -> Iterator[str]:
    """Make an empty schema; whatever the test froze goes on."""
    url = with_schema(server.url, new_schema())
    asyncio.run(PostgresStore(url).migrate())
    yield url
    server.thaw()


@asynccontextmanager
async def started(folder: Path, *args: str) -> AsyncIterator[Process]:
    """Run a command in a folder; killed on leaving if it has not ended."""
    code = "import sys; from fairlead.cli import main; sys.exit(main())"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, *args),
        cwd=folder,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONUTF8": "1"},
    )
    try:
        yield Process(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def submitted(folder: Path, url: str) -> None:
    """Have a job run that ends only when it is told to."""
    jobs = Jobs(url)

    @jobs.task
    async def long() -> None: ...

    await jobs.submit({"name": "r", "jobs": [{"name": "a", "task": "long"}]})
    await jobs.close()
    while not (folder / "begun").exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.02)


async def drains(url: str) -> None:
    """Wait until a server says that it ends."""
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{url}/readyz") as answer:
                if answer.status == 503 and (await answer.json())["status"] == "draining":
                    return


async def hurried(process: Process) -> str:
    """Send the second signal; tell what it says before it ends, with code 1."""
    process.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(SOON):
        assert await process.ended() == 1, process.said
    return process.said[-1]


def test_a_jobs_service_ends_and_says_which_jobs_it_leaves(tmp_path, server, database):
    (tmp_path / "shop.py").write_text(APP.format(url=database, slots=4))

    async def main():
        served = ("jobs", "serve", "--app", "shop:jobs", "--http", "127.0.0.1:0")
        async with started(tmp_path, *served) as process:
            url = (await process.line()).split()[2].rstrip(";")
            await submitted(tmp_path, database)
            server.freeze()
            process.process.send_signal(signal.SIGTERM)
            await drains(url)
            said = await hurried(process)
            assert "fairlead jobs: ended as it stood: 1 job was not handed back" in said
            assert "15 s" in said  # the lease

    go(main(), 60)


def test_a_whole_server_ends_and_names_the_door(tmp_path, server, database):
    (tmp_path / "shop.py").write_text(APP.format(url=database, slots=4))
    config = {
        "server": {"listen": "127.0.0.1:0", "shutdown_grace": "300s"},
        "jobs": {"app": "shop:jobs", "http": None},
    }
    (tmp_path / "fairlead.yaml").write_text(json.dumps(config))

    async def main():
        async with started(tmp_path, "serve", "--config", "fairlead.yaml") as process:
            url = (await process.until("dashboard ")).split()[2].rstrip("/")
            await submitted(tmp_path, database)
            server.freeze()
            process.process.send_signal(signal.SIGTERM)
            await drains(url)
            said = await hurried(process)
            assert "fairlead serve: ended as it stood: jobs: 1 job was not handed back" in said

    go(main(), 60)


def test_a_worker_ends_too(tmp_path, server, database):
    (tmp_path / "shop.py").write_text(APP.format(url=database, slots="worker"))

    async def main():
        async with started(tmp_path, "worker", "--app", "shop:jobs") as process:
            await process.until("serves executor default")
            server.freeze()
            process.process.send_signal(signal.SIGTERM)
            await process.until("no more jobs are taken")
            said = await hurried(process)
            assert "fairlead worker: ended as it stood: no job was running" in said

    go(main(), 60)
