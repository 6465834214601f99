"""stats: what is counted, when, and as what."""

import asyncio
import dataclasses
from bisect import bisect_left
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import InFlight, QueueFull, Scheduler
from fairlead.tasks.stats import BOUNDS, NOTED, Tally
from fairlead.testing import run_virtual
from tests.doors.rig import MAKERS, Busy, balanced, ticks
from tests.doors.test_submit import double

NAMES = (
    "active_count queued_count total_submitted total_completed high_priority_completed "
    "low_priority_completed starvation_promotions total_failed total_cancelled total_refused "
    "total_clamped"
).split()


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_at_the_start_everything_is_zero(make):
    stats = make().stats()
    assert {name: getattr(stats, name) for name in NAMES} == dict.fromkeys(NAMES, 0)
    assert stats.shutting_down is False


def test_a_snapshot_is_immutable_and_does_not_move():
    async def main():
        async with Scheduler.bounded(1) as scheduler:
            stats: Any = scheduler.stats()
            for name in (*NAMES, "shutting_down", "enabled", "waits"):
                with pytest.raises(dataclasses.FrozenInstanceError):
                    setattr(stats, name, 7)
            with pytest.raises((AttributeError, TypeError)):
                stats.made_up = 1
            with pytest.raises(TypeError):
                stats.waits["high"] = None
            await scheduler.submit(50, int)
            assert stats.total_submitted == 0
            assert sum(stats.waits["normal"].counts) == 0
            assert scheduler.stats().total_submitted == 1

    run_virtual(main())


def test_the_seeds_three_tiers():
    async def main():
        async with Scheduler.bounded(2) as scheduler:
            for priority in (50, 80, 20):
                await scheduler.submit(priority, int)
            return scheduler.stats()

    stats = run_virtual(main())
    assert (stats.total_submitted, stats.total_completed) == (3, 3)
    assert (stats.high_priority_completed, stats.low_priority_completed) == (1, 1)
    assert balanced(stats)


@pytest.mark.parametrize(
    ("priority", "high", "low"),
    [
        (100, 1, 0),
        (80, 1, 0),
        (75, 1, 0),
        (74, 0, 0),
        (50, 0, 0),
        (25, 0, 0),
        (24, 0, 1),
        (10, 0, 1),
        (0, 0, 1),
    ],
)
def test_the_boundaries_of_the_tiers(priority, high, low):
    async def main():
        async with Scheduler.bounded(1) as scheduler:
            await scheduler.submit(priority, int)
            await scheduler.spawn(priority, int)
            async with scheduler.turn(priority):
                pass
            return scheduler.stats()

    stats = run_virtual(main())
    assert (stats.high_priority_completed, stats.low_priority_completed) == (3 * high, 3 * low)


def test_tiers_go_by_the_original_priority_not_the_aged_one():
    async def main():
        async with Scheduler.bounded(1) as scheduler:
            busy = Busy(scheduler)
            waiting = scheduler.spawn(0, int)
            await asyncio.sleep(100)
            await busy.release()
            await waiting
            return scheduler.stats()

    stats = run_virtual(main())
    assert (stats.high_priority_completed, stats.low_priority_completed) == (0, 1)
    assert sum(stats.waits["low"].counts) == 1
    assert stats.waits["low"].total == 100


@pytest.mark.parametrize(
    ("given", "high", "low"), [(-10, 0, 1), (-50, 0, 1), (150, 1, 0), (200, 1, 0), (10**30, 1, 0)]
)
def test_clamped_priorities_count_as_what_they_were_clamped_to(given, high, low):
    async def main():
        async with Scheduler.bounded(1) as scheduler:
            await scheduler.submit(given, int)
            await scheduler.spawn(given, int)
            async with scheduler.turn(given):
                pass
            return scheduler.stats()

    stats = run_virtual(main())
    assert (stats.high_priority_completed, stats.low_priority_completed) == (3 * high, 3 * low)
    assert stats.total_clamped == 3


def test_clamping_keeps_the_order_and_the_ends_of_the_range_are_not_clamped():
    async def main():
        journal: list[int] = []
        async with Scheduler.bounded(1) as scheduler:
            busy = Busy(scheduler)
            for priority in (-5, 0, 100, 150):
                scheduler.spawn(priority, journal.append, priority)
            assert scheduler.stats().total_clamped == 2
            await busy.release()
        return journal

    assert run_virtual(main()) == [100, 150, -5, 0]


