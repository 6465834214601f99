"""Deaths of processes: what counts against which job, over random lives; and suspects in processes of their own."""

import asyncio
import json
import logging
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fairlead.jobs import crashes
from fairlead.jobs.crashes import Limits
from fairlead.jobs.executors import kinds
from fairlead.jobs.records import Death, Ending, RunningJob
from tests.jobs import calls
from tests.jobs.desk import Desk, crew_of, tasks_of
from tests.jobs.test_heartbeat import until

Judge = Callable[[Ending, int, int, Limits, float], Ending]


# A model: processes, innocent jobs, jobs that kill what runs them


@dataclass
class Job:
    number: int
    kind: str  # "innocent", "poison" (kills its process), "container" (kills the worker's process wherever it runs)
    work: int  # ticks until it completes, or kills
    state: str = "ready"
    due: float = 0.0
    left: int = 0
    process: int = 0
    isolated: bool = False
    crashes: int = 0
    deaths: list[tuple[float, bool]] = field(default_factory=list)
    alone: int = 0  # deaths alone, in its whole life

    def row(self) -> RunningJob:
        # fmt: off
        return RunningJob(
            self.number, 0, "t", "x", "", self.process, self.number, True, 0.0, 0, self.crashes, 0, 1.0, False,
            f"job {self.number}",
        )
        # fmt: on


@dataclass
class Life:
    """Workers whose processes die and come back under new numbers."""

    random: random.Random
    limits: Limits
    judge: Judge
    now: float = 0.0
    restarts: int = 0

    def run(self, jobs: list[Job], workers: int, slots: int, until: float) -> None:
        living = list(range(1, workers + 1))
        numbers = iter(range(workers + 1, 1 << 30))
        while self.now < until and any(job.state in ("ready", "active") for job in jobs):
            self.now += self.random.choice([0.5, 1.0, 4.0])
            for process in living:
                held = sum(job.state == "active" and job.process == process for job in jobs)
                ready = [job for job in jobs if job.state == "ready" and job.due <= self.now]
                for job in self.random.sample(ready, min(len(ready), slots - held)):
                    job.state, job.process, job.left = "active", process, job.work
                    job.isolated = not all(alone for _, alone in self.within(job))
            for job in self.random.sample(jobs, len(jobs)):
                if job.state != "active":
                    continue
                job.left -= 1
                if job.left > 0:
                    continue
                if job.kind == "innocent":
                    job.state = "completed"
                elif job.kind == "poison" and job.isolated:
                    self.end(job, crashes.crashed(job.row(), "its process was killed by SIGKILL"))
                else:
                    self.kill(jobs, job.process)
                    living = [next(numbers) if one == job.process else one for one in living]

    def within(self, job: Job) -> list[tuple[float, bool]]:
        return [one for one in job.deaths if one[0] > self.now - self.limits.window]

    def kill(self, jobs: list[Job], process: int) -> None:
        self.restarts += 1
        inside = [job for job in jobs if job.state == "active" and job.process == process]
        endings = crashes.deaths([job.row() for job in inside], {process: f"host:{process}"})
        by_number = {job.number: job for job in inside}
        assert len(endings) == len(inside)
        for ending in endings:
            job = by_number[ending.dag]
            assert ending.death is not None
            assert ending.death.alone == (len(inside) == 1)
            others = [f"{one.number}.0 job {one.number}" for one in inside if one is not job]
            assert ending.death.alone or all(name in ending.death.beside for name in others[:9])
            self.end(job, ending)

    def end(self, job: Job, noted: Ending) -> None:
        within = self.within(job)
        alone = sum(one[1] for one in within)
        ending = self.judge(noted, alone, len(within) - alone, self.limits, self.random.random())
        assert ending.death is not None
        job.deaths.append((self.now, ending.death.alone))
        job.alone += ending.death.alone
        job.crashes = ending.crashes or 0
        job.state = "failed" if ending.state == "failed" else "ready"
        job.due = self.now + ending.delay
        if job.state == "failed":
            told = sum(one[1] for one in self.within(job))
            assert told == self.limits.max_crashes, (
                "it ends with exactly so many deaths alone in the window"
            )
            assert f"{self.limits.max_crashes} times" in error_of(ending) or told == 1


