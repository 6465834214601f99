"""`explain` in a process that does not lead: the leader's own reason, from a constant number of rows."""

import random
from collections import Counter
from typing import Any, cast

import pytest

from fairlead.jobs import explaining
from fairlead.jobs.frontier import Frontier
from fairlead.jobs.records import Claim, Ending
from fairlead.jobs.roster import Roster
from fairlead.jobs.scheduling import Scheduler
from fairlead.jobs.settings import settings_of
from fairlead.jobs.states import COMPLETED, RETRY, TERMINAL
from fairlead.jobs.stores.opening import open_store
from tests.jobs.operations_rig import database, go
from tests.jobs.store_contract import alike, new_run

SHAPES: list[Any] = [["a"], ["a", "b", "c"], {"a": [], "b": ["a"], "c": ["a"]}]
LEASE = 1000.0


class Leads:
    """What `explain` asks of a scheduler that leads."""

    leading = True

    def __init__(self, frontier):
        self.frontier = frontier


class Leader:
    """A scheduler by hand: a frontier over a store, settled after each step."""

    def __init__(self, store, settings, rng, mixed=True):
        self.store = store
        self.mixed = mixed  # workers that know different tasks
        self.rng = rng
        self.frontier = Frontier.of(settings, lambda _: settings.planner)
        self.roster = Roster(LEASE)
        self.epoch = 0
        self.running: dict[Any, int] = {}
        self.seen = 0
        self.fences = iter(range(1, 10**6))

    async def begin(self):
        self.epoch = await self.store.lead("leader", LEASE)
        for executor in ("x", "y"):
            for tasks in (None, {"task-a", "task-b"})[: self.rng.randint(1, 1 + self.mixed)]:
                served = {executor: self.rng.randint(1, 3)}
                await self.store.register("w", "leader", served, LEASE, tasks)
        rows = await self.store.workers()
        self.roster.see(rows, 0.0)
        now = self.store.now()
        self.frontier.follow(self.roster, now)
        for executor, slots in self.roster.slots().items():
            self.frontier.resize(executor, slots, now)

    async def take_in(self, dags):
        for dag in dags:
            ready, _ = await self.store.reread(dag)
            self.frontier.add(ready, self.store.now())
        await self.settle()

    async def settle(self):
        """Claim all that the frontier starts."""
        while started := self.frontier.started():
            claims = []
            for job in started:
                worker = self.roster.place(job.executor, job.task, (job.dag, job.node), ())
                if worker is None:  # no worker that knows it is free: as if it were lost
                    self.frontier.lost((job.dag, job.node), self.store.now())
                    self.frontier.add([job], self.store.now())
                    continue
                claims.append(Claim(job.dag, job.node, worker, next(self.fences)))
            for one in await self.store.claim("leader", self.epoch, claims, acked=True):
                self.running[one.dag, one.node] = one.fence
            if not claims:
                break

    async def finish_some(self):
        chosen = [job for job in self.running if self.rng.random() < 0.4]
        endings = [
            Ending(dag, node, self.running.pop((dag, node)), COMPLETED, "1") for dag, node in chosen
        ]
        done = await self.store.finish("leader", endings)
        now = self.store.now()
        self.roster.release(chosen)
        self.frontier.add(done.ready, now)
        self.frontier.ended(done.applied, now)
        self.frontier.ended_runs([run.dag for run in done.ended], now)
        await self.settle()


def random_runs(rng, now):
    for _ in range(rng.randint(3, 12)):
        start_at = now + 500 if rng.random() < 0.15 else None
        run = new_run(
            rng.choice(SHAPES),
            tenant=rng.choice(["", "acme", "bee"]),
            start_at=start_at,
            soft=rng.choice([None, now + 60.0]),
        )
        jobs = tuple(
            job._replace(
                executor=rng.choice(["x", "x", "y"]),
                estimate=rng.choice([None, 1.0, 30.0]),
                level=int(bool(job.needs)),
            )
            for job in run.jobs
        )
        yield run._replace(jobs=jobs)


def random_settings(rng):
    return settings_of(
        tenants=rng.choice([None, {"acme": {"max_running": 1}}]),
        max_concurrent_dags=rng.choice([None, 2, 3]),
        max_running_per_dag=rng.choice([None, 1]),
    )


