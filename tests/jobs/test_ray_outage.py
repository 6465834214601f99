"""Ray's head is killed under `jobs serve`, and started again: local jobs go on, and no job on Ray burns an attempt."""

import asyncio
import contextlib
import importlib
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.jobs import Dag

pytest.importorskip("ray")

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.ray]

BIN = Path(sys.executable).parent
APP = """
import time
from fairlead.jobs import Jobs

jobs = Jobs(
    "sqlite:///{folder}/jobs.db",
    executors={{"default": 2, "gpu": {{"kind": "ray", "slots": 2, "address": "{address}", "num_cpus": 1,
                "runtime_env": {{"env_vars": {{"FLAVOR": "sour"}}}}}}}},
    lease="3s", sweep="300ms", poll="100ms",
)

@jobs.task(executor="gpu", timeout="60s")
def hold(path):
    import os, pathlib
    pathlib.Path(path + "." + str(os.getpid())).touch()
    while not pathlib.Path(path).exists():
        time.sleep(0.05)
    return os.environ["FLAVOR"]

@jobs.task
async def local(number):
    return number
"""


class Cluster:
    """A head on a port of this machine, with little memory."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        # The paths of Ray's sockets must be short.
        self.folder = Path(f"/tmp/fairlead-ray-{os.getpid()}-{self.port}")
        self.log = folder / "head.log"

    def start(self) -> None:
        """Start the head; skip the test where Ray cannot start."""
        command = f"""{BIN}/ray start --head --node-ip-address 127.0.0.1 --port {self.port}
            --num-cpus 2 --memory 500000000 --object-store-memory 80000000
            --include-dashboard false --disable-usage-stats --temp-dir {self.folder}"""
        with self.log.open("ab") as out:
            done = subprocess.run(command.split(), stdout=out, stderr=out, timeout=60, check=False)
        if done.returncode:
            pytest.skip(f"Ray cannot start a head here: {self.log.read_text()[-500:]}")

    def find(self) -> list[int]:
        """Return the processes of this cluster: all of them name its folder."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if (
                    entry.name.isdigit()
                    and str(self.folder).encode() in (entry / "cmdline").read_bytes()
                ):
                    found.append(int(entry.name))
        return found

    def kill(self) -> None:
        """Kill gcs_server, raylet and what belongs to them."""
        for pid in self.find():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        self.kill()
        subprocess.run(["rm", "-rf", str(self.folder)], check=False)


@pytest.fixture
def head(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    cluster = Cluster(tmp_path)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()


async def until(condition: Callable[[], object], log: Path) -> None:
    for _ in range(600):
        if condition():
            return
        await asyncio.sleep(0.05)
    pytest.fail(said(log))


def said(log: Path) -> str:
    return log.read_text()


def test_the_loss_of_the_head_ends_neither_serve_nor_a_job(head, tmp_path, monkeypatch):
    (tmp_path / "ray_outage_app.py").write_text(
        textwrap.dedent(APP.format(folder=tmp_path, address=head.address))
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "serve.log"
    command = [
        str(BIN / "fairlead"),
        "jobs",
        "serve",
        "--app",
        "ray_outage_app:jobs",
        "--http",
        "off",
    ]

    async def scene(serve):
        app = importlib.import_module("ray_outage_app")
        jobs = app.jobs

        dag = Dag("held")
        for _ in range(4):
            dag.add(app.hold, str(tmp_path / "go"))
        run = await jobs.submit(dag)
        await until(lambda: len(list(tmp_path.glob("go.*"))) == 2, log)
        head.kill()
        await until(lambda: "is away since" in log.read_text(), log)
        beside = Dag("beside")
        beside.add(app.local, 7)
        outcome = await jobs.wait(await jobs.submit(beside), timeout=30)
        assert outcome.state == "completed"
        head.start()
        back = time.monotonic()
        (tmp_path / "go").touch()
        outcome = await jobs.wait(run, timeout=40)
        assert outcome.state == "completed", log.read_text()
        assert set(outcome.results.values()) == {"sour"}
        rows = await (await jobs.store()).jobs(int(run.id))
        assert {(row.state, row.attempts, row.crashes) for row in rows} == {("completed", 0, 0)}
        assert serve.poll() is None
        print(f"all ended {time.monotonic() - back:.1f} s after the head's return")
        assert re.search(r"is back after", log.read_text())
        await jobs.close()

    with log.open("wb") as out:
        serve = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        asyncio.run(scene(serve))
        serve.send_signal(signal.SIGTERM)
        assert serve.wait(30) == 0, log.read_text()
    finally:
        serve.kill()
        serve.wait()
