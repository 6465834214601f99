"""What is said of one run: percentiles, losses, shares; and of policies over seeds: means, intervals, differences."""

import random
from statistics import mean, stdev

import pytest

from fairlead.sim.compare import differences, estimate, gather, paired, student_t, verdict
from fairlead.sim.figures import (
    MEASURES,
    OTHERS,
    figures,
    groups_of,
    order_of,
    percentile,
    summarise,
)
from fairlead.sim.result import Result, Row, usage
from fairlead.sim.shares import fair_shares, max_min
from tests.sim.handmade import run


def done(at: float, started: float, ended: float, **more) -> Row:
    return Row(at, started, ended, "done", service=ended - started, **more)


def result_of(*rows: Row, slots: float | None = 1.0, weighs: bool = False) -> Result:
    horizon = max(row.ended or 0.0 for row in rows)
    used = usage(
        ((row.started, row.ended or 0.0, 1.0) for row in rows if row.started is not None), horizon
    )
    return Result("p", 1, horizon, slots, list(rows), used, {}, "s", weighs)


@pytest.mark.parametrize("part", [50, 90, 95, 99, 99.9])
@pytest.mark.parametrize("number", [1, 2, 9, 10, 11, 99, 100, 101, 1000, 1001])
def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed(part, number):
    chance = random.Random(number)
    values = sorted(chance.random() for _ in range(number))
    found = percentile(values, part)
    assert found is not None
    # In whole numbers, for binary fractions are a little more or less than what they are written as.
    enough = [
        value for value in values if 1000 * sum(v <= value for v in values) >= number * part * 10
    ]
    assert found == min(enough)
    assert percentile([], part) is None


def test_figures_of_a_group():
    rows = [
        done(0, 0, 1, deadline=1.0),
        done(0, 1, 3, deadline=2.0, promoted=True),
        Row(1, None, 1, "refused", deadline=9.0),
        Row(1, None, 4, "expired"),
        Row(2, 3, 4, "evicted", preempted=2),
        Row(2, None, None, "waiting"),
    ]
    found = figures(rows, 4.0)
    assert (found["arrived"], found["done"], found["throughput"]) == (6, 2, 0.5)
    assert found["wait.max"] == 1  # of the three that were given room
    assert found["wait.mean"] == pytest.approx(2 / 3)
    assert found["completion.max"] == 3  # of the two that were done
    parts = [found[name] for name in ("refused", "expired", "evicted", "withdrawn", "unfinished")]
    assert parts == [1 / 6, 1 / 6, 1 / 6, 0, 1 / 6]
    assert found["lost"] == 0.5
    assert found["missed"] == pytest.approx(2 / 3)  # on time is not missed; refused is
    assert (found["promoted"], found["preempted"]) == (1, 2)


def test_nothing_to_measure_is_none_and_not_zero():
    found = figures([Row(0, None, 0, "refused")], 0.0)
    assert (
        found["wait.p99"]
        is found["completion.mean"]
        is found["missed"]
        is found["throughput"]
        is None
    )
    empty = figures([], 1.0)
    assert empty["lost"] is None
    assert empty["arrived"] == 0


def test_every_figure_has_a_meaning():
    result = run("fifo", 1, seconds=20)
    result.tickets[0].dag = 0
    groups = groups_of(result)
    names = {name for part in groups.values() for one in part.values() for name in one}
    assert names == set(MEASURES)


@pytest.mark.parametrize(
    ("wanted", "given", "fair"),
    [
        ([], 3, []),
        ([1, 1], 4, [1, 1]),
        ([4, 1], 4, [3, 1]),
        ([9, 9, 9], 9, [3, 3, 3]),
        ([0, 5, 2, 2], 6, [0, 2, 2, 2]),
    ],
)
def test_max_min(wanted, given, fair):
    assert max_min(wanted, given) == pytest.approx(fair)


def test_max_min_can_not_be_bettered():
    chance = random.Random(7)
    for _ in range(200):
        wanted = [chance.random() * 10 for _ in range(chance.randint(1, 6))]
        given = chance.random() * sum(wanted) * 1.2
        fair = max_min(wanted, given)
        assert sum(fair) == pytest.approx(min(given, sum(wanted)))
        short = [share for share, want in zip(fair, wanted, strict=True) if share < want - 1e-9]
        # Whoever wants more has as much as anybody.
        assert all(share == pytest.approx(max(fair)) for share in short)


def test_who_floods_has_more_than_his_fair_share_under_fifo_and_nobody_when_all_are_served():
    flood = [done(0, i, i + 1, tenant="flood") for i in range(8)]
    small = [Row(0, None, 2, "expired", tenant="small", service=1.0) for _ in range(4)]
    groups = groups_of(result_of(*flood, *small))
    tenants = groups["tenant"]
    assert tenants["flood"]["share"] == 1
    # For the two seconds in which small was there, half was due to it.
    assert tenants["small"]["fair"] == pytest.approx(1 / 8, abs=0.02)
    assert groups["all"]["all"]["misplaced"] == pytest.approx(1 / 8, abs=0.02)

    served = [done(0, 8 + i, 9 + i, tenant="small") for i in range(4)]
    groups = groups_of(result_of(*flood, *served))
    assert groups["tenant"]["small"]["share"] == pytest.approx(
        groups["tenant"]["small"]["fair"], abs=1e-3
    )
    assert groups["all"]["all"]["misplaced"] == pytest.approx(0, abs=1e-3)