def error_of(ending: Ending) -> str:
    return str(json.loads(ending.error or "{}")["message"])


def live(seed: int, judge: Judge = crashes.judge) -> list[Job]:
    rng = random.Random(seed)
    limits = Limits(rng.randint(1, 4), rng.choice([30.0, 600.0, 3600.0]))
    kinds = ["innocent"] * rng.randint(1, 8) + ["poison"] * rng.randint(0, 3)
    if rng.random() < 0.4:
        kinds += ["container"]
    jobs = [Job(number, kind, rng.randint(1, 6)) for number, kind in enumerate(kinds, 1)]
    life = Life(rng, limits, judge)
    life.run(jobs, rng.randint(1, 3), rng.randint(1, 4), until=40_000.0)
    for job in jobs:
        if job.kind == "innocent":
            assert job.state == "completed", (seed, job)
            assert job.alone == 0
        elif limits.window > 600.0:
            assert job.state == "failed", (seed, job)
    return jobs


SEEDS = range(300)


def test_no_innocent_job_is_failed_and_each_poison_is_condemned_by_its_deaths_alone():
    for seed in SEEDS:
        live(seed)


def test_what_kills_its_container_again_and_again_does_bounded_harm():
    limits = Limits(3, 3600.0)
    noted = [Ending(1, 0, 1, "retry", death=Death(False, "2.0 b"))] * 14
    delays = [crashes.judge(one, 0, n, limits).delay for n, one in enumerate(noted)]
    assert delays == [0.0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300, 300]


def company_counts(ending: Ending, alone: int, company: int, limits: Limits, draw: float) -> Ending:
    assert ending.death is not None
    judged = crashes.judge(ending._replace(death=Death(True, "")), alone + company, 0, limits)
    return judged._replace(death=ending.death)


def never_condemns(ending: Ending, alone: int, company: int, limits: Limits, draw: float) -> Ending:
    return crashes.judge(ending, 0, company, limits._replace(max_crashes=1000))


@pytest.mark.parametrize("mutant", [company_counts, never_condemns])
def test_a_judge_that_breaks_a_rule_is_caught(mutant: Judge):
    with pytest.raises(AssertionError):
        for seed in SEEDS:
            live(seed, mutant)


def test_the_errors_name_how_often_within_what_and_who_was_beside():
    limits = Limits(3, 3600.0)
    rows = [Job(number, "innocent", 1, process=7).row() for number in range(1, 15)]
    company = crashes.judge(crashes.deaths(rows[:3], {7: "host:1"})[0], 0, 0, limits)
    assert "2.0 job 2, 3.0 job 3" in error_of(company)
    assert "counts against none" in error_of(company)
    many = crashes.judge(crashes.deaths(rows, {7: "host:1"})[0], 0, 0, limits)
    assert "11.0 job 11, 3 more" in error_of(many)
    alone = crashes.judge(
        crashes.crashed(rows[0], "its process was killed by SIGKILL"), 1, 4, limits
    )
    assert error_of(alone).endswith("killed by SIGKILL; crash 2 of 3 within 60 min")
    last = crashes.judge(
        crashes.crashed(rows[0], "its process was killed by SIGKILL"), 2, 4, limits
    )
    assert last.state == "failed"
    assert "crashed 3 times within 60 min, each time alone" in error_of(last)
    assert "killed by SIGKILL" in error_of(last)


def test_a_worker_that_left_by_itself_killed_nothing():
    (ending,) = crashes.deaths([Job(1, "innocent", 1, process=7).row()], {})
    assert (ending.state, ending.death, ending.crashes) == ("retry", None, 0)


# Suspects


def where() -> int:
    return os.getpid()


async def where_on_a_loop() -> int:
    return os.getpid()


def leave() -> None:
    os._exit(7)


class Pool:
    ready = False  # made by the application when it starts, in its own process


def needs_pool() -> str:
    if not Pool.ready:
        raise RuntimeError("no pool")
    return "done"


SUSPECTS = tasks_of(where, where_on_a_loop, leave, needs_pool, calls.plain_hang, calls.plain_give)


