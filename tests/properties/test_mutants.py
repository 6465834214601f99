"""Deliberately broken gates, policies and capacities, each of which the checks must catch.

The control, that the same checks pass on what is not broken, is every other test of gates and contracts.
"""

import random
from collections.abc import Callable, Hashable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from fairlead.capacities import Both, InFlight, Reserved, Slots, TokenBucket
from fairlead.core import Capacity, Change, Gate, Policy, Recorder, State, Ticket, replay
from fairlead.core import dispatch as dispatch_module
from fairlead.core.eviction import Evictions
from fairlead.core.scopes import Scopes
from fairlead.errors import PolicyError
from fairlead.policies import FIFO, FairQueue
from fairlead.testing import CapacityContract, CheckedGate, PolicyContract
from tests.capacities.test_bucket import took
from tests.contracts.test_capacities import Shape as CapacityShape
from tests.contracts.test_policies import Shape as PolicyShape
from tests.core.test_scopes import two_scarce_things
from tests.properties.machine import GateMachine
from tests.properties.shapes import CAPACITIES, tenant

QUICK = settings(
    max_examples=1000,
    stateful_step_count=15,
    phases=[Phase.generate],
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)


def machine(
    gate: type[Gate] = Gate,
    policy: Callable[[], Policy] = FIFO,
    capacity: Callable[[], Capacity] = CAPACITIES["in flight per tenant"],
    policy_name: str = "fifo",
) -> None:
    """Run the state machine over one shape, on top of a broken gate."""

    class Broken(Recorder, CheckedGate, gate):  # type: ignore[misc,valid-type]
        pass

    class Machine(GateMachine):
        gate_type = Broken
        policies = {policy_name: policy}  # noqa: RUF012
        capacities = {"one": capacity}  # noqa: RUF012

    run_state_machine_as_test(Machine, settings=QUICK)


def contract(suite: type, shape: Callable[[], Any]) -> None:
    """Run every case of a contract."""
    for case in dir(suite):
        if case.startswith("test_"):
            getattr(
                CapacityShape(shape) if suite is CapacityContract else PolicyShape(shape), case
            )()


# Gates


class Barging(Gate):
    """Lets a newcomer take what room there is, whoever waits."""

    def offer(self, ticket, now):
        waiting, self.waiting = self.waiting, 0
        try:
            if not waiting or self.capacity.refusal(ticket, max(now, self.now)) is not None:
                self.waiting = waiting
            return super().offer(ticket, now)
        finally:
            if ticket.state is State.RUNNING and not self.waiting:
                self.waiting = waiting


class NeverExpiring(Gate):
    def _expire(self, now, changed):
        while self._deadlines.pop(now) is not None:
            pass
        return False


class DoubleFreeing(Gate):
    def finish(self, ticket, now, *args):
        if ticket.state is State.DONE:
            self.capacity.give(ticket, now)
        return super().finish(ticket, now, *args)


class KeepingRoom(Gate):
    """Forgets to hand a freed slot over."""

    def finish(self, ticket, now, *args):
        waiting, self.waiting = self.waiting, 0
        try:
            return super().finish(ticket, now, *args)
        finally:
            self.waiting = waiting


class Oversleeping(Gate):
    def next_wakeup(self, now):
        return super().next_wakeup(now) + 0.5


class Hasty(Gate):
    """Expires before it starts, at one instant."""

    def _settle(self, now, changed):
        if self.due <= now:
            self._expire(now, changed)
        super()._settle(now, changed)


class Bloodthirsty(Gate):
    """Evicts two at once."""

    def _hunt(self, now, changed):
        super()._hunt(now, changed)
        self._hunting = True
        super()._hunt(now, changed)


class Silent(Gate):
    """Does not tell who expired."""

    def _expire(self, now, changed):
        return super()._expire(now, [])


GATES: dict[str, tuple[type[Gate], Callable[[], Capacity]]] = {
    "barging": (Barging, CAPACITIES["in flight"]),
    "never expiring": (NeverExpiring, CAPACITIES["slots"]),
    "double freeing": (DoubleFreeing, CAPACITIES["slots"]),
    "keeping room": (KeepingRoom, CAPACITIES["slots"]),
    "oversleeping": (Oversleeping, CAPACITIES["bucket"]),
    "silent": (Silent, CAPACITIES["slots"]),
}


@pytest.mark.parametrize("mutant", GATES)
def test_a_broken_gate_is_caught_by_the_machine(mutant: str):
    gate, capacity = GATES[mutant]
    with pytest.raises((AssertionError, PolicyError, KeyError, IndexError)):
        machine(gate, capacity=capacity)


