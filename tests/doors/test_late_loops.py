"""A loop that was blocked: what was due meanwhile happens first, in whatever verb comes next, and is counted once."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any

import pytest

from fairlead import Classes, InFlight, Level, Scheduler, TokenBucket, WaitedTooLong
from fairlead.testing import run_virtual


def block(seconds: float) -> None:
    """Stand for code that blocks the loop: time passes and no timer fires."""
    loop: Any = asyncio.get_running_loop()
    loop._jumping.now += seconds


async def finished(scheduler: Scheduler) -> None:
    await scheduler.shutdown()
    stats = scheduler.stats()
    assert (stats.active_count, stats.queued_count) == (0, 0)
    assert stats.total_submitted == stats.total_completed + stats.total_cancelled
    assert all(min(histogram.counts) >= 0 for histogram in stats.waits.values())


@pytest.mark.parametrize("ask", ["submit", "turn", "spawn"])
def test_the_first_to_ask_a_scheduler_comes_when_its_loop_says(ask):
    async def main():
        await asyncio.sleep(1e6)  # as old as a machine may be
        scheduler = Scheduler.bounded(capacity=TokenBucket(1 / 3600, burst=1))
        took = []
        for _ in range(2):
            began = asyncio.get_running_loop().time()
            if ask == "turn":
                async with scheduler.turn():
                    pass
            else:
                await getattr(scheduler, ask)(50, int)
            took.append(asyncio.get_running_loop().time() - began)
        assert took == [0, pytest.approx(3600)]
        await finished(scheduler)

    run_virtual(main())


@pytest.mark.parametrize("ask", ["submit", "spawn"])
@pytest.mark.parametrize("by", ["its own timeout", "its class"])
def test_who_may_not_wait_at_all_is_turned_away_at_the_call(ask, by):
    async def main():
        policy = Classes(Level("hasty", wait_limit=0 if by == "its class" else inf), Level("other"))
        scheduler = Scheduler.bounded(1, policy=policy)
        gate = asyncio.Event()
        others = [scheduler.bind(rank=1).spawn(50, gate.wait) for _ in range(2)]
        bound = {"rank": 0} if by == "its class" else {"rank": 0, "timeout": 0}
        for turned_away in (1, 2):
            with pytest.raises(WaitedTooLong):
                asking = getattr(scheduler.bind(**bound), ask)(50, gate.wait)
                if ask == "submit":
                    await asking
            stats = scheduler.stats()
            assert (stats.total_submitted, stats.total_refused) == (2, turned_away)
            assert stats.queued_count == 1
        gate.set()
        await asyncio.gather(*others)
        await finished(scheduler)

    run_virtual(main())


def test_cancelling_spawned_work_that_has_expired_meanwhile_counts_it_once():
    async def main():
        scheduler = Scheduler.bounded(1)
        gate = asyncio.Event()
        running = scheduler.spawn(50, gate.wait)
        late = scheduler.bind(timeout="5ms").spawn(50, gate.wait)
        await asyncio.sleep(0)
        block(0.01)
        late.cancel()
        assert isinstance(late.exception(), WaitedTooLong)
        gate.set()
        await running
        await finished(scheduler)

    run_virtual(main())


@pytest.mark.parametrize("ask", ["submit", "turn", "spawn"])
def test_cancelling_a_waiter_whose_token_was_due_meanwhile_leaks_nothing(ask):
    async def main():
        scheduler = Scheduler.bounded(capacity=TokenBucket(100, burst=1))
        await scheduler.submit(50, asyncio.sleep, 0)

        async def in_turn():
            async with scheduler.turn():
                pass

        if ask == "spawn":
            waiting: Any = scheduler.spawn(50, asyncio.sleep, 0)
        else:
            asked = in_turn() if ask == "turn" else scheduler.submit(50, asyncio.sleep, 0)
            waiting = asyncio.create_task(asked)
        await asyncio.sleep(0)
        block(1.0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        await finished(scheduler)

    run_virtual(main())


def test_an_abort_counts_what_expired_meanwhile_once():
    async def main():
        scheduler = Scheduler.bounded(1)
        gate = asyncio.Event()
        running = scheduler.spawn(50, gate.wait)
        late = scheduler.bind(timeout="5ms").spawn(50, gate.wait)
        await asyncio.sleep(0)
        block(0.01)
        ending = asyncio.create_task(scheduler.shutdown("abort"))
        await asyncio.sleep(0)
        assert isinstance(late.exception(), WaitedTooLong)
        assert not ending.done()
        gate.set()
        await running
        await ending
        await finished(scheduler)

    run_virtual(main())


@pytest.mark.parametrize("ask", ["submit", "spawn"])
def test_a_hold_that_expires_after_the_grant_and_before_the_start_is_counted_once(ask):
    async def main():
        scheduler = Scheduler.bounded(capacity=InFlight(1, expire_after=5))
        first = scheduler.spawn(50, asyncio.sleep, 1)

        def ended(_):
            block(5)  # granted a moment ago, in the same step of the loop
            scheduler._gate._tick()

        first.add_done_callback(ended)
        if ask == "spawn":
            second: Any = scheduler.spawn(50, asyncio.sleep, 0)
        else:
            second = asyncio.create_task(scheduler.submit(50, asyncio.sleep, 0))
        await asyncio.wait([first, second])
        assert second.exception() is None if ask == "spawn" else second.exception()
        waits = scheduler.stats().waits["normal"]
        assert (waits.counts[0], sum(waits.counts), waits.total) == (1, 2, 1.0)
        await finished(scheduler)

    run_virtual(main())


@pytest.mark.parametrize("ask", ["submit", "spawn"])
def test_a_hold_that_expires_between_grant_and_start_is_counted_once(ask):
    async def main():
        scheduler = Scheduler.bounded(capacity=InFlight(1, expire_after=0.005))
        gate = asyncio.Event()
        first = scheduler.spawn(50, gate.wait)
        if ask == "spawn":
            second: Any = scheduler.spawn(50, asyncio.sleep, 0)
        else:
            second = asyncio.create_task(scheduler.submit(50, asyncio.sleep, 0))
        await asyncio.sleep(0)
        gate.set()
        block(0.02)
        await asyncio.wait([first, second])
        await finished(scheduler)

    run_virtual(main())
