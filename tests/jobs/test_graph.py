"""DAGs: how they are built, what is refused, and the rows they become."""

import gc
import json
import time
import weakref
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from types import FunctionType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import (
    ConfigError,
    CycleFound,
    DuplicateNode,
    FairleadError,
    GraphError,
    PayloadError,
    UnknownNode,
)
from fairlead.jobs.cycles import order_of, shortest_cycle
from fairlead.jobs.graph import Dag
from fairlead.jobs.nodes import Node
from fairlead.jobs.registry import Task, task_of
from fairlead.jobs.rows import MOST_NODES, Plan, Registered
from fairlead.jobs.sla import Sla
from tests.jobs import wfformat

NOW = 1_760_000_000.0


def extract(doc): ...


async def merge(pages): ...


def stranger(): ...


TASKS = {
    "extract": task_of(extract, executor="ocr", estimate="20s", retries=2, timeout="1m"),
    "merge": task_of(merge),
}


def plan(dag, **options):
    return dag.plan(TASKS, now=NOW, **options)


def chain(names, *edges):
    """A DAG of jobs of these names, and edges "a>b": b comes after a."""
    dag = Dag("chain")
    for name in names:
        dag.add(extract).options(name=name)
    for edge in edges:
        before, after = edge.split(">")
        node = next(node for node in dag.nodes if node.name == after)
        node.options(after=[*node.after, before])
    return dag


# Building


def test_the_example_of_the_issue():
    dag = Dag("invoice", soft_sla="15m", hard_sla="1h", tenant="acme", key="invoice-4711")
    pages = [dag.add(extract, doc) for doc in ("a", "b")]
    dag.add(merge, pages)
    run = plan(dag)
    assert run[0] == "invoice"
    assert run[2:] == ("acme", "invoice-4711", NOW + 900, NOW + 3600, None)
    first, second, last = run.jobs
    assert (first.name, first.task, first.executor) == ("extract", "extract", "ocr")
    assert (first.retries, first.retry_delay, first.timeout, first.estimate) == (2, 1.0, 60.0, 20.0)
    assert (first.soft, first.hard, first.own_sla) == (NOW + 900, NOW + 3600, False)
    assert json.loads(second.payload) == {"args": ["b"], "kwargs": {}}
    assert json.loads(last.payload) == {
        "args": [[{"$result": 0}, {"$result": 1}]],
        "kwargs": {},
    }
    assert (last.name, last.needs, last.uses) == ("merge", (0, 1), (0, 1))
    assert [job.level for job in run.jobs] == [0, 0, 1]
    assert [job.height for job in run.jobs] == [21.0, 21.0, 1.0]
    assert (last.executor, last.estimate, last.retries) == ("default", None, 0)


def test_nodes_are_dependencies_wherever_they_stand():
    dag = Dag("deep")
    nodes = [dag.add(extract, number) for number in range(6)]
    a, b, c, d, e, f = nodes
    dag.add(merge, a, [b, {"x": (c, [d])}], e, key={"deep": [f]}).options(after=[a])
    last = plan(dag).jobs[-1]
    assert set(last.needs) == set(last.uses) == set(range(6))


def test_after_needs_no_result():
    dag = Dag("after")
    a, b = dag.add(extract), dag.add(extract)
    dag.add(merge, b).options(after=[a, b, a])
    last = plan(dag).jobs[-1]
    assert set(last.needs) == {0, 1}
    assert last.uses == (1,)


def test_after_may_name_a_job_that_comes_later():
    run = plan(chain("abc", "c>b", "b>a"))
    assert [job.level for job in run.jobs] == [2, 1, 0]
    assert [job.height for job in run.jobs] == [20.0, 40.0, 60.0]


def test_options_change_only_what_is_given():
    dag = Dag("options")
    a = dag.add(extract)
    b = dag.add(extract).options(name="b", after=[a], soft_sla="1m")
    assert b.options(hard_sla="2m") is b
    assert (b.name, b.after, b.soft, b.hard) == ("b", (a,), Sla(60.0, True), Sla(120.0, True))
    b.options(after=[])
    assert b.after == ()


def test_arguments_are_kept_as_they_were_when_they_were_added():
    docs = ["a"]
    dag = Dag("kept")
    dag.add(extract, docs)
    docs.append("b")
    assert json.loads(plan(dag).jobs[0].payload)["args"] == [["a"]]


