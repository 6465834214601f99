"""submit, submit_normal: what may be given, what comes back, and in which order it runs."""

import asyncio
import functools
from typing import Any

import pytest

from fairlead import Priority, QueueFull, Scheduler, ShuttingDown
from fairlead.errors import ConfigError
from fairlead.testing import run_virtual
from tests.doors.rig import MAKERS, Busy, Journal, balanced, ticks, usable


async def double(number, plus=0):
    await asyncio.sleep(0)
    return number * 2 + plus


class Later:
    """An awaitable that is neither a coroutine nor a future."""

    def __await__(self):
        yield from asyncio.sleep(0).__await__()
        return "later"


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
class TestWork:
    def test_a_function_with_its_arguments(self, make):
        async def main():
            async with make() as scheduler:
                return await scheduler.submit(80, double, 4, plus=1)

        assert run_virtual(main()) == 9

    def test_a_coroutine_object(self, make):
        async def main():
            async with make() as scheduler:
                return await scheduler.submit(Priority.HIGH, double(4))

        assert run_virtual(main()) == 8

    def test_other_awaitables(self, make):
        async def main():
            async with make() as scheduler:
                future = asyncio.get_running_loop().create_future()
                future.set_result("future")
                task = asyncio.create_task(double(1))
                return [await scheduler.submit(50, given) for given in (Later(), future, task)]

        assert run_virtual(main()) == ["later", "future", 2]

    def test_a_plain_function_is_called_in_the_loops_thread(self, make):
        async def main():
            async with make() as scheduler:
                return await scheduler.submit(50, asyncio.get_running_loop)

        assert run_virtual(main()) is not None

    def test_a_function_that_returns_an_awaitable(self, make):
        async def main():
            async with make() as scheduler:
                partial = functools.partial(double, 2)
                return [await scheduler.submit(50, work) for work in (partial, Later)]

        assert run_virtual(main()) == [4, "later"]

    def test_submit_normal(self, make):
        async def main():
            async with make() as scheduler:
                results = [
                    await scheduler.submit_normal(double, 3, plus=1),
                    await scheduler.submit_normal(double(3)),
                ]
                stats = scheduler.stats()
                assert (stats.high_priority_completed, stats.low_priority_completed) == (0, 0)
                return results

        assert run_virtual(main()) == [7, 6]

    def test_all_keywords_go_to_the_function(self, make):
        async def main():
            def keywords(**given):
                return given

            async with make() as scheduler:
                given = {"priority": 1, "timeout": 2, "name": 3, "work": 4, "self": 5}
                assert await scheduler.submit(50, keywords, **given) == given
                assert await scheduler.submit_normal(keywords, **given) == given

        run_virtual(main())

    def test_the_tasks_own_exception(self, make):
        class Mine(Exception):
            pass

        async def fail(error):
            raise error

        async def main():
            async with make() as scheduler:
                error = Mine("as it is")
                with pytest.raises(Mine) as caught:
                    await scheduler.submit(50, fail, error)
                assert caught.value is error
                with pytest.raises(ZeroDivisionError):
                    await scheduler.submit(50, lambda: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    await scheduler.submit(50, fail(ZeroDivisionError()))
                stats = scheduler.stats()
                assert (stats.total_completed, stats.total_failed) == (3, 3)
                assert balanced(stats)
                assert await usable(scheduler, 2)

        run_virtual(main())

    def test_normal_priority_is_the_default_of_turn(self, make):
        async def main():
            async with make() as scheduler:
                async with scheduler.turn():
                    pass
                stats = scheduler.stats()
                return (
                    stats.total_completed,
                    stats.high_priority_completed,
                    stats.low_priority_completed,
                )

        assert run_virtual(main()) == (1, 0, 0)


def test_priorities_have_their_names():
    assert [(level.name, level + 0) for level in Priority] == [
        ("CRITICAL", 100),
        ("HIGH", 80),
        ("NORMAL", 50),
        ("LOW", 20),
        ("BACKGROUND", 0),
    ]


def test_unbounded_runs_at_once_whatever_the_priority():
    async def main():
        async with Scheduler.unbounded() as scheduler:
            assert await usable(scheduler, 200)
            stats = scheduler.stats()
            assert not stats.enabled
            assert stats.max_concurrency is None
            scheduler.resize(1)  # as whoever may be bounded does; here there is no limit to change
            assert await usable(scheduler, 200)
            assert scheduler.stats().max_concurrency is None
            with pytest.raises(ConfigError, match="max_concurrency"):
                scheduler.resize(0)

    run_virtual(main())


@pytest.mark.parametrize(("slots", "tasks"), [(1, 8), (2, 10), (2, 20), (4, 50)])
def test_concurrency_is_never_exceeded_and_is_reached(slots, tasks):
    async def main():
        running = most = 0

        async def work(number):
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(number % 3)
            running -= 1
            return number

        async with Scheduler.bounded(max_concurrency=slots) as scheduler:
            results = await asyncio.gather(
                *(scheduler.submit(number % 101, work, number) for number in range(tasks))
            )
        assert results == list(range(tasks))
        assert most == slots

    run_virtual(main())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([20, 50, 80], [80, 50, 20]),
        ([10, 50, 90], [90, 50, 10]),
        ([50, 100], [100, 50]),
        ([0, 20, 50, 80, 100, 99, 1], [100, 99, 80, 50, 20, 1, 0]),
    ],
)
@pytest.mark.parametrize("verb", ["submit", "spawn", "turn"])
def test_the_highest_priority_goes_first(given, expected, verb):
    async def main():
        journal = Journal()

        async def ask(scheduler, priority):
            if verb == "submit":
                await scheduler.submit(priority, journal.note, priority)
            elif verb == "spawn":
                await scheduler.spawn(priority, journal.note, priority)
            else:
                async with scheduler.turn(priority=priority):
                    await journal.note(priority)

        async with Scheduler.bounded(max_concurrency=1) as scheduler:
            busy = Busy(scheduler)
            waiting = []
            for priority in given:
                waiting.append(asyncio.create_task(ask(scheduler, priority)))
                await ticks(2)
            await busy.release()
            await asyncio.gather(*waiting)
        assert journal == expected

    run_virtual(main())


