"""Planners: the documented order to the letter, total for whatever estimates say, and loaded by name."""

import itertools
import math
import random
import sys
import time
from functools import cmp_to_key

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fairlead.jobs
from fairlead.errors import ConfigError
from fairlead.jobs.planners import (
    BUILT_IN,
    EarliestDeadlineExecutionPlanner,
    ExecutionPlanner,
    FlatJob,
    GlobalPriorityExecutionPlanner,
    HRRNExecutionPlanner,
    LeastSlackExecutionPlanner,
    SJFSExecutionPlanner,
    check_planner,
    kind_of,
    table_of,
)
from fairlead.jobs.planning import name_of
from fairlead.jobs.service import Jobs
from tests.jobs import wfformat

SLOTS = {"A": 2, "B": 1, "C": 0, "D": -1}
PLANNERS = [planner() for planner in BUILT_IN.values()] + [
    GlobalPriorityExecutionPlanner(level="critical_path")
]


def job(name, dag="old", executor="A", **more):
    return FlatJob(id=name, dag_id=dag, executor=executor, **more)


def order(planner, jobs, slots=SLOTS, active=("old",), recent=()):
    return [each.id for each in planner.plan(jobs, slots, set(active), set(recent))]


def as_global(jobs, **more):
    return order(GlobalPriorityExecutionPlanner(), jobs, **more)


# The scenarios of spec B17, in the order of Global's keys


def test_deeper_first():
    assert as_global([job("a", level=0), job("b", level=2), job("c", level=1)]) == ["b", "c", "a"]


def test_higher_priority_first():
    jobs = [job("a", priority=1), job("b", priority=1500), job("c", priority=499)]
    assert as_global(jobs) == ["b", "c", "a"]


def test_more_free_slots_first():
    assert as_global([job("a", executor="B"), job("b", executor="A")]) == ["b", "a"]
    four = [job("two", executor="small"), job("four", executor="large")]
    assert as_global(four, slots={"small": 2, "large": 4}) == ["four", "two"]


def test_existing_dag_before_new():
    assert as_global([job("a", "new"), job("b", "old")]) == ["b", "a"]


def test_shorter_first_and_missing_last():
    runtimes = {"none": None, "long": 9.0, "endless": math.inf, "short": 0.1, "zero": 0.0}
    jobs = [job(name, estimated_runtime=seconds) for name, seconds in runtimes.items()]
    assert as_global(jobs) == ["zero", "short", "long", "endless", "none"]


def test_recently_activated_dag_first():
    assert as_global([job("a", "x"), job("b", "y")], active=("x", "y"), recent=("y",)) == ["b", "a"]


def test_identical_jobs_keep_their_order():
    for seed in range(5):
        names = [str(number) for number in range(50)]
        random.Random(seed).shuffle(names)
        for planner in PLANNERS:
            assert order(planner, [job(name) for name in names]) == names


@pytest.mark.parametrize("planner", PLANNERS, ids=lambda planner: type(planner).__name__)
def test_a_blocked_executor_is_last_whatever_its_jobs_are(planner):
    jobs = [
        job("full", executor="C", level=9, priority=1999, estimated_runtime=0.0, deadline=0.0),
        job("unknown", executor="Z", level=9, priority=1999, estimated_runtime=0.0, waited=1e9),
        job("less", executor="D", level=9, priority=1999, height=1e9),
        job("free", executor="B", dag="new"),
    ]
    assert order(planner, jobs)[0] == "free"
    assert sorted(order(planner, jobs)) == ["free", "full", "less", "unknown"]


def test_blocked_jobs_are_in_order_among_themselves():
    jobs = [job("a", executor="C", level=1), job("b", executor="C", level=2)]
    assert as_global(jobs) == ["b", "a"]
    assert as_global(jobs, slots={}) == ["b", "a"]