def test_expiry_before_starts_is_caught():
    gate = Hasty(FIFO(), Slots(1))
    a, b = Ticket("a"), Ticket("b", wait_until=5.0)
    gate.offer(a, 0.0)
    gate.offer(b, 0.0)
    gate.finish(a, 5.0)
    assert b.state is State.EXPIRED  # test_time.py says it must run


def test_a_second_victim_in_one_verb_is_caught():
    gate = Bloodthirsty(FIFO(), Slots(0))
    for number in range(4):
        gate.offer(Ticket(number, rank=number, evictable=number < 2, can_preempt=number >= 2), 0.0)
    changed = gate.adjust(Change("slots", "resize", (2,)), 1.0)
    assert sum(t.state is State.EVICTED for t in changed) == 2  # test_preemption.py says one


def test_state_carried_from_one_gate_to_the_next_is_caught():
    class Remembering(Gate):
        served = 0

        def offer(self, ticket, now):
            Remembering.served += 1
            if Remembering.served % 3 == 0:
                ticket.hold_until = now
            return super().offer(ticket, now)

    class Recorded(Recorder, Remembering):
        pass

    gate = Recorded(FIFO(), Slots(4))
    for number in range(4):
        gate.offer(Ticket(number), float(number))
    gate.advance(9.0)
    first, second = (replay(gate.entries, Remembering(FIFO(), Slots(4))) for _ in range(2))
    assert first != second


class Deaf(Scopes):
    """Does not listen to what the capacity has opened."""

    def see_opened(self, now):
        self._capacity.opened.clear()
        return self.soonest()


class Unforgiving(Scopes):
    """Keeps a scope closed when the one it was closed for leaves."""

    def reopen(self, ticket, now):
        pass


@pytest.mark.parametrize(
    ("mutant", "shape"), [(Deaf, "pools"), (Unforgiving, "in flight per tenant")]
)
def test_scopes_that_stay_closed_are_caught(mutant, shape, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dispatch_module, "Scopes", mutant)
    with pytest.raises(AssertionError):
        machine(capacity=CAPACITIES[shape])


def test_a_reservation_of_scarce_things_that_lapses_is_caught(monkeypatch: pytest.MonkeyPatch):
    class Lapsing(Scopes):
        def open(self, scope, now):
            self.closed.pop(scope, None)
            self._policy.open(scope, now)

    monkeypatch.setattr(dispatch_module, "Scopes", Lapsing)
    assert "both" not in two_scarce_things(reserve_after=0.0)


def test_a_victim_of_an_equal_class_is_caught(monkeypatch: pytest.MonkeyPatch):
    class Equal(Evictions):
        def _below(self, ticket):
            for ranks in self._pools.get(ticket.pool, {}).values():
                yield next(reversed(ranks))

    monkeypatch.setattr(dispatch_module, "Evictions", Equal)
    with pytest.raises(AssertionError, match="was evicted for"):
        machine(capacity=CAPACITIES["slots"])


def test_a_victim_of_another_pool_is_caught(monkeypatch: pytest.MonkeyPatch):
    class AnyPool(Evictions):
        def _below(self, ticket):
            for pool in self._pools.values():
                yield from (
                    next(reversed(pool[rank])) for rank in sorted(pool) if rank < ticket.rank
                )

    monkeypatch.setattr(dispatch_module, "Evictions", AnyPool)
    with pytest.raises(AssertionError, match="was evicted for"):
        machine(capacity=CAPACITIES["slots"])


# Policies


class LosingParked(Policy):
    """Loses the lanes parked under a scope when it opens."""

    def open(self, scope, now):
        self._parked.pop(scope, None)


class NotPassingOn(Policy):
    def _pass_on(self, lane, refusal, now):
        lane.woken_by = None


class Dropping(Policy):
    """Forgets its head when it is refused."""

    def pick(self, admit, now):
        lane = self._ready.best(now)
        if lane is None:
            return None
        ticket = lane.head()
        lane.pop()
        self._size -= 1
        return ticket if admit(ticket) is None else None


class Whimsical(Policy):
    rng = random.Random(7)

    def key(self, ticket: Ticket) -> float:
        return self.rng.random()


class Miscounting(Policy):
    def remove(self, ticket, now):
        super().remove(ticket, now)
        self._size += 1


@pytest.mark.parametrize("mutant", [LosingParked, NotPassingOn, Dropping, Whimsical, Miscounting])
def test_a_broken_policy_is_caught_by_its_contract(mutant: type[Policy]):
    with pytest.raises((AssertionError, PolicyError, IndexError, AttributeError)):
        contract(PolicyContract, mutant)


