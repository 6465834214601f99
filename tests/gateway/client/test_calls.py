"""Calls through the proxy: bytes as they are, connections that are replaced, and whose fault a failure is."""

import asyncio
import json
import os
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fairlead.gateway.client import Connection
from fairlead.gateway.fleet import Fleet
from tests.gateway.proxies import proxied
from tests.gateway.rig import Backend, connected, fetch, until, within
from tests.gateway.rig import run_on_uvloop as run

ODD = b"\x80\xff \xc3\xa9 \xe9"


def test_bytes_of_headers_pass_unchanged_both_ways():
    async def main() -> None:
        seen = bytearray()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.extend(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 200 \xe9\r\nX-B: " + ODD + b"\r\nContent-Length: 0\r\n\r\n")
            await reader.read()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        backend = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with proxied(backend) as (url, _), connected(url) as client:
            client.send(b"GET / HTTP/1.1\r\nHost: a\r\nX-A: " + ODD + b"\r\n\r\n")
            answer = await within(client.reader.readuntil(b"\r\n\r\n"))
        assert b"x-a: " + ODD + b"\r\n" in bytes(seen)
        assert b"x-b: " + ODD + b"\r\n" in answer
        server.close()
        await server.wait_closed()

    run(main())


class Closing:
    """A backend that answers some requests on each connection and then closes it without a word."""

    def __init__(self, each: int) -> None:
        self.each = each
        self.bodies: list[bytes] = []
        self.connections = 0
        self.closed = asyncio.Event()

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        for _ in range(self.each):
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if b"chunked" in head:
                body = (await reader.readuntil(b"0\r\n\r\n")).split(b"\r\n")[1]
            else:
                length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
                body = await reader.readexactly(int(length or 0))
            self.bodies.append(body)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        writer.close()
        await writer.wait_closed()
        self.closed.set()


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH"])
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_connection_that_was_closed_is_replaced_for_every_method(method, streamed):
    async def main() -> None:
        one = Closing(1)
        async with (
            one.served() as backend,
            proxied(backend) as (url, _),
            connected(url) as client,
        ):
            for number in range(5):
                body = b"%d" % number
                if streamed:
                    client.request(method, "/", [("transfer-encoding", "chunked")])
                    client.send(b"1\r\n%b\r\n0\r\n\r\n" % body)
                else:
                    client.request(method, "/", body=body)
                head, answer = await client.response()
                assert (head.status, answer) == (200, b"ok")
                await within(one.closed.wait())
                one.closed.clear()
            assert one.bodies == [b"%d" % number for number in range(5)]
            assert one.connections == 5

    run(main())


def test_a_connection_that_takes_not_a_byte_is_replaced(monkeypatch):
    """It was open at the last look, and is not when the request is written."""
    asked = 0

    async def main() -> None:
        async with Backend(auto=True) as one, proxied(one) as (url, _), connected(url) as client:
            assert (await client.ask("POST", body=b"x"))[0].status == 200
            write = Connection.write

            def broken(self: Connection, data: bytes) -> None:
                nonlocal asked
                asked += 1
                if asked == 1:
                    self._sock.shutdown(socket.SHUT_WR)
                write(self, data)

            monkeypatch.setattr(Connection, "write", broken)
            assert (await client.ask("POST", body=b"x"))[0].status == 200
            assert (asked, one.seen) == (2, 2)

    run(main())


def test_a_request_without_a_body_says_so_where_its_method_has_one():
    async def main() -> None:
        async with Backend(auto=False) as one, proxied(one) as (url, _), connected(url) as client:
            for method, lengths in (("POST", ["0"]), ("GET", []), ("DELETE", [])):
                client.request(method)
                held = await one.arrival()
                assert held.head.all("content-length") == lengths
                assert held.head.all("transfer-encoding") == []
                held.answer()
                await client.response()

    run(main())


def test_a_prefix_of_the_backend_s_url_comes_before_the_path():
    async def main() -> None:
        async with (
            Backend() as one,
            proxied(one.url + "/base") as (url, _),
            connected(url) as client,
        ):
            client.request(target="/v1/x?y=1")
            held = await one.arrival()
            assert held.target == "/base/v1/x?y=1"
            held.answer()
            await client.response()

    run(main())


def without_descriptors() -> list[int]:
    """Use up what this process may open."""
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return taken


def test_descriptors_that_have_run_out_are_not_the_backends_fault(caplog):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def main() -> None:
        async with (
            Backend(auto=True) as one,
            proxied(one, health={"interval": 0.05}) as (url, fleet),
            connected(url) as client,
        ):
            assert (await client.ask())[0].status == 200
            for connection in one.connections:
                connection.close()
            await until(lambda: not one.connections)
            taken = []
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
            try:
                taken = without_descriptors()
                for _ in range(3):
                    head, body = await client.ask("POST", body=b"x")
                    assert (head.status, json.loads(body)["code"]) == (503, "gateway_exhausted")
                    assert head.get("retry-after") == "1"
                    assert b"descriptors" in body
            finally:
                for descriptor in taken:
                    os.close(descriptor)
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert [each["state"] for each in fleet.describe()] == ["healthy"]
            assert (await client.ask())[0].status == 200

    run(main())
    lines = [
        record.getMessage() for record in caplog.records if "Too many open files" in str(record)
    ]
    said = [line for line in caplog.messages if "Too many open files" in line]
    assert len(said) == 1, lines
    assert "not its fault" in said[0]


class Tries(list[tuple[str, str]]):
    """How each try ended, as the fleet hears it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()

        def tried(fleet: Fleet, upstream: Any, outcome: str, now: float, number: int) -> None:
            self.append((upstream.url, outcome))

        monkeypatch.setattr(Fleet, "tried", tried)

    @property
    def outcomes(self) -> list[str]:
        return [outcome for _, outcome in self]


ENDS = {
    "ok": (200, []),
    "not found": (404, []),
    "overloaded": (503, []),
    "full": (503, [("retry-after", "1")]),
    "broken": (500, []),
}


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        ("ok", "ok"),
        ("not found", "ok"),
        ("overloaded", "error"),
        ("full", "full"),
        ("broken", "error"),
        ("hangs up", "failed"),
        ("is malformed", "failed"),
        ("dies in the middle", "failed"),
        ("falls silent", "failed"),
        ("client leaves", None),
    ],
)
def test_the_fleet_hears_how_each_try_ended(monkeypatch, end, outcome):
    tries = Tries(monkeypatch)

    async def main() -> None:
        patience = 0.3 if end == "falls silent" else 30.0
        async with (
            Backend() as one,
            proxied(one, upstream_timeout=patience) as (url, _),
            connected(url) as client,
        ):
            client.request("POST", "/", body=b"x")
            held = await one.arrival()
            if end in ENDS:
                status, headers = ENDS[end]
                held.answer(status, b"", headers)
                await client.response()
            elif end == "hangs up":
                held.die()
                assert (await client.head()).status == 502
            elif end == "is malformed":
                held.raw(b"what?\r\n\r\n")
                assert (await client.head()).status == 502
            elif end == "dies in the middle":
                held.stream()
                held.event("1")
                await client.head()
                await client.chunk()
                held.die()
                await client.ended()
            elif end == "falls silent":
                assert (await client.head()).status == 504
            else:
                client.close()
                await within(held.gone.wait())
            if outcome:
                await until(lambda: tries)

    run(main())
    assert tries.outcomes == ([outcome] if outcome else [])


def test_a_backend_that_cannot_be_reached_has_failed(monkeypatch):
    tries = Tries(monkeypatch)

    async def main() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.close()
        async with proxied(nobody) as (url, _):
            assert (await fetch(url))[0].status == 503

    run(main())
    assert tries.outcomes == ["failed"]


def test_an_early_answer_of_a_backend_that_hangs_up_reaches_the_client():
    """It answers 413 and closes before the body is there."""

    async def main() -> None:
        async with Backend() as one, proxied(one) as (url, _), connected(url) as client:
            client.request("POST", "/", [("transfer-encoding", "chunked")])
            client.send(b"1\r\na\r\n")
            held = await one.arrival()
            held.answer(413, b"too much", [("connection", "close")])
            held.hang_up()
            head, body = await client.response()
            assert (head.status, body) == (413, b"too much")

    run(main())
