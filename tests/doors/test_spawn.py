"""spawn: queued without a task of its own, run by resident workers, answered by a future."""

import asyncio
import contextlib
import contextvars
import gc
from typing import Any

import pytest

from fairlead import QueueFull, Scheduler, SharedPool, ShuttingDown
from fairlead.tasks.work import TURN
from fairlead.testing import run_virtual
from tests.doors.rig import MAKERS, Busy, Journal, balanced, others, ticks, usable
from tests.doors.test_submit import Later, closed, double

current = contextvars.ContextVar("current", default="nobody")


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
class TestWork:
    def test_what_may_be_given(self, make):
        async def main():
            async with make() as scheduler:
                future = asyncio.get_running_loop().create_future()
                future.set_result("future")
                spawned = [
                    scheduler.spawn(80, double, 4, plus=1),
                    scheduler.spawn(80, double(4)),
                    scheduler.spawn(80, pow, 2, 5),
                    scheduler.spawn(80, lambda: double(1)),
                ]
                assert all(isinstance(answer, asyncio.Future) for answer in spawned)
                return await asyncio.gather(*spawned)

        assert run_virtual(main()) == [9, 8, 32, 2]

    def test_other_awaitables(self, make):
        async def main():
            async with make() as scheduler:
                future = asyncio.get_running_loop().create_future()
                future.set_result("future")
                return await asyncio.gather(
                    *(scheduler.spawn(50, given) for given in (Later(), future))
                )

        assert run_virtual(main()) == ["later", "future"]

    def test_all_keywords_go_to_the_function(self, make):
        async def main():
            async def keywords(**given):
                return given

            async with make() as scheduler:
                given = {"priority": 1, "timeout": 2, "name": 3, "work": 4, "self": 5}
                return await scheduler.spawn(50, keywords, **given) == given

        assert run_virtual(main())

    def test_the_works_own_exception(self, make):
        async def fail(error):
            await asyncio.sleep(0)
            raise error

        async def main():
            async with make() as scheduler:
                error = KeyError("as it is")
                future = scheduler.spawn(50, fail, error)
                with pytest.raises(KeyError) as caught:
                    await future
                assert caught.value is error
                assert scheduler.stats().total_failed == 1
                assert await usable(scheduler, 2)

        run_virtual(main())


def test_queued_work_has_no_task_of_its_own():
    async def main():
        async with Scheduler.bounded(max_concurrency=2) as scheduler:
            busy = Busy(scheduler, 2)
            await ticks()
            tasks = others()
            queued = [scheduler.spawn(50, double, number) for number in range(1000)]
            await ticks()
            assert others() == tasks
            assert len(tasks) <= 2
            await busy.release()
            assert await asyncio.gather(*queued) == [number * 2 for number in range(1000)]

    run_virtual(main())


def test_refusals_are_raised_at_the_call():
    async def main():
        scheduler = Scheduler.bounded(max_concurrency=1, max_queue_size=1)
        busy = Busy(scheduler)
        scheduler.spawn(50, int)
        with pytest.raises(QueueFull):
            scheduler.spawn(50, int)
        await busy.release()
        await scheduler.shutdown()
        with pytest.raises(ShuttingDown):
            scheduler.spawn(50, int)

    run_virtual(main())


