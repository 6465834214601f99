"""Servers for tests: on the test's own loop over real sockets, and in a process of their own."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp

from fairlead.server.loading import load_mapping
from fairlead.server.service import Server

HERE = "127.0.0.1:0"
ROLES = ("viewer", "operator", "admin")
LONGEST = 30.0  # seconds after which a test has failed
POINT = {
    "concurrency": {"max_concurrency": 2},
    "scheduler": {"workloads": [{"name": "paid", "match_labels": {"plan": "paid"}}]},
}
GATEWAY = {
    "listen": HERE,
    "admin": {"listen": HERE},
    "access_log": False,
    "shutdown_grace": "5s",
    "priority_scheduler": {
        "enabled": True,
        "default_max_class": "interactive",
        "classes": {
            "interactive": {"reserved_floor": 0, "reserved_per_slot": 0},
            "default": {"reserved_floor": 0, "reserved_per_slot": 0},
            "system": {"reserved_floor": 0},
        },
    },
}
TOKENS = [
    {"name": f"the-{role}", "role": role, "sha256": sha256(f"{role}-secret".encode()).hexdigest()}
    for role in ROLES
]


def run(test: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a test on a loop, within a limit."""

    async def limited() -> Any:
        async with asyncio.timeout(LONGEST):
            return await test()

    return asyncio.run(limited())


def configured(tmp_path: Path, **more: Any) -> dict[str, Any]:
    """A configuration with every door that needs no other process."""
    said: dict[str, Any] = {
        "server": {"listen": HERE, "shutdown_grace": "2s"},
        "gateway": GATEWAY,
        "flows": {"http": HERE, "control_points": {"checkout": POINT}},
        "jobs": {"database": f"sqlite:///{tmp_path}/jobs.db", "http": HERE},
        "demo": {"upstream": True, "traffic": False},
    }
    return said | more


class Client:
    """Asks a server; answers come as (status, document)."""

    def __init__(self, server: Server, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.url = server.listener.url
        self.session = session

    async def ask(
        self, method: str, path: str, body: Any = None, *, token: str | None = None, **headers: str
    ) -> tuple[int, Any]:
        """Ask, and read the answer as JSON if it is that."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["authorization"] = f"Bearer {token}"
        data = None
        if body is not None:
            data = json.dumps(body)
            sent.setdefault("content-type", "application/json")
        async with self.session.request(
            method, _encoded(self.url + path), data=data, headers=sent
        ) as answer:
            raw = await answer.read()
            self.headers = answer.headers
            is_json = answer.headers.get("content-type", "").endswith(("/json", "+json"))
            return answer.status, json.loads(raw) if is_json and raw else raw

    async def get(self, path: str, **more: Any) -> Any:
        """Read what must be there."""
        status, found = await self.ask("GET", path, **more)
        assert status == 200, (path, status, found)
        return found


def _encoded(url: str) -> Any:
    from yarl import URL

    return URL(url, encoded=True)


@asynccontextmanager
async def served(settings: dict[str, Any], **more: Any) -> AsyncIterator[Client]:
    """Serve a configuration on this loop."""
    from fairlead.server.demo import upstream_for

    loaded = load_mapping(settings)
    assert not loaded.problems, loaded.lines
    upstream = upstream_for(loaded)
    async with (
        Server(loaded, upstream=upstream, **more) as server,
        aiohttp.ClientSession() as session,
    ):
        yield Client(server, session)


class Process:
    """`fairlead serve` in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said: list[str] = []
        self.url = ""

    async def line(self) -> str:
        """Read a line of its standard error."""
        assert self.process.stderr is not None
        raw = await asyncio.wait_for(self.process.stderr.readline(), LONGEST)
        self.said.append(raw.decode())
        return self.said[-1]

    async def until(self, text: str) -> str:
        """Read on until a line holds this."""
        while text not in (line := await self.line()):
            assert line, "".join(self.said)
        return line

    async def ended(self) -> int:
        """Wait for its end; read what it still said."""
        assert self.process.stderr is not None
        rest = await asyncio.wait_for(self.process.stderr.read(), LONGEST)
        self.said.append(rest.decode())
        return await asyncio.wait_for(self.process.wait(), LONGEST)


@asynccontextmanager
async def process(folder: Path, *args: str, **environ: str) -> AsyncIterator[Process]:
    """Run `fairlead serve` in a folder; killed on leaving if it has not ended."""
    code = "import sys; from fairlead.cli import main; sys.exit(main())"
    env = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, "serve", *args),
        cwd=folder,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=env | {"PYTHONUTF8": "1"} | environ,
    )
    made = Process(started)
    try:
        yield made
    finally:
        if started.returncode is None:
            started.kill()
            await started.wait()


async def begun(process: Process) -> str:
    """Wait until it says where its dashboard is."""
    line = await process.until("dashboard ")
    found = re.search(r"https?://\S+(?=/)", line)
    assert found is not None
    process.url = found[0]
    return process.url


async def document(url: str, path: str) -> dict[str, Any]:
    """Read what a server says at a path."""
    async with aiohttp.ClientSession() as session, session.get(url + path) as answer:
        found: dict[str, Any] = await answer.json()
        return found


async def followed(url: str, number: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Read so many snapshots of a server, half a second apart, and which other events came between them."""
    snapshots: list[dict[str, Any]] = []
    others: list[str] = []
    event = ""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/api/v1/events") as answer:
        while len(snapshots) < number:
            line = (await answer.content.readline()).decode()
            assert line, "the server has ended"
            name, _, value = line.strip().partition(": ")
            if name == "event":
                event = value
            elif name == "data" and event == "snapshot":
                snapshots.append(json.loads(value))
            elif name == "data":
                others.append(event)
    return snapshots, others
