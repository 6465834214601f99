"""The simulator against models small enough to be seen to be right."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.sim import Arrival, presets
from fairlead.testing import CheckedGate
from tests.sim.model import arrivals, balanced, conserves_work, run, served

SERVERS = st.integers(1, 4)
CLASSES: dict[str, Any] = {"low": {}, "high": {}}


def exact(given: list[Arrival], policy: Any, servers: int, rank: Any) -> None:
    """See that the simulator starts and ends everyone when the model does."""
    result = run(given, policy)
    balanced(result)
    times = [(row.started, row.ended) for row in result.tickets]
    assert times == served(given, servers, rank)
    conserves_work(result, servers)


def first_come(number: int, arrival: Arrival) -> Any:
    return arrival.at, number


@given(arrivals(), SERVERS)
def test_first_come_first_served(given, servers):
    exact(given, {"policy": "fifo", "capacity": {"slots": servers}}, servers, first_come)


@given(arrivals(cls=st.sampled_from(["low", "high"])), SERVERS)
def test_strict_classes(given, servers):
    policy = {"policy": {"classes": CLASSES}, "capacity": {"slots": servers}}
    exact(given, policy, servers, lambda n, one: (one.cls == "low", one.at, n))


@given(arrivals(), SERVERS)
def test_shortest_first(given, servers):
    policy = {"policy": {"order": {"by": "service"}}, "capacity": {"slots": servers}}
    exact(given, policy, servers, lambda n, one: (one.service, one.at, n))


@given(arrivals(priority=st.integers(0, 100)), SERVERS)
def test_priorities_that_do_not_age(given, servers):
    policy = {"policy": {"aging": {"rate": 0, "ceiling": 1000}}, "capacity": {"slots": servers}}
    exact(given, policy, servers, lambda n, one: (-one.priority, one.at, n))


@given(arrivals(priority=st.integers(0, 100)), SERVERS)
def test_a_scheduler_of_tasks_whose_priorities_hardly_age_in_so_short_a_time(given, servers):
    policy = {"preset": "tasks", "max_concurrency": servers, "starvation_timeout": "366d"}
    # Two points of priority in half a year: of the order only those equal in priority are left to arrival.
    exact(given, policy, servers, lambda n, one: (-one.priority, one.at, n))


PATIENT = arrivals(
    tenant=st.sampled_from("abc"),
    cls=st.sampled_from(["low", "high"]),
    patience=st.none() | st.integers(0, 30).map(lambda n: n / 8),
    leaves=st.none() | st.integers(1, 30).map(lambda n: n / 8),
    retries=st.integers(0, 2),
    pause=st.sampled_from([0.0, 0.5]),
    cost=st.integers(1, 3).map(float),
)
POLICIES: list[dict[str, Any]] = [
    {"policy": "fifo", "capacity": {"slots": 2}},
    {"policy": {"fifo": {"limit": 3}}, "capacity": {"slots": 1}},
    {"policy": {"fair": {"by": "tenant", "then": "aging"}}, "capacity": {"slots": 2}},
    {"policy": "aging", "capacity": {"bucket": {"rate": 2, "burst": 3}}},
    {"policy": {"fair": {}}, "capacity": {"inflight": {"limit": 4, "by": "tenant"}, "slots": 3}},
    {
        "policy": {
            "classes": {
                "low": {"starvation": "2s", "queue_limit": 5},
                "high": {"wait_limit": "3s", "can_preempt": True, "fair": {"by": "tenant"}},
            }
        },
        "capacity": {"reserved": {"slots": 3, "floors": {"high": 1}, "linger": "1s"}},
    },
    {
        "preset": "flows",
        "concurrency": {"max_concurrency": 3},
        "quota": {"bucket_capacity": 5, "fill_amount": 3, "interval": "1s"},
        "scheduler": {"tokens_label_key": "tokens", "fairness_label_key": "tenant", "max_queue": 6},
    },
]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@given(given=PATIENT)
def test_nobody_is_lost(policy, given):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(presets, "Gate", CheckedGate)  # its invariants are asserted after every verb
        result = run(given, policy)
    if "inflight" not in str(policy) and "flows" not in str(policy):
        balanced(result)
    assert len(result.tickets) == len(given)
    assert not result.totals["waiting"]
    assert not result.totals["running"]
    for row, arrival in zip(result.tickets, given, strict=True):
        assert row.at == arrival.at
        if row.state == "done":
            assert row.ended == row.started + arrival.service
        elif row.state in ("expired", "withdrawn") and "flows" not in str(policy):
            patience = min(x for x in (arrival.patience, arrival.leaves, 3.0) if x is not None)
            assert row.ended is not None
            assert row.ended >= row.at + patience or row.preempted
            waits = [x for x in (arrival.patience, arrival.leaves) if x is not None]
            if "wait_limit" not in str(policy) and not row.preempted:
                assert row.ended == row.at + min(waits)


@given(PATIENT)
def test_what_is_in_use_over_time_is_the_work_that_was_done(given):
    result = run(given, POLICIES[5])
    if not result.utilisation:
        return
    width = result.horizon / len(result.utilisation)
    used = sum(level for _, level in result.utilisation) * width
    done = sum(row.service for row in result.tickets if row.state == "done")
    assert used >= done - 1e-6
    if not result.totals["preempted"]:
        assert used == pytest.approx(done, abs=1e-5)


def test_a_queue_of_little_law():
    """Little's law holds for any policy: the mean number that wait is the rate of arrival times the mean wait."""
    from fairlead.sim import read_policy, read_scenario, simulate

    scenario = read_scenario(
        {
            "count": 20_000,
            "arrivals": [{"kind": "poisson", "rate": 9, "service": {"exponential": 1}}],
        }
    )
    result = simulate(scenario, read_policy({"policy": "fifo", "capacity": {"slots": 10}}), 3)
    waits = [row.started - row.at for row in result.tickets if row.started is not None]
    # M/M/10 at 90 %: Erlang's C is 0.6687, the mean wait C/(c·mu − lambda).
    assert sum(waits) / len(waits) == pytest.approx(0.6687, rel=0.15)
    assert sum(wait > 0 for wait in waits) / len(waits) == pytest.approx(0.6687, rel=0.08)
