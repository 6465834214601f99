"""Doors that share a pool by name: together they never hold more than it has, and what one gives the other gets."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fairlead.server.loading import load_mapping
from tests.server.rig import configured, run, served

SHARED = {"gpu": {"slots": 2, "doors": {"gateway/default": 3, "flows/checkout": 1}}}


def pool_of(client: Any) -> Any:
    client.server.sample()
    return next(
        view for door in client.server.doors for view in door.views() if view.door == "pool/gpu"
    )


def test_what_one_door_gives_back_the_other_gets(tmp_path: Path):
    point = {"concurrency": {"max_concurrency": 10}}
    flows = {"http": "127.0.0.1:0", "control_points": {"checkout": point}}

    async def test() -> None:
        async with served(configured(tmp_path, pools=SHARED, flows=flows)) as client:
            doors = {door.name: door for door in client.server.doors}
            proxy = doors["gateway"].links()["proxy"]
            scheduler = doors["flows"].server.flows  # type: ignore[attr-defined]
            held = [await scheduler.start_flow("checkout") for _ in range(2)]
            asked = asyncio.create_task(client.session.get(f"{proxy}/v1/x"))
            path = "/api/v1/gates/pool%2Fgpu/waiting"
            while not (found := await client.get(path))["total"]:
                pass
            (item,) = found["items"]
            assert item["class"] == "gateway/default default"
            assert "2 slots of gpu are in use" in item["why"]
            assert not asked.done()
            held[0].end()
            answer = await asked
            assert answer.status == 200
            await answer.read()
            standing = {one.name: one.running for one in pool_of(client).channel.standing()}
            assert standing == {"gateway/default default": 0, "flows/checkout default": 1}
            held[1].end()

            body = {"part": "slots of gpu", "verb": "resize", "args": [1]}
            status, _ = await client.ask("POST", "/api/v1/gates/pool%2Fgpu/adjust", body)
            assert status == 200
            assert pool_of(client).total() == 1

    run(test)


def test_a_storm_at_both_doors_never_holds_more_than_there_is(tmp_path: Path):
    async def test() -> None:
        async with served(configured(tmp_path, pools=SHARED)) as client:
            doors = {door.name: door for door in client.server.doors}
            proxy = doors["gateway"].links()["proxy"]
            scheduler = doors["flows"].server.flows  # type: ignore[attr-defined]
            gate = doors["pool/gpu"].pool.gate  # type: ignore[attr-defined]
            most = 0

            async def ask() -> None:
                async with client.session.get(f"{proxy}/v1/x") as answer:
                    assert answer.status == 200
                    await answer.read()

            async def flow() -> None:
                nonlocal most
                async with scheduler.flow("checkout", {"plan": "paid"}, timeout=20) as one:
                    assert one.should_run()
                    most = max(most, gate.active)
                    await asyncio.sleep(0.01)
                    most = max(most, gate.active)

            await asyncio.gather(*(ask() for _ in range(6)), *(flow() for _ in range(12)))
            assert most == 2
            assert gate.active == gate.waiting == 0
            totals = pool_of(client).channel.totals()
            assert totals["admitted"] == totals["completed"] == 18

    run(test)


@pytest.mark.parametrize(
    ("doors", "said"),
    [
        ({"jobs/leader": 1}, "pattern"),
        ({}, "at least 1"),
        ({"flows/nowhere": 1}, "there is no such gate; there are gateway/default, flows/checkout"),
        ({"gateway/default": 0}, "greater than 0"),
    ],
)
def test_a_pool_of_what_cannot_share_is_refused(tmp_path: Path, doors: Any, said: str):
    settings = configured(tmp_path, pools={"gpu": {"slots": 2, "doors": doors}})
    (line,) = load_mapping(settings).lines
    assert "pools.gpu" in line
    assert said in line


def test_a_gate_is_in_one_pool(tmp_path: Path):
    two = {name: {"slots": 2, "doors": {"gateway/default": 1}} for name in ("a", "b")}
    (line,) = load_mapping(configured(tmp_path, pools=two)).lines
    assert "is in pool a already" in line
