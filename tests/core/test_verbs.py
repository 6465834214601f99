"""Each verb of the gate, each move of a ticket, and what an illegal verb leaves behind: nothing."""

from math import inf, nan
from typing import Any

import pytest

from fairlead.capacities import Both, InFlight, Pools, Slots, TokenBucket
from fairlead.core import STOP, Change, Gate, Outcome, Policy, State, Ticket
from fairlead.errors import ConfigError, Misuse
from fairlead.policies import FIFO, Aging, Classes, FairQueue, Level
from fairlead.testing import CheckedGate


def offered(gate: Gate, *keys: str, now: float = 0.0, **fields) -> list[Ticket]:
    tickets = [Ticket(key, **fields) for key in keys]
    for ticket in tickets:
        gate.offer(ticket, now)
    return tickets


def states(*tickets: Ticket) -> list[str]:
    return [ticket.state.value for ticket in tickets]


def standing(gate: Gate) -> tuple[object, ...]:
    return gate.now, gate.waiting, gate.active, list(gate.policy), list(gate.holders), gate.late


def test_offer_starts_at_once_where_there_is_room():
    gate = CheckedGate(FIFO(), Slots(1))
    ticket = Ticket("a")
    assert gate.offer(ticket, 3.0) == []
    assert ticket.state is State.RUNNING
    assert (ticket.arrived_at, ticket.started_at, ticket.seq) == (3.0, 3.0, 1)
    assert (gate.active, gate.waiting) == (1, 0)


def test_offer_waits_where_there_is_none():
    gate = CheckedGate(FIFO(), Slots(1))
    _, b = offered(gate, "a", "b")
    assert b.state is State.WAITING
    assert b.started_at == inf
    assert (gate.active, gate.waiting) == (1, 1)


def test_an_arrival_time_given_by_the_caller_is_kept():
    gate = CheckedGate(FIFO(), Slots(1))
    ticket = Ticket("again", arrived_at=1.0)
    gate.offer(ticket, 5.0)
    assert ticket.arrived_at == 1.0


def test_finish_hands_the_room_over():
    gate = CheckedGate(FIFO(), Slots(1))
    a, b, c = offered(gate, "a", "b", "c")
    assert gate.finish(a, 1.0) == [b]
    assert states(a, b, c) == ["done", "running", "waiting"]
    assert b.started_at == 1.0


def test_a_newcomer_never_takes_the_room_of_a_waiter():
    gate = CheckedGate(FIFO(), Slots(2))
    a, b, c = offered(gate, "a", "b", "c")
    gate.finish(a, 1.0)
    (d,) = offered(gate, "d", now=1.0)
    assert states(b, c, d) == ["running", "running", "waiting"]


def test_a_failed_ticket_is_done_too():
    gate = CheckedGate(FIFO(), Slots(1))
    (a,) = offered(gate, "a")
    gate.finish(a, 1.0, Outcome.FAILED)
    assert a.state is State.DONE


def test_a_second_finish_is_counted_and_frees_nothing():
    gate = CheckedGate(FIFO(), Slots(1))
    a, b, c = offered(gate, "a", "b", "c")
    gate.finish(a, 1.0)
    assert gate.finish(a, 2.0) == []
    assert gate.late == 1
    assert states(a, b, c) == ["done", "running", "waiting"]


def test_a_finish_of_what_never_started_is_counted_and_frees_nothing():
    gate = CheckedGate(FIFO(), Slots(1))
    _, b = offered(gate, "a", "b")
    gate.finish(b, 1.0)
    gate.finish(Ticket("stranger"), 1.0)
    assert gate.late == 2
    assert b.state is State.WAITING


def test_a_late_finish_still_brings_the_gate_to_now():
    gate = CheckedGate(FIFO(), Slots(1))
    offered(gate, "a")
    (b,) = offered(gate, "b", wait_until=5.0)
    assert gate.finish(Ticket("stranger"), 5.0) == [b]
    assert b.state is State.EXPIRED


def test_withdraw_leaves_the_line():
    gate = CheckedGate(FIFO(), Slots(1))
    a, b, c = offered(gate, "a", "b", "c")
    assert gate.withdraw([b], 1.0) == []
    assert states(a, b, c) == ["running", "withdrawn", "waiting"]
    assert gate.finish(a, 2.0) == [c]


def test_withdraw_leaves_alone_what_does_not_wait():
    gate = CheckedGate(FIFO(), Slots(1))
    a, b = offered(gate, "a", "b")
    gate.finish(a, 1.0)
    gate.withdraw([a, b, Ticket("stranger")], 2.0)
    assert states(a, b) == ["done", "running"]


