"""Workers that know different tasks: each job goes to a worker that knows its task, in a deploy and out of it."""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from fairlead.errors import ConfigError
from fairlead.jobs import Dag, Jobs
from fairlead.jobs.frontier import Frontier
from fairlead.jobs.operating import Operations
from fairlead.jobs.records import ReadyJob, WorkerRow
from fairlead.jobs.roster import Roster
from tests.jobs.frontier_rig import frontier, job
from tests.jobs.test_service import QUICK, go

TASKS = ("a", "b", "c", "d")


def worker(number: int, slots: int, tasks: str | None, executor: str = "ocr") -> WorkerRow:
    known = None if tasks is None else frozenset(tasks)
    return WorkerRow(number, f"w{number}", executor, slots, "p", 1, False, False, known)


# The choice of a worker


def test_a_job_is_placed_where_its_task_is_known_and_the_most_able_worker_stays_free():
    roster = Roster(15.0)
    roster.see(
        [worker(1, 1, "abc"), worker(2, 1, "ab"), worker(3, 1, "a"), worker(4, 1, None)], 0.0
    )
    placed = [roster.place("ocr", task, (1, n), ()) for n, task in enumerate("aabcc")]
    assert placed == [3, 2, 1, 4, None]
    assert roster.common() == {"ocr": frozenset("a")}
    roster.release([(1, 2)])
    assert [roster.free("ocr", task) for task in "acz"] == [1, 1, 0]


# A random life


@dataclass
class Life:
    """A frontier and a roster, with workers and jobs that come and go; the scheduler's part is played here."""

    random: random.Random
    frontier: Frontier = field(default_factory=frontier)
    roster: Roster = field(default_factory=lambda: Roster(15.0))
    now: float = 0.0
    workers: dict[int, WorkerRow] = field(default_factory=dict)
    ready: dict[tuple[int, int], ReadyJob] = field(default_factory=dict)
    running: dict[tuple[int, int], tuple[ReadyJob, int]] = field(default_factory=dict)
    numbers: Any = field(default_factory=lambda: iter(range(1, 1 << 30)))

    def look(self) -> None:
        self.roster.see(list(self.workers.values()), self.now)
        self.frontier.follow(self.roster, self.now)
        for executor, slots in self.roster.slots().items():
            self.frontier.resize(executor, slots, self.now)

    def join(self) -> None:
        number = next(self.numbers)
        known = self.random.choice(["a", "ab", "ab", "abc", "bcd", None])
        self.workers[number] = worker(
            number, self.random.randrange(1, 4), known, self.random.choice(["ocr", "gpu"])
        )
        self.look()

    def leave(self) -> None:
        """A worker goes; what it ran is ready again."""
        if not self.workers:
            return
        gone = self.random.choice(sorted(self.workers))
        del self.workers[gone]
        back = [one for one, at in self.running.values() if at == gone]
        self.look()
        self.end([(one.dag, one.node) for one in back])
        self.add(back)

    def add(self, jobs: list[ReadyJob]) -> None:
        self.ready |= {(one.dag, one.node): one for one in jobs}
        self.frontier.add(jobs, self.now)

    def come(self) -> None:
        fresh = [
            job(
                next(self.numbers),
                task=self.random.choice(TASKS),
                executor=self.random.choice(["ocr", "gpu"]),
                ready_at=self.now,
            )
            for _ in range(self.random.randrange(1, 6))
        ]
        self.add(fresh)

    def end(self, ids: list[tuple[int, int]]) -> None:
        for one in ids:
            del self.running[one]
        self.roster.release(ids)
        self.frontier.ended(ids, self.now)

    def finish(self) -> None:
        held = sorted(self.running)
        self.end(self.random.sample(held, min(len(held), self.random.randrange(1, 3))))

    def drop(self) -> None:
        if self.ready:
            dag, node = self.random.choice(sorted(self.ready))
            del self.ready[dag, node]
            self.frontier.drop(dag, self.now)

    def settle(self) -> None:
        """Claim what starts, as the scheduler does, until nothing starts any more."""
        for _ in range(200):
            started = self.frontier.started()
            if not started:
                return
            homeless = []
            for one in started:
                at = self.roster.place(one.executor, one.task, (one.dag, one.node), ())
                if at is None:
                    homeless.append(one)
                else:
                    self.running[one.dag, one.node] = one, at
                    del self.ready[one.dag, one.node]
            for one in homeless:
                self.frontier.lost((one.dag, one.node), self.now)
            self.frontier.add(homeless, self.now)
        pytest.fail("the same jobs are offered for ever")

    def check(self) -> None:
        busy: dict[int, int] = {}
        for one, at in self.running.values():
            assert self.workers[at].knows(one.task)
            assert self.workers[at].executor == one.executor
            busy[at] = busy.get(at, 0) + 1
        assert all(count <= self.workers[at].slots for at, count in busy.items())
        for one in self.ready.values():
            assert not self.roster.free(one.executor, one.task), f"{one} waits beside a free slot"
        assert self.frontier.waiting == len(self.ready)
        assert self.frontier.running == len(self.running)


def live(seed: int) -> None:
    chance = random.Random(seed)
    life = Life(chance)
    verbs = [life.join, life.leave, life.come, life.come, life.finish, life.finish, life.drop]
    for _ in range(80):
        life.now += chance.expovariate(1.0)
        chance.choice(verbs)()
        life.settle()
        life.check()


