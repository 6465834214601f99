"""The frontier on numbers: what starts, what waits, and why."""

import random
from itertools import pairwise

import pytest

from fairlead.core import Gate
from fairlead.jobs.frontier import LINGER
from fairlead.jobs.planners import (
    BUILT_IN,
    FlatJob,
    GlobalPriorityExecutionPlanner,
    SJFSExecutionPlanner,
)
from fairlead.jobs.settings import TenantLimits
from tests.jobs.frontier_rig import frontier, ids, job, run

# Coming and going


def test_a_batch_starts_best_first_and_a_job_is_taken_once() -> None:
    tested = frontier()
    tested.resize("ocr", 2, 0.0)
    batch = [job(1), job(2, level=3), job(3, soft=100.0)]
    tested.add([*batch, *batch], 1.0)
    tested.add(batch, 1.0)
    assert ids(tested.started()) == [(2, 0), (3, 0)]
    assert not tested.started()
    assert (tested.waiting, tested.running) == (1, 2)
    tested.ended([(2, 0), (2, 0), (77, 0)], 2.0)
    assert ids(tested.started()) == [(1, 0)]


def test_exactly_as_many_start_as_there_are_slots_and_in_plan_order() -> None:
    tested = frontier()
    tested.resize("a", 2, 0.0)
    tested.resize("b", 1, 0.0)
    tested.add([job(n, executor="a", level=n) for n in range(1, 6)], 0.0)
    tested.add([job(n, executor="b", level=n) for n in range(11, 14)], 0.0)
    started = ids(tested.started())
    assert [one for one in started if one[0] < 10] == [(5, 0), (4, 0)]
    assert [one for one in started if one[0] > 10] == [(13, 0)]


def test_an_executor_without_slots_keeps_nobody_else_waiting() -> None:
    tested = frontier()
    tested.resize("ocr", 1, 0.0)
    tested.add([job(1, executor="gpu", level=9, hard=0.0), job(2)], 5.0)
    assert ids(tested.started()) == [(2, 0)]
    assert "no worker serves executor 'gpu'" in tested.explain((1, 0), 5.0).said


def test_an_sla_that_was_changed_counts_at_once() -> None:
    tested = frontier()
    tested.add([job(1), job(2)], 0.0)
    tested.add([job(2, hard=1.0)], 10.0)
    tested.resize("ocr", 1, 10.0)
    assert ids(tested.started()) == [(2, 0)]


def test_started_dags_before_new_ones_and_fresh_ones_before_old() -> None:
    tested = frontier(burst=60.0)
    tested.add([job(1), job(2), job(3)], 0.0)
    tested.add([job(dag, 1, active=True) for dag in (4, 5, 6)], 0.0)
    tested.resize("ocr", 3, 0.0)
    assert {dag for dag, _ in ids(tested.started())} == {4, 5, 6}
    tested.ended([(4, 1), (5, 1), (6, 1)], 1.0)
    tested.started()
    tested.add([job(5, 2), job(2, 2)], 2.0)
    tested.ended([(1, 0)], 2.0)
    assert ids(tested.started()) == [(2, 2)]  # active for a second; 5 for longer than anybody knows


def test_what_runs_elsewhere_holds_its_slot() -> None:
    tested = frontier(max_concurrent_dags=2)
    tested.resize("ocr", 2, 0.0)
    tested.hold([run(1), run(2), run(3)], 0.0)
    tested.hold([run(1)], 0.0)
    assert tested.running == 3
    tested.add([job(4), job(1, 1)], 1.0)
    tested.ended([(2, 0)], 2.0)
    assert not tested.started()
    tested.ended([(3, 0)], 3.0)
    assert ids(tested.started()) == [(1, 1)]
    assert "3 runs are active (max_concurrent_dags 2)" in tested.explain((4, 0), 3.0).said


def test_a_claim_that_was_lost_gives_everything_back() -> None:
    tested = frontier(max_concurrent_dags=1)
    tested.resize("ocr", 1, 0.0)
    tested.add([job(1), job(2)], 0.0)
    assert ids(tested.started()) == [(1, 0)]
    tested.lost((1, 0), 1.0)
    assert ids(tested.started()) == [(2, 0)]
    tested.lost((1, 0), 1.0)
    assert (tested.waiting, tested.running) == (0, 1)


def test_what_is_dropped_waits_no_longer() -> None:
    tested = frontier()
    tested.add([job(1, node) for node in range(4)] + [job(1, 9, start_at=50.0), job(2)], 0.0)
    tested.drop(1, 1.0, [0, 9])
    assert (tested.waiting, tested.delayed) == (4, 0)
    tested.drop(1, 2.0)
    assert tested.waiting == 1
    tested.resize("ocr", 1, 3.0)
    tested.drop(2, 3.0)  # a proposal that nobody has heard of yet
    assert not tested.started()
    assert tested.running == 0


