"""The tests of the frontier can fail: each of these faults is found by one of them."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from fairlead.capacities.groups import Groups
from fairlead.capacities.quotas import Quotas
from fairlead.errors import FairleadError
from fairlead.jobs.frontier import Frontier
from fairlead.jobs.planners import GlobalPriorityExecutionPlanner, HRRNExecutionPlanner
from fairlead.policies.cohorts import Calendar, Register
from fairlead.policies.elders import Elders
from fairlead.policies.lines import Lines
from fairlead.policies.planned import Planned
from fairlead.policies.ranked import Ranked
from fairlead.policies.ratio import Ratio
from tests.jobs import test_frontier, test_frontier_order
from tests.jobs.frontier_machine import FrontierMachine


def machine() -> None:
    run_state_machine_as_test(
        FrontierMachine,
        settings=settings(
            max_examples=200,
            stateful_step_count=30,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


def order(planner: Any) -> Callable[[], None]:
    def run() -> None:
        for seed in range(12):
            test_frontier_order.test_every_start_is_what_plan_would_put_first(planner, seed)

    return run


def nothing(*args: Any, **kwargs: Any) -> None:
    pass


def without_a_new_plan(self: Planned, ticket: Any, now: float) -> None:
    self._waiting.push(ticket, now)
    self._size += 1
    self.guide.stale = not self.guide.queues
    self.guide.queues[self] = None


by_order = order(GlobalPriorityExecutionPlanner())
by_ratio = order(HRRNExecutionPlanner())
FAULTS: dict[str, tuple[type, str, Any, Callable[[], None]]] = {
    "a cap on DAGs that lets all pass": (Groups, "refusal", nothing, machine),
    "a quota that lets all pass": (Quotas, "refusal", nothing, machine),
    "a DAG that is active for ever": (Groups, "end", nothing, machine),
    "scopes that open and wake nobody": (Lines, "open", nothing, machine),
    "groups that begin and nobody hears": (Register, "settle", nothing, by_order),
    "scores that never rise": (Calendar, "due", lambda self, now: iter(()), by_order),
    "a head that is not ranked anew": (Ranked, "rank_anew", nothing, by_order),
    "a ratio that does not grow": (
        Ratio,
        "_ratio",
        lambda self, cohort, entry, now, least: (1.0, entry[:8]),
        by_ratio,
    ),
    "idle runs that keep their place": (
        Frontier,
        "_note_idle",
        nothing,
        test_frontier.test_a_dag_of_which_nothing_is_left_gives_up_its_place,
    ),
    "a plan that is followed though somebody came": (
        Planned,
        "push",
        without_a_new_plan,
        test_frontier.test_a_users_planner_is_asked_when_there_is_room_and_followed,
    ),
    "nobody released who was withheld": (
        Planned,
        "_release",
        nothing,
        test_frontier.test_what_a_planner_leaves_out_goes_all_the_same_in_the_end,
    ),
    "nobody is ever old": (
        Elders,
        "_oldest",
        nothing,
        test_frontier.test_the_oldest_goes_next_after_max_wait_but_only_every_fourth_time,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_it_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, wrong, check = FAULTS[fault]
    monkeypatch.setattr(where, name, wrong)
    with pytest.raises((AssertionError, FairleadError)):
        check()


def test_promotions_without_a_budget_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Elders.__init__

    def eager(self: Elders, inside: Any, max_wait: float, **settings: Any) -> None:
        plain(self, inside, max_wait, **{**settings, "budget": 1})

    monkeypatch.setattr(Elders, "__init__", eager)
    with pytest.raises(AssertionError):
        test_frontier.test_the_oldest_goes_next_after_max_wait_but_only_every_fourth_time()