def test_clamping_is_logged_once_a_minute(caplog):
    async def main():
        async with Scheduler.bounded(1) as scheduler:
            for _ in range(100):
                await scheduler.submit(101, int)
            assert len(caplog.records) == 1
            await asyncio.sleep(61)
            await scheduler.submit(-1, int)

    run_virtual(main())
    assert [record.getMessage() for record in caplog.records] == [
        "priority 101 is outside 0..100 and was taken as 100",
        "priority -1 is outside 0..100 and was taken as 0",
    ]


def test_what_is_under_way_is_visible():
    async def main():
        async with Scheduler.bounded(1) as scheduler:
            busy = Busy(scheduler)
            waiting = [scheduler.spawn(50, int) for _ in range(3)]
            stats = scheduler.stats()
            assert (stats.active_count, stats.queued_count, stats.total_submitted) == (1, 3, 4)
            assert stats.total_completed == 0
            assert stats.max_concurrency == 1
            await busy.release()
            await asyncio.wait(waiting)
            assert balanced(scheduler.stats())

    run_virtual(main())


def test_each_end_is_counted_as_what_it_was():
    async def main():
        async with Scheduler.bounded(1, max_queue_size=1) as scheduler:
            await scheduler.submit(50, double, 1)  # a result
            with pytest.raises(ZeroDivisionError):
                await scheduler.submit(50, lambda: 1 / 0)  # an error
            running = scheduler.spawn(50, asyncio.sleep, 60)
            await ticks()
            queued = scheduler.spawn(50, asyncio.sleep, 60)
            with pytest.raises(QueueFull):
                scheduler.spawn(50, int)  # a refusal
            queued.cancel()  # withdrawn before it started
            running.cancel()  # cancelled while running
            await asyncio.wait([running, queued])
            await ticks()
            return scheduler.stats()

    stats = run_virtual(main())
    assert stats.total_submitted == 4
    assert stats.total_completed == 3
    assert stats.total_failed == 1
    assert stats.total_cancelled == 1
    assert stats.total_refused == 1
    assert balanced(stats)


def test_ten_failures_leak_no_slot():
    async def main():
        async with Scheduler.bounded(2) as scheduler:
            for _ in range(10):
                for ask in (scheduler.submit, scheduler.spawn):
                    with pytest.raises(ZeroDivisionError):
                        await ask(50, lambda: 1 / 0)
            assert await scheduler.submit(50, double, 2) == 4
            return scheduler.stats()

    stats = run_virtual(main())
    assert (stats.total_completed, stats.total_failed) == (21, 20)
    assert balanced(stats)


def test_waits_fall_into_their_buckets():
    async def main():
        async with Scheduler.bounded(1) as scheduler:
            busy = Busy(scheduler)
            for priority in (80, 50, 20):
                scheduler.spawn(priority, int)
            await asyncio.sleep(7)
            await busy.release()
        return scheduler.stats()

    stats = run_virtual(main())
    for tier in ("high", "normal", "low"):
        histogram = stats.waits[tier]
        index = histogram.bounds.index(10.0)
        assert histogram.counts[index] == 1
        assert histogram.total == 7.0


@given(st.lists(st.sampled_from([0.0, 0.0005, *BOUNDS, *(2 * one for one in BOUNDS)])), st.data())
def test_each_wait_is_in_the_first_bucket_that_reaches_it_however_many_are_counted_at_a_time(
    waits, data
):
    tally = Tally()
    for wait in waits:
        tally.noted.append(wait)
        if data.draw(st.booleans()):
            tally.count()
    tally.completed = len(waits) + 2  # two did not wait
    expected = [0] * (len(BOUNDS) + 1)
    for wait in [0.0, 0.0, *waits]:
        expected[bisect_left(BOUNDS, wait)] += 1
    for _ in range(2):  # to tell changes nothing
        histogram = tally.histogram(running=0)
        assert list(histogram.counts) == expected
        assert histogram.total == pytest.approx(sum(waits))


