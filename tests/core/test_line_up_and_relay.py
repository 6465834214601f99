"""Lining up is an offer that waits, a relay a finish that starts the next: nobody can tell them apart."""

from __future__ import annotations

import random
from math import inf
from typing import Any

import pytest

from fairlead.capacities import Reserved, Slots, Unlimited
from fairlead.core import Change, Gate, Policy, Recorder, State, Ticket
from fairlead.core.capacity import Capacity
from fairlead.errors import PolicyError
from fairlead.observe import Feed
from fairlead.policies import FIFO, Aging, Classes, FairQueue, Level, Planner
from fairlead.testing import CheckedGate

POLICIES: dict[str, Any] = {
    "fifo": FIFO,
    "aging": lambda: Aging(ceiling=60),
    "fair": lambda: FairQueue("tenant"),
    "classes": lambda: Classes(Level("low", starvation=2.0), Level("high")),
    "planner": lambda: Planner(lambda tickets, now: [one for one in tickets if one.cost < 3]),
}


def relayed(gate: Gate, ticket: Ticket, now: float) -> tuple[bool, list[Ticket]]:
    following = gate.relay(ticket, now)
    if following is None:
        return False, list(gate.finish(ticket, now))
    return True, [following]


def offered(gate: Gate, ticket: Ticket, now: float) -> tuple[bool, list[Ticket]]:
    if not gate.line_up(ticket, now):
        return False, list(gate.offer(ticket, now))
    changed = gate.advance(now) if gate.due <= now else []  # as a door's timer does
    return True, [other for other in changed if other is not ticket]


def drive(policy: str, seed: int, short: type[Gate] = CheckedGate) -> tuple[int, int]:
    """Ask two gates for the same, of which one takes short cuts; return how many lined up and were relayed."""
    rng, now, lined_up, relays = random.Random(seed), 0.0, 0, 0
    one = short(POLICIES[policy](), Slots(3))
    other = CheckedGate(POLICIES[policy](), Slots(3))
    pairs: list[tuple[Ticket, Ticket]] = []
    bounded = rng.random() < 0.3  # as soon as one has a bound, more is to be kept than a count
    for number in range(150):
        now += rng.choice((0.0, 0.0, 0.25, 1.0))
        told: list[list[Ticket]] = [[], []]
        deed = rng.random()
        running = [pair for pair in pairs if pair[1].state is State.RUNNING]
        if deed < 0.5 or not running:
            about: dict[str, Any] = {
                "priority": rng.choice((20, 50, 58)),
                "cost": rng.choice((1.0, 2.0, 3.0)),
                "tenant": rng.choice("ab"),
                "rank": rng.randrange(2),
                "wait_until": now + rng.choice((0.0, 3.0))
                if bounded and rng.random() < 0.2
                else inf,
                "hold_until": now + rng.choice((1.0, 9.0))
                if bounded and rng.random() < 0.2
                else inf,
                "evictable": rng.random() < 0.3,
            }
            pairs.append((Ticket(number, **about), Ticket(number, **about)))
            done, told[0] = offered(one, pairs[-1][0], now)
            lined_up += done
            told[1] = list(other.offer(pairs[-1][1], now))
        elif deed < 0.92:
            first, second = rng.choice(running)
            done, told[0] = relayed(one, first, now)
            relays += done
            told[1] = list(other.finish(second, now))
        elif deed < 0.95:
            change = Change("slots", "resize", (rng.choice((1, 2, 3, 4)),))
            told = [list(gate.adjust(change, now)) for gate in (one, other)]
        else:
            now += 1.0
            told = [list(gate.advance(now)) for gate in (one, other)]
        assert [ticket.key for ticket in told[0]] == [ticket.key for ticket in told[1]]
        assert [ticket.state for ticket, _ in pairs] == [ticket.state for _, ticket in pairs]
        assert [ticket.started_at for ticket, _ in pairs] == [two.started_at for _, two in pairs]
        assert [ticket.arrived_at for ticket, _ in pairs] == [two.arrived_at for _, two in pairs]
        assert (one.waiting, one.active, one.late) == (other.waiting, other.active, other.late)
        assert one.next_wakeup(now) == other.next_wakeup(now)
    return lined_up, relays


@pytest.mark.parametrize("policy", POLICIES)
def test_to_others_these_are_offers_and_finishes(policy: str) -> None:
    lined_up, relays = zip(*(drive(policy, seed) for seed in range(40)), strict=True)
    assert sum(lined_up) > 200
    assert sum(relays) > 200


class Forgetful(CheckedGate):
    """Relays, and keeps the room of the one who ends."""

    def relay(self, ticket: Ticket, now: float) -> Ticket | None:
        following = super().relay(ticket, now)
        if following is not None:
            self.holders[ticket] = False
        return following


class Growing(CheckedGate):
    """Relays though there are fewer slots than holders."""

    def relay(self, ticket: Ticket, now: float) -> Ticket | None:
        capacity: Any = self.capacity
        total, capacity.total = capacity.total, max(capacity.total, capacity.used)
        try:
            return super().relay(ticket, now)
        finally:
            capacity.total = total


