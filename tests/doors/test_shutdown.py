"""Shutdown: drain, abort, a bounded drain; called twice, at once, from inside, cancelled; nothing remains."""

import asyncio

import pytest

from fairlead import (
    ConfigError,
    InFlight,
    Misuse,
    Scheduler,
    SharedPool,
    ShuttingDown,
    TokenBucket,
    WaitedTooLong,
)
from fairlead.testing import run_virtual
from tests.doors.rig import MAKERS, Busy, Journal, balanced, others, ticks, timers
from tests.doors.test_submit import closed, double


def now():
    return asyncio.get_running_loop().time()


def gone():
    """Tell that no task and no timer is left."""
    return not others() and timers() == 0


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_leaving_the_context_drains_what_waits_and_waits_for_what_runs(make):
    async def main():
        journal = Journal()

        async def work(number):
            await asyncio.sleep(1)
            journal.append(number)
            return number

        async with make() as scheduler:
            futures = [scheduler.spawn(50, work, number) for number in range(7)]
            assert not scheduler.stats().shutting_down
        assert [future.result() for future in futures] == list(range(7))
        assert sorted(journal) == list(range(7))
        assert scheduler.stats().shutting_down
        assert balanced(scheduler.stats())
        assert gone()
        with pytest.raises(ShuttingDown):
            scheduler.spawn(50, int)

    run_virtual(main())


def test_a_drain_keeps_to_the_limit_and_to_the_order():
    """Also during shutdown nothing is admitted beyond the slots (P5)."""

    async def main():
        journal = Journal()
        running = most = 0

        async def work(priority):
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(1)
            journal.append(priority)
            running -= 1

        scheduler = Scheduler.bounded(max_concurrency=2)
        busy = Busy(scheduler, 2)
        for priority in (20, 80, 50, 80):
            scheduler.spawn(priority, work, priority)
        closing = asyncio.create_task(scheduler.shutdown())
        await ticks()
        assert not closing.done()
        assert scheduler.stats().queued_count == 4
        await busy.release()
        await closing
        assert journal == [80, 80, 50, 20]
        assert most == 2
        assert now() == 2
        assert gone()

    run_virtual(main())


def test_a_drain_serves_callers_that_wait_in_their_own_tasks():
    async def main():
        scheduler = Scheduler.bounded(max_concurrency=1)
        busy = Busy(scheduler)
        submitted = asyncio.create_task(scheduler.submit(50, double, 2))
        await ticks(2)
        closing = asyncio.create_task(scheduler.shutdown())
        await ticks(2)
        with pytest.raises(ShuttingDown):
            await scheduler.submit(50, double, 2)
        await busy.release()
        assert await submitted == 4
        await closing
        assert balanced(scheduler.stats())

    run_virtual(main())


def test_abort_answers_every_waiter_and_lets_running_work_finish():
    async def main():
        scheduler = Scheduler.bounded(max_concurrency=1)
        running = scheduler.spawn(50, asyncio.sleep, 3, "finished")
        work = double(1), double(2)
        spawned = scheduler.spawn(50, work[0])
        submitted = asyncio.create_task(scheduler.submit(50, work[1]))

        async def hold():
            async with scheduler.turn():
                pytest.fail("there was no slot")

        held = asyncio.create_task(hold())
        await ticks(2)
        assert scheduler.stats().queued_count == 3
        await scheduler.shutdown(mode="abort")
        assert now() == 3
        assert running.result() == "finished"
        for waiter in (spawned, submitted, held):
            with pytest.raises(ShuttingDown):
                await waiter
        assert all(closed(given) for given in work)
        stats = scheduler.stats()
        assert (stats.total_submitted, stats.total_completed, stats.total_cancelled) == (4, 1, 3)
        assert balanced(stats)
        assert gone()

    run_virtual(main())


