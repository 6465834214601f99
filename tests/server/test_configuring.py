"""A configuration over the API: what cannot be written changes nothing, and what is told tells no secrets."""

import asyncio
import errno
import json
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event
from typing import Any

import aiohttp
import pytest

from fairlead.documents.loading import Tree, tree_of
from fairlead.server import judging
from fairlead.server.loading import STRANGE_FILE, Loaded, load, load_mapping
from fairlead.server.service import Server
from tests.gateway.rig import until
from tests.server.rig import GATEWAY, HERE, Client, configured, run, served


def total(client: Any) -> float:
    found: float = client.server.view("gateway/default").total()
    return found


def test_a_configuration_mounted_read_only_is_not_written_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    settings = configured(tmp_path, gateway=GATEWAY | {"capacity": 5})
    path = tmp_path / "fairlead.yaml"
    path.write_text(json.dumps(settings))  # JSON is YAML
    before = path.read_text()

    def read_only(**_: Any) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "mkstemp", read_only)

    async def test() -> None:
        async with served(settings, path=str(path)) as client:
            text = (await client.get("/api/v1/config"))["text"]
            body = {"text": text.replace('"capacity": 5', '"capacity": 4')}
            assert body["text"] != text
            status, said = await client.ask("PUT", "/api/v1/config", body)
            assert (status, said["code"]) == (409, "not_written")
            assert "Read-only file system" in said["detail"]
            assert total(client) == 5

    run(test)
    assert path.read_text() == before
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".")] == []


def test_without_a_file_there_is_nothing_to_write_to(tmp_path: Path):
    async def test() -> None:
        async with served(configured(tmp_path)) as client:
            status, said = await client.ask("PUT", "/api/v1/config", {"text": "server: {}\n"})
            assert (status, said["code"]) == (409, "no_file")
            assert "fairlead serve --config" in said["detail"]

    run(test)


def test_demo_traffic_ends_when_the_file_says_so_and_what_waits_for_a_start_is_told(tmp_path: Path):
    async def test() -> None:
        def said(*, upstream: bool, traffic: bool) -> dict[str, Any]:
            return configured(tmp_path, demo={"upstream": upstream, "traffic": traffic})

        async with served(said(upstream=True, traffic=True)) as client:
            server = client.server
            traffic: Any = server.traffic
            assert (await client.get("/api/v1/overview"))["demo"]
            assert server.retune(load_mapping(said(upstream=True, traffic=False))) == []
            await until(lambda: all(task.done() for task in traffic._tasks | traffic._asking))
            assert not (await client.get("/api/v1/overview"))["demo"]
            assert server.retune(load_mapping(said(upstream=False, traffic=True))) == [
                "demo.upstream changes only at the next start",
                "demo.traffic begins only at the next start",
            ]
            assert server.retune(load_mapping(said(upstream=False, traffic=True))) == []

    run(test)


def written(path: Path, text: str) -> Loaded:
    path.write_text(text)
    loaded = load(str(path))
    assert not loaded.problems, loaded.lines
    return loaded


@asynccontextmanager
async def following(path: Path, text: str) -> AsyncIterator[Client]:
    """Serve a configuration file."""
    loaded = written(path, text)
    async with Server(loaded, path=str(path)) as server, aiohttp.ClientSession() as session:
        yield Client(server, session)


async def judged(client: Client, text: str) -> list[dict[str, Any]]:
    status, said = await client.ask("POST", "/api/v1/config/validate", {"text": text})
    assert status == 200, said
    found: list[dict[str, Any]] = said["problems"]
    return found


@pytest.mark.parametrize("door", ["gateway", "flows"])
def test_no_file_is_read_but_those_that_the_running_configuration_names(tmp_path: Path, door: str):
    secret, named = tmp_path / "db_password", tmp_path / "named.yaml"
    secret.write_text("hunter2")
    named.write_text("{}")

    async def test() -> None:
        said = f"server: {{listen: '{HERE}'}}\nflows: {{http: '{HERE}', file: named.yaml}}\n"
        async with following(tmp_path / "fairlead.yaml", said) as client:
            os.mkfifo(tmp_path / "fifo")
            for file in (str(secret), "db_password", "fifo", "nowhere", "/proc/kmsg"):
                (one,) = await judged(client, f"{door}: {{file: {file}}}")
                assert (one["path"], one["message"]) == (f"{door}.file", STRANGE_FILE)
            body = {"text": f"{door}: {{file: db_password}}"}
            status, answered = await client.ask("PUT", "/api/v1/config", body)
            assert (status, answered["problems"][0]["message"]) == (422, STRANGE_FILE)
            assert await judged(client, said) == []
            # Whoever may write to the file may name others; what is in them is not quoted.
            (tmp_path / "fairlead.yaml").write_text(f"{door}: {{file: db_password}}")
            (one,) = (await client.get("/api/v1/config"))["problems"]
            assert one["message"].endswith("must be a mapping of settings; got a single value")

    run(test)


