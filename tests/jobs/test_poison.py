"""A poison job beside innocent jobs in a worker: real processes, killed for real, restarted as by a supervisor."""

import asyncio
import importlib
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fairlead.jobs import Dag, Jobs
from fairlead.jobs.metrics import Metrics
from tests.jobs.operations_rig import database

COMMAND = (str(Path(sys.executable).with_name("fairlead")), "worker")
APP = """
import os, signal, time
from pathlib import Path
from fairlead.jobs import Jobs

jobs = Jobs({url!r}, executors={{"ocr": "worker"}}, lease="1500ms", sweep="200ms", poll="100ms")

@jobs.task(executor="ocr")
def patient(folder, name):
    (Path(folder) / f"{{name}}.began").touch()
    while not (Path(folder) / "go").exists():
        time.sleep(0.01)
    return name

@jobs.task(executor="ocr")
def poison(folder):
    while len(list(Path(folder).glob("*.began"))) < 3:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
"""


class Supervisor:
    """Keeps one worker process running."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.deaths = -1
        self._stopping = False
        self._process: subprocess.Popen[bytes] | None = None

    async def watch(self) -> None:
        while not self._stopping:
            if self._process is None or self._process.poll() is not None:
                self._start()
            await asyncio.sleep(0.02)

    def _start(self) -> None:
        self.deaths += 1
        with (self.folder / f"worker-{self.deaths}.log").open("wb") as out:
            self._process = subprocess.Popen(
                [*COMMAND, "--app", "poisoned:jobs", "--executor", "ocr", "--slots", "4"],
                cwd=self.folder,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def stop(self) -> None:
        self._stopping = True
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def one(task: str, *args: str) -> Dag:
    dag = Dag(f"{task} {args[-1]}")
    dag.add(task, *args).options(name=args[-1] if task == "patient" else task)
    return dag


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_a_poison_job_is_quarantined_and_its_neighbours_complete(engine, tmp_path, monkeypatch):
    url = database(engine, tmp_path)
    (tmp_path / "poisoned.py").write_text(textwrap.dedent(APP.format(url=url)))
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("poisoned", None)
    jobs: Jobs = importlib.import_module("poisoned").jobs
    supervisor = Supervisor(tmp_path)

    async def scene() -> None:
        metrics = Metrics(jobs)
        async with jobs:
            folder = str(tmp_path)
            names = [f"innocent-{number}" for number in range(3)]
            innocent = [await jobs.submit(one("patient", folder, name)) for name in names]
            poison = await jobs.submit(one("poison", folder))
            watching = asyncio.create_task(supervisor.watch())
            try:
                condemned = await jobs.wait(poison, timeout=60)
                (tmp_path / "go").touch()
                ends = [await jobs.wait(run, timeout=60) for run in innocent]
            finally:
                supervisor.stop()
                await watching
            assert [end.state for end in ends] == ["completed"] * 3
            assert supervisor.deaths == 1, "after the first death each suspect had its own process"
            assert condemned.state == "failed"
            error = condemned.errors["poison"]
            assert error.type == "Quarantined"
            assert "crashed 3 times within 60 min, each time alone in its process" in error
            assert "killed by SIGKILL" in error
            store = await jobs.store()
            ids = [(int(run.id), 0) for run in (*innocent, poison)]
            counted = await store.deaths(ids, 3600.0)
            assert counted == {one: (3 if one == ids[-1] else 0, 1) for one in ids}
            rows = [(await store.jobs(dag))[0] for dag, _ in ids]
            assert [(row.attempts, row.crashes) for row in rows] == [(0, 0)] * 3 + [(0, 3)]
            text = (await metrics.render())[0].decode()
            assert "fairlead_jobs_company_deaths_total 4.0" in text
        await metrics.close()

    try:
        asyncio.run(scene())
    finally:
        supervisor.stop()