@pytest.mark.parametrize("timeout", [2, "2s", 2.0])
def test_when_the_timeout_of_a_drain_expires_the_rest_is_aborted(timeout):
    async def main():
        scheduler = Scheduler.bounded(max_concurrency=2)
        done = scheduler.spawn(50, asyncio.sleep, 1, "done")
        stuck = scheduler.spawn(50, asyncio.sleep, 60)
        also_stuck = scheduler.spawn(50, asyncio.sleep, 60)
        work = double(1)
        waiting = scheduler.spawn(50, work)
        with pytest.raises(WaitedTooLong, match="2 s"):
            await scheduler.shutdown(timeout=timeout)
        assert now() == 2
        assert done.result() == "done"
        assert stuck.cancelled()
        assert also_stuck.cancelled()
        with pytest.raises(ShuttingDown):
            waiting.result()
        assert closed(work)
        assert balanced(scheduler.stats())
        assert gone()
        await scheduler.shutdown()  # and now there is nothing left to wait for

    run_virtual(main())


def test_a_timeout_leaves_callers_own_tasks_to_their_callers():
    async def main():
        scheduler = Scheduler.bounded(max_concurrency=1)

        async def hold():
            async with scheduler.turn():
                await asyncio.sleep(10)
            return "finished"

        held = asyncio.create_task(hold())
        await ticks(2)
        with pytest.raises(WaitedTooLong, match="1 unit"):
            await scheduler.shutdown(timeout=1)
        assert not held.done()
        await scheduler.shutdown()
        assert now() == 10
        assert await held == "finished"
        assert gone()

    run_virtual(main())


def test_a_timeout_in_which_everything_ends_is_no_error():
    async def main():
        scheduler = Scheduler.bounded(max_concurrency=1)
        futures = [scheduler.spawn(50, asyncio.sleep, 1) for _ in range(3)]
        await scheduler.shutdown(timeout="1m")
        assert now() == 3
        assert all(future.done() for future in futures)
        assert gone()

    run_virtual(main())


def test_a_timeout_of_zero_is_enough_when_nothing_is_left():
    async def main():
        scheduler = Scheduler.bounded(max_concurrency=1)
        await scheduler.spawn(50, double, 1)
        await scheduler.shutdown(timeout=0)
        assert gone()
        await Scheduler.bounded(1).shutdown(timeout=0)

    run_virtual(main())


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_shutting_down_twice_is_once(make):
    async def main():
        scheduler = make()
        future = scheduler.spawn(50, asyncio.sleep, 1)
        await scheduler.shutdown()
        stats = scheduler.stats()
        await scheduler.shutdown()
        await scheduler.shutdown("abort")
        async with scheduler:
            pass
        assert scheduler.stats() == stats
        assert future.done()
        assert gone()

    run_virtual(main())


def test_several_shutdowns_at_once_all_return_when_the_work_has_ended():
    async def main():
        scheduler = Scheduler.bounded(max_concurrency=1)
        futures = [scheduler.spawn(50, asyncio.sleep, 1) for _ in range(3)]
        await asyncio.gather(*(scheduler.shutdown() for _ in range(5)))
        assert now() == 3
        assert all(future.done() for future in futures)
        assert gone()

    run_virtual(main())


def test_an_abort_overtakes_a_drain():
    async def main():
        scheduler = Scheduler.bounded(max_concurrency=1)
        first, second = (scheduler.spawn(50, asyncio.sleep, 5, "done") for _ in range(2))
        draining = asyncio.create_task(scheduler.shutdown())
        await ticks(2)
        await scheduler.shutdown("abort")
        await draining
        assert now() == 5
        assert first.result() == "done"
        with pytest.raises(ShuttingDown):
            second.result()

    run_virtual(main())


def slow_bucket():
    """One token, and the next in an hour: work waits though none runs."""
    return TokenBucket(1 / 3600, 1)


