"""Random verbs on a self-checking frontier, and what must hold of any run: counted from outside, by the jobs alone."""

from collections import Counter
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fairlead.jobs.frontier import Frontier
from fairlead.jobs.planners import BUILT_IN
from fairlead.jobs.records import ReadyJob
from fairlead.jobs.settings import TenantLimits
from tests.jobs.frontier_rig import frontier, job

Id = tuple[int, int]


class Every:
    """A user's planner: every second one, the last first."""

    def plan(
        self, jobs: Any, slots: Any, active_dags: Any, recently_activated_dags: Any = ()
    ) -> Any:
        return list(jobs)[::-2]


PLANNERS = {**BUILT_IN, "a user's": Every}
EXECUTORS = st.sampled_from(("ocr", "gpu"))
JOB = st.fixed_dictionaries(
    {
        "dag": st.integers(1, 6),
        "executor": EXECUTORS,
        "level": st.integers(0, 2),
    },
    optional={
        "estimate": st.sampled_from((0.0, 1.0, 30.0)),
        "soft": st.integers(-2000, 2000),
        "hard": st.integers(-2000, 2000),
        "start_at": st.integers(0, 100),
    },
)
SOON = ("soft", "hard", "start_at")
STEPS = st.sampled_from((0, 0, 1, 5, 30, 900))


