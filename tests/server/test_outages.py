"""A dead fleet looks dead: at /readyz, in the control API, in `fairlead top`."""

from typing import Any

import pytest
from rich.console import Console

from fairlead.cli.top_view import table
from fairlead.gateway.fleet import Fleet
from fairlead.server.hosted_gateway import HostedGateway
from tests.gateway.rig import HEALTHY, Backend, fetch, gateway, run, until
from tests.server.rig import GATEWAY, HERE, POINT, Client, served
from tests.server.rig import run as run_server

NOWHERE = {"url": "http://127.0.0.1:9", "capacity": 4, **HEALTHY}
QUICK = {"interval": "20ms"}


async def ready(url: str) -> tuple[int, Any]:
    import json

    head, body = await fetch(url, "GET", "/readyz")
    return head.status, json.loads(body)


@pytest.mark.parametrize("pool_by", [None, "model"])
def test_a_gateway_without_a_backend_is_not_ready(pool_by):
    async def main() -> None:
        down = NOWHERE | {"models": ["a"]}
        async with gateway(down, pool_by=pool_by) as running:
            status, said = await ready(running.admin_listener.url)
            assert (status, said["status"]) == (503, "down")
            assert "no backend is up, of 1" in said["problems"][0]
        async with gateway(down, pool_by=pool_by, ready_without_backends=True) as running:
            status, said = await ready(running.admin_listener.url)
            assert (status, said["status"]) == (200, "degraded")
        async with gateway(pool_by=pool_by) as running:
            status, said = await ready(running.admin_listener.url)
            assert (status, said["problems"]) == (503, ["pool default: there is no backend"])

    run(main())


def test_a_pool_without_a_backend_makes_it_degraded_and_only_the_last_one_down():
    async def main() -> None:
        async with Backend() as one, Backend() as two:
            listed = [
                {"url": backend.url, "capacity": 4, "models": [model], **HEALTHY}
                for model, backend in (("a", one), ("b", two))
            ]
            async with gateway(*listed, pool_by="model") as running:
                url = running.admin_listener.url
                assert await ready(url) == (200, {"status": "ok"})
                two.health_status = 500
                await until(lambda: running.fleet.outages())
                _, metrics = await fetch(url, "GET", "/metrics")
                assert b'fairlead_gateway_backends{state="unhealthy"} 1.0' in metrics
                problems = ["pool b: no backend is up, of 1"]
                assert await ready(url) == (200, {"status": "degraded", "problems": problems})
                one.health_status = 500
                await until(lambda: running.fleet.down)
                assert (await ready(url))[0] == 503
                one.health_status = 200
                await until(lambda: not running.fleet.down)
                assert (await ready(url))[0] == 200

    run(main())


def server_of(*upstreams: dict[str, Any], flows: bool, **more: Any) -> dict[str, Any]:
    said: dict[str, Any] = {
        "server": {"listen": HERE},
        "gateway": GATEWAY | {"upstreams": list(upstreams), "health": QUICK, **more},
    }
    if flows:
        said["flows"] = {"http": HERE, "control_points": {"checkout": POINT}}
    return said


async def told(client: Client) -> tuple[int, Any, Any]:
    """Read /readyz, and how the overview and a snapshot show the gateway."""
    status, said = await client.ask("GET", "/readyz")
    overview = await client.get("/api/v1/overview")
    client.server.sample()
    history = await client.get("/api/v1/history?minutes=1")
    snapshot = history["snapshots"][-1]
    [shown] = [one for one in overview["doors"] if one["name"] == "gateway"]
    [sampled] = [one for one in snapshot["doors"] if one["name"] == "gateway"]
    assert (shown["state"], shown["reason"]) == (sampled["state"], sampled["reason"])
    [gate] = [one for one in snapshot["gates"] if one["id"] == "gateway/default"]
    assert gate["degraded"] == shown["reason"]
    return status, said, snapshot


def text_of(snapshot: dict[str, Any]) -> str:
    console = Console(width=200, no_color=True)
    with console.capture() as captured:
        console.print(table("http://here", snapshot))
    return captured.get()


def test_a_server_whose_every_door_is_down_is_not_ready_and_says_why():
    async def main() -> None:
        async with Backend() as backend:
            backend.health_status = 500
            listed = {"url": backend.url, "capacity": 4, **HEALTHY}
            async with served(server_of(listed, flows=False)) as client:
                fleet: Fleet = client.server.door(HostedGateway).gateway.fleet
                status, said, snapshot = await told(client)
                why = "no backend is up, of 1"
                assert (status, said) == (503, {"status": "not ready", "doors": {"gateway": why}})
                text = text_of(snapshot)
                assert f"degraded: {why}" in text
                assert f"{backend.url} is unhealthy: it did not answer well" in text
                [gate] = snapshot["gates"]
                assert gate["backends"][0]["state"] == "unhealthy"
                backend.health_status = 200
                await until(lambda: not fleet.down)
                status, said, snapshot = await told(client)
                assert (status, said) == (200, {"status": "ok"})
                assert "degraded" not in text_of(snapshot)

    run_server(main)


def test_a_server_with_another_door_that_is_up_is_ready_and_degraded():
    async def main() -> None:
        async with served(server_of(NOWHERE, flows=True)) as client:
            status, said, _ = await told(client)
            why = {"gateway": "no backend is up, of 1"}
            assert (status, said) == (200, {"status": "degraded", "doors": why})
        settings = server_of(NOWHERE, flows=False, ready_without_backends=True)
        async with served(settings) as client:
            status, said, _ = await told(client)
            assert (status, said) == (200, {"status": "degraded", "doors": why})

    run_server(main)


def test_in_an_outage_all_refusals_are_told_as_such():
    async def main() -> None:
        async with served(server_of(NOWHERE, flows=False)) as client:
            url = client.server.door(HostedGateway).gateway.data_listener.url
            for _ in range(30):
                assert (await fetch(url, "GET", "/report"))[0].status == 503
            _, _, snapshot = await told(client)
            [gate] = snapshot["gates"]
            assert gate["totals"]["refused"] == 30
            assert sum(one["refused_per_s"] for one in gate["classes"]) == pytest.approx(3.0)
            found = (await client.get("/api/v1/decisions"))["items"]
            assert {(one["what"], one["why"]) for one in found} == {
                ("refused", "no backend of its pool is up")
            }

    run_server(main)
