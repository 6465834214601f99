"""An application behind a control point: labels, refusals, when its flow ends, clients that leave."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fairlead.flows.ahead import Ahead
from fairlead.flows.client import FlowClient
from fairlead.flows.middleware import FlowMiddleware
from fairlead.flows.scheduler import FlowScheduler
from fairlead.serving.listener import Listener
from tests.flows.service_rig import ONE, serving, url
from tests.gateway.rig import connected, run, until, within


class Application:
    """Holds each request until the test lets it go; tells what it saw."""

    def __init__(self) -> None:
        self.entered: asyncio.Queue[asyncio.Event] = asyncio.Queue()
        self.bodies: list[bytes] = []
        self.disconnects = 0
        self.fails = False
        self.status = 200
        self.lingers: asyncio.Event | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            self.bodies.append(scope["type"].encode())
            return
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.disconnects += 1
                return
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        self.bodies.append(body)
        gate = asyncio.Event()
        self.entered.put_nowait(gate)
        leaving = asyncio.create_task(receive())
        waiting = asyncio.create_task(gate.wait())
        await asyncio.wait({leaving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        for task in (leaving, waiting):
            task.cancel()
        await asyncio.wait({leaving, waiting})
        if not gate.is_set():
            self.disconnects += 1
            return
        if self.fails:
            raise ValueError("the application fails")
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await send({"type": "http.response.body", "body": b"b"})
        if self.lingers is not None:
            await self.lingers.wait()

    async def next(self) -> asyncio.Event:
        gate: asyncio.Event = await within(self.entered.get())
        return gate


@asynccontextmanager
async def listening(app: Any) -> AsyncIterator[str]:
    listener = Listener(app, "127.0.0.1:0")
    await listener.begin()
    try:
        yield f"http://{listener.address}"
    finally:
        await listener.end()


@asynccontextmanager
async def guarded(
    config: Any = ONE, **given: Any
) -> AsyncIterator[tuple[Application, FlowScheduler, str]]:
    app, flows = Application(), FlowScheduler.from_config(config)
    async with listening(FlowMiddleware(app, flows, "one", **given)) as where:
        yield app, flows, where


def active(flows: FlowScheduler) -> int:
    return flows.points["one"].gate.active


async def until_waiting(flows: FlowScheduler, count: int = 1) -> None:
    await until(lambda: flows.points["one"].gate.waiting == count)


def test_requests_take_turns_and_their_bodies_arrive_whole():
    async def main():
        async with guarded() as (app, flows, where):
            async with connected(where) as first, connected(where) as second:
                first.request("POST", "/", [], b"first")
                gate = await app.next()
                second.request("POST", "/", [], b"second" * 10_000)
                await until_waiting(flows)
                gate.set()
                assert (await first.response())[1] == b"ab"
                (await app.next()).set()
                assert (await second.response())[1] == b"ab"
            assert app.bodies == [b"first", b"second" * 10_000]
            await until(lambda: active(flows) == 0)

    run(main())


def test_a_refusal_is_json_with_when_to_come_back():
    async def main():
        async with guarded(timeout=0.05) as (app, flows, where):
            async with connected(where) as first, connected(where) as second:
                first.request()
                gate = await app.next()
                head, body = await second.ask("GET", "/again")
                assert head.status == 503
                assert int(head.get("retry-after")) >= 1
                said = json.loads(body)
                assert (said["decision"], said["reason"]) == ("rejected", "timeout")
                second.request("HEAD", "/")
                head, body = await second.response(bodiless=True)
                assert head.status == 503
                gate.set()
                await first.response()
            assert len(app.bodies) == 1
            assert active(flows) == 0

    run(main())


def test_the_flow_ends_with_the_response_not_with_the_application():
    async def main():
        async with guarded() as (app, flows, where):
            app.lingers = asyncio.Event()
            async with connected(where) as client:
                client.request()
                (await app.next()).set()
                await client.response()
                await until(lambda: active(flows) == 0)
            app.lingers.set()

    run(main())


@pytest.mark.parametrize("status", [200, 404, 500, 503])
def test_how_the_response_went_is_told(status):
    async def main():
        async with guarded() as (app, flows, where):
            app.status = status
            async with connected(where) as client:
                client.request()
                (await app.next()).set()
                assert (await client.response())[0].status == status
            await until(lambda: active(flows) == 0)
            counts = flows.points["one"].counts
            assert counts.ended_flows == 1
            assert counts.failed_flows == (status >= 500)

    run(main())


def test_an_application_that_raises_ends_its_flow():
    async def main():
        async with guarded() as (app, flows, where):
            app.fails = True
            async with connected(where) as client:
                client.request()
                (await app.next()).set()
                assert (await client.response())[0].status == 500
            assert active(flows) == 0
            assert flows.points["one"].counts.failed_flows == 1

    run(main())


def test_a_client_that_leaves_while_it_runs_ends_its_flow():
    async def main():
        async with guarded() as (app, flows, where):
            async with connected(where) as client:
                client.request()
                await app.next()
                client.reset()
                await until(lambda: active(flows) == 0)
            assert app.disconnects == 1

    run(main())


@pytest.mark.parametrize("body", [None, b"some", b"x" * 1_000_000])
def test_a_client_that_leaves_while_it_waits_frees_its_place(body):
    async def main():
        async with guarded() as (app, flows, where):
            async with connected(where) as first, connected(where) as second:
                first.request()
                gate = await app.next()
                second.request("POST", "/", [], body)
                await until_waiting(flows)
                if body is None or len(body) < 1000:
                    second.reset()
                    await until_waiting(flows, 0)
                gate.set()
                await first.response()
                if flows.points["one"].gate.active:
                    (await app.next()).set()
                    assert (await second.response())[1] == b"ab"
            await until(lambda: active(flows) == 0)

    run(main())


def test_one_who_leaves_just_after_it_was_let_in_is_the_applications():
    async def main():
        async with guarded() as (app, flows, where):
            async with connected(where) as first, connected(where) as second:
                first.request()
                gate = await app.next()
                second.request("POST", "/", [], b"body")
                await until_waiting(flows)
                gate.set()
                await first.response()
                await app.next()
                second.reset()
                await until(lambda: app.disconnects == 1)
            await until(lambda: active(flows) == 0)
            assert app.bodies[-1] == b"body"

    run(main())


def test_what_is_being_read_when_the_turn_comes_is_not_lost():
    class Turn:
        """A flow whose turn the test gives."""

        def __init__(self) -> None:
            self.come = asyncio.get_running_loop().create_future()

        async def __aenter__(self) -> None:
            await self.come

    async def main():
        messages: asyncio.Queue[Any] = asyncio.Queue()
        reads = 0

        async def receive() -> Any:
            nonlocal reads
            reads += 1
            return await messages.get()

        turn, ahead = Turn(), Ahead(receive)
        entering = asyncio.create_task(ahead.enter(turn))
        messages.put_nowait({"type": "http.request", "body": b"1", "more_body": True})
        await until(lambda: reads == 2)  # one has been read, the next is asked for
        turn.come.set_result(None)
        assert await entering is True
        assert (await ahead.reader())["body"] == b"1"
        second = asyncio.ensure_future(ahead.reader())
        await asyncio.sleep(0)
        assert reads == 2
        messages.put_nowait({"type": "http.request", "body": b"2"})
        assert (await within(second))["body"] == b"2"
        messages.put_nowait({"type": "http.disconnect"})
        assert (await within(ahead.reader()))["type"] == "http.disconnect"
        assert (reads, ahead.left) == (3, False)

    run(main())


def test_a_task_that_others_cancel_is_cancelled():
    class Never:
        async def __aenter__(self) -> None:
            await asyncio.get_running_loop().create_future()

    async def main():
        async def receive() -> Any:
            return await asyncio.get_running_loop().create_future()

        ahead = Ahead(receive)
        entering = asyncio.create_task(ahead.enter(Never()))
        await asyncio.sleep(0)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        ahead.stop()

    run(main())


def scope(**more: Any) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "GET",
        "path": "/a b",
        "raw_path": b"/a%20b",
        "query_string": b"q=1",
        "headers": [
            (b"host", b"shop"),
            (b"x-api-key", b"k"),
            (b"x-api-key", b"k2"),
            (b"cookie", b"c"),
        ],
        **more,
    }


def test_default_labels():
    flows = FlowScheduler.from_config({"control_points": {"one": {}}})
    middleware = FlowMiddleware(Application(), flows, "one", headers=["X-API-Key", "user-agent"])
    assert middleware.labels_of(scope()) == {
        "http.method": "GET",
        "http.target": "/a%20b?q=1",
        "http.host": "shop",
        "http.request.header.x_api_key": "k",
    }
    plain = scope(query_string=b"", headers=[])
    del plain["raw_path"]
    assert middleware.labels_of(plain) == {"http.method": "GET", "http.target": "/a b"}


def test_labels_choose_the_workload():
    config = {
        "control_points": {
            "one": {
                "scheduler": {"workloads": [{"name": "gold", "match_labels": {"plan": "gold"}}]},
            }
        }
    }

    async def main():
        async with guarded(config, labels=lambda scope: {"plan": scope["path"][1:]}) as parts:
            app, flows, where = parts
            for path in ("/gold", "/tin"):
                async with connected(where) as client:
                    client.request("GET", path)
                    (await app.next()).set()
                    await client.response()
            text, _ = flows.metrics()
            for workload in (b"gold", b"default"):
                assert b'workload="%s"} 1.0' % workload in text

    run(main())


def test_what_is_no_request_passes():
    async def main():
        app = Application()
        middleware = FlowMiddleware(app, FlowScheduler.from_config(ONE), "one")
        await middleware({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
        await middleware({"type": "websocket"}, None, None)  # type: ignore[arg-type]
        assert app.bodies == [b"lifespan", b"websocket"]

    run(main())


def test_a_service_elsewhere_decides_as_well():
    async def main():
        app = Application()
        async with serving() as server, FlowClient(url(server), check_timeout=None) as client:
            gate_of = server.flows.points["one"].gate
            async with listening(FlowMiddleware(app, client, "one")) as where:
                async with connected(where) as first, connected(where) as second:
                    first.request("POST", "/", [], b"1")
                    held = await app.next()
                    second.request("POST", "/", [], b"2")
                    await until(lambda: gate_of.waiting == 1)
                    held.set()
                    await first.response()
                    (await app.next()).set()
                    await second.response()
                await until(lambda: gate_of.active == 0)
                async with connected(where) as first, connected(where) as second:
                    first.request()
                    held = await app.next()
                    second.request()
                    await until(lambda: gate_of.waiting == 1)
                    second.reset()
                    await until(lambda: gate_of.waiting == 0)
                    held.set()
                    await first.response()
            assert app.bodies == [b"1", b"2", b""]

    run(main())


def test_a_service_elsewhere_refuses_as_well():
    async def main():
        app = Application()
        async with serving() as server, FlowClient(url(server), fail="closed") as client:
            holder = await client.start_flow("one")
            async with listening(FlowMiddleware(app, client, "one", timeout=0.05)) as where:
                async with connected(where) as asking:
                    head, body = await asking.ask("GET", "/")
                    assert (head.status, json.loads(body)["reason"]) == (503, "timeout")
                await holder.end()
                await server.http.end()  # type: ignore[union-attr]
                async with connected(where) as asking:
                    head, body = await asking.ask("GET", "/")
                    assert (head.status, head.get("retry-after")) == (503, "1")
                    assert json.loads(body)["reason"] == "unreachable"

    run(main())
