"""Slots, tokens in flight, pools, and several capacities at once."""

from math import inf, nan

import pytest

from fairlead.capacities import Both, InFlight, Pools, Reserved, Slots, TokenBucket
from fairlead.core import FULL, NEVER, STOP, Capacity, Change, Hold, State, Ticket
from fairlead.errors import ConfigError
from fairlead.policies import FIFO
from fairlead.testing import CheckedGate


def tenant(ticket: Ticket) -> object:
    return ticket.tenant


def taken(capacity: Capacity, now: float = 0.0, **fields) -> Ticket:
    ticket = Ticket(**fields)
    assert capacity.refusal(ticket, now) is None
    capacity.take(ticket, now)
    return ticket


def test_slots_are_held_and_given_back():
    slots = Slots(2)
    a = taken(slots)
    taken(slots)
    assert slots.refusal(Ticket(), 0.0) is FULL
    assert slots.refusal(Ticket(), 0.0, without=a) is None
    slots.give(a, 0.0)
    assert slots.room() == {"slots": 1}


@pytest.mark.parametrize("total", [-1, True, 1.5, nan, inf, "3", None])
def test_a_bad_number_of_slots_changes_nothing(total):
    with pytest.raises(ConfigError, match="whole number"):
        Slots(total)
    slots = Slots(3)
    with pytest.raises(ConfigError):
        slots.resize(total)
    assert slots.total == 3


def test_a_ticket_weighs_its_cost_in_flight():
    capacity = InFlight(10)
    taken(capacity, cost=6)
    assert capacity.refusal(Ticket(cost=4.5), 0.0) is STOP
    taken(capacity, cost=4)
    assert capacity.used() == 10


def test_what_is_larger_than_the_limit_goes_alone():
    capacity = InFlight(10)
    small = taken(capacity, cost=1)
    assert capacity.refusal(Ticket(cost=11), 0.0) is STOP
    assert capacity.refusal(Ticket(cost=11), 0.0, without=small) is None
    capacity.give(small, 0.0)
    taken(capacity, cost=11)
    assert capacity.refusal(Ticket(cost=1), 0.0) is STOP


def test_at_a_limit_of_nothing_nothing_goes():
    assert InFlight(0).refusal(Ticket(cost=1), 0.0) is STOP


def test_each_label_has_its_own_limit_and_none_bypasses():
    capacity = InFlight(1, by=tenant)
    taken(capacity, tenant="a")
    assert capacity.refusal(Ticket(tenant="a"), 0.0) == ("in flight", "a")
    taken(capacity, tenant="b")
    for _ in range(5):
        taken(capacity)
    assert capacity.room() == {"a": 0, "b": 0}


def test_fractions_leave_nothing_behind():
    capacity = InFlight(1)
    tickets = [taken(capacity, cost=0.1) for _ in range(9)]
    for ticket in tickets:
        capacity.give(ticket, 0.0)
    assert capacity.used() == 0
    assert capacity.audit([]) is None


def test_lost_holders_expire():
    gate = CheckedGate(FIFO(), InFlight(1, expire_after=60.0))
    lost, waiting = Ticket("lost"), Ticket("waiting")
    gate.offer(lost, 0.0)
    gate.offer(waiting, 0.0)
    assert gate.next_wakeup(0.0) == 60.0
    assert gate.advance(60.0) == [lost, waiting]
    assert (lost.state, waiting.hold_until) == (State.EXPIRED, 120.0)


def test_a_limit_in_flight_shrinks_and_grows():
    gate = CheckedGate(FIFO(), InFlight(4))
    first = [Ticket(number) for number in range(6)]
    for ticket in first:
        gate.offer(ticket, 0.0)
    gate.adjust(Change("in flight", "resize", (2,)), 1.0)
    assert gate.active == 4
    assert [gate.finish(ticket, 2.0) for ticket in first[:2]] == [[], []]
    assert gate.finish(first[2], 3.0) == [first[4]]
    assert gate.adjust(Change("in flight", "resize", (3,)), 4.0) == [first[5]]


@pytest.mark.parametrize("limit", [-1, True, nan, inf])
def test_a_bad_limit_changes_nothing(limit):
    capacity = InFlight(3)
    with pytest.raises(ConfigError):
        capacity.resize(limit)
    assert capacity.limit == 3
    with pytest.raises(ConfigError):
        InFlight(3, expire_after=0.0 if limit is True else nan)


