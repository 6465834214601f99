"""Attacks on who may do what: names that would be imported."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from fairlead.cli import main
from fairlead.config import shown
from fairlead.errors import ConfigError
from fairlead.jobs.operating import Operations
from fairlead.jobs.planners import BUILT_IN
from fairlead.server.loading import STRANGE_APP, load
from fairlead.server.service import Server
from fairlead.sim import read_policy
from tests.gateway.rig import until
from tests.jobs.operations_rig import HELLO, go, small
from tests.server.rig import HERE, Client, configured, run, served

EVIL = """\
from pathlib import Path
Path(__file__).with_suffix(".imported").touch()
class Planner:
    def plan(self, jobs, slots, active_dags, recently_activated_dags=frozenset()): return jobs
"""
NAMES = ("evil_planners:Planner", "evil_planners.Planner", "evil_planners", "this:x", "os:system")


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that any import would find, and the sign that it was imported."""
    (tmp_path / "evil_planners.py").write_text(EVIL)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "this", raising=False)
    return tmp_path / "evil_planners.imported"


def unimported(sign: Path) -> None:
    assert not sign.exists()
    assert not {"evil_planners", "this"} & sys.modules.keys()


def test_no_planner_named_over_http_is_imported(evil: Path, tmp_path: Path):
    async def test() -> None:
        async with served(configured(tmp_path)) as client:
            jobs: Any = next(door for door in client.server.doors if door.kind == "jobs")
            own = f"http://{jobs.server.http.address}/v1/planner"
            for name in NAMES:
                body = {"planner": name}
                status, said = await client.ask("PUT", "/api/v1/jobs/planner", body)
                assert (status, f"planner {shown(name)} is not known" in said["detail"]) == (
                    422,
                    True,
                )
                async with client.session.put(own, json=body) as answer:
                    assert answer.status == 422
                text = f"jobs: {{database: 'sqlite:///x.db', planner: '{name}'}}"
                status, said = await client.ask("POST", "/api/v1/config/validate", {"text": text})
                assert (status, len(said["problems"])) == (200, 1), said
            assert (await client.get("/api/v1/jobs/planner"))["planner"] in BUILT_IN
        unimported(evil)

    run(test)


def test_no_app_named_over_http_is_imported_now_or_at_the_next_start(evil: Path, tmp_path: Path):
    file = tmp_path / "fairlead.yaml"
    file.write_text(f"server: {{listen: '{HERE}'}}\n")

    async def test() -> None:
        async with Server(load(str(file)), path=str(file)) as server, ClientSession() as session:
            client = Client(server, session)
            for door in ("jobs", "streams"):
                body = {"text": f"{file.read_text()}{door}: {{app: 'evil_planners:Planner'}}\n"}
                _, said = await client.ask("POST", "/api/v1/config/validate", body)
                (problem,) = said["problems"]
                assert (problem["path"], problem["message"]) == (f"{door}.app", STRANGE_APP)
                assert (await client.ask("PUT", "/api/v1/config", body))[0] == 422
        assert "evil_planners" not in file.read_text()
        unimported(evil)

    run(test)


def test_no_planner_of_a_replay_is_imported(evil: Path, tmp_path: Path):
    document = {"preset": "jobs", "executors": {"default": 1}}
    for name in NAMES:
        with pytest.raises(ConfigError, match="is not known here"):
            read_policy(document).with_settings({"planner": name})
    unimported(evil)


def test_no_planner_named_in_the_database_or_on_the_command_line_is_imported(
    evil: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
):
    url = f"sqlite:///{tmp_path}/jobs.db"

    def logged(text: str) -> bool:
        return text in caplog.text

    async def test() -> None:
        jobs = small(url)
        async with jobs:
            store = await jobs.store()
            for name in NAMES:
                await store.set_setting("planner", name)
                jobs.scheduler.look_soon()  # type: ignore[union-attr]
                await until(partial(logged, f"{shown(name)} is not known here"))
                run_id = (await jobs.submit(HELLO)).id
                assert (await jobs.wait(run_id)).state == "completed"
                await Operations(jobs).explain(f"{run_id}.0")

    go(test())
    for name in NAMES:
        assert main(["jobs", "planner", "set", name, "--db", url]) == 2
        assert "is not known here" in capsys.readouterr().err
    unimported(evil)


def test_a_planner_of_the_table_is_set_by_its_name_from_anywhere(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/jobs.db"
    asked: list[int] = []

    class Mine:
        def plan(self, jobs: Any, slots: Any, active: Any, recent: Any = ()) -> Any:
            asked.append(len(jobs))
            return jobs

    async def test() -> None:
        jobs = small(url, planners={"mine": Mine})
        async with jobs:
            assert (await Operations(jobs).set_planner("mine"))["planner"] == "mine"
            await jobs.wait(await jobs.submit(HELLO))
            assert asked

    go(test())
