"""Random verbs on a store, against a model of jobs that fits on a page.

`StoreMachine` is for any store: a subclass says how to open an empty one (`opened`) and how to throw it away.  After
each verb every state, count and list of the store must be the model's; and a scheduler that only hears news and its own
endings must know exactly what is ready.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fairlead.jobs.records import Claim, Ending, Id
from fairlead.jobs.states import (
    ACTIVE,
    CANCELLED,
    COMPLETED,
    CREATED,
    EXPIRED,
    FAILED,
    FRUITLESS,
    READY,
    RETRY,
    SKIPPED,
    SUSPENDED,
    TERMINAL,
    TRANSITIONS,
)
from fairlead.jobs.stores.base import Store
from tests.jobs.store_contract import LEADER, LEASE, WORKER, new_run

T = TypeVar("T")
UNSTARTED = READY | {SUSPENDED}


@dataclass
class ModelJob:
    needs: tuple[int, ...]
    state: str = CREATED
    attempts: int = 0
    crashes: int = 0
    fence: int | None = None
    cancelling: bool = False

    def go(self, state: str) -> None:
        assert state in TRANSITIONS[self.state], (
            f"the model itself is wrong: {self.state} > {state}"
        )
        self.state = state


@dataclass
class ModelRun:
    jobs: list[ModelJob]
    started: bool = False
    paused: bool = False
    cancelling: bool = False
    ended: bool = False
    stopped: bool = False  # something was never started because of a cancel
    fences: list[int] = field(default_factory=list)  # all that were ever good

    def waits(self, job: ModelJob) -> int:
        return sum(self.jobs[need].state != COMPLETED for need in job.needs)

    def ready(self) -> list[int]:
        return [
            node for node, job in enumerate(self.jobs) if job.state in READY and not self.waits(job)
        ]

    def state(self) -> str:
        if self.ended:
            states = {job.state for job in self.jobs}
            if states & {FAILED, EXPIRED}:
                return FAILED
            return CANCELLED if self.stopped or CANCELLED in states else COMPLETED
        if self.paused:
            return SUSPENDED
        return ACTIVE if self.started else CREATED

    def settle(self) -> bool:
        """Skip what never will run, and see whether the run has ended with that."""
        changed = True
        while changed:
            changed = False
            for job in self.jobs:
                hopeless = any(self.jobs[need].state in FRUITLESS for need in job.needs)
                if job.state in UNSTARTED and hopeless:
                    job.go(SKIPPED)
                    changed = True
        over = not self.ended and all(job.state in TERMINAL for job in self.jobs)
        self.ended = self.ended or over
        return over

    def finish(self, node: int, state: str, attempts: int | None, crashes: int | None) -> None:
        job = self.jobs[node]
        if job.cancelling and state in (RETRY, FAILED):
            state = CANCELLED
        job.go(state)
        if state != COMPLETED:
            job.attempts = job.attempts if attempts is None else attempts
            job.crashes = job.crashes if crashes is None else crashes
        job.fence, job.cancelling = None, False
        if state == RETRY and self.paused:
            job.go(SUSPENDED)
        for other in self.jobs:
            if other.state == SKIPPED and not self.waits(other):
                other.go(CANCELLED)  # nothing but a cancel kept it from running


shapes = st.lists(st.integers(0, 2**6 - 1), min_size=1, max_size=6).map(
    lambda masks: [
        tuple(other for other in range(node) if mask >> other & 1)
        for node, mask in enumerate(masks)
    ]
)
some_counts = st.none() | st.integers(0, 3)
endings = st.sampled_from([COMPLETED, COMPLETED, COMPLETED, RETRY, FAILED, EXPIRED, CANCELLED])


class StoreMachine(RuleBasedStateMachine):
    async def opened(self) -> Store:
        raise NotImplementedError

    async def thrown_away(self) -> None:
        """Let go of what `opened` made."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.runs: dict[int, ModelRun] = {}
        self.archived: dict[int, ModelRun] = {}
        self.view: set[Id] = set()  # what a scheduler believes to be ready
        self.drawn = 10

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @initialize()
    def begin(self) -> None:
        self.store = self.do(self.opened())
        self.epoch = self.do(self.store.lead(LEADER, LEASE)) or 0
        self.worker = self.do(self.store.register("w", WORKER, {"ocr": 4}, LEASE))["ocr"]

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.do(self.store.close())
        self.do(self.thrown_away())
        self.loop.close()

    def a_run(self, data: st.DataObject) -> tuple[int, ModelRun]:
        dag = data.draw(st.sampled_from(sorted(self.runs)), label="run")
        return dag, self.runs[dag]

    @rule(shape=shapes)
    def submit(self, shape: list[tuple[int, ...]]) -> None:
        named = {str(node): [str(need) for need in needs] for node, needs in enumerate(shape)}
        (submitted,) = self.do(self.store.submit([new_run(named)]))
        assert submitted.new
        self.runs[submitted.dag] = ModelRun([ModelJob(needs) for needs in shape])

    def claim_these(self, wanted: list[Id], acked: bool) -> None:
        claims = []
        for dag, node in wanted:
            self.drawn += 1
            claims.append(Claim(dag, node, self.worker, self.drawn))
        told = self.do(self.store.claim(LEADER, self.epoch, claims, acked=acked))
        expected = [claim for claim in claims if claim.node in self.runs[claim.dag].ready()]
        assert [tuple(job[:4]) for job in told] == [tuple(claim) for claim in expected]
        for claim, job in zip(expected, told, strict=True):
            run = self.runs[claim.dag]
            model = run.jobs[claim.node]
            assert (job.attempts, job.crashes) == (model.attempts, model.crashes)
            assert set(job.inputs) == set(model.needs)
            model.go(ACTIVE)
            model.fence = claim.fence
            run.started = True
            run.fences.append(claim.fence)
            self.view.discard((claim.dag, claim.node))

    def finish_these(self, endings: list[Ending], ours: bool) -> None:
        """End jobs; a job that is there twice is refused the second time."""
        expected: tuple[list[Id], list[Id]] = ([], [])
        for ending in endings:
            run = self.runs[ending.dag]
            job = run.jobs[ending.node]
            good = job.state == ACTIVE and job.fence == ending.fence
            if good:
                run.finish(ending.node, ending.state, ending.attempts, ending.crashes)
            expected[not good].append((ending.dag, ending.node))
        over = [dag for dag in sorted({one.dag for one in endings}) if self.runs[dag].settle()]
        told = self.do(self.store.finish(LEADER if ours else WORKER, endings))
        assert (told.applied, told.refused) == expected
        assert sorted(told.ended) == [(dag, self.runs[dag].state()) for dag in over]
        became = {(job.dag, job.node) for job in told.ready}
        assert became <= self.ready_in_model()
        if ours:
            self.view |= became

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), acked=st.booleans())
    def claim_anything(self, data: st.DataObject, acked: bool) -> None:
        every = [(dag, node) for dag, run in self.runs.items() for node in range(len(run.jobs))]
        wanted = data.draw(
            st.lists(st.sampled_from(every), unique=True, max_size=5), label="wanted"
        )
        self.claim_these(wanted, acked)

    @precondition(lambda self: self.ready_in_model())
    @rule(data=st.data(), acked=st.booleans())
    def claim(self, data: st.DataObject, acked: bool) -> None:
        ready = sorted(self.ready_in_model())
        wanted = data.draw(
            st.lists(st.sampled_from(ready), unique=True, max_size=5), label="wanted"
        )
        self.claim_these(wanted, acked)

    @precondition(lambda self: self.active_in_model())
    @rule(data=st.data(), attempts=some_counts, crashes=some_counts, ours=st.booleans())
    def finish(
        self, data: st.DataObject, attempts: int | None, crashes: int | None, ours: bool
    ) -> None:
        active = self.active_in_model()
        chosen = data.draw(
            st.lists(st.sampled_from(sorted(active)), min_size=1, max_size=4), label="ended"
        )
        self.finish_these(
            [
                Ending(*one, active[one], data.draw(endings), "1", "{}", 0.0, attempts, crashes)
                for one in chosen
            ],
            ours,
        )

    @precondition(lambda self: self.ready_in_model())
    @rule(data=st.data(), ours=st.booleans())
    def work(self, data: st.DataObject, ours: bool) -> None:
        """Do all that is ready, to get on."""
        self.claim_these(sorted(self.ready_in_model()), acked=True)
        active = self.active_in_model()
        self.finish_these(
            [Ending(*one, fence, data.draw(endings), "1", "{}") for one, fence in active.items()],
            ours,
        )

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), state=endings)
    def finish_with_a_stale_fence(self, data: st.DataObject, state: str) -> None:
        dag, run = self.a_run(data)
        node = data.draw(st.integers(0, len(run.jobs) - 1), label="node")
        stale = [fence for fence in run.fences if fence != run.jobs[node].fence] or [3]
        fence = data.draw(st.sampled_from(stale), label="fence")
        told = self.do(self.store.finish(WORKER, [Ending(dag, node, fence, state)]))
        assert (told.applied, told.refused) == ([], [(dag, node)])

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        dag, run = self.a_run(data)
        changes = not run.ended and not run.cancelling
        assert self.do(self.store.cancel(dag)) == changes
        if not changes:
            return
        run.cancelling, run.paused = True, False
        for job in run.jobs:
            if job.state in UNSTARTED:
                met = all(run.jobs[need].state == COMPLETED for need in job.needs)
                job.go(CANCELLED if met else SKIPPED)
                run.stopped = True
            elif job.state == ACTIVE:
                job.cancelling = True
        run.settle()

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def pause(self, data: st.DataObject) -> None:
        dag, run = self.a_run(data)
        changes = not (run.ended or run.cancelling or run.paused)
        assert self.do(self.store.pause(dag)) == changes
        if changes:
            run.paused = True
            for job in run.jobs:
                if job.state in READY:
                    job.go(SUSPENDED)

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        dag, run = self.a_run(data)
        paused = run.paused and not run.ended
        assert self.do(self.store.resume(dag)) == paused
        if paused:
            run.paused = False
            for job in run.jobs:
                if job.state == SUSPENDED:
                    job.go(RETRY if job.attempts + job.crashes else CREATED)

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        dag, run = self.a_run(data)
        possible = run.ended and any(job.state != COMPLETED for job in run.jobs)
        assert self.do(self.store.retry(dag)) == possible
        if possible:
            run.ended = run.paused = run.stopped = run.cancelling = False
            for job in run.jobs:
                if job.state != COMPLETED:
                    job.go(CREATED)
                    job.attempts = job.crashes = 0

    @rule(ours=st.booleans())
    def bury_the_worker(self, ours: bool) -> None:
        """Its process dies; what it ran is nobody's, and comes back with one crash more."""
        self.do(self.store.beat([self.worker], 0.0))
        assert self.do(self.store.bury([self.worker])) == [self.worker]
        orphans = self.do(self.store.orphans(LEASE))
        assert {(job.dag, job.node): job.fence for job in orphans} == self.active_in_model()
        self.finish_these(
            [
                Ending(job.dag, job.node, job.fence, RETRY, crashes=job.crashes + 1)
                for job in orphans
            ],
            ours,
        )
        self.worker = self.do(self.store.register("w", WORKER, {"ocr": 4}, LEASE))["ocr"]

    @rule()
    def archive(self) -> None:
        over = [dag for dag, run in self.runs.items() if run.ended]
        assert self.do(self.store.archive(self.store.now() + 60, 1000)) == len(over)
        for dag in over:
            self.archived[dag] = self.runs.pop(dag)

    @rule()
    def hear(self) -> None:
        """Take the news as a scheduler does; it then knows what is ready."""
        news = self.do(self.store.take_news(LEADER))
        for dag in news.refreshed:
            self.view = {job for job in self.view if job[0] != dag}
        self.view |= {(job.dag, job.node) for job in news.ready}
        assert self.view == self.ready_in_model()
        for dag in news.runs_ended:
            assert dag in self.archived or self.runs[dag].ended
        for dag, node in news.ended:
            assert dag in self.archived or self.runs[dag].jobs[node].state != ACTIVE

    def active_in_model(self) -> dict[Id, int]:
        return {
            (dag, node): job.fence
            for dag, run in self.runs.items()
            for node, job in enumerate(run.jobs)
            if job.fence is not None
        }

    def ready_in_model(self) -> set[Id]:
        return {(dag, node) for dag, run in self.runs.items() for node in run.ready()}

    @invariant()
    def the_store_is_as_the_model(self) -> None:
        if not hasattr(self, "store"):
            return
        self.do(self.compare())

    async def compare(self) -> None:
        store = self.store
        # Of the archive only the last: nothing ever happens to it again.
        models = dict(list(self.archived.items())[-1:]) | self.runs
        rows = {row.dag: row for row in await store.runs(limit=1000)}
        assert set(rows) == set(self.runs)
        for dag, run in models.items():
            row = rows.get(dag) or await store.run(dag)
            assert row is not None
            left = sum(job.state not in TERMINAL for job in run.jobs)
            assert (row.state, row.left, row.jobs) == (run.state(), left, len(run.jobs))
            assert (row.completed_on is not None) == run.ended
            told = [
                (job.state, job.waits, job.attempts, job.crashes, job.cancelling)
                for job in await store.jobs(dag)
            ]
            assert told == [
                (job.state, run.waits(job), job.attempts, job.crashes, job.cancelling)
                for job in run.jobs
            ]
        ready = [(job.dag, job.node) for job in await store.ready(None, 10_000)]
        assert ready == sorted(self.ready_in_model())
        running = {(job.dag, job.node): job.fence for job in await store.running()}
        assert running == self.active_in_model()
        counts = Counter(job.state for run in self.runs.values() for job in run.jobs)
        assert {state: jobs for state, jobs in (await store.states()).items() if jobs} == counts
