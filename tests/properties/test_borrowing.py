"""Doors that borrow slots of a pool, against a small model, in every order in which threads could take turns.

The loop of the pool is a list here: what is posted to it waits until the test lets it run, and meanwhile the doors go
on.  A verb of a door is one step, as it is under the door's own lock; so is a call on the loop.
"""

from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from random import Random
from typing import Any

import pytest

from fairlead.capacities import Both, Slots
from fairlead.capacities.borrowed import Borrowing, Lent
from fairlead.capacities.groups import Groups
from fairlead.capacities.inflight import InFlight
from fairlead.core import Change, Outcome, State, Ticket
from fairlead.policies import FIFO, FairQueue
from fairlead.runtime import GatePool
from fairlead.runtime.borrowing import BorrowingGate
from fairlead.runtime.lending import Account
from fairlead.testing import CheckedGate

RUNNING, WAITING = State.RUNNING, State.WAITING


class Loop:
    """A loop that moves when it is told to."""

    def __init__(self) -> None:
        self.calls: deque[Callable[[], None]] = deque()
        self.seconds = 0.0

    def call_soon(self, deed: Callable[[], None]) -> None:
        self.calls.append(deed)

    call_soon_threadsafe = call_soon

    def call_at(self, when: float, deed: Callable[[], None]) -> Any:
        raise AssertionError("nothing here ends by itself")

    def is_closed(self) -> bool:
        return False

    def time(self) -> float:
        return self.seconds


class Asked(Ticket):
    """A ticket of the door that is on the pool's own loop."""

    member: str

    def told(self) -> None:
        pass


class World:
    """A pool, two doors that borrow and one that does not."""

    def __init__(self, slots: int, weights: tuple[float, ...] = (1.0, 1.0, 1.0)) -> None:
        self.loop = Loop()
        self.pool = GatePool(slots, gate=CheckedGate)
        self.pool.runtime.loop = self.loop  # type: ignore[assignment]
        self.pool.runtime.clock = self.loop.time
        self.roused: dict[str, None] = {}
        self.limit = slots
        self.makes: dict[str, Any] = {}
        self.doors: dict[str, Any] = {
            "tasks": self.pool.member("tasks", weights[0])(FIFO(), Slots(3))
        }
        for name, weight in zip(("jobs", "streams"), weights[1:], strict=True):
            make = self.pool.borrower(name, weight, wake=partial(self.wake, name), gate=CheckedGate)
            self.makes[name] = make
            self.doors[name] = make(*self.own(name))

    def own(self, name: str) -> tuple[Any, Any]:
        if name == "streams":
            return FIFO(), Slots(3, name="workers")
        # By tenant, and in groups of which two may be active: room that is often refused for a reason of one's own.
        room = Both(
            InFlight(2, by=lambda one: one.tenant, name="tenant"),
            Groups(2, "workload", name="groups"),
        )
        return FairQueue("tenant"), room

    def wake(self, name: str) -> None:
        self.roused[name] = None

    def look(self, name: str) -> None:
        """A door that was roused looks, some time after."""
        self.roused.pop(name, None)
        self.doors[name].advance(self.loop.seconds)
        self.check()

    def turn(self) -> None:
        """One call on the loop."""
        self.loop.calls.popleft()()
        self.check()

    def settle(self) -> None:
        """Let everybody hear everything."""
        turns = 0
        while self.loop.calls or self.roused:
            turns += 1
            assert turns < 1000, "they talk for ever"
            if self.loop.calls:
                self.turn()
            else:
                self.look(next(iter(self.roused)))

    def resize(self, slots: int) -> None:
        self.limit = max(self.limit, slots)
        self.pool.resize(slots)

    def begin_anew(self, name: str) -> None:
        """A door throws its gate away: what runs goes on in another, where nobody waits."""
        former = self.doors[name]
        self.doors[name] = self.makes[name](*self.own(name))
        self.doors[name].adopt(list(former.holders), self.loop.seconds)
        self.hear()  # each is heard at once, as on the pool's own loop; between the two, slots are held twice
        former.surrender()
        self.hear()
        self.check()

    def hear(self) -> None:
        while self.loop.calls:
            self.loop.calls.popleft()()

    def running(self, name: str) -> list[Any]:
        return list(self.doors[name].holders)

    def held(self, name: str) -> int:
        return sum(one.member == name for one in self.pool.gate.holders)  # type: ignore[attr-defined]

    def check(self) -> None:
        """At no moment, whoever has heard what: all that run have a slot each."""
        used = {name: len(self.running(name)) for name in self.doors}
        # Where slots were taken away, the number may only fall.
        self.limit = max(self.pool.slots.total, min(self.limit, len(self.pool.gate.holders)))
        assert len(self.pool.gate.holders) <= self.limit
        assert sum(used.values()) <= self.limit, f"{used} run on {self.limit} slots"
        for name, number in used.items():
            assert number <= self.held(name), f"{name} runs {number} on {self.held(name)} slots"

    def check_settled(self) -> None:
        """Once all is heard: no slot is had in vain, and none is free for which somebody has use."""
        for name in self.doors:
            assert self.held(name) == len(self.running(name)), f"{name} keeps a slot in vain"
        if len(self.pool.gate.holders) >= self.pool.slots.total:
            return
        assert not self.pool.gate.waiting - len(self.doors["tasks"].waiters()), "a stand-in waits"
        for name in ("jobs", "streams"):
            gate = self.doors[name]
            for one in gate.waiters():
                own = gate.capacity.refusal(one, gate.now)
                closed = gate.closed_to(one)
                assert own is not None or closed is not None, f"{one!r} of {name} waits in vain"


