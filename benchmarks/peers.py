"""What we are compared with: each function runs `body` n times, at most SLOTS at once, and awaits them all.

Packages are imported where they are used, so that one that is not installed costs one row, not the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from importlib.util import find_spec
from typing import Any

Body = Callable[[], Coroutine[Any, Any, object]]
Run = Callable[[Body, int], Coroutine[Any, Any, None]]
SLOTS = 16

SEMAPHORE = f"asyncio.Semaphore({SLOTS})"
WORKERS = f"PriorityQueue + {SLOTS} workers + Future"


def mixed(number: int) -> int:
    """A priority 0..100, mixed but repeatable."""
    return number * 7919 % 101


async def plain_await(body: Body, n: int) -> None:
    for _ in range(n):
        await body()


async def semaphore(body: Body, n: int) -> None:
    slots = asyncio.Semaphore(SLOTS)

    async def one() -> None:
        async with slots:
            await body()

    await asyncio.gather(*[one() for _ in range(n)])


async def workers_without_results(body: Body, n: int) -> None:
    queue: asyncio.PriorityQueue[tuple[int, int, Body | None]] = asyncio.PriorityQueue()

    async def worker() -> None:
        while (work := (await queue.get())[2]) is not None:
            await work()

    workers = [asyncio.create_task(worker()) for _ in range(SLOTS)]
    for i in range(n):
        queue.put_nowait((-mixed(i), i, body))
    for i in range(n, n + SLOTS):
        queue.put_nowait((1, i, None))
    await asyncio.gather(*workers)


async def workers_with_futures(body: Body, n: int) -> None:
    """The pattern people write by hand: priorities, bounded, the result or the error handed back."""
    queue: asyncio.PriorityQueue[tuple[int, int, Body, asyncio.Future[object]]]
    queue = asyncio.PriorityQueue()
    loop = asyncio.get_running_loop()

    async def worker() -> None:
        while True:
            _, _, work, future = await queue.get()
            try:
                future.set_result(await work())
            except Exception as error:
                future.set_exception(error)

    workers = [asyncio.create_task(worker()) for _ in range(SLOTS)]
    futures = []
    for i in range(n):
        future: asyncio.Future[object] = loop.create_future()
        futures.append(future)
        queue.put_nowait((-mixed(i), i, body, future))
    await asyncio.gather(*futures)
    for task in workers:
        task.cancel()
    await asyncio.wait(workers)


async def anyio_limiter(body: Body, n: int) -> None:
    import anyio

    slots = anyio.CapacityLimiter(SLOTS)

    async def one() -> None:
        async with slots:
            await body()

    await asyncio.gather(*[one() for _ in range(n)])


async def aiometer_run(body: Body, n: int) -> None:
    import aiometer

    await aiometer.run_all([partial(body) for _ in range(n)], max_at_once=SLOTS)


async def aiolimiter_rate(body: Body, n: int) -> None:
    """A rate that never bites; this package bounds no concurrency."""
    import aiolimiter

    rate = aiolimiter.AsyncLimiter(1e9, 1)

    async def one() -> None:
        async with rate:
            await body()

    await asyncio.gather(*[one() for _ in range(n)])


async def aiojobs_scheduler(body: Body, n: int) -> None:
    import aiojobs

    async with aiojobs.Scheduler(limit=SLOTS, pending_limit=0) as scheduler:
        jobs: list[Any] = [await scheduler.spawn(body()) for _ in range(n)]
        await asyncio.gather(*[job.wait() for job in jobs])


STANDARD: dict[str, Run] = {
    "plain await in one task (floor)": plain_await,
    SEMAPHORE: semaphore,
    f"PriorityQueue + {SLOTS} workers, no results": workers_without_results,
    WORKERS: workers_with_futures,
}
PACKAGED: dict[str, Run] = {
    "anyio": anyio_limiter,
    "aiometer": aiometer_run,
    "aiolimiter": aiolimiter_rate,
    "aiojobs": aiojobs_scheduler,
}
SLOW = ("anyio", "aiometer", "aiojobs")
LABELS = {
    "anyio": f"anyio.CapacityLimiter({SLOTS})",
    "aiometer": f"aiometer, max_at_once={SLOTS}",
    "aiolimiter": "aiolimiter, a rate that never bites",
    "aiojobs": f"aiojobs, limit={SLOTS}",
}


def installed() -> dict[str, Run]:
    """The packaged peers that are here."""
    return {name: run for name, run in PACKAGED.items() if find_spec(name) is not None}


def missing() -> list[str]:
    """A note for each packaged peer that is not."""
    return [f"{name} is not installed: left out." for name in PACKAGED if find_spec(name) is None]
