"""A pool that doors share by name: one gate, a fair queue by door, and each door's own rules inside."""

import asyncio
from functools import partial
from random import Random
from typing import Any

import pytest

from fairlead import Scheduler
from fairlead.capacities import InFlight, Reserved, Slots
from fairlead.core import Change, State, Ticket
from fairlead.errors import ConfigError, Misuse, WaitedTooLong
from fairlead.flows import FlowScheduler
from fairlead.gateway.admission import Admission
from fairlead.observe import Feed
from fairlead.policies import FIFO, Aging, Classes, FairQueue, Level
from fairlead.runtime import GatePool
from fairlead.testing import CheckedGate
from tests.gateway.rig import run, until


class Asked(Ticket):
    """A ticket that notes what it is told."""

    member: str

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self.heard: list[State] = []

    def told(self) -> None:
        self.heard.append(self.state)


def classes() -> Classes:
    levels = [
        Level(name, lambda: FairQueue("tenant"), 20, 40.0, 5.0)
        for name in ("bulk", "default", "urgent")
    ]
    return Classes(*levels, budget=3, name="classes")


def doors(pool: GatePool) -> dict[str, Any]:
    return {
        "gateway": pool.member("gateway")(classes(), Reserved(6, (0, 1, 1), linger=3.0)),
        "other": pool.member("other")(classes(), Reserved(3, (0, 0, 1), linger=0.0)),
        "tasks": pool.member("tasks", 2.0)(Aging(), Slots(4)),
        "flows": pool.member("flows")(
            FairQueue("workload"), InFlight(5, by=lambda one: one.tenant)
        ),
    }


def ticket_of(door: str, number: int, rng: Random, now: float) -> Asked:
    return Asked(
        number,
        rng.randrange(101),
        1 if door != "flows" else rng.choice((1, 2, 3)),
        rank=rng.randrange(3),
        tenant=rng.choice("abc"),
        workload=rng.choice("xy"),
        can_preempt=door == "gateway" and rng.random() < 0.3,
        evictable=door == "gateway" and rng.random() < 0.5,
        wait_until=now + rng.choice((1e9, 1e9, 2.0, 20.0)),
    )


@pytest.mark.parametrize("seed", range(30))
def test_under_random_verbs_every_promise_of_the_gate_holds(seed):
    """The checked gate asserts them after each verb; here, that each door hears of its own, and of nobody else's."""
    rng = Random(seed)
    pool = GatePool(7, gate=CheckedGate)
    members = doors(pool)
    tickets: list[Asked] = []
    now = 0.0
    for number in range(300):
        now += rng.choice((0.0, 0.0, 0.5, 1.0, 6.0))
        name = rng.choice(sorted(members))
        member = members[name]
        before = {one: one.state for one in tickets}
        heard = {one: len(one.heard) for one in tickets}
        own: list[Asked] = []
        deed = rng.random()
        if deed < 0.5:
            own = [ticket_of(name, number, rng, now)]
            tickets += own
            told = member.offer(own[0], now)
        elif deed < 0.85 and pool.gate.holders:
            chosen: Any = rng.choice(list(pool.gate.holders))
            own = [chosen]
            told = members[own[0].member].finish(own[0], now)
            name = own[0].member
        elif deed < 0.92 and member.waiters():
            own = [rng.choice(member.waiters())]
            told = member.withdraw(own, now)
        elif deed < 0.96:
            pool.runtime.clock = partial(float, now)
            pool.resize(rng.choice((0, 3, 7, 9)))
            told = []
            name = ""
        elif name == "gateway":
            told = member.adjust(Change("slots", "resize", (rng.choice((2, 6)),)), now)
        else:
            told = member.advance(now)
        assert len(pool.gate.holders) <= max(7, 9)
        for one in tickets:
            changed = one.state is not before.get(one, State.NEW)
            if changed and one not in own:
                by_return = [each is one for each in told].count(True)
                assert by_return + len(one.heard) - heard.get(one, 0) == 1
                assert by_return == (one.member == name)
    while pool.gate.waiting or pool.gate.holders:
        pool.runtime.clock = partial(float, now)
        pool.resize(7)
        members["gateway"].adjust(Change("slots", "resize", (6,)), now)
        if pool.gate.holders:
            first: Any = next(iter(pool.gate.holders))
            members[first.member].finish(first, now)
        else:
            now = max(now, pool.gate.next_wakeup(now))
            members["tasks"].advance(now)
    assert all(one.state not in (State.NEW, State.WAITING, State.RUNNING) for one in tickets)


def test_doors_share_by_weight_and_lend_what_they_do_not_use():
    pool = GatePool(4, gate=CheckedGate)
    one = pool.member("one", 3.0)(FIFO(), Slots(100))
    other = pool.member("other", 1.0)(FIFO(), Slots(100))
    running: list[Asked] = []
    counts = {"one": 0, "other": 0}
    for number in range(4):  # alone, a door has it all
        running.append(Asked(number))
        one.offer(running[-1], 0.0)
        assert running[-1].state is State.RUNNING
    waiting = [Asked(("one", number)) for number in range(100)]
    waiting += [Asked(("other", number)) for number in range(100)]
    for ticket in waiting:
        (one if ticket.key[0] == "one" else other).offer(ticket, 0.0)  # type: ignore[index]
    for step in range(80):
        first: Any = next(iter(pool.gate.holders))
        (one if first.member == "one" else other).finish(first, float(step))
        for ticket in waiting:
            if ticket.state is State.RUNNING:
                counts[ticket.member] += 1
                waiting.remove(ticket)
                break
    assert counts == {"one": 60, "other": 20}


