"""Load from a process of its own, over keep-alive connections on loopback.

python -m benchmarks.gateway_load rush PORT CONNECTIONS SECONDS      as fast as the answers come; prints their number
python -m benchmarks.gateway_load storm PORT PLAN                    at given rates; prints every answer

A plan is JSON, {"seed": 1, "streams": [{"kind": "bulk", "rate": 100, "from": 0, "until": 5}, ...]}: requests of class
`kind` arrive by chance, `rate` a second, whether or not earlier ones were answered.  A latency counts from the moment a
request was due.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from time import monotonic
from typing import Any

LAST = 15.0  # seconds to wait for what is still out at the end


def request(kind: str = "", path: str = "/") -> bytes:
    """One GET, of a class if it has one."""
    priority = f"x-fairlead-priority: {kind}\r\n" if kind else ""
    return f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{priority}\r\n".encode()


class Connection(asyncio.Protocol):
    """One request at a time; whole answers, by their content-length."""

    transport: asyncio.Transport

    def __init__(self, answered: Callable[[Connection, int], None]) -> None:
        self.answered = answered  # called with the status, 0 if the connection broke
        self.received = b""
        self.answer = b""  # the last one, whole
        self.out = False  # a request is waiting for its answer
        self.due = 0.0
        self.kind = ""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def ask(self, wire: bytes) -> None:
        self.out = True
        self.transport.write(wire)

    def data_received(self, data: bytes) -> None:
        received = self.received = self.received + data if self.received else data
        end = received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = received[:end].lower()
        at = head.find(b"content-length:")
        length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(received) >= end + 4 + length:
            self.received, self.answer = b"", received
            self.out = False
            self.answered(self, int(received[9:12]))

    def connection_lost(self, error: Exception | None) -> None:
        if self.out:
            self.out = False
            self.answered(self, 0)


async def rush(
    port: int,
    connections: int,
    seconds: float,
    wire: bytes,
    following: Callable[[bytes], bytes] | None = None,
) -> dict[str, float]:
    """Send the next request when the last is answered, on every connection; wait for some answers in any case.

    The next one is the same again, or what follows the answer.
    """
    loop = asyncio.get_running_loop()
    counts = {"requests": 0, "errors": 0}
    over = False
    some: asyncio.Future[None] = loop.create_future()

    def answered(connection: Connection, status: int) -> None:
        if over:
            return
        counts["requests" if status == 200 else "errors"] += 1
        if not some.done() and sum(counts.values()) >= connections:
            some.set_result(None)
        if status:
            connection.ask(wire if following is None else following(connection.answer))

    made = [
        await loop.create_connection(partial(Connection, answered), "127.0.0.1", port)
        for _ in range(connections)
    ]
    began = monotonic()
    for _, connection in made:
        connection.ask(wire)
    await asyncio.sleep(seconds)
    await asyncio.wait([some], timeout=LAST)
    over = True
    took = monotonic() - began
    for transport, _ in made:
        transport.abort()
    return {**counts, "seconds": took}


class Storm:
    """Requests by a plan, each on a free connection or a new one."""

    def __init__(self, port: int, plan: dict[str, Any]) -> None:
        self.port = port
        self.free: list[Connection] = []
        self.answers: list[tuple[str, float, float, int]] = []  # class, due, latency, status
        self.out = 0
        self.opening: set[asyncio.Task[None]] = set()
        chance = random.Random(plan["seed"])
        self.arrivals: list[tuple[float, str]] = []
        for stream in plan["streams"]:
            at = stream["from"] + chance.expovariate(stream["rate"])
            while at < stream["until"]:
                self.arrivals.append((at, stream["kind"]))
                at += chance.expovariate(stream["rate"])
        self.arrivals.sort()
        self.wires = {stream["kind"]: request(stream["kind"]) for stream in plan["streams"]}
        self.began = 0.0
        self.all_sent = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> list[tuple[str, float, float, int]]:
        self.began = monotonic()
        for at, kind in self.arrivals:
            left = self.began + at - monotonic()
            if left > 0:
                await asyncio.sleep(left)
            self.send(at, kind)
        self.all_sent = True
        if self.out:
            await asyncio.wait([self.done], timeout=LAST)
        for connection in self.free:
            connection.transport.abort()
        return self.answers

    def send(self, at: float, kind: str) -> None:
        self.out += 1
        while self.free:
            connection = self.free.pop()
            if not connection.transport.is_closing():
                connection.due, connection.kind = at, kind
                connection.ask(self.wires[kind])
                return
        task = asyncio.get_running_loop().create_task(self.open(at, kind))
        self.opening.add(task)
        task.add_done_callback(self.opening.discard)

    async def open(self, at: float, kind: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: Connection(self.answered), "127.0.0.1", self.port
            )
        except OSError:
            self.count(at, kind, 0)
            return
        connection.due, connection.kind = at, kind
        connection.ask(self.wires[kind])

    def answered(self, connection: Connection, status: int) -> None:
        self.count(connection.due, connection.kind, status)
        if status:
            self.free.append(connection)

    def count(self, due: float, kind: str, status: int) -> None:
        self.out -= 1
        if self.all_sent and not self.out:
            self.done.set_result(None)
        self.answers.append((kind, due, monotonic() - self.began - due, status))


async def storm(port: int, plan: dict[str, Any]) -> list[tuple[str, float, float, int]]:
    return await Storm(port, plan).run()


def run(work: Coroutine[Any, Any, Any]) -> None:
    """Do the work of a client's process, and print what came of it."""
    import uvloop

    gc.disable()  # a pause here would look like one over there
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(work)
    print(json.dumps(result), flush=True)


def main(how: str, port: str, *arguments: str) -> None:
    if how == "rush":
        connections, seconds = arguments
        run(rush(int(port), int(connections), float(seconds), request("interactive")))
    else:
        (plan,) = arguments
        run(storm(int(port), json.loads(plan)))


if __name__ == "__main__":
    main(*sys.argv[1:])