class Hurried(CheckedGate):
    """Relays past what is due."""

    def relay(self, ticket: Ticket, now: float) -> Ticket | None:
        due, self.due, self._relays = self.due, inf, self._counted
        try:
            return Gate.relay(self, ticket, now)
        finally:
            self.due = min(self.due, due)


class Dull(CheckedGate):
    """Lines up though there is room."""

    def line_up(self, ticket: Ticket, now: float) -> bool:
        self._full = True
        return super().line_up(ticket, now)


class Heedless(CheckedGate):
    """Lines up, and knows of no bound of a wait."""

    def line_up(self, ticket: Ticket, now: float) -> bool:
        until, ticket.wait_until = ticket.wait_until, inf
        try:
            return super().line_up(ticket, now)
        finally:
            ticket.wait_until = until


class Late(CheckedGate):
    """Lines up past what is due."""

    def line_up(self, ticket: Ticket, now: float) -> bool:
        due, self.due, self._relays = self.due, inf, self._counted
        try:
            return Gate.line_up(self, ticket, now)
        finally:
            self.due = min(self.due, due)


@pytest.mark.parametrize("gate", [Forgetful, Growing, Hurried, Dull, Heedless, Late])
def test_a_gate_that_cuts_otherwise_is_caught(gate: type[Gate]) -> None:
    with pytest.raises(AssertionError):
        for seed in range(40):
            drive("aging", seed, gate)


def waiting_gate(policy: Policy, capacity: Capacity, make: Any = CheckedGate) -> Any:
    """A gate whose holders are 0 and 1, with 2 waiting if there is no room for it."""
    gate = make(policy, capacity)
    for number in range(3):
        gate.offer(Ticket(number), 0.0)
    return gate


@pytest.mark.parametrize("capacity", [Reserved(2, floors=(0, 1)), Unlimited(), Slots(3)])
def test_nobody_is_relayed_where_more_than_a_slot_changes_hands(capacity: Capacity) -> None:
    gate = waiting_gate(FIFO(), capacity)
    holder = next(iter(gate.holders))
    before = gate.active
    assert gate.relay(holder, 1.0) is None
    assert holder.state is State.RUNNING
    assert gate.active == before


def test_who_holds_nothing_is_not_relayed() -> None:
    gate = waiting_gate(FIFO(), Slots(2))
    first = next(iter(gate.holders))
    assert gate.relay(first, 1.0) is not None
    assert gate.relay(first, 1.0) is None
    gate.offer(Ticket("another"), 1.0)
    assert gate.relay(first, 1.0) is None
    assert gate.active == 2
    gate.finish(first, 1.0)
    assert gate.late == 1


def test_what_a_policy_withholds_is_not_relayed() -> None:
    gate = waiting_gate(
        Planner(lambda tickets, now: tickets[:2] if len(tickets) > 2 else ()), Slots(1)
    )
    for number in range(3, 6):
        gate.offer(Ticket(number), 1.0)
    while gate.holders:
        holder = next(iter(gate.holders))
        following = gate.relay(holder, 2.0)
        if following is None:
            assert holder.state is State.RUNNING
            gate.finish(holder, 2.0)
    assert gate.waiting


class Failing(FIFO):
    fails = False

    def pick(self, admit: Any, now: float) -> Ticket | None:
        if self.fails:
            raise ZeroDivisionError
        return super().pick(admit, now)


def test_a_policy_that_fails_costs_nobody_a_slot() -> None:
    policy = Failing()
    gate = waiting_gate(policy, Slots(2))
    first, second = gate.holders
    policy.fails = True
    with pytest.raises(PolicyError, match="ZeroDivisionError"):
        gate.relay(first, 1.0)
    assert first.state is State.DONE, "the work has ended all the same"
    assert (gate.active, gate.waiting) == (1, 1)
    policy.fails = False
    assert [ticket.key for ticket in gate.advance(1.0)] == [2]
    assert gate.relay(second, 2.0) is None
    assert gate.active == 2


@pytest.mark.parametrize("make", [Recorder, Feed().gate("tasks/relayed")])
def test_who_follows_what_is_finished_sees_all_of_it(make: Any) -> None:
    gate = waiting_gate(FIFO(), Slots(2), make)
    first = next(iter(gate.holders))
    assert not gate.line_up(Ticket(3), 1.0)
    assert gate.relay(first, 1.0) is None
    assert [ticket.key for ticket in gate.finish(first, 1.0)] == [2]


@pytest.mark.parametrize(
    "ticket",
    [Ticket("evicts", can_preempt=True, rank=1), Ticket("was there")],
    ids=lambda one: one.key,
)
def test_who_may_be_more_than_one_more_in_the_queue_does_not_line_up(ticket: Ticket) -> None:
    gate = waiting_gate(FIFO(), Slots(2))
    if ticket.key == "was there":
        gate.offer(ticket, 0.0)
    waiting = gate.waiting
    assert not gate.line_up(ticket, 1.0)
    assert gate.waiting == waiting


