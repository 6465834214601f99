"""Goals and ranges as they are written: what is read, and what is said of what cannot be."""

from typing import Any

import pytest

from fairlead.errors import ConfigError
from fairlead.sim.goals import check_goals, read_goal, read_range


@pytest.mark.parametrize(
    ("text", "dimension", "group", "measure", "operator", "limit"),
    [
        ("interactive.p99 < 500ms", "class", "interactive", "wait.p99", "<", 0.5),
        ("interactive.p99<500ms", "class", "interactive", "wait.p99", "<", 0.5),
        ("  bulk.wait.p95 <= 1m30s ", "class", "bulk", "wait.p95", "<=", 90.0),
        ("bulk.completion.mean<2s", "class", "bulk", "completion.mean", "<", 2.0),
        ("a.p99.9 < 0s", "class", "a", "wait.p99.9", "<", 0.0),
        ("a.dag.p95 < 1h", "class", "a", "dag.p95", "<", 3600.0),
        ("all.dags_lost < 1%", "all", "all", "dags_lost", "<", 0.01),
        ("my.class.p50 < 1s", "class", "my.class", "wait.p50", "<", 1.0),
        ("tenant:acme.missed < 1%", "tenant", "acme", "missed", "<", 0.01),
        ('tenant:"all".lost < 0.5', "tenant", "all", "lost", "<", 0.5),
        ("workload:chat.throughput >= 10/s", "workload", "chat", "throughput", ">=", 10.0),
        ("all.utilisation > 80 %", "all", "all", "utilisation", ">", 0.8),
        ("class:all.done > 100", "class", "all", "done", ">", 100.0),
        ("minimise bulk.p95", "class", "bulk", "wait.p95", "less", None),
        ("Maximize all.throughput", "all", "all", "throughput", "more", None),
    ],
)
def test_a_goal_is_read(text, dimension, group, measure, operator, limit):
    goal = read_goal(text)
    assert tuple(goal) == (text.strip(), dimension, group, measure, operator, limit)
    assert goal.less == (operator in {"<", "<=", "less"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "a goal looks like"),
        ("interactive", "a goal looks like"),
        ("interactive.p99", "a goal looks like"),
        ("interactive.p99 = 5s", "not with ="),
        ("interactive.p99 == 5s", "not with =="),
        ("interactive.p99 < 5", "needs a unit"),
        ("interactive.p99 < soon", "must be a duration"),
        ("interactive.p99 < 5%", "must be a duration"),
        ("interactive.p98 < 5s", "did you mean p9"),
        ("interactive.refusd < 5%", "did you mean refused?"),
        ("interactive.zzz < 5%", "there are wait.mean"),
        ("p99 < 5s", "names a class and a measure"),
        ("bulk.lost < much", "a percentage such as 5%"),
        ("bulk.done > 5%", "a number such as 100"),
        ("bulk.lost < nan", "a percentage"),
        ("bulk.utilisation > 5%", "write all.utilisation"),
        ("tenant:a.misplaced < 5%", "write all.misplaced"),
        ("a.p50 < 1s < 2s", "a goal looks like"),
        ("minimise", "a goal looks like"),
        ("minimise bulk", "names a class and a measure"),
    ],
)
def test_a_goal_that_cannot_be_read_is_explained(text, says):
    with pytest.raises(ConfigError) as told:
        read_goal(text)
    assert says in str(told.value)


def test_a_goal_is_met_or_missed_by_a_measure():
    goal = read_goal("a.p99 < 500ms")
    assert goal.met(0.4999)
    assert not goal.met(0.5)
    assert not goal.met(None)
    assert goal.violation(0.4) == 0
    assert (
        0 < goal.violation(0.5) < goal.violation(0.75) < goal.violation(1.0) < goal.violation(None)
    )
    assert goal.violation(1.0) == 1
    more = read_goal("all.utilisation >= 80%")
    assert more.met(0.8)
    assert more.violation(0.4) == 0.5
    none_lost = read_goal("a.lost <= 0%")
    assert none_lost.met(0.0)
    assert none_lost.violation(0.1) == pytest.approx(0.1)
    wish = read_goal("minimise a.p99")
    assert wish.met(None)
    assert wish.violation(9.0) == 0


def test_a_goal_about_nobody_is_explained():
    groups: dict[str, Any] = {"class": {"interactive": {}, "bulk": {}}, "tenant": {}}
    check_goals([read_goal("bulk.p99 < 1s")], groups)
    with pytest.raises(ConfigError, match=r"did you mean interactive\?"):
        check_goals([read_goal("interactiv.p99 < 1s")], groups)
    with pytest.raises(ConfigError, match="those in the scenario are interactive, bulk"):
        check_goals([read_goal("xyz.p99 < 1s")], groups)
    with pytest.raises(ConfigError, match="no tenant 'acme' arrives"):
        check_goals([read_goal("tenant:acme.p99 < 1s")], groups)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a.b=0..0.5", [0.0, 0.25, 0.5]),
        ("a=-1..1.0", [-1.0, 0.0, 1.0]),
        ("a=8..64", [8, 36, 64]),
        ("a=1..10000", [1, 100, 10000]),  # by factors
        ("a=0..1", [0.0, 0.5, 1.0]),
        ("a=3..4", [3, 4, 4]),
        ("a=100ms..300ms", ["100ms", "200ms", "300ms"]),
        ("a=0..10s", ["0ms", "5000ms", "10000ms"]),
        ("a=10ms..100s", ["10ms", "1000ms", "100000ms"]),
    ],
)
def test_a_range_gives_values(text, values):
    one = read_range(text)
    assert [one.at(place) for place in (0, 0.5, 1)] == values
    assert [type(one.at(place)) for place in (0, 0.5, 1)] == [type(value) for value in values]


def test_a_list_gives_its_values():
    one = read_range("policy.kind = fair, fifo ,3, 0.5, true, null, 'a b', 10ms")
    assert one.path == "policy.kind"
    assert one.choices == ("fair", "fifo", 3, 0.5, True, None, "a b", "10ms")
    assert [one.at((index + 0.5) / 8) for index in range(8)] == list(one.choices)
    assert one.at(1.0) == "10ms"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "a range looks like"),
        ("a", "a range looks like"),
        ("a=", "a range looks like"),
        ("=1..2", "a range looks like"),
        ("a=1,,2", "an empty one"),
        ("a=2..1", "from less to more"),
        ("a=1..1", "from less to more"),
        ("a=x..y", "from a number to a number"),
        ("a=1..nan", "from a number to a number"),
        ("a=1..5s", "needs a unit"),
        ("a=5s..1", "needs a unit"),
    ],
)
def test_a_range_that_cannot_be_read_is_explained(text, says):
    with pytest.raises(ConfigError) as told:
        read_range(text)
    assert says in str(told.value)