def test_what_ended_elsewhere_is_not_run() -> None:
    tested = frontier()
    tested.add([job(1), job(2), job(3, start_at=50.0)], 0.0)
    tested.ended([(2, 0), (2, 0), (3, 0)], 1.0)
    assert (tested.waiting, tested.delayed) == (1, 0)
    tested.hold([run(1)], 2.0)
    tested.resize("ocr", 5, 2.0)
    assert not tested.started()
    assert (tested.waiting, tested.running) == (0, 1)


def test_a_start_time_is_waited_for() -> None:
    tested = frontier()
    tested.resize("ocr", 5, 0.0)
    tested.add([job(1, start_at=30.0), job(2, start_at=10.0), job(3)], 0.0)
    assert ids(tested.started()) == [(3, 0)]
    assert tested.due == 10.0
    assert "due in 30 s" in tested.explain((1, 0), 0.0).said
    assert tested.explain((1, 0), 0.0).reason == "delayed"
    tested.add([job(2, start_at=40.0)], 5.0)
    tested.advance(30.0)
    assert ids(tested.started()) == [(1, 0)]
    assert tested.due == 40.0
    tested.advance(40.0)
    assert ids(tested.started()) == [(2, 0)]


# Caps


def test_two_node_dags_behind_a_cap_run_to_the_end() -> None:
    """No livelock: 1,100 DAGs, 16 active, 4 slots; a window over what is ready would show only their roots."""
    tested = frontier(max_concurrent_dags=16, gate=Gate)
    tested.resize("ocr", 4, 0.0)
    tested.add([job(dag, 0, level=1) for dag in range(1, 1101)], 0.0)
    now, done, most = 0.0, 0, 0
    while running := tested.started():
        now += 1.0
        most = max(most, len(tested.room.dags.active))
        tested.ended(ids(running), now)
        for one in running:
            done += 1
            if one.node == 0:
                tested.add([job(one.dag, 1, level=0, ready_at=now)], now)
            else:
                tested.ended_run(one.dag, now)
    assert done == 2200
    assert most <= 16
    assert tested.waiting == tested.running == 0


def test_a_cap_per_dag_and_per_tenant() -> None:
    tested = frontier(max_running_per_dag=2, tenants={"acme": TenantLimits(1.0, 3)})
    tested.resize("ocr", 10, 0.0)
    tested.add([job(1, node, tenant="acme") for node in range(5)], 0.0)
    tested.add([job(2, node, tenant="acme") for node in range(5)], 0.0)
    tested.add([job(3, node, tenant="other") for node in range(5)], 0.0)
    started = tested.started()
    assert sorted(dag for dag, _ in ids(started)).count(3) == 2
    assert len(started) == 5
    assert "tenant 'acme' has 3 jobs running (max_running 3)" in tested.explain((2, 4), 0.0).said
    assert "run 3 has 2 jobs running (max_running_per_dag 2)" in tested.explain((3, 4), 0.0).said


def test_a_dag_that_is_active_may_go_on_wherever_its_jobs_wait() -> None:
    """Each tenant, each executor: whoever was refused as new is asked again once its DAG has begun."""
    tested = frontier(max_concurrent_dags=1)
    for executor in ("a", "b"):
        tested.resize(executor, 0, 0.0)
    for dag, tenant in ((1, "x"), (2, "y"), (3, "z")):
        tested.add([job(dag, 0, executor="a", tenant=tenant)], 0.0)
        tested.add([job(dag, 1, executor="b", tenant=tenant)], 0.0)
    tested.resize("a", 1, 1.0)
    ((dag, _),) = ids(tested.started())
    tested.resize("b", 3, 2.0)
    assert ids(tested.started()) == [(dag, 1)]
    tested.ended([(dag, 0), (dag, 1)], 3.0)
    assert not tested.started()
    tested.ended_run(dag, 4.0)
    assert len(tested.started()) == 2


def test_a_dag_of_which_nothing_is_left_gives_up_its_place() -> None:
    tested = frontier(max_concurrent_dags=1)
    tested.resize("ocr", 1, 0.0)
    tested.add([job(1), job(2)], 0.0)
    tested.ended(ids(tested.started()), 1.0)
    assert not tested.started()
    assert tested.due == 1.0 + LINGER
    tested.advance(tested.due)
    assert ids(tested.started()) == [(2, 0)]


