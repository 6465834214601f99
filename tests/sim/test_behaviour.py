"""What the simulator does beside first come, first served: preemption, clients, graphs, patience, the end of time."""

from itertools import pairwise
from typing import Any

import pytest

from fairlead.capacities import Slots
from fairlead.core import Gate
from fairlead.errors import BadFile, ConfigError, PolicyError
from fairlead.policies import FairQueue
from fairlead.sim import Arrival, Scenario, read_policy, read_scenario, simulate
from fairlead.sim.figures import summarise
from fairlead.sim.result import usage
from fairlead.sim.site import Site
from tests.sim.model import balanced, run

FIFO = {"policy": "fifo", "capacity": {"slots": 1}}
PREEMPTING = {
    "policy": {"classes": {"low": {}, "high": {"can_preempt": True}}},
    "capacity": {"slots": 1},
}
STREAM = {"preset": "streams", "topics": {"high": {"batch_size": 3, "partitions": 2}}}


def drawn(policy: Any, seed: int = 0, **scenario: Any) -> Any:
    return simulate(read_scenario(scenario), read_policy(policy), seed)


def times(result: Any) -> list[tuple[str, float | None, float | None]]:
    return [(row.state, row.started, row.ended) for row in result.tickets]


def test_a_preempted_ticket_is_over_and_its_slot_goes_to_the_other():
    result = run([Arrival(0.0, 10.0, "low"), Arrival(1.0, 2.0, "high")], PREEMPTING)
    assert times(result) == [("evicted", 0.0, 1.0), ("done", 1.0, 3.0)]
    assert result.totals["preempted"] == 1
    assert result.tickets[0].preempted == 1
    assert sum(used for _, used in result.utilisation) / len(result.utilisation) == 1.0


def test_a_preempted_ticket_may_come_back_and_is_immune_the_fourth_time():
    many = [Arrival(0.0, 100.0, "low", retries=9, pause=0.5)]
    many += [Arrival(float(at), 0.25, "high") for at in range(1, 8)]
    result = run(many, PREEMPTING)
    low = result.tickets[0]
    assert (low.state, low.preempted, low.at, low.started) == ("done", 3, 0.0, 3.5)
    assert result.totals["preempted"] == result.totals["retried"] == 3
    balanced(result)


def test_what_is_committed_is_not_preempted():
    many = [Arrival(0.0, 10.0, "low", commits=0.5), Arrival(1.0, 2.0, "high")]
    assert times(run(many, PREEMPTING)) == [("done", 0.0, 10.0), ("done", 10.0, 12.0)]
    late = [Arrival(0.0, 10.0, "low", commits=1.5), Arrival(1.0, 2.0, "high")]
    assert run(late, PREEMPTING).tickets[0].state == "evicted"


def test_patience_and_callers_who_leave():
    many = [
        Arrival(0.0, 10.0),
        Arrival(1.0, 1.0, patience=3.0),
        Arrival(1.0, 1.0, leaves=2.0),
        Arrival(1.0, 1.0, patience=0.0),
        Arrival(1.0, 1.0),
    ]
    assert times(run(many, FIFO)) == [
        ("done", 0.0, 10.0),
        ("expired", None, 4.0),
        ("withdrawn", None, 3.0),
        ("expired", None, 1.0),
        ("done", 10.0, 11.0),
    ]


def test_a_full_queue_refuses_and_says_so():
    limited = {"policy": {"fifo": {"limit": 1}}, "capacity": {"slots": 1}}
    result = run([Arrival(0.0, 5.0), Arrival(1.0, 1.0), Arrival(2.0, 1.0)], limited)
    assert result.tickets[2].state == "refused"
    assert result.tickets[2].reason == "1 wait already, the limit is 1"
    assert result.tickets[2].ended == 2.0


def test_what_can_never_fit_is_refused():
    bucket = {"policy": "fifo", "capacity": {"bucket": {"rate": 1, "burst": 2}}}
    result = run([Arrival(0.0, 1.0, cost=3.0), Arrival(0.0, 1.0)], bucket)
    assert [row.state for row in result.tickets] == ["refused", "done"]


def test_deadlines_are_counted():
    many = [Arrival(0.0, 2.0, deadline=2.0), Arrival(0.0, 2.0, deadline=3.0)]
    result = run(many, FIFO)
    assert [row.late for row in result.tickets] == [False, True]
    assert result.totals["late"] == 1


def test_time_that_runs_out():
    many = [Arrival(0.0, 10.0), Arrival(1.0, 1.0), Arrival(5.0, 1.0), Arrival(7.0, 1.0)]
    result = run(many, FIFO, until=5.0)
    assert times(result) == [
        ("running", 0.0, None),
        ("waiting", None, None),
        ("waiting", None, None),
    ]
    assert result.horizon == 5.0
    assert result.utilisation[-1][1] == 1.0


