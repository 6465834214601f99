"""Who is evicted, for whom, and what becomes of the room."""

from math import inf

import pytest

from fairlead.capacities import Both, InFlight, Pools, Reserved, Slots, TokenBucket
from fairlead.core import Change, Gate, State, Ticket
from fairlead.errors import Misuse
from fairlead.policies import FIFO, Classes, Level
from fairlead.testing import CheckedGate

CLASSES = (Level("bulk"), Level("default"), Level("interactive"), Level("system"))


def classes() -> Classes:
    return Classes(*CLASSES)


def run(gate: Gate, key: str, rank: int = 0, now: float = 0.0, **fields) -> Ticket:
    ticket = Ticket(key, rank=rank, evictable=True, **fields)
    gate.offer(ticket, now)
    return ticket


def preempt(
    gate: Gate, key: str, rank: int = 3, now: float = 1.0, **fields
) -> tuple[Ticket, list[Ticket]]:
    ticket = Ticket(key, rank=rank, can_preempt=True, **fields)
    return ticket, list(gate.offer(ticket, now))


def test_the_newest_of_the_lowest_class_is_evicted():
    gate = CheckedGate(classes(), Slots(4))
    run(gate, "old", 0)
    newest = run(gate, "newest", 0, now=0.5)
    run(gate, "higher", 1, now=0.6)
    run(gate, "highest", 2, now=0.7)
    _, changed = preempt(gate, "head")
    assert changed == [newest]
    assert newest.state is State.EVICTED


def test_an_equal_class_is_never_evicted():
    gate = CheckedGate(classes(), Slots(1))
    holder = run(gate, "holder", 2)
    head, changed = preempt(gate, "head", 2)
    assert (changed, holder.state, head.state) == ([], State.RUNNING, State.WAITING)


def test_a_higher_class_is_never_evicted():
    gate = CheckedGate(classes(), Slots(1))
    run(gate, "holder", 3)
    assert preempt(gate, "head", 1)[1] == []


def test_the_evicted_holds_its_room_until_it_is_finished():
    gate = CheckedGate(classes(), Slots(1))
    victim = run(gate, "victim")
    head, _ = preempt(gate, "head")
    assert (gate.active, head.state) == (1, State.WAITING)
    assert gate.claimed(head)
    assert gate.finish(victim, 2.0) == [head]
    assert (victim.state, head.state, gate.active) == (State.EVICTED, State.RUNNING, 1)


def test_an_evicted_ticket_cannot_commit():
    gate = CheckedGate(classes(), Slots(1))
    victim = run(gate, "victim")
    preempt(gate, "head")
    assert gate.commit(victim) is False
    gate.finish(victim, 2.0)
    assert gate.commit(victim) is False


def test_a_committed_ticket_is_immune():
    gate = CheckedGate(classes(), Slots(1))
    holder = run(gate, "holder")
    assert gate.commit(holder)
    assert preempt(gate, "head")[1] == []
    gate.finish(holder, 2.0)
    with pytest.raises(Misuse):
        gate.commit(holder)


def test_only_evictable_tickets_are_evicted_and_only_preemptors_evict():
    gate = CheckedGate(classes(), Slots(1))
    gate.offer(Ticket("holder", rank=0), 0.0)
    assert preempt(gate, "head")[1] == []
    gate = CheckedGate(classes(), Slots(1))
    run(gate, "holder")
    assert gate.offer(Ticket("meek", rank=3), 1.0) == []


def test_a_victim_stands_in_the_pool_of_the_head():
    gate = CheckedGate(classes(), Pools({"ocr": 1, "gpu": 1}))
    run(gate, "ocr", pool="ocr")
    gpu = run(gate, "gpu", pool="gpu")
    assert preempt(gate, "head", pool="gpu")[1] == [gpu]


def test_nobody_is_evicted_unless_that_admits_the_head():
    gate = CheckedGate(classes(), Both(Slots(1), TokenBucket(0.1, burst=1)))
    run(gate, "holder")
    assert preempt(gate, "head")[1] == []  # its slot would not bring tokens
    gate = CheckedGate(classes(), InFlight(4))
    run(gate, "small", cost=1)
    run(gate, "other", rank=3, cost=3)
    assert preempt(gate, "head", cost=3)[1] == []


def test_a_larger_victim_of_a_higher_class_is_found_if_the_lowest_is_too_small():
    gate = CheckedGate(classes(), InFlight(4))
    run(gate, "small", 0, cost=1)
    large = run(gate, "large", 1, cost=3)
    assert preempt(gate, "head", cost=3)[1] == [large]


def test_nobody_is_evicted_beside_free_room():
    """The head may be kept from room by order alone; eviction would not change that."""
    gate = CheckedGate(Classes(Level("bulk", starvation=1.0), Level("top")), InFlight(4))
    run(gate, "holder")
    gate.offer(Ticket("starved and big", cost=4), 0.0)
    head, changed = preempt(gate, "head", 1, now=5.0)
    assert (changed, head.state) == ([], State.WAITING)


