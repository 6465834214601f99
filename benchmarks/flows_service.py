"""Checks over HTTP and gRPC, beside a bare handler on the same server: what does deciding add to answering?

Servers and clients are processes of their own on loopback; a server lives as long as its table and is warmed up before
every figure.  The CPU time is the server's alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec

from benchmarks.gateway_kept import Kept
from benchmarks.gateway_processes import Child, client, cpu_time, server
from benchmarks.harness import Measure, Table, Target
from benchmarks.sizes import Sizes

CONNECTIONS = 32
BARE = "bare handler"
CHECK = "check"
CHECK_AND_END = "check and end, per call"
BYTES = "bare handler, messages not read"
QUICK = "bare handler, JSON as quick as the product's"
ROUNDS = {"HTTP": 5, "gRPC": 3}  # gRPC takes a second to load, in every client
LEAST = 0.7  # of the bare handler's rate

# The bare handler takes the same messages apart and puts them together, and decides nothing; beside it, one that does
# not look at them, and one that does so with the product's own JSON, which is not the standard library's.
HTTP = {
    BYTES: ("bytes", "check"),
    QUICK: ("quick-messages", "check"),
    BARE: ("messages", "check"),
    CHECK: ("flows", "check"),
    CHECK_AND_END: ("flows", "pair"),
}
HANDLERS = {
    "HTTP": "an ASGI callable on the product's own listener: it reads the body, and writes an answer as long as the "
    "product's, with the json of the standard library",
    "gRPC": "one function on a server with the product's options: it reads the product's message, and answers with one "
    "that repeats its control point and the keys of its labels (25 bytes; the product's has 122)",
}
GRPC = {BYTES: ("grpc-bytes", "grpc"), BARE: ("grpc-messages", "grpc"), CHECK: ("grpc", "grpc")}


class Servers:
    """The servers of one table, each started when it is first needed."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._running: dict[str, Child] = {}

    def of(self, name: str) -> Child:
        if name not in self._running:
            self._running[name] = self._stack.enter_context(server(name, of="flows_servers"))
        return self._running[name]

    def close(self) -> None:
        self._running.clear()
        self._stack.close()


def tables(sizes: Sizes) -> Iterator[Table]:
    yield from pair("HTTP", HTTP, sizes.load)
    if find_spec("grpc"):
        yield from pair("gRPC", GRPC, sizes.load)


def pair(wire: str, rows: dict[str, tuple[str, str]], seconds: float) -> Iterator[Table]:
    """A table on the wall, and one of CPU in the same runs."""
    servers, kept = Servers(), Kept()

    def case(name: str) -> Measure:
        run, how = rows[name]

        def measure() -> float:
            used, wall = load(servers.of(run), how, seconds)
            kept.note(name, used)
            return wall

        return measure

    target = Target(CHECK, round(1 / LEAST, 2), (BARE,))
    yield Table(
        title=f"Flows: {wire}, time per check",
        unit="µs per call on the wall, the inverse of the rate",
        cases={name: case(name) for name in rows},
        base=BARE,
        targets=[target],
        notes=[
            f"{CONNECTIONS} calls at once, {seconds:g} s each, a quota that never refuses; {LEAST:g}× the rate is "
            f"{1 / LEAST:.2f}× the time. The bare handler is {HANDLERS[wire]}. It finds no route, lets in whoever "
            "asks, validates nothing and keeps nothing."
        ],
        at_most=ROUNDS[wire],
        done=servers.close,
    )
    yield Table(
        title=f"Flows: {wire}, CPU per check, in the runs of the table above",
        unit="CPU µs per call, of the server's process",
        cases={name: kept.again(name) for name in rows},
        base=BARE,
        targets=[target],
        at_most=ROUNDS[wire],
    )


def load(child: Child, how: str, seconds: float) -> tuple[float, float]:
    """Put a server under load, after a while to warm up; tell its CPU and the time per call, in µs."""
    client("flows_load", how, child.port, seconds / 4, CONNECTIONS)
    used = cpu_time(child.process)
    calls, took = client("flows_load", how, child.port, seconds, CONNECTIONS)
    used = cpu_time(child.process) - used
    return used / calls * 1e6, took / calls * 1e6