async def disagreements(store, seed):
    """Explain each job of a random state in the leader and elsewhere; return the reasons, and those that differ."""
    rng = random.Random(seed)
    settings = random_settings(rng)
    # Of jobs that wait for a worker that knows them, the leader's choice depends on all the others.
    leader = Leader(store, settings, rng, mixed=explaining.MOST_READ > 2)
    await leader.begin()
    dags = [one.dag for one in await store.submit(list(random_runs(rng, store.now())))]
    await leader.take_in(dags)
    for _ in range(rng.randint(0, 4)):
        await leader.finish_some()
    scheduler = cast("Scheduler", Leads(leader.frontier))
    reasons: Counter[str] = Counter()
    wrong = []
    for dag in dags:
        for job in await store.jobs(dag):
            if job.state in TERMINAL:
                continue
            here = await explaining.explain(store, settings, (dag, job.node), scheduler)
            there = await explaining.explain(store, settings, (dag, job.node))
            reasons[here.reason] += 1
            if here.reason != there.reason:
                wrong.append((seed, here, there))
    return reasons, wrong


async def over(url, work):
    store = open_store(url)
    await store.open()
    try:
        return await work(store)
    finally:
        await store.close()


@pytest.mark.parametrize(("kind", "seeds"), [("sqlite", 15), ("postgres", 4)])
@pytest.mark.parametrize("most", [2, 1000])
def test_the_reason_is_the_leaders_over_random_states(kind, seeds, most, tmp_path, monkeypatch):
    monkeypatch.setattr(explaining, "MOST_READ", most)
    found: Counter[str] = Counter()
    for seed in range(seeds):
        folder = tmp_path / str(seed)
        folder.mkdir()
        url = database(kind, folder)
        reasons, wrong = go(over(url, lambda store, seed=seed: disagreements(store, seed)))
        assert wrong == []
        found += reasons
    assert {"executor_full", "held", "running", "start_at", "upstream"} <= set(found)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("counted", [True, False])
def test_an_active_run_of_which_nothing_runs_counts_though_it_is_not_read(
    kind, counted, tmp_path, monkeypatch
):
    monkeypatch.setattr(explaining, "MOST_READ", 2)
    if not counted:  # the broken variant
        monkeypatch.setattr(Frontier, "begin", lambda self, dags, now: None)

    async def work(store):
        settings = settings_of(max_concurrent_dags=1)
        leader = Leader(store, settings, random.Random(3))
        await leader.begin()
        later = store.now() + 500
        await store.submit([new_run(start_at=later), new_run(start_at=later)])
        (active,) = await store.submit([new_run({"a": [], "b": ["a"]}, of_jobs={"executor": "x"})])
        await leader.take_in([active.dag])
        (job,) = leader.running
        dag, node = job
        retry = Ending(dag, node, leader.running[job], RETRY, delay=500.0)
        assert (await store.finish("leader", [retry])).applied == [job]
        (other,) = await store.submit([new_run(of_jobs={"executor": "x"})])
        found = await explaining.explain(store, settings, (other.dag, 0))
        assert (found.reason == "held") == counted
        assert ("max_concurrent_dags 1" in found.sentence) == counted

    go(over(database(kind, tmp_path), work))


class Counted:
    """A store that counts the questions and the rows of their answers."""

    def __init__(self, store):
        self._store = store
        self.asked: Counter[str] = Counter()
        self.rows = 0

    def __getattr__(self, name):
        verb = getattr(self._store, name)
        if name == "now":
            return verb

        async def count(*args, **given):
            answer = await verb(*args, **given)
            self.asked[name] += 1
            self.rows += len(answer) if isinstance(answer, list | dict) else 1
            return answer

        return count


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_the_cost_is_that_of_few_rows_however_many_jobs_are_ready(kind, tmp_path):
    async def work(store):
        rng = random.Random(1)
        settings = settings_of(max_concurrent_dags=50)
        leader = Leader(store, settings, rng)
        await leader.begin()
        costs: list[Any] = []
        first = new_run(of_jobs={"executor": "x"})
        for count in (3_000, 57_000):
            names = [str(place) for place in range(count)]
            dags = [
                one.dag for one in await store.submit(alike(first, names, names, ["{}"] * count))
            ]
            if not costs:
                await leader.take_in(dags[:5])
            counted: Any = Counted(store)
            found = await explaining.explain(counted, settings, (dags[-1], 0))
            assert found.reason == "executor_full"
            assert "at least" in found.sentence
            costs.append((dict(counted.asked), counted.rows))
        assert costs[0] == costs[1]
        assert costs[0][1] < 2_100

        wide = new_run(
            {"first": [], **{f"n{place}": [] for place in range(3_000)}}, of_jobs={"executor": "x"}
        )
        last = new_run(
            {
                **{f"n{place}": [] for place in range(3_000)},
                "all": [f"n{place}" for place in range(3_000)],
            }
        )
        for run, node in ((wide, 2_500), (last, 3_000)):
            (one,) = await store.submit([run])
            counted = Counted(store)
            found = await explaining.explain(counted, settings, (one.dag, node))
            assert found.reason in ("executor_full", "upstream")
            assert counted.rows < 3_200

    go(over(database(kind, tmp_path), work), 120)
