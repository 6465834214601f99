"""Calls that do not stop: they keep their slots until they really end, are told, and in the end call for a restart."""

import asyncio
import threading
from typing import Any

import pytest

from fairlead.errors import ConfigError
from fairlead.jobs import Dag, Jobs
from fairlead.jobs.metrics import Metrics
from fairlead.jobs.operating import Operations
from fairlead.jobs.registry import task_of
from tests.jobs.desk import Desk, crew_of
from tests.jobs.operations_rig import QUICK, database, go
from tests.jobs.test_heartbeat import until
from tests.jobs.test_metrics import scrape
from tests.jobs.test_worker_command import COMMAND


class Deaf:
    """A plain function that nothing stops, and how many of it run at once."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.live = self.most = self.calls = 0
        self._lock = threading.Lock()

    def task(self) -> None:
        with self._lock:
            self.calls += 1
            self.live += 1
            self.most = max(self.most, self.live)
        self.release.wait(60)
        with self._lock:
            self.live -= 1


class Stubborn:
    """A coroutine that refuses to be cancelled."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.live = self.calls = 0

    async def task(self) -> None:
        self.calls += 1
        self.live += 1
        while not self.release.is_set():
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                pass
        self.live -= 1


@pytest.mark.parametrize("kind", ["local", "threads"])
def test_a_call_past_its_timeout_keeps_its_slot_until_it_ends(kind):
    deaf = Deaf()

    async def scene():
        desk = Desk()
        tasks = {"deaf": task_of(deaf.task, name="deaf")}
        value = {"kind": kind, "slots": 1}
        crew = crew_of(desk, tasks, value, lease=10.0, patience=0.05)
        await crew.start()
        late = desk.claim(crew.workers["x"], "deaf", timeout=0.02, retries=1)
        following = desk.claim(crew.workers["x"], "deaf")
        crew.dispatch([late, following])
        await until(lambda: crew.stuck == {"x": 1})
        assert (desk.ending_of(late), deaf.calls, crew.running) == (None, 1, {"x": 1})
        deaf.release.set()
        ends = await desk.ended(late, following)
        assert [(end.state, end.attempts) for end in ends] == [("retry", 1), ("completed", None)]
        assert (deaf.most, crew.stuck, crew.abandoned) == (1, {"x": 0}, 0)
        await crew.stop()

    asyncio.run(scene())


def test_a_coroutine_that_refuses_to_be_cancelled_keeps_its_slot():
    async def scene():
        stubborn = Stubborn()
        desk = Desk()
        crew = crew_of(desk, {"s": task_of(stubborn.task, name="s")}, 1, lease=10.0, patience=0.05)
        await crew.start()
        unwanted, following = (desk.claim(crew.workers["x"], "s") for _ in range(2))
        crew.dispatch([unwanted, following])
        await until(lambda: stubborn.live == 1)
        crew._cancel([(unwanted.dag, unwanted.node, unwanted.fence)])
        await until(lambda: crew.stuck == {"x": 1})
        assert (stubborn.calls, desk.ending_of(unwanted)) == (1, None)
        stubborn.release.set()
        ends = await desk.ended(unwanted, following)
        assert [end.state for end in ends] == ["cancelled", "completed"]
        await crew.stop()

    asyncio.run(scene())


def test_a_worker_that_ends_lets_go_of_stuck_calls_and_writes_how_they_ended():
    deaf = Deaf()

    async def scene():
        desk = Desk()
        crew = crew_of(desk, {"d": task_of(deaf.task, name="d")}, 1, lease=10.0, patience=0.05)
        await crew.start()
        late = desk.claim(crew.workers["x"], "d", timeout=0.02, retries=1)
        crew.dispatch([late])
        await until(lambda: crew.stuck == {"x": 1})
        await crew.stop()
        ending = desk.ending_of(late)
        assert ending is not None
        assert (ending.state, ending.attempts, crew.abandoned) == ("retry", 1, 1)
        deaf.release.set()

    asyncio.run(scene())


@pytest.mark.parametrize("embedded", [False, True])
def test_slots_that_are_all_stuck_call_for_a_restart(embedded, caplog):
    deaf = Deaf()

    async def scene():
        desk = Desk()
        told: list[str] = []
        options: dict[str, Any] = {} if embedded else {"on_stuck": told.append}
        tasks = {"d": task_of(deaf.task, name="d")}
        crew = crew_of(desk, tasks, 2, lease=10.0, patience=0.05, stuck_after=0.05, **options)
        await crew.start()
        first = desk.claim(crew.workers["x"], "d", timeout=0.02)
        crew.dispatch([first])
        await until(lambda: crew.stuck == {"x": 1})
        second = desk.claim(crew.workers["x"], "d", timeout=0.02)
        assert crew._lanes["x"]._stuck_timer is None, "a slot is free"
        crew.dispatch([second])
        words = "all 2 slots of executor x have been held"
        await until(lambda: words in " ".join(caplog.messages if embedded else told))
        deaf.release.set()
        await desk.ended(first, second)
        assert crew._lanes["x"]._stuck_timer is None
        await crew.stop()

    asyncio.run(scene())