def test_a_door_that_is_full_keeps_nobody_else_out():
    pool = GatePool(9, gate=CheckedGate)
    small = pool.member("small")(FIFO(), Slots(1))
    large = pool.member("large")(FIFO(), Slots(100))
    mine = [Asked(number) for number in range(5)]
    for ticket in mine:
        small.offer(ticket, 0.0)
    theirs = [Asked(number) for number in range(7)]
    for ticket in theirs:
        large.offer(ticket, 0.0)
    assert [one.state for one in mine] == [State.RUNNING, *[State.WAITING] * 4]
    assert all(one.state is State.RUNNING for one in theirs)
    assert small.waiting == 4
    assert (small.active, large.active) == (1, 7)
    assert "1 slots are in use" in small.explain(mine[1], 0.0).text


def test_a_name_is_for_one_gate_as_long_as_it_has_tickets():
    pool = GatePool(2, name="gpu")
    make = pool.member("api")
    gate = make(FIFO(), Slots(1))
    ticket = Asked(1)
    gate.offer(ticket, 0.0)
    with pytest.raises(ConfigError, match="api has tickets in gpu"):
        make(FIFO(), Slots(1))
    with pytest.raises(ConfigError, match="without '/'"):
        pool.member("a/b")
    with pytest.raises(Misuse, match="needs a new start"):
        gate.surrender()
    gate.finish(ticket, 1.0)
    again = make(FIFO(), Slots(1))
    assert again is not gate
    assert again is pool.members["api"]  # type: ignore[comparison-overlap]  # a Gate that is a Member


GATEWAY = {
    "capacity": 8,
    "priority_scheduler": {
        "enabled": True,
        "default_max_class": "interactive",
        "classes": {
            name: {"reserved_floor": 0, "reserved_per_slot": 0}
            for name in ("interactive", "default")
        }
        | {"system": {"reserved_floor": 0}},
    },
}
POINT = {"control_points": {"checkout": {"concurrency": {"max_concurrency": 6}}}}


def test_a_gateway_flows_and_tasks_share_one_pool():
    async def main():
        feed = Feed()
        watched = feed.gate("pools/gpu", lambda ticket: ticket.member)  # type: ignore[attr-defined]
        pool = GatePool(4, gate=watched)
        scheduler = Scheduler.bounded(16, gate=pool.member("tasks"))
        admission = Admission(GATEWAY, lambda name: pool.member(f"gateway {name}"))
        flows = FlowScheduler.from_config(POINT, lambda name: pool.member(f"flows {name}"))
        assert sorted(pool.members) == ["flows checkout", "gateway default", "tasks"]
        release = asyncio.Event()
        busy: list[str] = []
        most = 0

        def enter(who: str) -> None:
            nonlocal most
            busy.append(who)
            most = max(most, len(busy))

        async def work(who: str) -> None:
            enter(who)
            await release.wait()
            busy.remove(who)

        async def flow() -> None:
            async with flows.flow("checkout") as given:
                assert given.accepted
                await work("flows")

        async def request() -> None:
            from fairlead.gateway.middleware import PriorityMiddleware

            async def app(scope: Any, receive: Any, send: Any) -> None:
                await work("gateway")
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b""})

            scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "headers": []}
            scope |= {"client": None, "http_version": "1.1"}

            async def receive() -> Any:
                await asyncio.Event().wait()

            async def send(message: Any) -> None:
                pass

            await PriorityMiddleware(app, admission)(scope, receive, send)

        asked = [
            asyncio.create_task(one)
            for _ in range(6)
            for one in (scheduler.submit(50, work, "tasks"), flow(), request())
        ]
        await until(lambda: pool.gate.waiting == 14)
        assert len(busy) == 4
        assert set(busy) == {"tasks", "flows", "gateway"}
        release.set()
        await asyncio.gather(*asked)
        assert most == 4
        assert not pool.gate.holders
        standing = feed.channels["pools/gpu"].totals()
        assert (standing["admitted"], standing["completed"]) == (18, 18)
        await scheduler.shutdown()
        await flows.close()

    run(main())


def test_the_pool_keeps_time_for_all():
    """What waits at one door expires in time though only another door has done anything since."""

    async def main():
        pool = GatePool(1)
        one = Scheduler.bounded(4, gate=pool.member("one"))
        other = Scheduler.bounded(4, gate=pool.member("other"))
        leave = asyncio.Event()
        running = asyncio.create_task(one.submit(50, leave.wait))
        await until(lambda: pool.gate.active == 1)

        async def wait() -> None:
            async with other.turn(priority=50, timeout=0.05):
                raise AssertionError("there was no room")

        with pytest.raises(WaitedTooLong):
            await wait()
        leave.set()
        await running
        await one.shutdown()
        await other.shutdown()

    run(main())
