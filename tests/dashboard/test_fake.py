"""The fake server tells what a real one tells: the same keys, the same kinds of values, and nothing Fairlead forbids.

The OpenAPI document says of answers only that they are objects, so the fake is held against a real server's answers.
"""

import asyncio
import time
from typing import Any

import fairlead
from fairlead.server import demo
from fairlead.server.loading import load_content
from tests.dashboard.fake import Fake
from tests.dashboard.world import CONFIG, World
from tests.server.rig import Client, run, served

# Objects whose keys are names, not fields.
GROUPS = [f".groups.{group}" for group in ("all", "class", "tenant", "workload")]
MAPS = ("links", "executors", "topics", "streams[].groups", "apps[].groups", *GROUPS)
GATE = "gateway%2Fdefault"
ASKED = (
    "overview",
    "history",
    "decisions",
    f"gates/{GATE}/waiting",
    "jobs/runs",
    "jobs/workers",
    "jobs/planner",
    "streams",
    "config",
    "overrides",
    "audit",
)
CHANGE = {"gate": "gateway/default", "minutes": 5, "changes": {"capacity": 5}}


def kinds(document: Any, path: str, found: dict[str, set[str]]) -> dict[str, set[str]]:
    """Which kinds of values stand at which path; items of a list share one."""
    kind = found.setdefault(path, set())
    match document:
        case None:
            kind.add("null")
        case bool():
            kind.add("boolean")
        case int() | float():
            kind.add("number")
        case str():
            kind.add("string")
        case list():
            kind.add("list")
            for one in document:
                kinds(one, f"{path}[]", found)
        case dict():
            kind.add("object")
            for key, one in document.items():
                kinds(one, f"{path}.{'*' if path.endswith(MAPS) else key}", found)
    return found


def parent(path: str) -> str:
    return path.removesuffix("[]") if path.endswith("[]") else path.rpartition(".")[0]


def drift(fake: Any, real: Any) -> list[str]:
    """What the fake tells otherwise; of what the real server has none of just now, nothing is known."""
    told, known = kinds(fake, "", {}), kinds(real, "", {})
    found = [
        f"{path}: no such field"
        for path in told
        if path not in known and "object" in known.get(parent(path), ()) and not path.endswith(".*")
    ]
    for path, kind in known.items():
        if path not in told:
            if "object" in told.get(parent(path), ()) and not path.endswith(".*"):
                found.append(f"{path}: missing")
        elif kind != {"null"} and not told[path] <= kind | {"null"}:
            found.append(f"{path}: {told[path]} where a real server tells {kind}")
    return found


async def answers(client: Client) -> dict[str, Any]:
    """What a server with the demonstration tells once all of it has come."""
    body = {"part": "workers", "verb": "resize", "args": [1]}  # so that some is withheld
    await client.ask("POST", "/api/v1/gates/streams%2Fworkers/adjust", body)
    while True:
        found = {path: await client.get(f"/api/v1/{path}") for path in ASKED}
        runs = found["jobs/runs"]["items"]
        waits = found[f"gates/{GATE}/waiting"]["items"]
        if (
            runs
            and waits
            and found["decisions"]["items"]
            and found["streams"]["apps"][0]["withheld"]
        ):
            break
        await asyncio.sleep(0.2)
    name = runs[0]["id"]
    found["run"] = await client.get(f"/api/v1/jobs/runs/{name}")
    found["explain"] = await client.get(f"/api/v1/jobs/runs/{name}/jobs/0/explain")
    _, found["whatif"] = await client.ask("POST", "/api/v1/whatif", CHANGE)
    wrong = {"text": "gateway: {capacty: 1}"}
    _, found["validate"] = await client.ask("POST", "/api/v1/config/validate", wrong)
    one = {"part": "slots", "verb": "resize", "args": [5]}
    _, found["adjust"] = await client.ask("POST", f"/api/v1/gates/{GATE}/adjust", one)
    return found


