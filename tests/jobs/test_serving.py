"""`fairlead jobs serve` as a process: where it listens, what it answers, and how it ends."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fairlead.errors import ConfigError
from fairlead.jobs import Jobs
from fairlead.jobs.serving import JobServer
from tests.jobs.operations_rig import HELLO, go, small, until

APP = """\
import asyncio
from pathlib import Path
from fairlead.jobs import Jobs

jobs = Jobs("sqlite:///shop.db", lease="2s", sweep="200ms", poll="100ms")


@jobs.task
async def double(number):
    return 2 * number


@jobs.task
async def brief(seconds):
    Path("begun").touch()
    await asyncio.sleep(seconds)
    return "done"
"""


@asynccontextmanager
async def process(folder: Path, *args: str) -> AsyncIterator[Any]:
    """Run `fairlead jobs serve` in a folder; `.url` is where it listens."""
    (folder / "shop.py").write_text(APP)
    code = "import sys; from fairlead.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "jobs", "serve", "--app", "shop:jobs", *args]
    started = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stderr=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONUTF8": "1"}
    )
    assert started.stderr is not None
    try:
        line = (await started.stderr.readline()).decode()
        assert line.startswith("fairlead jobs: "), line + (await started.stderr.read()).decode()
        started.line = line  # type: ignore[attr-defined]
        started.url = line.split()[2].rstrip(";")  # type: ignore[attr-defined]
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()
        started._transport.close()  # type: ignore[attr-defined]


async def ask(server: Any, method: str, path: str, content: Any = None) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, server.url + path, json=content) as answer,
    ):
        return answer.status, json.loads(await answer.read())


async def draining(server: Any) -> bool:
    return await ask(server, "GET", "/readyz") == (503, {"status": "draining"})


def brief(seconds: float) -> dict[str, Any]:
    return {"name": "brief", "jobs": [{"name": "a", "task": "brief", "args": [seconds]}]}


async def begun(folder: Path) -> bool:
    return (folder / "begun").exists()


def test_a_process_serves_and_ends_with_a_signal(tmp_path):
    async def main():
        async with process(tmp_path, "--http", "127.0.0.1:0") as server:
            assert "2 tasks; slots default 8" in server.line
            status, said = await ask(server, "POST", "/v1/runs", HELLO)
            assert status == 201

            async def done():
                return (await ask(server, "GET", f"/v1/runs/{said['id']}"))[1]["completed_on"]

            await until(done)
            assert (await ask(server, "GET", "/readyz"))[1]["role"] == "leader"
            server.send_signal(signal.SIGTERM)
            assert await server.wait() == 0

    go(main())


def test_what_runs_may_finish_and_the_rest_is_told_meanwhile(tmp_path):
    async def main():
        async with process(tmp_path, "--http", "127.0.0.1:0") as server:
            await ask(server, "POST", "/v1/runs", brief(1.5))
            await until(lambda: begun(tmp_path))
            server.send_signal(signal.SIGTERM)
            await until(lambda: draining(server))
            assert await server.wait() == 0
        return await look(tmp_path)

    assert go(main())["jobs"][0]["result"] == "done"


@pytest.mark.parametrize("way", ["grace", "second signal"])
def test_what_does_not_finish_is_handed_back(tmp_path, way):
    async def main():
        grace = "100ms" if way == "grace" else "10m"
        where = "off" if way == "grace" else "127.0.0.1:0"
        async with process(tmp_path, "--http", where, "--grace", grace) as server:
            assert ("no HTTP" in server.line) == (where == "off")
            jobs = Jobs(f"sqlite:///{tmp_path}/shop.db")
            _task(jobs)
            await jobs.submit(brief(600))
            await jobs.close()
            await until(lambda: begun(tmp_path))
            server.send_signal(signal.SIGINT)
            if way == "second signal":
                await until(lambda: draining(server))
                server.send_signal(signal.SIGINT)
            assert await server.wait() == 0
        return await look(tmp_path)

    (job,) = go(main())["jobs"]
    assert (job["state"], job["attempts"], job["crashes"]) == ("retry", 0, 0)


def _task(jobs: Jobs) -> None:
    @jobs.task(name="brief")
    async def _(seconds): ...


async def look(folder: Path) -> Any:
    from fairlead.jobs.operating import Operations

    jobs = Jobs(f"sqlite:///{folder}/shop.db")
    try:
        return await Operations(jobs).run("1")
    finally:
        await jobs.close()


def test_an_address_that_is_taken_is_told_in_one_line(tmp_path):
    async def main():
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            with pytest.raises(OSError, match=f"cannot listen on {address}"):
                async with JobServer(small(f"sqlite:///{tmp_path}/a.db"), http=address):
                    pass

    go(main())


@pytest.mark.parametrize("address", ["0.0.0.0:0", ":0", "[::]:0", "example.org:80"])
def test_beyond_this_machine_a_token_is_needed(tmp_path, address):
    jobs = small(f"sqlite:///{tmp_path}/a.db")
    with pytest.raises(ConfigError, match="token"):
        JobServer(jobs, http=address)
    for blank in ("", " ", "\n", " t", "t\n", "a\0b"):
        with pytest.raises(ConfigError, match=r"token (is blank|has white space)"):
            JobServer(jobs, http=address, token=blank)
    JobServer(jobs, http=address, token="t")


def test_two_processes_take_turns(tmp_path):
    async def main():
        first = small(f"sqlite:///{tmp_path}/a.db")
        second = small(f"sqlite:///{tmp_path}/a.db")
        async with JobServer(second, http="127.0.0.1:0"):
            async with JobServer(first, http=None):
                await until(lambda: _leads(first, second))
            begun = asyncio.get_running_loop().time()
            await until(lambda: _leads(second))
            assert asyncio.get_running_loop().time() - begun < 1.5  # well within the lease

    async def _leads(*jobs):
        return any(one.scheduler is not None and one.scheduler.leading for one in jobs)

    go(main())