async def run_suspects(kind: str, *claims: tuple[Any, ...], tasks: Any = SUSPECTS) -> list[Ending]:
    desk = Desk()
    crew = crew_of(desk, tasks, {"kind": kind, "slots": 2}, lease=10.0)
    await crew.start()
    made = [
        desk.claim(crew.workers["x"], task, *args, suspect=suspect)
        for task, suspect, *args in claims
    ]
    crew.dispatch(made)
    ends = await desk.ended(*made)
    assert crew.running == {"x": 0}
    await crew.stop()
    return ends


@pytest.mark.parametrize("kind", ["local", "threads"])
@pytest.mark.parametrize("task", ["where", "where_on_a_loop"])
def test_a_suspect_runs_in_a_process_of_its_own_beside_the_others(kind: str, task: str):
    ends = asyncio.run(run_suspects(kind, (task, False), (task, True), (task, False)))
    pids = [json.loads(ending.result or "0") for ending in ends]
    assert pids[0] == pids[2] == os.getpid()
    assert pids[1] not in (0, os.getpid())


def test_many_suspects_share_a_few_processes(monkeypatch):
    monkeypatch.setattr(kinds, "MOST_APART", 2)

    async def scene() -> list[Ending]:
        desk = Desk()
        crew = crew_of(desk, SUSPECTS, {"kind": "local", "slots": 12}, lease=10.0)
        await crew.start()
        made = [desk.claim(crew.workers["x"], "where", suspect=True) for _ in range(12)]
        crew.dispatch(made)
        ends = await desk.ended(*made)
        await crew.stop()
        return ends

    pids = {ending.result for ending in asyncio.run(scene())}
    assert 1 <= len(pids - {str(os.getpid())}) <= 2
    assert str(os.getpid()) not in pids


@pytest.mark.parametrize("kind", ["local", "threads", "processes"])
def test_a_suspect_that_ends_its_process_has_crashed_alone(kind: str):
    ends = asyncio.run(run_suspects(kind, ("leave", True), ("plain_give", False, 1)))
    assert [ending.state for ending in ends] == ["retry", "completed"]
    assert ends[0].death == Death(True, "its process ended with exit code 7")
    assert ends[0].crashes == 1
    assert "crash 1 of 3" in error_of(ends[0])


def test_a_suspect_that_fails_for_being_apart_runs_among_the_others(monkeypatch, caplog):
    monkeypatch.setattr(Pool, "ready", True)
    (ending,) = asyncio.run(run_suspects("local", ("needs_pool", True)))
    assert (ending.state, ending.result) == ("completed", '"done"')
    (told,) = [one for one in caplog.records if "process of its own" in one.message]
    assert told.levelno == logging.WARNING
    assert "RuntimeError: no pool" in told.message


def test_a_suspect_that_no_other_process_finds_runs_where_it_would_have(caplog):
    def inner() -> int:
        return os.getpid()

    (ending,) = asyncio.run(run_suspects("local", ("inner", True), tasks=tasks_of(inner)))
    assert ending.result == str(os.getpid())
    assert sum("cannot find its function" in one for one in caplog.messages) == 1


def test_a_suspect_is_cancelled_and_timed_out_like_any_other(tmp_path: Path):
    async def scene() -> None:
        desk = Desk()
        crew = crew_of(desk, SUSPECTS, 2, lease=10.0)
        await crew.start()
        folders = [tmp_path / "late", tmp_path / "unwanted"]
        for folder in folders:
            folder.mkdir()
        late, unwanted = (
            desk.claim(crew.workers["x"], "plain_hang", str(folder), suspect=True, timeout=timeout)
            for folder, timeout in zip(folders, [1.0, None], strict=True)
        )
        crew.dispatch([late, unwanted])
        await until((folders[1] / "runs").exists)
        crew._cancel([(unwanted.dag, unwanted.node, unwanted.fence)])
        ends = await desk.ended(late, unwanted)
        assert [ending.state for ending in ends] == ["expired", "cancelled"]
        assert crew.abandoned == 0
        await crew.stop()

    asyncio.run(scene())
