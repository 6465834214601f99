"""Doors that share a pool by name: together they never hold more than it has, and what one gives the other gets."""

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import pytest

from fairlead import Slots, ThreadScheduler
from fairlead.core import Gate
from fairlead.errors import ConfigError
from fairlead.jobs import Dag, Jobs
from fairlead.jobs.operating import Operations
from fairlead.server.demo import Upstream
from fairlead.server.fairness import Fairness
from fairlead.server.loading import load_mapping
from fairlead.server.service import Server
from fairlead.server.snapshots import Snapshots, gate_document, waiting_document
from fairlead.streams import Consumer, StreamScheduler
from tests.gateway.rig import until
from tests.server.rig import (
    GATEWAY,
    HERE,
    LONGEST,
    POINT,
    begun,
    configured,
    process,
    run,
    served,
)
from tests.streams.staging import app_on, filled, wait_committed

DOORS = {"gateway/default": 2, "jobs/leader": 1, "streams/workers": 1}
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
        ({"jobs/workers": 1}, "pattern"),
        ({"streams/workers": 1}, "there are gateway/default, flows/checkout, jobs/leader"),
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


MODELS = [["meta-llama/Llama-3-8B"], ["a", "b"], ["b", "c"]]


@pytest.mark.parametrize(
    ("pool_by", "models", "gate", "known"),
    [
        (None, [None], "default", True),
        (None, [None], "defautl", False),
        (None, MODELS, "meta-llama/Llama-3-8B", False),
        ("model", MODELS, "meta-llama/Llama-3-8B", True),
        ("model", MODELS, "a,b,c", True),  # they can stand in for each other
        ("model", MODELS, "meta-llama/Llama-3-9B", True),  # its backends may come at run time
        ("model", MODELS, "default", True),
        ("model", [None], "any/model", True),
        ("model", [], "any/model", True),  # upstreams come at run time
    ],
)
def test_a_gate_of_the_gateway_is_there_if_a_model_is_named(
    tmp_path: Path, pool_by: Any, models: list[Any], gate: str, known: bool
):
    upstreams = [
        {"url": f"http://127.0.0.1:{port}", "capacity": 1} | ({"models": named} if named else {})
        for port, named in enumerate(models, 1)
    ]
    gateway = GATEWAY | {"upstreams": upstreams} | ({"pool_by": pool_by} if pool_by else {})
    pools = {"gpu": {"slots": 2, "doors": {f"gateway/{gate}": 1}}}
    lines = load_mapping(configured(tmp_path, gateway=gateway, pools=pools)).lines
    assert not lines if known else "there is no such gate; there are gateway/default" in lines[0]


def test_names_with_a_slash_share_and_are_told_as_they_are(tmp_path: Path):
    names = ("meta-llama/Llama-3-8B", "api/pay", "api:pay")
    flows = {"http": HERE, "control_points": dict.fromkeys(names, POINT)}
    doors = {f"flows/{name}": 1 for name in names}

    async def test() -> None:
        said = configured(tmp_path, flows=flows, pools={"gpu": {"slots": 1, "doors": doors}})
        async with served(said) as client:
            door: Any = next(door for door in client.server.doors if door.name == "flows")
            for name in names:
                async with door.server.flows.flow(name) as flow:
                    assert flow.should_run()
                    classes = gate_document(pool_of(client), Fairness())["classes"]
                    running = [one["name"] for one in classes if one["running"]]
                    assert running == [f"flows/{name} default"]

    run(test)


def test_a_gate_is_in_one_pool(tmp_path: Path):
    two = {name: {"slots": 2, "doors": {"gateway/default": 1}} for name in ("a", "b")}
    (line,) = load_mapping(configured(tmp_path, pools=two)).lines
    assert "is in pool a already" in line


