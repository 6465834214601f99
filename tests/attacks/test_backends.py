"""Backends that are broken or hostile: each costs its own requests at most, and no client hears of another's answer.

Tried: the behaviors of `answers.BEHAVIORS`, each before one gateway, and after each of them requests that must get
their own answers; and floods of interim answers, headers, trailers and small chunks, during which the loop is watched.
"""

import asyncio
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

import pytest

from tests.attacks.answers import BEHAVIORS, CHUNKED, HINTS, OK, POISON, TWO, Behavior
from tests.gateway.rig import connected, gateway, run_on_uvloop, until, within

FOLLOWERS = 4
TRIED = {
    "behaviors of hostile backends": len(BEHAVIORS),
    "requests after them": len(BEHAVIORS) * FOLLOWERS,
    "floods of backends": 6,
}
INTERIM = re.compile(rb"HTTP/1\.1 1\d\d [^\r]*\r\n(?:[^\r\n]+\r\n)*\r\n")


class Hostile:
    """A backend that is told by the path how to behave."""

    def __init__(self, behaviors: list[Behavior]) -> None:
        self._behaviors = {f"/{number}": one for number, one in enumerate(behaviors)}
        self.owed = 0  # answers that are still to be followed by something

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
                behavior = self._behaviors.get(path)
                writer.write(OK + TWO if behavior is None else behavior.said)
                await writer.drain()
                if behavior is not None and behavior.then:
                    await self._go_on(behavior, writer)
                if behavior is not None and behavior.then == "close":
                    return
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _go_on(self, behavior: Behavior, writer: asyncio.StreamWriter) -> None:
        if behavior.then == "late":
            self.owed += 1
            await asyncio.sleep(0.02)  # the answer is at its client
            writer.write(behavior.more)
            self.owed -= 1
        while behavior.then in ("endless", "each moment", "silence"):
            writer.write(behavior.more)
            await writer.drain()
            await asyncio.sleep(0 if behavior.then == "endless" else 0.1)


class Got(NamedTuple):
    """What a client reads until its connection ends."""

    status: int
    head: bytes
    body: bytes | None  # None: it has no end


def read(raw: bytes, method: str) -> Got:
    """Read an answer as a strict client does."""
    while found := INTERIM.match(raw):
        raw = raw[found.end() :]
    head, _, rest = raw.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    status = int(lines[0].split(b" ")[1])
    fields = dict(line.split(b":", 1) for line in lines[1:])
    if method == "HEAD" or status in (204, 304):
        return Got(status, head, rest)
    if b"chunked" in fields.get(b"transfer-encoding", b""):
        body = b""
        while match := re.match(rb"([0-9a-fA-F]+)\r\n", rest):
            size, start = int(match[1], 16), match.end()
            body += rest[start : start + size]
            if not size:
                return Got(status, head, body if rest == b"0\r\n\r\n" else None)
            rest = rest[start + size + 2 :]
        return Got(status, head, None)
    length = fields.get(b"content-length")
    whole = length is None or len(rest) == int(length)
    return Got(status, head, rest if whole else None)


async def asked(url: str, target: str, method: str) -> Got:
    async with connected(url) as client:
        client.request(method, target, [("connection", "close")])
        return read(await within(client.ended(), 20), method)