class TestCancel:
    def test_while_queued_withdraws(self):
        async def main():
            async with Scheduler.bounded(max_concurrency=1) as scheduler:
                busy = Busy(scheduler)
                work = double(1)
                by_object, by_function = scheduler.spawn(50, work), scheduler.spawn(50, pytest.fail)
                assert scheduler.stats().queued_count == 2
                assert by_object.cancel()
                assert by_function.cancel()
                assert by_object.cancelled()
                assert by_function.cancelled()
                assert closed(work)
                stats = scheduler.stats()
                assert (stats.queued_count, stats.total_cancelled) == (0, 2)
                assert not by_object.cancel()  # once is enough
                assert scheduler.stats() == stats
                await busy.release()
                assert balanced(scheduler.stats())

        run_virtual(main())

    def test_just_granted_never_begins(self):
        async def main():
            async with Scheduler.bounded(max_concurrency=1) as scheduler:
                work = double(1)
                future = scheduler.spawn(50, work)
                assert scheduler.stats().active_count == 1
                assert future.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await future
                await ticks()
                assert closed(work)
                assert scheduler.stats().total_cancelled == 1
                assert balanced(scheduler.stats())
                assert await usable(scheduler, 1)

        run_virtual(main())

    def test_while_running_cancels_the_work(self):
        async def main():
            async with Scheduler.bounded(max_concurrency=1) as scheduler:
                told = []

                async def work():
                    try:
                        await asyncio.sleep(60)
                    except asyncio.CancelledError as cancelled:
                        told.append(cancelled.args)
                        raise

                future = scheduler.spawn(50, work)
                waiting = scheduler.spawn(50, double, 1)
                await ticks()
                assert future.cancel("enough")
                with pytest.raises(asyncio.CancelledError):
                    await future
                assert future.cancelled()
                assert told == [("enough",)]
                assert await waiting == 2
                stats = scheduler.stats()
                assert (stats.total_completed, stats.total_failed, stats.total_cancelled) == (
                    2,
                    0,
                    0,
                )
                assert asyncio.get_running_loop().time() == 0

        run_virtual(main())

    def test_work_may_clean_up_and_holds_its_slot_until_it_has(self):
        async def main():
            async with Scheduler.bounded(max_concurrency=1) as scheduler:
                journal = Journal()

                async def work():
                    try:
                        await asyncio.sleep(60)
                    finally:
                        await asyncio.sleep(3)
                        journal.append("clean")

                future = scheduler.spawn(50, work)
                waiting = scheduler.spawn(50, journal.note, "next")
                await ticks()
                future.cancel()
                assert not future.done()
                await waiting
                assert journal == ["clean", "next"]
                assert future.cancelled()

        run_virtual(main())

    def test_work_may_decline(self):
        async def main():
            async with Scheduler.bounded(max_concurrency=1) as scheduler:

                async def stubborn():
                    try:
                        await asyncio.sleep(60)
                    except asyncio.CancelledError:
                        return "no"

                future = scheduler.spawn(50, stubborn)
                following = scheduler.spawn(50, double, 1)
                await ticks()
                future.cancel()
                assert await future == "no"
                assert await following == 2  # the cancellation did not stay with the worker
                assert await usable(scheduler, 1)

        run_virtual(main())

    def test_a_cancellation_that_comes_too_late_hits_nobody(self):
        async def main():
            async with Scheduler.bounded(max_concurrency=1) as scheduler:
                loop = asyncio.get_running_loop()
                woken = loop.create_future()

                async def work():
                    await woken
                    future.cancel()  # in its last step
                    return "done"

                future = scheduler.spawn(50, work)
                following = scheduler.spawn(50, double, 1)
                await ticks()
                woken.set_result(None)
                assert await following == 2
                assert future.done()
                assert balanced(scheduler.stats())

        run_virtual(main())

    def test_the_one_who_awaits_the_future_may_be_cancelled(self):
        async def main():
            async with Scheduler.bounded(max_concurrency=1) as scheduler:

                async def caller():
                    await scheduler.spawn(50, asyncio.sleep, 60)

                running, queued = asyncio.create_task(caller()), asyncio.create_task(caller())
                await ticks()
                queued.cancel()
                await ticks()
                assert scheduler.stats().queued_count == 0
                running.cancel()
                await asyncio.wait([running, queued])
                await ticks()
                assert running.cancelled()
                assert queued.cancelled()
                assert balanced(scheduler.stats())
                assert await usable(scheduler, 1)

        run_virtual(main())

    def test_wait_for_and_gather_treat_the_future_as_any_other(self):
        async def main():
            async with Scheduler.bounded(max_concurrency=2) as scheduler:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(scheduler.spawn(50, asyncio.sleep, 60), 1)
                assert asyncio.get_running_loop().time() == 1
                future = scheduler.spawn(50, asyncio.sleep, 5, "shielded")
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(future), 1)
                assert await future == "shielded"
                assert balanced(scheduler.stats())

        run_virtual(main())

    def test_work_that_cancels_itself_ends_cancelled_and_the_worker_lives(self):
        async def main():
            async with Scheduler.bounded(max_concurrency=1) as scheduler:

                async def give_up():
                    raise asyncio.CancelledError

                future, following = scheduler.spawn(50, give_up), scheduler.spawn(50, double, 1)
                with pytest.raises(asyncio.CancelledError):
                    await future
                assert await following == 2
                assert scheduler.stats().total_completed == 2

        run_virtual(main())


def own_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def cancel_self():
    """Cancel one's own task and wait for it to happen."""
    own_task().cancel()
    await asyncio.sleep(60)


async def cancel_self_and_decline():
    try:
        await cancel_self()
    except asyncio.CancelledError:
        return "declined"


async def cancel_self_at_the_end():
    own_task().cancel()
    return "at the end"


