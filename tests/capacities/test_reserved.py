"""Slots with reservations: the numbers of the specification, lending, lingering and promotion."""

from math import inf, nan

import pytest

from fairlead.capacities import Reserved
from fairlead.core import FULL, Hold, Ticket
from fairlead.errors import ConfigError
from fairlead.policies import Classes, Level
from fairlead.testing import CheckedGate

BULK, DEFAULT, INTERACTIVE, SYSTEM = range(4)
FLOORS = (0, 0, 128, 32)
SHARES = (0, 0.10, 0.25, 0)


def table(total: int) -> Reserved:
    return Reserved(total, FLOORS, SHARES, lend=False)


def headroom(capacity: Reserved, now: float = 0.0) -> list[int]:
    return [capacity.headroom(rank, now) for rank in range(4)]


@pytest.mark.parametrize(
    ("total", "reserved", "idle"),
    [
        (256, (0, 26, 128, 32), [70, 96, 224, 256]),
        (1024, (0, 103, 256, 32), [633, 736, 992, 1024]),
        (178, (0, 18, 128, 32), [0, 18, 146, 178]),
    ],
)
def test_the_table_of_the_specification(total: int, reserved: tuple[int, ...], idle: list[int]):
    capacity = table(total)
    assert capacity.reserved == reserved
    assert headroom(capacity) == idle


@pytest.mark.parametrize("total", [100, 177])
def test_reservations_that_do_not_fit_are_refused_at_construction(total: int):
    with pytest.raises(ConfigError, match=r"reservations need \d+ slots but the capacity is \d+"):
        table(total)


def test_no_slots_at_all_are_in_order_until_there_are_some():
    capacity = table(0)
    assert capacity.reserved == (0, 0, 0, 0)
    assert capacity.refusal(Ticket(rank=SYSTEM), 0.0) is FULL


def test_shrinking_keeps_the_highest_classes_and_growing_restores_all():
    capacity = table(256)
    steps = [(80, (0, 0, 48, 32)), (256, (0, 26, 128, 32)), (800, (0, 80, 200, 32))]
    for total, reserved in steps:
        capacity.resize(total)
        assert capacity.reserved == reserved


def test_shares_are_decimals():
    assert Reserved(100, (0, 0), (0, 0.07)).reserved == (0, 7)
    assert Reserved(100, (0, 0), (0, "0.071")).reserved == (0, 8)


def fill(capacity: Reserved, rank: int, count: int, now: float = 0.0) -> list[Ticket]:
    tickets = [Ticket(rank=rank) for _ in range(count)]
    for ticket in tickets:
        assert capacity.refusal(ticket, now) is None
        capacity.take(ticket, now)
    return tickets


def test_a_reservation_in_use_stops_being_held():
    capacity = table(256)
    fill(capacity, INTERACTIVE, 100)
    assert headroom(capacity) == [70, 96, 124, 156]


def test_a_class_may_go_beyond_its_reservation():
    capacity = table(256)
    fill(capacity, INTERACTIVE, 224)
    assert capacity.refusal(Ticket(rank=INTERACTIVE), 0.0) == Hold(INTERACTIVE)
    fill(capacity, SYSTEM, 32)
    assert capacity.refusal(Ticket(rank=SYSTEM), 0.0) is FULL


def test_bulk_is_kept_out_of_what_is_reserved():
    capacity = table(256)
    fill(capacity, BULK, 70)
    assert capacity.refusal(Ticket(rank=BULK), 0.0) == Hold(BULK)
    assert capacity.ready_at(Ticket(rank=BULK), 0.0, Hold(BULK)) == inf
    fill(capacity, DEFAULT, 26)
    assert capacity.refusal(Ticket(rank=DEFAULT), 0.0) == Hold(DEFAULT)


def test_an_idle_reservation_is_lent():
    capacity = Reserved(4, (0, 2), linger=5.0)
    assert capacity.headroom(0, 0.0) == 4
    fill(capacity, 0, 4)
    assert capacity.refusal(Ticket(rank=1), 0.0) is FULL


def test_the_hold_returns_as_soon_as_there_is_demand():
    capacity = Reserved(4, (0, 2), linger=5.0)
    capacity.enter(Ticket(rank=1), 0.0)
    assert capacity.headroom(0, 0.0) == 2
    capacity = Reserved(4, (0, 2), linger=5.0)
    fill(capacity, 1, 1)
    assert capacity.headroom(0, 0.0) == 2


def test_a_hold_lingers_exactly_as_long_as_it_says():
    capacity = Reserved(2, (0, 2), linger=5.0)
    (ticket,) = fill(capacity, 1, 1)
    capacity.give(ticket, 10.0)
    bulk = Ticket(rank=0)
    assert capacity.refusal(bulk, 10.0) == Hold(0)
    assert capacity.ready_at(bulk, 10.0, Hold(0)) == 15.0
    assert capacity.refusal(bulk, 14.999) == Hold(0)
    assert capacity.refusal(bulk, 15.0) is None


def test_of_several_lingering_holds_the_one_that_frees_enough_is_promised():
    capacity = Reserved(3, (0, 1, 2), linger=(0.0, 3.0, 7.0))
    for rank in (1, 2):
        (ticket,) = fill(capacity, rank, 1)
        capacity.give(ticket, 0.0)
    bulk = Ticket(rank=0)
    assert capacity.ready_at(bulk, 0.0, Hold(0)) == 3.0
    fill(capacity, 0, 1, now=3.0)
    assert capacity.ready_at(bulk, 3.0, Hold(0)) == 7.0