def test_withdraw_of_many_dispatches_once():
    class Counting(Gate):
        dispatches = 0

        def _dispatch(self, now, changed):
            self.dispatches += 1
            super()._dispatch(now, changed)

    gate = Counting(FIFO(), TokenBucket(1.0, burst=1))
    offered(gate, "a")
    many = offered(gate, *(str(number) for number in range(50)))
    before = gate.dispatches
    gate.withdraw(many[:-1], 0.5)
    assert gate.dispatches == before + 1
    assert gate.waiting == 1


def test_the_same_ticket_twice_in_one_withdrawal_leaves_once():
    gate = CheckedGate(FIFO(), Slots(0))
    (a,) = offered(gate, "a")
    gate.withdraw([a, a], 1.0)
    assert gate.waiting == 0


def test_a_ticket_is_offered_once():
    gate = CheckedGate(FIFO(), Slots(1))
    a, b = offered(gate, "a", "b")
    for ticket in (a, b):
        before = standing(gate)
        with pytest.raises(Misuse, match="offered before"):
            gate.offer(ticket, 9.0)
        assert standing(gate) == before


def test_only_running_tickets_commit():
    gate = CheckedGate(FIFO(), Slots(1))
    a, b = offered(gate, "a", "b")
    assert gate.commit(a)
    before = standing(gate)
    for ticket in (b, Ticket("new")):
        with pytest.raises(Misuse, match="not running"):
            gate.commit(ticket)
        assert not ticket.committed
    assert standing(gate) == before


@pytest.mark.parametrize("spent", [nan, inf, -1.0])
def test_a_bad_amount_spent_changes_nothing(spent: float):
    gate = CheckedGate(FIFO(), Slots(1))
    (a,) = offered(gate, "a")
    before = standing(gate)
    with pytest.raises(Misuse, match="spent"):
        gate.finish(a, 9.0, spent=spent)
    assert standing(gate) == before
    assert a.state is State.RUNNING


def test_time_never_goes_back():
    gate = CheckedGate(FIFO(), Slots(1))
    a, b = offered(gate, "a", "b", now=10.0)
    gate.finish(a, 4.0)
    assert gate.now == 10.0
    assert b.started_at == 10.0
    (c,) = offered(gate, "c", now=1.0, wait_until=11.0)
    assert c.arrived_at == 10.0
    gate.advance(nan)
    assert gate.now == 10.0


def test_adjust_grows_and_starts_as_many_as_fit():
    gate = CheckedGate(FIFO(), Slots(1))
    a, b, c, d = offered(gate, "a", "b", "c", "d")
    assert gate.adjust(Change("slots", "resize", (3,)), 1.0) == [b, c]
    assert states(a, b, c, d) == ["running", "running", "running", "waiting"]


def test_adjust_shrinks_without_sending_anybody_away():
    gate = CheckedGate(FIFO(), Slots(3))
    a, b, c, d = offered(gate, "a", "b", "c", "d")
    gate.adjust(Change("slots", "resize", (1,)), 1.0)
    assert gate.active == 3
    assert gate.finish(a, 2.0) == []
    assert gate.finish(b, 3.0) == []
    assert gate.finish(c, 4.0) == [d]


@pytest.mark.parametrize(
    "change",
    [
        Change("nobody", "resize", (3,)),
        Change("slots", "grow", (3,)),
        Change("slots", "used"),
        Change("slots", "_parts"),
        Change("slots", "give", (None, 0.0)),
        Change("line", "push", (None, 0.0)),
        Change("slots", "resize", (-1,)),
        Change("slots", "resize", (True,)),
        Change("slots", "resize", (nan,)),
    ],
)
def test_an_adjustment_that_cannot_be_made_changes_nothing(change: Change):
    gate = CheckedGate(FIFO(name="line"), Slots(1))
    offered(gate, "a", "b")
    before = standing(gate)[1:]
    with pytest.raises(ConfigError):
        gate.adjust(change, 1.0)
    assert standing(gate)[1:] == before
    assert gate.capacity.room() == {"slots": 0}


def test_what_happened_on_the_way_to_a_failed_adjustment_is_told_by_the_next_verb():
    gate = CheckedGate(FIFO(), Slots(1))
    offered(gate, "a")
    (b,) = offered(gate, "b", wait_until=2.0)
    with pytest.raises(ConfigError):
        gate.adjust(Change("slots", "resize", (-1,)), 5.0)
    assert b.state is State.EXPIRED
    assert gate.next_wakeup(5.0) == 5.0
    assert gate.advance(5.0) == [b]
    assert gate.next_wakeup(5.0) == inf