class Inside:
    """Who is at work, at whichever door, and how many were at most."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now = self.most = 0
        self.came: dict[str, int] = {}

    def __call__(self, who: str) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
            self.came[who] = self.came.get(who, 0) + 1

    def leave(self) -> None:
        with self.lock:
            self.now -= 1


class Backend(Upstream):
    """An upstream that counts."""

    def __init__(self, inside: Inside) -> None:
        super().__init__()
        self.inside = inside

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/v1/x"):
            self.inside("gateway")
            await asyncio.sleep(0.005)
            self.inside.leave()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"{}"})
        else:
            await super().__call__(scope, receive, send)


class Shop:
    """Jobs and streams of one application, each of which counts who is inside."""

    def __init__(self, name: str, folder: Path, *, records: int = 8, concurrency: int = 3) -> None:
        self.inside = inside = Inside()
        self.go = threading.Event()
        go = self.go
        self.broker = filled({"orders": 3}, records)
        self.app = app_on(self.broker, concurrency=concurrency)
        self.jobs = Jobs(f"sqlite:///{folder}/jobs.db", executors={"default": 4, "threads": 2})

        class Orders(Consumer):
            def consume(self, messages: Any) -> None:
                inside("streams")
                go.wait(LONGEST)
                inside.leave()

        async def small() -> None:
            inside("jobs")
            await asyncio.sleep(0.002)
            inside.leave()

        def large() -> None:
            inside("jobs")
            go.wait(LONGEST)
            inside.leave()

        self.app.topic("orders", Orders, batch_size=1)
        self.jobs.task(small)
        self.jobs.task(executor="threads")(large)
        self.module = ModuleType(name)
        self.module.app, self.module.jobs = self.app, self.jobs  # type: ignore[attr-defined]
        sys.modules[name] = self.module

    def sections(self) -> dict[str, Any]:
        name = self.module.__name__
        return {
            "jobs": {"app": f"{name}:jobs"},
            "streams": {"app": f"{name}:app"},
            "demo": {"upstream": False, "traffic": False},
        }

    def dag(self, *tasks: str) -> Dag:
        dag = Dag("work")
        for task in tasks:
            dag.add(task)
        return dag


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setitem(sys.modules, "shop_of_the_test", ModuleType("shop_of_the_test"))
    made = Shop("shop_of_the_test", tmp_path)
    yield made
    made.go.set()


def test_a_gateway_jobs_and_streams_never_hold_more_than_a_pool_has(tmp_path: Path, shop: Shop):
    """A storm at three doors, on one loop and in threads; who is inside counts, not what a gate believes."""

    async def test() -> None:
        backend = Backend(shop.inside)
        await backend.start()
        shop.go.set()
        pools = {"gpu": {"slots": 2, "doors": DOORS}}
        gateway = GATEWAY | {"upstreams": [{"url": backend.url, "capacity": 8}]}
        async with served(
            configured(tmp_path, pools=pools, gateway=gateway, **shop.sections())
        ) as client:
            doors = {door.name: door for door in client.server.doors}
            proxy = doors["gateway"].links()["proxy"]

            async def ask() -> None:
                async with client.session.get(f"{proxy}/v1/x") as answer:
                    assert answer.status == 200
                    await answer.read()

            run = await shop.jobs.submit(shop.dag(*["small"] * 20, *["large"] * 6))
            await asyncio.gather(*(ask() for _ in range(20)))
            assert (await shop.jobs.wait(run)).state == "completed"
            await asyncio.to_thread(wait_committed, shop.broker, 24)
            assert shop.inside.came == {"gateway": 20, "jobs": 26, "streams": 24}
            assert shop.inside.most == 2
            pool = doors["pool/gpu"].pool.gate  # type: ignore[attr-defined]
            await until(lambda: not pool.active and not pool.waiting)
            totals = pool_of(client).channel.totals()
            assert totals["completed"] == 70, totals
        await backend.stop()

    run(test)


def test_a_job_and_a_batch_wait_for_a_slot_of_the_pool_and_it_is_said(tmp_path: Path, shop: Shop):
    flows = {"http": HERE, "control_points": {"checkout": POINT}}
    doors = {"flows/checkout": 1, "jobs/leader": 1, "streams/workers": 1}

    async def test() -> None:
        pools = {"gpu": {"slots": 1, "doors": doors}}
        settings = configured(tmp_path, pools=pools, flows=flows, **shop.sections())
        loaded = load_mapping(settings | {"gateway": None})
        assert not loaded.problems, loaded.lines
        server = Server(loaded)
        held = next(door for door in server.doors if door.name == "flows").server.flows  # type: ignore[attr-defined]
        gate = next(door for door in server.doors if door.name == "pool/gpu").pool.gate  # type: ignore[attr-defined]
        await server.doors[0].start()
        flow = await held.start_flow("checkout")  # before the others begin
        async with server:
            run = await shop.jobs.submit(shop.dag("small"))
            await until(lambda: gate.waiting == 2)
            shown = {one["id"]: one for one in Snapshots().take(server.doors, 1)["gates"]}
            waits = {one["name"]: one["waiting"] for one in shown["pool/gpu"]["classes"]}
            assert waits == {"flows/checkout default": 0, "jobs/leader": 1, "streams/workers": 1}
            for one in ("jobs/leader", "streams/workers"):
                (item, *_) = waiting_document(server.view(one), 1)["items"]
                assert "one of the 1 slots of gpu" in item["why"], item
            said = await Operations(shop.jobs).explain(f"{run.id}.0")
            assert "one of the 1 slots of gpu" in said.sentence
            elsewhere = Jobs(f"sqlite:///{tmp_path}/jobs.db")  # as in another process
            said = await Operations(elsewhere).explain(f"{run.id}.0")
            assert said.reason == "held"
            assert "starts with one of the slots of gpu, which others share" in said.sentence
            await elsewhere.close()
            assert shop.inside.came == {}
            shop.go.set()
            flow.end()
            assert (await shop.jobs.wait(run)).state == "completed"
            await asyncio.to_thread(wait_committed, shop.broker, 24)
        assert not gate.active
        assert not gate.waiting

    run(test)


def test_a_scheduler_of_the_users_own_cannot_share(tmp_path: Path, shop: Shop):
    class Own(StreamScheduler):
        def on_schedule_consumption(self, jobs: Any) -> None: ...

    shop.module.app = app_on(shop.broker, scheduler=Own)  # type: ignore[attr-defined]
    loaded = load_mapping(
        configured(tmp_path, pools={"gpu": {"slots": 2, "doors": DOORS}}, **shop.sections())
    )
    with pytest.raises(ConfigError, match="Own, the app's own scheduler, has no gate"):
        Server(loaded)


def test_an_app_that_joins_the_gate_of_another_door_cannot_share(tmp_path: Path, shop: Shop):
    taken = Slots(2)
    with ThreadScheduler.bounded(capacity=taken):
        shop.module.app = app_on(shop.broker, capacity=taken)  # type: ignore[attr-defined]
        doors = {"gpu": {"slots": 2, "doors": DOORS}}
        with pytest.raises(ConfigError, match="the app's capacity has a gate already"):
            Server(load_mapping(configured(tmp_path, pools=doors, **shop.sections())))
        Server(load_mapping(configured(tmp_path, **shop.sections())))  # in no pool it may
        assert shop.module.app.make_gate is Gate


def test_what_if_of_a_pool_changes_its_slots_and_its_weights(tmp_path: Path):
    flows = {
        "http": HERE,
        "control_points": {name: {"concurrency": {"max_concurrency": 9}} for name in ("a", "b")},
    }
    pools = {"gpu": {"slots": 2, "doors": {"flows/a": 1, "flows/b": 1}}}

    async def test() -> None:
        async with served(configured(tmp_path, pools=pools, flows=flows)) as client:
            door = next(door for door in client.server.doors if door.name == "flows")
            scheduler = door.server.flows  # type: ignore[attr-defined]

            async def flow(point: str) -> None:
                async with scheduler.flow(point, timeout=20) as one:
                    assert one.should_run()
                    await asyncio.sleep(0.01)

            await asyncio.gather(*(flow(point) for point in "ab" for _ in range(10)))

            async def replayed(changes: dict[str, Any]) -> dict[str, Any]:
                body = {"gate": "pool/gpu", "minutes": 5, "changes": changes}
                status, found = await client.ask("POST", "/api/v1/whatif", body)
                assert status == 200, found
                assert found["tickets"] == 20
                return {
                    name: figures["wait.p95"]
                    for name, figures in found["after"]["groups"]["class"].items()
                }

            now = await replayed({})
            fewer = await replayed({"capacity.slots": 1})
            assert all(fewer[name] > now[name] for name in now)
            heavier = await replayed({"policy.fair.weights.flows/b": 9})
            assert heavier["flows/b default"] < now["flows/b default"]

    run(test)


def test_what_if_of_a_pool_that_lends_replays_jobs_and_batches_too(tmp_path: Path, shop: Shop):
    """Every door is replayed under its own order, and all of them together on the slots of the pool."""

    async def test() -> None:
        pools = {"gpu": {"slots": 2, "doors": DOORS}}
        sections = shop.sections() | {"demo": {"upstream": True, "traffic": False}}
        async with served(configured(tmp_path, pools=pools, **sections)) as client:
            shop.go.set()
            proxy = next(one for one in client.server.doors if one.name == "gateway").links()
            run = await shop.jobs.submit(shop.dag(*["small"] * 12, *["large"] * 4))
            for _ in range(4):
                async with client.session.get(f"{proxy['proxy']}/v1/x") as answer:
                    await answer.read()
            assert (await shop.jobs.wait(run)).state == "completed"
            await asyncio.to_thread(wait_committed, shop.broker, 24)
            gate = next(one for one in client.server.doors if one.name == "pool/gpu").pool.gate  # type: ignore[attr-defined]
            await until(lambda: not gate.active and not gate.waiting)

            async def replayed(changes: dict[str, Any]) -> dict[str, Any]:
                body = {"gate": "pool/gpu", "minutes": 5, "changes": changes}
                status, found = await client.ask("POST", "/api/v1/whatif", body)
                assert status == 200, found
                groups: dict[str, Any] = found["after"]["groups"]
                return {
                    name: (one["done"], one["wait.p95"]) for name, one in groups["class"].items()
                }

            now = await replayed({})
            assert {name: done for name, (done, _) in now.items()} == {
                "gateway/default default": 4,
                "jobs/leader default": 12,
                "jobs/leader threads": 4,
                "streams/workers orders": 24,
            }
            fewer = await replayed({"capacity.slots": 1})
            assert fewer["streams/workers orders"][1] > now["streams/workers orders"][1]
            more = {"capacity.slots": 64, "doors.streams/workers.concurrency": 24}
            more |= {"doors.jobs/leader.executors.default": 12}
            alone = await replayed(more)
            assert alone["jobs/leader default"][1] == 0.0
            status, found = await client.ask(
                "POST",
                "/api/v1/whatif",
                {
                    "gate": "pool/gpu",
                    "minutes": 5,
                    "changes": {"doors.jobs/leader.planner": "none"},
                },
            )
            assert (status, found["code"]) == (422, "bad_change")

    run(test)


APPLICATION = """
import asyncio, threading
from fairlead.jobs import Jobs
from fairlead.streams import Consumer, StreamApp
from fairlead.testing.streams import MemoryBroker

