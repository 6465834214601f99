"""Searching settings in the simulator: which of them meet the goals, and at whose cost.

Every candidate meets the same arrivals under the same seeds.  First a coarse grid over all the ranges (or, if that is
too much for the budget, one setting after the other), then ever smaller steps around the best so far.  Nothing is drawn
by chance, so the same search finds the same settings.

A candidate is better than another if it is nearer to meeting the goals; between two that meet them all, the one that
does better by the wishes (`minimise …`), and without wishes the one that harms the classes least against the policy as
it is; between two that harm alike, the one that does them more good.
"""

from __future__ import annotations

from itertools import product
from math import inf, log
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.errors import ConfigError
from fairlead.sim.compare import differences, estimates, gather
from fairlead.sim.figures import DIMENSIONS, groups_of, order_of
from fairlead.sim.goals import check_goals
from fairlead.sim.report import NOBODY, rounded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairlead.sim.building import PolicySpec
    from fairlead.sim.compare import Groups
    from fairlead.sim.goals import Goal, Range
    from fairlead.sim.result import Result
    from fairlead.sim.scenario import Scenario

    Places = tuple[float, ...]
    Simulate = Callable[[Scenario, PolicySpec, int], Result]

BUDGET = 60
FINEST = 1 / 128  # of a range
NOTICED = 0.001  # seconds; a wait beneath is as good as none
LOSS_WEIGHS = 10.0  # to lose a tenth of a class's work is as bad as waits 2.7 times as long
SHOWN = (
    "wait.p50",
    "wait.p95",
    "wait.p99",
    "completion.p95",
    "dag.p95",
    "lost",
    "missed",
    "throughput",
)


class Trial(NamedTuple):
    """Settings that were tried; without figures where the policy refused them, and `problem` says why."""

    settings: dict[str, Any]
    places: Places  # of each setting within its range, from 0 to 1
    runs: tuple[Groups, ...]  # one for each seed
    values: tuple[float | None, ...]  # of each goal, the mean over the seeds
    violation: float
    harm: float
    good: float
    problem: str = ""

    @property
    def score(self) -> tuple[float, float, float]:
        """Less is better."""
        return (self.violation, self.harm, -self.good)