@pytest.mark.parametrize("how", ["abort", "timeout", "cancel"])
def test_a_drain_ends_when_another_call_aborts_what_waits_with_nothing_running(how):
    async def main():
        scheduler = Scheduler.bounded(capacity=slow_bucket())
        await scheduler.submit(50, int)
        waiting = scheduler.spawn(50, int)
        draining = asyncio.create_task(scheduler.shutdown())
        await ticks(2)
        if how == "abort":
            await scheduler.shutdown("abort")
        elif how == "timeout":
            with pytest.raises(WaitedTooLong):
                await scheduler.shutdown(timeout=1)
        else:
            other = asyncio.create_task(scheduler.shutdown())
            await ticks(2)
            other.cancel()
        await draining
        assert now() <= 1
        with pytest.raises(ShuttingDown):
            waiting.result()

    run_virtual(main())


def test_a_drain_ends_when_the_last_waiter_expires():
    async def main():
        scheduler = Scheduler.bounded(capacity=slow_bucket())
        await scheduler.submit(50, int)
        waiting = scheduler.bind(timeout=5).spawn(50, int)
        await scheduler.shutdown()
        assert now() == 5
        with pytest.raises(WaitedTooLong):
            waiting.result()
        assert gone()

    run_virtual(main())


def test_a_drain_ends_when_the_last_waiter_is_withdrawn():
    async def main():
        scheduler = Scheduler.bounded(capacity=slow_bucket())
        await scheduler.submit(50, int)
        waiting = scheduler.spawn(50, int)
        draining = asyncio.create_task(scheduler.shutdown())
        await ticks(2)
        waiting.cancel()
        await draining
        assert now() == 0
        assert gone()

    run_virtual(main())


class TestHoldsThatExpired:
    """Work whose room was taken back still runs."""

    def test_is_cancelled_when_the_timeout_of_a_drain_expires(self):
        async def main():
            scheduler = Scheduler.bounded(capacity=InFlight(1, expire_after=2))
            stuck = scheduler.spawn(50, asyncio.Event().wait)
            await asyncio.sleep(3)
            assert scheduler.stats().active_count == 0
            with pytest.raises(WaitedTooLong, match="1 unit"):
                await scheduler.shutdown(timeout=1)
            assert now() == 4
            assert stuck.cancelled()
            assert balanced(scheduler.stats())
            assert gone()

        run_virtual(main())

    def test_is_awaited_by_a_drain(self):
        async def main():
            scheduler = Scheduler.bounded(capacity=InFlight(1, expire_after=2))
            late = scheduler.spawn(50, asyncio.sleep, 5, "late")
            await scheduler.shutdown()
            assert late.result() == "late"
            assert now() == 5
            assert gone()

        run_virtual(main())

    @pytest.mark.parametrize("limit", [None, 1])
    def test_of_another_member_keeps_nobody_waiting(self, limit):
        async def main():
            pool = SharedPool(capacity=InFlight(4, expire_after=2))
            one, other = pool.scheduler(), pool.scheduler()
            theirs = other.spawn(50, asyncio.sleep, 60, "theirs")
            await one.spawn(50, double, 1)
            await asyncio.sleep(3)
            await one.shutdown(timeout=limit)
            assert now() == 3
            assert await theirs == "theirs"
            await other.shutdown()
            assert gone()

        run_virtual(main())

    def test_may_not_wait_for_itself(self):
        async def main():
            scheduler = Scheduler.bounded(capacity=InFlight(1, expire_after=2))

            async def close():
                await asyncio.sleep(3)
                with pytest.raises(Misuse, match="wait for itself"):
                    await scheduler.shutdown()

            await scheduler.spawn(50, close)
            await scheduler.shutdown()
            assert gone()

        run_virtual(main())


def test_a_timeout_leaves_the_spawned_work_of_other_members():
    async def main():
        pool = SharedPool(max_concurrency=2)
        one, other = pool.scheduler(), pool.scheduler()
        mine, theirs = (each.spawn(50, asyncio.sleep, 10, "done") for each in (one, other))
        waiting = other.spawn(50, asyncio.sleep, 20, "waited")
        with pytest.raises(WaitedTooLong, match="1 unit"):
            await one.shutdown(timeout=1)
        assert now() == 1  # though the worker that ran mine goes on with theirs
        assert mine.cancelled()
        assert (await theirs, await waiting) == ("done", "waited")
        await other.shutdown()
        assert gone()

    run_virtual(main())


