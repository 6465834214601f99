"""Refusals that name a scope: who is asked, who is not, and how few questions that takes."""

from collections.abc import Callable, Hashable
from math import inf

import pytest

from fairlead.capacities import Both, InFlight, Pools, Reserved, Slots, TokenBucket
from fairlead.core import STOP, Capacity, Change, Gate, Hold, Policy, State, Ticket
from fairlead.core.scopes import Scopes
from fairlead.policies import FIFO, Aging, Classes, FairQueue, Level
from fairlead.testing import CheckedGate


class ByKey(Policy):
    def key(self, ticket: Ticket) -> int:
        return -ticket.priority


def tenant(ticket: Ticket) -> object:
    return ticket.tenant


def offer(gate: Gate, key: str, now: float = 0.0, **fields) -> Ticket:
    ticket = Ticket(key, **fields)
    gate.offer(ticket, now)
    return ticket


def test_a_full_pool_stops_its_own_tickets_alone():
    gate = CheckedGate(FIFO(), Pools({"ocr": 1, "gpu": 1}))
    a, b, c = (
        offer(gate, key, pool=pool) for key, pool in (("a", "ocr"), ("b", "ocr"), ("c", "gpu"))
    )
    assert [t.state for t in (a, b, c)] == [State.RUNNING, State.WAITING, State.RUNNING]


def test_a_closed_scope_is_closed_to_what_ranks_later():
    """Else small costs would pass a big one for ever."""
    gate = CheckedGate(FIFO(), InFlight(4, by=tenant))
    offer(gate, "a", cost=3, tenant="t")
    big = offer(gate, "big", cost=4, tenant="t")
    small = offer(gate, "small", cost=1, tenant="t")
    other = offer(gate, "other", cost=1, tenant="u")
    assert [t.state for t in (big, small, other)] == [
        State.WAITING,
        State.WAITING,
        State.RUNNING,
    ]
    assert gate.closed_to(small) == ("in flight", "t")
    assert gate.closed_by(("in flight", "t")) is big


@pytest.mark.parametrize("policy", [ByKey, lambda: Aging(rate=0)])
def test_a_closed_scope_is_tried_by_a_newcomer_that_ranks_earlier(policy):
    gate = CheckedGate(policy(), InFlight(4, by=tenant))
    offer(gate, "a", cost=3, tenant="t")
    big = offer(gate, "big", cost=4, tenant="t", priority=50)
    urgent = offer(gate, "urgent", cost=1, tenant="t", priority=90)
    assert (big.state, urgent.state) == (State.WAITING, State.RUNNING)


def test_a_newcomer_that_heads_a_parked_lane_is_asked_before_the_one_that_was_woken():
    gate = CheckedGate(ByKey(), Both(Slots(1), InFlight(1, by=tenant)))
    first = offer(gate, "first", tenant="t", priority=99)
    for number in range(3):
        offer(gate, f"later {number}", tenant="t", priority=10)
    urgent = offer(gate, "urgent", tenant="t", priority=90)
    assert gate.finish(first, 1.0) == [urgent]


def test_the_wake_is_passed_on_until_the_scope_refuses_again():
    gate = CheckedGate(Aging(rate=0), InFlight(3, by=tenant))
    holder = offer(gate, "holder", cost=3, tenant="t")
    waiting = [offer(gate, str(number), tenant="t", priority=number) for number in range(5)]
    assert gate.finish(holder, 1.0) == waiting[:1:-1]
    assert [ticket.state for ticket in waiting[:2]] == [State.WAITING, State.WAITING]


def test_the_one_who_closed_a_scope_opens_it_by_leaving():
    gate = CheckedGate(FIFO(), InFlight(4, by=tenant))
    offer(gate, "a", cost=3, tenant="t")
    big = offer(gate, "big", cost=4, tenant="t")
    small = offer(gate, "small", cost=1, tenant="t")
    assert gate.withdraw([big], 1.0) == [small]


def test_a_scope_opens_when_its_time_has_come():
    gate = CheckedGate(FIFO(), TokenBucket(1.0, burst=1, by=tenant))
    offer(gate, "a", tenant="t")
    b = offer(gate, "b", tenant="t")
    assert gate.next_wakeup(0.0) == 1.0
    assert gate.advance(1.0) == [b]