def test_a_queue_that_hides_who_ranks_first_is_caught():
    class Hiding(FairQueue):
        def __init__(self) -> None:
            super().__init__()
            self.steady = True

        def push(self, ticket: Ticket, now: float) -> bool:
            super().push(ticket, now)
            return True

    with pytest.raises(AssertionError, match="is first"):
        machine(policy=Hiding, capacity=CAPACITIES["bucket"], policy_name="fair")


def test_a_gate_that_lets_the_first_go_and_asks_nobody_is_caught():
    class Deaf(Gate):
        def _drop(self, ticket: Ticket, state: State, now: float) -> None:
            full = self._full
            super()._drop(ticket, state, now)
            self._full = full

    with pytest.raises(AssertionError, match="is first and need not wait"):
        machine(Deaf, policy=FIFO, capacity=CAPACITIES["bucket"])


def test_a_gate_that_does_not_note_who_waits_no_longer_is_caught():
    class Careless(Gate):
        _notes = property(lambda self: False, lambda self, noted: None)

    with pytest.raises(AssertionError):
        machine(Careless, capacity=CAPACITIES["reserved"])


def test_a_gate_that_starts_one_more_than_there_are_slots_is_caught():
    class Overcounting(Gate):
        def finish(self, ticket: Ticket, *args: Any, **named: Any) -> Any:
            held = ticket in self.holders
            changed = super().finish(ticket, *args, **named)
            if held and not self.waiting:
                self.capacity.used -= 1  # type: ignore[attr-defined]
            return changed

    with pytest.raises(AssertionError, match="in use"):
        machine(Overcounting, capacity=CAPACITIES["slots"])


def test_a_line_that_serves_the_newest_first_is_caught():
    class Stack(Policy):
        def key(self, ticket: Ticket) -> int:
            return -ticket.seq

    with pytest.raises(AssertionError, match=r"started before|jumped the line"):
        machine(policy=Stack, capacity=CAPACITIES["slots"])


# Capacities


class ForgettingSlots(Slots):
    def give(self, ticket: Ticket, now: float) -> None:
        pass


class RoomySlots(Slots):
    def refusal(self, ticket: Ticket, now: float, without: Ticket | None = None) -> Hashable | None:
        return None if self.used <= self.total else super().refusal(ticket, now, without)


class EarlyBucket(TokenBucket):
    """Promises a moment too early."""

    def ready_at(self, ticket: Ticket, now: float, scope: Hashable) -> float:
        return super().ready_at(ticket, now, scope) - 1e-3


class GenerousBucket(TokenBucket):
    """Grants by a rounded level what `ready_at` would not yet grant."""

    def take(self, ticket: Ticket, now: float) -> None:
        self._draw(self._key(ticket), ticket.cost * 0.9, now)


class TakingBoth(Both):
    """Takes from each part as it asks, and from the first ones in vain."""

    def refusal(self, ticket: Ticket, now: float, without: Ticket | None = None) -> Hashable | None:
        for part in self.parts:
            refusal = part.refusal(ticket, now, without)
            if refusal is not None:
                return refusal
            part.take(ticket, now)
        return None

    def take(self, ticket: Ticket, now: float) -> bool:
        return False


class SilentInFlight(InFlight):
    """Gives back and tells nobody."""

    def give(self, ticket: Ticket, now: float) -> None:
        super().give(ticket, now)
        self.opened.clear()


class LendingTooSoon(Reserved):
    """Forgets that demand which ends just now lingers."""

    def _held_without(self, rank: int) -> int:
        return 0


@pytest.mark.parametrize(
    "shape",
    [
        lambda: ForgettingSlots(2),
        lambda: EarlyBucket(0.5, burst=2),
        lambda: TakingBoth(Slots(2), InFlight(3, by=tenant)),
        lambda: SilentInFlight(2, by=tenant),
        lambda: LendingTooSoon(3, (0, 2, 0), linger=9.0),
    ],
    ids=["forgetting", "early", "taking", "silent", "lending"],
)
def test_a_broken_capacity_is_caught_by_its_contract(shape: Callable[[], Capacity]):
    with pytest.raises((AssertionError, KeyError)):
        contract(CapacityContract, shape)


def test_slots_that_admit_too_much_are_caught_by_the_machine():
    with pytest.raises(AssertionError):
        machine(capacity=lambda: RoomySlots(2))


def test_a_bucket_that_admits_too_much_is_caught_by_the_numbers_of_the_specification():
    bucket = GenerousBucket(10, burst=30)
    assert sum(took(bucket, number / 500) for number in range(4951)) > 129