def story(seed: int, steps: int = 250) -> None:
    """Random verbs at random doors, heard of sooner or later."""
    rng = Random(seed)
    world = World(rng.choice((1, 2, 4, 9)))
    names = list(world.doors)
    for number in range(steps):
        world.loop.seconds += rng.choice((0.0, 0.0, 0.1))
        now = world.loop.seconds
        name = rng.choice(names)
        gate = world.doors[name]
        deed = rng.random()
        if deed < 0.3 and world.loop.calls:
            world.turn()
        elif deed < 0.4 and world.roused:
            world.look(next(iter(world.roused)))
        elif deed < 0.6:
            kind = Asked if name == "tasks" else Ticket
            new = [
                kind((number, each), tenant=rng.choice("ab"), workload=rng.randrange(4))
                for each in range(rng.choice((1, 1, 5)))
            ]
            gate.offer(new[0], now) if len(new) == 1 else gate.enlist(new, now)
        elif deed < 0.85 and world.running(name):
            gate.finish(rng.choice(world.running(name)), now)
        elif deed < 0.88 and world.running(name):
            gate.finish_all(world.running(name), now)
        elif deed < 0.94 and gate.waiters():
            gate.withdraw(rng.sample(gate.waiters(), 1), now)
        elif deed < 0.96:
            world.resize(rng.choice((0, 2, 5)))
        elif name == "streams":
            gate.adjust(Change("workers", "resize", (rng.choice((1, 3, 6)),)), now)
        elif name == "jobs":
            world.begin_anew(name)
        world.check()
        if rng.random() < 0.1:
            world.settle()
            world.check_settled()
    world.resize(3)
    world.doors["streams"].adjust(Change("workers", "resize", (2,)), world.loop.seconds)
    while any(gate.waiters() or gate.holders for gate in world.doors.values()):
        world.settle()
        world.check_settled()
        before = sum(len(world.running(name)) for name in names)
        assert before, "somebody waits, and nobody runs"
        for name in names:
            for one in world.running(name):
                world.doors[name].finish(one, world.loop.seconds)
    world.settle()
    assert not world.pool.gate.holders
    assert not world.pool.gate.waiting


@pytest.mark.parametrize("seed", range(60))
def test_however_late_they_hear_of_each_other_every_promise_holds(seed):
    story(seed)


def shares(weights: tuple[float, float, float], rng: Random) -> dict[str, int]:
    """Everybody always wants more; one at a time ends."""
    world = World(6, weights)
    world.doors["tasks"].adjust(Change("slots", "resize", (6,)), 0.0)
    world.doors["streams"].adjust(Change("workers", "resize", (6,)), 0.0)
    served = dict.fromkeys(world.doors, 0)
    for name, gate in world.doors.items():
        kind = Asked if name == "tasks" else Ticket
        for number in range(170):
            gate.offer(kind(number, tenant=number, workload=1), 0.0)
    world.settle()
    known = {name: set(world.running(name)) for name in world.doors}  # who came first had them all
    for step in range(240):
        holders = [(name, one) for name in world.doors for one in world.running(name)]
        name, one = rng.choice(holders)
        world.doors[name].finish(one, float(step))
        world.settle()
        for name in world.doors:
            now = set(world.running(name))
            served[name] += len(now - known[name])
            known[name] = now
    return served


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (3.0, 2.0, 1.0), (1.0, 1.0, 4.0)])
def test_slots_go_to_doors_by_weight(weights):
    served = shares(weights, Random(5))
    total = sum(served.values())
    for (name, number), weight in zip(served.items(), weights, strict=True):
        fair = total * weight / sum(weights)
        assert abs(number - fair) <= 2, f"{name} had {number} of {total}, fair is {fair}"


