"""The tasks door against its peers: CPU per unit of work.

Two bodies: *no-op* never suspends, so that slots hardly contend; *one yield* suspends once, so that 16 run and all
others wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextvars import Context, ContextVar
from importlib.util import find_spec
from time import process_time

from benchmarks.harness import Measure, Table, Target
from benchmarks.peers import (
    LABELS,
    SEMAPHORE,
    SLOTS,
    SLOW,
    STANDARD,
    WORKERS,
    Body,
    Run,
    installed,
    missing,
    mixed,
)
from benchmarks.sizes import Sizes
from fairlead import Scheduler

LoopFactory = Callable[[], asyncio.AbstractEventLoop]
REQUEST: ContextVar[str] = ContextVar("request")

SPAWN = "fairlead spawn, priorities and aging"
SPAWN_INSIDE = "fairlead spawn, from a context with a variable"
SUBMIT = "fairlead submit, a task each"
TURN = "fairlead turn, a task each"
ITSELF = "await the function itself"
FREE_SUBMIT = "fairlead submit"


async def no_op() -> None:
    return None


async def one_yield() -> None:
    await asyncio.sleep(0)


BODIES: dict[str, Body] = {"no-op": no_op, "one yield": one_yield}


async def spawn(body: Body, n: int) -> None:
    async with Scheduler.bounded(SLOTS) as scheduler:
        await asyncio.gather(*[scheduler.spawn(mixed(i), body) for i in range(n)])


async def spawn_inside(body: Body, n: int) -> None:
    """Each unit runs in a copy of its spawner's context, as a task would; the hand-written queue loses it."""
    REQUEST.set("r1")
    await spawn(body, n)


async def submit(body: Body, n: int) -> None:
    async with Scheduler.bounded(SLOTS) as scheduler:
        await asyncio.gather(*[scheduler.submit(mixed(i), body) for i in range(n)])


async def turn(body: Body, n: int) -> None:
    async with Scheduler.bounded(SLOTS) as scheduler:

        async def one(priority: int) -> None:
            async with scheduler.turn(priority):
                await body()

        await asyncio.gather(*[one(mixed(i)) for i in range(n)])


async def submit_free(body: Body, n: int) -> None:
    async with Scheduler.bounded(SLOTS) as scheduler:
        for _ in range(n):
            await scheduler.submit(50, body)


async def turn_free(body: Body, n: int) -> None:
    async with Scheduler.bounded(SLOTS) as scheduler:
        for _ in range(n):
            async with scheduler.turn(50):
                await body()


async def semaphore_free(body: Body, n: int) -> None:
    slots = asyncio.Semaphore(SLOTS)
    for _ in range(n):
        async with slots:
            await body()


OURS: dict[str, Run] = {SPAWN: spawn, SPAWN_INSIDE: spawn_inside, SUBMIT: submit, TURN: turn}


def timed(work: Run, body: Body, n: int, loop_factory: LoopFactory | None) -> Measure:
    """A case: CPU µs per unit of work, on a loop of its own.

    Its context is empty, whatever the packages that other suites import have left in ours.
    """

    async def go() -> float:
        began = process_time()
        await work(body, n)
        return (process_time() - began) / n * 1e6

    def case() -> float:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(go(), context=Context())

    return case


def loops() -> dict[str, LoopFactory | None]:
    found: dict[str, LoopFactory | None] = {"default loop": None}
    if find_spec("uvloop") is not None:
        import uvloop

        found["uvloop"] = uvloop.new_event_loop
    return found


def tables(sizes: Sizes) -> Iterator[Table]:
    for loop_name, factory in loops().items():
        for body_name, body in BODIES.items():
            yield contended(sizes, body_name, body, loop_name, factory)
        yield free(sizes, loop_name, factory)


def contended(
    sizes: Sizes, body_name: str, body: Body, loop_name: str, factory: LoopFactory | None
) -> Table:
    cases = {name: timed(run, body, sizes.tasks, factory) for name, run in STANDARD.items()}
    packaged = []
    for name, run in installed().items():
        n = sizes.slow_tasks if name in SLOW else sizes.tasks
        label = LABELS[name] + (f" ({n:,} tasks)" if n < sizes.tasks else "")
        cases[label] = timed(run, body, n, factory)
        packaged.append(label)
    cases |= {name: timed(run, body, sizes.tasks, factory) for name, run in OURS.items()}
    targets = [
        Target(SPAWN, 0.6 if body is one_yield else 0.9, (SEMAPHORE,)),
        Target(SPAWN, 1.0, (WORKERS,)),
        Target(TURN, 1.3, (SEMAPHORE,)),
    ]
    if packaged:
        targets.append(Target(SPAWN, 1.0, tuple(packaged)))
    return Table(
        title=f"{sizes.tasks:,} tasks, {SLOTS} slots, {body_name}, {loop_name}",
        unit="CPU µs per task",
        cases=cases,
        base=SEMAPHORE,
        targets=targets,
        notes=[
            f"{', '.join(SLOW)} run {sizes.slow_tasks:,} tasks to save time, which favours them.",
            "aiolimiter bounds a rate, not concurrency: nothing ever waits there.",
            *missing(),
        ],
    )


def free(sizes: Sizes, loop_name: str, factory: LoopFactory | None) -> Table:
    runs: dict[str, Run] = {
        ITSELF: STANDARD["plain await in one task (floor)"],
        f"async with {SEMAPHORE}": semaphore_free,
        FREE_SUBMIT: submit_free,
        "fairlead turn": turn_free,
    }
    return Table(
        title=f"A slot is free: no-ops one after another in one task, {loop_name}",
        unit="CPU µs",
        cases={name: timed(run, no_op, sizes.free, factory) for name, run in runs.items()},
        base=f"async with {SEMAPHORE}",
        targets=[Target(FREE_SUBMIT, 1.3, over=ITSELF)],
    )