def test_equal_priorities_run_in_submission_order():
    async def main():
        journal = Journal()
        async with Scheduler.bounded(max_concurrency=1) as scheduler:
            busy = Busy(scheduler)
            waiting = [
                asyncio.create_task(scheduler.submit(50, journal.note, number))
                for number in range(100)
            ]
            await ticks()
            await busy.release()
            await asyncio.gather(*waiting)
        assert journal == list(range(100))

    run_virtual(main())


def test_order_is_global_over_submit_spawn_turn_and_bound_views():
    async def main():
        journal = Journal()
        async with Scheduler.bounded(max_concurrency=1) as scheduler:
            busy = Busy(scheduler)
            view = scheduler.bind(tenant="a")

            async def hold(asked, priority, what):
                async with asked.turn(priority):
                    journal.append(what)

            waiting: list[Any] = []
            for step, (priority, verb) in enumerate(
                [
                    (20, "submit"),
                    (80, "spawn"),
                    (50, "turn"),
                    (80, "view.submit"),
                    (20, "view.spawn"),
                    (80, "view.turn"),
                    (50, "view.spawn"),
                    (80, "submit"),
                ]
            ):
                asked = view if verb.startswith("view") else scheduler
                if verb.endswith("submit"):
                    waiting.append(asyncio.create_task(asked.submit(priority, journal.note, step)))
                elif verb.endswith("spawn"):
                    waiting.append(asked.spawn(priority, journal.note, step))
                else:
                    waiting.append(asyncio.create_task(hold(asked, priority, step)))
                await ticks(2)
            assert scheduler.stats().queued_count == view.stats().queued_count == 8
            await busy.release()
            await asyncio.gather(*waiting)
        assert journal == [1, 3, 5, 7, 2, 6, 0, 4]

    run_virtual(main())


