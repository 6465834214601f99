"""Flows in the server: the gRPC service beside the HTTP one, over the same gates that are shown."""

import asyncio
from pathlib import Path
from typing import Any

import grpc

from fairlead.flows import messages as wire
from fairlead.server.fairness import Fairness
from fairlead.server.loading import load_mapping
from fairlead.server.snapshots import gate_document
from tests.flows.test_grpc import Stub, info_of
from tests.gateway.rig import until
from tests.server.rig import HERE, POINT, configured, run, served

FLOWS = {"http": HERE, "grpc": HERE, "control_points": {"checkout": POINT}}


def shown(client: Any) -> dict[str, Any]:
    return gate_document(client.server.view("flows/checkout"), Fairness())


def test_grpc_and_http_ask_the_same_gate_and_both_are_shown(tmp_path: Path):
    async def test() -> None:
        async with served(configured(tmp_path, flows=FLOWS)) as client:
            (links,) = [door.links() for door in client.server.doors if door.name == "flows"]
            async with grpc.aio.insecure_channel(links["grpc"]) as channel:
                stub = Stub(channel)
                first = await stub.check("checkout", labels={"plan": "paid"})
                body = {"control_point": "checkout", "labels": {"plan": "free"}}
                async with client.session.post(
                    f"{links['http']}/v1/flows/check", json=body
                ) as asked:
                    second = await asked.json()
                assert second["decision"] == "accepted"
                assert shown(client)["slots"] == {
                    "total": 2,
                    "used": 2,
                    "free": 0,
                    "ceiling": None,
                    "over": None,
                    "idle": None,
                }
                third = asyncio.ensure_future(
                    stub.check("checkout", labels={"plan": "paid"}, timeout=20)
                )
                await until(lambda: sum(one["waiting"] for one in shown(client)["classes"]) == 1)
                assert len(await stub.end("checkout", info_of(first).request_id)) == 1
                await third
                running = {one["name"]: one["running"] for one in shown(client)["classes"]}
                assert running == {"paid": 1, "default": 1}

    run(test)


def test_when_the_server_ends_who_waits_over_grpc_is_answered(tmp_path: Path):
    async def test() -> None:
        async with served(configured(tmp_path, flows=FLOWS)) as client:
            flows = next(door for door in client.server.doors if door.name == "flows")
            channel = grpc.aio.insecure_channel(flows.links()["grpc"])
            stub = Stub(channel)
            for _ in range(2):
                await stub.check("checkout")
            waiting = asyncio.ensure_future(stub.check("checkout", timeout=20))
            await until(lambda: sum(one["waiting"] for one in shown(client)["classes"]) == 1)
            ending = asyncio.create_task(client.server.__aexit__())
            client.server.hurry()
            assert (await waiting).decision_type == wire.REJECTED
            await ending
            await channel.close()

    run(test)


def test_flows_have_all_of_the_grace_of_the_server(tmp_path: Path):
    server = {"listen": HERE, "shutdown_grace": "1h"}

    async def test() -> None:
        async with served(configured(tmp_path, flows=FLOWS, server=server)) as client:
            flows: Any = next(door for door in client.server.doors if door.name == "flows")
        assert flows.server.grace == 3600.0

    run(test)


def test_a_flow_that_holds_a_slot_of_a_pool_is_waited_for(tmp_path: Path):
    """It has no concurrency to give back, but another door may wait for its slot."""
    flows = {"http": HERE, "control_points": {"one": {}, "alone": {}}}
    pools = {"gpu": {"slots": 1, "doors": {"flows/one": 1, "gateway/default": 1}}}

    async def test() -> None:
        async with served(configured(tmp_path, flows=flows, pools=pools)) as client:
            door: Any = next(door for door in client.server.doors if door.name == "flows")
            ours = door.server.flows
            async with ours.flow("alone"):
                assert not ours.unfinished()
            async with ours.flow("one"):
                assert ours.unfinished()
            assert not ours.unfinished()

    run(test)


def test_off_loopback_grpc_needs_a_token(tmp_path: Path):
    flows = FLOWS | {"grpc": "0.0.0.0:0"}
    (line,) = load_mapping(configured(tmp_path, flows=flows)).lines
    assert "a token is required" in line


def test_users_among_whom_flows_are_fair_are_shown_as_tenants(tmp_path: Path):
    point = {
        "concurrency": {"max_concurrency": 2},
        "scheduler": {"fairness_label_key": "user_id"},
    }
    flows = {"http": HERE, "control_points": {"checkout": point}}

    async def test() -> None:
        async with served(configured(tmp_path, flows=flows)) as client:
            door: Any = next(door for door in client.server.doors if door.name == "flows")
            asked = [
                asyncio.create_task(door.server.flows.start_flow("checkout", {"user_id": user}))
                for user in ("ada", "ada", "bob")
            ]
            await until(lambda: sum(one["waiting"] for one in shown(client)["classes"]) == 1)
            tenants = {
                one["name"]: (one["running"], one["waiting"]) for one in shown(client)["tenants"]
            }
            assert tenants == {"ada": (2, 0), "bob": (0, 1)}
            found = await client.get("/api/v1/gates/flows%2Fcheckout/waiting")
            assert [one["tenant"] for one in found["items"]] == ["bob"]
            for one in asked[:2]:
                (await one).end()
            (await asked[2]).end()
            found = await client.get("/api/v1/decisions?limit=3")
            assert {one["tenant"] for one in found["items"]} == {"ada", "bob"}
            body = {"gate": "flows/checkout", "minutes": 5, "changes": {}}
            status, told = await client.ask("POST", "/api/v1/whatif", body)
            assert status == 200, told

    run(test)
