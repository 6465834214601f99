"""A pool follows its file while doors use it: slots and weights change at once, members at the next start."""

import asyncio
import json
from pathlib import Path
from typing import Any

from fairlead.server.loading import load_mapping
from tests.gateway.rig import until
from tests.server.rig import HERE, begun, configured, document, process, run, served

FLOWS = {
    "http": HERE,
    "control_points": {name: {"concurrency": {"max_concurrency": 50}} for name in ("a", "b")},
}


def settings(folder: Path, slots: int, a: float = 1, b: float = 1) -> dict[str, Any]:
    pools = {"gpu": {"slots": slots, "doors": {"flows/a": a, "flows/b": b}}}
    return configured(folder, flows=FLOWS, pools=pools)


def test_other_slots_count_at_once_also_for_who_waits(tmp_path: Path):
    async def test() -> None:
        async with served(settings(tmp_path, 1)) as client:
            doors: dict[str, Any] = {door.name: door for door in client.server.doors}
            flows, pool = doors["flows"].server.flows, doors["pool/gpu"]
            (view,) = pool.views()

            def retuned(slots: int) -> None:
                assert client.server.retune(load_mapping(settings(tmp_path, slots))) == []
                assert view.total() == pool.policy("pool/gpu")["capacity"]["slots"] == slots

            held = await flows.start_flow("a")
            asked = [asyncio.create_task(flows.start_flow("b")) for _ in range(3)]
            await until(lambda: pool.pool.gate.waiting == 3)
            retuned(3)
            await until(lambda: sum(one.done() for one in asked) == 2)
            assert (pool.pool.gate.active, pool.pool.gate.waiting) == (3, 1)
            retuned(1)  # nobody loses what he has; nobody gets more before there is room again
            assert pool.pool.gate.active == 3
            held.end()
            given = [one for one in asked if one.done()]
            given[0].result().end()
            assert (pool.pool.gate.active, pool.pool.gate.waiting) == (1, 1)
            given[1].result().end()
            await until(lambda: not pool.pool.gate.waiting)
            for one in asked:
                (await one).end()

    run(test)


def test_other_weights_count_at_once(tmp_path: Path):
    async def test() -> None:
        async with served(settings(tmp_path, 1)) as client:
            door: Any = next(door for door in client.server.doors if door.name == "flows")
            flows = door.server.flows
            order: list[str] = []

            async def flow(point: str) -> None:
                async with flows.flow(point, timeout=20) as one:
                    assert one.should_run()
                    order.append(point)

            async def shares() -> tuple[int, int]:
                order.clear()
                held = await flows.start_flow("a")
                asked = [asyncio.create_task(flow(point)) for point in "ab" for _ in range(20)]
                await until(lambda: sum(one.gate.waiting for one in flows.points.values()) >= 40)
                held.end()
                await asyncio.gather(*asked)
                return order[:20].count("a"), order[:20].count("b")

            assert min(await shares()) >= 9
            client.server.retune(load_mapping(settings(tmp_path, 1, a=1, b=9)))
            a, b = await shares()
            assert b >= 16 > a

    run(test)


def test_other_members_are_told_to_wait_for_the_next_start_and_the_rest_is_followed(tmp_path: Path):
    async def test() -> None:
        async with served(settings(tmp_path, 1)) as client:
            pool: Any = next(door for door in client.server.doors if door.name == "pool/gpu")
            for slots, weight in ((5, 4.0), (3, 2.0)):
                pools = {"gpu": {"slots": slots, "doors": {"flows/a": weight, "jobs/leader": 1}}}
                other = load_mapping(configured(tmp_path, flows=FLOWS, pools=pools))
                assert client.server.retune(other) == [
                    "pool/gpu: its members change only at the next start"
                ]
                said = pool.policy("pool/gpu")
                assert said["capacity"] == {"slots": slots}
                assert said["policy"]["fair"]["weights"] == {"flows/a": weight, "flows/b": 1}
                assert f"{slots} slots" in pool.detail
            # The pool is gone from the file: it stays as it is.
            assert "pool/gpu: its members change only at the next start" in client.server.retune(
                load_mapping(configured(tmp_path, flows=FLOWS))
            )
            assert pool.pool.slots.total == 3

    run(test)


def test_the_file_wins_over_an_operator_at_its_next_change(tmp_path: Path):
    async def test() -> None:
        async with served(settings(tmp_path, 4)) as client:
            resize = {"part": "slots of gpu", "verb": "resize", "args": [9]}
            status, _ = await client.ask("POST", "/api/v1/gates/pool/gpu/adjust", resize)
            view = client.server.view("pool/gpu")
            assert (status, view.total()) == (200, 9)
            assert client.server.retune(load_mapping(settings(tmp_path, 4, a=2))) == []
            assert view.total() == 4

    run(test)


def test_a_changed_file_changes_the_slots_of_a_server_that_runs(tmp_path: Path):
    path = tmp_path / "fairlead.yaml"
    path.write_text(json.dumps(settings(tmp_path, 2)))  # JSON is YAML

    async def total(url: str) -> Any:
        found = await document(url, "/api/v1/history?minutes=1")
        gates = {gate["id"]: gate for gate in found["snapshots"][-1]["gates"]}
        return gates["pool/gpu"]["slots"]["total"]

    async def test() -> None:
        async with process(tmp_path) as server:
            url = await begun(server)
            assert await total(url) == 2
            path.write_text(json.dumps(settings(tmp_path, 7)))
            await server.until("applied")
            while await total(url) != 7:
                pass
            server.process.terminate()
            assert await server.ended() == 0

    run(test)
