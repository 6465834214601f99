"""Which connection the next request gets: one that is clean when it is taken, however it came to be otherwise."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fairlead.gateway.client import Answer, Connection, Pool, Unconnected
from fairlead.gateway.client import pool as pools
from fairlead.gateway.client.connection import Connection as Peeked
from tests.gateway.rig import run, run_on_uvloop, until, within

REQUEST = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
RUNS = pytest.mark.parametrize("run", [run, run_on_uvloop], ids=["asyncio", "uvloop"])


class Peer:
    """A backend at the level of sockets: it does what it is told, at once."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.setblocking(False)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.accepted: list[socket.socket] = []

    async def accept(self) -> socket.socket:
        sock: socket.socket
        sock, _ = await within(asyncio.get_running_loop().sock_accept(self._listening))
        self.accepted.append(sock)
        return sock

    def close(self) -> None:
        for sock in (self._listening, *self.accepted):
            sock.close()


@asynccontextmanager
async def pooled() -> AsyncIterator[tuple[Pool, Peer]]:
    peer = Peer()
    pool = Pool(peer.url)
    try:
        yield pool, peer
    finally:
        pool.close()
        peer.close()


async def exchange(pool: Pool, peer: Peer, answer: bytes = ANSWER) -> tuple[Connection, bool]:
    """Ask on a kept connection or a new one; return it, and whether it was kept."""
    connection = pool.take()
    kept = connection is not None
    if connection is None:
        connection = await within(pool.connect())
        await peer.accept()
    awaited = Answer(bodiless=False)
    connection.begin(awaited)
    connection.write(REQUEST)
    connection.asked = True
    peer.accepted[-1].sendall(answer)
    while not awaited.complete:
        await within(connection.more())
    pool.give(connection)
    return connection, kept


@RUNS
def test_a_connection_is_used_again(run):
    async def main() -> None:
        async with pooled() as (pool, peer):
            first, _ = await exchange(pool, peer)
            for _ in range(3):
                assert await exchange(pool, peer) == (first, True)

    run(main())


@RUNS
@pytest.mark.parametrize("unread", [ANSWER, b"HTTP/1.1 408 Request Timeout\r\n\r\n", b"x"])
def test_what_is_still_in_the_kernel_is_seen(run, unread):
    """The event loop has had no turn to read it."""

    async def main() -> None:
        async with pooled() as (pool, peer):
            await exchange(pool, peer)
            peer.accepted[0].sendall(unread)
            assert pool.take() is None

    run(main())


@RUNS
@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_connection_that_was_closed_is_replaced_unseen(run, how):
    async def main() -> None:
        async with pooled() as (pool, peer):
            await exchange(pool, peer)
            sock = peer.accepted[0]
            if how == "reset":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
            assert pool.take() is None
            await exchange(pool, peer)
            _, kept = await exchange(pool, peer)
            assert kept, "closing is no fault"

    run(main())


def spoken(name: str) -> bytes:
    return {
        "one segment": ANSWER + ANSWER,
        "one byte": ANSWER + b"x",
        "after 204": b"HTTP/1.1 204 No Content\r\n\r\nbody",
        "after 304": b"HTTP/1.1 304 Not Modified\r\ncontent-length: 4\r\n\r\nbody",
        "after chunks": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + ANSWER,
    }[name]


@RUNS
@pytest.mark.parametrize(
    "fault",
    ["one segment", "one byte", "after 204", "after 304", "after chunks", "idle", "unread"],
)
def test_after_a_word_out_of_turn_no_connection_is_reused_for_a_minute(run, fault, caplog):
    async def main() -> None:
        async with pooled() as (pool, peer):
            other = await within(pool.connect())
            other.begin(Answer(bodiless=False))
            await peer.accept()
            if fault in ("idle", "unread"):
                connection, _ = await exchange(pool, peer)
                peer.accepted[-1].sendall(ANSWER)
                if fault == "idle":
                    await until(lambda: connection._transport.is_closing())
                else:
                    assert pool.take() is None
            else:
                await exchange(pool, peer, spoken(fault))
            left = pool._distrusted_until - asyncio.get_running_loop().time()
            assert pools.DISTRUST - 10 < left <= pools.DISTRUST == 60.0
            for _ in range(3):
                _, kept = await exchange(pool, peer)
                assert not kept
            pool._distrusted_until = 0.0  # a minute later
            await exchange(pool, peer)
            assert (await exchange(pool, peer))[1]
            other.abort()

    run(main())
    (line,) = [record.getMessage() for record in caplog.records]
    assert "out of turn" in line
    assert "60 s" in line


@RUNS
def test_a_greeting_is_seen_before_the_request_is_written(run):
    async def main() -> None:
        async with pooled() as (pool, peer):
            connection = await within(pool.connect())
            (await peer.accept()).sendall(ANSWER)
            assert not connection.is_clean()
            assert pool._distrusted_until > 0
            connection.abort()

    run(main())


def test_a_look_at_the_transport_alone_is_caught(monkeypatch):
    """The broken variant: what the loop has not read yet is not there."""
    monkeypatch.setattr(Peeked, "is_clean", lambda self: not self._transport.is_closing())
    with pytest.raises(AssertionError):
        test_what_is_still_in_the_kernel_is_seen(run_on_uvloop, ANSWER)


@RUNS
def test_the_connection_that_was_quiet_longest_is_taken_and_spare_ones_are_closed(run):
    async def main() -> None:
        async with pooled() as (pool, peer):
            several = []
            for _ in range(3):
                connection = await within(pool.connect())
                await peer.accept()
                several.append(connection)
            for connection, sock in zip(several, peer.accepted, strict=True):
                connection.begin(Answer(bodiless=False))
                connection.write(REQUEST)
                connection.asked = True
                sock.sendall(ANSWER)
                while not connection.answer.complete:
                    await within(connection.more())
                pool.give(connection)
            for expected in several:
                taken = pool.take()
                assert taken is expected
                pool.give(taken)
            for _ in range(2):  # from one sweep to the next a single one is needed
                pool._sweep()
                taken = pool.take()
                assert taken is not None
                pool.give(taken)
            assert [one._transport.is_closing() for one in several].count(False) == 1

    run(main())


@RUNS
def test_an_old_connection_is_not_used(run):
    async def main() -> None:
        async with pooled() as (pool, peer):
            connection, _ = await exchange(pool, peer)
            connection.idle_since -= pools.KEEPALIVE + 0.1
            assert pool.take() is None

    run(main())


@RUNS
def test_a_backend_that_takes_no_connection_is_a_reason(run):
    async def main() -> None:
        async with pooled() as (pool, peer):
            peer.close()
            with pytest.raises(Unconnected, match="Errno 111") as caught:
                await within(pool.connect())
            assert not caught.value.exhausted

    run(main())


@RUNS
@pytest.mark.parametrize("rest", ["not written", "not taken"])
def test_after_an_early_answer_the_connection_is_not_used_again(run, rest):
    """What is left of the request would be the beginning of the next one."""

    async def main() -> None:
        async with pooled() as (pool, peer):
            connection = await within(pool.connect())
            sock = await peer.accept()
            answer = Answer(bodiless=False)
            connection.begin(answer)
            connection.write(REQUEST)
            if rest == "not taken":
                connection.write(b"x" * (32 << 20))
                connection.asked = True
            sock.sendall(ANSWER)
            while not answer.complete:
                await within(connection.more())
            assert answer.reusable
            pool.give(connection)
            assert pool.take() is None

    run(main())
