"""The search: it finds what is there to be found, within its budget, the same every time, and says whose cost it is."""

from typing import Any

import pytest

from fairlead.errors import ConfigError
from fairlead.sim.goals import read_goal, read_range
from fairlead.sim.result import Result, Row
from fairlead.sim.tune import Tuning


class Policy:
    """A policy of numbers, whose waits are known: `x` shortens those of a and lengthens those of b."""

    name = "model"

    def __init__(self, **settings: Any) -> None:
        self.settings = {"x": 0.0, "y": 0.0, "kind": "plain"} | settings

    def with_settings(self, changes: dict[str, Any]) -> "Policy":
        unknown = set(changes) - set(self.settings)
        if unknown:
            raise ConfigError(f"unknown setting {unknown.pop()}")
        if changes.get("x", 0) > 0.9:
            raise ConfigError("x must be 0.9 or less")
        return Policy(**self.settings | changes)


class Scenario:
    name = "model"


def simulate(_: Any, policy: Any, seed: int) -> Result:
    x, y = policy.settings["x"], policy.settings["y"]
    kind = 0.5 if policy.settings["kind"] == "quick" else 1.0
    waits = {"a": kind * (1 - x) + 0.001 * seed, "b": 1 + 4 * x + 10 * (y - 0.6) ** 2}
    rows = [
        Row(float(at), at + wait, at + wait + 0.1, "done", cls=name, tenant="t", service=0.1)
        for at in range(5)
        for name, wait in waits.items()
    ]
    return Result("model", seed, 20.0, 4.0, rows, [(0.0, 1.0)], {})


def tuning(goals: list[str], ranges: list[str], **more: Any) -> Tuning:
    read = [read_goal(goal) for goal in goals], [read_range(text) for text in ranges]
    scenario: Any = Scenario()
    policy: Any = Policy()
    return Tuning(scenario, policy, *read, [1, 2, 3], simulate, **more)


def test_the_gentlest_setting_that_meets_the_goal_is_found():
    search = tuning(["a.p99 < 500ms"], ["x=0..0.9"])
    best = search.search()
    # 1 − x + 0.002 < 0.5 on average: any more of x is at the cost of b.
    assert best.violation == 0
    assert 0.5 < best.settings["x"] < 0.53
    told = search.document()
    assert told["met"]
    assert told["goals"][0]["before"] > 0.5 > told["goals"][0]["after"]
    assert told["classes"]["a"]["wait.p95"]["difference"]["verdict"] == "better"
    assert told["classes"]["b"]["wait.p95"]["difference"]["verdict"] == "worse"
    assert told["tried"][0]["settings"] == best.settings
    assert len(told["tried"]) - 1 + len(told["refused"]) <= 60


def test_two_settings_and_a_choice_are_searched_together():
    search = tuning(["a.p99 < 300ms", "minimise b.p95"], ["x=0..0.9", "y=0..1", "kind=plain,quick"])
    best = search.search()
    assert best.settings["kind"] == "quick"
    assert best.settings["y"] == pytest.approx(0.6, abs=0.05)
    assert best.violation == 0
    assert best.settings["x"] == pytest.approx(0.42, abs=0.06)


def test_too_many_ranges_for_a_grid_are_searched_one_after_the_other():
    search = tuning(["a.p99 < 500ms"], ["x=0..0.9", "y=0..1", "kind=plain,quick"], budget=20)
    best = search.search()
    assert len(search.trials) <= 20
    assert best.violation == 0


def test_what_the_policy_refuses_is_left_out_and_told():
    search = tuning(["a.p99 < 120ms"], ["x=0..1"])
    best = search.search()
    assert best.violation == 0
    assert 0.88 < best.settings["x"] <= 0.9
    told = search.document()
    assert told["refused"][0]["problem"] == "x must be 0.9 or less"


def test_goals_that_cannot_be_met_give_the_nearest():
    search = tuning(["a.p99 < 10ms"], ["x=0..0.8"])
    best = search.search()
    assert best.settings == {"x": 0.8}
    assert best.violation > 0
    assert not search.document()["met"]


def test_a_policy_that_is_best_as_it_is_stays():
    search = tuning(["b.p99 < 20s"], ["x=0.1..0.8"])
    assert search.search().settings == {}
    assert search.document()["met"]


def test_the_same_search_finds_the_same():
    def once() -> dict[str, Any]:
        search = tuning(["a.p99 < 500ms"], ["x=0..0.9", "y=0..1"])
        search.search()
        return search.document()

    assert once() == once()


def test_the_budget_is_kept_and_progress_only_grows():
    seen: list[float] = []
    search = tuning(["a.p99 < 500ms"], ["x=0..0.9"], budget=7, progress=seen.append)
    search.search()
    assert len(search.trials) <= 7
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


@pytest.mark.parametrize(
    ("goals", "ranges", "says"),
    [
        ([], ["x=0..1"], "needs a goal"),
        (["a.p99 < 1s"], [], "and a range"),
        (["a.p99 < 1s"], ["x=0..1", "x=1,2"], "two ranges"),
        (["c.p99 < 1s"], ["x=0..1"], "no class 'c'"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused_before_it_begins(goals, ranges, says):
    with pytest.raises(ConfigError, match=says):
        tuning(goals, ranges)


def test_a_setting_that_does_not_exist_is_a_mistake_and_no_result():
    with pytest.raises(ConfigError, match="takes none of these settings: unknown setting z"):
        tuning(["a.p99 < 1s"], ["z=0..1"]).search()