def test_who_leaves_gives_all_back():
    """Also what is on its way to it, and what it has asked for."""
    world = World(4)
    jobs = world.doors["jobs"]
    jobs.enlist([Ticket(each, tenant=each, workload=1) for each in range(9)], 0.0)
    world.settle()
    assert len(jobs.holders) == 4
    jobs.finish(world.running("jobs")[0], 1.0)
    while world.held("jobs") == 4 and world.loop.calls and not world.roused:
        world.turn()  # a slot is lent anew, and not yet used
    assert {one.state for one in jobs.surrender()} == {RUNNING}
    world.roused.clear()
    while world.loop.calls:
        world.loop.calls.popleft()()
    assert not world.pool.gate.holders
    assert not world.pool.gate.waiting


def test_what_runs_already_is_adopted_above_the_limit_and_its_slots_go_back():
    world = World(2)
    streams = world.doors["streams"]
    streams.offer(Ticket("mine"), 0.0)
    world.settle()
    world.limit = 4
    old = [Ticket(each, tenant=each, workload=1) for each in range(3)]
    for one in old:
        one.state = RUNNING
    jobs = world.doors["jobs"]
    jobs.adopt(old, 1.0)
    while world.loop.calls:
        world.loop.calls.popleft()()
    assert world.held("jobs") == 3
    streams.offer(late := Ticket("late"), 2.0)
    for number, one in enumerate(old):
        world.settle()
        assert late.state is WAITING, number
        jobs.finish(one, 3.0)
    world.settle()
    assert late.state is RUNNING
    assert world.held("jobs") == 0


def test_a_door_whose_own_room_is_short_keeps_no_slot_from_others():
    world = World(8)
    jobs, tasks = world.doors["jobs"], world.doors["tasks"]
    jobs.enlist([Ticket(each, tenant="a", workload=1) for each in range(50)], 0.0)
    world.settle()
    assert (len(jobs.holders), world.held("jobs")) == (2, 2)
    assert world.pool.gate.waiting == 0
    assert "tenant" in jobs.explain(jobs.waiters()[0], 0.0).text
    tasks.offer(mine := Asked(), 0.0)
    assert mine.state is RUNNING


def test_it_is_said_that_a_slot_of_the_pool_is_missing():
    world = World(1)
    jobs = world.doors["jobs"]
    jobs.offer(Ticket(1, tenant="a"), 0.0)
    jobs.offer(second := Ticket(2, tenant="b"), 0.0)
    world.settle()
    assert "it needs one of the 1 slots of pool" in jobs.explain(second, 0.0).text


# Broken ones, each of which the tests above must catch.


def keep(self: Lent, ticket: Ticket, now: float) -> None:
    """Keep a slot for the next of one's own."""
    self.used -= 1
    self.spare += 1


def spend(self: Borrowing, ticket: Ticket, now: float) -> Hashable | None:
    """Start without a slot."""
    refusal = self.own.refusal(ticket, now)
    if refusal is None:
        self.take(ticket, now)
    return refusal


def hoard(self: Lent) -> None:
    """Do not give back what is of no use."""
    self.spare = 0


def listen_late(self: Account) -> None:
    """Note after listening that one listens: what is said in between goes unheard."""
    said, self._said = self._said, self._done
    hear(self)
    self._said, self._done = said, said


def ask_once(self: BorrowingGate) -> None:
    """Ask for slots until the first has come."""
    if self._account.lent == 0:
        say(self)


def end_nothing(self: Account, number: int, outcome: Outcome) -> None:
    """Do not hear of what is given back."""


hear, say = Account._hear, BorrowingGate._say


def every_story() -> None:
    for seed in range(20):
        story(seed)


def every_share() -> None:
    test_slots_go_to_doors_by_weight((3.0, 2.0, 1.0))


@pytest.mark.parametrize(
    ("owner", "name", "broken", "tests"),
    [
        (Lent, "give", keep, every_share),
        (Borrowing, "admit", spend, every_story),
        (Lent, "return_spare", hoard, every_story),
        (Account, "_hear", listen_late, every_story),
        (Account, "_end", end_nothing, every_story),
        (BorrowingGate, "_say", ask_once, every_story),
    ],
)
def test_a_broken_one_is_caught(monkeypatch, owner, name, broken, tests):
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError):
        tests()