def test_the_gate_wakes_when_a_hold_has_lingered():
    gate = CheckedGate(Classes(Level("bulk"), Level("top")), Reserved(1, (0, 1), linger=5.0))
    top, bulk = Ticket("top", rank=1), Ticket("bulk", rank=0)
    gate.offer(top, 0.0)
    gate.offer(bulk, 1.0)
    assert gate.finish(top, 2.0) == []
    assert gate.next_wakeup(2.0) == 7.0
    assert gate.advance(7.0) == [bulk]


def test_while_a_hold_lingers_nobody_below_is_asked_again():
    capacity = Reserved(4, (0, 2), linger=5.0)
    for waits in (False, True):
        top = Ticket(rank=1)
        if waits:
            capacity.enter(top, 0.0)
            capacity.leave(top, 1.0)
        else:
            capacity.take(top, 0.0)
            capacity.opened.clear()
            capacity.give(top, 1.0)
        assert Hold(0) not in capacity.opened


@pytest.mark.parametrize("slots", [1, 2])  # refused for want of a slot, or for the hold
def test_a_hold_that_comes_and_goes_is_lent_when_the_last_of_it_has_lingered(slots):
    capacity = Reserved(slots, (0, slots), linger=5.0)
    gate = CheckedGate(Classes(Level("bulk"), Level("top")), capacity)
    first, bulk, last = Ticket(rank=1), Ticket(rank=0), Ticket(rank=1)
    gate.offer(first, 0.0)
    gate.offer(bulk, 0.5)
    gate.finish(first, 1.0)
    gate.offer(last, 3.0)
    gate.finish(last, 4.0)
    while bulk.started_at == inf:
        at = gate.next_wakeup(gate.now)
        assert gate.now < at <= 9.0
        gate.advance(at)
    assert bulk.started_at == 9.0


def test_the_hold_that_ends_first_counts_though_another_was_waited_for():
    linger = (0.0, 1.0, 30.0)
    capacity = Reserved(3, (0, 1, 1), linger=linger)
    gate = CheckedGate(Classes(Level("bulk"), Level("middle"), Level("top")), capacity)
    top, middle, low, bulk = (Ticket(rank=rank) for rank in (2, 1, 0, 0))
    for ticket in (top, middle, low, bulk):
        gate.offer(ticket, 0.0)
    gate.finish(top, 1.0)  # its hold lingers until 31
    gate.offer(Ticket(rank=2), 1.5)
    gate.finish(middle, 2.0)
    assert gate.next_wakeup(2.0) == 3.0
    assert gate.advance(3.0) == [bulk]


def test_while_a_demand_lasts_nobody_is_told_when_it_ends():
    gate = CheckedGate(Classes(Level("bulk"), Level("top")), Reserved(3, (0, 2), linger=5.0))
    for rank in (1, 0):
        gate.offer(Ticket(rank=rank), 0.0)
    bulk = Ticket(rank=0)
    gate.offer(bulk, 0.0)
    assert gate.explain(bulk, 0.0).ready_at == inf


def test_a_linger_too_short_for_the_clock_is_none():
    now = 1.7e9
    gate = CheckedGate(Classes(Level("bulk"), Level("top")), Reserved(3, (0, 2), linger=1e-8))
    top, _, bulk = tickets = [Ticket(rank=rank) for rank in (1, 0, 0)]
    for ticket in tickets:
        gate.offer(ticket, now)
    assert gate.finish(top, now + 1) == [bulk]


def test_without_a_holder_its_class_lingers_like_after_a_real_end():
    capacity = Reserved(2, (0, 2), linger=5.0)
    (top,) = fill(capacity, 1, 1)
    assert capacity.refusal(Ticket(rank=0), 0.0, without=top) == Hold(0)


def test_lending_can_be_switched_off():
    capacity = Reserved(4, (0, 2), linger=0.0, lend=False)
    assert capacity.headroom(0, 0.0) == 2


def test_a_promotion_ignores_holds_but_never_capacity():
    capacity = Reserved(2, (0, 2), lend=False)
    ticket = Ticket(rank=0)
    assert capacity.refusal(ticket, 0.0) == Hold(0)
    ticket.promoted = True
    assert capacity.refusal(ticket, 0.0) is None
    fill(capacity, 1, 2)
    assert capacity.refusal(ticket, 0.0) is FULL


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_class_that_is_not_there_is_refused(rank: int):
    with pytest.raises(ConfigError, match=r"rank must be 0\.\.1"):
        Reserved(2, (0, 1)).scopes(Ticket(rank=rank))


@pytest.mark.parametrize(
    "settings",
    [
        {"total": -1},
        {"total": True},
        {"total": 1.5},
        {"total": nan},
        {"floors": ()},
        {"floors": (0, -1)},
        {"floors": (0, 0.5)},
        {"floors": (0, nan)},
        {"shares": (0,)},
        {"shares": (0, -0.1)},
        {"shares": (0, nan)},
        {"shares": (0, inf)},
        {"shares": (0, "a tenth")},
        {"linger": -1.0},
        {"linger": nan},
        {"linger": (1.0,)},
        {"linger": "5s"},
        {"linger": (0.0, "5s")},
    ],
)
def test_bad_settings_are_refused(settings):
    with pytest.raises(ConfigError):
        Reserved(**{"total": 4, "floors": (0, 1), **settings})


def test_a_bad_size_changes_nothing():
    capacity = table(256)
    for total in (-1, True, 1.5, nan, inf, "256"):
        with pytest.raises(ConfigError):
            capacity.resize(total)  # type: ignore[arg-type]
    assert (capacity.total, capacity.reserved) == (256, (0, 26, 128, 32))


def test_headroom_is_never_below_0():
    capacity = Reserved(4, (0, 1))
    for number in range(4):
        capacity.take(Ticket(number, rank=1), 0.0)
    capacity.resize(2)
    assert [capacity.headroom(rank, 0.0) for rank in range(2)] == [0, 0]
