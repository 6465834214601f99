"""What is read of many bodies that no app takes: bounded together, whatever each client sends."""

import asyncio
import random
from typing import Any

import pytest

from fairlead.serving import intake
from fairlead.serving.intake import LARGEST_READ, MUCH, SMALLEST_READ, Intake
from fairlead.serving.listener import Listener
from tests.gateway.rig import until

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
        monkeypatch.setattr(Intake, "room", lambda self: self._buffer)
    else:
        monkeypatch.setattr(intake.Flow, "came", lambda self, size: None)
    assert asyncio.run(flood()) > BOUND
