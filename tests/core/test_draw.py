"""Drawing is an offer that starts at once, and its finish: nobody else can tell the two apart."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from fairlead.capacities import Both, InFlight, Slots, TokenBucket, Unlimited
from fairlead.core import Change, Gate, Policy, Recorder, State, Ticket
from fairlead.core.capacity import Capacity
from fairlead.observe import Feed
from fairlead.policies import FIFO, Aging, Classes, FairQueue, Level
from fairlead.runtime.viewing import GateView
from fairlead.testing import CheckedGate

KINDS: dict[str, dict[str, Any]] = {
    "plain": {"rate": 1.0, "burst": 4.0},
    "in steps": {"rate": 1.0, "burst": 4.0, "interval": 2.0},
    "delayed": {"rate": 1.0, "burst": 4.0, "delay_initial_fill": True},
    "with debt": {"rate": 1.0, "burst": 2.0, "oversize": "debt"},
    "by tenant": {"rate": 0.5, "burst": 3.0, "by": "tenant"},
    "few tenants": {"rate": 0.2, "burst": 3.0, "by": "tenant", "max_keys": 2},
    "soon idle": {"rate": 0.1, "burst": 3.0, "max_idle_time": 2.5},
}


def finish(gate: Gate, changed: Iterable[Ticket], now: float) -> None:
    """Finish whatever starts, at once."""
    left = list(changed)
    while left:
        ticket = left.pop()
        if ticket.state is State.RUNNING:
            left += gate.finish(ticket, now)


def drive(kind: dict[str, Any], seed: int, drawing: type[Gate] = CheckedGate) -> int:
    """Ask two gates for the same, of which one is drawn from; return how often it was."""
    rng, now, drawn = random.Random(seed), 0.0, 0
    policy = rng.choice((FIFO, Aging))
    one, other = drawing(policy(), TokenBucket(**kind)), CheckedGate(policy(), TokenBucket(**kind))
    pairs: list[tuple[Ticket, Ticket]] = []
    for number in range(120):
        now += rng.choice((0.0, 0.0, 0.3, 1.0, 4.0))
        for gate in (one, other):
            finish(gate, gate.advance(now), now)
        if rng.random() < 0.05:
            change = Change("tokens", "correct", (rng.choice((-2.0, 1.0)), "a", now))
            for gate in (one, other):
                finish(gate, gate.adjust(change, now), now)
        about: dict[str, Any] = {
            "cost": rng.choice((0.5, 1.0, 2.0, 5.0)),
            "tenant": rng.choice((None, "a", "b", "c")),
            "priority": rng.randrange(101),
            "wait_until": rng.choice((now, now + 3.0, float("inf"))),
        }
        pair = Ticket(number, **about), Ticket(number, **about)
        pairs.append(pair)
        if one.draw(pair[0], now):
            drawn += 1
            assert pair[0].arrived_at == pair[0].started_at == now
            pair[0].state = State.DONE
        else:
            finish(one, [pair[0], *one.offer(pair[0], now)], now)
        finish(other, [pair[1], *other.offer(pair[1], now)], now)
        assert [ticket.state for ticket, _ in pairs] == [ticket.state for _, ticket in pairs]
        assert one.waiting == other.waiting
        assert one.next_wakeup(now) == other.next_wakeup(now)
        assert not one.holders
        for tenant in (None, "a", "b", "c"):
            assert one.capacity.level(now, tenant) == other.capacity.level(now, tenant)  # type: ignore[attr-defined]
    return drawn


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_to_others_it_is_an_offer_and_its_finish(kind: dict[str, Any]) -> None:
    assert sum(drive(kind, seed) for seed in range(40)) > 100


class Passing(CheckedGate):
    """Draws past those who wait."""

    def draw(self, ticket: Ticket, now: float) -> bool:
        waiting, self.waiting = self.waiting, 0
        try:
            return Gate.draw(self, ticket, now)
        finally:
            self.waiting = waiting


class Generous(CheckedGate):
    """Draws and takes nothing."""

    def draw(self, ticket: Ticket, now: float) -> bool:
        drawn = super().draw(ticket, now)
        if drawn:
            self.capacity.refund(ticket, ticket.cost, now)
        return drawn


@pytest.mark.parametrize("gate", [Passing, Generous])
def test_a_gate_that_draws_otherwise_is_caught(gate: type[Gate]) -> None:
    with pytest.raises(AssertionError):
        for seed in range(40):
            drive(KINDS["plain"], seed, gate)


CAPACITIES: list[Capacity] = [Slots(1), InFlight(2.0), Both(Slots(1), TokenBucket(1, 1))]


@pytest.mark.parametrize("capacity", CAPACITIES, ids=lambda one: type(one).__name__)
def test_nothing_is_drawn_that_is_to_be_given_back(capacity: Capacity) -> None:
    gate, ticket = CheckedGate(FIFO(), capacity), Ticket("a")
    assert not gate.draw(ticket, 0.0)
    gate.offer(ticket, 0.0)
    assert gate.active == 1


class Own(TokenBucket):
    """A bucket whose author did not say that it only spends, and may want something back."""

    def give(self, ticket: Ticket, now: float) -> None:
        self.refund(ticket, ticket.cost, now)


def test_that_it_only_spends_is_not_inherited() -> None:
    assert not CheckedGate(FIFO(), Own(1, 1)).draw(Ticket("a"), 0.0)


@pytest.mark.parametrize(
    "policy",
    [FairQueue("tenant"), Classes(Level("high", FIFO), Level("low", FIFO))],
    ids=["fair", "classes"],
)
def test_where_a_policy_counts_what_starts_it_is_asked(policy: Policy) -> None:
    assert not CheckedGate(policy, TokenBucket(1, 1)).draw(Ticket("a"), 0.0)


class Shy(Policy):
    """A policy that may withhold whoever comes, for all the gate knows."""

    def skips(self, ticket: Ticket) -> bool:
        return False


def test_where_a_policy_may_withhold_it_is_asked() -> None:
    assert not CheckedGate(Shy(), TokenBucket(1, 1)).draw(Ticket("a"), 0.0)


def test_what_is_due_comes_first() -> None:
    gate, holder, ticket = (
        CheckedGate(FIFO(), TokenBucket(1, 9)),
        Ticket("a", hold_until=5.0),
        Ticket("b"),
    )
    gate.offer(holder, 0.0)
    assert not gate.draw(ticket, 5.0)
    assert gate.offer(ticket, 5.0) == [holder]
    assert holder.state is State.EXPIRED
    assert gate.draw(Ticket("c"), 5.0)


class Following(Gate):
    """A gate of one's own that counts what passes."""

    passed = 0

    def offer(self, ticket: Ticket, now: float) -> Sequence[Ticket]:
        self.passed += 1
        return super().offer(ticket, now)


