"""A zoo of planners: whatever they do, an order or None comes back in time, and the culprit is named."""

import asyncio
import threading
import time

import pytest

from fairlead.errors import ConfigError
from fairlead.jobs.planners import FlatJob, GlobalPriorityExecutionPlanner, HRRNExecutionPlanner
from fairlead.jobs.planning import MOST_HANGS, Planning, name_of, planner_of

JOBS = [FlatJob(id=f"1.{n}", dag_id="1", executor="ocr", level=0, priority=0) for n in range(4)]
IDS = [job.id for job in JOBS]


def planner(plan):
    """Make a planner of a function of the jobs."""

    class Zoo:
        def plan(self, jobs, slots, active_dags, recently_activated_dags=frozenset()):
            return plan(jobs)

    return Zoo()


def ask(one, limit=5.0):
    planning = Planning(one, "ocr", limit=limit)
    return planning, asyncio.run(planning.plan(JOBS, {"ocr": 1}, {"1"}, set()))


class TestOrders:
    def test_its_order_counts(self):
        assert ask(planner(lambda jobs: jobs[::-1]))[1] == IDS[::-1]

    def test_what_it_leaves_out_is_left_out(self):
        assert ask(planner(lambda jobs: jobs[:1]))[1] == IDS[:1]

    def test_any_iterable_will_do(self):
        assert ask(planner(iter))[1] == IDS

    def test_it_works_on_its_own_copies(self):
        def greedy(jobs):
            taken = list(jobs)
            jobs.clear()
            return taken

        jobs = list(JOBS)
        planning = Planning(planner(greedy), "ocr")
        assert asyncio.run(planning.plan(jobs, {"ocr": 1}, set(), set())) == IDS
        assert jobs == JOBS


def exits(jobs):
    raise SystemExit(3)


def interrupts(jobs):
    raise KeyboardInterrupt


def recurses(jobs):
    return recurses(jobs)


def has_a_nasty_repr(jobs):
    class Nasty(Exception):
        def __repr__(self):
            return "nasty"

    raise Nasty


@pytest.mark.parametrize(
    "plan",
    [
        lambda jobs: 1 / 0,
        lambda jobs: None,
        lambda jobs: 5,
        exits,
        interrupts,
        recurses,
        has_a_nasty_repr,
        lambda jobs: (1 / 0 for _ in jobs),
    ],
)
def test_whoever_fails_is_named_and_nothing_else_happens(plan, caplog):
    planning, order = ask(planner(plan))
    assert order is None
    assert planning.failures == 1
    assert "Zoo" in caplog.text
    assert "'ocr'" in caplog.text


@pytest.mark.parametrize(
    "plan",
    [
        lambda jobs: [*jobs, *jobs],
        lambda jobs: [None, *jobs],
        lambda jobs: ["x", 5, *jobs],
        lambda jobs: [jobs[0]._replace(id="9.9"), *jobs],
    ],
)
def test_strangers_are_left_out_and_told(plan, caplog):
    planning, order = ask(planner(plan))
    assert order == IDS
    assert planning.failures == 1
    assert "not given" in caplog.text


def test_unhashable_ids_are_strangers_too(caplog):
    assert ask(planner(lambda jobs: [jobs[0]._replace(id=[]), *jobs]))[1] in (IDS, None)
    assert "Zoo" in caplog.text


def test_a_complaint_is_not_repeated_every_round(caplog):
    planning = Planning(planner(lambda jobs: 1 / 0), "ocr")
    for _ in range(5):
        asyncio.run(planning.plan(JOBS, {}, set(), set()))
    assert planning.failures == 5
    assert caplog.text.count("ZeroDivisionError") == 1


def test_one_that_hangs_costs_its_limit_and_is_given_up(caplog):
    release = threading.Event()
    planning = Planning(planner(lambda jobs: release.wait()), "ocr", limit=0.05)
    begun = time.monotonic()
    for _ in range(MOST_HANGS + 5):
        assert asyncio.run(planning.plan(JOBS, {}, set(), set())) is None
    assert time.monotonic() - begun < 5
    assert planning.hangs == MOST_HANGS
    assert "not asked again" in caplog.text
    release.set()


class TestReading:
    def test_the_default(self):
        assert isinstance(planner_of(None), GlobalPriorityExecutionPlanner)

    def test_an_object_a_class_a_name(self):
        one = planner(list)
        assert planner_of(one) is one
        assert isinstance(planner_of(HRRNExecutionPlanner), HRRNExecutionPlanner)
        assert isinstance(planner_of("HRRNExecutionPlanner"), HRRNExecutionPlanner)

    @pytest.mark.parametrize("value", [5, object(), "os:system", "nowhere:X", int, ""])
    def test_anything_else_is_refused(self, value):
        with pytest.raises(ConfigError):
            planner_of(value)

    def test_names_can_be_loaded_again(self):
        assert name_of(planner_of("HRRNExecutionPlanner")) == "HRRNExecutionPlanner"