def test_one_verb_evicts_one():
    gate = CheckedGate(classes(), Slots(3))
    for key in "abc":
        run(gate, key)
    for number in range(3):
        head, changed = preempt(gate, f"head {number}", now=1.0 + number)
        assert [ticket.state for ticket in changed] == [State.EVICTED]
        assert gate.claimed(head)


def test_one_verb_evicts_one_though_two_wait_for_it():
    gate = CheckedGate(FIFO(), Slots(0))
    tickets = [Ticket(n, rank=n, evictable=n < 2, can_preempt=n >= 2) for n in range(4)]
    for ticket in tickets:
        gate.offer(ticket, 0.0)
    changed = gate.adjust(Change("slots", "resize", (2,)), 1.0)
    assert [t.state for t in changed] == [State.EVICTED, State.RUNNING]
    assert gate.claimed(tickets[2])
    assert not gate.claimed(tickets[3])


def test_eviction_serves_the_head_of_the_line_not_the_newcomer():
    gate = CheckedGate(FIFO(), Slots(1))
    holder = run(gate, "holder", 1)
    first, _ = preempt(gate, "first", 1)  # finds nobody below itself
    newcomer, changed = preempt(gate, "newcomer", 3)
    assert changed == []
    assert not gate.claimed(newcomer)
    assert gate.finish(holder, 2.0) == [first]


def test_a_claim_is_served_before_any_pick():
    gate = CheckedGate(classes(), Slots(2))
    victim = run(gate, "victim")
    other = Ticket("other", rank=3)
    gate.offer(other, 0.0)
    claim, _ = preempt(gate, "claim", 1)
    system = Ticket("system", rank=3)
    gate.offer(system, 2.0)
    assert gate.finish(victim, 3.0) == [claim]
    assert system.state is State.WAITING


def test_a_claim_takes_whichever_room_comes_first():
    gate = CheckedGate(classes(), Slots(2))
    victim = run(gate, "victim")
    other = Ticket("other", rank=3)
    gate.offer(other, 0.0)
    claim, _ = preempt(gate, "claim", 1)
    assert gate.finish(other, 2.0) == [claim]
    assert gate.finish(victim, 3.0) == []
    assert gate.active == 1


def test_the_room_of_a_claim_whose_owner_left_is_for_the_next_preemptor():
    gate = CheckedGate(classes(), Slots(2))
    run(gate, "spared")
    victim = run(gate, "victim", now=0.5)
    first, changed = preempt(gate, "first")
    assert changed == [victim]
    gate.withdraw([first], 2.0)
    second, changed = preempt(gate, "second", now=3.0)
    assert changed == []  # no second kill
    assert gate.claimed(second)
    assert gate.finish(victim, 4.0) == [second]


def test_an_orphaned_kill_is_reused_by_one_who_waits_already():
    gate = CheckedGate(classes(), Slots(1))
    victim = run(gate, "victim")
    first, _ = preempt(gate, "first")
    second, changed = preempt(gate, "second", now=1.5)
    assert (changed, gate.claimed(second)) == ([], False)
    gate.withdraw([first], 2.0)
    assert gate.claimed(second)
    assert gate.finish(victim, 3.0) == [second]


def test_an_orphaned_kill_in_another_pool_is_not_reused():
    gate = CheckedGate(classes(), Pools({"ocr": 1, "gpu": 1}))
    run(gate, "ocr", pool="ocr")
    gpu = run(gate, "gpu", pool="gpu")
    first, _ = preempt(gate, "first", pool="ocr")
    gate.withdraw([first], 2.0)
    assert preempt(gate, "second", pool="gpu", now=3.0)[1] == [gpu]


def test_an_expired_claim_leaves_too():
    gate = CheckedGate(classes(), Slots(1))
    victim = run(gate, "victim")
    claim, _ = preempt(gate, "claim", wait_until=5.0)
    assert gate.advance(5.0) == [claim]
    assert (claim.state, gate.waiting) == (State.EXPIRED, 0)
    assert gate.finish(victim, 6.0) == []


def test_a_sold_claim_stands_when_the_room_comes_back_smaller():
    gate = CheckedGate(classes(), Slots(1))
    victim = run(gate, "victim")
    claim, _ = preempt(gate, "claim")
    gate.adjust(Change("slots", "resize", (0,)), 2.0)
    assert gate.finish(victim, 3.0) == []
    assert gate.claimed(claim)
    assert gate.adjust(Change("slots", "resize", (1,)), 4.0) == [claim]


