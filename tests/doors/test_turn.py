"""turn: a slot held in the caller's own task, with a bounded wait."""

import asyncio

import pytest

from fairlead import ConfigError, Misuse, Scheduler, WaitedTooLong
from fairlead.testing import run_virtual
from tests.doors.rig import MAKERS, Busy, Journal, balanced, ticks, timers, usable


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_turn_holds_a_slot_for_the_length_of_the_block(make):
    async def main():
        async with make() as scheduler:
            async with scheduler.turn(priority=80, timeout=5.0):
                assert scheduler.stats().active_count == 1
                await asyncio.sleep(60)  # the timeout bounds the wait only
                assert scheduler.stats().active_count == 1
            stats = scheduler.stats()
            assert (stats.active_count, stats.high_priority_completed) == (0, 1)
            with pytest.raises(KeyError):
                async with scheduler.turn(20):
                    raise KeyError
            stats = scheduler.stats()
            assert (stats.active_count, stats.total_failed, stats.low_priority_completed) == (
                0,
                1,
                1,
            )
            assert timers() == 0

    run_virtual(main())


@pytest.mark.parametrize("timeout", [5.0, 5, "5s", "5000ms"])
def test_the_wait_is_bounded_to_the_instant(timeout):
    async def main():
        async with Scheduler.bounded(max_concurrency=1) as scheduler:
            busy = Busy(scheduler)
            with pytest.raises(WaitedTooLong, match="within 5 s") as caught:
                async with scheduler.turn(timeout=timeout):
                    pytest.fail("there was no slot")
            assert asyncio.get_running_loop().time() == 5.0
            assert caught.value.status_hint == 408
            stats = scheduler.stats()
            assert (stats.queued_count, stats.total_cancelled, stats.total_expired) == (0, 1, 1)
            await busy.release()
            assert balanced(scheduler.stats())
            assert timers() == 0
            assert await usable(scheduler, 1)

    run_virtual(main())


def test_a_timeout_of_zero_never_waits():
    async def main():
        async with Scheduler.bounded(max_concurrency=1) as scheduler:
            async with scheduler.turn(timeout=0):
                pass
            busy = Busy(scheduler)
            with pytest.raises(WaitedTooLong):
                async with scheduler.turn(timeout=0):
                    pass
            await busy.release()
            assert balanced(scheduler.stats())

    run_virtual(main())


def test_a_slot_that_comes_at_the_last_instant_is_taken():
    async def main():
        async with Scheduler.bounded(max_concurrency=1) as scheduler:
            scheduler.spawn(50, asyncio.sleep, 4.5)
            await ticks()
            async with scheduler.turn(timeout=5):
                assert asyncio.get_running_loop().time() == 4.5
        assert timers() == 0

    run_virtual(main())


def test_one_timer_serves_however_many_wait():
    async def main():
        async with Scheduler.bounded(max_concurrency=1) as scheduler:
            busy = Busy(scheduler)
            gone = Journal()

            async def wait(timeout):
                with pytest.raises(WaitedTooLong):
                    async with scheduler.turn(timeout=timeout):
                        pass
                gone.append((timeout, asyncio.get_running_loop().time()))

            waiting = [asyncio.create_task(wait(timeout)) for timeout in range(20, 0, -1)]
            await ticks()
            assert timers() == 1
            await asyncio.gather(*waiting)
            assert gone == [(timeout, float(timeout)) for timeout in range(1, 21)]
            await busy.release()

    run_virtual(main())


def test_an_expired_waiter_lets_the_next_one_through():
    async def main():
        async with Scheduler.bounded(max_concurrency=1) as scheduler:
            busy = Busy(scheduler)

            async def wait():
                async with scheduler.turn(priority=100, timeout=1):
                    pass

            impatient = asyncio.create_task(wait())
            await ticks()
            patient = scheduler.spawn(0, int)
            with pytest.raises(WaitedTooLong):
                await impatient
            await busy.release()
            assert await patient == 0

    run_virtual(main())


def test_a_turn_is_for_one_block():
    async def main():
        async with Scheduler.bounded(max_concurrency=2) as scheduler:
            turn = scheduler.turn()
            async with turn:
                before = scheduler.stats()
                with pytest.raises(Misuse, match="entered before"):
                    await turn.__aenter__()
                assert scheduler.stats() == before
            with pytest.raises(Misuse, match="entered before"):
                await turn.__aenter__()
            assert balanced(scheduler.stats())

    run_virtual(main())


def test_a_turn_that_was_never_entered_holds_nothing():
    async def main():
        async with Scheduler.bounded(max_concurrency=1) as scheduler:
            scheduler.turn()
            assert scheduler.stats().total_submitted == 0
            assert await usable(scheduler, 1)

    run_virtual(main())


@pytest.mark.parametrize(
    "timeout", ["5", "-5s", -1, float("nan"), float("inf"), True, "٣٠s", b"5s"]
)
def test_a_bad_timeout_is_an_error_that_names_it(timeout):
    async def main():
        async with Scheduler.bounded(max_concurrency=1) as scheduler:
            before = scheduler.stats()
            with pytest.raises(ConfigError, match="timeout"):
                scheduler.turn(timeout=timeout)
            assert scheduler.stats() == before

    run_virtual(main())


def test_turns_may_nest_while_there_are_slots():
    async def main():
        async with Scheduler.bounded(max_concurrency=2) as scheduler:
            async with scheduler.turn(), scheduler.turn():
                assert scheduler.stats().active_count == 2
            assert await usable(scheduler, 2)

    run_virtual(main())


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_turn_that_is_awaited_instead_of_entered_is_a_mistake(make):
    async def main():
        async with make() as scheduler:
            turn = scheduler.turn(80)
            assert repr(turn) == "<Turn not entered>"
            with pytest.raises(Misuse, match="async with"):
                await turn
            assert scheduler.stats().queued_count == scheduler.stats().active_count == 0
            async with turn:
                assert "running" in repr(turn)

    run_virtual(main())
