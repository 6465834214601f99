"""Tokens in flight: what costs nothing holds nothing, limits change at run time, lost holders expire."""

from math import inf, nan
from typing import Any

import pytest

from fairlead.capacities import InFlight
from fairlead.core import Change, State, Ticket
from fairlead.errors import ConfigError
from fairlead.policies import FIFO
from fairlead.testing import CheckedGate


@pytest.mark.parametrize("costs", [(0, 0), (1, 0), (0, 1), (0, 2, 0)])
def test_holders_that_cost_nothing_end_in_any_order(costs: tuple[int, ...]):
    gate = CheckedGate(FIFO(), InFlight(2, by=lambda ticket: ticket.tenant))
    tickets = [Ticket(cost=cost, tenant="a") for cost in costs]
    for ticket in tickets:
        gate.offer(ticket, 0.0)
        assert ticket.state is State.RUNNING
    for ticket in tickets:
        gate.finish(ticket, 1.0)
    assert gate.capacity.room() == {}


def test_lowered_below_what_is_in_flight_nothing_starts_until_it_has_drained():
    gate = CheckedGate(FIFO(), InFlight(4))
    first = [Ticket(number) for number in range(4)]
    for ticket in first:
        gate.offer(ticket, 0.0)
    waiting = [Ticket("a"), Ticket("b")]
    for ticket in waiting:
        gate.offer(ticket, 0.0)
    assert gate.adjust(Change("in flight", "resize", (2,)), 1.0) == []
    assert gate.finish(first[0], 2.0) == []
    assert gate.finish(first[1], 2.0) == []
    assert gate.finish(first[2], 2.0) == [waiting[0]]
    assert gate.adjust(Change("in flight", "resize", (3,)), 3.0) == [waiting[1]]


def test_how_long_a_holder_may_hold_changes_for_those_to_come():
    gate = CheckedGate(FIFO(), InFlight(2, expire_after=10.0))
    old, new = Ticket("old"), Ticket("new")
    gate.offer(old, 0.0)
    gate.adjust(Change("in flight", "set_expiry", (1.0,)), 0.0)
    gate.offer(new, 0.0)
    assert gate.advance(1.0) == [new]
    assert new.state is State.EXPIRED
    assert gate.advance(9.9) == []
    assert gate.advance(10.0) == [old]
    assert gate.finish(old, 11.0) == []
    assert gate.late == 1


@pytest.mark.parametrize("limit", [-1, nan, inf, True, "3"])
def test_a_bad_limit_is_refused(limit: Any):
    with pytest.raises(ConfigError, match="limit"):
        InFlight(limit)


@pytest.mark.parametrize("seconds", [0, -1, nan, "5s"])
def test_a_bad_expiry_changes_nothing(seconds: Any):
    limit = InFlight(2, expire_after=inf)
    with pytest.raises(ConfigError, match="expire_after"):
        limit.set_expiry(seconds)
    assert limit.expire_after == inf


@pytest.mark.parametrize("by", [None, lambda ticket: ticket.tenant])
def test_an_exact_fit_of_fractional_costs_is_one(by: Any):
    gate = CheckedGate(FIFO(), InFlight(1, by=by))
    tickets = [Ticket(cost=cost, tenant="a") for cost in (0.2, 0.4, 0.3, 0.1)]
    for ticket in tickets:
        gate.offer(ticket, 0.0)
    assert all(ticket.state is State.RUNNING for ticket in tickets)
    beyond = Ticket(cost=1e-6, tenant="a")
    gate.offer(beyond, 0.0)
    assert beyond.state is State.WAITING


def test_keys_may_be_named_as_those_of_a_fair_queue_are():
    gate = CheckedGate(FIFO(), InFlight(1, by="tenant"))
    first, second, other = Ticket(tenant="a"), Ticket(tenant="a"), Ticket(tenant="b")
    for ticket in (first, second, other):
        gate.offer(ticket, 0.0)
    assert [one.state for one in (first, second, other)] == [
        State.RUNNING,
        State.WAITING,
        State.RUNNING,
    ]
