"""Cancellation at every await of the door: no slot is lost, no coroutine forgotten, the books balance (P4)."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from fairlead import Dag, Scheduler, WaitedTooLong
from fairlead.errors import Refused
from fairlead.testing import run_virtual
from tests.doors.rig import (
    Busy,
    Injected,
    at_every_step,
    balanced,
    cancelled_at,
    others,
    ticks,
    usable,
)
from tests.doors.test_submit import closed
from tests.sizes import REPEATS

SLOTS = 2


async def work():
    await asyncio.sleep(0)
    await asyncio.sleep(1)
    return "done"


async def submit_function(scheduler):
    return await scheduler.submit(50, work)


async def submit_coroutine(scheduler):
    coroutine = work()
    try:
        return await scheduler.submit(50, coroutine)
    finally:
        assert closed(coroutine)


async def submit_awaitable(scheduler):
    return await scheduler.submit(50, asyncio.ensure_future(asyncio.sleep(0)))


async def submit_normal(scheduler):
    return await scheduler.submit_normal(work)


async def submit_through_a_view(scheduler):
    return await scheduler.bind(tenant="a", timeout=30).submit(50, work)


async def turn(scheduler):
    async with scheduler.turn():
        await work()


async def turn_with_timeout(scheduler):
    async with scheduler.turn(timeout=30):
        await work()


async def turn_that_expires(scheduler):
    with pytest.raises(WaitedTooLong):
        async with scheduler.turn(timeout=0.001):
            await work()
    await asyncio.sleep(0)


async def nested(scheduler):
    async with scheduler.turn():
        return await scheduler.submit(50, work)


async def spawn(scheduler):
    return await scheduler.spawn(50, work)


async def gathered(scheduler):
    return await asyncio.gather(*(scheduler.spawn(50, work) for _ in range(4)))


async def dag(scheduler):
    graph = Dag()
    graph.add("a", work)
    graph.add("b", work)
    graph.add("c", work, after=["a", "b"])
    return await graph.run(scheduler)


async def whole_life(scheduler):
    async with scheduler:
        scheduler.spawn(50, work)
        return await scheduler.submit(50, work)


async def drain(scheduler):
    for _ in range(4):
        scheduler.spawn(50, work)
    await scheduler.shutdown()


async def drain_in_time(scheduler):
    for _ in range(4):
        scheduler.spawn(50, work)
    with pytest.raises(WaitedTooLong):
        await scheduler.shutdown(timeout=0.5)


async def abort(scheduler):
    for _ in range(4):
        scheduler.spawn(50, work)
    await scheduler.shutdown("abort")


ASKED: list[Callable[[Scheduler], Coroutine[Any, Any, Any]]] = [
    submit_function,
    submit_coroutine,
    submit_awaitable,
    submit_normal,
    submit_through_a_view,
    turn,
    turn_with_timeout,
    nested,
    spawn,
    gathered,
    dag,
]
CLOSING: list[Callable[[Scheduler], Coroutine[Any, Any, Any]]] = [
    whole_life,
    drain,
    drain_in_time,
    abort,
]
BUSY = pytest.mark.parametrize("busy", [0, SLOTS], ids=["slot free", "all slots busy"])


async def settled(scheduler, busy, reusable=True):
    """Let everything end and check that nothing was lost."""
    if busy is not None:
        await busy.release()
    await asyncio.sleep(100)
    assert balanced(scheduler.stats())
    assert not scheduler._gate.blocked
    if reusable:
        assert await usable(scheduler, SLOTS)
        await scheduler.shutdown()
    assert not others()


@BUSY
@pytest.mark.parametrize("ask", [*ASKED, turn_that_expires], ids=lambda ask: ask.__name__)
def test_at_every_suspension(ask, busy):
    """The exception is thrown as the coroutine suspends, and, in a second pass, as it is resumed: just granted."""
    if ask is turn_that_expires and not busy:
        busy = SLOTS

    async def main():
        async def scenario(step, resumed):
            scheduler = Scheduler.bounded(max_concurrency=SLOTS)
            holder = Busy(scheduler, busy) if busy else None
            await ticks(2)
            if holder is not None:  # it is to be granted a slot in due time
                asyncio.get_running_loop().call_later(1, holder.opened.set)
            with pytest.raises((asyncio.CancelledError, Injected)) as caught:
                await cancelled_at(ask(scheduler), step, resumed)
            reached = caught.type is asyncio.CancelledError
            await settled(scheduler, holder)
            return reached

        return await at_every_step(scenario)

    assert run_virtual(main()) >= 2


@BUSY
@pytest.mark.parametrize("ask", ASKED, ids=lambda ask: ask.__name__)
def test_at_every_step_of_the_loop(ask, busy):
    """The task is cancelled from outside after 0, 1, 2, … steps of the loop, the holders released at one of them."""

    async def main():
        loop = asyncio.get_running_loop()
        for released_after in (0, 2, 5) if busy else (0,):
            for step in range(12):
                scheduler = Scheduler.bounded(max_concurrency=SLOTS)
                holder = Busy(scheduler, busy) if busy else None
                await ticks(2)
                task = loop.create_task(ask(scheduler))
                # Its first step is taken: before, none of our code has run.
                await asyncio.sleep(0)
                for at in range(step):
                    if holder is not None and at == released_after:
                        holder.opened.set()
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                await settled(scheduler, holder)

    run_virtual(main())


@BUSY
@pytest.mark.parametrize("ask", CLOSING, ids=lambda ask: ask.__name__)
def test_shutdown_cancelled_at_every_suspension(ask, busy):
    async def main():
        async def scenario(step, resumed):
            scheduler = Scheduler.bounded(max_concurrency=SLOTS)
            holder = Busy(scheduler, busy) if busy else None
            await ticks(2)
            if holder is not None:
                asyncio.get_running_loop().call_later(0.25, holder.opened.set)
            with pytest.raises((asyncio.CancelledError, Injected, Refused)) as caught:
                await cancelled_at(ask(scheduler), step, resumed)
            await settled(scheduler, holder, reusable=False)
            await scheduler.shutdown()
            assert balanced(scheduler.stats())
            return caught.type is asyncio.CancelledError

        return await at_every_step(scenario)

    assert run_virtual(main()) >= 1


@pytest.mark.parametrize("granted", [False, True], ids=["waiting", "just granted"])
@pytest.mark.parametrize("verb", ["submit", "turn", "spawn"])
def test_a_cancelled_waiter_is_withdrawn_and_the_next_one_runs(verb, granted):
    async def main():
        async with Scheduler.bounded(max_concurrency=1) as scheduler:
            busy = Busy(scheduler)
            await ticks()
            coroutine = work()
            waiter: Any
            if verb == "submit":
                waiter = asyncio.create_task(scheduler.submit(80, coroutine))
            elif verb == "spawn":
                waiter = scheduler.spawn(80, coroutine)
            else:
                coroutine.close()
                waiter = asyncio.create_task(turn(scheduler))
            await ticks(2)
            following = scheduler.spawn(20, int)
            assert scheduler.stats().queued_count == 2
            if granted:
                busy.opened.set()
                while scheduler.stats().queued_count == 2:  # until the step in which it is granted
                    await ticks(1)
            waiter.cancel()
            if not granted:
                await ticks(2)
                assert scheduler.stats().queued_count == 1
                busy.opened.set()
            assert await following == 0
            with pytest.raises(asyncio.CancelledError):
                await waiter
            assert closed(coroutine)
            stats = scheduler.stats()
            # A worker begins what it is granted in the same step: that was cancelled while running.
            assert stats.total_cancelled == (0 if verb == "spawn" and granted else 1)
            assert balanced(stats)
            assert asyncio.get_running_loop().time() == 0
            assert await usable(scheduler, 1)

    run_virtual(main())


@pytest.mark.parametrize("verb", ["submit", "turn"])
def test_cancelled_while_running_counts_as_completed(verb):
    async def main():
        async with Scheduler.bounded(max_concurrency=1) as scheduler:
            ask = submit_function if verb == "submit" else turn
            running = asyncio.create_task(ask(scheduler))
            await ticks(3)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            stats = scheduler.stats()
            assert (stats.total_completed, stats.total_cancelled, stats.total_failed) == (1, 0, 0)
            assert balanced(stats)
            assert await usable(scheduler, 1)

    run_virtual(main())


def test_cancelled_as_it_expires():
    """Expiry, grant and cancellation in one instant: one end, counted once."""

    async def main():
        for order in range(6):
            async with Scheduler.bounded(max_concurrency=1) as scheduler:
                busy = Busy(scheduler)
                loop = asyncio.get_running_loop()
                task = loop.create_task(turn_with_timeout(scheduler))
                await ticks(2)
                deeds: list[Callable[[], Any]] = [busy.opened.set, task.cancel, lambda: None]
                at = loop.time() + 30
                for deed in deeds[order % 3 :] + deeds[: order % 3]:
                    loop.call_at(at - (0.0 if order < 3 else 1e-9), deed)
                await asyncio.wait([task])
                await busy.release()
                assert balanced(scheduler.stats())
                assert await usable(scheduler, 1)

    run_virtual(main())


async def storm(scheduler, count, seed):
    """Ask in every way, cancel at random moments, let some fail; return when all have ended."""
    dice = random.Random(seed)
    loop = asyncio.get_running_loop()

    async def task_work(kind):
        if kind == 0:
            return
        if kind == 1:
            await asyncio.sleep(0)
        elif kind == 2:
            await asyncio.sleep(dice.random())
        elif kind == 3:
            raise KeyError
        else:
            try:
                await asyncio.sleep(5)
            finally:
                await asyncio.sleep(0)

    async def take_turn(priority, kind, timeout):
        async with scheduler.turn(priority, timeout=timeout):
            await task_work(kind)

    live: list[asyncio.Future[Any]] = []
    asked: list[asyncio.Future[Any]] = []
    for number in range(count):
        verb, kind, priority = dice.randrange(5), dice.randrange(5), dice.randrange(101)
        future: asyncio.Future[Any]
        if verb == 0:
            future = loop.create_task(scheduler.submit(priority, task_work, kind))
        elif verb == 1:
            timeout = dice.choice([None, dice.random()])
            future = loop.create_task(take_turn(priority, kind, timeout))
        elif verb == 2:
            future = scheduler.spawn(priority, task_work(kind))
        else:
            future = scheduler.spawn(priority, task_work, kind)
        asked.append(future)
        live.append(future)
        if dice.random() < 0.3:
            await asyncio.sleep(0 if dice.random() < 0.9 else dice.random() / 4)
        # Most are cancelled, a few steps after they were asked for.
        while len(live) > dice.randrange(1, 40):
            future = live.pop(dice.randrange(len(live)))
            if dice.random() < 0.9:
                future.cancel()
        if number % 997 == 0:
            scheduler.resize(dice.randrange(1, 9))
    scheduler.resize(4)
    await asyncio.wait(asked)
    await ticks()
    for future in asked:
        if not future.cancelled():
            future.exception()
    return sum(1 for future in asked if future.cancelled())


@pytest.mark.parametrize("count", [3_000, 115_000 * REPEATS])
def test_a_storm_of_cancellations(count):
    async def main():
        async with Scheduler.bounded(max_concurrency=4) as scheduler:
            cancelled = await storm(scheduler, count, seed=count)
            stats = scheduler.stats()
            assert balanced(stats)
            # Tasks cancelled before their first step have not come to the door at all.
            assert stats.total_submitted > count * 0.7
            assert cancelled >= min(100_000, count * 0.8)
            assert stats.total_cancelled > count * 0.2
            assert not scheduler._gate.blocked
            assert await usable(scheduler, 4)
        assert not others()

    run_virtual(main())
