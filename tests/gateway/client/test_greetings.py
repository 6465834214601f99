"""Backends that say something on a new connection before they are asked, at any moment: no answer goes astray."""

import asyncio
import random
import socket
from contextlib import suppress

import pytest

from fairlead.gateway.client import pool as pools
from tests.gateway.proxies import proxied
from tests.gateway.rig import connected, run_on_uvloop, until
from tests.sizes import times

GREETING = b"greeting"


def answer_to(target: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(target), target)


class Greeting:
    """A backend that greets on a share of its connections, some time after they were opened."""

    def __init__(self, seed: int, share: float, latest: float, service: float) -> None:
        self._chance = random.Random(seed)
        self._share, self._latest, self._service = share, latest, service
        self.asked = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        chance, loop = self._chance, asyncio.get_running_loop()
        if chance.random() < self._share:
            later = chance.uniform(0, self._latest)
            loop.call_later(later, writer.write, answer_to(GREETING))
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                target = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
                self.asked += 1
                await asyncio.sleep(chance.uniform(0, self._service))
                writer.write(answer_to(target))
        writer.close()


async def stray_answers(backend: Greeting, requests: int) -> tuple[int, int]:
    """Ask side by side; return how many answers belonged to another request, and how many were right."""
    server = await asyncio.start_server(backend.serve, "127.0.0.1", 0)
    stray = right = 0

    async def ask(url: str, number: int) -> None:
        nonlocal stray, right
        async with connected(url) as client:
            for turn in range(requests // 8):
                target = f"/{number}-{turn}"
                head, body = await client.ask("GET", target)
                if body == target.encode():
                    right += 1
                elif head.status == 200 and body != GREETING:
                    stray += 1

    off = {"enabled": False}
    async with proxied(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", outliers=off) as (
        url,
        _,
    ):
        await asyncio.gather(*(ask(url, number) for number in range(8)))
    server.close()
    return stray, right


@pytest.mark.parametrize("seed", range(times(20, least=3)))
def test_a_greeting_at_any_moment_sends_no_answer_astray(seed, monkeypatch):
    monkeypatch.setattr(pools, "LISTEN", 0.02)
    monkeypatch.setattr(pools, "REST", 0.1)
    monkeypatch.setattr(pools, "DISTRUST", 0.02)  # so that more connections are tried
    backend = Greeting(seed, random.Random(seed).choice([0.05, 0.5]), 0.01, 0.02)
    stray, right = run_on_uvloop(stray_answers(backend, 160), 60)
    assert not stray
    assert right > 80


def test_without_a_rest_after_the_first_answer_some_go_astray(monkeypatch):
    monkeypatch.setattr(pools, "DISTRUST", 0.0)
    backend = Greeting(1, 0.5, 0.002, 0.02)
    stray, _ = run_on_uvloop(stray_answers(backend, 400), 60)
    assert stray


def test_a_backend_that_always_greets_gets_no_request(monkeypatch):
    """Its answers may take any time: they are never asked for."""
    monkeypatch.setattr(pools, "LISTEN", 0.05)
    backend = Greeting(2, 1.0, 0.005, 5.0)
    assert run_on_uvloop(stray_answers(backend, 40), 60) == (0, 0)
    assert backend.asked == 0


def test_connections_that_rest_are_bounded_and_a_removed_backend_keeps_none(monkeypatch):
    monkeypatch.setattr(pools, "REST", 60.0)
    monkeypatch.setattr(pools, "MOST_RESTING", 2)

    async def main() -> None:
        backend = Greeting(3, 0.0, 0.0, 0.0)
        open_ones: set[asyncio.StreamWriter] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            open_ones.add(writer)
            await backend.serve(reader, writer)
            open_ones.discard(writer)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        one = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with proxied(one) as (url, fleet), connected(url) as client:
            for _ in range(5):
                assert (await client.ask("GET", "/x"))[0].status == 200
            await until(lambda: len(open_ones) == 2)
            fleet.remove(one)
            await until(lambda: not open_ones)
        server.close()

    run_on_uvloop(main())


def test_a_call_that_outlives_its_backend_keeps_no_connection():
    async def main() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        one = f"http://127.0.0.1:{listening.getsockname()[1]}"
        loop = asyncio.get_running_loop()
        with listening:
            async with proxied(one) as (url, fleet), connected(url) as client:
                client.request("GET", "/x")
                there, _ = await loop.sock_accept(listening)
                await loop.sock_recv(there, 1000)
                fleet.remove(one)
                await loop.sock_sendall(there, answer_to(b"/x"))
                assert (await client.response())[1] == b"/x"
                assert await asyncio.wait_for(loop.sock_recv(there, 1), 5) == b""
                there.close()

    run_on_uvloop(main())