def test_two_executions_are_ordered_against_each_other():
    async def main():
        journal = Journal()

        async def execution(name, priority):
            await asyncio.gather(
                *(scheduler.submit(priority, journal.note, name) for _ in range(5))
            )

        async with Scheduler.bounded(max_concurrency=1) as scheduler:
            busy = Busy(scheduler)
            low = asyncio.create_task(execution("low", 20))
            high = asyncio.create_task(execution("high", 80))
            await ticks()
            await busy.release()
            await asyncio.gather(low, high)
            stats = scheduler.stats()
        assert journal == ["high"] * 5 + ["low"] * 5
        assert (stats.high_priority_completed, stats.low_priority_completed) == (5, 5)

    run_virtual(main())


def test_a_released_slot_goes_to_the_waiter_not_to_a_newcomer_of_its_rank():
    """Also if the newcomer asks in the very step that released it."""

    async def main(newcomer_priority):
        journal = Journal()
        async with Scheduler.bounded(max_concurrency=1) as scheduler:

            async def first():
                async with scheduler.turn():
                    await asyncio.sleep(1)
                return await scheduler.submit(newcomer_priority, journal.note, "newcomer")

            task = asyncio.create_task(first())
            await asyncio.sleep(0)
            waiter = asyncio.create_task(scheduler.submit(50, journal.note, "waiter"))
            await asyncio.gather(task, waiter)
        return journal

    assert run_virtual(main(50)) == ["waiter", "newcomer"]
    assert run_virtual(main(20)) == ["waiter", "newcomer"]
    # A granted slot is never taken back, not even for a higher priority.
    assert run_virtual(main(100)) == ["waiter", "newcomer"]


def test_work_that_finds_a_free_slot_never_counts_as_waiting():
    async def main():
        async with Scheduler.bounded(max_concurrency=2, max_queue_size=1) as scheduler:
            seen = []

            async def look():
                seen.append(scheduler.stats().queued_count)
                await asyncio.sleep(0)

            await scheduler.submit(50, look)
            await asyncio.gather(scheduler.spawn(50, look), scheduler.spawn(50, look))
            async with scheduler.turn():
                seen.append(scheduler.stats().queued_count)
            stats = scheduler.stats()
        assert seen == [0, 0, 0, 0]
        histogram = stats.waits["normal"]
        assert histogram.counts[0] == sum(histogram.counts) == 4
        assert histogram.total == 0.0
        assert stats.starvation_promotions == 0

    run_virtual(main())