def test_no_more_waits_are_kept_one_by_one_than_a_thousand():
    async def main():
        async with Scheduler.bounded(1) as scheduler:
            for _ in range(2 * NOTED):
                scheduler.spawn(50, double, 1)
                scheduler.spawn(90, double, 1)
            kept = []
            while scheduler._core.waiting:
                await asyncio.sleep(0)
                kept += [len(tally.noted) for tally in scheduler._count.tallies]
            assert max(kept) < NOTED
        return [sum(one.counts) for one in scheduler.stats().waits.values()]

    assert run_virtual(main()) == [0, 2 * NOTED, 2 * NOTED]


@pytest.mark.parametrize("ask", ["submit", "turn", "spawn"])
def test_the_wait_of_work_whose_hold_expired_is_told_before_and_after_it_ends(ask):
    async def main():
        scheduler = Scheduler.bounded(capacity=InFlight(1, expire_after=2))

        async def in_turn():
            async with scheduler.turn(20):
                await asyncio.sleep(10)

        def asked():
            if ask == "spawn":
                return scheduler.spawn(20, asyncio.sleep, 10)
            work = in_turn() if ask == "turn" else scheduler.submit(20, asyncio.sleep, 10)
            return asyncio.create_task(work)

        def waits():
            counts = scheduler.stats().waits["low"].counts
            return counts[0], sum(counts)

        works = [asked(), asked()]
        seen = []
        for seconds in (1, 2, 2, 6, 2):  # both expire, then both end
            await asyncio.sleep(seconds)
            seen.append(waits())
        assert all(work.done() for work in works)
        assert balanced(scheduler.stats())
        return seen

    assert run_virtual(main()) == [(1, 1)] + [(1, 2)] * 4


class TestResize:
    def test_more_slots_start_what_waits_at_once(self):
        async def main():
            async with Scheduler.bounded(1) as scheduler:
                busy = Busy(scheduler, 5)
                assert scheduler.stats().active_count == 1
                scheduler.resize(3)
                stats = scheduler.stats()
                assert (stats.active_count, stats.queued_count, stats.max_concurrency) == (3, 2, 3)
                scheduler.resize(10)
                assert scheduler.stats().active_count == 5
                await busy.release()

        run_virtual(main())

    def test_fewer_slots_evict_nobody_and_the_number_only_falls(self):
        async def main():
            async with Scheduler.bounded(4) as scheduler:
                seen = []

                async def work(duration):
                    await asyncio.sleep(duration)

                for duration in (1, 2, 3, 4, 9, 9, 9):
                    scheduler.spawn(50, work, duration)
                scheduler.resize(2)
                for _ in range(5):
                    seen.append(scheduler.stats().active_count)
                    await asyncio.sleep(1.001)
                return seen

        assert run_virtual(main()) == [4, 3, 2, 2, 2]

    def test_callers_in_their_own_tasks_are_woken_too(self):
        async def main():
            async with Scheduler.bounded(1) as scheduler:
                busy = Busy(scheduler)
                waiting = asyncio.create_task(scheduler.submit(50, double, 1))
                await ticks(2)
                scheduler.resize(2)
                assert await waiting == 2
                await busy.release()

        run_virtual(main())

    def test_while_work_runs_and_shuts_down(self):
        async def main():
            scheduler = Scheduler.bounded(1)
            futures = [scheduler.spawn(50, asyncio.sleep, 1) for _ in range(4)]
            closing = asyncio.create_task(scheduler.shutdown())
            await ticks()
            scheduler.resize(4)
            await closing
            assert asyncio.get_running_loop().time() == 1
            assert all(future.done() for future in futures)

        run_virtual(main())

    def test_flapping_loses_nothing_and_keeps_the_limit_in_force(self):
        """P5: nothing starts while as many run as the limit in force allows."""

        async def main():
            running = 0
            limit = 1
            passed = []

            async def work():
                nonlocal running
                passed.append(running < limit)
                running += 1
                await asyncio.sleep(0.03)
                running -= 1

            async with Scheduler.bounded(1) as scheduler:
                futures = [scheduler.spawn(50, work) for _ in range(2000)]
                for turn in range(200):
                    # The new limit counts before what it lets in starts.
                    limit = 64 if turn % 2 else 1
                    scheduler.resize(limit)
                    await asyncio.sleep(0.05)
                limit = 64
                scheduler.resize(64)
                await asyncio.wait(futures)
            assert all(passed)
            assert len(passed) == 2000
            assert balanced(scheduler.stats())

        run_virtual(main())
