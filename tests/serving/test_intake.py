"""What is read of many bodies that no app takes: bounded together, whatever each client sends."""

import asyncio
import random
from typing import Any

import pytest

from fairlead.serving import intake
from fairlead.serving.intake import LARGEST_READ, MUCH, SMALLEST_READ, USUAL_READ, Inlet, Intake
from fairlead.serving.listener import Listener
from fairlead.serving.protocol import LimitedProtocol
from tests.gateway.rig import run_on_uvloop, until

UPLOADS = 160
SENT = 512 * 1024
HEAD = b"POST /up HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"


class Taken:
    """An app that takes nothing until it is told to, and then the whole body or a random part."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_take = asyncio.Event()
        self.chance = random.Random(3)
        self.sizes: list[int] = []

    async def __call__(self, scope, receive, send):
        self.begun += 1
        await self.may_take.wait()
        size, more = 0, True
        patience = self.chance.choice((0, 1, 3, 1000))
        while more and patience:
            message = await receive()
            size += len(message.get("body", b""))
            more = message.get("more_body", False)
            patience -= 1
        self.sizes.append(size)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})


async def upload(port: int, size: int, sockets: list[asyncio.StreamWriter]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sockets.append(writer)
    writer.write(HEAD % size + bytes(size))
    try:
        await reader.read()
    except OSError:
        pass


async def flood() -> int:
    """Send many bodies that are not taken; return the most bytes that the server had read of them."""
    app = Taken()
    listener = Listener(app, "127.0.0.1:0", share=1)
    await listener.begin()
    sockets: list[asyncio.StreamWriter] = []
    most = 0
    try:
        async with asyncio.timeout(30):
            port = int(listener.address.rpartition(":")[2])
            clients = [asyncio.create_task(upload(port, SENT, sockets)) for _ in range(UPLOADS)]
            quiet = 0
            while app.begun < UPLOADS or quiet < 20:
                await asyncio.sleep(0.005)
                connections: list[Any] = list(listener.server_state.connections)
                read = sum(len(one.cycle.body) for one in connections if one.cycle is not None)
                quiet = quiet + 1 if read <= most else 0
                most = max(most, read)
            # However a request ends, what it brought is counted no more.
            for writer in random.Random(4).sample(sockets, UPLOADS // 4):
                writer.transport.abort()
            app.may_take.set()
            await until(lambda: len(app.sizes) == UPLOADS)
            for writer in sockets:
                writer.transport.abort()
            await asyncio.gather(*clients)
            await until(lambda: not listener.server_state.connections)
            assert listener.intake.untaken == 0
            assert SENT in app.sizes, "a body that is taken comes whole"
    finally:
        listener.hurry()
        await listener.end(0)
    return most


BOUND = MUCH + LARGEST_READ + UPLOADS * SMALLEST_READ


def test_bodies_that_no_app_takes_are_read_up_to_a_bound():
    assert asyncio.run(flood()) <= BOUND


@pytest.mark.parametrize("broken", ["the room of a read", "the wait for an app"])
def test_without_either_half_of_the_rule_the_bound_does_not_hold(broken, monkeypatch):
    if broken == "the room of a read":
        monkeypatch.setattr(Intake, "room", lambda self, most: self._buffer[:most])
    else:
        monkeypatch.setattr(intake.Flow, "came", lambda self, size: None)
    assert asyncio.run(flood()) > BOUND


CHUNKED = b"POST /up HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
TINY = b"1\r\nx\r\n"
BODIES = {
    "tiny chunks": (CHUNKED + TINY * 60_000 + b"0\r\n\r\n", 60_000, USUAL_READ),
    "a length": (HEAD % 2_000_000 + bytes(2_000_000), 2_000_000, LARGEST_READ),
}


async def read_in_rounds(sent: bytes) -> tuple[int, int]:
    """Send a request; return the size of its body and the most that was read in one round of the loop."""
    rounds, read = [0], dict[int, int]()

    class Protocol(LimitedProtocol):
        def data_received(self, data: bytes) -> None:
            read[rounds[0]] = read.get(rounds[0], 0) + len(data)
            super().data_received(data)

    async def turn() -> None:
        while True:
            rounds[0] += 1
            await asyncio.sleep(0)

    app = Taken()
    app.may_take.set()
    app.chance = random.Random(0)  # has it take all
    listener = Listener(app, "127.0.0.1:0", protocol=Protocol)
    await listener.begin()
    turning = asyncio.create_task(turn())
    try:
        port = int(listener.address.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        assert (await reader.readline()).startswith(b"HTTP/1.1 204")
        writer.close()
    finally:
        turning.cancel()
        listener.hurry()
        await listener.end(0)
    return app.sizes[0], max(read.values())


@pytest.mark.parametrize("kind", BODIES)
def test_a_connection_is_read_once_in_a_round_and_little_where_parsing_may_cost_much(kind):
    sent, size, bound = BODIES[kind]
    taken, most = run_on_uvloop(read_in_rounds(sent))
    assert (taken, most <= bound) == (size, True)


def test_a_connection_that_is_read_on_in_a_round_is_caught(monkeypatch):
    def updated(self: Inlet, nbytes: int) -> None:
        self._protocol.data_received(bytes(self._room[:nbytes]))

    monkeypatch.setattr(Inlet, "buffer_updated", updated)
    _, most = run_on_uvloop(read_in_rounds(BODIES["tiny chunks"][0]))
    assert most > USUAL_READ