# Each row differs from the one before it in one key, and from there on says the opposite in all lesser ones.
TIE_BREAKS = [
    job("level", "new", "B", level=3, priority=0, estimated_runtime=None),
    job("priority", "new", "B", level=2, priority=9, estimated_runtime=None),
    job("slots", "new", "A", level=2, priority=5, estimated_runtime=None),
    job("existing", "old", "B", level=2, priority=5, estimated_runtime=None),
    job("runtime", "new", "B", level=2, priority=5, estimated_runtime=1.0),
    job("longer", "new", "B", level=2, priority=5, estimated_runtime=2.0),
    job("endless", "new", "B", level=2, priority=5, estimated_runtime=math.inf),
    job("burst", "fresh", "B", level=2, priority=5, estimated_runtime=None),
    job("first", "new", "B", level=2, priority=5, estimated_runtime=None),
    job("second", "new", "B", level=2, priority=5, estimated_runtime=None),
    job("shallow", "old", "A", level=1, priority=1999, estimated_runtime=0.0),
    job("blocked", "old", "C", level=9, priority=1999, estimated_runtime=0.0),
]


def check_tie_breaks(planner):
    expected = [each.id for each in TIE_BREAKS]
    for seed in range(200):
        jobs = TIE_BREAKS[:]
        random.Random(seed).shuffle(jobs)
        first, second = (
            next(place for place, each in enumerate(jobs) if each.id == name)
            for name in ("first", "second")
        )
        if first > second:
            jobs[first], jobs[second] = jobs[second], jobs[first]
        assert order(planner, jobs, recent=("fresh",)) == expected


def test_the_full_table_of_tie_breaks():
    check_tie_breaks(GlobalPriorityExecutionPlanner())


def test_the_mix_of_five():
    jobs = [
        job("j1", "d1", "A", level=3, priority=2),
        job("j2", "d1", "B", level=2, priority=5),
        job("j3", "d2", "A", level=2, priority=4),
        job("j4", "d3", "B", level=1, priority=1),
        job("j5", "d3", "A", level=1, priority=3),
    ]
    assert as_global(jobs, active=("d1",)) == ["j1", "j2", "j3", "j5", "j4"]


def test_the_mix_of_six_with_blocked_ones():
    jobs = [
        job("j1", "d1", "C", level=5, priority=9),
        job("j2", "d1", "A", level=1, priority=1),
        job("j3", "d2", "B", level=4, priority=0),
        job("j4", "d2", "A", level=4, priority=0),
        job("j5", "d3", "Z", level=6, priority=0),
        job("j6", "d3", "A", level=1, priority=2),
    ]
    assert as_global(jobs, active=("d1",)) == ["j4", "j3", "j6", "j2", "j5", "j1"]


def test_the_top_six_of_24():
    """Every pairing of depth, urgency, executor and DAG; the best by Global's keys lead."""
    jobs = [
        job(f"{level}{priority}{executor}{dag}", dag, executor, level=level, priority=priority)
        for level, priority, executor, dag in itertools.product(
            (0, 1, 2), (0, 9), "AB", ("new", "old")
        )
    ]
    random.Random(4).shuffle(jobs)
    assert as_global(jobs)[:6] == ["29Aold", "29Anew", "29Bold", "29Bnew", "20Aold", "20Anew"]


def test_urgency_beats_existing_dags_and_short_jobs():
    """The original had it the other way round: an overdue job of a new DAG could wait for ever."""
    jobs = [
        job("old and easy", "old", priority=0, estimated_runtime=0.1),
        job("new and overdue", "new", priority=1500, estimated_runtime=1000.0),
    ]
    assert as_global(jobs) == ["new and overdue", "old and easy"]


def test_three_active_dags_before_three_new_ones():
    jobs = [job(f"{dag}{n}", dag) for dag in "abcxyz" for n in range(3)]
    random.Random(1).shuffle(jobs)
    planned = as_global(jobs, active="abc")
    assert {name[0] for name in planned[:9]} == set("abc")


def test_slots_that_change_between_plans():
    jobs = [job("a", executor="A"), job("b", executor="B")]
    assert as_global(jobs, slots={"A": 1, "B": 2}) == ["b", "a"]
    assert as_global(jobs, slots={"A": 2, "B": 1}) == ["a", "b"]
    assert as_global(jobs, slots={"A": 0, "B": 1}) == ["b", "a"]


def test_two_of_four_executors_have_room():
    jobs = [job(str(n), executor="ABCD"[n % 4], level=n) for n in range(20)]
    planned = as_global(jobs)
    assert all(int(name) % 4 < 2 for name in planned[:10])
    assert all(int(name) % 4 >= 2 for name in planned[10:])


