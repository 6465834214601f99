"""Runs that are alike, kept as columns: the same runs as one by one, or not taken for alike at all."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import FairleadError, GraphError
from fairlead.jobs import Dag
from fairlead.jobs.files import runs_of
from fairlead.jobs.records import AlikeRuns
from fairlead.jobs.registry import Task, task_of


def first() -> None: ...
def second() -> None: ...


TASKS: dict[str, Task] = {
    "first": task_of(first),
    "second": task_of(second, estimate="3s", retries=2, timeout="9s", executor="ocr"),
}
NOW = 1_000.0

# What may be otherwise about a DAG of one job; each must show in its run.
ODDITIES: dict[str, Callable[[Dag], Any]] = {
    "nothing": lambda dag: dag.add(second),
    "arguments": lambda dag: dag.add(second, 1, two=[2]),
    "a name of its own": lambda dag: dag.add(second).options(name="own"),
    "another task": lambda dag: dag.add(first),
    "the task by its name": lambda dag: dag.add("second"),
    "two jobs": lambda dag: (dag.add(second), dag.add(second)),
    "an SLA of the job": lambda dag: dag.add(second).options(soft_sla="1m"),
    "two that wait": lambda dag: dag.add(second, dag.add(second)),
    "what another DAG makes": lambda dag: dag.add(second, Dag("other").add(first)),
    "after what is not there": lambda dag: dag.add(second).options(after=["x"]),
    "after another": lambda dag: dag.add(second).options(after=[dag.add(first)]),
    "no job": lambda dag: None,
    "an unknown task": lambda dag: dag.add("third"),
    "arguments that no store takes": lambda dag: dag.add(second, object()),
}
GIVEN: tuple[dict[str, Any], ...] = (
    {},
    {"tenant": "acme"},
    {"key": "k"},
    {"soft_sla": "1m"},
    {"hard_sla": "1h"},
)


def made(oddity: str, place: int, given: dict[str, Any]) -> Dag:
    dag = Dag(f"run-{place}", **given)
    ODDITIES[oddity](dag)
    return dag


def one_by_one(dags: list[Dag], **given: Any) -> Any:
    return [dag.plan(TASKS, now=NOW, **given) for dag in dags]


def outcome(make: Callable[[], Any]) -> Any:
    try:
        return list(make())
    except FairleadError as error:
        return repr(error)


@given(
    st.lists(st.tuples(st.sampled_from(sorted(ODDITIES)), st.sampled_from(GIVEN)), max_size=4),
    st.sampled_from([None, 1_500.0]),
    st.sampled_from([{}, {"first": 5.0}]),
)
def test_runs_are_the_same_as_one_by_one(wanted, start_at, estimates):
    dags = [made(oddity, place, given) for place, (oddity, given) in enumerate(wanted)]
    told: dict[str, Any] = {"start_at": start_at, "estimates": estimates}
    assert outcome(lambda: runs_of(dags, TASKS, now=NOW, **told)) == outcome(
        lambda: one_by_one(dags, **told)
    )


@pytest.mark.parametrize("start_at", [None, 1_500.0])
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("oddity", sorted(ODDITIES))
def test_whatever_is_odd_about_one_shows(oddity, given, start_at):
    dags = [made("another task", 0, {}), made("another task", 1, {}), made(oddity, 2, given)]
    dags.append(made("another task", 3, {}))
    told: dict[str, Any] = {"start_at": start_at, "estimates": {"first": 5.0}}
    assert outcome(lambda: runs_of(dags, TASKS, now=NOW, **told)) == outcome(
        lambda: one_by_one(dags, **told)
    )


def test_a_task_may_be_meant_in_several_ways():
    dags = [made(oddity, 0, {}) for oddity in ("nothing", "the task by its name", "nothing")]
    dags[2].nodes[0].call = str(b"second", "ascii")  # another object than the key of the tasks
    runs = runs_of(dags, TASKS, now=NOW)
    assert isinstance(runs, AlikeRuns)
    assert list(runs) == one_by_one(dags)


def test_a_generator_may_change_what_it_gave():
    """Each DAG is read when it comes, and none after it before its own mistake is told."""

    def dags():
        dag = Dag("x")
        node = dag.add(second)
        for place in range(3):
            dag.name = f"x{place}"
            node.give((place,), {})
            yield dag
        yield Dag("empty")
        raise AssertionError("it went on")

    runs = runs_of((dag for dag, _ in zip(dags(), range(3), strict=False)), TASKS, now=NOW)
    assert [run.name for run in runs] == ["x0", "x1", "x2"]
    assert [run.jobs[0].payload for run in runs] == [
        f'{{"args":[{place}],"kwargs":{{}}}}' for place in range(3)
    ]
    with pytest.raises(GraphError):
        runs_of(dags(), TASKS, now=NOW)


def test_those_of_a_queue_are_alike():
    dags = [made("arguments", place, {"tenant": "acme"}) for place in range(3)]
    dags[1].nodes[0].options(name="own")
    dags[2].nodes[0].give((2,), {})
    runs = runs_of(dags, TASKS, now=NOW)
    assert isinstance(runs, AlikeRuns)
    assert len(runs) == 3
    assert runs[:] == list(runs) == one_by_one(dags)
    assert runs[-1] == one_by_one(dags)[-1]
    with pytest.raises(IndexError):
        runs[3]


@pytest.mark.parametrize("given", GIVEN[1:])
def test_one_that_differs_makes_none_of_them_alike(given):
    dags = [made("nothing", 0, {}), made("nothing", 1, given)]
    runs = runs_of(dags, TASKS, now=NOW)
    assert not isinstance(runs, AlikeRuns)
    assert list(runs) == one_by_one(dags)


def test_nothing_and_no_dag_are_not_alike():
    assert runs_of([], TASKS, now=NOW) == []
    file = {"name": "file", "jobs": [{"name": "a", "task": "first"}]}
    assert [run.name for run in runs_of([made("nothing", 0, {}), file], TASKS, now=NOW)] == [
        "run-0",
        "file",
    ]
