"""From a server that runs to a report: `fairlead serve`, `fairlead record`, `fairlead simulate`, as users do it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli import main
from tests.gateway.rig import Backend, connected
from tests.server.rig import GATEWAY, begun, document, process, run

GATE = "gateway/default"
SAME = """\
preset: gateway
capacity: 1
classes: {interactive: {reserved_floor: 0, reserved_per_slot: 0}, system: {reserved_floor: 0}}
"""
MORE = SAME.replace("capacity: 1", "capacity: 3")
SCENARIO = "name: The incident\narrivals: [{kind: trace, file: incident.jsonl}]\n"


async def rush(folder: Path) -> None:
    """Serve three requests one after the other: the second that comes, which is bulk, goes last; then record it."""
    async with Backend() as backend:
        gateway = GATEWAY | {
            "upstreams": [{"url": backend.url, "capacity": 1}],
            "tenants": {"trusted_header": "x-tenant-id"},
        }
        settings = {"server": {"listen": "127.0.0.1:0"}, "gateway": gateway}
        (folder / "fairlead.yaml").write_text(json.dumps(settings))  # JSON is YAML
        async with process(folder) as server:
            url = await begun(server)
            links = (await document(url, "/api/v1/overview"))["doors"][0]["links"]
            proxy = links["proxy"]
            async with connected(proxy) as a, connected(proxy) as b, connected(proxy) as c:
                held = None
                for waiting, (client, cls, tenant) in enumerate(
                    [(a, "interactive", "acme"), (b, "bulk", "zeta"), (c, "interactive", "acme")]
                ):
                    headers = [("x-fairlead-priority", cls), ("x-tenant-id", tenant)]
                    client.request("GET", f"/v1/{tenant}/{waiting}", headers)
                    held = held or await backend.arrival()
                    path = f"/api/v1/gates/{GATE}/waiting"
                    while (await document(url, path))["total"] != waiting:
                        pass
                assert held is not None
                for client, path in ((a, "/v1/acme/0"), (c, "/v1/acme/2"), (b, "/v1/zeta/1")):
                    assert held.target == path
                    # So that each takes some of the milliseconds that a loop counts.
                    for _ in range(5):
                        await document(url, "/livez")
                    held.answer()
                    head, _ = await client.response()
                    assert head.status == 200
                    if client is not b:
                        held = await backend.arrival()
            command = ["record", url, "--gate", GATE, "--minutes", "5", "--out", "incident.jsonl"]
            assert await asyncio.to_thread(main, command) == 0
            server.process.terminate()
            assert await server.ended() == 0


def test_what_passed_a_server_is_recorded_and_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FAIRLEAD_TOKEN", raising=False)
    run(lambda: rush(tmp_path))
    assert f"3 tickets of {GATE} are in incident.jsonl." in capsys.readouterr().out
    lines = (tmp_path / "incident.jsonl").read_text().splitlines()
    # As they came, though bulk ended last.
    rows: list[dict[str, Any]] = list(map(json.loads, lines))
    assert [row["class"] for row in rows] == ["interactive", "bulk", "interactive"]
    assert [row["state"] for row in rows] == ["done"] * 3
    waits = [row["started"] - row["t"] for row in rows]
    assert waits[1] > waits[2] > 0

    for name, text in (("scenario", SCENARIO), ("same", SAME), ("more", MORE)):
        (tmp_path / f"{name}.yaml").write_text(text)
    policies = ["--policy", "same.yaml", "--policy", "more.yaml"]
    assert main(["simulate", "scenario.yaml", *policies, "--seeds", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)

    def figure(policy: str, dimension: str, group: str, measure: str) -> float:
        found: float = report["figures"][policy][dimension][group][measure]["mean"]
        return found

    assert set(report["groups"]["class"]) == {"interactive", "bulk"}
    assert set(report["groups"]["tenant"]) == {"header:acme", "header:zeta"}
    for dimension, group, number in (
        ("class", "interactive", 2),
        ("class", "bulk", 1),
        ("tenant", "header:acme", 2),
        ("tenant", "header:zeta", 1),
        ("all", "all", 3),
    ):
        for measure in ("arrived", "done"):
            assert figure("same", dimension, group, measure) == number
    # With the settings it had, everybody waits as he did; with a slot for each, nobody.
    for cls, waited in (("bulk", waits[1]), ("interactive", waits[2])):
        assert figure("same", "class", cls, "wait.max") == pytest.approx(waited, abs=1e-4)
        assert figure("more", "class", cls, "wait.max") == 0
