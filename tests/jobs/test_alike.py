"""Runs that are alike, kept as columns: the same runs as one by one, or not taken for alike at all."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlead.errors import FairleadError
from fairlead.jobs import Dag
from fairlead.jobs.alike import Alike
from fairlead.jobs.files import runs_of
from fairlead.jobs.registry import Task, task_of
from fairlead.jobs.rows import run_of_one


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
@example([("nothing", {}), ("arguments", {})], None, {})
@example([("nothing", {}), ("nothing", {"key": "k"})], None, {})
@example([("nothing", {}), ("nothing", {"tenant": "acme"})], 1_500.0, {})
def test_runs_are_the_same_as_one_by_one(wanted, start_at, estimates):
    dags = [made(oddity, place, given) for place, (oddity, given) in enumerate(wanted)]
    told: dict[str, Any] = {"start_at": start_at, "estimates": estimates}
    assert outcome(lambda: runs_of(dags, TASKS, now=NOW, **told)) == outcome(
        lambda: one_by_one(dags, **told)
    )


def test_those_of_a_queue_are_alike():
    dags = [made("arguments", place, {"tenant": "acme"}) for place in range(3)]
    runs = runs_of(dags, TASKS, now=NOW)
    assert isinstance(runs, Alike)
    assert len(runs) == 3
    assert runs[1:] == list(runs)[1:] == one_by_one(dags)[1:]
    assert runs[-1] == one_by_one(dags)[-1]
    with pytest.raises(IndexError):
        runs[3]


@pytest.mark.parametrize("given", GIVEN[1:])
def test_one_that_differs_makes_none_of_them_alike(given):
    dags = [made("nothing", 0, {}), made("nothing", 1, given)]
    runs = runs_of(dags, TASKS, now=NOW)
    assert not isinstance(runs, Alike)
    assert list(runs) == one_by_one(dags)


def test_nothing_and_no_dag_are_not_alike():
    assert runs_of([], TASKS, now=NOW) == []
    file = {"name": "file", "jobs": [{"name": "a", "task": "first"}]}
    assert [run.name for run in runs_of([made("nothing", 0, {}), file], TASKS, now=NOW)] == [
        "run-0",
        "file",
    ]


def test_one_that_looks_at_the_first_alone_is_caught(monkeypatch):
    """A variant that takes all for what the first is."""

    def hasty(dags, registered, estimates, start_at):
        run = run_of_one(dags[0], registered, estimates, start_at) if dags else None
        if run is None:
            return None
        nodes = [dag.nodes[0] for dag in dags]
        payloads = [node.payload for node in nodes]
        return Alike(run, [dag.name for dag in dags], [node.name for node in nodes], payloads)

    monkeypatch.setattr("fairlead.jobs.files.alike", hasty)
    with pytest.raises(AssertionError):
        test_one_that_differs_makes_none_of_them_alike({"tenant": "acme"})
