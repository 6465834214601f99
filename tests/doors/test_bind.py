"""bind, policy= and capacity=: every policy and every capacity is usable at this door."""

import asyncio
from typing import Any

import pytest

from fairlead import (
    FIFO,
    Both,
    Classes,
    ConfigError,
    FairQueue,
    InFlight,
    Level,
    Misuse,
    Planner,
    Policy,
    Pools,
    QueueFull,
    Reserved,
    Scheduler,
    Slots,
    TokenBucket,
    WaitedTooLong,
)
from fairlead.errors import NeverFits
from fairlead.testing import run_virtual
from tests.doors.rig import Busy, Journal, balanced, ticks, usable

FIELDS: dict[str, Any] = {
    "tenant": "acme",
    "workload": "bulk",
    "cost": 2.5,
    "rank": 1,
    "pool": "gpu",
    "estimate": 3.0,
}


class Noting(Policy):
    """First come, first served; remember the tickets."""

    def __init__(self):
        self.seen = []

    def key(self, ticket):
        self.seen.append(ticket)
        return ticket.seq


def test_every_field_reaches_the_ticket_by_every_verb():
    async def main():
        policy = Noting()
        async with Scheduler.bounded(1, policy=policy) as scheduler:
            await asyncio.sleep(7)
            busy = Busy(scheduler)
            view = scheduler.bind(**FIELDS, deadline="10s", timeout=20)

            async def hold():
                async with view.turn(30):
                    pass

            view.spawn(10, int)
            tasks = [asyncio.create_task(view.submit(20, int)), asyncio.create_task(hold())]
            tasks.append(asyncio.create_task(view.submit_normal(int)))
            await ticks(2)
            assert [ticket.priority for ticket in policy.seen] == [10, 20, 30, 50]
            for ticket in policy.seen:
                for name, value in FIELDS.items():
                    assert getattr(ticket, name) == value
                assert ticket.deadline == 17
                assert ticket.wait_until == 27
                assert ticket.arrived_at == 7
            await busy.release()
            await asyncio.gather(*tasks)

    run_virtual(main())


def test_views_add_up_and_leave_each_other_and_the_scheduler_alone():
    async def main():
        policy = Noting()
        async with Scheduler.bounded(1, policy=policy) as scheduler:
            busy = Busy(scheduler)
            acme = scheduler.bind(tenant="acme", cost=2)
            bulk = acme.bind(workload="bulk", cost=3)
            for asked in (scheduler, acme, bulk):
                asked.spawn(50, int)
            found = [(ticket.tenant, ticket.workload, ticket.cost) for ticket in policy.seen]
            assert found == [(None, None, 1), ("acme", None, 2), ("acme", "bulk", 3)]
            assert acme.stats() == scheduler.stats()
            await busy.release()

    run_virtual(main())


def test_a_turns_own_timeout_replaces_the_views():
    async def main():
        async with Scheduler.bounded(1) as scheduler:
            busy = Busy(scheduler)
            with pytest.raises(WaitedTooLong):
                async with scheduler.bind(timeout=100).turn(timeout=2):
                    pass
            assert asyncio.get_running_loop().time() == 2
            await busy.release()

    run_virtual(main())


def test_a_bound_timeout_bounds_the_wait_of_submit_and_spawn():
    async def main():
        async with Scheduler.bounded(1) as scheduler:
            busy = Busy(scheduler)
            view = scheduler.bind(timeout="3s")
            spawned = view.spawn(50, int)
            with pytest.raises(WaitedTooLong, match="within 3 s"):
                await view.submit(50, int)
            with pytest.raises(WaitedTooLong):
                await spawned
            assert asyncio.get_running_loop().time() == 3
            await busy.release()
            await view.submit(50, asyncio.sleep, 10)  # the wait, not the work
            stats = scheduler.stats()
            assert stats.total_expired == 2
            assert balanced(stats)

    run_virtual(main())


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"cost": 0}, "cost"),
        ({"cost": -1}, "cost"),
        ({"cost": float("nan")}, "cost"),
        ({"cost": float("inf")}, "cost"),
        ({"cost": True}, "cost"),
        ({"cost": "1"}, "cost"),
        ({"timeout": "5"}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"deadline": "soon"}, "deadline"),
        ({"estimate": float("nan")}, "estimate"),
        ({"rank": -1}, "rank"),
        ({"rank": 1.0}, "rank"),
        ({"tenant": []}, "tenant"),
        ({"workload": {}}, "workload"),
        ({"pool": set()}, "pool"),
        ({"priority": 5}, "priority"),
        ({"tenants": "a"}, "tenants"),
    ],
    ids=repr,
)
def test_a_bad_field_is_refused_at_bind(fields, named):
    with pytest.raises(ConfigError, match=named):
        Scheduler.bounded(1).bind(**fields)