@asynccontextmanager
async def before(behaviors: list[Behavior]) -> AsyncIterator[tuple[str, Hostile]]:
    """Serve a gateway before a hostile backend."""
    hostile = Hostile(behaviors)
    server = await asyncio.start_server(hostile.serve, "127.0.0.1", 0)
    upstream = {"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "capacity": 64}
    async with gateway(upstream, upstream_timeout="1s", access_log=False) as running:
        yield running.data_listener.url, hostile
        for pool in running.admission.pools.values():
            assert pool.gate.active == pool.gate.waiting == 0
    server.close()


def check(behavior: Behavior, got: Got, followers: list[bytes]) -> None:
    """Hold what a client may see of a behavior, and its followers nothing."""
    assert followers == [b"ok"] * FOLLOWERS
    if behavior.body is None:
        assert (got.status, got.body) == (200, None) or got.status == 502
    else:
        assert got.status == behavior.status
        assert got.status >= 500 or got.body == behavior.body
    names = [line.split(b":")[0] for line in got.head.lower().split(b"\r\n")[1:]]
    assert not {b"x-fairlead-retry-token", b"x-fairlead-preempted"} & set(names)
    assert not {b"set-cookie", b"x-evil", b"x-secret"} & set(names)
    assert not re.search(rb"[\x00-\x08\x0a-\x1f]", got.head.replace(b"\r\n", b""))


async def tried(behaviors: list[Behavior]) -> list[tuple[Behavior, Got, list[bytes]]]:
    found = []
    async with before(behaviors) as (url, hostile):
        for number, behavior in enumerate(behaviors):
            got = await asked(url, f"/{number}", behavior.method)
            await until(lambda: not hostile.owed)
            async with connected(url) as client:
                bodies = [(await client.ask("GET", "/fine"))[1] for _ in range(FOLLOWERS)]
            found.append((behavior, got, bodies))
    return found


@pytest.mark.parametrize("behavior", BEHAVIORS, ids=lambda behavior: behavior.name)
def test_a_behavior_costs_its_own_request_at_most(behavior: Behavior) -> None:
    for found in run_on_uvloop(tried([behavior]), 60):
        check(*found)


@pytest.mark.parametrize(
    "broken",
    [
        lambda got, bodies: (got, [POISON, *bodies[1:]]),
        lambda got, bodies: (got._replace(head=got.head + b"\r\nset-cookie: evil"), bodies),
        lambda got, bodies: (got._replace(body=None), bodies),
        lambda got, bodies: (got._replace(status=502), bodies),
    ],
)
def test_the_checks_can_fail(broken: Callable[[Got, list[bytes]], tuple[Got, list[bytes]]]) -> None:
    fine, got, bodies = BEHAVIORS[0], Got(200, b"HTTP/1.1 200 OK", b"ok"), [b"ok"] * FOLLOWERS
    check(fine, got, bodies)
    with pytest.raises(AssertionError):
        check(fine, *broken(got, bodies))


# Floods

FLOODS = {
    "interim answers": (b"", HINTS * 500),
    "headers": (OK, b"X: a\r\n" * 4000),
    "a header": (OK + b"X: ", b"a" * 30_000),
    "an extension": (CHUNKED + b"5;", b"a" * 30_000),
    "trailers": (CHUNKED + b"2\r\nok\r\n0\r\n", b"X: a\r\n" * 4000),
    "chunks of a byte": (CHUNKED, b"1\r\na\r\n" * 5000),
}
MOST, SLACK = 0.05, 2.0  # seconds of processor that a turn of the loop may take; processors differ


@contextmanager
def flooding(said: bytes, more: bytes) -> Iterator[str]:
    """Flood from a thread of its own, so that the loop's time is the gateway's."""
    listener = socket.create_server(("127.0.0.1", 0))

    def flood() -> None:
        try:
            while True:
                there, _ = listener.accept()
                with there:
                    there.recv(65536)
                    try:
                        there.sendall(said)
                        while True:
                            there.sendall(more)
                    except OSError:
                        pass
        except OSError:
            pass

    thread = threading.Thread(target=flood, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(10)


async def drink(host: str, port: str) -> None:
    """Ask, and read whatever comes."""
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /flood HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    try:
        while await reader.read(65536):
            pass
    finally:
        writer.close()


@pytest.mark.parametrize("kind", FLOODS)
def test_while_a_backend_floods_no_turn_of_the_loop_is_long(kind: str) -> None:
    async def main(url: str) -> None:
        upstream = {"url": url, "capacity": 64}
        async with gateway(upstream, upstream_timeout="1s", access_log=False) as running:
            address = running.data_listener.url.removeprefix("http://").split(":")
            flooded = [asyncio.create_task(drink(*address)) for _ in range(3)]
            longest, before = 0.0, time.thread_time()
            end = asyncio.get_running_loop().time() + 1
            while asyncio.get_running_loop().time() < end:
                await asyncio.sleep(0.002)
                now = time.thread_time()
                longest, before = max(longest, now - before), now
            for task in flooded:
                task.cancel()
            await asyncio.gather(*flooded, return_exceptions=True)
            assert longest < SLACK * MOST

    with flooding(*FLOODS[kind]) as url:
        run_on_uvloop(main(url), 60)