def test_no_secret_of_a_file_that_is_named_is_told(tmp_path: Path):
    inner = tmp_path / "gateway.yaml"

    async def test() -> None:
        said = f"server: {{listen: '{HERE}'}}\ngateway: {{file: gateway.yaml}}\n"
        inner.write_text(json.dumps(GATEWAY))
        async with following(tmp_path / "fairlead.yaml", said) as client:
            inner.write_text("priority_scheduler: {default_max_class: 'x?password=hunter2'}\n")
            for problems in (
                await judged(client, said),
                (await client.get("/api/v1/config"))["problems"],
            ):
                assert "hunter2" not in str(problems)
                assert "default_max_class" in problems[0]["message"]

    run(test)


def test_what_is_wrong_with_a_secret_is_told_without_it(tmp_path: Path):
    start = f"server: {{listen: '{HERE}'}}\n"

    async def test() -> None:
        path = tmp_path / "fairlead.yaml"
        async with following(path, start) as client:
            for section, message in (
                ("{database: x, webhook: 'htps://h/hunter2'}", "webhook must be an http://"),
                ("{database: x, token: 12345678}", "must be text; put it in quotes"),
                (
                    f"{{database: x, webhook: 'https://h/hunter2{'x' * 5000}'}}",
                    judging.NOT_VALID,
                ),
                ("{database: x, retention: 'x://:hunter2@'}", "must be a duration"),
            ):
                path.write_text(f"{start}jobs: {section}\n")
                shown = await client.get("/api/v1/config")
                (problem,) = shown["problems"]
                assert message in problem["message"]
                assert "hunter2" not in str(shown)
                assert "12345678" not in str(shown)
                assert await judged(client, shown["text"]) == [problem]

    run(test)


def test_a_file_that_cannot_be_read_is_not_shown_and_why_is_told(tmp_path: Path):
    async def test() -> None:
        path = tmp_path / "fairlead.yaml"
        async with following(path, f"server: {{listen: '{HERE}'}}\n") as client:
            for content in (b"flows:\n  token: >-\n    hunter2\n  bad: [\n", b"token: hunter2\xff"):
                path.write_bytes(content)
                shown = await client.get("/api/v1/config")
                assert "hunter2" not in str(shown)
                assert shown["problems"]
                status, _ = await client.ask("PUT", "/api/v1/config", {"text": shown["text"]})
                assert status == 422
            path.write_bytes(b"\xef\xbb\xbfserver: {listen: '127.0.0.1:0'}\njobs: {token: hunter2}")
            assert "token: masked-" in (await client.get("/api/v1/config"))["text"]

    run(test)


@pytest.mark.parametrize("text", ['- "\\UFFFFFFFF"', "[" * 4000, "\ufeffserver: [", "\0"])
def test_whatever_is_sent_is_judged(text: str):
    async def test() -> None:
        async with served({"server": {"listen": HERE}}) as client:
            assert await judged(client, text)

    run(test)


def test_who_looks_does_not_wait_for_who_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    begun, ended = Event(), Event()

    def slow(content: bytes, source: str) -> Tree:
        if b"slow" in content:
            begun.set()
            assert ended.wait(20)
        return tree_of(content, source)

    monkeypatch.setattr(judging, "tree_of", slow)

    async def test() -> None:
        path = tmp_path / "fairlead.yaml"
        async with following(path, f"server: {{listen: '{HERE}'}}\n") as client:
            asking = asyncio.create_task(judged(client, "slow: 1"))
            try:
                await asyncio.to_thread(begun.wait, 20)
                assert (await client.get("/api/v1/config"))["problems"] == []
                assert not asking.done()
            finally:
                ended.set()
            assert await asking

    run(test)
