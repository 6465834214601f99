"""SharedPool: several schedulers on one gate, by weight, each with a policy, limits and books of its own."""

import asyncio
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from fairlead import (
    FIFO,
    ConfigError,
    Misuse,
    Policy,
    QueueFull,
    Scheduler,
    SharedPool,
    ShuttingDown,
    TokenBucket,
)
from fairlead.core import Recorder
from fairlead.testing import run_virtual
from tests.doors.rig import Busy, Journal, balanced, others, ticks, timers, usable


def test_members_share_the_slots():
    async def main():
        pool = SharedPool(max_concurrency=3)
        one, two = pool.scheduler(), pool.scheduler()
        busy = Busy(one, 2), Busy(two, 2)
        assert (one.stats().active_count, two.stats().active_count) == (2, 1)
        assert (one.stats().queued_count, two.stats().queued_count) == (0, 1)
        for each in busy:
            await each.release()
        assert await usable(one, 3)
        assert await usable(two, 3)

    run_virtual(main())


def test_under_load_each_gets_room_by_its_weight():
    async def main():
        pool = SharedPool(max_concurrency=1)
        heavy, light = pool.scheduler(weight=3), pool.scheduler(weight=1)
        served = Journal()
        busy = Busy(light)
        for _ in range(60):
            light.spawn(100, served.note, "light")
            heavy.spawn(0, served.note, "heavy")
        await busy.release()
        for scheduler in (heavy, light):
            await scheduler.shutdown()
        return served

    served = run_virtual(main())
    for cut in range(4, 80, 4):
        assert abs(served[:cut].count("heavy") - cut * 3 / 4) <= 2


def test_a_weight_can_be_changed():
    async def main():
        pool = SharedPool(max_concurrency=1)
        one, two = pool.scheduler(), pool.scheduler()
        served = Journal()
        busy = Busy(one)
        for _ in range(100):
            one.spawn(50, served.note, "one")
            two.spawn(50, served.note, "two")
        pool.set_weight(two, 9)
        await busy.release()
        await one.shutdown()
        await two.shutdown()
        return served[:50].count("two")

    assert run_virtual(main()) >= 43


def test_a_change_of_weight_is_recorded_in_plain_values():
    async def main():
        pool = SharedPool(max_concurrency=1, gate=Recorder)
        one, two = pool.scheduler(), pool.scheduler(weight=2)
        busy = Busy(one)
        pool.set_weight(two, 5)
        await busy.release()
        pool.set_weight(one, 3)
        recorder = pool._gate.gate
        assert isinstance(recorder, Recorder)
        return [entry[2:] for entry in recorder.entries if entry[0] == "adjust"]

    recorded = [("members", "set_weight", [2, 5]), ("members", "set_weight", [1, 3])]
    assert run_virtual(main()) == recorded


def test_a_weight_can_be_changed_where_no_loop_runs_and_not_beside_one_that_does():
    pool = SharedPool(max_concurrency=1)
    member = pool.scheduler()
    pool.set_weight(member, 2)

    async def main():
        await member.submit(50, int)
        with ThreadPoolExecutor(1) as elsewhere:
            changing = asyncio.wrap_future(elsewhere.submit(pool.set_weight, member, 3))
            with pytest.raises(Misuse, match="outside the event loop"):
                await changing

    run_virtual(main())
    pool.set_weight(member, 4)
    assert pool._members.weight_of(1) == 4


def test_members_that_were_shut_down_and_dropped_are_gone():
    async def main():
        pool = SharedPool(max_concurrency=2)

        async def used():
            async with pool.scheduler(weight=2) as member:
                await member.submit(50, int)
                await member.spawn(50, int)
                pool.set_weight(member, 3)
                return weakref.ref(member)

        dropped = [await used() for _ in range(5)]
        gc.collect()
        return [member() for member in dropped]

    assert run_virtual(main()) == [None] * 5


def test_an_idle_member_leaves_everything_to_the_other():
    async def main():
        pool = SharedPool(max_concurrency=4)
        pool.scheduler(weight=1000)
        assert await usable(pool.scheduler(), 4)

    run_virtual(main())


def test_each_keeps_to_its_own_policy():
    class LastFirst(Policy):
        def key(self, ticket):
            return -ticket.seq

    async def main():
        pool = SharedPool(max_concurrency=1)
        members = {
            "aging": pool.scheduler(),
            "fifo": pool.scheduler(policy=FIFO()),
            "last": pool.scheduler(policy=LastFirst()),
        }
        served = Journal()
        busy = Busy(members["aging"])
        for priority in (20, 80, 50):
            for name, scheduler in members.items():
                scheduler.spawn(priority, served.note, (name, priority))
        await busy.release()
        for scheduler in members.values():
            await scheduler.shutdown()
        return {name: [p for who, p in served if who == name] for name in members}

    assert run_virtual(main()) == {
        "aging": [80, 50, 20],
        "fifo": [20, 80, 50],
        "last": [50, 80, 20],
    }


