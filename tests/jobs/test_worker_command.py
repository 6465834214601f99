"""`fairlead worker`: another process that serves an executor, ended by signals, frozen and thawed."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fairlead.jobs import Dag, Jobs
from tests.jobs.executor_contract import gone, seen

COMMAND = (str(Path(sys.executable).with_name("fairlead")), "worker")
APP = """
import os, time
from pathlib import Path
from fairlead.jobs import Jobs, current_job

jobs = Jobs("sqlite:///{path}/jobs.db", executors={{"ocr": "worker"}}, lease="1500ms", sweep="300ms", poll="100ms")

@jobs.task(executor="ocr")
def give(value):
    return value

@jobs.task(executor="ocr")
async def wait_for(folder, name):
    import asyncio
    me = Path(folder) / f"{{os.getpid()}}.runs"
    me.write_text(str(current_job().attempt))
    while not (Path(folder) / name).exists():
        await asyncio.sleep(0.01)
    return os.getpid()

@jobs.task(executor="ocr", abandon=True)
def deaf(folder):
    (Path(folder) / f"{{os.getpid()}}.runs").write_text(str(current_job().attempt))
    time.sleep(60)
"""


class Worker:
    """A worker process."""

    def __init__(self, folder: Path, *args: str) -> None:
        self.log = folder / f"worker-{len(list(folder.glob('worker-*')))}.log"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [*COMMAND, "--app", "app:jobs", *args],
                cwd=folder,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    async def said(self, words: str) -> None:
        async with asyncio.timeout(30):
            while words not in self.log.read_text():
                assert self.process.poll() is None, self.log.read_text()
                await asyncio.sleep(0.02)

    async def ended(self) -> int:
        async with asyncio.timeout(30):
            while self.process.poll() is None:  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(0.02)
        return self.process.returncode


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "app.py").write_text(textwrap.dedent(APP.format(path=tmp_path)))
    return tmp_path


@pytest.fixture
def start(folder):
    started: list[Worker] = []

    def start(*args: str) -> Worker:
        started.append(Worker(folder, *args))
        return started[-1]

    yield start
    for worker in started:
        if worker.process.poll() is None:
            worker.process.send_signal(signal.SIGCONT)
            worker.process.kill()
        worker.process.wait()


def jobs_of(folder: Path) -> Jobs:
    sys.modules.pop("app", None)
    sys.path.insert(0, str(folder))
    try:
        import app  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(folder))
    jobs: Jobs = app.jobs
    return jobs


def one(jobs: Jobs, task: str, *args: object) -> Dag:
    dag = Dag("one")
    dag.add(jobs.tasks[task].fn, *args)
    return dag


def runs_of(folder: Path) -> dict[int, str]:
    return {int(path.stem): path.read_text() for path in folder.glob("*.runs")}


async def until(said, timeout=30.0):
    async with asyncio.timeout(timeout):
        while not said():  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(0.02)


def test_a_worker_runs_jobs_and_a_signal_ends_it(folder, start):
    async def scene():
        worker = start("--executor", "ocr", "--slots", "3", "--name", "w1")
        await worker.said("serves executor ocr with 3 slots")
        async with jobs_of(folder) as jobs:
            run = await jobs.submit(one(jobs, "give", {"a": [1, "ü"]}))
            outcome = await jobs.wait(run, timeout=20)
            assert outcome.state == "completed", outcome
            assert list(outcome.results.values()) == [{"a": [1, "ü"]}]
            store = await jobs.store()
            async with asyncio.timeout(20):
                while "give" not in await store.estimates():  # noqa: ASYNC110 - the worker tells
                    await asyncio.sleep(0.05)
            worker.process.send_signal(signal.SIGTERM)
            assert await worker.ended() == 0
            assert not [row for row in await store.workers() if row.name == "w1"]

    asyncio.run(scene())


def test_a_second_signal_hurries_and_what_ran_is_run_elsewhere_with_no_attempt_burnt(folder, start):
    async def scene():
        first = start("--executor", "ocr", "--grace", "60s")
        async with jobs_of(folder) as jobs:
            run = await jobs.submit(one(jobs, "deaf", str(folder)))
            await until(lambda: first.pid in runs_of(folder))
            first.process.send_signal(signal.SIGTERM)
            await first.said("no more jobs are taken")
            second = start("--executor", "ocr")
            await second.said("serves executor ocr")
            assert list(runs_of(folder)) == [first.pid]
            first.process.send_signal(signal.SIGTERM)
            assert await first.ended() == 0
            await until(lambda: second.pid in runs_of(folder))
            assert set(runs_of(folder).values()) == {"1"}
            await jobs.cancel(run)
            assert (await jobs.wait(run, timeout=20)).state == "cancelled"

    asyncio.run(scene())


def test_a_frozen_worker_is_replaced_and_its_late_result_refused(folder, start):
    async def scene():
        frozen = start("--executor", "ocr", "--slots", "1", "--name", "frozen")
        async with jobs_of(folder) as jobs:
            run = await jobs.submit(one(jobs, "wait_for", str(folder), "go"))
            await until(lambda: frozen.pid in runs_of(folder))
            frozen.process.send_signal(signal.SIGSTOP)
            other = start("--executor", "ocr", "--slots", "1", "--name", "other")
            await until(lambda: other.pid in runs_of(folder))
            frozen.process.send_signal(signal.SIGCONT)
            await frozen.said("has lost its lease")
            await frozen.said("is served again")
            (folder / "go").touch()
            outcome = await jobs.wait(run, timeout=20)
            assert list(outcome.results.values()) == [other.pid]
            (job,) = await (await jobs.store()).jobs(int(run.id))
            assert (job.state, job.attempts, job.crashes) == ("completed", 0, 1)
            # It works again, under its new number.
            other.process.send_signal(signal.SIGTERM)
            assert await other.ended() == 0
            run = await jobs.submit(one(jobs, "wait_for", str(folder), "go"))
            outcome = await jobs.wait(run, timeout=20)
            assert list(outcome.results.values()) == [frozen.pid]

    asyncio.run(scene())


def test_a_worker_that_is_killed_is_replaced(folder, start):
    async def scene():
        killed = start("--executor", "ocr", "--kind", "processes", "--slots", "1")
        async with jobs_of(folder) as jobs:
            run = await jobs.submit(one(jobs, "wait_for", str(folder), "go"))
            await until(lambda: runs_of(folder))
            (child,) = runs_of(folder)
            killed.process.kill()
            await gone(child)
            other = start("--executor", "ocr", "--slots", "1")
            await until(lambda: other.pid in runs_of(folder))
            (folder / "go").touch()
            outcome = await jobs.wait(run, timeout=20)
            assert list(outcome.results.values()) == [other.pid]

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "--app module:jobs"),
        (["--app", "nowhere:jobs"], "no module 'nowhere'"),
        (["--app", "app:missing"], "no 'missing'"),
        (["--app", "app"], "module:name"),
        (["--app", "app:jobs", "--slots", "0"], "slots of executor 'ocr'"),
        (["--app", "app:jobs", "--kind", "magic"], "kind of executor 'ocr'"),
        (["--app", "app:jobs", "--kind", "worker"], "--kind must be"),
        (["--app", "app:jobs", "--executor", "a b"], "name of an executor"),
        (["--app", "app:jobs", "--grace", "30"], "--grace needs a unit"),
    ],
)
def test_mistakes_are_told_in_one_line(folder, args, said):
    done = subprocess.run(
        [*COMMAND, *args],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        env={key: value for key, value in os.environ.items() if not key.startswith("FAIRLEAD_")},
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "Traceback" not in done.stderr


def test_the_signal_is_heard_before_anything_is_served(folder, start):
    """One that comes while it starts ends it too."""

    async def scene():
        worker = start("--executor", "ocr")
        await seen(folder / "jobs.db")
        worker.process.send_signal(signal.SIGTERM)
        assert await worker.ended() == 0

    asyncio.run(scene())