class Deeper(Following):
    """Overrides nothing of it."""


@pytest.mark.parametrize("kind", [Following, Deeper])
def test_a_gate_that_follows_its_verbs_does_not_draw(kind: type[Following]) -> None:
    gate = kind(FIFO(), TokenBucket(1, 5))
    assert not gate.draw(Ticket("a"), 0.0)
    assert Gate(FIFO(), TokenBucket(1, 5)).draw(Ticket("a"), 0.0)


def test_a_bucket_that_is_set_or_filled_otherwise_is_drawn_from_as_it_is() -> None:
    bucket = TokenBucket(1, 10)
    gate = CheckedGate(FIFO(), bucket)

    def drawn(now: float, cost: float = 4.0) -> bool:
        return gate.draw(Ticket(None, cost=cost), now)

    assert drawn(0.0)
    assert bucket.level(0.0) == 6
    bucket.set_level(10.0, 0.0)
    assert drawn(0.0)
    assert bucket.level(0.0) == 6
    gate.adjust(Change("tokens", "retune", (1.0, 10.0, 4.0, 0.0)), 0.0)  # 4 tokens every 4 s
    assert drawn(1.0)
    assert not drawn(3.0)
    assert drawn(4.0)
    gate.adjust(Change("tokens", "retune", (1.0, 10.0, None, 4.0)), 4.0)
    assert drawn(6.0)
    assert not drawn(6.5, 1.0)
    gate.adjust(Change("tokens", "retune", (1.0, 10.0, 4.0, 6.5)), 6.5)
    assert not drawn(7.5, 1.0)


def test_who_was_offered_or_drawn_is_not_drawn() -> None:
    gate, ticket = CheckedGate(FIFO(), TokenBucket(1, 5)), Ticket("a")
    assert gate.draw(ticket, 0.0)
    assert not gate.draw(ticket, 0.0)
    assert gate.capacity.level(0.0) == 4  # type: ignore[attr-defined]


def test_a_clock_that_steps_back_draws_nothing() -> None:
    gate = CheckedGate(FIFO(), TokenBucket(1, 5))
    gate.advance(2.0)
    assert not gate.draw(Ticket("a"), 1.0)
    assert gate.now == 2.0


def test_gates_that_show_what_runs_do_not_draw() -> None:
    def bucket() -> TokenBucket:
        return TokenBucket(1, 5)

    gates = [
        Recorder(FIFO(), bucket()),
        GateView(Gate(FIFO(), bucket())),
        Feed().gate("flows/p")(FIFO(), bucket()),
    ]
    for gate in gates:
        ticket = Ticket("a")
        assert not gate.draw(ticket, 0.0)
        gate.offer(ticket, 0.0)
        assert list(gate.holders) == [ticket]


def test_keys_given_up_meanwhile_leave_nothing_behind() -> None:
    gate = Gate(FIFO(), TokenBucket(1e-9, 2, by="tenant", max_keys=3))
    for number in range(50):
        assert gate.draw(Ticket(number, tenant=str(number)), 0.0)
    assert not gate.capacity.opened


def test_without_a_limit_there_is_nothing_to_draw() -> None:
    assert not Gate(FIFO(), Unlimited()).draw(Ticket("a"), 0.0)
