"""Who is next, policy by policy; the mathematics of aging, fairness and promotion stands in tests/properties."""

from typing import Any

import pytest

from fairlead.capacities import Both, InFlight, Pools, Reserved, Slots, TokenBucket
from fairlead.core import Change, Gate, Policy, State, Ticket
from fairlead.errors import ConfigError
from fairlead.policies import FIFO, Aging, Classes, FairQueue, Level, Planner
from fairlead.policies.lines import Lines
from fairlead.testing import CheckedGate


def served(policy: Policy, tickets: list[Ticket], gap: float = 1.0) -> list[object]:
    """Let all arrive while nothing runs, then serve them one by one."""
    gate = CheckedGate(policy, Slots(0))
    for ticket in tickets:
        gate.offer(ticket, 0.0)
    order = []
    now = 0.0
    changed = list(gate.adjust(Change("slots", "resize", (1,)), now))
    while changed:
        order.append(changed[0].key)
        now += gap
        changed = list(gate.finish(changed[0], now))
    return order


def test_fifo_serves_in_order_of_arrival_whatever_the_priority():
    assert served(
        FIFO(), [Ticket(key, priority) for key, priority in zip("abc", (1, 99, 50), strict=True)]
    ) == [*"abc"]


def test_a_limit_inside_lines_inside_a_class_holds():
    """The lines are made as tickets come: at first there is no limit anywhere."""
    lines = Level("any", lambda: Lines("pool", inside=lambda pool: FIFO(limit=1)))
    gate = CheckedGate(Classes(lines), Slots(0))
    tickets = [Ticket(pool=pool) for pool in "aba"]
    for ticket in tickets:
        gate.offer(ticket, 0.0)
    assert [ticket.state for ticket in tickets] == [State.WAITING, State.WAITING, State.REFUSED]


def test_fifo_keeps_the_order_when_the_first_with_a_scope_comes():
    """Until then those without one wait by themselves, some of whom have left again."""
    bucket = TokenBucket(1.0, burst=1.0, by=lambda ticket: ticket.tenant)
    gate = CheckedGate(FIFO(), Both(Slots(0), bucket))
    tickets = [Ticket(number) for number in range(5)]
    tickets += [Ticket(5, tenant="a"), Ticket(6), Ticket(7, tenant="a"), Ticket(8)]
    for number, ticket in enumerate(tickets):
        gate.offer(ticket, 0.0)
        if number == 4:
            gate.withdraw((tickets[0], tickets[3]), 0.0)
        if number >= 4:
            assert gate.policy.head(0.0) is tickets[1]
    gate.withdraw((tickets[6],), 0.0)
    assert {ticket.key for ticket in gate.policy} == {1, 2, 4, 5, 7, 8}
    changed = gate.adjust(Change("slots", "resize", (9,)), 0.0)
    assert [ticket.key for ticket in changed] == [1, 2, 4, 5, 8]


def test_a_key_orders_and_arrival_decides_among_equals():
    class Shortest(Policy):
        def key(self, ticket):
            return ticket.estimate

    tickets = [Ticket(key, estimate=e) for key, e in zip("abcd", (5.0, 1.0, 5.0, 1.0), strict=True)]
    assert served(Shortest(), tickets) == [*"bdac"]


def test_a_key_is_asked_once():
    class Counting(Policy):
        asked = 0

        def key(self, ticket):
            self.asked += 1
            return -ticket.priority

    policy = Counting()
    served(policy, [Ticket(number, number) for number in range(50)])
    assert policy.asked == 50


def test_a_policy_with_its_own_constructor_need_not_call_ours():
    class Weighted(Policy):
        def __init__(self, factor: float) -> None:
            self.factor = factor

        def key(self, ticket):
            return ticket.cost * self.factor

    assert served(
        Weighted(-1.0), [Ticket(key, cost=c) for key, c in zip("abc", (1, 3, 2), strict=True)]
    ) == [*"bca"]


def test_the_highest_class_goes_first_and_its_own_order_rules_inside():
    classes = Classes(Level("bulk"), Level("top", lambda: Aging(rate=0)))
    tickets = [
        Ticket("bulk 1", 99, rank=0),
        Ticket("top low", 1, rank=1),
        Ticket("top high", 80, rank=1),
        Ticket("bulk 2", 99, rank=0),
    ]
    assert served(classes, tickets) == ["top high", "top low", "bulk 1", "bulk 2"]