class TestFromInside:
    """Work that shuts its own scheduler down would wait for itself."""

    def check(self, ask):
        async def main():
            scheduler = Scheduler.bounded(max_concurrency=2)

            async def close(*, first=False):
                if first:
                    await scheduler.submit(50, int)
                with pytest.raises(Misuse, match="wait for itself"):
                    await scheduler.shutdown()
                assert not scheduler.stats().shutting_down
                return "refused"

            assert await ask(scheduler, close) == "refused"
            assert await scheduler.submit(50, double, 1) == 2  # nothing has changed
            await scheduler.shutdown()
            assert gone()

        run_virtual(main())

    def test_submitted(self):
        self.check(lambda scheduler, close: scheduler.submit(50, close))

    def test_spawned(self):
        self.check(lambda scheduler, close: scheduler.spawn(50, close))

    def test_spawned_after_other_work(self):
        async def ask(scheduler, close):
            futures = [scheduler.spawn(50, asyncio.sleep, 0) for _ in range(6)]
            await asyncio.wait(futures)
            futures = [scheduler.spawn(50, asyncio.sleep, 0) for _ in range(6)]
            return await scheduler.spawn(50, close)

        self.check(ask)

    def test_in_a_turn(self):
        async def ask(scheduler, close):
            async with scheduler.turn():
                return await close()

        self.check(ask)

    def test_after_a_nested_submit_has_ended(self):
        self.check(lambda scheduler, close: scheduler.submit(50, close, first=True))

    def test_spawned_after_a_nested_submit_has_ended(self):
        self.check(lambda scheduler, close: scheduler.spawn(50, close, first=True))


def test_a_cancelled_shutdown_aborts_what_waits_and_keeps_nothing_from_ending():
    async def main():
        scheduler = Scheduler.bounded(max_concurrency=1)
        running = scheduler.spawn(50, asyncio.sleep, 5, "done")
        waiting = scheduler.spawn(50, double(1))
        closing = asyncio.create_task(scheduler.shutdown())
        await ticks(2)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(ShuttingDown):
            await waiting
        assert scheduler.stats().shutting_down
        await scheduler.shutdown()
        assert now() == 5
        assert running.result() == "done"
        assert balanced(scheduler.stats())
        assert gone()

    run_virtual(main())


def test_an_exception_in_the_block_is_raised_after_the_drain():
    async def main():
        with pytest.raises(KeyError):
            async with Scheduler.bounded(max_concurrency=1) as scheduler:
                futures = [scheduler.spawn(50, asyncio.sleep, 1, "done") for _ in range(2)]
                raise KeyError
        assert [future.result() for future in futures] == ["done", "done"]
        assert balanced(scheduler.stats())
        assert gone()

    run_virtual(main())


@pytest.mark.parametrize("mode", ["Drain", "", None, "now", 1, b"abort"])
def test_a_bad_mode_changes_nothing(mode):
    async def main():
        async with Scheduler.bounded(max_concurrency=1) as scheduler:
            before = scheduler.stats()
            with pytest.raises(ConfigError, match='"drain" or "abort"'):
                await scheduler.shutdown(mode)
            with pytest.raises(ConfigError, match="timeout"):
                await scheduler.shutdown(timeout="5")
            assert scheduler.stats() == before
            assert not before.shutting_down
            assert await scheduler.submit(50, double, 1) == 2

    run_virtual(main())


def test_no_timer_remains_though_waits_were_bounded():
    async def main():
        async with Scheduler.bounded(max_concurrency=1) as scheduler:
            view = scheduler.bind(timeout=600)
            for _ in range(5):
                view.spawn(50, asyncio.sleep, 1)
            await asyncio.sleep(2)
        assert now() == 5
        assert gone()

    run_virtual(main())


def test_a_scheduler_that_was_never_used_can_be_shut_down():
    async def main():
        await Scheduler.bounded(1).shutdown()
        async with Scheduler.unbounded():
            pass
        assert gone()

    run_virtual(main())
