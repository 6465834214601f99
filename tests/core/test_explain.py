"""Every reason to wait is told as the dispatcher met it."""

from collections.abc import Hashable

from fairlead.capacities import Both, InFlight, Pools, Reserved, Slots, TokenBucket
from fairlead.core import FULL, NEVER, STOP, Gate, Hold, State, Ticket
from fairlead.core.ticket import Evicted
from fairlead.policies import FIFO, Aging, Classes, FairQueue, Level, Planner
from fairlead.testing import CheckedGate


class Listening(CheckedGate):
    """Keeps what the dispatcher was last told about each ticket."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.told: dict[Ticket, Hashable] = {}

    def _admit(self, ticket: Ticket) -> Hashable | None:
        refusal = super()._admit(ticket)
        full = self._full and not self._lasts  # a STOP that lasts is remembered as well
        self.told[ticket] = FULL if refusal is STOP and full else refusal
        return refusal


def offer(gate: Gate, key: str, now: float = 0.0, **fields) -> Ticket:
    ticket = Ticket(key, **fields)
    gate.offer(ticket, now)
    return ticket


def tenant(ticket: Ticket) -> object:
    return ticket.tenant


def agrees(gate: Listening, ticket: Ticket, blocked_by: Hashable) -> str:
    explanation = gate.explain(ticket, gate.now)
    assert explanation.state is State.WAITING
    assert explanation.blocked_by == blocked_by == gate.told[ticket]
    return explanation.text


def test_all_slots_in_use():
    gate = Listening(FIFO(), Both(Slots(1), TokenBucket(1.0, burst=9)))
    offer(gate, "a")
    b = offer(gate, "b")
    gate._full = False
    gate.advance(1.0)
    assert agrees(gate, b, FULL) == "waits: all 1 slots are in use"


def test_a_full_pool():
    gate = Listening(FIFO(), Pools({"ocr": 1}))
    offer(gate, "a", pool="ocr")
    assert "all 1 slots of pool 'ocr'" in agrees(
        gate, offer(gate, "b", pool="ocr"), ("pools", "ocr")
    )
    assert "no pool 'gpu'" in agrees(gate, offer(gate, "c", pool="gpu"), ("pools", "gpu"))


def test_a_scope_closed_for_another():
    gate = Listening(FIFO(), InFlight(4, by=tenant))
    offer(gate, "a", cost=3, tenant="t")
    big = offer(gate, "big", cost=4, tenant="t")
    small = offer(gate, "small", tenant="t")
    agrees(gate, big, ("in flight", "t"))
    gate.told[small] = gate.closed_to(small)  # in one lane with the big one, so never asked
    assert "'big' of 't' ranks earlier" in agrees(gate, small, ("in flight", "t"))


def test_of_a_closed_scope_and_an_own_refusal_the_closed_one_is_told_as_it_was_used():
    gate = Listening(FIFO(), Both(InFlight(4, by=tenant), Pools({"ocr": 2, "gpu": 0})))
    offer(gate, "a", cost=3, tenant="t", pool="ocr")
    offer(gate, "big", cost=4, tenant="t", pool="ocr")
    agrees(gate, offer(gate, "c", cost=1, tenant="t", pool="gpu"), ("in flight", "t"))


def test_tokens_that_come_with_time():
    gate = Listening(FIFO(), TokenBucket(2.0, burst=4))
    offer(gate, "a", cost=4)
    b = offer(gate, "b", now=0.5, cost=3)
    text = agrees(gate, b, STOP)
    assert (
        text == "waits: it needs 3 tokens and there are 1 (for 1 s more if nothing is given back)"
    )
    assert gate.explain(b, 0.5).ready_at == 1.5
    assert gate.next_wakeup(0.5) == 1.5


def test_a_reservation():
    gate = Listening(Classes(Level("bulk"), Level("interactive")), Reserved(2, (0, 1), lend=False))
    offer(gate, "a")
    text = agrees(gate, offer(gate, "b"), Hold(0))
    assert "1 of 2 slots are free but reserved for higher classes" in text
    assert "class 'bulk' stands behind 0 of higher classes" in text


def test_one_that_ranks_earlier_and_stops_the_line():
    gate = Listening(FIFO(), InFlight(4))
    offer(gate, "a", cost=3)
    offer(gate, "big", cost=4)
    small = offer(gate, "small")
    explanation = gate.explain(small, 0.0)
    assert explanation.blocked_by is STOP
    assert "'big' ranks earlier, and it needs 4 beside 3 of 4" in explanation.text


def test_what_can_never_fit_and_has_not_been_reached():
    gate = CheckedGate(FIFO(), Both(Slots(1), TokenBucket(1.0, burst=4)))
    offer(gate, "a")
    offer(gate, "b")  # finds it full, so nobody behind it is asked
    never = offer(gate, "never", cost=5)
    explanation = gate.explain(never, 0.0)
    assert explanation.blocked_by is NEVER
    assert "larger than bucket 4" in explanation.text


def test_a_claim_on_the_way():
    gate = CheckedGate(Classes(Level("bulk"), Level("top")), Slots(1))
    offer(gate, "victim", evictable=True)
    head = offer(gate, "head", rank=1, can_preempt=True)
    explanation = gate.explain(head, 0.0)
    assert explanation.blocked_by == "claim"
    assert "evicted" in explanation.text


def test_what_a_plan_leaves_out():
    gate = CheckedGate(Planner(lambda waiting, now: waiting[1:], name="second"), Slots(1))
    a = offer(gate, "a")
    explanation = gate.explain(a, 0.0)
    assert explanation.blocked_by == "order"
    assert "planner second withholds it" in explanation.text


def test_policies_add_their_own_view():
    gate = CheckedGate(FairQueue("tenant", inside=Aging), Slots(0))
    a = offer(gate, "a", tenant="t", priority=20)
    text = gate.explain(a, 5.0).text
    assert "flow 't' (weight 1)" in text
    assert "priority 20 has aged to 30" in text


def test_what_does_not_wait():
    gate = CheckedGate(FIFO(limit=0), TokenBucket(1.0, burst=1))
    running, refused = offer(gate, "running"), offer(gate, "refused")
    never = offer(gate, "never", cost=2)
    texts = [gate.explain(ticket, 0.0).text for ticket in (running, refused, never, Ticket("new"))]
    assert texts[0] == "running"
    assert texts[1] == "refused: the queue was full (0 of 0)"
    assert texts[2].startswith("refused: its cost 2 is larger")
    assert texts[3] == "new"
    assert all(gate.explain(t, 0.0).blocked_by is None for t in (running, refused, never))


def test_explaining_changes_nothing():
    gate = CheckedGate(Classes(Level("bulk", starvation=1.0), Level("top")), Reserved(2, (0, 1)))
    tickets = [offer(gate, str(n), rank=n % 2, evictable=True) for n in range(6)]
    before = (
        gate.now,
        gate.waiting,
        gate.active,
        gate.next_wakeup(0.0),
        [t.state for t in tickets],
    )
    for ticket in tickets:
        gate.explain(ticket, 0.0)
    after = (gate.now, gate.waiting, gate.active, gate.next_wakeup(0.0), [t.state for t in tickets])
    assert after == before


def test_a_preemptor_without_a_key_is_one():
    assert str(Evicted(None, 3)) == "for one of a higher class"
    assert str(Evicted("a", 3)) == "for 'a' of a higher class"


def test_who_is_kept_out_behind_another_is_told_of_the_reservation_in_words():
    gate = CheckedGate(
        Classes(Level("bulk"), Level("interactive")), Reserved(2, (0, 1), lend=False)
    )
    running, first, second = (Ticket(key, rank=0) for key in ("running", "first", "second"))
    for ticket in (running, first, second):
        gate.offer(ticket, 0.0)
    said = gate.explain(second, 0.0).text
    assert "'first' ranks earlier and is kept out by the same reservation" in said


def test_behind_others_at_a_bucket_the_first_is_named_and_no_time_of_its_own_is_promised():
    gate = CheckedGate(FIFO(), TokenBucket(1.0, burst=1))
    tickets = [offer(gate, f"t{number}") for number in range(11)]
    assert "(for 1 s more if nothing is given back)" in gate.explain(tickets[1], 0.0).text
    last = gate.explain(tickets[-1], 0.0)
    assert last.text == "waits: 't1' ranks earlier, and it needs 1 tokens and there are 0"
    assert (last.blocked_by, last.ready_at) == (STOP, 1.0)  # as it is for t1


def test_behind_others_at_a_bucket_of_its_own_scope():
    gate = CheckedGate(FIFO(), TokenBucket(1.0, burst=1, by=tenant))
    tickets = [offer(gate, f"t{number}", tenant="t") for number in range(3)]
    last = gate.explain(tickets[-1], 0.0)
    assert "'t1' of 't' ranks earlier and waits for the same" in last.text
    assert last.ready_at == 1.0  # it is no deadlock


def test_behind_a_claim():
    gate = CheckedGate(FIFO(), InFlight(5))
    offer(gate, "victim", evictable=True)
    offer(gate, "claim", rank=1, cost=5, can_preempt=True)
    behind = gate.explain(offer(gate, "behind"), 0.0)
    assert behind.text == "waits: 'claim' ranks earlier, and room is being freed for it"
    assert behind.blocked_by is STOP


def test_behind_a_starved_one_that_stops_the_line():
    gate = CheckedGate(Classes(Level("bulk", starvation=2.0), Level("top")), InFlight(4))
    offer(gate, "holder", cost=2)
    offer(gate, "big", cost=3)
    behind = gate.explain(offer(gate, "top", now=5.0, rank=1), 5.0)
    assert "'big' ranks earlier, and it needs 3 beside 2 of 4" in behind.text
    assert behind.blocked_by is STOP