def test_names_are_unique_also_beside_those_that_people_choose():
    dag = Dag("names")
    dag.add(extract).options(name="extract-2")
    dag.add(merge).options(name="extract-3")
    names = [dag.add(extract).name for _ in range(3)]
    assert names == ["extract-4", "extract-5", "extract-6"]
    assert len({job.name for job in plan(dag).jobs}) == 5


def test_a_dag_can_be_planned_again_and_grow():
    dag = Dag("again")
    dag.add(extract, "a")
    assert plan(dag) == plan(dag)
    dag.add(extract, "b")
    assert len(plan(dag).jobs) == 2


def test_a_task_is_found_by_its_function_its_name_or_itself():
    renamed = {"other": Task("other", extract), "merge": TASKS["merge"]}
    dag = Dag("found")
    dag.add(extract)
    dag.add("merge")
    dag.add(renamed["other"])
    assert [job.task for job in dag.plan(renamed, now=NOW).jobs] == ["other", "merge", "other"]


def test_a_script_that_is_also_imported_has_its_functions_twice():
    twin = FunctionType(extract.__code__, {"__name__": "__main__"}, "extract")
    twin.__qualname__, twin.__module__ = extract.__qualname__, "__main__"
    dag = Dag("twice")
    dag.add(twin)
    assert plan(dag).jobs[0].task == "extract"


def test_an_unknown_function_is_not_run_in_place_of_its_namesake():
    def extract(doc): ...

    dag = Dag("namesake")
    dag.add(extract)
    with pytest.raises(ConfigError, match="is not a task, though another task has its name"):
        plan(dag)


# SLAs


def test_an_sla_of_a_job_stands_in_place_of_its_runs():
    dag = Dag("slas", soft_sla="10m", hard_sla="1h")
    dag.add(extract)
    dag.add(extract).options(soft_sla="5m")
    dag.add(extract).options(hard_sla="5m")  # the run's soft one would come after it
    dag.add(extract).options(soft_sla="1m", hard_sla="2m")
    found = [(job.soft - NOW, job.hard - NOW, job.own_sla) for job in plan(dag).jobs]
    assert found == [(600, 3600, False), (300, 3600, True), (300, 300, True), (60, 120, True)]


def test_durations_count_from_the_start_of_a_delayed_run():
    dag = Dag("later", soft_sla="10m")
    dag.add(extract)
    run = plan(dag, start_at=NOW + 3600)
    assert (run.start_at, run.soft, run.jobs[0].soft) == (NOW + 3600, NOW + 4200, NOW + 4200)
    assert plan(dag, start_at=NOW - 3600).soft == NOW + 600


def test_slas_may_be_absolute_and_past():
    dag = Dag("past", soft_sla=datetime(2020, 1, 1, tzinfo=UTC), hard_sla="1h")
    dag.add(extract)
    assert plan(dag).soft == 1577836800.0


@pytest.mark.parametrize("sla", ["15", "-1m", datetime(2026, 1, 1), float("nan"), "soon", b""])  # noqa: DTZ001
@pytest.mark.parametrize("which", ["soft_sla", "hard_sla"])
def test_a_bad_sla_is_refused_where_it_is_written(which, sla):
    with pytest.raises(ConfigError, match=f"{which} of DAG 'a'"):
        Dag("a", **{which: sla})
    with pytest.raises(ConfigError, match=f"{which} of job 'extract'"):
        Dag("a").add(extract).options(**{which: sla})


def test_a_soft_sla_after_the_hard_one_is_refused():
    with pytest.raises(ConfigError, match="after its hard_sla"):
        Dag("a", soft_sla="2h", hard_sla="1h")
    moment = datetime.fromtimestamp(NOW, UTC) + timedelta(hours=1)
    for dag in (Dag("a", soft_sla="2h", hard_sla=moment), Dag("a")):
        dag.add(extract).options(soft_sla="2m", hard_sla=None if dag.soft else "1m")
        with pytest.raises(ConfigError, match="after its hard_sla"):
            plan(dag)
    dag = Dag("a", hard_sla="1h")
    dag.add(extract).options(soft_sla="2h")
    with pytest.raises(ConfigError, match="after the hard_sla of its DAG"):
        plan(dag)


# Estimates


