"""While a backend floods many calls with body, no turn of the loop is long; clients read as fast as they can.

What is measured is the time of processor of the loop's thread, as in tests/attacks/test_stalls.py; backend and clients
have threads of their own.
"""

import asyncio
import socket
import threading
import time
from contextlib import suppress

import pytest

from fairlead.gateway.client import answer as limits
from tests.gateway.proxies import proxied
from tests.gateway.rig import run_on_uvloop

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
FLOODS = {
    "chunks of a byte": (CHUNKED, b"1\r\na\r\n" * 40_000),
    "large chunks": (CHUNKED, (b"10000\r\n" + b"x" * 65536 + b"\r\n") * 8),
    "extensions": (CHUNKED, (b"1;" + b"a" * 200 + b"\r\nx\r\n") * 1000),
    "no framing": (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 300_000),
}
CALLS = 12
MOST, SLACK = 0.05, 2.0  # seconds of processor that a turn of the loop may take; processors differ


def flood(listening: socket.socket, said: bytes, more: bytes) -> None:
    def one(there: socket.socket) -> None:
        with there, suppress(OSError):
            there.recv(65536)
            there.sendall(said)
            while True:
                there.sendall(more)

    with suppress(OSError):
        while True:
            there, _ = listening.accept()
            threading.Thread(target=one, args=(there,), daemon=True).start()


def read(port: int, ending: threading.Event, counts: list[int]) -> None:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as there:
        there.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        while not ending.is_set() and (data := there.recv(1 << 20)):
            counts.append(len(data))


def longest_turn(said: bytes, more: bytes) -> float:
    """Return the longest turn of the loop while every call is flooded."""

    async def main() -> float:
        with socket.create_server(("127.0.0.1", 0), backlog=100) as listening:
            threading.Thread(target=flood, args=(listening, said, more), daemon=True).start()
            backend = f"http://127.0.0.1:{listening.getsockname()[1]}"
            async with proxied(backend) as (url, _):
                ending, counts = threading.Event(), list[int]()
                port = int(url.rpartition(":")[2])
                readers = [
                    threading.Thread(target=read, args=(port, ending, counts)) for _ in range(CALLS)
                ]
                for reader in readers:
                    reader.start()
                longest, turns = 0.0, 0
                before = time.thread_time()
                while len(counts) < 100 or turns < 50:
                    await asyncio.sleep(0.001)
                    now = time.thread_time()
                    longest, before = max(longest, now - before), now
                    turns += 1
                ending.set()
                for reader in readers:
                    await asyncio.to_thread(reader.join)
            listening.shutdown(socket.SHUT_RDWR)
            return longest

    found: float = run_on_uvloop(main(), 60)
    return found


@pytest.mark.parametrize("kind", FLOODS)
def test_while_a_backend_floods_no_turn_of_the_loop_is_long(kind):
    assert longest_turn(*FLOODS[kind]) < SLACK * MOST


def test_without_a_bound_on_the_chunks_of_a_turn_turns_are_longer(monkeypatch):
    bounded = longest_turn(*FLOODS["chunks of a byte"])
    monkeypatch.setattr(limits, "MOST_CHUNKS", 10**9)
    assert longest_turn(*FLOODS["chunks of a byte"]) > 1.5 * bounded