def test_a_limit_raised_from_nothing_opens_every_scope():
    gate = CheckedGate(FIFO(), InFlight(0, by=tenant))
    waiting = [offer(gate, tenant, tenant=tenant) for tenant in "abc"]
    assert gate.adjust(Change("in flight", "resize", (1,)), 1.0) == waiting


def test_a_part_inside_a_part_tells_what_it_opened():
    inner = Both(Pools({"ocr": 1}), InFlight(1, by=tenant), name="inner")
    gate = CheckedGate(FIFO(), Both(inner, Slots(4)))
    a, b = offer(gate, "a", pool="ocr", tenant="t"), offer(gate, "b", pool="ocr", tenant="u")
    assert gate.finish(a, 1.0) == [b]


def test_holds_open_also_when_another_part_opens_something_first():
    gate = CheckedGate(
        Classes(Level("bulk"), Level("interactive")),
        Both(InFlight(9, by=tenant), Reserved(2, (0, 1), lend=False)),
    )
    a, b = offer(gate, "a", tenant="t"), offer(gate, "b", tenant="t")
    assert gate.closed_by(Hold(0)) is b
    assert gate.finish(a, 1.0) == [b]


def test_timers_of_one_instant_never_compare_scopes():
    scopes = Scopes(FIFO(), TokenBucket(1.0, burst=5), inf)
    for scope in (STOP, ("tokens", "a"), Hold(0)):
        scopes.expect(scope, 5.0, 0.0)
    assert list(scopes.ripe(5.0)) == [("tokens", "a"), Hold(0)]
    assert scopes.soonest() == scopes.everyone_at == 5.0


def test_a_capacity_that_promises_now_and_refuses_does_not_stop_time():
    class Liar(Capacity):
        def refusal(self, ticket, now, without=None):
            return STOP

        def ready_at(self, ticket, now, scope):
            return now

    gate = Gate(FIFO(), Liar())
    ticket = Ticket("a", wait_until=1.0)
    gate.offer(ticket, 0.0)
    assert gate.next_wakeup(0.0) > 0.0


class Counting(InFlight):
    """Counts the questions."""

    asked = 0

    def refusal(self, ticket: Ticket, now: float, without: Ticket | None = None) -> Hashable | None:
        self.asked += 1
        return super().refusal(ticket, now, without)


def exhausted(policy: Policy, keys: int) -> tuple[Gate, Counting, list[Ticket]]:
    """A gate beside which many keys have used up their room and wait for more."""
    capacity = Counting(1, by=tenant)
    gate = Gate(policy, capacity)
    holders = []
    for number in range(keys):
        holders.append(offer(gate, f"{number} runs", tenant=number, workload=number % 7))
        offer(gate, f"{number} waits", tenant=number, workload=number % 7)
    assert gate.waiting == keys
    return gate, capacity, holders