def test_a_paused_dag_gives_up_its_place_when_nothing_of_it_runs_and_takes_it_again() -> None:
    tested = frontier(max_concurrent_dags=1)
    tested.resize("ocr", 2, 0.0)
    tested.add([job(1)], 0.0)
    started = ids(tested.started())
    tested.add([job(2)], 0.5)
    tested.drop(1, 1.0)
    tested.advance(1.0)
    assert not tested.started(), "something of it still runs"
    tested.ended(started, 2.0)
    assert tested.due <= 2.0
    tested.advance(2.0)
    assert ids(tested.started()) == [(2, 0)]
    tested.add([job(1, 1, active=True)], 3.0)
    assert ids(tested.started()) == [(1, 1)]


def test_a_dag_that_is_only_changed_keeps_its_place() -> None:
    tested = frontier(max_concurrent_dags=1)
    tested.resize("ocr", 1, 0.0)
    tested.add([job(1), job(1, 1)], 0.0)
    (first,) = ids(tested.started())
    tested.add([job(2)], 0.5)
    tested.drop(1, 1.0)
    tested.add([job(1, 1, active=True)], 1.0)
    tested.ended([first], 2.0)
    assert ids(tested.started()) == [(1, 1)]
    tested.ended([(1, 1)], 3.0)
    tested.advance(3.0)
    assert not tested.started()


def test_nothing_is_left_of_dags_that_came_and_went() -> None:
    tested = frontier(max_concurrent_dags=8, max_running_per_dag=2, gate=Gate)
    tested.resize("ocr", 4, 0.0)
    tested.add([job(10**6, level=-9, active=True)], 0.0)  # one that never gets its turn
    for dag in range(1, 3000):
        now = float(dag)
        tested.add([job(dag, tenant=f"t{dag}", ready_at=now, soft=now + 10**6)], now)
        for _ in range(3):
            tested.ended(ids(tested.started()), now)
        tested.ended_run(dag, now)
    orders = tested.orders
    assert len(tested._tickets) <= 1
    assert len(tested.room.dags.active) <= 1
    assert not orders.register.cohorts.keys() - {10**6}
    assert len(orders.register._bursts) < 200
    elders = orders._elders["ocr"]
    assert elders._kept < 200
    assert len(tested.room._scopes) <= 10_000
    assert len(tested.gate._scopes.closed) < 10


# Over any planner


@pytest.mark.parametrize("planner", BUILT_IN)
def test_tenants_share_by_weight_whatever_the_planner(planner: str) -> None:
    tested = frontier(BUILT_IN[planner](), tenants={"gold": TenantLimits(2.0)})
    rng = random.Random(planner)
    tested.add(
        [
            job(dag, tenant=tenant, level=rng.randrange(3), estimate=rng.choice((1.0, 9.0)))
            for dag, tenant in enumerate(["gold", "iron"] * 60, 1)
        ],
        0.0,
    )
    tested.resize("ocr", 1, 0.0)
    served = []
    for step in range(90):
        (one,) = tested.started()
        served.append(one.tenant)
        tested.ended([(one.dag, one.node)], step + 1.0)
    for upto in range(3, 90, 3):
        assert abs(served[:upto].count("gold") - upto * 2 / 3) <= 1


def test_the_oldest_goes_next_after_max_wait_but_only_every_fourth_time() -> None:
    tested = frontier(SJFSExecutionPlanner(), max_wait=100.0)
    tested.resize("ocr", 1, 0.0)
    tested.add([job(dag, estimate=1000.0, ready_at=float(dag)) for dag in range(1, 9)], 10.0)
    now, served, dag = 10.0, [], 100
    for _ in range(60):
        (one,) = tested.started()
        served.append(one.dag)
        dag += 1
        now += 5.0
        tested.add([job(dag, estimate=1.0, ready_at=now)], now)
        tested.ended([(one.dag, one.node)], now)
    old = [place for place, dag in enumerate(served) if 1 < dag < 9]
    assert [served[place] for place in old] == [2, 3, 4, 5, 6, 7, 8]
    # The oldest is 100 s old after 18 jobs of 5 s; from then on one in four is an old one.
    assert old[0] <= 20
    assert all(after - before == 4 for before, after in pairwise(old))


def test_one_that_waits_for_its_own_cap_is_not_starved_and_starves_nobody() -> None:
    tested = frontier(max_wait=50.0, max_running_per_dag=1)
    tested.resize("ocr", 2, 0.0)
    tested.add([job(1, node, level=5) for node in range(10)], 0.0)
    tested.started()
    tested.add([job(dag) for dag in range(2, 6)], 100.0)
    (one,) = tested.started()
    assert one.dag == 2
    tested.ended([(1, 0)], 101.0)
    assert ids(tested.started()) == [(1, 1)]