async def cancel_and_take_it_back():
    own_task().cancel()
    own_task().uncancel()
    return "taken back"


async def end_cancelled():
    raise asyncio.CancelledError


class Finalizer:
    """Does something as it goes."""

    def __init__(self, deed):
        self.deed = deed

    def __del__(self):
        self.deed()


def test_what_an_ended_unit_leaves_behind_may_cancel_the_next():
    """It goes before the next one is granted its slot: that one is withdrawn, and nobody else is hurt."""

    async def main():
        async with Scheduler.bounded(max_concurrency=1) as scheduler:
            ran: list[int] = []
            told: list[bool] = []
            spawned: list[asyncio.Future[Any]] = []
            leaves = Finalizer(lambda: told.append(spawned[1].cancel()))

            def first(leaves_behind):
                pass

            spawned.append(scheduler.spawn(50, first, leaves))
            del leaves
            spawned += [scheduler.spawn(50, ran.append, number) for number in (2, 3, 4)]
            await asyncio.wait(spawned)
            assert told == [True]
            assert ran == [3, 4]
            assert [future.cancelled() for future in spawned[1:]] == [True, False, False]
            await ticks()
            assert balanced(scheduler.stats())
            assert scheduler._core.late == 0

    run_virtual(main())


class TestWorkThatCancelsItsOwnTask:
    """Its task is a worker's, which others need."""

    @pytest.mark.parametrize(
        "first",
        [
            [cancel_self],
            [cancel_self, end_cancelled],
            [cancel_self_and_decline],
            [cancel_self_and_decline, end_cancelled],
            [cancel_self_at_the_end],
            [cancel_self_at_the_end, end_cancelled],
            [cancel_and_take_it_back],
            [cancel_and_take_it_back, cancel_self],
        ],
    )
    def test_ends_alone(self, first):
        async def main():
            async with Scheduler.bounded(max_concurrency=1) as scheduler:
                ended = [scheduler.spawn(50, work) for work in first]
                waiting = [scheduler.spawn(50, double, number) for number in range(3)]
                assert await asyncio.gather(*waiting) == [0, 2, 4]
                await asyncio.wait(ended)
                stats = scheduler.stats()
                assert (stats.total_completed, stats.total_cancelled) == (len(first) + 3, 0)
                return [None if each.cancelled() else each.result() for each in ended]

        answers = {
            cancel_self: None,
            end_cancelled: None,
            cancel_self_and_decline: "declined",
            cancel_self_at_the_end: "at the end",
            cancel_and_take_it_back: "taken back",
        }
        assert run_virtual(main()) == [answers[work] for work in first]

    def test_takes_nothing_from_other_members_of_a_pool(self):
        async def main():
            pool = SharedPool(max_concurrency=1)
            async with pool.scheduler() as one, pool.scheduler() as other:
                one.spawn(50, cancel_self)
                return await asyncio.gather(*(other.spawn(50, double, each) for each in range(3)))

        assert run_virtual(main()) == [0, 2, 4]

    def test_beside_a_timeout_of_its_own(self):
        async def main():
            async with Scheduler.bounded(max_concurrency=1) as scheduler:

                async def work():
                    with contextlib.suppress(asyncio.CancelledError):
                        await cancel_self()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(1):
                            await asyncio.sleep(60)
                    raise asyncio.CancelledError

                scheduler.spawn(50, work)
                return await scheduler.spawn(50, double, 1)

        assert run_virtual(main()) == 2

    def test_and_a_loop_that_ends_still_takes_everything_with_it(self):
        ran = Journal()
        scheduler = Scheduler.bounded(max_concurrency=1)

        async def work():
            await cancel_self_and_decline()
            await asyncio.sleep(60)

        async def main():
            scheduler.spawn(50, work)
            for number in range(3):
                scheduler.spawn(50, ran.note, number)
            await ticks()

        run_virtual(main())
        assert not ran
        assert balanced(scheduler.stats())

    def test_or_is_cancelled_by_others_while_its_loop_ends_too(self):
        ran = Journal()
        scheduler = Scheduler.bounded(max_concurrency=1)

        async def main():
            asked = scheduler.spawn(50, asyncio.sleep, 60)
            scheduler.spawn(50, ran.note, "next")
            await ticks()
            asked.cancel()

        run_virtual(main())
        assert not ran
        assert balanced(scheduler.stats())


def test_a_loop_that_ends_while_a_worker_lets_others_in_takes_queued_work_with_it():
    scheduler = Scheduler.bounded(max_concurrency=1)
    done: list[int] = []

    async def main():
        for number in range(3 * TURN):
            scheduler.spawn(50, done.append, number)
        await ticks(1)

    run_virtual(main())
    assert 0 < len(done) < 3 * TURN
    assert balanced(scheduler.stats())


