"""Clients that are slow, never read, come in floods or do nothing: each is cut in its time, and others are served.

Tried: heads and bodies that trickle, answers that are never read, connections that are half open, half closed or reset.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from fairlead.gateway.serving import Gateway
from tests.gateway.rig import (
    Backend,
    Client,
    connected,
    fetch,
    gateway,
    run_on_uvloop,
    until,
    within,
)
from tests.sizes import times

TRIED = {
    "slow clients": 98,
    "resets in a flood": 3000,
    "half-open connections": 3000,
}
SLOTS = 8
TRICKLES = {  # what is sent at first, and then every moment
    "a head": (b"GET / HTTP/1.1\r\nHost: x\r\nX: ", b"a"),
    "a body": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n", b"aa"),
    "chunks": (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
}
READERS = SLOTS
TRICKLING = (TRIED["slow clients"] - READERS) // len(TRICKLES)
GET = b"GET /q HTTP/1.1\r\nHost: x\r\n\r\n"


@asynccontextmanager
async def attacked(**limits: object) -> AsyncIterator[tuple[Gateway, Backend]]:
    backend = Backend(auto=True)
    given = {"header_timeout": "1s", "body_timeout": "1s", **limits}
    async with (
        backend,
        gateway({"url": backend.url, "capacity": SLOTS}, limits=given, access_log=False) as running,
    ):
        yield running, backend
        await until(lambda: not busy(running))


def busy(running: Gateway) -> int:
    return sum(pool.gate.active + pool.gate.waiting for pool in running.admission.pools.values())


async def trickled(client: Client, first: bytes, more: bytes) -> bytes:
    """Trickle until the server hangs up; return what it said."""
    client.send(first)
    ended = asyncio.create_task(client.ended())
    while not ended.done():
        client.send(more)
        await asyncio.wait([ended], timeout=0.1)
    return await ended


@pytest.mark.parametrize("kind", TRICKLES)
def test_what_trickles_is_cut_and_holds_no_slot(kind: str) -> None:
    async def main() -> None:
        async with attacked() as (running, _), AsyncExitStack() as stack:
            url = running.data_listener.url
            clients = [await stack.enter_async_context(connected(url)) for _ in range(TRICKLING)]
            cut = [asyncio.create_task(trickled(client, *TRICKLES[kind])) for client in clients]
            while not all(task.done() for task in cut):
                assert (await fetch(url))[0].status == 200
                await asyncio.wait(cut, timeout=0.2)
            for task in cut:
                assert task.result()[:12] in (b"HTTP/1.1 408", b"")

    run_on_uvloop(main(), 60)


def test_answers_that_are_never_read_give_their_slots_back() -> None:
    """Each answer is larger than what the sockets between hold."""

    async def main() -> None:
        async with attacked() as (running, backend), AsyncExitStack() as stack:
            backend.auto = False
            url = running.data_listener.url
            for _ in range(READERS):
                client = await stack.enter_async_context(connected(url))
                client.send(GET)
            for _ in range(READERS):
                (await backend.arrival()).answer(body=bytes(16 << 20))
            asked = asyncio.create_task(fetch(url, "GET", "/other"))
            (await within(backend.arrivals.get(), 30)).answer()
            assert (await asked)[0].status == 200
            await until(lambda: not busy(running), 30)

    run_on_uvloop(main(), 60)


def test_a_flood_of_resets_leaves_nothing() -> None:
    sent = (b"", GET, b"POST /q HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc")

    async def main() -> None:
        chance = random.Random(18)
        async with attacked() as (running, _):
            url = running.data_listener.url

            async def one() -> None:
                async with connected(url) as client:
                    client.send(chance.choice(sent))
                    for _ in range(chance.randrange(4)):
                        await asyncio.sleep(0)
                    client.reset()

            for _ in range(times(TRIED["resets in a flood"]) // 50):
                await asyncio.gather(*(one() for _ in range(50)))
            await until(lambda: not busy(running))
            await until(lambda: running.data_listener.connections.count == 0)
            assert (await fetch(url))[0].status == 200

    run_on_uvloop(main(), 120)


def test_half_open_connections_keep_nobody_else_out() -> None:
    """There are more of them than a gateway may have; those that are idle give way, and the rest are reaped."""

    async def main() -> None:
        async with (
            attacked(connections=300, connections_per_address=250) as (running, _),
            AsyncExitStack() as stack,
        ):
            url = running.data_listener.url
            for number in range(times(TRIED["half-open connections"])):
                client = await stack.enter_async_context(connected(url))
                if number % 2:
                    client.send("GET / HTTP/1.1\r\nHos")
                if not number % 50:
                    assert (await fetch(url))[0].status == 200
                    assert running.data_listener.connections.count <= 300
                if number >= 500:  # the test has descriptors too
                    client.reset()
            assert (await fetch(url))[0].status == 200
            await until(lambda: running.data_listener.connections.count == 0, 30)

    run_on_uvloop(main(), 120)
