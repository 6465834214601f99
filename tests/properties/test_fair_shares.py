"""Who gets what under FairQueue, in numbers; and that it stays sound under scopes, nesting and promotions."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable
from math import inf
from typing import Any

import pytest

from fairlead.capacities import Both, InFlight, Pools, Reserved, Slots, TokenBucket
from fairlead.core import Capacity, Change, Gate, Outcome, Policy, Ticket
from fairlead.policies import Aging, Classes, FairQueue, Level, Planner
from fairlead.policies.flow import FEW
from fairlead.testing import CheckedGate, drive
from tests.properties.fair_mutants import BankedCredit, Unrestrained


class Line:
    """One slot, handed on at once; counts the work started for each key."""

    def __init__(self, policy: Policy, count: Callable[[Ticket], Hashable]) -> None:
        self.gate = Gate(policy, Slots(1))
        self.count = count
        self.work: Any = Counter()
        self.now = 0.0
        self.gate.offer(Ticket(cost=0, tenant="first", workload="first"), 0.0)

    def offer(self, number: int = 1, **fields: object) -> list[Ticket]:
        tickets = [Ticket(**fields) for _ in range(number)]  # type: ignore[arg-type]
        for ticket in tickets:
            self.gate.offer(ticket, self.now)
        return tickets

    def step(self) -> Ticket:
        self.now += 1.0
        (started,) = self.gate.finish(next(iter(self.gate.holders)), self.now)
        self.work[self.count(started)] += started.cost
        return started

    def run(self, steps: int) -> dict[Hashable, float]:
        """Tell the shares of the work of the next steps."""
        self.work.clear()
        for _ in range(steps):
            self.step()
        return {key: work / self.work.total() for key, work in self.work.items()}


def by_tenant(ticket: Ticket) -> Hashable:
    return ticket.tenant


def test_weights_1_2_3_give_a_sixth_a_third_and_a_half():
    line = Line(FairQueue("tenant", weights={"a": 1, "b": 2, "c": 3}), by_tenant)
    for tenant in "abc":
        line.offer(3_000, tenant=tenant)
    shares = line.run(3_000)
    assert shares == pytest.approx({"a": 1 / 6, "b": 1 / 3, "c": 1 / 2}, abs=0.01)


def test_the_order_repeats_exactly():
    line = Line(FairQueue("tenant", weights={"a": 1, "b": 2, "c": 4}), by_tenant)
    for tenant in "abc":
        line.offer(30, tenant=tenant)
    assert "".join(str(line.step().tenant) for _ in range(21)) == "abccbcc" * 3


def test_shares_are_of_work_and_not_of_requests():
    line = Line(FairQueue("tenant"), by_tenant)
    line.offer(5_000, tenant="small", cost=1)
    line.offer(500, tenant="large", cost=10)
    shares = line.run(1_100)
    assert shares == pytest.approx({"small": 0.5, "large": 0.5}, abs=0.01)


def late_joiners(policy: Policy) -> dict[Hashable, float]:
    line = Line(policy, by_tenant)
    line.offer(1_000, tenant=1)
    line.run(300)
    for tenant in range(2, 11):
        line.offer(200, tenant=tenant)
    return line.run(700)


def test_late_joiners_share_equally_from_then_on():
    shares = late_joiners(FairQueue("tenant"))
    assert len(shares) == 10
    assert all(0.08 <= share <= 0.12 for share in shares.values())
    assert late_joiners(Unrestrained())[1] > 0.5


def test_a_newcomer_is_served_next_and_then_they_alternate():
    line = Line(FairQueue("tenant"), by_tenant)
    line.offer(100, tenant="old")
    line.run(10)
    line.offer(100, tenant="new")
    assert [line.step().tenant for _ in range(6)] == ["new", "old"] * 3


def idle_for_long(policy: Policy) -> int:
    """How often in a row a flow is served when it is back after the other was served 500 times."""
    line = Line(policy, by_tenant)
    line.offer(1_000, tenant="busy")
    line.offer(5, tenant="idle")
    line.run(500)
    line.offer(300, tenant="idle")
    in_a_row = 0
    while line.step().tenant == "idle":
        in_a_row += 1
    return in_a_row


def test_idling_banks_nothing():
    assert idle_for_long(FairQueue("tenant")) <= 2
    assert idle_for_long(BankedCredit("tenant")) > 100


def first_wait_after_idling(policy: FairQueue) -> float:
    """What is served before a light, heavy-weight flow that is back while a big request of weight 1 runs."""
    policy.set_weight("interactive", 1_000)
    line = Line(policy, by_tenant)
    for tenant in ("bulk", "x", "y", "z"):
        line.offer(50, tenant=tenant, cost=100 if tenant == "bulk" else 1)
    while line.step().tenant != "bulk":
        pass
    line.offer(1, tenant="interactive")
    line.work.clear()
    while line.step().tenant != "interactive":
        pass
    return float(line.work.total() - 1)


def test_a_light_flow_back_from_idle_does_not_wait_out_a_big_request_twice():
    assert first_wait_after_idling(FairQueue("tenant")) <= 3


def test_a_fairness_key_is_not_a_full_weight_workload():
    nested = FairQueue("workload", inside=lambda workload: FairQueue("tenant"))
    line = Line(nested, lambda ticket: (ticket.workload, ticket.tenant))
    for user in range(5):
        line.offer(500, workload="A", tenant=user)
    line.offer(2_500, workload="B", tenant=0)
    shares = line.run(2_000)
    assert shares[("B", 0)] == pytest.approx(0.5, abs=0.01)
    for user in range(5):
        assert shares[("A", user)] == pytest.approx(0.1, abs=0.01)


def test_ten_labels_take_no_more_than_their_tenant_may():
    nested = FairQueue("tenant", inside=lambda tenant: FairQueue("workload"))
    line = Line(nested, by_tenant)
    for label in range(10):
        line.offer(300, tenant="greedy", workload=label)
    line.offer(1_500, tenant="modest", workload=0)
    assert line.run(2_000) == pytest.approx({"greedy": 0.5, "modest": 0.5}, abs=0.01)


def test_a_changed_weight_counts_at_once():
    line = Line(FairQueue("tenant", weights={"a": 1, "b": 1}, name="fair"), by_tenant)
    for tenant in "ab":
        line.offer(3_000, tenant=tenant)
    assert line.run(500) == pytest.approx({"a": 0.5, "b": 0.5}, abs=0.01)
    line.gate.adjust(Change("fair", "set_weight", ("a", 4)), line.now)
    assert line.run(1_000) == pytest.approx({"a": 0.8, "b": 0.2}, abs=0.01)
    line.gate.adjust(Change("fair", "set_weight", ("a", 0.25)), line.now)
    assert line.run(1_000) == pytest.approx({"a": 0.2, "b": 0.8}, abs=0.01)


def test_a_debt_is_as_much_work_after_a_change_of_weight():
    """What a flow was served ahead at weight 1 must not count a thousandfold at weight 1,000."""
    line = Line(FairQueue("tenant", name="fair"), by_tenant)
    line.offer(10, tenant="a", cost=1_000)
    line.offer(5_000, tenant="b")
    assert line.step().tenant == "a"
    line.gate.adjust(Change("fair", "set_weight", ("a", 1_000)), line.now)
    line.run(3)
    assert line.work["a"] >= 1_000


def test_what_a_light_flow_leaves_the_others_share():
    line = Line(FairQueue("tenant"), by_tenant)
    line.offer(3_000, tenant="a")
    line.offer(3_000, tenant="b")
    for step in range(2_000):
        if step % 10 == 0:
            line.offer(1, tenant="light")
        line.step()
    total = line.work.total()
    assert line.work["light"] / total == pytest.approx(0.1, abs=0.01)
    assert line.work["a"] / total == pytest.approx(0.45, abs=0.01)


def test_lost_work_is_not_charged():
    line = Line(FairQueue("tenant"), by_tenant)
    line.offer(400, tenant="unlucky", cost=10)
    line.offer(400, tenant="other", cost=10)
    done: Counter[Hashable] = Counter()
    for _ in range(200):
        holder = next(iter(line.gate.holders))
        lost = holder.tenant == "unlucky" and line.now % 3 == 0
        line.now += 1.0
        line.gate.finish(holder, line.now, Outcome.LOST if lost else Outcome.OK)
        done[holder.tenant] += not lost
    assert done["unlucky"] == pytest.approx(done["other"], abs=2)


def test_the_flow_table_does_not_leak():
    policy = FairQueue("tenant")
    line = Line(policy, by_tenant)
    line.offer(2_000, tenant="steady")
    for number in range(1_000):
        line.offer(1, tenant=number)
        line.step()
        line.step()
        assert len(policy._flows) <= FEW + 6


def test_a_flow_that_comes_back_is_as_new_whether_kept_or_not():
    """Its weight is asked again, and of equals it goes before those who were served."""
    asked: list[object] = []

    def weight(key: object) -> float:
        asked.append(key)
        return 1.0

    def served(few: int) -> list[object]:
        asked.clear()
        policy, rng = FairQueue("tenant", weights=weight), random.Random(3)
        policy._few = few
        line = Line(policy, by_tenant)
        line.offer(2_000, tenant="steady")
        order = []
        for _ in range(2_000):
            if not rng.randrange(4):
                line.offer(1, tenant=rng.randrange(9), cost=rng.choice((1, 1, 2, 5)))
            order.append(line.step().tenant)
        return order

    kept, told = served(FEW), list(asked)
    assert kept == served(0)
    assert told == asked
    assert len(told) > 100


def test_a_queue_that_was_anothers_is_as_new():
    def served(alike: bool) -> tuple[list[object], int]:
        made = []

        def users(workload: object) -> Policy:
            made.append(workload)
            return FairQueue("tenant")

        users.withholds, users.alike = False, alike  # type: ignore[attr-defined]
        policy, rng = FairQueue("workload", inside=users), random.Random(4)
        line = Line(policy, by_tenant)
        line.offer(3_000, workload="steady", tenant="steady")
        order: list[object] = []
        for step in range(3_000):
            if not rng.randrange(3):
                workload = rng.randrange(9)
                for tenant in "abab":
                    (ticket,) = line.offer(
                        workload=workload, tenant=tenant, cost=rng.choice((1, 3))
                    )
                    if not rng.randrange(9):
                        line.gate.withdraw([ticket], line.now)
                inside: Any = policy._flows[workload].queue
                if step % 5 == 0:
                    inside.set_weight("a", 9.0)
            ticket = line.step()
            order.append((ticket.workload, ticket.tenant, ticket.seq))
        return order, len(made)

    (kept, few), (dropped, many) = served(True), served(False)
    assert kept == dropped
    assert few < many


def classes() -> Classes:
    return Classes(
        Level("bulk", starvation=5.0),
        Level("normal", starvation=3.0, inside=lambda: FairQueue("workload")),
        Level("urgent", wait_limit=20.0),
        budget=3,
    )


POLICIES: dict[str, Callable[[], Policy]] = {
    "fair": lambda: FairQueue("tenant", weights={"a": 3}),
    "fair of fair": lambda: FairQueue("tenant", inside=lambda key: FairQueue("workload")),
    "fair of aging": lambda: FairQueue("tenant", inside=Aging),
    "fair of classes": lambda: FairQueue("tenant", inside=lambda key: classes()),
    "fair of planners": lambda: FairQueue(
        "tenant", inside=lambda key: Planner(lambda waiting, now: sorted(waiting, key=by_cost))
    ),
    "classes of fair": classes,
}
CAPACITIES: dict[str, Callable[[], Capacity]] = {
    "a bucket per tenant": lambda: TokenBucket(1.0, burst=5, by=by_tenant),
    "in flight per workload": lambda: InFlight(5, by=by_workload),
    "in flight per tenant, and slots": lambda: Both(InFlight(4, by=by_tenant), Slots(3)),
    "three scarce things": lambda: Both(
        InFlight(3, by=by_tenant, name="tenants"),
        InFlight(4, by=by_workload, name="workloads"),
        TokenBucket(2.0, burst=5, by=lambda ticket: ticket.pool, name="pools"),
    ),
    "pools": lambda: Pools({"ocr": 2, "gpu": 1}),
    "reserved and lent": lambda: Reserved(4, (0, 1, 2), linger=4.0),
    "reserved and kept": lambda: Reserved(4, (0, 1, 2), lend=False),
    "reserved, and in flight per tenant": lambda: Both(
        Reserved(4, (0, 1, 2), linger=4.0), InFlight(3, by=by_tenant)
    ),
}


def by_workload(ticket: Ticket) -> Hashable:
    return ticket.workload


def by_cost(ticket: Ticket) -> float:
    return ticket.cost


def any_ticket(number: int, rng: random.Random) -> Ticket:
    return Ticket(
        number,
        rng.randrange(101),
        rng.choice((1, 1, 2, 5)),
        rank=rng.randrange(3),
        tenant=rng.choice("abcd"),
        workload=rng.choice("xyz"),
        pool=rng.choice(("ocr", "gpu")),
        wait_until=rng.choice((inf, inf, number * 2.0 + rng.randrange(40))),
    )


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("policy", POLICIES)
def test_nobody_waits_in_vain_under_scopes(policy: str, capacity: str):
    for seed in range(6):
        drive(CheckedGate(POLICIES[policy](), CAPACITIES[capacity]()), seed, 120, any_ticket)


def test_a_starved_class_inside_a_fair_queue_is_promoted_by_time_alone():
    """Its flow is parked under a hold and no scope ever opens: only the clock can bring it up."""
    policy = FairQueue(
        "tenant", inside=lambda key: Classes(Level("bulk", starvation=30.0), Level("urgent"))
    )
    gate = CheckedGate(policy, Reserved(2, (0, 2), lend=False))
    bulk = Ticket("bulk", rank=0, tenant="a")
    gate.offer(bulk, 0.0)
    assert gate.next_wakeup(0.0) == 30.0
    assert list(gate.advance(30.0)) == [bulk]


def test_a_hold_on_an_emptied_class_is_forgotten():
    """The last ticket of a held class left; the next one must be asked for room again."""
    policy = FairQueue("tenant", inside=lambda key: Classes(Level("bulk"), Level("urgent")))
    gate = CheckedGate(policy, Reserved(2, (0, 1), lend=False))
    first, held, last = (Ticket(name, rank=0, tenant="a") for name in ("first", "held", "last"))
    gate.offer(first, 0.0)
    gate.offer(held, 1.0)
    gate.withdraw([held], 2.0)
    gate.finish(first, 3.0)
    gate.offer(last, 4.0)
    assert last in gate.holders