def test_learned_estimates_fill_what_is_not_given():
    tasks = {"extract": Task("extract", extract), "merge": TASKS["merge"]}
    dag = Dag("learned")
    dag.add(merge, dag.add(extract))
    run = dag.plan(tasks, now=NOW, estimates={"merge": 5.0, "extract": 2.0})
    assert [(job.estimate, job.height) for job in run.jobs] == [(2.0, 7.0), (5.0, 5.0)]
    run = dag.plan(tasks, now=NOW)
    assert [(job.estimate, job.height) for job in run.jobs] == [(None, 2.0), (None, 1.0)]


@pytest.mark.parametrize("learned", [{}, {"extract": 2.0}])
def test_an_estimate_of_nothing_is_one(learned):
    tasks = {"extract": Task("extract", extract, estimate=0.0), "merge": TASKS["merge"]}
    dag = Dag("short")
    dag.add(merge, dag.add(extract))
    run = dag.plan(tasks, now=NOW, estimates=learned)
    assert [(job.estimate, job.height) for job in run.jobs] == [(0.0, 1.0), (None, 1.0)]
    alone = Dag("alone")
    alone.add(extract)
    (job,) = alone.plan(tasks, now=NOW, estimates=learned).jobs
    assert (job.estimate, job.height) == (0.0, 0.0)


@pytest.mark.parametrize("learned", [{}, {"merge": 4.0}])
def test_a_run_of_one_job_has_the_rows_that_any_other_way_gives_it(learned):
    plain = Dag("plain", tenant="acme", key="k")
    plain.add(extract, "a.pdf", deep={"x": [1]})
    named = Dag("named")
    named.add("merge", []).options(name="first")
    bounded = Dag("bounded", soft_sla="5m")
    bounded.add(merge)
    due = Dag("due")
    due.add(merge).options(hard_sla="1h")
    for dag in (plain, named, bounded, due):
        whole = Plan(dag, TASKS, NOW + 60, learned)
        assert list(whole.faults()) == []
        assert dag.plan(TASKS, now=NOW, start_at=NOW + 60, estimates=learned) == whole.run(NOW + 60)


# What is refused, by the rows of the catalogue


def test_bad_input_cycle():
    with pytest.raises(CycleFound, match="a → b → c → a") as caught:
        plan(chain("abc", "a>b", "b>c", "c>a"))
    assert caught.value.cycle == ("a", "b", "c")


def test_bad_input_the_shortest_cycle_is_told():
    dag = chain("abcdefg", "a>b", "b>c", "c>d", "d>a", "e>f", "f>e", "d>e", "g>a")
    with pytest.raises(CycleFound) as caught:
        plan(dag)
    assert caught.value.cycle == ("e", "f")


def test_bad_input_self_edge():
    dag = Dag("self")
    node = dag.add(extract)
    node.options(after=[node])
    with pytest.raises(CycleFound, match="extract → extract"):
        plan(dag)


def test_bad_input_a_cycle_of_everything_is_told_in_a_line():
    dag = Dag("huge")
    for number in range(20_000):
        dag.add(extract).options(name=f"n{number}", after=[f"n{(number - 1) % 20_000}"])
    start = time.process_time()
    with pytest.raises(CycleFound, match=r"n0 → n1 .*19,980 more.* → n19999 → n0") as caught:
        plan(dag)
    assert len(caught.value.cycle) == 20_000
    assert len(str(caught.value)) < 1000
    assert time.process_time() - start < 10


def test_bad_input_duplicate_node():
    dag = chain("aab")
    with pytest.raises(DuplicateNode, match="two jobs called 'a'"):
        plan(dag)
    dag.nodes[1].options(name="c")
    plan(dag)


def test_bad_input_missing_parent():
    dag = chain("ab", "parent>b")
    with pytest.raises(UnknownNode, match="job 'b' waits for 'parent', which is not in the DAG"):
        plan(dag)
    dag = chain(["first", "b"], "fist>b")
    with pytest.raises(UnknownNode, match="did you mean 'first'"):
        plan(dag)


def test_bad_input_no_node():
    with pytest.raises(GraphError, match="DAG 'empty' has no job"):
        plan(Dag("empty"))


def test_bad_input_100_001_nodes():
    dag = Dag("many")
    for _ in range(MOST_NODES):
        dag.add(extract)
    assert len(plan(dag).jobs) == MOST_NODES
    dag.add(extract)
    with pytest.raises(GraphError, match="100,001 jobs; the most is 100,000"):
        plan(dag)


