"""What nobody may do to a server by what they send, by how slowly they send it, or by a change of its file."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fairlead.server import service
from fairlead.server.history import History, Moment
from fairlead.server.loading import Loaded, load, load_mapping
from fairlead.server.looking import MOST_FOLLOWERS
from fairlead.server.running import follow
from fairlead.server.service import Server
from tests.server.rig import GATEWAY, HERE, TOKENS, configured, run, served

EVERYWHERE = "0.0.0.0:0"


def test_the_last_token_stays_while_others_can_reach_it():
    """A file that says loopback and no tokens is right for the next start, not for where this one listens."""
    secured = {"listen": EVERYWHERE, "token": "secret"}
    before = {
        "server": {"listen": EVERYWHERE, "tokens": TOKENS},
        "gateway": {**GATEWAY, "admin": secured},
    }
    after = {"server": {"listen": HERE}, "gateway": GATEWAY}

    async def test() -> None:
        async with served(before) as client:
            client.url = client.url.replace("0.0.0.0", "127.0.0.1")
            notes = []
            for _ in range(2):
                notes += client.server.retune(load_mapping(after))
                assert (await client.ask("GET", "/api/v1/overview"))[0] == 401
            assert any("server.tokens" in note for note in notes)
            assert (await client.ask("GET", "/api/v1/overview", token="viewer-secret"))[0] == 200
            (gateway,) = client.server.doors
            admin = gateway.links()["admin"].replace("0.0.0.0", "127.0.0.1")
            async with client.session.get(f"{admin}/metrics") as answer:
                assert answer.status == 401
            client.server.retune(load_mapping(before))
            assert (await client.ask("GET", "/api/v1/overview", token="viewer-secret"))[0] == 200

    run(test)


def test_on_loopback_tokens_come_and_go():
    async def test() -> None:
        async with served({"server": {"listen": HERE, "tokens": TOKENS}}) as client:
            client.server.retune(load_mapping({"server": {"listen": HERE}}))
            assert (await client.ask("GET", "/api/v1/overview"))[0] == 200

    run(test)


class Watched:
    """A server that follows its file, and looks when a test says so."""

    def __init__(self, tmp_path: Path, said: dict[str, Any]) -> None:
        self.path = tmp_path / "fairlead.yaml"
        self.write(said)
        loaded = load(str(self.path))
        assert not loaded.problems, loaded.lines
        self.server = Server(loaded, path=str(self.path))
        self.watch = follow(self.server, str(self.path), loaded)

    def write(self, said: dict[str, Any]) -> None:
        self.path.write_text(json.dumps(said))

    def look(self) -> int:
        """Look twice, as is done for a change to count; tell how often one was applied since the start."""
        for _ in range(2):
            self.watch.look()
        return self.server.reloads


def test_what_is_written_through_the_api_is_applied_once(tmp_path: Path):
    async def test() -> None:
        watched = Watched(tmp_path, {"server": {"listen": HERE}, "flows": {"http": HERE}})
        async with watched.server as server, aiohttp.ClientSession() as session:
            text = json.dumps(
                {"server": {"listen": HERE, "shutdown_grace": "1s"}, "flows": {"http": HERE}}
            )
            async with session.put(
                f"{server.listener.url}/api/v1/config", json={"text": text}
            ) as answer:
                assert answer.status == 200, await answer.text()
            assert watched.look() == 1
            watched.write({"server": {"listen": HERE}, "flows": {"http": HERE}})
            assert watched.look() == 2

    run(test)


def test_a_file_that_is_named_later_is_followed_and_one_that_is_not_any_more_is_not(tmp_path: Path):
    inner = tmp_path / "flows.yaml"

    async def test() -> None:
        watched = Watched(tmp_path, {"server": {"listen": HERE}, "flows": {"http": HERE}})
        inner.write_text("control_points: {a: {concurrency: {max_concurrency: 2}}}")
        async with watched.server:
            watched.write(
                {"server": {"listen": HERE}, "flows": {"http": HERE, "file": "flows.yaml"}}
            )
            assert [watched.look(), watched.look()] == [0, 1]  # both files are read twice
            inner.write_text("control_points: {a: {concurrency: {max_concurrency: 3}}}")
            assert watched.look() == 2
            point = {"concurrency": {"max_concurrency": 3}}
            watched.write(
                {
                    "server": {"listen": HERE},
                    "flows": {"http": HERE, "control_points": {"a": point}},
                }
            )
            assert watched.look() == 3
            inner.write_text("control_points: {a: {concurrency: {max_concurrency: 4}}}")
            assert watched.look() == 3

    run(test)


def test_what_is_applied_is_what_was_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A file that is named turns bad just then: with nothing but defaults, nobody would be asked for a token."""
    inner = tmp_path / "flows.yaml"
    inner.write_text("control_points: {}")
    said = {
        "server": {"listen": HERE, "tokens": TOKENS},
        "flows": {"http": HERE, "file": "flows.yaml"},
    }

    async def test() -> None:
        from fairlead.server import configuring

        watched = Watched(tmp_path, said)
        replace = configuring._replace

        def replaced(path: Path, text: str) -> None:
            inner.write_text("control_points: 9")
            replace(path, text)

        monkeypatch.setattr(configuring, "_replace", replaced)
        headers = {"authorization": "Bearer admin-secret"}
        async with watched.server as server, aiohttp.ClientSession() as session:
            url = f"{server.listener.url}/api/v1/config"
            body = {"text": json.dumps({**said, "demo": {"traffic": False}})}
            async with session.put(url, json=body, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
            async with session.get(url) as answer:
                assert answer.status == 401

    run(test)


def test_no_sentence_tells_a_secret(tmp_path: Path):
    said = {
        "server": {"listen": HERE},
        "jobs": {"database": f"sqlite:///{tmp_path}/j.db", "token": "hunter2"},
        "flows": {"redis": "redis://:hunter3@127.0.0.1:1/0", "http": HERE},
    }

    async def test() -> None:
        watched = Watched(tmp_path, {"server": {"listen": HERE}})
        async with watched.server as server, aiohttp.ClientSession() as session:
            watched.write(said)
            url = f"{server.listener.url}/api/v1/config"
            async with session.get(url) as answer:
                text = (await answer.json())["text"]
            assert "hunter" not in text
            shown = {name: text.partition(f'"{name}": ')[2].split("}")[0] for name in ("token",)}
            password = text.partition('"redis": "')[2].partition('"')[0]
            assert password.startswith("masked-")
            for tried in (
                f"server: {{listen: {shown['token']}}}",
                f"server: {{{shown['token']}: 1}}",
                f"jobs: {{token: {{{shown['token']}: 1}}}}",
                f"server: {{listen: 'x://:{password}@b'}}",
                f"gateway: {{upstreams: [{{url: 'x://a:{password}@b'}}]}}",
                f"flows: {{redis: 'x://a:{password}@b'}}",
                f"jobs: {{database: 'sqlite:///x', webhook: {shown['token']}}}",
                f"jobs: {{token: &a {shown['token']}, database: x}}\nserver: {{listen: *a}}",
                f"jobs: {{token: &a {shown['token']}, database: x}}\nserver: {{*a : 1}}",
                f"flows: {{redis: {password}, odd: 1}}",
            ):
                async with session.post(f"{url}/validate", json={"text": tried}) as answer:
                    found = await answer.text()
                    assert json.loads(found)["problems"], tried
                    assert "hunter" not in found, tried

    run(test)


def test_whoever_leaves_takes_the_question_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from threading import Event

    from fairlead.server import whatif

    begun, ended = Event(), Event()

    def endless(*args: Any) -> None:
        begun.set()
        try:
            while not ended.wait(0.001):
                args[-1](0.5)
        finally:
            ended.set()

    async def test() -> None:
        async with served(configured(tmp_path)) as client:
            proxy = client.server.doors[0].links()["proxy"]
            async with client.session.post(f"{proxy}/v1/x", data=b"{}") as answer:
                assert answer.status == 200
            with monkeypatch.context() as patched:
                patched.setattr(whatif, "_replayed", endless)
                body = {"gate": "gateway/default"}
                asking = asyncio.create_task(client.ask("POST", "/api/v1/whatif", body))
                await asyncio.to_thread(begun.wait, 20)
                asking.cancel()
                assert await asyncio.to_thread(ended.wait, 20)
            while (status := (await client.ask("POST", "/api/v1/whatif", body))[0]) == 409:
                pass  # until the first one's handler has seen that its thread is done
            assert status == 200

    run(test)


async def raw(client: Any, sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = client.server.listener.address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    return reader, writer


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", b""),
        (b"GET /livez HTTP/1.1\r\nhost: localhost\r\n", b"408"),
        (b"GET /livez HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 40_000, b"431"),
        (b"GET /livez HTTP/1.1\r\nhost: localhost\r\n" + b"x: y\r\n" * 200, b"431"),
        (
            b"POST /api/v1/whatif HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: 100\r\n\r\n{",
            b"408",
        ),
        (
            b"POST /api/v1/whatif HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: 99999999\r\n\r\n{",
            b"413",
        ),
    ],
)
def test_who_takes_for_ever_or_brings_too_much_is_sent_away(
    sent: bytes, status: bytes, monkeypatch: pytest.MonkeyPatch
):
    quick = service.LIMITS.model_copy(update={"header_timeout": 0.1, "body_timeout": 0.1})
    monkeypatch.setattr(service, "LIMITS", quick)

    async def test() -> None:
        async with served({"server": {"listen": HERE}}) as client:
            reader, writer = await raw(client, sent)
            said = await reader.read()
            assert said.partition(b" ")[2][:3] == status, said
            writer.close()
            await writer.wait_closed()
            assert (await client.ask("GET", "/livez"))[0] == 200

    run(test)


def test_who_follows_and_never_reads_is_cut(monkeypatch: pytest.MonkeyPatch):
    quick = service.LIMITS.model_copy(update={"body_timeout": 0.2})
    monkeypatch.setattr(service, "LIMITS", quick)

    async def test() -> None:
        async with served({"server": {"listen": HERE}}) as client:
            history = client.server.history
            _, writer = await raw(client, b"GET /api/v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
            while not history.followers:
                await client.ask("GET", "/livez")
            seq = history.next_seq
            while history.followers:  # until what is sent fits nowhere, and it is cut
                seq += 1
                history.add({"seq": seq, "t": time.time(), "x": "y" * 1_000_000}, None)
                await client.ask("GET", "/livez")
            writer.close()
            await writer.wait_closed()

    run(test)


def test_many_who_come_at_once_are_counted_as_they_come():
    async def test() -> None:
        async with served({"server": {"listen": HERE}}) as client:
            asked = b"GET /api/v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n"
            many = [await raw(client, b"") for _ in range(MOST_FOLLOWERS + 50)]
            for _, writer in many:
                writer.write(asked)
            heads = [await reader.readline() for reader, _ in many]
            assert sum(b"200" in head for head in heads) == MOST_FOLLOWERS
            assert sum(b"503" in head for head in heads) == 50
            assert (await client.ask("HEAD", "/api/v1/events"))[0] == 503
            for _, writer in many:
                writer.close()
                await writer.wait_closed()
            while client.server.history.followers:
                await client.ask("GET", "/livez")
            assert (await client.ask("HEAD", "/api/v1/events"))[0] == 200
            assert client.server.history.followers == 0

    run(test)


def test_history_is_read_while_it_grows():
    history = History()

    class Growing(Moment):
        @property
        def t(self) -> float:
            history._moments.append(self)
            return 0.0

    history._moments.append(Growing(1, 0.0, b"", b""))
    assert history.since(1.0) == b"[]"


def test_a_loaded_file_is_known_by_its_content(tmp_path: Path):
    (tmp_path / "flows.yaml").write_text("control_points: {}")
    path = tmp_path / "fairlead.yaml"
    path.write_text("flows: {file: flows.yaml}")
    first: Loaded = load(str(path))
    (tmp_path / "flows.yaml").write_text("control_points: {a: {}}")
    second = load(str(path))
    assert first.digest == second.digest
    assert first.files != second.files


@pytest.mark.parametrize("grace", ["0s", "300s"])
def test_a_door_that_cannot_be_hurried_is_left_behind(
    grace: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(service, "HURRIED", 0.05)

    async def test() -> None:
        loaded = load_mapping(
            {"server": {"listen": HERE, "shutdown_grace": grace}, "flows": {"http": HERE}}
        )
        async with Server(loaded) as server:
            (flows,) = server.doors
            stop, stopping = flows.stop, asyncio.Event()

            async def stuck(grace: float) -> None:
                await stop(0.0)
                stopping.set()
                await asyncio.Event().wait()

            flows.stop = stuck  # type: ignore[method-assign]
            hurrying = asyncio.create_task(stopping.wait())
            hurrying.add_done_callback(lambda task: server.hurry())
        assert "flows did not end within 0.05 s of being hurried" in caplog.text

    run(test)
