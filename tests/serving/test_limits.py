"""The services' own ports, over raw sockets: what is too large, too slow or ambiguous is refused in full."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fairlead.jobs.serving import JobServer
from fairlead.serving.limits import USUAL, Limits
from tests.flows.service_rig import serving
from tests.gateway.rig import Client, connected, fetch
from tests.gateway.rig import run_on_uvloop as run
from tests.jobs.operations_rig import small

TARGET = {"flows": "/v1/flows/check", "jobs": "/v1/runs"}
POST = "POST TARGET HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
WHOLE = "GET /livez HTTP/1.1\r\nHost: localhost\r\n"
REFUSED = {
    "101 fields": (431, "headers_too_large", WHOLE + "X: 1\r\n" * 100 + "\r\n"),
    "64 KiB of a field": (431, "headers_too_large", WHOLE + f"X: {'1' * 65_600}\r\n\r\n"),
    "1 MB of a field, unfinished": (431, "headers_too_large", WHOLE + "X: " + "1" * 1_000_000),
    "1 MB of a target": (431, "headers_too_large", f"GET /{'1' * 1_000_000} HTTP/1.1\r\n"),
    "a length over the limit": (413, "body_too_large", POST + "Content-Length: 8388609\r\n\r\n"),
    "two lengths": (
        400,
        "bad_request",
        POST + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
    ),
    "a length and chunks": (
        400,
        "bad_request",
        POST + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
    ),
    "no host": (400, "bad_request", "GET /livez HTTP/1.1\r\n\r\n"),
}


class Port:
    """A service's own port."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name, self._folder = name, folder

    @asynccontextmanager
    async def served(self, limits: Limits = USUAL) -> AsyncIterator[str]:
        """Run the whole service for the length of a block; give its URL."""
        async with self._service(limits) as server:
            yield server.http.url

    def _service(self, limits: Limits) -> Any:
        if self._name == "flows":
            return serving(limits=limits)
        jobs = small(f"sqlite:///{self._folder}/jobs.db")
        return JobServer(jobs, http="127.0.0.1:0", limits=limits, grace=0)

    def written(self, text: str) -> str:
        """Name a target that reads a body."""
        return text.replace("TARGET", TARGET[self._name])


@pytest.fixture(params=TARGET)
def port(request, tmp_path) -> Port:
    return Port(request.param, tmp_path)


async def refusal(client: Client) -> tuple[int, str]:
    """Read an answer after which the connection is closed; tell its status and code."""
    head, body = await client.response()
    assert head.get("connection") == "close"
    assert head.get("content-type") == "application/problem+json"
    assert await client.ended() == b""
    document = json.loads(body)
    assert document["status"] == head.status
    assert document["detail"]
    return head.status, document["code"]


async def drip(client: Client, text: str) -> tuple[int, str]:
    """Send one byte after another until there is an answer."""
    answered = asyncio.create_task(refusal(client))
    for byte in text:
        client.send(byte)
        await asyncio.wait({answered}, timeout=0.02)
        if answered.done():
            break
    return await answered


def test_what_is_too_large_or_ambiguous_is_refused(port):
    async def main():
        found = {}
        async with port.served() as url:
            for name, (*_, raw) in REFUSED.items():
                async with connected(url) as client:
                    client.send(port.written(raw))
                    found[name] = await refusal(client)
            assert (await fetch(url, "GET", "/livez"))[0].status == 200
        assert found == {name: (status, code) for name, (status, code, _) in REFUSED.items()}

    run(main())


def test_headers_without_an_end_are_cut(port):
    async def main():
        async with port.served() as url, connected(url) as client:
            client.send(WHOLE)
            answered = asyncio.create_task(refusal(client))
            while not answered.done():
                client.send("X: 1\r\n")
                await asyncio.wait({answered}, timeout=0)
            assert await answered == (431, "headers_too_large")

    run(main())


def test_a_body_without_an_end_is_cut(port):
    async def main():
        async with port.served(Limits(body_bytes=1000)) as url, connected(url) as client:
            client.send(port.written(f"{POST}Transfer-Encoding: chunked\r\n\r\n"))
            answered = asyncio.create_task(refusal(client))
            while not answered.done():
                client.send("1\r\na\r\n")
                await asyncio.wait({answered}, timeout=0)
            assert await answered == (413, "body_too_large")

    run(main())


def test_a_client_that_says_nothing_is_hung_up_on(port):
    async def main():
        async with port.served(Limits(header_timeout=0.1)) as url, connected(url) as client:
            assert await client.ended() == b""

    run(main())


def test_headers_that_come_byte_by_byte_are_too_slow(port):
    async def main():
        async with port.served(Limits(header_timeout=0.3)) as url, connected(url) as client:
            assert await drip(client, WHOLE * 100) == (408, "headers_too_slow")

    run(main())


@pytest.mark.parametrize("length", ["Content-Length: 1000", "Transfer-Encoding: chunked"])
def test_a_body_that_never_comes_is_too_slow(port, length):
    async def main():
        async with port.served(Limits(body_timeout=0.2)) as url, connected(url) as client:
            client.send(port.written(f"{POST}{length}\r\n\r\n"))
            assert await refusal(client) == (408, "body_too_slow")

    run(main())


def test_a_body_that_comes_byte_by_byte_is_too_slow(port):
    async def main():
        async with port.served(Limits(body_timeout=0.3)) as url, connected(url) as client:
            client.send(port.written(f"{POST}Content-Length: 1000\r\n\r\n"))
            assert await drip(client, "a" * 1000) == (408, "body_too_slow")

    run(main())