@pytest.mark.parametrize("planner", PLANNERS, ids=lambda planner: type(planner).__name__)
def test_none_one_and_a_thousand(planner):
    assert list(planner.plan([], SLOTS, set())) == []
    assert order(planner, [job("a")]) == ["a"]
    chance = random.Random(2)
    jobs = [
        job(
            number,
            chance.choice("xyz"),
            chance.choice("ABC"),
            level=chance.randrange(9),
            priority=chance.randrange(1999),
            estimated_runtime=chance.choice([None, 0.0, chance.random(), math.inf]),
            waited=chance.random(),
            deadline=chance.choice([None, chance.random()]),
        )
        for number in range(1000)
    ]
    start = time.process_time()
    planned = planner.plan(jobs, SLOTS, {"x"}, {"y"})
    assert time.process_time() - start < 1.0
    assert sorted(each.id for each in planned) == list(range(1000))
    blocked = [each.executor == "C" for each in planned]
    assert blocked == sorted(blocked)


@pytest.mark.parametrize("planner", PLANNERS, ids=lambda planner: type(planner).__name__)
@pytest.mark.parametrize("path", wfformat.TRACES, ids=lambda path: path.stem)
def test_recorded_workflows_run_to_the_end_wave_by_wave(planner, path):
    dag, tasks = wfformat.dag_of_programs(wfformat.read(path))
    run = dag.plan(tasks, now=0.0)
    done: list[int] = []
    while len(done) < len(run.jobs):
        ready = [
            job(
                node,
                level=one.level,
                height=one.height,
                estimated_runtime=one.estimate,
                deadline=one.soft,
            )
            for node, one in enumerate(run.jobs)
            if node not in done and set(one.needs) <= set(done)
        ]
        assert ready
        done += [each.id for each in planner.plan(ready, SLOTS, {"old"})][:2]
    place = {node: number for number, node in enumerate(done)}
    for node, one in enumerate(run.jobs):
        assert all(place[each] < place[node] for each in one.needs)


# The others


def test_the_critical_path_instead_of_depth():
    jobs = [job("deep", level=5, height=1.0), job("long", level=0, height=90.0)]
    assert as_global(jobs) == ["deep", "long"]
    assert order(GlobalPriorityExecutionPlanner(level="critical_path"), jobs) == ["long", "deep"]
    with pytest.raises(ConfigError, match='"depth" or "critical_path"'):
        GlobalPriorityExecutionPlanner(level="hight")


def test_the_response_ratio():
    jobs = [
        job("1.5", estimated_runtime=20.0, waited=10.0),
        job("3", estimated_runtime=5.0, waited=10.0),
        job("2", estimated_runtime=100.0, waited=100.0),
        job("endless", estimated_runtime=math.inf, waited=1e9),
        job("new", estimated_runtime=1.0, waited=0.0),
        job("nothing to do", estimated_runtime=0.0, waited=1.0),
    ]
    expected = ["nothing to do", "3", "2", "1.5", "endless", "new"]
    assert order(HRRNExecutionPlanner(), jobs) == expected


def test_an_endless_wait_for_an_endless_job_disturbs_nobody():
    jobs = [
        job("2", estimated_runtime=1.0, waited=1.0),
        job("endless", estimated_runtime=math.inf, waited=math.inf),
        job("3", estimated_runtime=1.0, waited=2.0),
    ]
    for arrangement in itertools.permutations(jobs):
        assert order(HRRNExecutionPlanner(), arrangement) == ["3", "2", "endless"]


def test_the_response_ratio_of_equals_falls_to_the_other_keys():
    jobs = [
        job("a", estimated_runtime=10.0, waited=10.0),
        job("b", estimated_runtime=20.0, waited=20.0),
        job("c", estimated_runtime=30.0, waited=30.0, level=1),
    ]
    assert order(HRRNExecutionPlanner(), jobs) == ["c", "a", "b"]


def test_no_estimate_is_the_least_ratio_and_the_oldest_of_those_is_first():
    jobs = [job("b", waited=5.0), job("a", waited=9.0), job("c", estimated_runtime=9.0, waited=1.0)]
    assert order(HRRNExecutionPlanner(), jobs) == ["c", "a", "b"]