class TestContext:
    def test_the_spawners_variables_are_seen_as_they_were_at_the_call(self):
        async def main():
            async with Scheduler.bounded(max_concurrency=1) as scheduler:

                async def read():
                    await asyncio.sleep(0)
                    return current.get()

                spawned = []
                for name in ("a", "b", "c"):
                    current.set(name)
                    spawned.append(scheduler.spawn(50, read))
                    spawned.append(scheduler.spawn(50, read()))
                    spawned.append(scheduler.spawn(50, current.get))
                current.set("later")
                return await asyncio.gather(*spawned)

        assert run_virtual(main()) == ["a"] * 3 + ["b"] * 3 + ["c"] * 3

    def test_what_work_sets_reaches_nobody_else(self):
        async def main():
            async with Scheduler.bounded(max_concurrency=1) as scheduler:

                async def change(name):
                    before = current.get()
                    current.set(name)
                    await asyncio.sleep(0)
                    assert current.get() == name
                    return before

                spawned = [scheduler.spawn(50, change, name) for name in ("a", "b", "c")]
                spawned.append(scheduler.spawn(50, current.set, "d"))
                spawned.append(scheduler.spawn(50, current.get))
                *befores, _, last = await asyncio.gather(*spawned)
                assert befores == ["nobody"] * 3
                assert last == current.get() == "nobody"

        run_virtual(main())

    def test_work_from_an_empty_context_sees_nothing_of_the_work_before_it(self):
        async def main():
            async with Scheduler.bounded(max_concurrency=1) as scheduler:
                current.set("first")
                first = scheduler.spawn(50, current.get)
                bare = contextvars.Context().run(scheduler.spawn, 50, current.get)
                last = scheduler.spawn(50, current.get)
                return await asyncio.gather(first, bare, last)

        assert run_virtual(main()) == ["first", "nobody", "first"]

    def test_nor_of_cancelled_work_whose_worker_had_yet_to_begin(self):
        async def main():
            async with Scheduler.bounded(max_concurrency=1) as scheduler:
                current.set("cancelled")
                first = scheduler.spawn(50, current.get)
                bare = contextvars.Context().run(scheduler.spawn, 50, current.get)
                first.cancel()
                return await bare

        assert run_virtual(main()) == "nobody"

    def test_tasks_made_inside_inherit_the_context(self):
        async def main():
            async with Scheduler.bounded(max_concurrency=1) as scheduler:

                async def child():
                    return current.get()

                async def work():
                    current.set("inside")
                    return await asyncio.create_task(child())

                return await scheduler.spawn(50, work)

        assert run_virtual(main()) == "inside"


class TestInside:
    """What work may do, it may do when spawned."""

    def test_a_timeout(self):
        async def main():
            async with Scheduler.bounded(max_concurrency=1) as scheduler:

                async def work():
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(1):
                            await asyncio.sleep(60)
                    await asyncio.sleep(1)
                    return "in time"

                future, following = scheduler.spawn(50, work), scheduler.spawn(50, double, 1)
                assert await future == "in time"
                assert await following == 2
                assert asyncio.get_running_loop().time() == 2

        run_virtual(main())

    def test_a_task_group_that_fails(self):
        async def main():
            async with Scheduler.bounded(max_concurrency=1) as scheduler:

                async def fail():
                    await asyncio.sleep(1)
                    raise KeyError

                async def work():
                    async with asyncio.TaskGroup() as group:
                        group.create_task(asyncio.sleep(60))
                        group.create_task(fail())

                future, following = scheduler.spawn(50, work), scheduler.spawn(50, double, 1)
                with pytest.raises(ExceptionGroup):
                    await future
                assert await following == 2
                assert asyncio.get_running_loop().time() == 1

        run_virtual(main())

    def test_a_task_group_that_is_cancelled_from_outside(self):
        async def main():
            async with Scheduler.bounded(max_concurrency=1) as scheduler:
                ended = []

                async def child():
                    try:
                        await asyncio.sleep(60)
                    finally:
                        ended.append(True)

                async def work():
                    async with asyncio.TaskGroup() as group:
                        group.create_task(child())
                        group.create_task(child())

                future, following = scheduler.spawn(50, work), scheduler.spawn(50, double, 1)
                await ticks()
                future.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await future
                assert ended == [True, True]
                assert await following == 2

        run_virtual(main())

    def test_more_spawning(self):
        async def main():
            async with Scheduler.bounded(max_concurrency=1) as scheduler:

                async def parent():
                    return scheduler.spawn(50, double, 1)

                return await (await scheduler.spawn(50, parent))

        assert run_virtual(main()) == 2


