"""Overrides are listed, reset, and end as documented; each change leaves an entry with caller, before and after."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from fairlead.errors import ConfigError
from fairlead.jobs.graph import Dag
from fairlead.server.api import ControlApi
from fairlead.server.hosted_gateway import HostedGateway
from fairlead.server.hosted_jobs import HostedJobs
from fairlead.server.loading import load_mapping
from fairlead.serving.auditing import KEPT, Audit, Note
from fairlead.serving.routes import READING, Application
from tests.gateway.rig import until
from tests.server.rig import HERE, TOKENS, Client, configured, run, served

GATE = "/api/v1/gates/gateway%2Fdefault/adjust"
POINT = "/api/v1/gates/flows%2Fcheckout/adjust"
ACME = "header:acme"


async def overrides(client: Client) -> dict[str, Any]:
    found = (await client.get("/api/v1/overrides"))["items"]
    return {one["id"]: one for one in found}


async def change(client: Client, path: str, *args: Any, part: str, verb: str) -> None:
    body = {"part": part, "verb": verb, "args": list(args)}
    assert (await client.ask("POST", path, body))[0] == 200


async def reset(client: Client, override: str) -> Any:
    path = "/api/v1/overrides/" + override.replace("/", "%2F")
    return await client.ask("DELETE", path)


def test_each_kind_is_listed_with_what_is_configured_and_can_be_reset(tmp_path):
    async def main() -> None:
        async with served(configured(tmp_path)) as client:
            assert await overrides(client) == {}
            await change(client, GATE, 3, part="slots", verb="resize")
            await change(client, GATE, ACME, 5, part="bulk", verb="set_weight")
            await change(client, POINT, 7, part="concurrency", verb="resize")
            door = client.server.door(HostedJobs)
            await until(lambda: door.summary() is not None)
            await client.ask("PUT", "/api/v1/jobs/planner", {"planner": "SJFSExecutionPlanner"})
            found = await overrides(client)
            told = {key: (one["configured"], one["value"]) for key, one in found.items()}
            weights = {"bulk": 5.0, "default": 1.0, "interactive": 1.0, "system": 1.0}
            assert told["gateway/default:resize"] == (None, 3)
            assert told[f"gateway/default:set_weight:{ACME}"] == (1.0, weights)
            assert told["flows/checkout:resize"] == (2, 7)
            assert told["jobs:planner"][1] == "SJFSExecutionPlanner"
            assert all(one["by"] == "local" and one["since"] for one in found.values())

            client.server.sample()
            snapshot = (await client.get("/api/v1/history?minutes=1"))["snapshots"][-1]
            marked = [one["id"] for gate in snapshot["gates"] for one in gate["overrides"]]
            assert sorted(marked) == sorted(one for one in found if not one.startswith("jobs"))

            for override in found:
                status, said = await reset(client, override)
                assert (status, said["reset"]) == (200, override)
            assert await overrides(client) == {}
            assert client.server.view("flows/checkout").total() == 2
            assert (await reset(client, "flows/checkout:resize"))[0] == 404

    run(main)


def test_a_value_set_to_what_is_configured_is_no_override(tmp_path):
    async def main() -> None:
        async with served(configured(tmp_path)) as client:
            await change(client, POINT, 7, part="concurrency", verb="resize")
            await change(client, POINT, 2, part="concurrency", verb="resize")
            assert await overrides(client) == {}

    run(main)


def test_a_configuration_that_is_applied_again_ends_what_it_is_said_to_end(tmp_path):
    async def main() -> None:
        said = configured(tmp_path)
        async with served(said) as client:
            await change(client, GATE, 3, part="slots", verb="resize")
            await change(client, GATE, ACME, 5, part="bulk", verb="set_weight")
            await change(client, POINT, 7, part="concurrency", verb="resize")
            before = await overrides(client)
            client.server.retune(load_mapping(said))
            after = await overrides(client)
            assert list(after) == ["gateway/default:resize"]
            assert "keeps it" in after["gateway/default:resize"]["ends"]
            for key in before.keys() - after.keys():
                assert "when the configuration is applied again" in before[key]["ends"]
            trail = (await client.get("/api/v1/audit"))["items"]
            assert trail[0]["caller"] == "the configuration file"

    run(main)


def test_paused_runs_and_a_stored_planner_outlive_a_restart(tmp_path):
    async def main() -> None:
        said = configured(tmp_path)
        async with served(said) as client:
            door = client.server.door(HostedJobs)
            await until(lambda: door.summary() is not None)
            await client.ask("PUT", "/api/v1/jobs/planner", {"planner": "SJFSExecutionPlanner"})
            door.jobs.task(name="work")(lambda: None)
            dag = Dag("later")
            dag.add("work")
            found = await door.jobs.submit(dag, start_at="1h")
            async with client.session.post(
                f"{door.links()['http']}/v1/runs/{found.id}/pause"
            ) as answer:
                assert answer.status == 200
            trail = (await client.get("/api/v1/audit"))["items"]
            assert trail[0]["request"] == f"POST /v1/runs/{found.id}/pause"
        async with served(said) as client:
            ids = await overrides(client)
            assert sorted(ids) == ["jobs:planner", f"jobs:run:{found.id}:pause"]
            for override in ids:
                assert (await reset(client, override))[0] == 200
            assert await overrides(client) == {}

    run(main)


def test_a_trail_has_caller_what_when_before_and_after_newest_first(tmp_path):
    async def main() -> None:
        path = tmp_path / "audit.jsonl"
        server = {"listen": HERE, "tokens": TOKENS, "audit_log": str(path)}
        async with served(configured(tmp_path, server=server)) as client:
            body: dict[str, Any] = {"part": "concurrency", "verb": "resize"}
            for slots in (7, 5):
                body["args"] = [slots]
                await client.ask("POST", POINT, body, token="operator-secret")
            await client.ask("POST", POINT, body, token="viewer-secret")  # refused: no change
            await client.ask("POST", POINT, body | {"args": ["x"]}, token="operator-secret")
            found = await client.get("/api/v1/audit?limit=10", token="viewer-secret")
            told = [(one["caller"], one["before"], one["after"]) for one in found["items"]]
            assert told == [("the-operator", 7, 5), ("the-operator", 2, 7)]
            assert found["items"][0]["what"] == "adjusted flows/checkout: concurrency.resize(5,)"
            assert client.server.started_at <= found["items"][0]["t"]
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            assert lines == found["items"][::-1]

    run(main)


def test_an_audit_log_that_cannot_be_written_is_refused_at_the_start(tmp_path):
    with pytest.raises(ConfigError, match=r"audit_log: .*cannot be written"):
        Audit(str(tmp_path / "no" / "such" / "folder")).open()
    audit = Audit(str(tmp_path))
    audit.add("ann", Note("resized"), request="POST /x")  # a folder: lost, counted, and logged
    assert (audit.lost, len(audit.entries())) == (1, 1)


def test_a_file_that_others_could_read_is_made_private(tmp_path):
    path = tmp_path / "audit.jsonl"
    path.write_text("")
    path.chmod(0o644)
    Audit(str(path)).open()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_trail_in_memory_is_bounded():
    audit = Audit()
    for number in range(KEPT + 10):
        audit.add("ann", Note(str(number)), request="POST /x")
    assert len(audit.entries()) == KEPT
    assert audit.entries(1)[0].what == str(KEPT + 9)


# Each route that changes something, with a request that it carries out; a new one without an entry here fails.
CHANGES_NOTHING = {"/api/v1/config/validate", "/api/v1/whatif"}


async def requests_of(client: Client, folder: Path) -> dict[tuple[str, str], Any]:
    door = client.server.door(HostedJobs)
    await until(lambda: door.summary() is not None)
    door.jobs.task(name="work")(lambda: None)
    runs = []
    for _ in range(3):
        dag = Dag("later")
        dag.add("work")
        runs.append((await door.jobs.submit(dag, start_at="1h")).id)
    await door.jobs.cancel(runs[2])
    text = (folder / "fairlead.yaml").read_text()
    point = {"part": "concurrency", "verb": "resize", "args": [9]}
    return {
        ("POST", "/api/v1/gates/{id:path}/adjust"): (POINT, point),
        ("DELETE", "/api/v1/overrides/{id:path}"): (
            "/api/v1/overrides/flows%2Fcheckout:resize",
            None,
        ),
        ("POST", "/api/v1/jobs/runs/{run}/sla"): (
            f"/api/v1/jobs/runs/{runs[0]}/sla",
            {"soft": "1h"},
        ),
        ("POST", "/api/v1/jobs/runs/{run}/cancel"): (f"/api/v1/jobs/runs/{runs[0]}/cancel", {}),
        ("POST", "/api/v1/jobs/runs/{run}/retry"): (f"/api/v1/jobs/runs/{runs[0]}/retry", {}),
        ("PUT", "/api/v1/jobs/planner"): (
            "/api/v1/jobs/planner",
            {"planner": "SJFSExecutionPlanner"},
        ),
        ("PUT", "/api/v1/config"): ("/api/v1/config", {"text": text}),
    }


def changing(app: ControlApi) -> set[tuple[str, str]]:
    return {
        (deed.method, deed.path)
        for deed in app.deeds
        if deed.method not in READING and deed.path not in CHANGES_NOTHING
    }


def test_every_route_of_the_control_api_that_changes_something_leaves_an_entry(tmp_path):
    async def main() -> None:
        said = configured(tmp_path)
        (tmp_path / "fairlead.yaml").write_text(json.dumps(said))
        async with served(said, path=str(tmp_path / "fairlead.yaml")) as client:
            requests = await requests_of(client, tmp_path)
            assert requests.keys() == changing(client.server.api)
            unchanged = {d.path for d in client.server.api.deeds if not d.changes}
            assert unchanged == CHANGES_NOTHING
            for (method, _), (path, body) in requests.items():
                before = len(client.server.audit.entries())
                status, answered = await client.ask(method, path, body)
                assert status == 200, (path, answered)
                entries = client.server.audit.entries()
                assert len(entries) == before + 1, path
                assert entries[0].request.startswith(method)
                assert entries[0].what != entries[0].request, f"{path}: no handler described it"
                assert entries[0].before != entries[0].after or "config" in path, path

    run(main)


def test_every_route_of_the_admin_port_that_changes_something_leaves_an_entry(tmp_path):
    async def main() -> None:
        async with served(configured(tmp_path)) as client:
            gateway = client.server.door(HostedGateway).gateway
            worker = {"url": "http://127.0.0.1:9", "capacity": 2}
            requests = {
                ("POST", "/workers"): ("/workers", worker),
                ("DELETE", "/workers"): ("/workers?url=http://127.0.0.1:9", None),
            }
            table = gateway.admin.routes._plain
            mutating = {(m, p) for p, methods in table.items() for m in methods} - {
                (m, p) for p in table for m in READING
            }
            assert requests.keys() == mutating
            for (method, _), (path, body) in requests.items():
                url = gateway.admin_listener.url + path
                async with client.session.request(method, url, json=body) as answer:
                    assert answer.status < 300, await answer.text()
                entry = client.server.audit.entries()[0]
                assert entry.request == f"{method} /workers"
                assert entry.before != entry.after
                assert "worker http://127.0.0.1:9" in entry.what

    run(main)


def test_a_port_that_forgets_the_trail_is_caught(tmp_path, monkeypatch):
    monkeypatch.setattr(Application, "_record", lambda self, scope, given: None)
    with pytest.raises(AssertionError):
        test_every_route_of_the_control_api_that_changes_something_leaves_an_entry(tmp_path)