@pytest.mark.parametrize(
    "policy",
    [FIFO, {"preset": "flows", "concurrency": {"max_concurrency": 1}}, {"preset": "jobs"}, STREAM],
)
def test_who_would_come_after_the_end_of_time_has_not_arrived(policy):
    steady = {"kind": "steady", "rate": 1, "service": "1s", "deadline": "2s", "workload": "high"}
    result = drawn(policy, seconds=100, until=5, arrivals=[steady])
    assert [row.at for row in result.tickets] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert result.totals["arrived"] == 6
    assert result.totals["late"] == sum(row.late for row in result.tickets)
    found = summarise(result)
    assert found.groups["all"]["all"]["arrived"] == 6
    assert found.timeline["seconds"] == 5.0


def test_a_job_that_still_waits_for_another_at_the_end_of_time_has_arrived():
    graph = [Arrival(0.0, 9.0, dag=0), Arrival(0.0, 1.0, deps=(0,), dag=0)]
    assert times(run(graph, FIFO, until=5.0)) == [("running", 0.0, None), ("waiting", None, None)]


def test_jobs_wait_for_what_they_depend_on():
    graph = [
        Arrival(0.0, 2.0, key="a", dag=0),
        Arrival(0.0, 3.0, key="b", deps=(0,), dag=0),
        Arrival(0.0, 1.0, key="c", deps=(0,), dag=0),
        Arrival(0.0, 1.0, key="d", deps=(1, 2), dag=0),
    ]
    for policy in (
        {"policy": "fifo", "capacity": {"slots": 2}},
        {"preset": "jobs", "executors": {"default": 2}},
    ):
        result = run(graph, policy)
        assert times(result) == [
            ("done", 0.0, 2.0),
            ("done", 2.0, 5.0),
            ("done", 2.0, 3.0),
            ("done", 5.0, 6.0),
        ]
        assert [row.at for row in result.tickets] == [0.0, 2.0, 2.0, 5.0]


def test_a_job_whose_turn_has_come_waits_for_its_time_too():
    late = [Arrival(0.0, 1.0), Arrival(5.0, 1.0, deps=(0,), dag=0)]
    assert run(late, FIFO).tickets[1].started == 5.0


def test_nothing_follows_what_was_not_done():
    graph = [
        Arrival(0.0, 5.0, key="holder"),
        Arrival(1.0, 1.0, key="a", patience=1.0, dag=0),
        Arrival(1.0, 1.0, key="b", deps=(1,), dag=0),
        Arrival(1.0, 1.0, key="c", deps=(2,), dag=0),
        Arrival(9.0, 1.0, key="d", deps=(3,), dag=0),
    ]
    result = run(graph, FIFO)
    assert [row.state for row in result.tickets] == ["done", "expired", *["withdrawn"] * 3]
    assert result.tickets[2].reason == "what it depends on did not get done"
    balanced(result)


def test_planners_plan_what_came_together_as_a_whole():
    """A durable door decides in rounds: of four that come at one instant the shortest is first."""
    many = [Arrival(0.0, service) for service in (4.0, 2.0, 1.0, 3.0)]
    policy = {"preset": "jobs", "executors": {"default": 1}, "planner": "SJFSExecutionPlanner"}
    result = run(many, policy)
    assert [row.started for row in result.tickets] == [6.0, 1.0, 0.0, 3.0]


class Backwards:
    """A planner of a user's own."""

    def plan(self, jobs: Any, slots: Any, active: Any, recent: Any = ()) -> Any:
        return sorted(jobs, key=lambda job: job.id, reverse=True)


def test_room_goes_to_the_best_of_all_there_are_also_of_those_that_just_became_ready():
    """The deeper job first, as the door's own planner wants it, though another was planned before it was ready."""
    given = [Arrival(0.0, 1.0), Arrival(0.0, 1.0), Arrival(0.0, 1.0, deps=(0,))]
    result = run(given, {"preset": "jobs", "executors": {"default": 1}})
    assert [row.started for row in result.tickets] == [0.0, 2.0, 1.0]


def test_a_planner_of_ones_own_is_asked():
    many = [Arrival(0.0, 1.0) for _ in range(4)]
    jobs = {"preset": "jobs", "executors": {"default": 1}, "planner": "mine"}
    shared = {
        "preset": "pool",
        "capacity": {"slots": 1},
        "policy": {"fair": {"weights": {"jobs/leader": 1}}},
        "doors": {"jobs/leader": jobs},
    }
    for document, door in ((jobs, ""), (shared, "jobs/leader")):
        policy = read_policy(document, planners={"mine": Backwards}).with_settings({})
        given = [one._replace(door=door) for one in many]
        result = simulate(Scenario.of(given), policy, 0)
        assert [row.started for row in result.tickets] == [3.0, 2.0, 1.0, 0.0]