def test_weights_change_by_the_name_of_the_policy():
    gate = CheckedGate(FairQueue("tenant", name="tenants"), Slots(1))
    blocker = Ticket("blocker", tenant="c")
    gate.offer(blocker, 0.0)
    for number in range(12):
        gate.offer(Ticket(number, tenant="ab"[number % 2]), 0.0)
    gate.adjust(Change("tenants", "set_weight", ("a", 5)), 1.0)
    served = []
    holder = blocker
    for _ in range(6):
        (holder,) = gate.finish(holder, 2.0)
        served.append(holder.tenant)
    assert served.count("a") == 5


def test_parts_are_found_inside_others():
    gate = CheckedGate(
        Classes(Level("bulk", lambda: FairQueue("tenant", name="tenants")), name="classes"),
        Slots(1),
    )
    gate.adjust(Change("tenants", "set_weight", ("a", 2)), 0.0)


def test_priorities_decide_and_equals_keep_their_order():
    gate = CheckedGate(Aging(rate=0), Slots(1))
    first, low, high, late = (
        Ticket("first"),
        Ticket("low", 20),
        Ticket("high", 80),
        Ticket("late", 80),
    )
    for ticket in (first, low, high, late):
        gate.offer(ticket, 0.0)
    order = []
    holder = first
    while gate.waiting:
        (holder,) = gate.finish(holder, 1.0)
        order.append(holder.key)
    assert order == ["high", "late", "low"]


def test_a_withheld_ticket_waits_beside_free_room_until_it_is_planned():
    class AfterNoon(Policy):
        shortcut = False

        def pick(self, admit, now):
            return super().pick(admit, now) if now >= 12.0 else None

    gate = CheckedGate(AfterNoon(), Slots(1))
    (a,) = offered(gate, "a", now=9.0)
    assert a.state is State.WAITING
    assert gate.advance(12.0) == [a]


def test_lost_work_gives_tokens_back():
    gate = CheckedGate(FIFO(), TokenBucket(1.0, burst=1))
    a, b = offered(gate, "a", "b")
    assert gate.finish(a, 0.0, Outcome.LOST) == [b]


def test_an_estimate_is_settled():
    gate = CheckedGate(FIFO(), TokenBucket(1.0, burst=10))
    (a,) = offered(gate, "a", cost=8)
    (b,) = offered(gate, "b", cost=5)
    assert b.state is State.WAITING
    assert gate.finish(a, 0.0, spent=5) == [b]
    gate.finish(b, 0.0, spent=7)
    assert gate.capacity.level(0.0) == -2  # type: ignore[attr-defined]


def test_a_ticket_that_can_never_fit_is_refused_at_once():
    gate = CheckedGate(FIFO(), TokenBucket(1.0, burst=4))
    (a,) = offered(gate, "a", cost=5)
    assert a.state is State.REFUSED
    assert "larger than bucket 4" in str(a.reason)


def test_a_ticket_that_can_never_fit_is_refused_in_mid_queue():
    gate = CheckedGate(FIFO(), TokenBucket(1.0, burst=4))
    offered(gate, "a", cost=4)
    b, never, c = (
        offered(gate, "b", now=0.5),
        offered(gate, "n", now=0.5, cost=5),
        offered(gate, "c", now=0.5),
    )
    assert states(*b, *never, *c) == ["waiting", "waiting", "waiting"]
    assert gate.advance(1.0) == [*b, *never]
    assert states(*b, *never, *c) == ["running", "refused", "waiting"]
    assert gate.waiting == 1


def test_room_beats_a_queue_limit_of_zero():
    gate = CheckedGate(FIFO(limit=0), Slots(1))
    a, b = offered(gate, "a", "b")
    assert states(a, b) == ["running", "refused"]
    assert b.reason == ("", 0, 0)
    assert gate.waiting == 0


def test_a_limit_counts_the_waiting_alone():
    gate = CheckedGate(FIFO(limit=2), Slots(2))
    tickets = offered(gate, *"abcde")
    assert states(*tickets) == ["running", "running", "waiting", "waiting", "refused"]
    gate.finish(tickets[0], 1.0)
    assert offered(gate, "f", now=1.0)[0].state is State.WAITING