def test_what_is_abandoned_lets_more_code_run_than_there_are_slots():
    deaf = Deaf()

    async def scene():
        desk = Desk()
        tasks = {"d": task_of(deaf.task, name="d", abandon=True)}
        crew = crew_of(desk, tasks, 1, lease=10.0, patience=0.05)
        await crew.start()
        late = desk.claim(crew.workers["x"], "d", timeout=0.02)
        crew.dispatch([late, desk.claim(crew.workers["x"], "d")])
        assert (await desk.ended(late))[0].state == "expired"
        await until(lambda: deaf.live == 2)
        assert crew.stuck == {"x": 0}
        deaf.release.set()
        await crew.stop()

    asyncio.run(scene())


def test_abandon_is_true_or_false():
    with pytest.raises(ConfigError, match="abandon of task 'nothing' must be True or False"):
        task_of(Deaf().task, name="nothing", abandon="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_one_slot_runs_one_call_across_retries_and_explain_says_what_holds_it(engine, tmp_path):
    jobs = Jobs(database(engine, tmp_path), **{**QUICK, "executors": {"default": 1}})
    deaf = Deaf()
    jobs.task(name="hang", timeout="100ms", retries=2, retry_delay="1ms")(deaf.task)

    async def main():
        metrics = Metrics(jobs)
        async with jobs:
            assert jobs.crew is not None
            jobs.crew._patience = 0.1
            dag = Dag("hang")
            dag.add("hang")
            run = await jobs.submit(dag)
            await until(lambda: jobs.crew.stuck == {"default": 1})
            said = await Operations(jobs).explain(f"{run.id}.0")
            assert said.reason == "stuck"
            assert "is past its timeout of 0.1 s for" in said.sentence
            assert "keeps the slot until it ends" in said.sentence
            found = await scrape(metrics)
            assert found["stuck{executor=default}"] == 1
            assert found["busy{executor=default}"] == 1
            assert deaf.calls == 1
            deaf.release.set()
            outcome = await jobs.wait(run, timeout=30)
            assert (outcome.state, deaf.most) == ("completed", 1)
        await metrics.close()

    go(main())


APP = """
import time
from fairlead.jobs import Jobs

jobs = Jobs("sqlite:///{path}/jobs.db", executors={{"ocr": "worker", "default": 1}}, lease="3s", sweep="200ms",
    poll="100ms", stuck_after="100ms")

@jobs.task(executor="ocr", timeout="100ms")
def hang():
    time.sleep(600)

@jobs.task(timeout="100ms")
def hang_here():
    time.sleep(600)
"""
COMMANDS = {
    "hang": [*COMMAND, "--app", "stuck:jobs", "--executor", "ocr", "--slots", "1", "--grace", "0s"],
    "hang_here": [
        COMMAND[0],
        "jobs",
        "serve",
        "--app",
        "stuck:jobs",
        "--http",
        "off",
        "--grace",
        "0s",
    ],
}


@pytest.mark.parametrize("task", COMMANDS)
def test_a_process_with_all_slots_stuck_exits_with_a_sentence_to_be_restarted(task, tmp_path):
    (tmp_path / "stuck.py").write_text(APP.format(path=tmp_path))
    log = tmp_path / "log"

    async def main():
        url = f"sqlite:///{tmp_path}/jobs.db"
        jobs = Jobs(url, executors={"ocr": "worker"}, lease="3s", sweep="200ms", poll="100ms")
        jobs.task(name=task, executor="ocr" if task == "hang" else "default", timeout="100ms")(
            print
        )
        run = await submitted(jobs, task)
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                *COMMANDS[task], cwd=tmp_path, stdout=out, stderr=out
            )
        try:
            if task == "hang":
                jobs.tasks.clear()
                jobs.task(name="other", executor="default")(print)
                await jobs.start()
            async with asyncio.timeout(60):
                assert await process.wait() == 1, log.read_text()
            outcome = await jobs.wait(run, timeout=30)
            assert list(outcome.states.values()) == ["expired"]
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            await jobs.close()

    asyncio.run(main())
    text = log.read_text()
    assert "to be restarted" in text
    assert (
        f"the only slot of executor {'ocr' if task == 'hang' else 'default'} has been held for"
        in text
    )


async def submitted(jobs: Jobs, task: str) -> Any:
    dag = Dag(task)
    dag.add(task)
    return await jobs.submit(dag)
