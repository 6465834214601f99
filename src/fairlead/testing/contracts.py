"""Contract suites: subclass one in your tests, make your policy or capacity, and pytest runs every case against it.

>>> class TestMyPolicy(PolicyContract):
...     def make(self):
...         return Policy()
"""

from __future__ import annotations

import random
from math import inf
from typing import TYPE_CHECKING

from fairlead.capacities import Both, InFlight, Slots, TokenBucket
from fairlead.core.capacity import STOP
from fairlead.core.policy import Policy
from fairlead.core.ticket import Outcome, State, Ticket
from fairlead.policies import FIFO
from fairlead.testing.checked import CheckedGate

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from fairlead.core.capacity import Capacity


def drive(
    gate: CheckedGate, seed: int, steps: int, ticket: Callable[[int, random.Random], Ticket]
) -> None:
    """Put a gate through random verbs, then let everything end; every invariant is checked after every step."""
    rng = random.Random(seed)
    now = 0.0
    waiting: list[Ticket] = []
    running: list[Ticket] = []
    for number in range(steps):
        now += rng.choice((0.0, 0.1, 1.0, 7.0))
        deed = rng.random()
        if deed < 0.5:
            newcomer = ticket(number, rng)
            gate.offer(newcomer, now)
            waiting.append(newcomer)
        elif deed < 0.8 and running:
            outcome = rng.choice((Outcome.OK, Outcome.OK, Outcome.FAILED, Outcome.LOST))
            gate.finish(running.pop(rng.randrange(len(running))), now, outcome)
        elif deed < 0.9 and waiting:
            gate.withdraw([waiting.pop(rng.randrange(len(waiting)))], now)
        else:
            gate.advance(now)
        running = list(gate.holders)
        waiting = [one for one in waiting if one.state is State.WAITING]
    while gate.waiting or gate.holders:
        if gate.holders:
            gate.finish(next(iter(gate.holders)), now)
        else:
            wakeup = gate.next_wakeup(now)
            assert wakeup < inf, f"{gate.waiting} tickets wait for ever beside an empty capacity"
            now = wakeup
            gate.advance(now)
    assert gate.active == gate.waiting == 0


def _refused(policy: Policy, now: float) -> list[Ticket]:
    """Refuse the first candidate, and with it everybody; tell who it was."""
    asked: list[Ticket] = []

    def refuse(ticket: Ticket) -> Hashable:
        asked.append(ticket)
        return STOP

    assert policy.pick(refuse, now) is None, "nobody was admitted"
    assert len(asked) <= 1, f"{asked[1:]} were asked after a STOP"
    return asked


class PolicyContract:
    """What every policy owes the gate.  Set `ticket` if your policy reads fields the default does not fill."""

    def make(self) -> Policy:
        """Make a fresh policy."""
        raise NotImplementedError

    def ticket(self, number: int, rng: random.Random) -> Ticket:
        """Make a ticket for the random drives."""
        return Ticket(
            number,
            rng.randrange(101),
            rng.choice((1, 1, 2, 5)),
            tenant=rng.choice("abc"),
            workload=rng.choice("xy"),
            estimate=rng.choice((1.0, 5.0, 30.0)),
            deadline=rng.choice((10.0, 1000.0, inf)),
            wait_until=inf,
        )

    def test_one_slot(self) -> None:
        for seed in range(20):
            drive(CheckedGate(self.make(), Slots(1)), seed, 120, self.ticket)

    def test_many_slots(self) -> None:
        for seed in range(20):
            drive(CheckedGate(self.make(), Slots(4)), seed, 120, self.ticket)

    def test_scopes_that_close_and_open(self) -> None:
        for seed in range(20):
            # Scopes that overlap: what one of them lets go, the other may keep.
            capacity = Both(
                InFlight(5, by=lambda ticket: ticket.tenant, name="tenant"),
                InFlight(6, by=lambda ticket: ticket.workload, name="workload"),
            )
            drive(CheckedGate(self.make(), capacity), seed, 120, self.ticket)

    def test_room_that_comes_with_time(self) -> None:
        for seed in range(20):
            capacity = TokenBucket(1.0, burst=5, by=lambda ticket: ticket.tenant)
            drive(CheckedGate(self.make(), capacity), seed, 120, self.ticket)

    def test_a_refused_pick_changes_nothing(self) -> None:
        orders = []
        for picks in (0, 3):
            policy = self.make()
            gate = CheckedGate(policy, InFlight(5))
            for number in range(20):
                ticket = self.ticket(number, random.Random(number))
                gate.offer(ticket, number * 0.1)
                before = sorted(waiting.seq for waiting in policy)
                asked = [_refused(policy, gate.now) for _ in range(picks)]
                assert asked[1:] == asked[:-1], "who is asked first has changed by being refused"
                assert sorted(waiting.seq for waiting in policy) == before
            order: list[object] = []
            while gate.holders:
                holder = next(iter(gate.holders))
                order += [ticket.key for ticket in gate.finish(holder, 100.0)]
            orders.append(order)
        assert orders[0] == orders[1], "the order has changed by being refused"

    def test_a_newcomer_outranks_others_only_if_it_is_asked_first(self) -> None:
        policy = self.make()
        rng = random.Random(0)
        for number in range(30):
            ticket = self.ticket(number, rng)
            ticket.seq, ticket.arrived_at = number + 1, number * 0.1
            first = len(policy) > 0 and policy.outranks(ticket, ticket.arrived_at)
            policy.push(ticket, ticket.arrived_at)
            ticket.state = State.WAITING
            assert not first or _refused(policy, ticket.arrived_at) == [ticket], (
                f"{ticket!r} is said to go before all who wait, and is not asked first"
            )

    def test_the_same_verbs_give_the_same_order(self) -> None:
        orders = []
        for _ in range(2):
            gate = CheckedGate(self.make(), Slots(1))
            tickets = [self.ticket(number, random.Random(number)) for number in range(30)]
            for ticket in tickets:
                gate.offer(ticket, ticket.seq * 0.1)
            order = []
            while gate.holders:
                holder = next(iter(gate.holders))
                order.append(holder.key)
                gate.finish(holder, 100.0)
            orders.append(order)
        assert orders[0] == orders[1]
        assert len(orders[0]) == 30