@pytest.mark.parametrize("seed", range(40))
def test_no_job_runs_where_its_task_is_unknown_and_none_waits_beside_a_slot_that_could_run_it(seed):
    live(seed)


def test_a_placement_that_ignores_tasks_is_caught(monkeypatch):
    monkeypatch.setattr(WorkerRow, "knows", lambda self, task: True)
    place = Roster.place

    def blind(self: Roster, executor: str, task: str, one: Any, own: Any) -> int | None:
        return place(self, executor, "anything", one, own)

    monkeypatch.setattr(Roster, "place", blind)
    monkeypatch.setattr(Life, "check", _everything_is_known)
    with pytest.raises(AssertionError):
        for seed in range(10):
            live(seed)


def _everything_is_known(life: Life) -> None:
    for one, at in life.running.values():
        known = life.workers[at].tasks
        assert known is None or one.task in known


def test_a_held_job_that_is_not_fed_when_a_slot_comes_free_is_caught(monkeypatch):
    monkeypatch.setattr(Frontier, "_feed", lambda self, now: None)
    with pytest.raises(AssertionError):
        for seed in range(10):
            live(seed)


def test_a_hundred_thousand_jobs_that_no_worker_knows_cost_the_others_nothing():
    tested, roster = frontier(), Roster(15.0)
    roster.see([worker(1, 2, "a")], 0.0)
    tested.follow(roster, 0.0)
    tested.resize("ocr", 2, 0.0)
    tested.add([job(n, task="new", ready_at=0.0) for n in range(1, 100_001)], 0.0)
    assert tested.started() == []
    asked = 0
    free = roster.free

    def counted(executor: str, task: str) -> int:
        nonlocal asked
        asked += 1
        return free(executor, task)

    roster.free = counted  # type: ignore[method-assign]
    for n in range(200_000, 200_050):
        tested.add([job(n, task="a", ready_at=1.0)], 1.0)
        (begun,) = tested.started()
        assert begun.dag == n
        roster.place("ocr", "a", (n, 0), ())
        roster.release([(n, 0)])
        tested.ended([(n, 0)], 1.0)
        tested.ended_run(n, 1.0)
    assert asked <= 150  # of one kind, once for each verb


# In real processes' place: several `Jobs` on one database


def old_and_new(url: str) -> tuple[Jobs, Jobs]:
    """The same application before and after a deploy: one task stays, one goes, one comes."""
    before, after = Jobs(url, **QUICK), Jobs(url, **QUICK)
    for jobs in (before, after):

        @jobs.task(name="stays")
        async def stays() -> str:
            return "stays"

    @before.task(name="goes")
    async def goes() -> str:
        return "goes"

    @after.task(name="comes")
    def comes() -> str:
        return "comes"

    return before, after


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.mark.parametrize("first", [0, 1])
def test_a_rolling_deploy_fails_no_job_in_either_order(url, first):
    async def main():
        both = old_and_new(url)
        async with both[first], both[1 - first]:
            runs = []
            for number in range(30):
                for jobs, task in ((both[0], "goes"), (both[1], "comes"), (both[1], "stays")):
                    dag = Dag(f"{task}-{number}")
                    dag.add(task)
                    runs.append((jobs, await jobs.submit(dag)))
            return [await jobs.wait(run) for jobs, run in runs]

    assert {outcome.state for outcome in go(main())} == {"completed"}


def test_a_task_that_no_worker_knows_waits_for_one_that_does_and_explain_names_it(url):
    async def main():
        before, after = old_and_new(url)
        async with before:
            dag = Dag("new")
            dag.add("comes")
            run = await after.submit(dag)
            said = await Operations(after).explain(f"{run.id}.0")
            assert said.reason == "unknown_task"
            assert "no worker of 'default' knows task 'comes'" in said.sentence
            async with after:
                outcome = await after.wait(run)
                assert outcome.state == "completed"
            await after.close()

    go(main())


def test_a_process_without_tasks_has_no_slots_until_it_has_some(url):
    async def main():
        empty, (real, _) = Jobs(url, **QUICK), old_and_new(url)
        async with empty:
            store = await empty.store()
            assert await store.workers() == []
            assert empty.crew is not None
            assert empty.crew.slots == {}
            async with real:
                runs = []
                for number in range(40):
                    dag = Dag(f"run{number}")
                    dag.add("stays")
                    runs.append(await real.submit(dag))
                ended = [await real.wait(run) for run in runs]
                assert {outcome.state for outcome in ended} == {"completed"}

            @empty.task(name="late")
            async def late() -> str:
                return "late"

            dag = Dag("late")
            dag.add(late)
            outcome = await empty.wait(await empty.submit(dag))
            assert outcome.state == "completed"

    go(main())


def test_a_view_never_plans(url):
    async def main():
        view = Jobs(url, **QUICK)
        await view.start(view=True)
        store = await view.store()
        real, _ = old_and_new(url)
        dag = Dag("one")
        dag.add("stays")
        run = await real.submit(dag)
        for _ in range(5):  # turns of its loop
            await store.wait_for_news(0.1)
        assert await store.leader() is None
        async with real:
            assert (await real.wait(run)).state == "completed"
        await view.close()

    go(main())


def test_submitting_still_needs_the_task(url):
    async def main():
        empty = Jobs(url, **QUICK)
        dag = Dag("one")
        dag.add("stays")
        with pytest.raises(ConfigError, match="stays"):
            await empty.submit(dag)
        await empty.close()

    asyncio.run(main())