def faked() -> dict[str, Any]:
    """The same questions, asked of the fake."""
    server = Fake()
    try:
        ask = server.answer
        found = {path: ask("GET", path, {}, None, "admin") for path in ASKED}
        found["run"] = ask("GET", "jobs/runs/r-0001", {}, None, "admin")
        found["explain"] = ask("GET", "jobs/runs/r-0001/jobs/0/explain", {}, None, "admin")
        found["whatif"] = ask("POST", "whatif", {}, CHANGE, "admin")
        wrong = {"text": "gateway: {capacty: 1}"}
        found["validate"] = ask("POST", "config/validate", {}, wrong, "admin")
        one = {"part": "slots", "verb": "resize", "args": [5]}
        found["adjust"] = ask("POST", f"gates/{GATE}/adjust", {}, one, "admin")
        return found
    finally:
        server.go_away()


def test_the_fake_tells_what_a_real_server_tells(tmp_path):
    async def test() -> Any:
        settings = demo.settings(tmp_path, dict.fromkeys(demo.PORTS, "127.0.0.1:0"))
        async with served(settings) as client:
            return await answers(client)

    real, fake = run(test), faked()
    # A page shows no more of a simulation than its figures.
    for side in ("before", "after"):
        del real["whatif"][side]["curves"], real["whatif"][side]["timeline"]
    found = {path: drift(fake[path], real[path]) for path in real}
    assert {path: told for path, told in found.items() if told} == {}


def test_drift_would_be_found():
    real = {"a": 1, "b": [{"c": "x"}], "d": None, "links": {"e": "f"}}
    assert drift({"a": 2.5, "b": [], "d": "y", "links": {"g": "h"}}, real) == []
    assert drift({"a": "1", "b": [{"x": 1}], "links": {}}, real) == [
        ".b[].x: no such field",
        ".a: {'string'} where a real server tells {'number'}",
        ".b[].c: missing",
        ".d: missing",
    ]


def test_the_fake_keeps_the_promises():
    world, began = World(), time.time()
    for second in range(0, 300, 7):
        snapshot = world.look(began + second)
        for gate in snapshot["gates"]:
            slots, name = gate["slots"], gate["id"]
            waiting = sum(one["waiting"] for one in gate["classes"])
            assert sum(one["running"] for one in gate["classes"]) == slots["used"], name
            if slots["total"] is not None:
                assert slots["free"] == slots["total"] - slots["used"] >= 0, name
                assert not (waiting and slots["free"]), f"{name}: some wait beside a free slot"
            for one in gate["reserved"]:
                assert one["used"] <= one["held"]
            if gate["tenants"]:
                assert sum(one["running"] for one in gate["tenants"]) == slots["used"], name
                assert sum(one["waiting"] for one in gate["tenants"]) == waiting, name
            for one in gate["classes"]:
                assert one["waits"]["p50"] <= one["waits"]["p95"] <= one["waits"]["p99"], name
                assert (one["oldest_wait"] is None) == (not one["waiting"]), name
        (app,) = snapshot["streams"]
        assert app["workers"]["busy"] == sum(one["running"] for one in app["partitions"])
        assert app["workers"]["busy"] == snapshot["gates"][3]["slots"]["used"]
        assert not app["withheld_count"] or app["workers"]["busy"] == app["concurrency"]
        for one in app["partitions"]:
            held = (one["topic"], one["partition"])
            assert not (
                one["running"] and held in [(w["topic"], w["partition"]) for w in app["withheld"]]
            )
            assert one["committed"] <= one["position"] <= one["end"]
            assert one["lag"] == one["end"] - one["position"] >= one["buffered"]
        assert snapshot["jobs"]["running"] == snapshot["gates"][2]["slots"]["used"]


def test_the_configuration_of_the_fake_can_be_read(tmp_path):
    text = CONFIG.replace("***", "0" * 64).replace("fairlead.db", f"{tmp_path}/jobs.db")
    assert load_content(text.encode(), "fake").lines == ()


def test_the_fake_is_of_this_version():
    server = Fake()
    try:
        told = server.overview("admin")
    finally:
        server.go_away()
    assert told["version"] == fairlead.__version__
    assert {door["state"] for door in told["doors"]} == {"running"}
