"""The process behind an executor of kind ray: what an outage of the cluster, its death and ours lead to.

The cluster is a stand-in (`ray_fake.py`), the processes, lines and ports are real; `test_ray_outage.py` has Ray itself.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.cli.worker import executor_of
from fairlead.errors import ConfigError
from fairlead.jobs import Dag, Jobs
from fairlead.jobs.executors.base import spec_of, specs_of
from fairlead.jobs.executors.cluster import CRASHED, FAILED, LOST, ending_of
from fairlead.jobs.executors.ray import RayRunner
from fairlead.jobs.metrics import Metrics
from fairlead.jobs.operating import Operations
from tests.jobs import calls, ray_fake
from tests.jobs.executor_contract import PATIENCE, Rig, gone, run, seen


class Head:
    """A port that accepts connections, or does not."""

    def __init__(self) -> None:
        self.port = 0
        self.server: asyncio.Server | None = None
        self.writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> "Head":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        await asyncio.sleep(0)  # what was aborted is closed with the next turn

    async def start(self) -> None:
        def met(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.writers.append(writer)

        self.server = await asyncio.start_server(met, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        assert self.server is not None
        self.server.close()
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(RayRunner.__init__, "__kwdefaults__", {"app": None, "boot": ray_fake.BOOT})


def rig_of(head: Head, folder: Path, *, slots: int | None = 3, **env: str) -> Rig:
    value = {
        "kind": "ray",
        "address": f"127.0.0.1:{head.port}",
        "runtime_env": {"env_vars": {"folder": str(folder), **env}},
    }
    return Rig(value if slots is None else {**value, "slots": slots}, "plain", kills=True)


def runner_in(rig: Rig) -> RayRunner:
    runner = rig.crew._lanes["x"].runner
    assert isinstance(runner, RayRunner)
    return runner


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.01)


def test_a_head_that_was_started_anew_gets_every_job_and_no_job_has_burnt_anything(fake, tmp_path):
    async def scene():
        async with Head() as head, rig_of(head, tmp_path) as rig:
            first = rig.begin("wait", str(tmp_path / "go"), attempts=1, crashes=1, timeout=60)
            await until(lambda: runner_in(rig)._sent)
            head.stop()
            await until(lambda: runner_in(rig).trouble)
            waiting = rig.begin("give", 1, timeout=0.2)
            assert "is away since" in (rig.crew.troubles["x"] or "")
            assert rig.desk.ending_of(first) is None
            await head.start()
            lost = (await rig.desk.ended(first))[0]
            assert (lost.state, lost.attempts, lost.crashes) == ("retry", 1, 1)
            assert "started anew" in json.loads(lost.error or "")["message"]
            assert lost.delay > 0
            assert (await rig.desk.ended(waiting))[0].state == "completed"
            assert runner_in(rig).trouble is None
            assert len(set((tmp_path / "drivers").read_text().split())) == 2

    run(scene())


def test_the_same_cluster_goes_on_with_what_it_runs_and_clocks_stand_still_while_it_is_away(
    fake, tmp_path, caplog
):
    async def scene():
        async with Head() as head, rig_of(head, tmp_path, same="yes") as rig:
            first = rig.begin("wait", str(tmp_path / "go"), timeout=3.0)
            await until(lambda: runner_in(rig)._sent)
            (call,) = rig.crew._calls.values()
            head.stop()
            await until(lambda: runner_in(rig).trouble)
            await until(lambda: call.timer is None)
            assert 0 < (call.left or 0) <= 3.0
            assert "127.0.0.1" in (runner_in(rig).trouble or "")
            await asyncio.sleep(call.left or 0)  # the clock does not run out for an outage
            assert not call.ended
            await head.start()
            await until(lambda: not runner_in(rig).trouble)
            assert call.timer
            (tmp_path / "go").touch()
            assert (await rig.desk.ended(first))[0].state == "completed"
            assert len((tmp_path / "drivers").read_text().split()) == 1

    run(scene())
    said = [record.getMessage() for record in caplog.records]
    assert sum("is away since" in one for one in said) == 1
    assert sum("is back after" in one for one in said) == 1


def test_a_driver_that_dies_is_started_again_and_its_jobs_are_handed_back(fake, tmp_path):
    async def scene():
        async with Head() as head, rig_of(head, tmp_path) as rig:
            claims = [rig.begin("wait", str(tmp_path / "go")) for _ in range(2)]
            cancelled = rig.begin("wait", str(tmp_path / "go"))
            await until(lambda: len(runner_in(rig)._sent) == 3)
            os.kill(runner_in(rig).driver_pid or 0, signal.SIGSTOP)
            rig.cancel(cancelled)
            os.kill(runner_in(rig).driver_pid or 0, signal.SIGKILL)
            for ending in await rig.desk.ended(*claims):
                assert (ending.state, ending.attempts, ending.crashes) == ("retry", 0, 0)
            assert (await rig.desk.ended(cancelled))[0].state == "cancelled"
            assert (await rig.run("give", 1)).state == "completed"

    run(scene())


def test_a_node_whose_loss_is_attested_counts_for_no_job(fake, tmp_path):
    async def scene():
        async with Head() as head, rig_of(head, tmp_path) as rig:
            ending = await rig.run("give", "LOST", attempts=1, crashes=2)
            assert (ending.state, ending.attempts, ending.crashes) == ("retry", 1, 2)

    run(scene())


def test_what_waits_for_the_cluster_can_be_cancelled_and_drained(fake, tmp_path):
    async def scene():
        async with Head() as head, rig_of(head, tmp_path) as rig:
            head.stop()
            await until(lambda: runner_in(rig).trouble)
            one, other = rig.begin("give", 1), rig.begin("give", 2)
            rig.cancel(one)
            assert (await rig.desk.ended(one))[0].state == "cancelled"
            await rig.crew.drain(0.0)
            assert (await rig.desk.ended(other))[0].state == "retry"

    run(scene())


def test_a_cluster_that_is_away_at_the_start_is_waited_for_if_the_slots_are_known(fake, tmp_path):
    async def scene():
        async with Head() as head:
            head.stop()
            with pytest.raises(ConfigError, match=r"cannot use Ray at .* with slots given"):
                async with rig_of(head, tmp_path, slots=None):
                    pass
            async with rig_of(head, tmp_path) as rig:
                claimed = rig.begin("give", 1, timeout=0.1)
                assert "is away since" in (runner_in(rig).trouble or "")
                await head.start()
                assert (await rig.desk.ended(claimed))[0].state == "completed"

    run(scene())


def test_a_cluster_that_can_never_be_used_is_a_mistake(fake, tmp_path):
    async def scene():
        async with Head() as head:
            with pytest.raises(
                ConfigError, match="executor 'x' has a runtime_env that Ray refuses"
            ):
                async with rig_of(head, tmp_path, refuse="has a runtime_env that Ray refuses"):
                    pass

    run(scene())


PARENT = """
import asyncio, sys
sys.path[:] = {path!r}
from fairlead.jobs import Dag, Jobs
from fairlead.jobs.executors.base import spec_of, specs_of
from fairlead.jobs.executors.ray import RayRunner
from tests.jobs import calls, ray_fake