# Planners that change, and planners of users


def test_a_planner_is_changed_without_losing_anybody() -> None:
    tested = frontier()
    everybody = {(dag, node) for dag in range(1, 8) for node in range(5)}
    batch = [job(dag, node, tenant=f"t{dag % 3}", level=node) for dag, node in sorted(everybody)]
    tested.add(batch, 0.0)
    tested.resize("ocr", 2, 0.0)
    planners = [planner() for planner in BUILT_IN.values()] + [Backwards()]
    seen: list[tuple[int, int]] = []
    now = 0.0
    while len(seen) < len(everybody):
        now += 1.0
        tested.set_planner("ocr", planners[int(now) % len(planners)], now)
        ask(tested, now)
        started = tested.started()
        seen += ids(started)
        tested.ended(ids(started), now)
    assert sorted(seen) == sorted(everybody)


class Backwards:
    def plan(self, jobs, slots, active_dags, recently_activated_dags=frozenset()):
        return list(reversed(jobs))


def ask(tested, now: float, answer=lambda jobs: list(reversed(jobs))) -> list[FlatJob]:
    shown: list[FlatJob] = []
    for executor in tested.needs_plan(now):
        shown = tested.candidates(executor, now)
        order = answer(shown)
        tested.planned(executor, None if order is None else [one.id for one in order], now)
    return shown


def test_a_users_planner_is_asked_when_there_is_room_and_followed() -> None:
    tested = frontier(Backwards())
    tested.add([job(dag, ready_at=dag * 1.0) for dag in range(1, 6)], 6.0)
    assert not tested.needs_plan(6.0)
    tested.resize("ocr", 2, 7.0)
    assert not tested.started()
    assert [one.dag_id for one in ask(tested, 7.0)] == ["1", "2", "3", "4", "5"]
    assert ids(tested.started()) == [(5, 0), (4, 0)]
    tested.ended([(5, 0)], 8.0)
    assert ids(tested.started()) == [(3, 0)]
    tested.add([job(9, ready_at=9.0)], 9.0)  # it may belong before what was planned
    tested.ended([(3, 0)], 9.0)
    assert not tested.started()
    ask(tested, 9.0)
    assert ids(tested.started()) == [(9, 0)]


def test_candidates_are_the_urgent_and_the_old_that_would_have_room() -> None:
    tested = frontier(Backwards(), max_concurrent_dags=1)
    tested.resize("ocr", 1, 0.0)
    tested.add([job(1, node, active=True, ready_at=-node * 1.0) for node in range(5)], 0.0)
    tested.add([job(2, node, hard=-5.0) for node in range(2000)], 0.0)
    tested.add([job(1, 7, soft=-5.0, active=True)], 0.0)
    assert [one.id for one in tested.candidates("ocr", 0.0)] == [
        "1.7",
        "1.4",
        "1.3",
        "1.2",
        "1.1",
        "1.0",
    ]
    assert len(tested.candidates("ocr", 0.0, limit=2)) == 2
    tested.ended_run(1, 1.0)
    shown = tested.candidates("ocr", 1.0)
    assert len(shown) == 1000
    assert shown[0].priority == 1000


def test_what_a_planner_leaves_out_goes_all_the_same_in_the_end() -> None:
    tested = frontier(Backwards(), max_withheld=10.0)
    tested.resize("ocr", 5, 0.0)
    tested.add([job(1), job(2)], 0.0)
    ask(tested, 0.0, lambda jobs: jobs[:1])
    assert ids(tested.started()) == [(1, 0)]
    assert "the planner leaves it out; in 10 s" in tested.explain((2, 0), 0.0).said
    for second in range(1, 10):
        if tested.due <= second:
            tested.advance(float(second))
        ask(tested, float(second), lambda jobs: [])
        assert not tested.started()
    assert tested.due == 10.0
    tested.advance(10.0)
    assert ids(tested.started()) == [(2, 0)]
    assert tested.overdue_withheld("ocr") == 1
    assert tested.overdue_withheld("ocr") == 0


@pytest.mark.parametrize("silent", [True, False])
def test_without_an_answer_the_urgent_and_the_old_go_first(silent: bool) -> None:
    tested = frontier(Backwards(), max_withheld=10.0)
    tested.add([job(1, ready_at=1.0), job(2, ready_at=0.0), job(3, hard=3.0)], 5.0)
    tested.resize("ocr", 3, 5.0)
    assert tested.needs_plan(5.0) == ["ocr"]
    if silent:
        tested.advance(14.0)
        assert not tested.started()
        assert min(tested.due, 15.0) <= 15.0
        tested.advance(15.0)
    else:
        tested.planned("ocr", None, 5.0)
    assert ids(tested.started()) == [(3, 0), (2, 0), (1, 0)]