def test_no_pick_takes_the_room_a_claim_waits_for():
    """Small tickets would otherwise keep a big claim from ever fitting."""
    gate = CheckedGate(FIFO(), InFlight(4))
    victim = run(gate, "victim", cost=3)
    gate.offer(Ticket("other", rank=3), 0.0)
    claim, changed = preempt(gate, "claim", cost=3)
    assert changed == [victim]
    small = Ticket("small", rank=3)
    gate.offer(small, 2.0)
    gate.adjust(Change("in flight", "resize", (5,)), 3.0)
    assert small.state is State.WAITING
    assert gate.finish(victim, 4.0) == [claim, small]


def test_what_started_on_a_claim_is_immune():
    gate = CheckedGate(classes(), Slots(1))
    victim = run(gate, "victim")
    claim = Ticket("claim", rank=1, can_preempt=True, evictable=True)
    gate.offer(claim, 1.0)
    gate.finish(victim, 2.0)
    assert claim.state is State.RUNNING
    assert preempt(gate, "higher", now=3.0)[1] == []


def test_what_was_evicted_thrice_is_immune():
    gate = CheckedGate(classes(), Slots(2))
    run(gate, "thrice", evictions=3)
    twice = run(gate, "twice", 1, evictions=2)
    assert preempt(gate, "head")[1] == [twice]


def test_what_was_promoted_is_immune():
    gate = CheckedGate(
        Classes(Level("bulk", starvation=1.0), Level("default"), Level("system")), Slots(1)
    )
    holder = Ticket("holder", rank=2)
    gate.offer(holder, 0.0)
    starved = run(gate, "starved")
    gate.offer(Ticket("default", rank=1), 0.0)
    assert gate.finish(holder, 5.0) == [starved]
    assert starved.promoted
    assert preempt(gate, "head", 2, now=6.0)[1] == []


def test_a_waiter_without_a_victim_tries_again_when_a_lower_class_starts():
    gate = CheckedGate(FIFO(), Pools({"ocr": 1, "gpu": 1}))
    blocker = Ticket("blocker", rank=3, pool="gpu")
    gate.offer(blocker, 0.0)
    low = Ticket("low", rank=0, pool="gpu", evictable=True)
    gate.offer(low, 0.0)
    head, changed = preempt(gate, "head", pool="gpu")
    assert changed == []
    changed = list(gate.finish(blocker, 2.0))
    assert low in changed
    assert low.state is State.EVICTED
    assert gate.claimed(head)


def test_a_waiter_without_a_victim_tries_again_when_capacity_changes():
    gate = CheckedGate(classes(), InFlight(4))
    victim = run(gate, "victim", cost=1)
    gate.offer(Ticket("other", rank=3, cost=3), 0.0)
    head, changed = preempt(gate, "head", cost=2)
    assert changed == []
    assert gate.adjust(Change("in flight", "resize", (5,)), 2.0) == [victim]
    assert gate.claimed(head)


@pytest.mark.parametrize("leaves", ["withdraw", "expire"])
def test_the_one_behind_a_claim_starts_when_the_claim_is_given_up(leaves):
    gate = CheckedGate(FIFO(), InFlight(5))
    holders = [run(gate, f"holder {number}") for number in range(5)]
    claim, changed = preempt(gate, "claim", cost=2, wait_until=4.0 if leaves == "expire" else inf)
    assert changed == []  # no one holder's room would do
    gate.finish(holders[0], 2.0)
    behind, _ = preempt(gate, "behind", rank=0, now=3.0)
    assert gate.claimed(claim)
    assert behind.state is State.WAITING
    if leaves == "expire":
        assert gate.advance(4.0) == [claim, behind]
    else:
        assert gate.withdraw([claim], 4.0) == [behind]


def test_the_lost_are_ended_also_when_evicted():
    gate = CheckedGate(classes(), Slots(1))
    victim = run(gate, "victim", hold_until=5.0)
    claim, _ = preempt(gate, "claim")
    assert gate.advance(5.0) == [victim, claim]
    assert (victim.state, claim.state) == (State.EXPIRED, State.RUNNING)
    assert gate.finish(victim, 6.0) == []
    assert gate.late == 1


def test_evicted_and_ended_at_one_instant_is_told_once():
    gate = CheckedGate(classes(), Slots(1))
    victim = run(gate, "victim", hold_until=1.0)
    claim, changed = preempt(gate, "claim")
    assert changed == [victim]
    assert (victim.state, claim.state) == (State.EXPIRED, State.RUNNING)


def test_eviction_passes_no_reservation():
    gate = CheckedGate(classes(), Reserved(2, (0, 0, 0, 1), lend=False))
    victim = run(gate, "victim", 0)
    _, changed = preempt(gate, "head", 1)
    assert changed == [victim]  # the slot it frees is one the head may use
    gate = CheckedGate(classes(), Reserved(2, (0, 0, 0, 2), lend=False))
    gate.offer(Ticket("system", rank=3), 0.0)
    assert preempt(gate, "head", 1)[1] == []