async def main():
    env = {{"env_vars": {{"folder": {folder!r}}}}}
    value = {{"kind": "ray", "slots": 1, "address": {address!r}, "runtime_env": env}}
    runner = RayRunner(spec_of("x", value), boot=ray_fake.BOOT)
    await runner.start()
    assert "ray" not in sys.modules
    open({folder!r} + "/runs", "w").write(str(runner.driver_pid))
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_the_driver_dies_with_its_parent_and_not_by_a_signal_to_all_processes_of_the_service(
    tmp_path,
):
    async def scene():
        async with Head() as head:
            script = PARENT.format(
                path=sys.path, folder=str(tmp_path), address=f"127.0.0.1:{head.port}"
            )
            parent = subprocess.Popen([sys.executable, "-c", script])  # noqa: ASYNC220
            try:
                await seen(tmp_path / "runs")
                pid = int((tmp_path / "runs").read_text())
                os.kill(pid, signal.SIGTERM)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.3):
                        await gone(pid)
                    raise AssertionError("the driver ended by a signal")
            finally:
                parent.kill()
                parent.wait()
            await gone(pid)

    run(scene())


def test_the_address_is_that_of_the_options_then_that_of_the_environment(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert RayRunner(spec_of("x", "ray"))._address == "10.0.0.1:6379"
    given = spec_of("x", {"kind": "ray", "address": "10.0.0.2:6379"})
    assert RayRunner(given)._address == "10.0.0.2:6379"
    monkeypatch.setenv("RAY_ADDRESS", "")
    assert RayRunner(spec_of("x", "ray"))._address == "local"


def test_ends_are_told_apart_by_rays_own_account():
    exceptions = pytest.importorskip("ray.exceptions")
    for error, how in (
        (exceptions.NodeDiedError("gone"), LOST),
        (exceptions.LocalRayletDiedError(), LOST),
        (ConnectionError("no line"), LOST),
        (exceptions.WorkerCrashedError(), CRASHED),
        (exceptions.OutOfMemoryError("full"), CRASHED),
        (exceptions.RuntimeEnvSetupError("no such package"), FAILED),
        (ValueError("what is this"), FAILED),
    ):
        assert ending_of(error)[0] == how, error


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (7, "runtime_env of executor 'x' must be a mapping"),
        ({"env_vars": {"A": 1}}, "env_vars in the runtime_env of executor 'x' must map names to"),
        ({"env_vars": ["A"]}, "env_vars in the runtime_env"),
        ({"pip": {1, 2}}, "must be what JSON can hold"),
        ({"": "x"}, "must have names"),
    ],
)
def test_a_runtime_env_that_cannot_be_one_is_refused_with_a_sentence(value, said):
    with pytest.raises(ConfigError, match=said):
        spec_of("x", {"kind": "ray", "runtime_env": value})


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("threads", {"address": "auto"}, "--address is for --kind ray"),
        ("local", {"runtime_env": "{}"}, "--runtime-env is for --kind ray"),
        ("ray", {"runtime_env": "{no"}, "--runtime-env is not JSON"),
        ("ray", {"runtime_env": "missing.yaml"}, "--runtime-env cannot be read: missing.yaml"),
        ("ray", {"runtime_env": "list.yaml"}, "runtime_env of executor 'x' must be a mapping"),
    ],
)
def test_a_worker_on_ray_refuses_options_with_a_sentence(
    tmp_path, monkeypatch, kind, options, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.yaml").write_text("[1, 2]")
    given = {"address": None, "runtime_env": None, **options}
    with pytest.raises(ConfigError, match=said):
        specs_of({"x": executor_of(kind, 2, **given)})


def test_a_worker_on_ray_has_an_address_and_a_runtime_environment_from_a_file(tmp_path):
    (tmp_path / "env.yaml").write_text("env_vars: {LEVEL: '1'}")
    value = executor_of("ray", 2, "head:6379", str(tmp_path / "env.yaml"))
    options = specs_of({"x": value})["x"].options
    assert options == {"address": "head:6379", "runtime_env": {"env_vars": {"LEVEL": "1"}}}
    assert executor_of("ray", 2, None, '{"pip": ["x"]}')["runtime_env"] == {"pip": ["x"]}


def test_a_job_that_waits_for_its_cluster_is_explained_and_counted(fake, tmp_path):
    async def scene():
        async with Head() as head:
            env = {"env_vars": {"folder": str(tmp_path)}}
            address = f"127.0.0.1:{head.port}"
            value = {"kind": "ray", "slots": 1, "address": address, "runtime_env": env}
            jobs = Jobs(f"sqlite:///{tmp_path}/jobs.db", executors={"gpu": value}, poll="50ms")
            jobs.task(executor="gpu")(calls.plain_give)
            metrics = Metrics(jobs)
            async with jobs:
                head.stop()
                assert jobs.crew is not None
                await until(lambda: jobs.crew is not None and jobs.crew.troubles["gpu"])
                dag = Dag("d")
                dag.add("plain_give", 1)
                submitted = await jobs.submit(dag)
                await until(lambda: jobs.crew is not None and jobs.crew.running["gpu"])
                said = await Operations(jobs).explain(f"{submitted.id}.0")
                assert said.reason == "cluster_away"
                assert (
                    f"executor 'gpu': its Ray cluster at {address} is away since" in said.sentence
                )
                text = (await metrics.render())[0].decode()
                assert 'fairlead_jobs_local_away{executor="gpu"} 1.0' in text
                await head.start()
                assert (await jobs.wait(submitted, timeout=30)).state == "completed"
            await metrics.close()

    run(scene())