class TestQueueFull:
    def test_waiting_work_alone_counts_and_the_error_says_how_many(self):
        async def main():
            async with Scheduler.bounded(max_concurrency=1, max_queue_size=2) as scheduler:
                busy = Busy(scheduler)
                waiting = [scheduler.spawn(50, int) for _ in range(2)]
                before = scheduler.stats()
                for ask in (
                    lambda: scheduler.submit(100, int),
                    lambda: scheduler.turn(100).__aenter__(),
                    lambda: asyncio.wait_for(scheduler.spawn(100, int), 1),
                ):
                    with pytest.raises(QueueFull) as caught:
                        await ask()
                    error = caught.value
                    assert (error.current, error.maximum, error.status_hint) == (2, 2, 429)
                    assert "2/2" in str(error)
                after = scheduler.stats()
                assert after.total_refused == before.total_refused + 3
                assert after.total_submitted == before.total_submitted == 3
                assert (after.queued_count, after.active_count) == (2, 1)
                await busy.release()
                assert await asyncio.gather(*waiting) == [0, 0]
                assert await scheduler.submit(50, int) == 0  # accepts again

        run_virtual(main())

    def test_the_message_of_three_of_three(self):
        async def main():
            async with Scheduler.bounded(1, 3) as scheduler:
                busy = Busy(scheduler)
                for _ in range(3):
                    scheduler.spawn(50, int)
                with pytest.raises(QueueFull, match="3/3"):
                    scheduler.spawn(50, int)
                await busy.release()

        run_virtual(main())

    def test_zero_is_unlimited(self):
        async def main():
            async with Scheduler.bounded(max_concurrency=1, max_queue_size=0) as scheduler:
                busy = Busy(scheduler)
                for _ in range(2000):
                    scheduler.spawn(50, int)
                assert scheduler.stats().queued_count == 2000
                await busy.release()
            assert scheduler.stats().total_completed == 2001

        run_virtual(main())

    def test_the_check_is_atomic_with_the_insert(self):
        async def main():
            async with Scheduler.bounded(max_concurrency=1, max_queue_size=10) as scheduler:
                assert await most_waiting(scheduler) == (10, 89)

        run_virtual(main())

    def test_a_withdrawn_waiter_makes_room(self):
        async def main():
            async with Scheduler.bounded(max_concurrency=1, max_queue_size=1) as scheduler:
                busy = Busy(scheduler)
                first = scheduler.spawn(50, int)
                first.cancel()
                second = scheduler.spawn(50, int)
                with pytest.raises(QueueFull):
                    scheduler.spawn(50, int)
                await busy.release()
                assert await second == 0

        run_virtual(main())

    def test_a_refused_coroutine_object_is_closed(self):
        async def main():
            async with Scheduler.bounded(max_concurrency=1, max_queue_size=1) as scheduler:
                busy = Busy(scheduler)
                scheduler.spawn(50, int)
                for ask in (scheduler.submit, scheduler.spawn):
                    work = double(1)
                    with pytest.raises(QueueFull):
                        await ask(50, work)
                    assert closed(work)
                await busy.release()

        run_virtual(main())

    def test_overload_is_bounded_and_costs_no_goodput(self):
        """Ten times the capacity for a minute: the queue stays at its bound and no slot stands idle (P21)."""

        async def main():
            async with Scheduler.bounded(max_concurrency=4, max_queue_size=20) as scheduler:
                done = most = 0

                def count(future):
                    nonlocal done
                    done += not future.cancelled()

                loop = asyncio.get_running_loop()
                for _ in range(600):
                    for _ in range(4):
                        try:
                            scheduler.spawn(50, asyncio.sleep, 1).add_done_callback(count)
                        except QueueFull:
                            pass
                    most = max(most, scheduler.stats().queued_count)
                    await asyncio.sleep(0.1)
                assert loop.time() == pytest.approx(60)
                assert most == 20
                assert done >= 4 * 59

        run_virtual(main())


async def most_waiting(scheduler):
    """Let 100 callers submit at once; tell how many ever waited at once, and how many were refused."""
    most = refused = 0
    opened = asyncio.Event()

    async def caller():
        nonlocal refused
        try:
            await scheduler.submit(50, opened.wait)
        except QueueFull:
            refused += 1

    callers = [asyncio.create_task(caller()) for _ in range(100)]
    for _ in range(10):
        await asyncio.sleep(0)
        most = max(most, scheduler.stats().queued_count)
    opened.set()
    await asyncio.gather(*callers)
    return most, refused


def closed(work):
    return work.cr_frame is None


def test_a_hundred_and_more_callers_with_mixed_priorities():
    async def main(callers, slots):
        async with Scheduler.bounded(max_concurrency=slots) as scheduler:
            results = await asyncio.gather(
                *(scheduler.submit(number % 101, double, number) for number in range(callers))
            )
            stats = scheduler.stats()
        assert results == [number * 2 for number in range(callers)]
        tiers = [number % 101 for number in range(callers)]
        assert stats.high_priority_completed == sum(1 for tier in tiers if tier >= 75)
        assert stats.low_priority_completed == sum(1 for tier in tiers if tier < 25)
        assert stats.total_completed == callers
        assert balanced(stats)

    for callers, slots in ((100, 4), (200, 4), (1000, 16), (1000, 8)):
        run_virtual(main(callers, slots))


def test_submitting_after_shutdown_is_refused_and_closes_the_coroutine():
    async def main():
        scheduler = Scheduler.bounded(1)
        await scheduler.shutdown()
        before = scheduler.stats()
        for ask in (scheduler.submit, scheduler.spawn):
            work = double(1)
            with pytest.raises(ShuttingDown, match="shutting down") as caught:
                await ask(50, work)
            assert caught.value.status_hint == 503
            assert closed(work)
        with pytest.raises(ShuttingDown):
            async with scheduler.turn():
                pass
        after = scheduler.stats()
        assert after.total_submitted == before.total_submitted
        assert after.total_refused == 3
        assert after.shutting_down

    run_virtual(main())