def test_fair_queue_shares_by_weight_between_tenants():
    async def main():
        served = Journal()
        policy = FairQueue("tenant", weights={"gold": 3, "free": 1})
        async with Scheduler.bounded(1, policy=policy) as scheduler:
            busy = Busy(scheduler.bind(tenant="other"))
            gold, free = scheduler.bind(tenant="gold"), scheduler.bind(tenant="free")
            for _ in range(40):
                free.spawn(100, served.note, "free")  # the priority is not asked
            for _ in range(40):
                gold.spawn(0, served.note, "gold")
            await busy.release()
        return served

    served = run_virtual(main())
    assert len(served) == 80
    for cut in range(4, 52, 4):
        assert abs(served[:cut].count("gold") - cut * 3 / 4) <= 1


def test_fair_queue_counts_costs():
    async def main():
        served = Journal()
        async with Scheduler.bounded(1, policy=FairQueue("tenant")) as scheduler:
            busy = Busy(scheduler.bind(tenant="other"))
            big = scheduler.bind(tenant="big", cost=4)
            small = scheduler.bind(tenant="small", cost=1)
            for _ in range(40):
                big.spawn(50, served.note, "big")
                small.spawn(50, served.note, "small")
            await busy.release()
        return served[:25]

    assert run_virtual(main()).count("small") == 20


def test_classes_go_by_rank_with_their_own_limits():
    async def main():
        served = Journal()
        policy = Classes(Level("bulk", queue_limit=2), Level("interactive", wait_limit=5.0))
        async with Scheduler.bounded(1, policy=policy) as scheduler:
            bulk = scheduler.bind(rank=policy.rank("bulk"))
            interactive = scheduler.bind(rank=policy.rank("interactive"))
            busy = Busy(bulk)
            for number in range(2):
                bulk.spawn(100, served.note, f"bulk {number}")
            with pytest.raises(QueueFull, match=r"bulk queue is full \(2/2") as caught:
                bulk.spawn(100, int)
            assert (caught.value.current, caught.value.maximum) == (2, 2)
            interactive.spawn(0, served.note, "interactive")
            with pytest.raises(ConfigError, match="rank"):
                scheduler.bind(rank=2).spawn(50, int)
            await busy.release()
            await ticks()
            busy = Busy(bulk)
            await ticks()
            with pytest.raises(WaitedTooLong):
                await interactive.submit(50, int)
            assert asyncio.get_running_loop().time() == 5
            await busy.release()
            assert balanced(scheduler.stats())
        return served

    assert run_virtual(main()) == ["interactive", "bulk 0", "bulk 1"]


def test_a_starved_class_is_promoted_and_counted():
    async def main():
        served = Journal()
        policy = Classes(Level("bulk", starvation=10.0), Level("interactive"), budget=4)
        async with Scheduler.bounded(1, policy=policy) as scheduler:
            bulk, interactive = scheduler.bind(rank=0), scheduler.bind(rank=1)
            busy = Busy(interactive)
            for _ in range(30):
                bulk.spawn(50, served.note, "bulk")
            await asyncio.sleep(11)
            for _ in range(30):
                interactive.spawn(50, served.note, "interactive")
            await busy.release()
            await asyncio.wait_for(interactive.spawn(50, int), 60)
            assert scheduler.stats().starvation_promotions >= 5
        return served[:24]

    assert run_virtual(main()).count("bulk") == 6  # one in four (P7)


def test_a_planner_sorts_by_deadline():
    async def main():
        served = Journal()
        policy = Planner(lambda waiting, now: sorted(waiting, key=lambda ticket: ticket.deadline))
        async with Scheduler.bounded(1, policy=policy) as scheduler:
            busy = Busy(scheduler)
            for deadline in (30, 10, 20):
                scheduler.bind(deadline=deadline).spawn(50, served.note, deadline)
            scheduler.spawn(100, served.note, "none")
            await busy.release()
        return served

    assert run_virtual(main()) == [10, 20, 30, "none"]


def test_nested_policies():
    async def main():
        served = Journal()
        policy = Classes(
            Level("bulk", inside=lambda: FairQueue("tenant", inside=FIFO)), Level("interactive")
        )
        async with Scheduler.bounded(1, policy=policy) as scheduler:
            busy = Busy(scheduler.bind(rank=1))
            for tenant in "aaab":
                scheduler.bind(rank=0, tenant=tenant).spawn(50, served.note, tenant)
            scheduler.bind(rank=1).spawn(50, served.note, "first")
            await busy.release()
        return served

    assert run_virtual(main())[:3] in (["first", "a", "b"], ["first", "b", "a"])