class CapacityContract:
    """What every capacity owes the gate."""

    def make(self) -> Capacity:
        """Make a fresh capacity."""
        raise NotImplementedError

    def ticket(self, number: int, rng: random.Random) -> Ticket:
        """Make a ticket for the random drives."""
        return Ticket(
            number,
            cost=rng.choice((1, 1, 2)),
            rank=rng.randrange(2),
            tenant=rng.choice("abc"),
            pool=rng.choice(("ocr", "gpu")),
        )

    def test_under_random_verbs(self) -> None:
        for seed in range(40):
            # Where the order is steady, the gate asks again only when the capacity says that something has changed.
            policy = FIFO() if seed % 2 else Policy()
            drive(CheckedGate(policy, self.make()), seed, 150, self.ticket)

    def test_refusal_is_pure(self) -> None:
        capacity = self.make()
        ticket = self.ticket(0, random.Random(0))
        ticket.scopes = capacity.scopes(ticket)
        answers = {capacity.refusal(ticket, 1.0) for _ in range(3)}
        assert len(answers) == 1

    def test_room_comes_exactly_when_promised(self) -> None:
        capacity = self.make()
        rng = random.Random(1)
        now = 0.0
        for number in range(200):
            ticket = self.ticket(number, rng)
            ticket.scopes = capacity.scopes(ticket)
            refusal = capacity.refusal(ticket, now)
            if refusal is None:
                capacity.take(ticket, now)
                continue
            at = capacity.ready_at(ticket, now, refusal)
            if at == inf:
                break
            assert at > now, "it refuses, and says it would not"
            if capacity.foretells:
                assert capacity.admit(ticket, now) == refusal, "asked in one step it says otherwise"
                assert capacity.ends_at == at, f"it promised room at {capacity.ends_at} and at {at}"
            assert capacity.refusal(ticket, at) is None, f"it promised room at {at}"
            before = at - (at - now) / 1000
            assert capacity.refusal(ticket, before) is not None, (
                f"it promised room at {at}, and there is room at {before}"
            )
            now = at

    def test_without_a_holder_means_as_if_it_had_given_back(self) -> None:
        capacity = self.make()
        rng = random.Random(3)
        held: list[Ticket] = []
        for number in range(200):
            now = number * 0.1
            ticket = self.ticket(number, rng)
            ticket.scopes = capacity.scopes(ticket)
            if capacity.refusal(ticket, now) is None:
                capacity.take(ticket, now)
                held.append(ticket)
            elif held:
                holder = held.pop(rng.randrange(len(held)))
                told = capacity.refusal(ticket, now, holder)
                capacity.give(holder, now)
                assert capacity.refusal(ticket, now) == told, f"{holder!r} gave back"

    def test_what_only_spends_takes_nothing_back(self) -> None:
        if not self.make().spends:
            return
        for seed in range(20):  # a gate may `draw`: whether it gives back must make no difference
            rng, kept, given = random.Random(seed), self.make(), self.make()
            for number in range(60):
                now = number * rng.choice((0.1, 1.0))
                ticket = self.ticket(number, rng)
                ticket.scopes = kept.scopes(ticket)
                refusal = kept.admit(ticket, now)
                assert given.admit(ticket, now) == refusal, f"{ticket!r} was given back before"
                if refusal is None:
                    given.give(ticket, now)

    def test_what_is_given_back_can_be_taken_again(self) -> None:
        capacity = self.make()
        rng = random.Random(2)
        held = []
        for number in range(100):
            ticket = self.ticket(number, rng)
            ticket.scopes = capacity.scopes(ticket)
            if capacity.refusal(ticket, 0.0) is None:
                capacity.take(ticket, 0.0)
                held.append(ticket)
        assert held, "an empty capacity admits nobody"
        for ticket in held:
            capacity.give(ticket, 0.0)
            capacity.refund(ticket, ticket.cost, 0.0)
        assert capacity.refusal(held[0], 1e6) is None
