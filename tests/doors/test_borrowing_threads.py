"""One pool between an event loop and threads: what the properties say of turns taken one by one, with real threads."""

import asyncio
import threading
from typing import Any

import pytest

from fairlead import Scheduler, ThreadScheduler
from fairlead.capacities import Slots
from fairlead.core import Change, State, Ticket
from fairlead.errors import ConfigError, Misuse, PolicyError
from fairlead.policies import FIFO
from fairlead.runtime import GatePool
from fairlead.testing import CheckedGate
from tests.gateway.rig import run, until


class Counted:
    """Who is inside, and how many at most."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = self.most = 0
        self.served: dict[str, int] = {}

    def __call__(self, who: str) -> None:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.served[who] = self.served.get(who, 0) + 1
        for _ in range(50):  # some work, in which threads take turns
            sum(range(50))
        with self.lock:
            self.inside -= 1


@pytest.mark.parametrize("slots", [1, 3])
def test_threads_and_a_loop_never_hold_more_than_there_is_and_nobody_is_forgotten(slots):
    async def main() -> None:
        pool = GatePool(slots)
        counted = Counted()
        loop_door = Scheduler.bounded(4, gate=pool.member("loop"))
        doors = [ThreadScheduler.bounded(4, gate=pool.borrower(name)) for name in ("one", "two")]

        def hammer(door: ThreadScheduler, name: str) -> None:
            for _ in range(40):
                door.submit(50, counted, name)

        async def work() -> None:
            counted("loop")
            await asyncio.sleep(0)

        threads = [
            asyncio.to_thread(hammer, door, name)
            for door, name in zip(doors, ("one", "two"), strict=True)
            for _ in range(4)
        ]
        await asyncio.gather(*threads, *(loop_door.submit(50, work) for _ in range(100)))
        assert counted.served == {"one": 160, "two": 160, "loop": 100}
        assert counted.most <= slots
        await until(lambda: not pool.gate.holders and not pool.gate.waiting)
        await loop_door.shutdown()
        for door in doors:
            await asyncio.to_thread(door.shutdown)

    run(main())


def test_what_waits_in_a_thread_starts_when_the_loop_gives_back():
    async def main() -> None:
        pool = GatePool(1)
        mine = Scheduler.bounded(4, gate=pool.member("mine"))
        other = ThreadScheduler.bounded(4, gate=pool.borrower("other"))
        leave = asyncio.Event()
        holding = asyncio.create_task(mine.submit(50, leave.wait))
        await until(lambda: pool.gate.active == 1)
        waiting = other.spawn(50, threading.get_ident)
        await until(lambda: pool.gate.waiting == 1)
        assert not waiting.done()
        leave.set()
        await holding
        assert await asyncio.wrap_future(waiting) != threading.get_ident()
        await mine.shutdown()
        await asyncio.to_thread(other.shutdown)

    run(main())


def test_a_pool_that_is_on_no_loop_lends_nothing():
    pool = GatePool(1)
    with pytest.raises(Misuse, match="outside the event loop"):
        ThreadScheduler.bounded(4, gate=pool.borrower("other"))
    with pytest.raises(ConfigError, match="without '/'"):
        pool.borrower("a/b")


def test_a_loop_that_has_ended_keeps_nobody_from_finishing():
    found: list[Any] = []

    async def main() -> None:
        pool = GatePool(1)
        door = ThreadScheduler.bounded(4, policy=FIFO(), gate=pool.borrower("other"))
        begun, go = threading.Event(), threading.Event()

        def hold() -> str:
            begun.set()
            go.wait(20.0)
            return "done"

        found.extend((door.spawn(50, hold), go, door))
        await asyncio.to_thread(begun.wait, 20.0)

    run(main())
    result, go, door = found
    go.set()
    assert result.result(20.0) == "done"
    door.shutdown()


def test_a_policy_that_fails_with_the_second_slot_keeps_nobody_untold_who_has_the_first():
    class Failing(FIFO):
        asked = 0

        def pick(self, admit: Any, now: float) -> Ticket | None:
            self.asked += 1
            if self.asked == 4:  # enlisted; the first starts; no slot for the second; there is one
                raise ValueError("not now")
            return super().pick(admit, now)

    async def main() -> None:
        pool = GatePool(3)
        gate = pool.borrower("jobs", wake=lambda: None, gate=CheckedGate)(Failing(), Slots(3))
        tickets = [Ticket(number) for number in range(3)]
        assert gate.enlist(tickets, 0.0) == []
        assert gate.next_wakeup(0.0) <= 0.0
        assert gate.advance(0.0) == tickets[:1]
        assert pool.gate.active == 1
        gate.finish(tickets[0], 1.0)
        assert gate.advance(1.0) == tickets[1:]
        assert pool.gate.active == 2

    run(main())


def test_a_slot_that_is_lent_to_a_late_door_whose_policy_fails_is_not_lost():
    class Failing(FIFO):
        fails = False

        def pick(self, admit: Any, now: float) -> Ticket | None:
            if self.fails:
                raise ValueError("not now")
            return super().pick(admit, now)

    async def main() -> None:
        pool = GatePool(1)
        other = pool.borrower("other", wake=lambda: None, gate=CheckedGate)(FIFO(), Slots(4))
        other.offer(held := Ticket("held"), 0.0)
        assert other.advance(0.0) == [held]
        policy = Failing()
        gate = pool.borrower("jobs", wake=lambda: None, gate=CheckedGate)(policy, Slots(4))
        first, brief = Ticket("first"), Ticket("brief")
        brief.wait_until = 5.0
        gate.enlist([first, brief], 0.0)
        policy.fails = True
        with pytest.raises(PolicyError):
            gate.adjust(Change("slots", "resize", (5,)), 2.0)
        other.finish(held, 2.0)  # its slot is lent to the jobs
        for now in (6.0, 7.0):
            with pytest.raises(PolicyError):
                gate.advance(now)
        policy.fails = False
        gate.offer(Ticket("third"), 8.0)
        await until(lambda: first in gate.advance(8.0) or first.state is State.RUNNING)
        assert pool.gate.active == 1
        gate.withdraw(gate.waiters(), 9.0)
        gate.finish(first, 9.0)
        assert not pool.gate.active
        assert not pool.gate.waiting

    run(main())


def test_the_loop_waits_for_no_thread_that_is_at_its_gate():
    async def main() -> None:
        pool = GatePool(1)
        slots = Slots(4)
        mine = Scheduler.bounded(4, gate=pool.member("mine"))
        other = ThreadScheduler.bounded(capacity=slots, gate=pool.borrower("other"))
        leave = asyncio.Event()
        holding = asyncio.create_task(mine.submit(50, leave.wait))
        await until(lambda: pool.gate.active == 1)
        waiting = other.spawn(50, threading.get_ident)
        await until(lambda: pool.gate.waiting == 1)
        at_it, go_on = threading.Event(), threading.Event()

        def be_slow() -> bool:
            with slots.thread_gate.lock:
                at_it.set()
                return go_on.wait(5.0)

        slow = asyncio.create_task(asyncio.to_thread(be_slow))
        await asyncio.to_thread(at_it.wait, 20.0)
        leave.set()
        await holding
        await until(lambda: pool.gate.active == 1 and not pool.gate.waiting)  # it is lent
        assert not waiting.done()
        go_on.set()
        assert await slow, "the loop waited until it had given up"
        assert await asyncio.wrap_future(waiting)
        await mine.shutdown()
        await asyncio.to_thread(other.shutdown)

    run(main())


def test_a_door_that_borrows_has_its_own_limit_to_read_and_to_change():
    async def main() -> None:
        pool = GatePool(8)
        door = ThreadScheduler.bounded(2, gate=pool.borrower("door"))
        assert door.stats().max_concurrency == 2
        go = threading.Event()
        held = [door.spawn(50, go.wait, 20.0) for _ in range(5)]
        await until(lambda: pool.gate.active == 2)
        await asyncio.to_thread(door.resize, 4)
        await until(lambda: pool.gate.active == 4)
        go.set()
        for one in held:
            assert await asyncio.wrap_future(one)
        await asyncio.to_thread(door.shutdown)
        await until(lambda: not pool.gate.active)

    run(main())