SHAPES: dict[str, Callable[[], Policy]] = {
    "fifo": FIFO,
    "key": ByKey,
    "aging": Aging,
    "classes": lambda: Classes(Level("only")),
    "fair": lambda: FairQueue("tenant"),
    "fair of fair": lambda: FairQueue("workload", inside=lambda key: FairQueue("tenant")),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_number_of_questions_does_not_grow_with_the_exhausted_keys(shape: str):
    keys = 10_000 if shape == "fifo" else 1_000
    gate, capacity, holders = exhausted(SHAPES[shape](), keys)

    def questions(verb, *args) -> int:
        before = capacity.asked
        verb(*args)
        return capacity.asked - before

    assert questions(gate.offer, Ticket("free", tenant="new"), 1.0) <= 3
    assert questions(gate.offer, Ticket("parked", tenant=5, workload=5), 1.0) <= 3
    assert questions(gate.finish, holders[9], 1.0) <= 3
    assert questions(gate.advance, 2.0) <= 3
    assert questions(gate.withdraw, [next(iter(gate.policy))], 2.0) <= 3


def test_a_class_is_not_kept_closed_for_one_old_ticket():
    """Its own class would wait with it, and it with them, for ever."""
    gate = CheckedGate(
        Classes(Level("bulk"), Level("top")),
        Both(InFlight(1, by=tenant), Reserved(4, (0, 1))),
        reserve_after=0.0,
    )
    holder = offer(gate, "holder", rank=1, tenant="a")
    offer(gate, "old", rank=1, tenant="a")
    other = offer(gate, "other", rank=1, tenant="b")
    assert (holder.state, other.state) == (State.RUNNING, State.RUNNING)


def two_scarce_things(reserve_after: float) -> list[str]:
    """A ticket that needs both a gpu slot and a tenant's token, among streams that need one of them each."""
    gate = CheckedGate(
        FIFO(),
        Both(Pools({"gpu": 1, "cpu": 9}), InFlight(2, by=tenant)),
        reserve_after=reserve_after,
    )
    gpu = offer(gate, "gpu 0", pool="gpu", tenant="other", cost=0)
    light = [offer(gate, f"light {n}", pool="cpu", tenant="t") for n in range(2)]
    both = offer(gate, "both", 1.0, pool="gpu", tenant="t", cost=2)
    for number in range(1, 20):
        now = 1.0 + number
        if both.state is State.WAITING:
            # Before either thing comes free the next user of it stands in line already.
            offer(gate, f"gpu {number}", now, pool="gpu", tenant="other", cost=0)
            light.append(offer(gate, f"light {number + 1}", now, pool="cpu", tenant="t"))
            for changed in gate.finish(light.pop(0), now):
                assert changed.state is State.RUNNING
            if number % 3 == 0:
                gpu, *_ = [t for t in gate.holders if t.pool == "gpu"] or [gpu]
                gate.finish(gpu, now)
    return [ticket.key for ticket in gate.holders]  # type: ignore[misc]


def test_an_old_ticket_reserves_the_scarce_things_it_needs():
    assert "both" in two_scarce_things(reserve_after=0.0)


def test_without_the_reservation_it_starves():
    """The control: the scenario above is one in which the reservation matters."""
    assert "both" not in two_scarce_things(reserve_after=inf)


def test_promotions_that_are_refused_leave_a_scope_to_the_one_it_was_closed_for():
    """Else one of them keeps its other scopes closed, though it is not woken when they open."""
    gate = CheckedGate(
        Classes(Level("bulk", starvation=1.0), Level("middle", starvation=1.0), Level("top")),
        Both(
            Pools({"p": 9, "q": 9}),
            InFlight(3, by=tenant),
            TokenBucket(0.1, burst=1, by=lambda ticket: ticket.workload),
        ),
        reserve_after=0.0,
    )
    offer(gate, "draws", pool="p", tenant="b", workload="x")
    offer(gate, "holder", pool="p", tenant="a", cost=2)
    leaver = offer(gate, "leaver", pool="p", tenant="a")
    first = offer(gate, "first", rank=2, pool="q", tenant="a")
    big = offer(gate, "big", pool="q", tenant="a", cost=3)
    small = offer(gate, "small", pool="q", tenant="a", workload="x")
    middle = offer(gate, "middle", rank=1, pool="p", tenant="a", cost=2)
    top = offer(gate, "top", rank=2, pool="p", tenant="a")
    assert gate.closed_by(("in flight", "a")) is gate.closed_by(("pools", "q")) is first
    gate.withdraw([first], 5.0)  # big, small and middle are starved, promoted, and refused in turn
    assert gate.closed_by(("in flight", "a")) is gate.closed_by(("pools", "q")) is big
    assert gate.closed_by(("tokens", "x")) is None
    gate.finish(leaver, 6.0)
    assert [ticket.state for ticket in (big, small, middle, top)] == [State.WAITING] * 4


@pytest.mark.parametrize("looks", [[], [30.0]])
def test_a_newcomer_is_not_asked_before_those_its_coming_wakes(looks):
    """One of a starved class is promoted past it, whether or not anybody looked while it was parked."""
    gate = CheckedGate(Classes(Level("bulk", starvation=4.0), Level("top")), InFlight(3, by=tenant))
    holder = offer(gate, "holder", tenant="a", cost=2)
    offer(gate, "leaves", tenant="a", cost=2, wait_until=20.0)
    starved = offer(gate, "starved", tenant="a", cost=3)
    for now in looks:
        gate.advance(now)
    newcomer = offer(gate, "newcomer", 45.0, rank=1, tenant="a")
    assert newcomer.state is State.WAITING
    assert gate.finish(holder, 46.0) == [starved]