def test_the_shortest_job_first():
    jobs = [
        job("none", level=9, priority=9),
        job("2", estimated_runtime=2.0),
        job("1", estimated_runtime=1.0),
        job("1 deep", estimated_runtime=1.0, level=1),
        job("nan", estimated_runtime=math.nan),
        job("-1", estimated_runtime=-1.0),
    ]
    assert order(SJFSExecutionPlanner(), jobs) == ["1 deep", "1", "2", "none", "nan", "-1"]


def test_the_earliest_deadline_first():
    jobs = [
        job("none"),
        job("none but urgent", priority=7),
        job("late", deadline=200.0),
        job("soon", deadline=100.0),
    ]
    expected = ["soon", "late", "none but urgent", "none"]
    assert order(EarliestDeadlineExecutionPlanner(), jobs) == expected


def test_the_least_slack_first():
    jobs = [
        job("none", height=1e6),
        job("soon", deadline=100.0, height=1.0),
        job("late and long", deadline=200.0, height=150.0),
        job("late, estimated", deadline=200.0, estimated_runtime=120.0),
        job("late, unknown", deadline=200.0),
    ]
    expected = ["late and long", "late, estimated", "soon", "late, unknown", "none"]
    assert order(LeastSlackExecutionPlanner(), jobs) == expected


# Properties

odd = st.sampled_from([None, math.nan, math.inf, -math.inf, 0, 0.0, -0.0, -1.0, 5e-324, 1e308])
times = odd | st.floats(0, 4).map(round)
flat_jobs = st.lists(
    st.builds(
        FlatJob,
        id=st.integers(),
        dag_id=st.sampled_from("xyz"),
        executor=st.sampled_from("ABCZ"),
        level=st.integers(0, 2),
        priority=st.integers(0, 2),
        estimated_runtime=times,
        waited=times,
        height=times,
        deadline=times,
    ),
    max_size=8,
)


def missing(value):
    return value is None or value != value or value < 0


def compare(left, right):
    return (left > right) - (left < right)


def by_runtime(a, b):
    if missing(a.estimated_runtime) or missing(b.estimated_runtime):
        return compare(missing(a.estimated_runtime), missing(b.estimated_runtime))
    return compare(a.estimated_runtime, b.estimated_runtime)


def reference(slots, active, recent):
    """Global's order, said plainly and slowly."""

    def before(a, b):
        return (
            compare(slots.get(a.executor, 0) <= 0, slots.get(b.executor, 0) <= 0)
            or -compare(a.level, b.level)
            or -compare(a.priority, b.priority)
            or -compare(slots.get(a.executor, 0), slots.get(b.executor, 0))
            or compare(a.dag_id not in active, b.dag_id not in active)
            or by_runtime(a, b)
            or compare(a.dag_id not in recent, b.dag_id not in recent)
        )

    return before


def check_against_reference(planner, jobs):
    active, recent = {"x"}, {"y"}
    expected = sorted(jobs, key=cmp_to_key(reference(SLOTS, active, recent)))
    planned = planner.plan(jobs, SLOTS, active, recent)
    assert [id(each) for each in planned] == [id(each) for each in expected]


@given(flat_jobs)
def test_global_is_the_reference(jobs):
    check_against_reference(GlobalPriorityExecutionPlanner(), jobs)


def check_total(planner, jobs):
    """A permutation, stable, and the same for every two jobs whoever else is there."""
    given_to = list(jobs)
    planned = planner.plan(jobs, SLOTS, {"x"}, {"y"})
    assert jobs == given_to
    place = {id(each): number for number, each in enumerate(planned)}
    assert len(planned) == len(jobs)
    assert set(place) == {id(each) for each in jobs}
    for one, other in itertools.combinations(jobs, 2):
        pair = planner.plan([one, other], SLOTS, {"x"}, {"y"})
        assert (pair[0] is one) == (place[id(one)] < place[id(other)])
    for one in jobs:
        assert planner.plan([one, one._replace(id="twin")], SLOTS, {"x"}, {"y"})[0] is one


@pytest.mark.parametrize("planner", PLANNERS, ids=lambda planner: type(planner).__name__)
@given(jobs=flat_jobs)
@settings(max_examples=100)
def test_every_order_is_total_and_stable(planner, jobs):
    jobs = [each._replace(id=number) for number, each in enumerate(jobs)]
    check_total(planner, jobs)