def test_a_fair_share_is_never_more_than_what_was_asked_for():
    for seed in range(5):
        result = run("ranked", seed, ranked=True)
        parts: dict[str, list[Row]] = {}
        for row in result.tickets:
            parts.setdefault(row.cls, []).append(row)
        shares = fair_shares(parts, result.horizon, 400, weighs=False)
        given = sum(row.service for row in result.tickets if row.started is not None)
        for name, (_, fair) in shares.items():
            assert fair * given <= sum(row.service for row in parts[name]) * 1.001
        assert sum(fair for _, fair in shares.values()) == pytest.approx(1)


def test_cost_weighs_only_where_the_capacity_counts_it():
    rows = [done(0, 0, 1, tenant="a", cost=3.0), done(0, 0, 1, tenant="b")]
    assert groups_of(result_of(*rows))["tenant"]["a"]["share"] == 0.5
    assert groups_of(result_of(*rows, weighs=True))["tenant"]["a"]["share"] == 0.75


def test_many_tenants_are_taken_together():
    rows = [done(i, i, i + 1, tenant=f"t{i % 100}") for i in range(300)]
    tenants = groups_of(result_of(*rows))["tenant"]
    assert len(tenants) == 40
    assert list(tenants)[-1] == OTHERS
    assert sum(found["arrived"] or 0 for found in tenants.values()) == 300


def test_known_classes_stand_by_importance():
    assert order_of(["zeta", "bulk", "alpha", "system", OTHERS]) == [
        "system",
        "bulk",
        "alpha",
        "zeta",
        OTHERS,
    ]


def test_a_summary_holds_no_tickets_and_its_lines_add_up():
    result = run("fifo", 3)
    summary = summarise(result)
    line = summary.timeline
    running = [sum(levels) for levels in zip(*line["running"].values(), strict=True)]
    assert sum(running) / len(running) == pytest.approx(sum(line["used"]) / len(line["used"]))
    assert max(running) <= 4.001
    for points in summary.curves.values():
        waits = [wait for _, wait in points]
        assert waits == sorted(waits)


# Over seeds


def test_an_interval_is_students():
    values = [3.1, 2.9, 3.4, 3.0, 3.3]
    found = estimate(values)
    assert found is not None
    half = 2.7764 * stdev(values) / 5**0.5
    assert (found.mean, found.low, found.high) == pytest.approx(
        (mean(values), mean(values) - half, mean(values) + half)
    )
    assert estimate([1.0]) == (1.0, None, None, 1)
    assert estimate([None, None]) is None
    assert estimate([None, 2.0, 2.0]) == (2.0, 2.0, 2.0, 2)


def test_the_factor_falls_to_the_normal_one():
    factors = [student_t(degrees) for degrees in range(1, 200)]
    assert factors == sorted(factors, reverse=True)
    assert factors[-1] == pytest.approx(1.972, abs=0.001)


def test_an_interval_holds_the_truth_about_19_times_in_20():
    chance = random.Random(5)
    held = 0
    for _ in range(1000):
        found = estimate([chance.gauss(10, 2) for _ in range(5)])
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 10 <= found.high
    assert 930 <= held <= 970


def test_differences_are_paired():
    """Seeds differ by far more than policies do: only pair by pair the difference is seen."""
    before = [1.0, 5.0, 9.0, 14.0]
    after = [0.9, 4.88, 8.91, 13.9]
    found = paired("wait.p99", before, after)
    assert found is not None
    assert found.verdict == "better"
    assert found.relative == pytest.approx(-0.41 / 29)
    shuffled = paired("wait.p99", before, after[::-1])
    assert shuffled is not None
    assert shuffled.verdict == "unclear"
    assert paired("wait.p99", [None, 1.0], [1.0, None]) is None


@pytest.mark.parametrize(
    ("measure", "after", "says"),
    [
        ("wait.p99", [2.0, 2.1], "worse"),
        ("wait.p99", [0.5, 0.51], "better"),
        ("throughput", [2.0, 2.1], "better"),
        ("share", [2.0, 2.1], "other"),
        ("wait.p99", [1.0, 1.0], "same"),
        ("wait.p99", [0.0, 2.1], "unclear"),
        ("wait.p99", [9.0], "unclear"),
    ],
)
def test_verdicts(measure, after, says):
    found = paired(measure, [1.0] * len(after), after)
    assert found is not None
    assert found.verdict == verdict(measure, found.estimate) == says


def test_a_group_that_only_one_policy_has_has_no_difference():
    first = gather([{"class": {"a": {"lost": 0.1}}}], {"class": ["a", "b"]})
    other = gather([{"class": {"a": {"lost": 0.2}, "b": {"lost": 0.3}}}], {"class": ["a", "b"]})
    assert list(differences(first, other)["class"]) == ["a"]


def test_a_whole_dag_lasts_from_its_arrival_to_the_end_of_its_last_job():
    rows = [
        done(0, 0, 2, dag=0, workload="a"),
        done(2, 3, 7, dag=0, workload="b"),
        done(1, 1, 2, dag=1, workload="a"),
        Row(2, None, 2, "refused", dag=1, workload="b"),
        done(5, 5, 6, dag=2, workload="a"),
        Row(6, 6, None, "running", dag=2, workload="b"),
        done(0, 0, 9),
    ]
    groups = groups_of(result_of(*rows))
    found = groups["all"]["all"]
    assert found["dags"] == 3
    assert found["dags_lost"] == pytest.approx(1 / 3)
    assert found["dag.p50"] == found["dag.mean"] == found["dag.max"] == 7
    # A part of a DAG is not one.
    assert not any(name.startswith("dag") for name in groups["workload"]["a"])
    assert "dags" not in groups_of(result_of(done(0, 0, 1)))["all"]["all"]


def test_the_last_bits_of_a_sum_are_no_difference():
    found = paired("wait.mean", [0.1 + 0.2, 0.3], [0.3, 0.1 + 0.2])
    assert found is not None
    assert (found.estimate.mean, found.verdict) == (0, "same")
