"""Ray, held to the contract of executors, on one small cluster for all of these tests."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fairlead.errors import ConfigError
from fairlead.jobs.executors.base import spec_of
from tests.jobs.executor_contract import *  # noqa: F403
from tests.jobs.executor_contract import Rig, run, seen

ray = pytest.importorskip("ray")

# What Ray and its dependencies warn of is theirs.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.ray]


@pytest.fixture(scope="module")
def cluster():
    """A cluster started by a runner of ours, which the others find and leave running."""
    from fairlead.jobs.executors.ray import RayRunner

    with pytest.MonkeyPatch.context() as patch:
        # A cluster with a token would answer the process alone that has started it.
        patch.setenv("RAY_AUTH_MODE", "disabled")
        yield from _cluster(RayRunner(spec_of("r", {"kind": "ray", "slots": 4})))


def _cluster(runner):
    before = signal.getsignal(signal.SIGTERM)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(runner.start())
    assert signal.getsignal(signal.SIGTERM) is before, "Ray must not take our signals"
    assert runner.address
    pid = runner.driver_pid
    yield runner.address
    loop.run_until_complete(runner.close())
    loop.close()
    assert not ray.is_initialized()
    assert not group_of(pid), "a cluster of ours ends with us"


def group_of(pid: int | None) -> list[int]:
    """The processes of a process group."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == pid and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def rig_of(cluster: str, manner: str, **options) -> Rig:
    value = {"kind": "ray", "slots": 3, "address": cluster, "num_cpus": 0.5, **options}
    return Rig(value, manner, kills=True)


@pytest.fixture
def rig(cluster):
    return rig_of(cluster, "plain")


def test_coroutines_get_a_loop_there(cluster, tmp_path):
    rig = rig_of(cluster, "async")

    async def scene():
        async with rig:
            assert json.loads((await rig.run("about", dag=5, node=1)).result or "")[0] == "5.1"
            assert (await rig.run("fail", "CancelledError")).state == "failed"
            claimed = rig.begin("hang", str(tmp_path))
            await seen(tmp_path / "runs")
            rig.cancel(claimed)
            assert (await rig.desk.ended(claimed))[0].state == "cancelled"

    run(scene())


def test_two_hundred_jobs_with_three_slots_never_exceed_three(rig):
    async def scene():
        async with rig:
            claims = [rig.claim("span", 0.005) for _ in range(200)]
            rig.crew.dispatch(claims)
            ends = await rig.desk.ended(*claims, timeout=60)
            spans = [json.loads(ending.result or "") for ending in ends]
            marks = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
            most = now = 0
            for _, step in marks:
                now += step
                most = max(most, now)
            assert 2 <= most <= 3

    run(scene())


def test_slots_are_the_cpus_of_the_cluster_if_nobody_says(cluster):
    async def scene():
        async with Rig({"address": cluster}, "plain", kills=True) as rig:
            assert rig.crew.slots == {"x": max(4, os.cpu_count() or 1)}

    run(scene())


def test_a_job_that_waits_for_resources_is_stopped_too(cluster):
    rig = rig_of(cluster, "plain", resources={"unobtainium": 1})

    async def scene():
        async with rig:
            ending = await rig.run("give", 1, timeout=0.5)
            assert ending.state == "expired"
            assert rig.crew.running == {"x": 0}

    run(scene())


def test_a_lost_lease_kills_what_runs_though_the_loop_stands_still(cluster, tmp_path):
    rig = rig_of(cluster, "plain")
    rig.options["lease"] = 2.0

    async def scene():
        async with rig:
            rig.begin("hang", str(tmp_path))
            await seen(tmp_path / "runs")
            pid = int((tmp_path / "runs").read_text())
            died: list[float] = []

            def look() -> None:
                until = time.monotonic() + 10
                while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
                    time.sleep(0.005)
                died.append(time.monotonic())

            watcher = threading.Thread(target=look)
            watcher.start()
            rig.desk.away = True
            last = rig.desk.beats[-1]
            time.sleep(2.5)  # noqa: ASYNC251 - that is the point
            watcher.join()
            assert died[0] - last < 2.0
            rig.desk.away = False

    run(scene())


SERVICE = """
import asyncio, signal, sys
sys.path[:] = {path!r}
from fairlead.jobs import Dag, Jobs
from tests.jobs.calls import plain_give, plain_die_once

jobs = Jobs("sqlite:///{folder}/jobs.db", executors={{"r": {{"kind": "ray", "slots": 2, "address": {address!r}}}}})
give = jobs.task(executor="r")(plain_give)
die_once = jobs.task(executor="r")(plain_die_once)

async def main():
    before = signal.getsignal(signal.SIGTERM)
    async with jobs:
        assert signal.getsignal(signal.SIGTERM) is before
        dag = Dag("d")
        first = dag.add(die_once, "{folder}/died")
        dag.add(give, [first, 2]).options(name="last")
        outcome = await jobs.wait(await jobs.submit(dag), timeout=60)
        print(outcome.state, outcome.results["last"])

asyncio.run(main())
"""


def test_a_service_uses_a_running_cluster_by_its_address(cluster, tmp_path):
    script = tmp_path / "service.py"
    script.write_text(SERVICE.format(path=sys.path, folder=tmp_path, address=cluster))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=100, check=False
    )
    # Ray itself tells of the worker that died, and cannot be told not to.
    assert done.stdout.splitlines()[-1] == "completed [[['alive', 2]], {}]", done.stderr
    assert done.returncode == 0


def test_a_cluster_that_is_not_there_is_a_mistake_that_names_the_executor():
    from fairlead.jobs.executors.ray import RayRunner

    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"

    async def scene():
        runner = RayRunner(spec_of("gpu", {"kind": "ray", "address": address}))
        with pytest.raises(ConfigError, match=rf"'gpu' cannot use Ray at '{address}'.*refused"):
            await runner.start()
        await runner.close()

    run(scene())