anything = st.none() | st.text() | st.floats() | st.integers() | st.binary() | st.booleans()


@pytest.mark.parametrize("planner", PLANNERS, ids=lambda planner: type(planner).__name__)
@given(
    st.lists(
        st.builds(
            FlatJob,
            id=anything,
            dag_id=anything,
            executor=anything,
            level=anything,
            priority=anything,
            estimated_runtime=anything,
            waited=anything,
            height=anything,
            deadline=anything,
        ),
        max_size=5,
    ),
    st.dictionaries(anything, anything),
)
@settings(max_examples=50)
def test_no_job_crashes_a_planner(planner, jobs, slots):
    planned = planner.plan(jobs, slots, set())
    assert sorted(map(id, planned)) == sorted(map(id, jobs))


# Mutants: the checks above can fail


class SwappedKeys(GlobalPriorityExecutionPlanner):
    def key(self, job, place):
        level, priority, *rest = super().key(job, place)
        return (priority, level, *rest)


class ExistingFirst(GlobalPriorityExecutionPlanner):
    """What is begun goes before what is deep."""

    def key(self, job, place):
        return (place.is_new, *super().key(job, place))


class ShallowFirst(GlobalPriorityExecutionPlanner):
    def key(self, job, place):
        level, *rest = super().key(job, place)
        return (-level, *rest)


class MissingFirst(GlobalPriorityExecutionPlanner):
    def key(self, job, place):
        key = super().key(job, place)
        return (*key[:4], -key[4], *key[5:])


class LongFirst(GlobalPriorityExecutionPlanner):
    def key(self, job, place):
        key = super().key(job, place)
        return (*key[:5], -key[5], *key[6:])


class FewSlotsFirst(GlobalPriorityExecutionPlanner):
    def key(self, job, place):
        key = super().key(job, place)
        return (*key[:2], -key[2], *key[3:])


class NoBurst(GlobalPriorityExecutionPlanner):
    def key(self, job, place):
        return super().key(job, place)[:-1]


class BlockedAmongOthers(GlobalPriorityExecutionPlanner):
    def plan(self, jobs, slots, active_dags, recently_activated_dags=frozenset()):
        full = {each.executor: max(1, slots.get(each.executor, 0)) for each in jobs}
        return super().plan(jobs, full, active_dags, recently_activated_dags)


class Reversed(GlobalPriorityExecutionPlanner):
    def plan(self, jobs, *rest):
        return super().plan(jobs[::-1], *rest)


@pytest.mark.parametrize(
    "mutant",
    [
        SwappedKeys,
        ExistingFirst,
        ShallowFirst,
        MissingFirst,
        LongFirst,
        FewSlotsFirst,
        NoBurst,
        BlockedAmongOthers,
        Reversed,
    ],
)
def test_a_wrong_order_is_caught(mutant):
    with pytest.raises(AssertionError):
        check_tie_breaks(mutant())


class NaNKey(ExecutionPlanner):
    """HRRN as it is often written: no estimate is an infinite one."""

    def key(self, job, place):
        estimate = math.inf if job.estimated_runtime is None else job.estimated_runtime
        return (-(job.waited + estimate) / estimate,)


class Dropping(ExecutionPlanner):
    def plan(self, jobs, *rest):
        return list(jobs)[:-1]


class Inventing(ExecutionPlanner):
    def plan(self, jobs, *rest):
        return [*jobs, FlatJob("made up")]


@pytest.mark.parametrize("mutant", [NaNKey, Dropping, Inventing, Reversed])
def test_an_order_that_is_not_total_is_caught(mutant):
    jobs = [
        job("a", estimated_runtime=2.0, waited=1.0),
        job("b", waited=1.0),
        job("c", estimated_runtime=1.0, waited=1.0),
        job("d", estimated_runtime=3.0, waited=9.0),
    ]
    with pytest.raises(AssertionError):
        for arrangement in itertools.permutations(jobs):
            check_total(mutant(), list(arrangement))
        check_total(mutant(), [job("a"), job("b")])


# Loading


def test_a_flat_job_needs_only_an_id():
    assert FlatJob("a") == ("a", "", "default", 0, 0, None, 0.0, 0.0, None, "")
    FlatJob(
        id="1.2", dag_id="1", executor="ocr", level=1, priority=2, estimated_runtime=3.0, waited=4.0
    )


