"""The control API over real sockets: what each path tells, what it refuses, and that nothing changed then."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from fairlead.jobs import Dag
from fairlead.server.fairness import Fairness
from fairlead.server.snapshots import gate_document
from tests.server.rig import configured, run, served

SNAPSHOT_GATE = {"id", "door", "slots", "reserved", "classes", "tenants", "totals"}
BULK = {"x-fairlead-priority": "bulk"}


async def asked(client: Any, count: int) -> None:
    """Send requests through the gateway, and wait for their answers."""
    proxy = client.server.doors[0].links()["proxy"]

    async def one() -> int:
        async with client.session.post(f"{proxy}/v1/x", json={}, headers=BULK) as answer:
            await answer.read()
            return int(answer.status)

    assert set(await asyncio.gather(*(one() for _ in range(count)))) == {200}


def test_the_overview_names_every_door_and_its_gates(tmp_path: Path):
    async def test() -> None:
        async with served(configured(tmp_path)) as client:
            found = await client.get("/api/v1/overview")
            doors = {door["name"]: door for door in found["doors"]}
            assert set(doors) == {"gateway", "flows", "jobs"}
            assert {door["state"] for door in doors.values()} == {"running"}
            assert doors["gateway"]["gates"] == ["gateway/default"]
            assert doors["flows"]["gates"] == ["flows/checkout"]
            assert doors["gateway"]["links"]["proxy"].startswith("http://127.0.0.1:")
            assert found["role"] == "admin"
            assert found["draining"] is False
            assert found["uptime"] >= 0
            assert found["version"]

    run(test)


def test_a_snapshot_has_every_field_of_the_contract(tmp_path: Path):
    async def test() -> None:
        async with served(configured(tmp_path)) as client:
            await asked(client, 12)
            client.server.sample()
            found = (await client.get("/api/v1/history?minutes=1"))["snapshots"][-1]
            assert {"seq", "t", "doors", "gates", "jobs", "streams"} == set(found)
            gate = next(gate for gate in found["gates"] if gate["id"] == "gateway/default")
            assert set(gate) >= SNAPSHOT_GATE
            assert gate["slots"]["total"] == 8
            bulk = next(one for one in gate["classes"] if one["name"] == "bulk")
            assert set(bulk["waits"]) == {"p50", "p95", "p99"}
            assert bulk["rank"] == 0
            assert gate["totals"]["admitted"] == gate["totals"]["completed"] == 12

    run(test)


def test_who_waits_is_told_with_a_sentence(tmp_path: Path):
    async def test() -> None:
        async with served(configured(tmp_path)) as client:
            flows = client.server.doors[1].server.flows  # type: ignore[attr-defined]
            running = [await flows.start_flow("checkout") for _ in range(2)]
            late = asyncio.create_task(flows.start_flow("checkout", {"plan": "paid"}, 20.0))
            while not flows.points["checkout"].gate.waiting:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
            found = await client.get("/api/v1/gates/flows%2Fcheckout/waiting?limit=5")
            assert found["total"] == 1
            (item,) = found["items"]
            assert item["class"] == "paid"
            assert item["why"].startswith("waits: ")
            assert item["waited"] >= 0
            assert item["explain"]["state"] == "waiting"
            for flow in running:
                flow.end()
            (await late).end()
            found = await client.get("/api/v1/gates/flows/checkout/waiting")
            assert found == {"items": [], "total": 0}

    run(test)


def test_decisions_come_newest_first_with_a_reason(tmp_path: Path):
    async def test() -> None:
        async with served(configured(tmp_path)) as client:
            await asked(client, 3)
            items = (await client.get("/api/v1/decisions?limit=4"))["items"]
            assert len(items) == 4
            assert [item["t"] for item in items] == sorted(item["t"] for item in items)[::-1]
            assert {item["what"] for item in items} <= {"started", "done"}
            assert all(item["why"] and item["gate"] == "gateway/default" for item in items)

    run(test)


def test_a_recording_has_a_line_for_each_ticket(tmp_path: Path):
    async def test() -> None:
        async with served(configured(tmp_path)) as client:
            await asked(client, 5)
            _, raw = await client.ask("GET", "/api/v1/gates/gateway%2Fdefault/recording?minutes=5")
            lines = raw.decode().splitlines()
            rows = [json.loads(line) for line in lines]
            assert len(rows) == 5
            assert {row["class"] for row in rows} == {"bulk"}
            assert all(row["service_ms"] > 0 and row["state"] == "done" for row in rows)
            assert client.headers["content-type"] == "application/x-ndjson"
            path = tmp_path / "recorded.jsonl"
            path.write_bytes(raw)
            from fairlead.sim import read_scenario

            source = {"kind": "trace", "file": str(path)}
            assert len(read_scenario({"arrivals": [source]}).arrivals()) == 5

    run(test)


ADJUSTMENTS: list[tuple[dict[str, Any], int, str]] = [
    ({"part": "slots", "verb": "resize", "args": [3]}, 200, ""),
    ({"part": "bulk", "verb": "set_weight", "args": ["header:acme", 2]}, 200, ""),
    ({"part": "slots", "verb": "resize", "args": [-1]}, 422, "whole number"),
    ({"part": "slots", "verb": "resize", "args": [True]}, 422, "whole number"),
    ({"part": "slots", "verb": "resize", "args": [1.5]}, 422, "whole number"),
    ({"part": "slots", "verb": "resize"}, 422, "whole number"),
    ({"part": "bulk", "verb": "set_weight", "args": ["header:acme", 0]}, 422, "above 0"),
    ({"part": "slots", "verb": "reserve", "args": [[0, 0, 0, 0]]}, 422, "args"),
    ({"part": "slots", "verb": "give", "args": []}, 422, "slots.resize"),
    ({"part": "classes", "verb": "__init__", "args": []}, 422, "slots.resize"),
    ({"verb": "resize", "args": [3]}, 422, "part: is required"),
    ({"part": "slots", "verb": "resize", "args": [3], "more": 1}, 422, "not known"),
]


def test_only_what_the_table_allows_is_adjusted(tmp_path: Path):
    async def test() -> None:
        async with served(configured(tmp_path)) as client:
            pool = client.server.doors[0].gateway.admission.pools[""]  # type: ignore[attr-defined]
            for body, status, said in ADJUSTMENTS:
                pool.resize(8)
                path = "/api/v1/gates/gateway%2Fdefault/adjust"
                got, found = await client.ask("POST", path, body)
                assert got == status, (body, found)
                assert said in found.get("detail", "")
                resized = status == 200 and body["part"] == "slots"
                assert pool.capacity.total == (3 if resized else 8)

    run(test)


def test_what_if_replays_what_passed(tmp_path: Path):
    async def test() -> None:
        async with served(configured(tmp_path)) as client:
            body: dict[str, Any] = {"gate": "gateway/default", "minutes": 5}
            status, found = await client.ask("POST", "/api/v1/whatif", body)
            assert (status, found["code"]) == (422, "nothing_recorded")
            await asked(client, 20)
            body["changes"] = {"capacity": 1}
            status, found = await client.ask("POST", "/api/v1/whatif", body)
            assert status == 200, found
            assert found["tickets"] == 20
            before, after = (found[side]["groups"]["all"]["all"] for side in ("before", "after"))
            assert after["wait.p95"] > before["wait.p95"]
            assert before["done"] == after["done"] == 20
            for changes, said in (
                ({"classes.bulk.queue_sise": 3}, "queue_size"),
                ({"classes.bulk.queue_size": -3}, "queue_size"),
                ({".": 3}, "no path"),
            ):
                body["changes"] = changes
                status, found = await client.ask("POST", "/api/v1/whatif", body)
                assert status == 422, found
                assert said in found["detail"]

    run(test)


def test_one_what_if_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from threading import Event

    from fairlead.server import whatif

    begun, go_on = Event(), Event()

    def slowly(*args: Any) -> dict[str, Any]:
        begun.set()
        assert go_on.wait(20)
        return {"before": {}, "after": {}}

    monkeypatch.setattr(whatif, "_replayed", slowly)

    async def test() -> None:
        async with served(configured(tmp_path)) as client:
            await asked(client, 1)
            body = {"gate": "gateway/default"}
            first = asyncio.create_task(client.ask("POST", "/api/v1/whatif", body))
            await asyncio.to_thread(begun.wait, 20)
            status, found = await client.ask("POST", "/api/v1/whatif", body)
            assert (status, found["code"]) == (409, "busy")
            go_on.set()
            assert (await first)[0] == 200
            assert (await client.ask("POST", "/api/v1/whatif", body))[0] == 200

    run(test)


def test_jobs_are_listed_shown_and_changed(tmp_path: Path):
    async def test() -> None:
        async with served(configured(tmp_path)) as client:
            jobs = client.server.doors[2].jobs  # type: ignore[attr-defined]

            @jobs.task
            def step(number: int = 0) -> int:
                return number

            @jobs.task
            def broken() -> None:
                raise RuntimeError("it is broken")

            ids = []
            for number in range(5):
                dag = Dag("report", tenant="acme" if number % 2 else None, hard_sla="1h")
                dag.add("step", dag.add("step", number))
                ids.append((await jobs.submit(dag)).id)
            failing = Dag("failing")
            failing.add("broken")
            ids.append((await jobs.submit(failing)).id)
            for one in ids:
                await jobs.wait(one, timeout=20)

            first = await client.get("/api/v1/jobs/runs?limit=4")
            assert [item["id"] for item in first["items"]] == ids[::-1][:4]
            rest = await client.get(f"/api/v1/jobs/runs?limit=4&cursor={first['next']}")
            assert [item["id"] for item in rest["items"]] == ids[::-1][4:]
            assert rest["next"] is None
            mine = await client.get("/api/v1/jobs/runs?tenant=acme&state=completed")
            assert {item["tenant"] for item in mine["items"]} == {"acme"}
            (bad,) = (await client.get("/api/v1/jobs/runs?state=failed"))["items"]
            assert (bad["done"], bad["total"], bad["failed"]) == (1, 1, 1)

            shown = await client.get(f"/api/v1/jobs/runs/{ids[0]}")
            assert [job["deps"] for job in shown["jobs"]] == [[], [0]]
            assert shown["hard_sla"] > shown["submitted"]
            failed = await client.get(f"/api/v1/jobs/runs/{bad['id']}")
            assert failed["jobs"][0]["error"] == "RuntimeError: it is broken"
            told = await client.get(f"/api/v1/jobs/runs/{ids[0]}/jobs/0/explain")
            assert told["state"] == "completed"

            status, found = await client.ask("POST", f"/api/v1/jobs/runs/{ids[0]}/cancel", {})
            assert (status, found["changed"]) == (409, False)
            assert "ended" in found["message"]
            status, found = await client.ask("POST", f"/api/v1/jobs/runs/{bad['id']}/retry", {})
            assert (status, found["changed"]) == (200, True)
            await jobs.wait(bad["id"], timeout=20)

            later = Dag("later")
            later.add("step", 1)
            waiting = (await jobs.submit(later, start_at="1h")).id
            path = f"/api/v1/jobs/runs/{waiting}/sla"
            status, found = await client.ask("POST", path, {"soft": "2h", "hard": "3h"})
            assert status == 200
            assert found["hard_sla"] - found["soft_sla"] == pytest.approx(3600, abs=1)
            status, kept = await client.ask("POST", path, {"soft": None})
            assert (kept["soft_sla"], kept["hard_sla"]) == (None, found["hard_sla"])
            assert (await client.ask("POST", path, {"soft": "soon"}))[0] == 422
            status, found = await client.ask("POST", f"/api/v1/jobs/runs/{waiting}/cancel", {})
            assert (status, found["changed"]) == (200, True)

            assert (await client.get("/api/v1/jobs/workers"))["workers"]
            planner = await client.get("/api/v1/jobs/planner")
            assert "HRRNExecutionPlanner" in planner["known"]
            status, found = await client.ask(
                "PUT", "/api/v1/jobs/planner", {"planner": "HRRNExecutionPlanner"}
            )
            assert found["planner"] == "HRRNExecutionPlanner"
            status, found = await client.ask("PUT", "/api/v1/jobs/planner", {"planner": "Nope"})
            assert status == 422

    run(test)


BAD = [
    ("GET", "/api/v1/gates/nope/waiting", 404),
    ("GET", "/api/v1/gates/gateway%2Fdefault/waiting?limit=0", 422),
    ("GET", "/api/v1/gates/gateway%2Fdefault/waiting?limit=x", 422),
    ("GET", "/api/v1/gates/gateway%2Fdefault/waiting?limit=1&limit=2", 422),
    ("GET", "/api/v1/gates/gateway%2Fdefault/waiting?more=1", 422),
    ("GET", "/api/v1/history?minutes=0", 422),
    ("GET", "/api/v1/history?minutes=nan", 422),
    ("GET", "/api/v1/history?minutes=1e9", 422),
    ("GET", "/api/v1/decisions?limit=99999", 422),
    ("GET", "/api/v1/jobs/runs?state=odd", 422),
    ("GET", "/api/v1/jobs/runs?cursor=odd", 422),
    ("GET", "/api/v1/jobs/runs?cursor=-1", 422),
    ("GET", "/api/v1/jobs/runs?tenant=%00", 422),
    ("GET", "/api/v1/jobs/runs/odd", 404),
    ("GET", "/api/v1/jobs/runs/99999999", 404),
    ("GET", "/api/v1/jobs/runs/1/jobs/x/explain", 404),
    ("POST", "/api/v1/overview", 405),
    ("DELETE", "/api/v1/config", 405),
    ("GET", "/api/v1/nothing", 404),
    ("GET", "/api", 404),
    ("POST", "/", 405),
    ("GET", "/..%2f..%2fpyproject.toml", 404),
    ("GET", "/../server/api.py", 404),
    ("GET", "/__init__.py", 404),
    ("GET", "/.hidden.js", 404),
]


def test_bad_requests_are_told_and_change_nothing(tmp_path: Path):
    async def test() -> None:
        async with served(configured(tmp_path)) as client:
            for method, path, status in BAD:
                body: Any = {} if method != "GET" else None
                got, found = await client.ask(method, path, body)
                assert got == status, (method, path, got, found)
                assert found["status"] == status
                assert found["detail"]
                assert client.headers["content-type"] == "application/problem+json"
            for raw in (b"{", b"[]", b"null", b'{"part": 1}', b'{"part": "a", "part": "b"}'):
                url = f"{client.url}/api/v1/gates/gateway/default/adjust"
                headers = {"content-type": "application/json"}
                async with client.session.post(url, data=raw, headers=headers) as answer:
                    assert answer.status in (400, 422)

    run(test)


def test_without_jobs_their_paths_say_so(tmp_path: Path):
    async def test() -> None:
        settings = {"server": {"listen": "127.0.0.1:0"}}
        async with served(settings) as client:
            for path in ("/api/v1/jobs/runs", "/api/v1/jobs/workers"):
                status, found = await client.ask("GET", path)
                assert (status, found["code"]) == (404, "no_jobs")
            assert (await client.get("/api/v1/overview"))["doors"] == []
            assert await client.get("/readyz") == {"status": "ok"}

    run(test)


def test_metrics_are_text_for_all_and_json_for_who_asks(tmp_path: Path):
    async def test() -> None:
        async with served(configured(tmp_path)) as client:
            await asked(client, 2)
            for accept in (
                "*/*",
                "text/plain",
                "text/html,*/*;q=0.8",
                "text/plain,application/json;q=0.1",
            ):
                _, raw = await client.ask("GET", "/metrics", accept=accept)
                text = raw.decode()
                assert "fairlead_gateway_capacity{" in text
                assert "fairlead_flows_queue_length{" in text
                assert "fairlead_jobs_leader " in text
                assert (
                    'fairlead_gate_decisions_total{gate="gateway/default",outcome="admitted"} 2.0'
                    in text
                )
                names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
                assert len(names) == len(set(names))
            for path, accept in (("/metrics", "application/json"), ("/metrics.json", "*/*")):
                _, found = await client.ask("GET", path, accept=accept)
                assert {"fairlead_gate_slots", "fairlead_server_door_up"} <= {
                    family["name"] for family in found["metrics"]
                }
                samples = [one for family in found["metrics"] for one in family["samples"]]
                assert {type(one["value"]) for one in samples} == {float}

    run(test)


def test_the_description_names_every_path(tmp_path: Path):
    async def test() -> None:
        async with served(configured(tmp_path)) as client:
            found = await client.get("/api/openapi.json")
            assert found["openapi"] == "3.1.0"
            described = {
                (method.upper(), path) for path, one in found["paths"].items() for method in one
            }
            assert ("POST", "/api/v1/gates/{id}/adjust") in described
            assert ("PUT", "/api/v1/config") in described
            assert len(described) == len(client.server.api.deeds)
            adjust = found["paths"]["/api/v1/gates/{id}/adjust"]["post"]
            assert adjust["description"] == "Needs the role operator."
            assert "Adjustment" in found["components"]["schemas"]

    run(test)


def test_files_have_a_policy_a_type_and_a_tag(tmp_path: Path):
    async def test() -> None:
        async with served({"server": {"listen": "127.0.0.1:0"}}) as client:
            status, _ = await client.ask("GET", "/")
            assert status == 200
            assert client.headers["content-type"] == "text/html; charset=utf-8"
            policy = client.headers["content-security-policy"]
            assert "script-src 'self'" in policy
            assert "unsafe" not in policy
            assert client.headers.getall("cache-control") == ["no-cache"]
            tag = client.headers["etag"]
            status, body = await client.ask("GET", "/index.html", if_none_match=f'"other", {tag}')
            assert (status, body) == (304, b"")
            status, body = await client.ask("HEAD", "/")
            assert (status, body) == (200, b"")

    run(test)


def test_an_operators_resize_is_a_ceiling_until_it_is_reset(tmp_path: Path):
    """What the fleet has may change meanwhile, and the configuration be followed again."""

    async def test() -> None:
        async with served(configured(tmp_path)) as client:
            admission = client.server.doors[0].gateway.admission  # type: ignore[attr-defined]

            async def resize(to: Any) -> None:
                path = "/api/v1/gates/gateway%2Fdefault/adjust"
                body = {"part": "slots", "verb": "resize", "args": [to]}
                status, found = await client.ask("POST", path, body)
                assert (status, found["applied"]) == (200, body)

            def slots() -> tuple[Any, Any]:
                found = gate_document(client.server.view("gateway/default"), Fairness())["slots"]
                return found["total"], found["ceiling"]

            admission.set_capacities({"": 8})
            assert slots() == (8, None)
            await resize(3)
            assert slots() == (3, 3)
            admission.set_capacities({"": 9})
            assert slots() == (3, 3)
            admission.set_capacities({"": 2})
            assert slots() == (2, 3)
            admission.set_capacities({})  # the last backend has gone, and comes back
            admission.set_capacities({"": 9})
            client.server.retune(client.server.loaded)
            admission.set_capacities({"": 9})
            assert slots() == (3, 3)
            await resize(20)
            assert slots() == (9, 20)
            await resize(None)
            assert slots() == (9, None)

    run(test)