class Tuning:
    """One search."""

    def __init__(
        self,
        scenario: Scenario,
        policy: PolicySpec,
        goals: Sequence[Goal],
        ranges: Sequence[Range],
        seeds: Sequence[int],
        simulate: Simulate,
        *,
        budget: int = BUDGET,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        if not goals or not ranges:
            raise ConfigError("tuning needs a goal and a range to search, one of each or more")
        names = [one.path for one in ranges]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ConfigError(f"{twice} is given two ranges; keep one")
        self.scenario, self.policy, self.simulate = scenario, policy, simulate
        self.goals, self.ranges, self.seeds = tuple(goals), tuple(ranges), tuple(seeds)
        self.budget = max(2, budget)
        # Whatever nobody asks for is not computed: a search is made of many runs.
        self._shares = any(goal.measure in {"share", "fair", "misplaced"} for goal in goals)
        asked = {goal.dimension for goal in goals} | {"all", "class"}
        asked |= {"tenant"} if self._shares else set()
        self._dimensions = [name for name in DIMENSIONS if name in asked]
        self.trials: dict[tuple[Any, ...], Trial] = {}
        self._progress = progress
        self._runs = 0
        runs = self._run(policy)
        if not any(groups["class"] for groups in runs):
            raise ConfigError(f"{NOBODY}: there is nothing to tune by")
        check_goals(self.goals, runs[0])
        self._as_it_is = mean_of(runs)
        self.usual = self._judged({}, (), runs)

    def search(self) -> Trial:
        """Look for the best settings within the budget."""
        step = self._coarse() / 2
        while step >= FINEST and len(self.trials) < self.budget:
            if not self._improve(step):
                step /= 2
        if self._progress is not None:
            self._progress(1.0)
        if self._leader() is None:
            problem = next(trial.problem for trial in self.trials.values())
            raise ConfigError(f"the policy takes none of these settings: {problem}")
        return self.best

    @property
    def best(self) -> Trial:
        """The best so far; of equals the policy as it is, then the first that was tried."""
        return self.ranked()[0]

    def ranked(self) -> list[Trial]:
        """All that could be tried, the best first."""
        good = [self.usual, *(trial for trial in self.trials.values() if not trial.problem)]
        return sorted(good, key=lambda trial: trial.score)

    def _coarse(self) -> float:
        """Try a grid, or one range after the other; return how far apart the places of a range were."""
        searched = any(not one.choices for one in self.ranges)
        most = self.budget * 2 // 3 if searched else self.budget
        points = 9
        while points > 3 and self._size(points) > most:
            points -= 1
        if self._size(points) <= most:
            for places in product(*(places_of(one, points) for one in self.ranges)):
                self._try(places)
            return 1 / (points - 1)
        here = tuple(places_of(one, 3)[1 % len(places_of(one, 3))] for one in self.ranges)
        for _ in range(2):  # a second round, for the first ones were chosen before the others
            for index, one in enumerate(self.ranges):
                tried = [
                    self._try((*here[:index], place, *here[index + 1 :]))
                    for place in places_of(one, 5)
                ]
                good = [trial for trial in tried if trial and not trial.problem]
                if good:
                    here = min(good, key=lambda trial: trial.score).places
        return 1 / 4

    def _size(self, points: int) -> int:
        size = 1
        for one in self.ranges:
            size *= len(one.choices) or points
        return size

    def _improve(self, step: float) -> bool:
        """Go a step from the best in each direction; tell whether one was better."""
        best = self._leader()
        if best is None:
            return False
        for index, one in enumerate(self.ranges):
            if one.choices:
                continue
            for place in (best.places[index] - step, best.places[index] + step):
                if 0 <= place <= 1:
                    self._try((*best.places[:index], place, *best.places[index + 1 :]))
        return self._leader() is not best

    def _leader(self) -> Trial | None:
        """The best of what was tried; the policy as it is has no place in the ranges."""
        return next((trial for trial in self.ranked() if trial.places), None)

    def _try(self, places: Places) -> Trial | None:
        """Simulate the settings at some places, once; None when the budget is spent."""
        values = tuple(one.at(place) for one, place in zip(self.ranges, places, strict=True))
        key = tuple(map(repr, values))
        if key in self.trials:
            return self.trials[key]
        if len(self.trials) >= self.budget:
            return None
        settings = {one.path: value for one, value in zip(self.ranges, values, strict=True)}
        try:
            changed = self.policy.with_settings(settings)
            trial = self._judged(settings, places, self._run(changed))
        except ConfigError as error:
            trial = Trial(settings, places, (), (), inf, inf, 0.0, str(error))
        self.trials[key] = trial
        return trial

    def _run(self, policy: PolicySpec) -> tuple[Groups, ...]:
        found = []
        for seed in self.seeds:
            result = self.simulate(self.scenario, policy, seed)
            found.append(groups_of(result, self._dimensions, shares=self._shares))
            self._runs += 1
            if self._progress is not None:
                self._progress(min(1.0, self._runs / (self.budget + 1) / len(self.seeds)))
        return tuple(found)

    def _judged(self, settings: dict[str, Any], places: Places, runs: tuple[Groups, ...]) -> Trial:
        figures = mean_of(runs)
        values = tuple(goal.value(figures) for goal in self.goals)
        pairs = list(zip(self.goals, values, strict=True))
        violation = sum(goal.violation(value) for goal, value in pairs)
        wishes = [(goal, value) for goal, value in pairs if goal.limit is None]
        harm, good = harm_of(figures, self._as_it_is)
        if wishes:
            harm = sum(self._wished(goal, value) for goal, value in wishes)
        return Trial(settings, places, runs, values, *rounded([violation, harm, good]))

    def _wished(self, goal: Goal, value: float | None) -> float:
        """Measure a wish against the policy as it is, so that several can be added."""
        if value is None:
            return 1e6
        scale = abs(goal.value(self._as_it_is) or 0.0) or 1.0
        return value / scale if goal.less else -value / scale

    def document(self) -> dict[str, Any]:
        """Tell what was found, in plain values."""
        best = self.best
        names = {name: order_of(self.usual.runs[0].get(name, {})) for name in DIMENSIONS}
        before, after = (gather(trial.runs, names) for trial in (self.usual, best))
        told = {
            "scenario": self.scenario.name,
            "policy": self.policy.name,
            "seeds": list(self.seeds),
            "met": best.violation == 0,
            "best": {"settings": best.settings, "harm": best.harm},
            "goals": [
                {
                    "goal": goal.text,
                    "before": was,
                    "after": now,
                    "met": goal.met(now),
                }
                for goal, was, now in zip(self.goals, self.usual.values, best.values, strict=True)
            ],
            "classes": {
                name: {
                    measure: {
                        "before": found["mean"],
                        "after": _at(estimates(after), name, measure, "mean"),
                        "difference": _at(differences(before, after), name, measure),
                    }
                    for measure, found in measures.items()
                    if measure in SHOWN
                }
                for name, measures in estimates(before)["class"].items()
            },
            "tried": [
                {
                    "settings": trial.settings,
                    "values": list(trial.values),
                    "met": trial.violation == 0,
                    "harm": trial.harm,
                    "classes": _classes(trial),
                }
                for trial in self.ranked()
            ],
            "refused": [
                {"settings": trial.settings, "problem": trial.problem}
                for trial in self.trials.values()
                if trial.problem
            ],
        }
        return rounded(told)  # type: ignore[no-any-return]


def places_of(one: Range, points: int) -> list[float]:
    """Spread places over a range: the middles of the choices, or `points` from end to end."""
    if one.choices:
        return [(index + 0.5) / len(one.choices) for index in range(len(one.choices))]
    return [index / (points - 1) for index in range(points)]


def mean_of(runs: Sequence[Groups]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Average each figure over the seeds in which it could be measured."""
    names = {
        dimension: list(dict.fromkeys(name for run in runs for name in run[dimension]))
        for dimension in runs[0]
    }
    return {
        dimension: {
            name: {
                measure: (sum(known) / len(known) if known else None)
                for measure, values in measures.items()
                for known in ([value for value in values if value is not None],)
            }
            for name, measures in groups.items()
        }
        for dimension, groups in gather(runs, names).items()
    }


def harm_of(figures: Groups, usual: Groups) -> tuple[float, float]:
    """Weigh what classes lose and what they gain against the policy as it is: waits by their factor, and lost work."""
    harm = good = 0.0
    for name, before in usual["class"].items():
        after = figures["class"].get(name, {})
        change = LOSS_WEIGHS * ((after.get("lost") or 0.0) - (before.get("lost") or 0.0))
        for measure in ("wait.p50", "wait.p95", "wait.p99"):
            was, now = before.get(measure), after.get(measure)
            if was is not None and now is not None:
                change += log((now + NOTICED) / (was + NOTICED)) / 3
        harm += max(0.0, change)
        good += max(0.0, -change)
    return harm, good


def _classes(trial: Trial) -> dict[str, Any]:
    found = mean_of(trial.runs)["class"]
    return {
        name: {"wait.p95": figures.get("wait.p95"), "lost": figures.get("lost")}
        for name, figures in found.items()
    }


def _at(tree: dict[str, Any], name: str, measure: str, key: str | None = None) -> Any:
    found = tree.get("class", {}).get(name, {}).get(measure)
    return found if key is None or found is None else found[key]