lock, inside, most = threading.Lock(), 0, 0


def enter():
    global inside, most
    with lock:
        inside += 1
        most = max(most, inside)


def leave():
    global inside
    with lock:
        inside -= 1


broker = MemoryBroker({"orders": 2})
for number in range(20):
    broker.write("orders", b"x", partition=number % 2)
jobs = Jobs("sqlite:///jobs.db", executors={"threads": 3})


@jobs.task(executor="threads")
def count():
    enter()
    leave()
    return most


class Orders(Consumer):
    def consume(self, messages):
        enter()
        sum(range(10_000))
        leave()


app = StreamApp(group="g", concurrency=3, broker=broker)
app.topic("orders", Orders, batch_size=1)
"""
CONFIGURATION = """
server: {listen: "127.0.0.1:0"}
jobs: {app: "application:jobs"}
streams: {app: "application:app"}
pools: {gpu: {slots: 1, doors: {jobs/leader: 1, streams/workers: 1}}}
demo: {upstream: false, traffic: false}
"""


def test_fairlead_serve_lends_one_slot_to_jobs_and_streams_in_turn(tmp_path: Path):
    """In a process of its own, from a file; another process submits, and reads how many were inside at most."""
    (tmp_path / "application.py").write_text(APPLICATION)
    (tmp_path / "fairlead.yaml").write_text(CONFIGURATION)

    async def test() -> None:
        async with process(tmp_path) as served, aiohttp.ClientSession() as session:
            url = await begun(served)
            client = Jobs(f"sqlite:///{tmp_path}/jobs.db")
            client.task(name="count", executor="threads")(int)
            dag = Dag("counts")
            last = [dag.add("count") for _ in range(12)][-1]
            outcome = await client.wait(await client.submit(dag))
            assert outcome.state == "completed"
            assert outcome.results[last.name] == 1
            await client.close()

            async with session.get(f"{url}/api/v1/events") as events:
                async for line in events.content:
                    told = json.loads(line[6:]) if line.startswith(b"data: {") else {}
                    totals = [
                        one["totals"] for one in told.get("gates", ()) if one["id"] == "pool/gpu"
                    ]
                    if totals and totals[0]["completed"] == 32:
                        break
            served.process.terminate()
            assert await served.ended() == 0

    run(test)