def test_a_class_kept_out_by_a_reservation_does_not_stop_the_others():
    gate = CheckedGate(Classes(Level("bulk"), Level("top")), Reserved(2, (0, 1), lend=False))
    tickets = [Ticket(number, rank=rank) for number, rank in enumerate((0, 0, 1))]
    for ticket in tickets:
        gate.offer(ticket, 0.0)
    assert [t.state for t in tickets] == [State.RUNNING, State.WAITING, State.RUNNING]


def test_classes_are_known_by_name():
    classes = Classes(Level("bulk"), Level("top"))
    assert classes.rank("top") == 1
    with pytest.raises(ConfigError, match="there is no class 'middle'"):
        classes.rank("middle")


@pytest.mark.parametrize(
    "make",
    [
        Classes,
        lambda: Classes(Level("a"), Level("a")),
        lambda: Classes(Level("a"), budget=0),
        lambda: Classes(Level("a", queue_limit=-1)),
        lambda: FIFO(limit=-1),
        lambda: FIFO(limit=True),
        lambda: Aging(rate=-1.0),
        lambda: Aging(rate=float("nan")),
        lambda: FairQueue("tenant", weights={"a": 0}),
        lambda: FairQueue("tenant", weights={"a": float("nan")}),
        lambda: FairQueue("tenant", default_weight=float("inf")),
        lambda: FairQueue("tenant", inside=FIFO()),  # type: ignore[arg-type]
    ],
)
def test_bad_settings_are_refused(make):
    with pytest.raises(ConfigError):
        make()


NAN: Any = float("nan")
TEXT: Any = "30s"


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Level("bulk", starvation=TEXT), r"starvation of class 'bulk' .* '30s'"),
        (lambda: Level("bulk", starvation=NAN), "starvation of class 'bulk'"),
        (lambda: Level("bulk", starvation=-1), "starvation of class 'bulk'"),
        (lambda: Level("bulk", wait_limit=TEXT), r"wait_limit of class 'bulk' .* '30s'"),
        (lambda: Level("bulk", wait_limit=NAN), "wait_limit of class 'bulk'"),
        (lambda: Level("bulk", wait_limit=-0.1), "wait_limit of class 'bulk'"),
        (lambda: Level("bulk", queue_limit=TEXT), r"queue_limit of class 'bulk' .* '30s'"),
        (lambda: Level("bulk", queue_limit=-1), "queue_limit of class 'bulk'"),
        (lambda: Classes(Level("bulk"), budget=NAN), "budget"),
        (lambda: Classes(Level("bulk"), budget=2.5), "budget"),  # type: ignore[arg-type]
        (lambda: Classes(Level("bulk"), budget=TEXT), "budget"),
        (lambda: Aging(rate=TEXT), r"rate .* '30s'"),
        (lambda: Aging(ceiling=TEXT), r"ceiling .* '30s'"),
        (lambda: Aging(ceiling=NAN), "ceiling"),
        (lambda: FIFO(limit=TEXT), r"queue limit .* '30s'"),
        (lambda: FairQueue(weights={"a": TEXT}), r"weight of 'a' .* '30s'"),
        (lambda: FairQueue(default_weight=TEXT), r"default_weight.* '30s'"),
        (lambda: FairQueue(weights=["a"]), r"weights= needs .* \['a'\]"),  # type: ignore[arg-type]
        (lambda: FairQueue(5), "by= needs .* 5"),  # type: ignore[arg-type]
        (lambda: FairQueue(inside=5), "inside= needs .* 5"),  # type: ignore[arg-type]
        (lambda: Planner(5), "Planner needs .* 5"),  # type: ignore[arg-type]
        (lambda: Classes("bulk"), "needs at least one Level.*'bulk'"),  # type: ignore[arg-type]
        (lambda: Both(Slots(2), 5), "needs at least one capacity.*5"),  # type: ignore[arg-type]
        (lambda: Pools(4), "Pools needs .* 4"),  # type: ignore[arg-type]
        (lambda: InFlight(5, by=5), "by= needs .* 5"),  # type: ignore[arg-type]
        (lambda: TokenBucket(5, 1, by=5), "by= needs .* 5"),  # type: ignore[arg-type]
    ],
)
def test_a_setting_that_is_none_is_named(make, named):
    with pytest.raises(ConfigError, match=named):
        make()


def test_limits_and_thresholds_of_zero_or_without_end_are_in_order():
    for seconds in (0, 0.0, float("inf")):
        Classes(Level("bulk", wait_limit=seconds, starvation=seconds, queue_limit=0), budget=1)
        Aging(ceiling=seconds)


def test_a_ticket_that_classes_cannot_take_does_not_wait_in_them():
    """What fails in push fails before the class has the ticket."""
    policy = Classes(Level("bulk", wait_limit=5.0))
    ticket: Any = Ticket("a")
    ticket.wait_until = "tomorrow"
    with pytest.raises(TypeError):
        policy.push(ticket, 0.0)
    assert not list(policy)
    assert len(policy) == 0


