"""Backends that speak out of turn, drawn at random: a fault costs at most its own request.

Rounds of requests that run side by side: a round begins when everything that the backend had to say in the round before
has been written.  What comes after the next request has been written is what HTTP/1.1 cannot tell from its answer.
"""

import asyncio
import random
from contextlib import AsyncExitStack
from typing import Any

import pytest

from fairlead.gateway.client import Connection
from fairlead.gateway.client import pool as pools
from tests.gateway.proxies import proxied
from tests.gateway.rig import Client, connected, run_on_uvloop, until, within
from tests.sizes import times

TRIED = {"requests before backends that speak out of turn": 10_000}
REQUESTS = times(TRIED["requests before backends that speak out of turn"], least=1000)
SIDE_BY_SIDE = 16


def answer_to(target: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(target), target)


class Misbehaving(asyncio.Protocol):
    """One connection of a backend whose manners are drawn for each connection and each request."""

    def __init__(self, chance: random.Random, owed: set[asyncio.TimerHandle]) -> None:
        self._chance = chance
        self._owed = owed
        self._data = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        if self._chance.random() < 0.02:
            transport.write(answer_to(b"greeting"))

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            target = self._data.split(b" ", 2)[1]
            self._data = self._data[end + 4 :]
            self._answer(target)

    def _answer(self, target: bytes) -> None:
        chance, write = self._chance, self._transport.write
        manner = chance.choices(
            ["well", "twice", "twice later", "408 later", "204", "304", "bytes later", "closes"],
            [60, 2, 4, 4, 2, 2, 2, 4],
        )[0]
        more = answer_to(b"surplus of " + target)
        if manner in ("204", "304"):
            write(b"HTTP/1.1 %b No\r\n\r\n" % manner.encode() + chance.choice([more, b"x"]))
            return
        if chance.random() < 0.2:  # in chunks
            write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(target), target))
        else:
            write(answer_to(target) + (more if manner == "twice" else b""))
        if manner == "closes":
            self._transport.close()
        elif manner.endswith("later"):
            late = {
                "twice later": more,
                "408 later": answer_to(b"", b"408 Request Timeout"),
                "bytes later": b"\0\xffwhat?",
            }[manner]
            self._later(chance.choice([0.0, 0.0005, 0.003]), late)

    def _later(self, delay: float, data: bytes) -> None:
        def say() -> None:
            self._owed.discard(handle)
            if not self._transport.is_closing():
                self._transport.write(data)

        handle = asyncio.get_running_loop().call_later(delay, say)
        self._owed.add(handle)


async def wrong_answers(seed: int, requests: int) -> tuple[list[tuple[str, bytes]], int]:
    """Ask in rounds; return the answers that belong to another request, and how many were right."""
    chance, owed = random.Random(seed), set[asyncio.TimerHandle]()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Misbehaving(chance, owed), "127.0.0.1", 0)
    backend = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    wrong, right = [], 0

    async def ask(client: Client, target: str) -> None:
        nonlocal right
        client.request("GET", target)
        head = await client.head()
        if head.status in (204, 304):
            return
        body = await within(client.reader.readexactly(int(head.get("content-length") or 0)))
        if head.get("transfer-encoding"):
            body = b""
            while chunk := await client.chunk():
                body += chunk
        if body == target.encode():
            right += 1
        elif head.status not in (502, 503) and body != b"greeting":
            wrong.append((target, body))

    async with proxied(backend) as (url, _), AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(url)) for _ in range(SIDE_BY_SIDE)]
        for first in range(0, requests, SIDE_BY_SIDE):
            await asyncio.gather(
                *(ask(client, f"/{first + n}") for n, client in enumerate(clients))
            )
            await until(lambda: not owed)
    server.close()
    return wrong, right


@pytest.mark.parametrize("distrust", [0.0, 60.0])
def test_no_answer_goes_to_another_request(monkeypatch, distrust):
    """Without distrust too: each connection is judged by itself."""
    monkeypatch.setattr(pools, "DISTRUST", distrust)
    wrong, right = run_on_uvloop(wrong_answers(1, REQUESTS), 600)
    assert not wrong
    assert right > REQUESTS / 2


def test_connections_that_are_not_looked_at_are_caught(monkeypatch):
    """The broken variant is the usual pool: one that looks at a connection when it is put back."""
    monkeypatch.setattr(pools, "DISTRUST", 0.0)
    monkeypatch.setattr(Connection, "is_clean", lambda self: not self._transport.is_closing())

    unread: dict[Connection, bytes] = {}

    def deaf(self, data):
        if self._awaited:
            heard(self, data)
        else:
            unread[self] = unread.get(self, b"") + data

    def begin(self, answer):
        begun(self, answer)
        if self in unread:
            heard(self, unread.pop(self))

    heard, begun = Connection.data_received, Connection.begin
    monkeypatch.setattr(Connection, "data_received", deaf)
    monkeypatch.setattr(Connection, "begin", begin)
    wrong, _ = run_on_uvloop(wrong_answers(1, 1000), 60)
    assert wrong