def test_bad_input_depth_10_000():
    dag = Dag("deep")
    node = dag.add(extract)
    for _ in range(9_999):
        node = dag.add(extract, node)
    run = plan(dag)
    assert run.jobs[-1].level == 9_999
    assert run.jobs[0].height == 200_000.0


def test_bad_input_depth_10_000_upside_down():
    dag = Dag("deep")
    for number in range(10_000):
        dag.add(extract).options(name=str(number), after=[str(number + 1)] * (number < 9_999))
    run = plan(dag)
    assert [run.jobs[0].level, run.jobs[-1].level] == [9_999, 0]


def test_bad_input_edge_to_another_dag():
    other = Dag("other", tenant="rival").add(extract)
    for add in (
        lambda dag: dag.add(merge, other),
        lambda dag: dag.add(merge, [{"a": other}]),
        lambda dag: dag.add(merge).options(after=[other]),
    ):
        dag = Dag("mine", tenant="acme")
        add(dag)
        with pytest.raises(UnknownNode, match="jobs of its own DAG only"):
            plan(dag)


@pytest.mark.parametrize(
    "value",
    [float("nan"), "a\0", "\ud800", 2**63, b"a", {1: 2}, "x" * (1 << 20), [[[[object()]]]]],
    ids=["nan", "NUL", "surrogate", "2**63", "bytes", "key", "1 MiB", "object"],
)
def test_bad_input_payload_is_refused_at_submit_with_the_name_of_the_job(value):
    dag = Dag("payload")
    dag.add(extract, "fine")
    dag.add(extract, value).options(name="second")
    with pytest.raises(PayloadError, match=r"job 'second': ") as caught:
        plan(dag)
    assert caught.value.where.startswith("args")


@pytest.mark.parametrize(
    "call",
    [
        "os.system",
        "extrakt",
        "",
        "a" * 100_000,
        stranger,
        lambda: None,
        print,
        partial(extract, "a"),
        None,
        7,
        object(),
        Task("unknown", extract),
    ],
    ids=lambda call: str(call)[:20],
)
def test_bad_input_unknown_task(call):
    dag = Dag("unknown")
    dag.add(call)
    with pytest.raises(ConfigError, match="no task is called") as caught:
        plan(dag)
    assert len(str(caught.value)) < 300


def test_a_task_that_was_probably_meant_is_told():
    dag = Dag("unknown")
    dag.add("extrakt")
    with pytest.raises(ConfigError, match="did you mean 'extract'"):
        plan(dag)


TEXTS = ["", " ", "a\0", "a\nb", "\x1b[31m", "\x85", "\ud800", "a" * 256, None, 7, b"a", ["a"]]


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: ascii(text)[:12])
def test_bad_input_names_and_keys(text):
    with pytest.raises(ConfigError):
        Dag(text)
    if text is not None:
        with pytest.raises(ConfigError, match="tenant"):
            Dag("a", tenant=text)
        with pytest.raises(ConfigError, match="key"):
            Dag("a", key=text)
        with pytest.raises(ConfigError, match="name of a job"):
            Dag("a").add(extract).options(name=text)


def test_names_of_other_alphabets_are_fine():
    dag = Dag("Überweisung 😀", tenant="小売", key="a" * 255)
    dag.add(extract).options(name="č/1.2 (b)")
    assert plan(dag).jobs[0].name == "č/1.2 (b)"


@pytest.mark.parametrize("after", ["a", 7, {"a": 1}, [7], [None], [["a"]], [b"a"]])
def test_bad_input_after(after):
    with pytest.raises(ConfigError, match="after of job"):
        Dag("a").add(extract).options(after=after)


@pytest.mark.parametrize("start_at", ["1h", datetime(2026, 1, 1), float("inf"), True])  # noqa: DTZ001
def test_bad_input_start_at(start_at):
    dag = Dag("a")
    dag.add(extract)
    with pytest.raises(ConfigError, match="start_at"):
        plan(dag, start_at=start_at)


# Properties


graphs = st.integers(1, 12).flatmap(
    lambda size: st.lists(
        st.lists(st.integers(0, size - 1), unique=True, max_size=4), min_size=size, max_size=size
    )
)