def test_pools_are_separate_and_an_unknown_one_waits_until_it_is_there():
    gate = CheckedGate(FIFO(), Pools({"ocr": 1}))
    ocr, gpu = Ticket("ocr", pool="ocr"), Ticket("gpu", pool="gpu")
    gate.offer(gpu, 0.0)
    gate.offer(ocr, 0.0)
    assert (ocr.state, gpu.state) == (State.RUNNING, State.WAITING)
    assert gate.adjust(Change("pools", "resize", ("gpu", 2)), 1.0) == [gpu]
    assert gate.capacity.room() == {"ocr": 0, "gpu": 1}


@pytest.mark.parametrize("limit", [-1, True, 1.5, nan])
def test_a_bad_pool_changes_nothing(limit):
    pools = Pools({"ocr": 1})
    with pytest.raises(ConfigError, match="pool 'ocr'"):
        pools.resize("ocr", limit)
    assert pools.room() == {"ocr": 1}


def test_both_takes_all_or_nothing():
    slots, bucket = Slots(1), TokenBucket(1.0, burst=2)
    both = Both(slots, bucket)
    ticket = taken(both, cost=2)
    assert both.refusal(Ticket(), 0.0) is FULL
    both.give(ticket, 0.0)
    assert both.refusal(Ticket(), 0.0) is STOP
    assert (slots.used, bucket.level(0.0)) == (0, 0)
    assert both.ready_at(Ticket(), 0.0, STOP) == 1.0


def test_both_tells_the_narrowest_refusal():
    """So that a ticket stopped by its own quota does not stop others."""
    parts = {
        NEVER: TokenBucket(1.0, burst=1, name="never"),
        ("own", "t"): InFlight(1, by=tenant, name="own"),
        STOP: InFlight(1, name="all"),
    }
    ticket = Ticket(cost=2, tenant="t")
    parts["own", "t"].take(ticket, 0.0)
    parts[STOP].take(ticket, 0.0)
    for first in parts:
        for second in parts:
            if first is not second:
                both = Both(parts[first], parts[second])
                narrowest = NEVER if NEVER in (first, second) else ("own", "t")
                assert both.refusal(ticket, 0.0) == narrowest


def test_both_promises_the_time_of_the_part_that_refuses():
    both = Both(
        TokenBucket(1.0, burst=9, name="slow"), TokenBucket(2.0, burst=9, by=tenant, name="own")
    )
    taken(both, cost=9, tenant="t")
    ticket = Ticket(cost=4, tenant="t")
    assert both.refusal(ticket, 0.0) == ("own", "t")
    assert both.ready_at(ticket, 0.0, ("own", "t")) == 2.0
    assert both.refusal(ticket, 2.0) is STOP
    assert both.ready_at(ticket, 2.0, STOP) == 4.0


def test_both_refunds_to_each_part():
    bucket = TokenBucket(0.001, burst=4)
    both = Both(bucket, InFlight(9))
    ticket = taken(both, cost=4)
    both.refund(ticket, 3, 0.0)
    assert bucket.level(0.0) == 3


def test_the_parts_of_both_are_found_by_name_and_need_one_each():
    both = Both(Both(Slots(1), InFlight(1), name="inner"), Pools({}))
    assert both.part("in flight") is not None
    assert both.part("both") is both
    assert both.part("nobody") is None
    with pytest.raises(ConfigError, match="a name of its own"):
        Both(Slots(1), Slots(2))
    with pytest.raises(ConfigError, match="at least one"):
        Both()


def test_both_watches_if_a_part_does():
    reserved = Reserved(2, (0, 1))
    both = Both(Slots(5, name="all"), reserved)
    assert both.watches
    both.enter(Ticket(rank=1), 0.0)
    taken(both, rank=0)
    assert both.refusal(Ticket(rank=0), 0.0) == Hold(0)
    both.leave(Ticket(rank=1), 0.0)
    assert both.refusal(Ticket(rank=0), 0.0) is None


def test_two_scoped_parts_of_one_name_are_refused_also_when_nested():
    inner = Both(InFlight(1, by=lambda ticket: ticket.tenant), name="inner")
    with pytest.raises(ConfigError, match="each part needs a name of its own"):
        Both(inner, InFlight(5, by=lambda ticket: ticket.workload))
    Both(inner, InFlight(5, by=lambda ticket: ticket.workload, name="workload"))