def test_a_planner_is_not_asked_over_and_over() -> None:
    tested = frontier(Backwards())
    tested.resize("ocr", 5, 0.0)
    tested.add([job(1), job(2)], 0.0)
    asked = 0
    for tick in range(50):
        asked += bool(ask(tested, tick / 10, lambda jobs: []))
    assert 1 <= asked <= 10


def test_while_an_answer_is_due_nobody_is_asked_and_nothing_else_is_due() -> None:
    tested = frontier(Backwards(), max_withheld=10.0)
    tested.resize("ocr", 1, 0.0)
    tested.add([job(1), job(2)], 0.0)
    assert tested.due <= 0.0
    assert tested.needs_plan(0.0) == ["ocr"]
    shown = tested.candidates("ocr", 0.0)
    assert not tested.needs_plan(1.0)
    assert tested.due == 10.0  # else its owner would turn round and round
    tested.add([job(3)], 2.0)
    assert not tested.needs_plan(2.0)
    tested.planned("ocr", [one.id for one in shown], 3.0)
    assert ids(tested.started()) == [(1, 0)]
    tested.ended([(1, 0)], 4.0)
    # Of the third the planner has not heard: it may belong before the second.
    assert [one.dag_id for one in ask(tested, 4.0)] == ["2", "3"]


# Reasons


def test_reasons_name_the_cause() -> None:
    tested = frontier()
    unheard = tested.explain((1, 0), 0.0)
    assert ("not ready" in unheard.said, unheard.reason) == (True, "unheard")
    tested.resize("ocr", 1, 0.0)
    tested.add([job(1), job(2)], 0.0)
    starting, full = tested.explain((1, 0), 0.0), tested.explain((2, 0), 0.0)
    assert ("slot of executor 'ocr'" in starting.said, starting.reason) == (True, "starting")
    assert "the only slot of executor 'ocr' is in use" in full.said
    assert full.reason == "executor_full"


def test_who_goes_first_is_known_however_long_the_sentence() -> None:
    tested = frontier(tenants={"acme": TenantLimits(max_running=1)})
    tested.resize("gpu" * 200, 1, 0.0)
    tested.add([job(n, executor="gpu" * 200) for n in range(1, 5)], 0.0)
    told = [tested.explain((n, 0), 0.0) for n in range(2, 5)]
    assert [(why.before, why.capped) for why in told] == [(0, False), (1, False), (2, False)]
    rest = ("; it is the next", "; 1 job goes first", "; 2 jobs go first")
    assert all(why.said.endswith(end) for why, end in zip(told, rest, strict=True))


def test_a_cap_is_told_apart_from_an_executor_that_is_full() -> None:
    tested = frontier(tenants={"acme": TenantLimits(max_running=1)})
    tested.resize("ocr", 1, 0.0)
    tested.add([job(1, tenant="acme"), job(2, tenant="acme"), job(3, tenant="(max_")], 0.0)
    both = tested.explain((2, 0), 0.0)
    assert both.capped
    assert "is in use, and tenant 'acme' has 1 job running (max_running 1); " in both.said
    assert not tested.explain((3, 0), 0.0).capped


def test_counts_by_executor() -> None:
    tested = frontier()
    tested.resize("ocr", 1, 0.0)
    tested.add([job(1), job(2), job(3, executor="gpu")], 0.0)
    assert (tested.waiting_on("ocr"), tested.waiting_on("gpu")) == (1, 1)
    assert tested.slots() == {"ocr": 0}
    assert tested.executors() == ["gpu", "ocr"]
    assert tested.active_dags_text() == tested.recent_dags_text(1.0) == {"1"}
    assert tested.recent_dags_text(100.0) == set()


def test_it_is_the_global_planner_by_default() -> None:
    tested = frontier(GlobalPriorityExecutionPlanner())
    tested.resize("ocr", 1, 0.0)
    tested.add(
        [
            job(1, level=1, hard=-900.0),
            job(2, level=2, soft=10.0, estimate=9.0),
            job(3, level=2, soft=10.0, estimate=3.0),
            job(4, level=2, soft=10.0),
            job(5, level=2, hard=-900.0, estimate=50.0),
        ],
        0.0,
    )
    order = []
    for now in range(5):
        (one,) = tested.started()
        order.append(one.dag)
        tested.ended([(one.dag, 0)], now + 1.0)
    assert order == [5, 3, 2, 4, 1]