class FrontierMachine(RuleBasedStateMachine):
    make = staticmethod(frontier)

    @initialize(
        planner=st.sampled_from(sorted(PLANNERS)),
        dags=st.sampled_from((None, 1, 2)),
        per_dag=st.sampled_from((None, 1, 2)),
        quota=st.sampled_from((None, 1, 2)),
        max_wait=st.sampled_from((40.0, 1e12)),
    )
    def open(
        self,
        planner: str,
        dags: int | None,
        per_dag: int | None,
        quota: int | None,
        max_wait: float,
    ) -> None:
        self.dags, self.per_dag, self.quota = dags, per_dag, quota
        self.tested: Frontier = self.make(
            PLANNERS[planner](),
            tenants={"t0": TenantLimits(2.0, quota)},
            max_concurrent_dags=dags,
            max_running_per_dag=per_dag,
            max_wait=max_wait,
        )
        self.now = 1000.0
        self.nodes = 0
        self.slots: Counter[str] = Counter()
        self.waiting: dict[Id, ReadyJob] = {}
        self.running: dict[Id, ReadyJob] = {}
        self.active: set[int] = set()
        self.over = False  # a limit fell below what runs: it may stand above it for a while

    def look(self) -> None:
        """Take the proposals, and hold them to every cap."""
        for executor in self.tested.needs_plan(self.now):
            shown = self.tested.candidates(executor, self.now)
            order = Every().plan(shown, {}, set())
            self.tested.planned(executor, [one.id for one in order], self.now)
        started = self.tested.started()
        for one in started:
            name = (one.dag, one.node)
            assert name in self.waiting, f"{name} started and did not wait"
            assert one.start_at <= self.now
            self.running[name] = self.waiting.pop(name)
            self.active.add(one.dag)
        jobs = list(self.running.values())
        for one in started:
            on = sum(other.executor == one.executor for other in jobs)
            assert on <= self.slots[one.executor], f"{on} on {one.executor}"
            if self.per_dag is not None:
                assert sum(other.dag == one.dag for other in jobs) <= self.per_dag
            if self.quota is not None and one.tenant == "t0":
                assert sum(other.tenant == "t0" for other in jobs) <= self.quota
        if self.dags is not None and not self.over:
            assert len(self.active) <= self.dags

    @rule(step=STEPS, specs=st.lists(JOB, min_size=1, max_size=6))
    def add(self, step: int, specs: list[dict[str, Any]]) -> None:
        self.now += step
        batch = []
        for spec in specs:
            self.nodes += 1
            times = {name: self.now + spec[name] for name in SOON if name in spec}
            one = job(
                node=self.nodes,
                tenant=f"t{spec['dag'] % 2}",
                ready_at=self.now - self.nodes % 7,
                **(spec | times),
            )
            batch.append(one)
            self.waiting[one.dag, one.node] = one
        self.tested.add(batch, self.now)
        self.tested.add(batch[:1], self.now)

    @precondition(lambda self: self.running)
    @rule(step=STEPS, chosen=st.lists(st.integers(0, 99), min_size=1, max_size=4))
    def end(self, step: int, chosen: list[int]) -> None:
        self.now += step
        running = sorted(self.running)
        ended = {running[number % len(running)] for number in chosen}
        for name in ended:
            del self.running[name]
        self.tested.ended(sorted(ended), self.now)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99))
    def lose(self, which: int) -> None:
        name = sorted(self.running)[which % len(self.running)]
        lost = self.running.pop(name)
        self.tested.lost(name, self.now)
        self.waiting[name] = lost._replace(active=True)
        self.tested.add([self.waiting[name]], self.now)
        # The claim may have been the first of its DAG, and another have begun since.
        self.over = True

    @precondition(lambda self: self.active)
    @rule(which=st.integers(0, 99), step=STEPS)
    def end_run(self, which: int, step: int) -> None:
        self.now += step
        dag = sorted(self.active)[which % len(self.active)]
        if not any(name[0] == dag for name in self.running):
            for name in [name for name in self.waiting if name[0] == dag]:
                del self.waiting[name]
            self.active.discard(dag)
            self.tested.drop(dag, self.now)
            self.tested.ended_run(dag, self.now)

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 99))
    def drop(self, which: int) -> None:
        dag, node = sorted(self.waiting)[which % len(self.waiting)]
        del self.waiting[dag, node]
        self.tested.drop(dag, self.now, [node])

    @rule(executor=EXECUTORS, slots=st.integers(0, 3))
    def resize(self, executor: str, slots: int) -> None:
        self.slots[executor] = slots
        self.tested.resize(executor, slots, self.now)

    @rule(executor=EXECUTORS, planner=st.sampled_from(sorted(PLANNERS)))
    def change_planner(self, executor: str, planner: str) -> None:
        self.tested.set_planner(executor, PLANNERS[planner](), self.now)

    @rule(step=STEPS)
    def advance(self, step: int) -> None:
        self.now += step
        self.pass_time()

    def pass_time(self) -> None:
        self.tested.advance(self.now)
        lingering = {dag for dag in self.active if str(dag) not in self.tested.active_dags_text()}
        for dag in lingering:
            assert not any(name[0] == dag for name in (*self.waiting, *self.running))
        self.active -= lingering

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "tested"):
            self.look()
            assert self.tested.waiting + self.tested.delayed == len(self.waiting)
            assert self.tested.running == len(self.running)
            for name in list(self.waiting)[:3]:
                assert self.tested.explain(name, self.now).said

    def teardown(self) -> None:
        """Given slots and time, everybody gets his turn, and nothing is left behind."""
        if not hasattr(self, "tested"):
            return
        for executor in ("ocr", "gpu"):
            self.resize(executor, 2)
        for _ in range(10 * (len(self.waiting) + len(self.running)) + 50):
            self.look()
            if not self.waiting and not self.running:
                break
            names = sorted(self.running)
            for name in names:
                del self.running[name]
            self.tested.ended(names, self.now)
            for dag in sorted(self.active):
                if not any(name[0] == dag for name in (*self.waiting, *self.running)):
                    self.active.discard(dag)
                    self.tested.ended_run(dag, self.now)
            self.now += 20
            self.pass_time()
        assert not self.waiting, f"{len(self.waiting)} never ran: {sorted(self.waiting)}"
        for dag in sorted(self.active):
            self.tested.ended_run(dag, self.now)
        tested = self.tested
        assert not tested._tickets
        assert not tested.delayed
        assert not tested.room.dags.active
        assert not tested.orders.register.cohorts
        assert not tested.orders.register.since