class TestCapacities:
    def test_a_token_bucket_starts_work_at_its_rate(self):
        async def main():
            loop = asyncio.get_running_loop()
            async with Scheduler.bounded(capacity=TokenBucket(2.0, burst=2)) as scheduler:
                futures = [scheduler.spawn(50, loop.time) for _ in range(6)]
                return await asyncio.gather(*futures)

        assert run_virtual(main()) == pytest.approx([0, 0, 0.5, 1, 1.5, 2])

    def test_a_token_bucket_serves_submit_and_turn_too(self):
        async def main():
            loop = asyncio.get_running_loop()
            async with Scheduler.bounded(capacity=TokenBucket(1.0, burst=1)) as scheduler:
                await scheduler.submit(50, int)
                assert await scheduler.submit(50, loop.time) == pytest.approx(1)
                async with scheduler.turn():
                    assert loop.time() == pytest.approx(2)
                with pytest.raises(WaitedTooLong):
                    async with scheduler.turn(timeout=0.5):
                        pass
                return loop.time()

        assert run_virtual(main()) == pytest.approx(2.5)

    def test_what_can_never_fit_is_refused(self):
        async def main():
            async with Scheduler.bounded(capacity=TokenBucket(1.0, burst=5)) as scheduler:
                with pytest.raises(NeverFits) as caught:
                    scheduler.bind(cost=6).spawn(50, int)
                assert caught.value.status_hint == 422
                assert scheduler.stats().total_refused == 1
                assert balanced(scheduler.stats())

        run_virtual(main())

    def test_in_flight_weighs_costs_per_tenant(self):
        async def main():
            capacity = InFlight(3, by=lambda ticket: ticket.tenant)
            async with Scheduler.bounded(capacity=capacity) as scheduler:
                big = scheduler.bind(tenant="a", cost=2)
                busy = Busy(big, 2)
                other = Busy(scheduler.bind(tenant="b", cost=2), 1)
                stats = scheduler.stats()
                assert (stats.active_count, stats.queued_count) == (2, 1)
                assert await scheduler.bind(tenant="c").submit(50, int) == 0
                await busy.release()
                await other.release()
                assert balanced(scheduler.stats())

        run_virtual(main())

    def test_pools_have_slots_each(self):
        async def main():
            async with Scheduler.bounded(capacity=Pools({"gpu": 1, "cpu": 2})) as scheduler:
                gpu = Busy(scheduler.bind(pool="gpu"), 2)
                cpu = Busy(scheduler.bind(pool="cpu"), 2)
                stats = scheduler.stats()
                assert (stats.active_count, stats.queued_count) == (3, 1)
                await gpu.release()
                await cpu.release()

        run_virtual(main())

    def test_both_needs_all(self):
        async def main():
            capacity = Both(Slots(10), TokenBucket(1.0, burst=3))
            async with Scheduler.bounded(capacity=capacity) as scheduler:
                busy = Busy(scheduler, 5)
                assert scheduler.stats().active_count == 3
                await asyncio.sleep(10)
                assert scheduler.stats().active_count == 5
                await busy.release()
                assert balanced(scheduler.stats())

        run_virtual(main())

    def test_reserved_keeps_floors_free(self):
        async def main():
            policy = Classes(Level("bulk"), Level("interactive"))
            capacity = Reserved(4, floors=[0, 2], linger=60.0)
            async with Scheduler.bounded(policy=policy, capacity=capacity) as scheduler:
                bulk, interactive = scheduler.bind(rank=0), scheduler.bind(rank=1)
                await interactive.submit(50, int)  # it has shown demand
                busy = Busy(bulk, 4)
                assert scheduler.stats().active_count == 2
                assert await interactive.submit(50, int) == 0
                await busy.release()

        run_virtual(main())

    def test_resize_needs_slots(self):
        async def main():
            async with Scheduler.bounded(capacity=TokenBucket(1.0, burst=1)) as scheduler:
                with pytest.raises(Misuse, match="TokenBucket"):
                    scheduler.resize(3)
            async with Scheduler.bounded(capacity=Slots(1)) as scheduler:
                scheduler.resize(3)
                assert await usable(scheduler, 3)

        run_virtual(main())

    def test_max_concurrency_and_capacity_exclude_each_other(self):
        with pytest.raises(ConfigError, match="not both"):
            Scheduler.bounded(4, capacity=Slots(4))

    def test_a_holder_that_expires_gives_its_room_back_once(self):
        async def main():
            async with Scheduler.bounded(capacity=InFlight(1, expire_after=5.0)) as scheduler:
                lost = scheduler.spawn(50, asyncio.sleep, 20, "late")
                waiting = scheduler.spawn(50, asyncio.get_running_loop().time)
                assert await waiting == 5
                assert await lost == "late"
                assert balanced(scheduler.stats())

        run_virtual(main())


def test_a_queue_limit_goes_with_any_policy():
    async def main():
        async with Scheduler.bounded(1, 2, policy=FairQueue("tenant")) as scheduler:
            busy = Busy(scheduler)
            for tenant in "ab":
                scheduler.bind(tenant=tenant).spawn(50, int)
            with pytest.raises(QueueFull, match="2/2"):
                scheduler.bind(tenant="c").spawn(50, int)
            await busy.release()

    run_virtual(main())