def brute_levels(needs):
    """Levels by going round and round; None if it never ends."""
    levels = dict.fromkeys(range(len(needs)), 0)
    for _ in range(len(needs) + 1):
        changed = False
        for index, before in enumerate(needs):
            level = max((levels[each] + 1 for each in before), default=0)
            changed |= level != levels[index]
            levels[index] = level
        if not changed:
            return [levels[index] for index in range(len(needs))]
    return None


def brute_cycle_length(needs):
    """The length of the shortest ring, by multiplying steps."""
    reach = {(each, index) for index, before in enumerate(needs) for each in before}
    front, length = set(reach), 1
    while not any(start == end for start, end in front):
        front = {(a, d) for a, b in front for c, d in reach if b == c}
        length += 1
    return length


@given(graphs)
def test_levels_heights_and_cycles_are_right(needs):
    dag = Dag("random")
    for index, before in enumerate(needs):
        dag.add(merge).options(name=str(index), after=[str(each) for each in before])
    expected = brute_levels(needs)
    if expected is None:
        with pytest.raises(CycleFound) as caught:
            plan(dag)
        ring = [int(name) for name in caught.value.cycle]
        assert len(ring) == brute_cycle_length(needs)
        for before, after in zip(ring, [*ring[1:], ring[0]], strict=True):
            assert before in needs[after]
        return
    run = plan(dag)
    assert [job.level for job in run.jobs] == expected
    for index, job in enumerate(run.jobs):
        followers = [other.height for other in run.jobs if index in other.needs]
        assert job.height == 1.0 + max(followers, default=0.0)


@given(graphs)
def test_an_order_has_each_after_what_it_needs(needs):
    order = order_of(needs)
    place = {index: number for number, index in enumerate(order)}
    assert len(place) == len(order)
    for index in order:
        assert all(place[each] < place[index] for each in needs[index])
    if len(order) < len(needs):
        assert shortest_cycle(needs)


@given(st.data())
def test_no_dag_crashes_the_plan(data):
    anything = st.none() | st.text(max_size=3) | st.floats() | st.integers() | st.binary()
    dag = Dag("fuzz")
    strangers = [Dag("other").add(extract)]
    for _ in range(data.draw(st.integers(0, 5))):
        given_nodes = st.sampled_from([*dag.nodes, *strangers])
        args = data.draw(st.lists(anything | given_nodes | st.lists(given_nodes), max_size=3))
        node = dag.add(data.draw(st.sampled_from([extract, merge, "merge", "x", stranger])), *args)
        with suppress(FairleadError):
            node.options(
                name=data.draw(st.none() | st.text(max_size=2)),
                after=data.draw(st.none() | st.lists(anything | given_nodes, max_size=3)),
                soft_sla=data.draw(anything),
            )
    with suppress(FairleadError):
        run = plan(dag)
        assert all(each < len(run.jobs) for job in run.jobs for each in job.needs)


# Workflows of other people


@pytest.mark.parametrize("path", wfformat.TRACES, ids=lambda path: path.stem)
def test_recorded_workflows_are_planned_in_dependency_order(path):
    workflow = wfformat.read(path)
    assert len(workflow.steps) > 40
    by_id = {step.id: step for step in workflow.steps}
    for dag, tasks in (
        (wfformat.dag_of(workflow, extract), TASKS),
        wfformat.dag_of_programs(workflow),
    ):
        run = dag.plan(tasks, now=NOW)
        assert [job.name for job in run.jobs] == [step.id for step in workflow.steps]
        for job in run.jobs:
            parents = {run.jobs[each].name for each in job.needs}
            assert parents == set(by_id[job.name].parents)
            assert job.level == max((run.jobs[each].level + 1 for each in job.needs), default=0)
            assert set(job.uses) <= set(job.needs)
            for each in job.needs:
                estimate = run.jobs[each].estimate
                length = 1.0 if estimate is None else estimate
                assert run.jobs[each].height >= job.height + length - 1e-6


def test_a_node_says_what_it_is():
    node = Dag("shown").add(extract)
    assert repr(node) == "<Node 'extract' of Dag 'shown'>"
    assert isinstance(node, Node)


def test_a_call_that_was_found_once_keeps_its_place_in_memory():
    """Or another function might get its id, and its task."""

    def extract(doc): ...

    extract.__module__, extract.__qualname__ = TASKS["extract"].fn.__module__, "extract"
    known = Registered(TASKS)
    found = known.find(extract)
    left = weakref.ref(extract)
    del extract
    gc.collect()
    assert left() is not None
    assert known.find(left()) is found