def test_a_queue_with_a_limit_lets_nobody_line_up() -> None:
    gate = waiting_gate(FIFO(limit=1), Slots(2))
    assert not gate.line_up(Ticket(3), 1.0)
    gate.offer(ticket := Ticket(4), 1.0)
    assert ticket.state is State.REFUSED


class Choosy(FIFO):
    def push(self, ticket: Ticket, now: float) -> bool:
        if ticket.tenant is None:
            raise ZeroDivisionError
        return super().push(ticket, now)


def test_a_policy_that_refuses_to_queue_is_named_and_nothing_waits() -> None:
    gate = CheckedGate(Choosy(), Slots(1))
    gate.offer(Ticket("first", tenant="a"), 0.0)
    with pytest.raises(PolicyError, match="Choosy could not queue"):
        gate.line_up(Ticket("second"), 1.0)
    assert (gate.active, gate.waiting) == (1, 0)


def test_what_is_offered_after_its_wait_is_over_is_one_verb_to_who_follows() -> None:
    """Who overrides `advance` as well sees no verb that nobody called."""
    gate = Recorder(FIFO(), Slots(1))
    gate.offer(Ticket("first"), 0.0)
    hasty = Ticket("hasty", wait_until=0.5)
    assert list(gate.offer(hasty, 1.0)) == []
    assert hasty.state is State.EXPIRED
    assert [entry[0] for entry in gate.entries] == ["offer", "offer"]


def test_slots_are_relayed_after_one_had_a_bound() -> None:
    gate = waiting_gate(FIFO(), Slots(1))
    hasty = Ticket("hasty", wait_until=5.0)
    gate.offer(hasty, 1.0)
    holders = iter([Ticket(3), Ticket(4)])
    for ticket in holders:
        gate.offer(ticket, 1.0)
    order = []
    holder = next(iter(gate.holders))
    while (following := gate.relay(holder, 2.0)) is not None:
        order.append(following.key)
        holder = following
    assert order == [1, 2, "hasty", 3, 4]
    gate.finish(holder, 3.0)
    assert gate.next_wakeup(3.0) == inf, "nothing is left to expire"


def test_who_holds_room_only_for_a_time_is_not_relayed_to() -> None:
    gate = waiting_gate(FIFO(), Slots(2))
    brief = Ticket("brief", hold_until=3.0)
    assert not gate.line_up(brief, 1.0)
    gate.offer(brief, 1.0)
    first = next(iter(gate.holders))
    assert gate.relay(first, 2.0) is None
    assert [ticket.key for ticket in gate.finish(first, 2.0)] == [2]


class Audit:
    """A mixin that follows what is offered and finished."""

    seen = 0

    def offer(self, *args: Any) -> Any:
        self.seen += 1
        return super().offer(*args)  # type: ignore[misc]

    def finish(self, *args: Any) -> Any:
        self.seen += 1
        return super().finish(*args)  # type: ignore[misc]


class Audited(Audit, Gate):
    pass


class Checked(CheckedGate, Recorder):
    pass


class Deaf(Audited):
    """Wants to hear of offers, and says itself what a relay is."""

    relayed = 0

    def relay(self, ticket: Ticket, now: float) -> Ticket | None:
        self.relayed += 1
        return Gate.relay(self, ticket, now)


def test_a_mixin_that_follows_sees_all_of_it() -> None:
    gate = waiting_gate(FIFO(), Slots(1), Audited)
    assert not gate.line_up(Ticket(3), 1.0)
    assert gate.relay(next(iter(gate.holders)), 1.0) is None
    assert gate.seen == 3
    recorded = waiting_gate(FIFO(), Slots(1), Checked)
    assert recorded.relay(next(iter(recorded.holders)), 1.0) is None
    deaf = waiting_gate(FIFO(), Slots(1), Deaf)
    assert deaf.relay(next(iter(deaf.holders)), 1.0) is not None
    assert (deaf.seen, deaf.relayed) == (3, 1)


class Half(FIFO):
    def push(self, ticket: Ticket, now: float) -> bool:
        super().push(ticket, now)
        if ticket.key == "bad":
            raise ZeroDivisionError
        return True


def test_a_policy_that_keeps_what_it_could_not_queue_is_caught() -> None:
    for verb in ("offer", "line_up"):
        gate = waiting_gate(Half(), Slots(1))
        with pytest.raises(AssertionError, match="off"):
            getattr(gate, verb)(Ticket("bad"), 1.0)


def test_a_relay_that_is_declined_is_blamed_for_nothing() -> None:
    policy = Failing()
    gate = waiting_gate(policy, Slots(2))
    first, second = gate.holders
    gate.offer(Ticket(3), 0.5)
    policy.fails = True
    with pytest.raises(PolicyError):
        gate.relay(first, 1.0)
    policy.fails = False
    assert gate.relay(second, 1.0) is None, "one waits beside free room: the next verb starts it"
    assert gate.finish(second, 1.0)


def test_a_gate_has_few_enough_attributes() -> None:
    """With thirty or more CPython keeps them in a dict of their own, and each step of a hot path takes longer."""
    assert len(vars(Gate(Aging(), Slots(1)))) < 30
