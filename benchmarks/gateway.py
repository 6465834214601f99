"""The gateway suite: what admission costs a request, and what it does under overload.

Servers are processes of their own, a new one for every figure; load comes from another process over keep-alive
connections on loopback (wrk where it is installed, else `gateway_load`).  The CPU time is the server's alone.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from importlib.util import find_spec
from time import monotonic, sleep

from benchmarks import gateway_overload
from benchmarks.gateway_kept import Kept
from benchmarks.gateway_processes import (
    CONNECTIONS,
    PATIENCE,
    PRIORITY,
    Child,
    allow_sockets,
    find_nginx,
    get,
    held,
    load,
    nginx,
    server,
)
from benchmarks.gateway_servers import RESERVED, SLOTS
from benchmarks.harness import Measure, Table, Target
from benchmarks.sizes import Sizes

BARE = "bare ASGI app"
NO_OP = "a no-op pure ASGI middleware"
OURS = f"PriorityMiddleware, {SLOTS} slots, nobody waits"
STARLETTE = "Starlette app"
SLOWAPI = "Starlette app with slowapi"

PLAIN = "the proxy without admission"
GATEWAY = "the proxy with admission"
NGINX = "nginx proxy_pass, one process"


def generator() -> str:
    if shutil.which("wrk"):
        return "wrk, one thread"
    return "our own load generator, for want of wrk (apt-get install wrk)"


def tables(sizes: Sizes) -> Iterator[Table]:
    yield from middleware(sizes)
    yield from proxies(sizes)
    yield from gateway_overload.tables(sizes)


# What the middleware adds


def middleware(sizes: Sizes) -> Iterator[Table]:
    kept = Kept()
    waiting = f"PriorityMiddleware, {sizes.waiting:,} wait"
    cases: dict[str, Measure] = {
        BARE: partial(cpu, "bare", "", sizes.load),
        NO_OP: partial(cpu, "no-op", "", sizes.load),
        OURS: partial(cpu, "admitted", "", sizes.load),
        waiting: partial(cpu_with_waiters, sizes.waiting, sizes.load),
    }
    notes = [
        f"{CONNECTIONS} connections, {sizes.load:g} s each, {generator()}; each request carries {PRIORITY}.",
    ]
    if find_spec("slowapi") and find_spec("starlette"):
        cases[STARLETTE] = partial(cpu, "starlette", "", sizes.load)
        cases[SLOWAPI] = partial(cpu, "starlette", "slowapi", sizes.load)
    else:
        notes.append("slowapi or starlette is not installed: left out.")
    yield Table(
        title="Middleware: a whole request on uvicorn, uvloop and httptools",
        unit="CPU µs per request, of the server's process",
        cases={name: kept.keep(name, case) for name, case in cases.items()},
        base=BARE,
        notes=notes,
    )
    added = {
        "a no-op adds": kept.minus(NO_OP, BARE),
        "PriorityMiddleware adds": kept.minus(OURS, BARE),
        f"with {sizes.waiting:,} waiting it adds": kept.minus(waiting, BARE),
        "PriorityMiddleware, over the no-op": kept.minus(OURS, NO_OP),
    }
    if SLOWAPI in cases:
        added["slowapi adds to Starlette"] = kept.minus(SLOWAPI, STARLETTE)
    yield Table(
        title="Middleware: what it adds",
        unit="CPU µs per request",
        cases=added,
        targets=[
            Target("PriorityMiddleware adds", 12),
            Target(f"with {sizes.waiting:,} waiting it adds", 25),
        ],
        notes=["The differences of the table above, round by round."],
    )


def cpu(name: str, argument: str, seconds: float) -> float:
    """CPU µs per request of a server."""
    with server(name, argument) as child:
        return load(child, seconds).cpu


def cpu_with_waiters(waiting: int, seconds: float) -> float:
    """The same while bulk requests have all the slots they may have, and `waiting` more are in their queue."""
    bulk = SLOTS - RESERVED + waiting
    allow_sockets(2 * bulk)
    with server("admitted", str(waiting)) as child:
        # The first request of a class is its demand: from then on its reservation is not lent to bulk.
        get(child.port, "/", PRIORITY)
        with held(child.port, "bulk", bulk):
            wait_for_waiters(child, waiting)
            used = load(child, seconds).cpu
            wait_for_waiters(child, waiting)  # they still do
            return used


def wait_for_waiters(child: Child, waiting: int) -> None:
    until = monotonic() + PATIENCE
    while (state := json.loads(get(child.port, "/healthz")))["waiting"] != waiting:
        if monotonic() > until:
            raise RuntimeError(f"{state['waiting']} wait, not {waiting}")
        sleep(0.02)


# What admission costs a proxy


def proxies(sizes: Sizes) -> Iterator[Table]:
    kept = Kept()
    starts = {PLAIN: partial(server, "proxy"), GATEWAY: partial(server, "gateway")}
    cases: dict[str, Measure] = {
        name: partial(proxied, start, name, kept, sizes.load) for name, start in starts.items()
    }
    notes = [f"{CONNECTIONS} connections, {sizes.load:g} s each, {generator()}; access logs off."]
    if find_nginx():
        cases[NGINX] = partial(proxied, nginx, NGINX, kept, sizes.load)
    else:
        notes.append("nginx is not installed: left out (apt-get install nginx-light).")
    target = Target(GATEWAY, round(1 / 0.9, 2), (PLAIN,))
    yield Table(
        title="Proxy: time per request, one process, the same backend for all",
        unit="µs per request on the wall, the inverse of the throughput",
        cases=cases,
        base=PLAIN,
        targets=[target],
        notes=[*notes, "0.9× the throughput is 1.11× the time."],
    )
    yield Table(
        title="Proxy: CPU per request, in the runs of the table above",
        unit="CPU µs per request, of the proxy's process",
        cases={name: kept.again(f"{name}, CPU") for name in cases},
        base=PLAIN,
        targets=[target],
    )


def proxied(
    start: Callable[[str], AbstractContextManager[Child]], name: str, kept: Kept, seconds: float
) -> float:
    with server("backend") as backend, start(backend.url) as child:
        used = load(child, seconds)
        kept.note(f"{name}, CPU", used.cpu)
        return used.wall