def test_a_bad_weight_changes_nothing():
    gate = CheckedGate(FairQueue("tenant", weights={"a": 2}, name="tenants"), Slots(0))
    gate.offer(Ticket("a", tenant="a"), 0.0)
    for weight in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ConfigError):
            gate.adjust(Change("tenants", "set_weight", ("a", weight)), 0.0)
    assert "weight 2" in gate.explain(next(iter(gate.policy)), 0.0).text


def test_a_plan_is_a_sort():
    planner = Planner(lambda waiting, now: sorted(waiting, key=lambda ticket: ticket.deadline))
    tickets = [Ticket(key, deadline=d) for key, d in zip("abc", (9.0, 1.0, 5.0), strict=True)]
    assert served(planner, tickets) == [*"bca"]


def test_what_a_plan_leaves_out_is_withheld_until_it_is_planned():
    planner = Planner(lambda waiting, now: [t for t in waiting if now >= t.deadline])
    gate = CheckedGate(planner, Slots(9))
    early, late = Ticket("early", deadline=0.0), Ticket("late", deadline=5.0)
    gate.offer(early, 0.0)
    gate.offer(late, 0.0)
    assert (early.state, late.state) == (State.RUNNING, State.WAITING)
    assert gate.advance(5.0) == [late]


def test_a_plan_is_made_once_per_round_not_once_per_pick():
    rounds = []

    def plan(waiting, now):
        rounds.append(len(waiting))
        return waiting

    gate = Gate(Planner(plan), Slots(0))
    for number in range(100):
        gate.offer(Ticket(number), 0.0)
    rounds.clear()
    assert len(gate.adjust(Change("slots", "resize", (100,)), 1.0)) == 100
    assert len(rounds) == 1


def test_a_plan_is_asked_about_open_pools_only():
    seen: list[list[object]] = []

    def plan(waiting, now):
        seen.append([ticket.key for ticket in waiting])
        return waiting

    gate = CheckedGate(Planner(plan), Pools({"ocr": 0, "gpu": 1}))
    gate.offer(Ticket("ocr", pool="ocr"), 0.0)
    seen.clear()
    gate.offer(Ticket("gpu", pool="gpu"), 0.0)
    assert seen[0] == ["gpu"]


def test_policies_nest_three_deep():
    policy = Classes(
        Level("bulk"),
        Level("top", lambda: FairQueue("tenant", inside=lambda key: Aging(rate=0))),
    )
    tickets = [
        Ticket("bulk", rank=0, tenant="a"),
        Ticket("a1", 10, rank=1, tenant="a"),
        Ticket("a2", 90, rank=1, tenant="a"),
        Ticket("a3", 50, rank=1, tenant="a"),
        Ticket("b1", 10, rank=1, tenant="b"),
    ]
    assert served(policy, tickets) == ["a2", "b1", "a3", "a1", "bulk"]
    assert len(policy) == 0
    assert list(policy) == []


@pytest.mark.parametrize("steps", range(1, 11))
def test_who_has_aged_to_a_priority_goes_before_a_newcomer_of_it(steps: int):
    """Also where times are no sums of powers of two, and their products differ in the last place."""
    for begin in (0.1, 0.7, 1234.567, 1.7e9 + 0.3):
        gate = CheckedGate(Aging.over(30.0), Slots(1))
        holder, old, new = Ticket("holder"), Ticket("old", 0), Ticket("new", 10 * steps)
        gate.offer(holder, begin)
        gate.offer(old, begin)
        now = begin + 5.0 * steps
        gate.offer(new, now)
        assert gate.finish(holder, now) == [old]


def test_no_priority_counts_for_more_than_the_ceiling():
    aging = Aging(ceiling=50)
    gate = CheckedGate(aging, Slots(1))
    holder, first, second = Ticket("holder"), Ticket("first", 60), Ticket("second", 100)
    for ticket in (holder, first, second):
        gate.offer(ticket, 0.0)
    assert (aging.effective(first, 0.0), aging.effective(second, 9.0)) == (50.0, 50.0)
    assert aging.promotions(9.0) == 0
    assert gate.finish(holder, 0.0) == [first]


def test_a_limit_of_the_order_inside_a_class_outlives_other_settings():
    classes = Classes(Level("bulk", lambda: FIFO(limit=3)), Level("top", queue_limit=4))
    classes.retune((Level("bulk", queue_limit=9), Level("top")))
    assert [queue.limit for queue in classes._queues] == [3, None]