@pytest.mark.parametrize("name", ["mine", f"{__name__}:Backwards", "this:x", 7])
def test_a_planner_that_nobody_gave_is_not_looked_for(name):
    with pytest.raises(BadFile, match="planner"):
        read_policy({"preset": "jobs", "planner": name})


def test_limits_of_jobs_hold():
    many = [Arrival(0.0, 1.0, tenant="a"), Arrival(0.0, 1.0, tenant="a"), Arrival(0.0, 1.0)]
    policy = {"preset": "jobs", "executors": {"default": 8}, "tenants": {"a": {"max_running": 1}}}
    assert sorted(row.started or 0.0 for row in run(many, policy).tickets) == [0.0, 0.0, 1.0]


def test_a_partition_has_one_batch_at_a_time_and_a_batch_one_record():
    policy = {"preset": "streams", "concurrency": 4, "topics": {"default": {"batch_size": 2}}}
    result = run([Arrival(at, 1.0) for at in (0.0, 0.5, 0.5, 0.5)], policy)
    assert [(row.started, row.ended) for row in result.tickets] == [
        (0.0, 1.0),
        (1.0, 2.0),
        (2.0, 3.0),
        (3.0, 4.0),
    ]


def test_a_batch_keeps_its_worker_until_its_last_record():
    topics = {"big": {"batch_size": 3}, "urgent": {"priority": 100}}
    policy = {"preset": "streams", "concurrency": 1, "topics": topics}
    given = [*(Arrival(0.0, 1.0, workload="big") for _ in range(4)), Arrival(0.5, 1.0, "urgent")]
    result = run(given, policy)
    assert [row.started for row in result.tickets] == [0.0, 1.0, 2.0, 4.0, 3.0]


def test_records_of_one_key_go_into_one_partition_and_others_go_round():
    policy = {"preset": "streams", "concurrency": 4, "topics": {"default": {"partitions": 4}}}
    keyed = run([Arrival(0.0, 1.0, tenant="acme") for _ in range(3)], policy)
    assert [row.started for row in keyed.tickets] == [0.0, 1.0, 2.0]
    spread = run([Arrival(0.0, 1.0) for _ in range(5)], policy)
    assert [row.started for row in spread.tickets] == [0.0, 0.0, 0.0, 0.0, 1.0]
    named = run([Arrival(0.0, 1.0, labels={"partition": "3"}) for _ in range(2)], policy)
    assert [row.started for row in named.tickets] == [0.0, 1.0]


def test_clients_come_again_when_they_were_answered():
    result = drawn(
        {"policy": "fifo", "capacity": {"slots": 1}},
        seconds="60s",
        arrivals=[{"kind": "closed", "clients": 3, "service": "1s", "think": "2s"}],
    )
    # Three clients, one server: a round takes a second of work each, and two of thought.
    assert result.totals["arrived"] == pytest.approx(60, abs=3)
    balanced(result)
    starts = [row.started for row in result.tickets]
    assert all(b - a == pytest.approx(1.0) for a, b in pairwise(starts))


def test_a_client_that_is_refused_at_once_does_not_stop_time():
    limited = {"policy": {"fifo": {"limit": 0}}, "capacity": {"slots": 1}}
    result = drawn(
        limited, seconds="1s", arrivals=[{"kind": "closed", "clients": 2, "service": "10s"}]
    )
    assert result.totals["refused"] == pytest.approx(1000, abs=3)


def test_a_count_bounds_clients_too():
    sources = [{"kind": "closed", "clients": 5, "service": "1s"}]
    assert drawn(FIFO, count=12, arrivals=sources).totals["arrived"] == 12


def test_progress_is_told_and_ends_at_one():
    told: list[float] = []
    scenario = read_scenario(
        {"count": 30_000, "arrivals": [{"kind": "poisson", "rate": 10, "service": "50ms"}]}
    )
    simulate(scenario, read_policy(FIFO), 0, told.append)
    assert told == sorted(told)
    assert len(told) >= 3
    assert told[-1] == 1.0
    assert all(0 <= part <= 1 for part in told)