class TestHardEnds:
    @pytest.mark.parametrize("spawned", [True, False])
    def test_stop_iteration_is_an_error_like_another(self, spawned):
        async def main():
            async with Scheduler.bounded(max_concurrency=1) as scheduler:

                def stop():
                    raise StopIteration(1)

                async def stop_async():
                    raise StopIteration(1)

                for work in (stop, stop_async):
                    ask = scheduler.spawn if spawned else scheduler.submit
                    with pytest.raises(RuntimeError, match="StopIteration"):
                        await ask(50, work)
                assert balanced(scheduler.stats())
                assert scheduler.stats().total_failed == 2
                assert await usable(scheduler, 1)

        run_virtual(main())

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
    def test_an_interrupt_stops_the_loop_and_no_slot_is_lost(self, error):
        """As with any task it leaves `run`; what was queued runs if the loop goes on."""

        def interrupt():
            raise error

        async def main():
            futures.append(scheduler.spawn(50, interrupt))
            futures.append(scheduler.spawn(50, double, 1))
            await asyncio.sleep(60)

        async def go_on():
            assert await futures[1] == 2
            assert isinstance(futures[0].exception(), error)
            assert await usable(scheduler, 1)
            await scheduler.shutdown()
            return scheduler.stats()

        futures: list[asyncio.Future[Any]] = []
        scheduler = Scheduler.bounded(max_concurrency=1)
        loop = asyncio.new_event_loop()
        task = loop.create_task(main())
        with pytest.raises(error):
            loop.run_until_complete(task)
        assert balanced(loop.run_until_complete(go_on()))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)
        loop.close()

    def test_a_worker_that_is_cancelled_before_it_begins_keeps_no_slot(self):
        async def main():
            async with Scheduler.bounded(1) as scheduler:
                granted = scheduler.spawn(50, double, 4)
                queued = scheduler.spawn(50, double, 5)
                for task in others():
                    task.cancel()
                ended = await asyncio.gather(granted, queued, return_exceptions=True)
                assert [type(error) for error in ended] == [asyncio.CancelledError] * 2
                assert await scheduler.submit(50, double, 6) == 12
                return scheduler.stats()

        assert balanced(run_virtual(main()))

    def test_a_loop_that_ends_takes_running_and_queued_work_with_it(self):
        works = [double(number) for number in range(3)]
        scheduler = Scheduler.bounded(max_concurrency=1)

        async def main():
            scheduler.spawn(50, asyncio.sleep, 60)
            for work in works:
                scheduler.spawn(50, work)
            await ticks()

        run_virtual(main())
        gc.collect()
        assert all(closed(work) for work in works)
        assert balanced(scheduler.stats())

    def test_an_exception_nobody_asks_for_is_reported(self):
        async def main():
            reported = []
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
            async with Scheduler.bounded(max_concurrency=1) as scheduler:
                scheduler.spawn(50, lambda: 1 / 0)
                await ticks()
                gc.collect()
            assert [type(error) for error in reported] == [ZeroDivisionError]

        run_virtual(main())


def test_work_that_never_waits_lets_others_in():
    """Workers hand work over without a trip through the loop, but not without end."""

    async def main():
        async with Scheduler.bounded(max_concurrency=1) as scheduler:
            done = 0

            def work():
                nonlocal done
                done += 1

            for _ in range(10_000):
                scheduler.spawn(50, work)
            gaps = []
            last = 0
            while done < 10_000:
                await asyncio.sleep(0)
                gaps.append(done - last)
                last = done
            return max(gaps)

    assert run_virtual(main()) <= 200


def test_workers_end_when_there_is_nothing_to_do():
    async def main():
        scheduler = Scheduler.bounded(max_concurrency=4)
        await asyncio.gather(*(scheduler.spawn(50, double, 1) for _ in range(20)))
        await ticks()
        assert not others()
        assert await scheduler.spawn(50, double, 2) == 4

    run_virtual(main())


def test_explain_says_why_spawned_work_waits():
    async def main():
        async with Scheduler.bounded(max_concurrency=1) as scheduler:
            busy = Busy(scheduler)
            waiting = scheduler.spawn(20, int)
            assert "all 1 slots are in use" in str(scheduler.explain(waiting))
            await busy.release()

    run_virtual(main())
