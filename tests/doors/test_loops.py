"""Other event loops: the stock loop and uvloop run the same door, on real time that nothing waits for."""

import asyncio

import pytest
import uvloop

from fairlead import Dag, QueueFull, Scheduler, SelfDeadlockWarning, ShuttingDown, WaitedTooLong
from tests.doors.rig import Busy, Journal, balanced, others, ticks, usable
from tests.doors.test_cancellation import storm
from tests.doors.test_submit import double


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request):
    def run_on_it(main):
        with asyncio.Runner(loop_factory=request.param, debug=False) as runner:
            return runner.run(main)

    return run_on_it


def test_the_example_of_the_readme(run):
    async def main():
        async with Scheduler.bounded(
            max_concurrency=16, max_queue_size=0, starvation_timeout="30s"
        ) as scheduler:
            results = [
                await scheduler.submit(80, double, 1),
                await scheduler.submit(80, double(2)),
                await scheduler.submit_normal(double, 3),
                await scheduler.spawn(20, double, 4),
            ]
            async with scheduler.turn(priority=80, timeout=5.0):
                results.append(scheduler.stats().active_count)
        assert balanced(scheduler.stats())
        assert not others()
        return results

    assert run(main()) == [2, 4, 6, 8, 1]


def test_order_limits_and_refusals(run):
    async def main():
        journal = Journal()
        async with Scheduler.bounded(1, max_queue_size=3) as scheduler:
            busy = Busy(scheduler)
            for priority in (20, 50, 80):
                scheduler.spawn(priority, journal.note, priority)
            with pytest.raises(QueueFull, match="3/3"):
                scheduler.spawn(50, int)
            await busy.release()
        with pytest.raises(ShuttingDown):
            scheduler.spawn(50, int)
        return journal

    assert run(main()) == [80, 50, 20]


def test_cancellation_in_every_state(run):
    async def main():
        async with Scheduler.bounded(1) as scheduler:
            forever = asyncio.Event()
            running, queued = (scheduler.spawn(50, forever.wait) for _ in range(2))
            waiting = asyncio.create_task(scheduler.submit(50, forever.wait))
            await ticks()
            for each in (waiting, queued, running):
                each.cancel()
            await asyncio.wait([waiting, queued, running])
            await ticks()
            assert waiting.cancelled()
            assert queued.cancelled()
            assert running.cancelled()
            assert balanced(scheduler.stats())
            assert await usable(scheduler, 1)

    run(main())


def test_a_timeout_through_the_loops_timer(run):
    async def main():
        async with Scheduler.bounded(1) as scheduler:
            busy = Busy(scheduler)
            with pytest.raises(WaitedTooLong):
                async with scheduler.turn(timeout="2ms"):
                    pass
            await busy.release()
            assert balanced(scheduler.stats())

    run(main())


def test_a_timeout_and_a_task_group_inside_spawned_work(run):
    async def main():
        async with Scheduler.bounded(1) as scheduler:

            async def work():
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0):
                        await asyncio.Event().wait()
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(double(number)) for number in range(3)]
                return [task.result() for task in tasks]

            assert await scheduler.spawn(50, work) == [0, 2, 4]
            assert await usable(scheduler, 1)

    run(main())


def test_self_deadlock_and_shutdown_by_timeout(run):
    async def main():
        scheduler = Scheduler.bounded(1)

        async def outer():
            await scheduler.submit(50, int)

        outer_task = asyncio.create_task(scheduler.submit(50, outer))
        with pytest.warns(SelfDeadlockWarning):
            await ticks()
        with pytest.raises(WaitedTooLong):
            await scheduler.shutdown(timeout=0)
        with pytest.raises(ShuttingDown):
            await outer_task
        await scheduler.shutdown()
        assert balanced(scheduler.stats())
        assert not others()

    run(main())


def test_a_dag(run):
    async def main():
        dag = Dag()
        dag.add("one", lambda: 1)
        dag.add("two", double, after=["one"])
        async with Scheduler.bounded(1) as scheduler:
            return await dag.run(scheduler)

    assert run(main()) == {"one": 1, "two": 2}


def test_a_thousand_spawned(run):
    async def main():
        async with Scheduler.bounded(16) as scheduler:
            futures = [scheduler.spawn(number % 101, double, number) for number in range(1000)]
            assert await asyncio.gather(*futures) == [number * 2 for number in range(1000)]

    run(main())


def test_work_left_behind_when_the_loop_ends(run):
    scheduler = Scheduler.bounded(1)

    async def main():
        for _ in range(3):
            scheduler.spawn(50, asyncio.Event().wait)
        await ticks()

    run(main())
    assert balanced(scheduler.stats())


def test_a_storm_without_waiting(run, monkeypatch):
    """The storm of the cancellation tests, every pause of length zero."""
    sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda delay, result=None: sleep(0, result))

    async def main():
        async with Scheduler.bounded(4) as scheduler:
            await storm(scheduler, 2000, seed=7)
            assert balanced(scheduler.stats())
            assert await usable(scheduler, 4)

    run(main())