def test_each_class_has_its_own_limit():
    gate = CheckedGate(
        Classes(Level("bulk", queue_limit=1), Level("interactive", queue_limit=2)), Slots(1)
    )
    offered(gate, "a")
    bulk = offered(gate, "b", "c", rank=0)
    interactive = offered(gate, "d", "e", "f", rank=1)
    assert states(*bulk) == ["waiting", "refused"]
    assert states(*interactive) == ["waiting", "waiting", "refused"]
    assert bulk[1].reason == ("bulk", 1, 1)


def test_each_flow_has_its_own_limit():
    gate = CheckedGate(
        FairQueue("tenant", inside=lambda key: FIFO(name=str(key), limit=1)), Slots(1)
    )
    offered(gate, "z", tenant="z")
    a = offered(gate, "a1", "a2", tenant="a")
    b = offered(gate, "b1", "b2", tenant="b")
    assert states(*a, *b) == ["waiting", "refused", "waiting", "refused"]
    assert a[1].reason == ("a", 1, 1)


def test_a_limit_over_all_classes_holds_beside_their_own():
    gate = CheckedGate(Classes(Level("bulk"), Level("interactive"), limit=1, name="all"), Slots(0))
    a, b = *offered(gate, "a", rank=0), *offered(gate, "b", rank=1)
    assert states(a, b) == ["waiting", "refused"]


def test_a_class_that_is_not_there_changes_nothing():
    gate = CheckedGate(Classes(Level("bulk")), Slots(1))
    for _ in range(2):  # once beside free room, once beside none
        for rank in (-1, 1):
            before = standing(gate)
            ticket = Ticket("bad", rank=rank)
            with pytest.raises(ConfigError, match="rank must be"):
                gate.offer(ticket, 0.0)
            assert ticket.state is State.NEW
            assert standing(gate)[1:] == before[1:]
        offered(gate, "a", rank=0)


def test_a_gate_adopts_what_runs_at_another():
    """They hold room at the new one, above its limit if need be; what was used up by starting is not charged again."""
    old = Gate(FIFO(), Both(InFlight(3), TokenBucket(1.0, burst=3)))
    running = [Ticket(number) for number in range(3)]
    for ticket in running:
        old.offer(ticket, 0.0)
    bucket = TokenBucket(1.0, burst=3)
    gate = Gate(FIFO(), Both(InFlight(2, expire_after=10.0), bucket))
    gate.adopt(old.surrender(), 1.0)
    assert (old.active, gate.active, bucket.level(1.0)) == (0, 3, 3)
    late = Ticket("late")
    gate.offer(late, 1.0)
    assert gate.finish(running[0], 2.0) == []
    assert gate.finish(running[1], 2.0) == [late]
    assert gate.advance(11.0) == [running[2]]  # held as long as it may, counted from the adoption
    assert gate.late == 0


def test_a_gate_has_no_more_attributes_than_python_finds_at_once():
    """CPython 3.11 keeps up to 29 beside the object; with one more, every one is looked up in a dictionary."""
    assert len(vars(Gate(FIFO(), Slots(1)))) <= 29


def test_slots_that_are_more_than_a_number_are_asked():
    """The gate counts plain slots itself; what a subclass adds is not passed by, unless it says that it may be."""

    class EvenSeconds(Slots):
        def refusal(self, ticket: Ticket, now: float, without: Ticket | None = None) -> Any:
            return STOP if now % 2 else super().refusal(ticket, now, without)

    assert (Slots.counts, EvenSeconds.counts) == (True, False)
    gate = CheckedGate(FIFO(), EvenSeconds(2))
    odd, even = Ticket("odd"), Ticket("even")
    gate.offer(odd, 1.0)
    assert odd.state is State.WAITING
    assert gate.offer(even, 2.0) == [odd]
    assert even.state is State.RUNNING


@pytest.mark.parametrize("look", [False, True])
def test_the_deadline_of_one_that_has_left_decides_nothing(look):
    """A bound on what is due may be too early: whether somebody looked at it must not show in the order."""
    gate = Gate(FairQueue("tenant"), Both(Pools({"gpu": 0, "ocr": 1}), TokenBucket(1.0, burst=4)))
    never = Ticket("never", cost=5, tenant="b", pool="ocr", wait_until=45.5)
    gate.offer(never, 45.0)
    assert never.state is State.REFUSED
    if look:
        gate.next_wakeup(45.0)
    gate.offer(Ticket("at once", tenant="a", pool="ocr"), 45.5)
    first, second = Ticket("b", tenant="b", pool="gpu"), Ticket("a", tenant="a", pool="gpu")
    gate.offer(first, 56.0)
    gate.offer(second, 57.0)
    assert gate.adjust(Change("pools", "resize", ("gpu", 1)), 58.0) == [first]