def test_each_ages_at_its_own_rate():
    async def main():
        pool = SharedPool(max_concurrency=1)
        slow, fast = (
            pool.scheduler(starvation_timeout="60s"),
            pool.scheduler(starvation_timeout="30s"),
        )
        busy = Busy(slow)
        slow.spawn(0, int)
        fast.spawn(0, int)
        await asyncio.sleep(10)
        seen = slow.stats().starvation_promotions, fast.stats().starvation_promotions
        await busy.release()
        return seen

    assert run_virtual(main()) == (1, 2)


def test_each_has_its_own_limit_and_its_own_books():
    async def main():
        pool = SharedPool(max_concurrency=1)
        one, two = pool.scheduler(max_queue_size=1), pool.scheduler(max_queue_size=2)
        busy = Busy(one)
        one.spawn(50, int)
        with pytest.raises(QueueFull, match="1/1"):
            one.spawn(50, int)
        futures = [two.spawn(80, int) for _ in range(2)]
        with pytest.raises(QueueFull, match="2/2"):
            two.spawn(50, int)
        futures[0].cancel()
        await busy.release()
        await one.shutdown()
        await two.shutdown()
        stats = one.stats(), two.stats()
        assert [each.total_submitted for each in stats] == [2, 2]
        assert [each.total_refused for each in stats] == [1, 1]
        assert [each.total_cancelled for each in stats] == [0, 1]
        assert [each.high_priority_completed for each in stats] == [0, 1]
        assert all(balanced(each) for each in stats)

    run_virtual(main())


@pytest.mark.parametrize("mode", ["drain", "abort"])
def test_shutting_one_down_leaves_the_other(mode):
    async def main():
        pool = SharedPool(max_concurrency=1)
        one, two = pool.scheduler(), pool.scheduler()
        running = one.spawn(50, asyncio.sleep, 1)
        mine = one.spawn(50, asyncio.sleep, 1, "mine")
        theirs = [two.spawn(50, asyncio.sleep, 1, "theirs") for _ in range(3)]
        patient = two.bind(timeout=600).spawn(50, asyncio.sleep, 1, "patient")
        await ticks()
        await one.shutdown(mode)
        assert running.done()
        if mode == "drain":
            assert mine.result() == "mine"
        else:
            with pytest.raises(ShuttingDown):
                mine.result()
        with pytest.raises(ShuttingDown):
            one.spawn(50, int)
        assert not two.stats().shutting_down
        assert await asyncio.gather(*theirs, patient) == ["theirs"] * 3 + ["patient"]
        assert await two.submit(50, int) == 0
        await two.shutdown()
        assert balanced(one.stats())
        assert balanced(two.stats())
        assert not others()
        assert timers() == 0

    run_virtual(main())


def test_a_drain_of_one_that_takes_too_long_cancels_only_its_own():
    async def main():
        pool = SharedPool(max_concurrency=2)
        one, two = pool.scheduler(), pool.scheduler()
        mine, theirs = one.spawn(50, asyncio.sleep, 60), two.spawn(50, asyncio.sleep, 60, "theirs")
        with pytest.raises(Exception, match="had not finished"):
            await one.shutdown(timeout=1)
        assert mine.cancelled()
        assert await theirs == "theirs"
        await two.shutdown()
        assert not others()

    run_virtual(main())


def test_the_slots_belong_to_the_pool():
    async def main():
        pool = SharedPool(max_concurrency=1)
        member = pool.scheduler()
        with pytest.raises(Misuse, match="SharedPool"):
            member.resize(3)
        pool.resize(3)
        assert await usable(member, 3)
        with pytest.raises(ConfigError, match="max_concurrency"):
            pool.resize(0)

    run_virtual(main())


def test_any_capacity_can_be_shared():
    async def main():
        pool = SharedPool(capacity=TokenBucket(1.0, burst=1))
        one, two = pool.scheduler(), pool.scheduler()
        loop = asyncio.get_running_loop()
        started = await asyncio.gather(
            *(each.spawn(50, loop.time) for each in (one, two, one, two))
        )
        with pytest.raises(Misuse):
            pool.resize(2)
        return started

    assert sorted(run_virtual(main())) == pytest.approx([0, 1, 2, 3])


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf"), "2", None, True])
def test_a_bad_weight_is_refused(weight):
    pool = SharedPool(max_concurrency=1)
    with pytest.raises(ConfigError, match="weight"):
        pool.scheduler(weight=weight)
    member = pool.scheduler()
    with pytest.raises(ConfigError, match="weight"):
        pool.set_weight(member, weight)


def test_a_stranger_has_no_weight_here():
    with pytest.raises(ConfigError, match="not a member"):
        SharedPool(max_concurrency=1).set_weight(Scheduler.bounded(1), 2)


def test_members_of_one_pool_belong_to_one_loop():
    pool = SharedPool(max_concurrency=1)
    one, two = pool.scheduler(), pool.scheduler()

    async def main():
        await one.submit(50, int)

        async def foreign():
            with pytest.raises(Misuse, match="another event loop"):
                await two.submit(50, int)
            return "told"

        with ThreadPoolExecutor(1) as elsewhere:
            assert elsewhere.submit(asyncio.run, foreign()).result() == "told"

    run_virtual(main())