@pytest.mark.parametrize(
    ("policy", "arrival", "said"),
    [
        (PREEMPTING, Arrival(0.0, 1.0, "lwo"), "no class 'lwo'; its classes are low, high"),
        ({"preset": "gateway", "capacity": 400}, Arrival(0.0, 1.0, "vip"), "no class 'vip'"),
        ({"preset": "jobs"}, Arrival(0.0, 1.0, pool="gpu"), "no pool 'gpu'; its pools are default"),
        ({"preset": "jobs"}, Arrival(0.0, 1.0, patience=1.0), "leave patience out"),
        (STREAM, Arrival(0.0, 1.0, workload="lwo"), "no topic 'lwo'; its topics are high"),
        (STREAM, Arrival(0.0, 1.0, "high", patience=1.0), "leave patience and leaves out"),
        (STREAM, Arrival(0.0, 1.0, "high", leaves=1.0), "leave patience and leaves out"),
        (STREAM, Arrival(0.0, 1.0, "high", cost=1.5), "a number of records here, .* got 1.5"),
        (STREAM, Arrival(0.0, 1.0, "high", cost=0.0), "a number of records here, .* got 0"),
        (STREAM, Arrival(0.0, 1.0, "high", cost=4.0), "4 records come together in high, .* 3 at"),
        (
            STREAM,
            Arrival(0.0, 1.0, "high", labels={"partition": "2"}),
            "no partition '2'; its partitions are 0 to 1",
        ),
        (STREAM, Arrival(0.0, 1.0, "high", labels={"partition": "x"}), "no partition 'x'"),
    ],
)
def test_what_does_not_belong_is_said_before_anything_runs(policy, arrival, said, monkeypatch):
    def offered(*_: Any) -> None:
        raise AssertionError("something ran")

    monkeypatch.setattr(Gate, "offer", offered)
    monkeypatch.setattr(Gate, "enlist", offered)
    with pytest.raises(ConfigError, match=said):
        run([Arrival(0.0, 1.0, "high"), arrival], policy)


def test_a_gate_that_is_due_for_ever_is_told_and_does_not_hang():
    class Spinning(Gate):
        def next_wakeup(self, now: float) -> float:
            self.due = self.now  # though there is nothing to do
            return self.due

    policy = read_policy(FIFO)
    policy._build = lambda: Site(Spinning(FairQueue(), Slots(1)))
    with pytest.raises(PolicyError, match="again and again"):
        simulate(Scenario.of([Arrival(0.0, 5.0), Arrival(1.0, 1.0, patience=1.0)]), policy, 0)


@pytest.mark.parametrize(
    "policy",
    [
        {"preset": "jobs", "executors": {"default": 1}},
        {"preset": "streams", "concurrency": 1, "topics": {"default": {}}},
    ],
    ids=["jobs", "streams"],
)
def test_rounds_that_start_nothing_are_no_standstill(policy, monkeypatch):
    """Doors that decide in rounds have one for each instant at which somebody comes, though nothing may start."""
    monkeypatch.setattr("fairlead.sim.run.MOST_IDLE", 100)
    crowd = [Arrival(number / 8, 50.0 if number == 0 else 0.0) for number in range(300)]
    assert run(crowd, policy).totals["done"] == len(crowd)


def test_usage_of_stretches_longer_than_a_part():
    points = usage([(0.0, 10.0, 2.0), (4.0, 4.5, 1.0)], 10.0, most=10)
    assert [level for _, level in points] == [2.0, 2.0, 2.0, 2.0, 2.5, *[2.0] * 5]
    assert usage([], 0.0) == []


POINT: dict[str, Any] = {
    "preset": "flows",
    "concurrency": {"max_concurrency": 1},
    "scheduler": {
        "fairness_label_key": "user_id",
        "workloads": [
            {"name": "gold", "priority": 9, "match_labels": {"plan": "gold"}},
            {"name": "free", "priority": 1, "match_labels": {"plan": "free"}},
        ],
    },
}


def test_a_scenario_need_not_know_the_labels_of_a_control_point():
    """Whose work it is and of which workload is enough; labels of its own go first."""
    many = [Arrival(0.0, 1.0, tenant="a", workload="free")]
    many += [Arrival(0.0, 1.0, tenant="a", workload="free") for _ in range(3)]
    many += [Arrival(0.0, 1.0, tenant="b", workload="free")]
    many += [Arrival(0.0, 1.0, tenant="c", workload="gold")]
    many += [Arrival(0.0, 1.0, tenant="c", labels={"plan": "gold"})]
    starts = [row.started or 0.0 for row in run(many, POINT).tickets]
    assert {starts[5], starts[6]} <= {1.0, 2.0, 3.0}, "gold goes first"
    assert starts[4] < starts[2], "users of one workload take turns"


def test_given_arrivals_may_depend_on_later_ones_without_being_numbered_as_a_graph():
    given = [Arrival(1.0, 1.0, key="last", deps=(1,)), Arrival(0.0, 3.0, key="first")]
    result = simulate(Scenario.of(given), read_policy({"policy": "fifo", "capacity": {"slots": 2}}))
    assert [(row.key, row.started) for row in result.tickets] == [("first", 0.0), ("last", 3.0)]