class Good:
    def plan(self, jobs, slots, active_dags, recently_activated_dags=frozenset()):
        return jobs


class Short:
    def plan(self, jobs):
        return jobs


class Later:
    async def plan(self, jobs, slots, active_dags, recent=()):
        return jobs


class Greedy(Good):
    def __init__(self, weight):
        self.weight = weight


class Angry(Good):
    def __init__(self):
        raise RuntimeError("not today")


class Leaving(Good):
    def __init__(self):
        raise SystemExit(3)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_the_built_in_planners_are_found_by_name(name):
    assert kind_of(name) is BUILT_IN[name]


def test_a_planner_of_the_app_is_found_by_its_name():
    one = Good()
    table = table_of({"mine": Good, "that": one})
    found: dict[str, object] = {name: kind_of(name, table) for name in table}
    assert found == {"mine": Good, "that": one}
    assert name_of(one, {"that": one}) == name_of(Good(), {"that": Good}) == "that"


def test_every_planner_in_the_package_plans_as_it_is():
    names = [name for name in dir(fairlead.jobs) if name.endswith("ExecutionPlanner")]
    jobs = [FlatJob("full", executor="b"), FlatJob("x"), FlatJob("y")]
    for name in names:
        planned = getattr(fairlead.jobs, name)().plan(jobs, {"default": 1, "b": 0}, set())
        assert [job.id for job in planned] == ["x", "y", "full"], name


# Modules that Python finds, that tell on being imported, or that are imported already.
NAMES_OF_MODULES = [
    "evil_of_tests:Planner",
    "evil_of_tests.Planner",
    "evil_of_tests",
    "this:x",
    "antigravity:x",
    "os:system",
    "fairlead.jobs.planners:SJFSExecutionPlanner",
    "fairlead.jobs.SJFSExecutionPlanner",
    f"{__name__}:Good",
]


@pytest.mark.parametrize("name", NAMES_OF_MODULES)
def test_no_name_is_imported(name, tmp_path, monkeypatch):
    (tmp_path / "evil_of_tests.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    with pytest.raises(ConfigError, match="is not known here"):
        kind_of(name, {"mine": Good})
    assert set(sys.modules) == before


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("HRNExecutionPlanner", "did you mean HRRNExecutionPlanner"),
        ("min", "did you mean mine"),
        ("", "there are EarliestDeadline.*, mine; a planner of your own is known where its app is"),
        ("\ud800:\0" * 1000, "is not known here"),
        (None, "by its name"),
        (7, "by its name"),
    ],
)
def test_a_name_that_is_not_known_is_told_with_those_that_are(name, said):
    with pytest.raises(ConfigError, match=said):
        kind_of(name, {"mine": Good})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([Good], "must map names to planners"),
        ({"a:b": Good}, "the name of a planner has"),
        ({"": Good}, "the name of a planner has"),
        ({"a" * 101: Good}, "the name of a planner has"),
        ({7: Good}, "the name of a planner has"),
        ({"SJFSExecutionPlanner": Good}, "is a built-in planner"),
        ({"mine": 7}, "planner mine has no method plan"),
        ({"mine": "Good"}, "planner mine has no method plan"),
        ({"mine": Short}, "plan must take"),
        ({"mine": Later}, "not async"),
        ({"mine": Greedy}, "without arguments"),
        ({"mine": Angry}, "not today"),
        ({"mine": Leaving}, "SystemExit"),
    ],
)
def test_planners_of_an_app_are_checked_at_once(given, said):
    with pytest.raises(ConfigError, match=said):
        Jobs(planners=given)


def test_an_app_may_plan_with_a_planner_of_its_table():
    jobs = Jobs(planners={"mine": Good}, planner="mine")
    assert type(jobs.settings.planner).__name__ == "Good"
    assert name_of(jobs.settings.planner, jobs.settings.planners) == "mine"


def test_a_planner_without_a_name_of_its_own_goes_by_its_class():
    jobs = Jobs(planner=Good())
    assert kind_of(f"{__name__}:Good", jobs.settings.planners) is jobs.settings.planner


def test_a_planner_written_in_c_is_believed():
    class Built:
        plan = staticmethod(max)

    check_planner(Built())
