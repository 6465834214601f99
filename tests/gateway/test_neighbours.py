"""Between a stock uvicorn and applications that run task groups, as Starlette's streaming responses do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
import uvicorn

from fairlead.testing import run_virtual
from tests.gateway.rig import Client, connected, run, until, within
from tests.gateway.sockets import answered, fine
from tests.gateway.virtual import Scene, settled, ticks


class Streaming:
    """Streams from one task of a group while another listens for the client's departure."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.arrived = asyncio.Event()
        self.ends: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.arrived.set()
        async with anyio.create_task_group() as group:

            async def stream() -> None:
                try:
                    await send({"type": "http.response.start", "status": 200, "headers": []})
                    await self.go.wait()
                    for _ in range(3):
                        await send({"type": "http.response.body", "body": b"x", "more_body": True})
                        await anyio.sleep(0.1)
                    await send({"type": "http.response.body", "body": b""})
                    self.ends.append("streamed")
                except asyncio.CancelledError:
                    self.ends.append("cancelled")
                    raise
                group.cancel_scope.cancel()

            group.start_soon(stream)
            while (await receive())["type"] != "http.disconnect":
                pass
            self.ends.append("left")
            group.cancel_scope.cancel()


class TestTaskGroups:
    @pytest.mark.parametrize("waits", [False, True])
    def test_a_stream_runs_to_its_end(self, waits):
        async def main() -> None:
            scene = Scene()
            holder = (await scene.running())[1] if waits else None
            app = Streaming()
            scene.guarded.app = app
            client = scene.client("bulk")
            await ticks()
            if holder is not None:
                await holder.answer()
            await app.arrived.wait()
            app.go.set()
            assert (await client.done()).body == b"xxx"
            assert app.ends == ["streamed"]
            await ticks()
            scene.quiet()

        run_virtual(main())

    @pytest.mark.parametrize("waits", [False, True])
    @pytest.mark.parametrize("streams", [False, True])
    def test_a_client_that_leaves_frees_the_slot(self, waits, streams):
        async def main() -> None:
            scene = Scene()
            holder = (await scene.running())[1] if waits else None
            app = Streaming()
            scene.guarded.app = app
            client = scene.client("bulk")
            await ticks()
            if holder is not None:
                await holder.answer()
            await app.arrived.wait()
            if streams:
                app.go.set()
                await asyncio.sleep(0.15)
            client.leave()
            await client.done()
            assert app.ends == ["left", "cancelled"]
            assert scene.ended("disconnected") == 1
            await ticks()
            scene.quiet()

        run_virtual(main())

    @pytest.mark.parametrize("waits", [False, True])
    def test_preemption_ends_the_whole_group(self, waits):
        async def main() -> None:
            scene = Scene()
            holder = (await scene.running("default"))[1] if waits else None
            hold_gate, app = scene.app, Streaming()
            scene.guarded.app = app
            victim = scene.client("bulk")
            await ticks()
            if holder is not None:
                await holder.answer()
            await app.arrived.wait()
            scene.guarded.app = hold_gate
            by, held = await scene.running("interactive")
            assert (await victim.done()).status == 503
            assert app.ends == ["cancelled"]
            await held.answer()
            await by.done()
            await ticks()
            scene.quiet()

        run_virtual(main())

    def test_a_preemption_in_a_group_of_the_servers_own(self):
        """The server runs the request in a group too: what we cancel must not end its other requests."""

        async def main() -> None:
            scene = Scene()
            outcomes = []

            async def serve(client: Any) -> None:
                await scene.guarded(client.scope, client.receive, client.send)
                await anyio.sleep(1)
                outcomes.append(client.status)

            clients = []
            async with anyio.create_task_group() as server:
                for priority in ("bulk", "interactive"):
                    client = scene.client(priority)
                    client.task.cancel()
                    clients.append(client)
                    server.start_soon(serve, client)
                    await scene.app.next()
                await scene.app.inside[clients[1].path].answer()
            assert outcomes == [503, 200]
            scene.quiet()

        run_virtual(main())


@asynccontextmanager
async def under_uvicorn(**sections: Any) -> AsyncIterator[tuple[Scene, str]]:
    """Serve the middleware by a uvicorn as it comes."""
    scene = Scene(**sections)
    server = uvicorn.Server(
        uvicorn.Config(scene.guarded, port=0, log_config=None, lifespan="off", access_log=False)
    )
    serving = asyncio.create_task(server._serve())  # `serve` would take the signals
    await until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield scene, f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await within(serving)


async def ask(url: str, stack: Any, priority: str) -> Client:
    client: Client = await stack.enter_async_context(connected(url))
    client.request("GET", f"/{priority}", [("x-fairlead-priority", priority)])
    return client


def test_under_a_stock_uvicorn():
    async def main() -> None:
        from contextlib import AsyncExitStack

        classes = {"default": {"queue_size": 1}}
        async with under_uvicorn(classes=classes) as (scene, url), AsyncExitStack() as stack:
            victim = await ask(url, stack, "bulk")
            await within(scene.app.arrivals.get())
            by = await ask(url, stack, "interactive")
            assert (await answered(victim))[:2] == (503, "scheduler_preempted")
            held = await within(scene.app.arrivals.get())
            ghost = await ask(url, stack, "default")
            await until(lambda: scene.depth() == 1)
            assert (await answered(await ask(url, stack, "default")))[0] == 429
            ghost.reset()
            await until(lambda: scene.depth() == 0)
            last = await ask(url, stack, "default")
            await until(lambda: scene.depth() == 1)
            await held.answer(b"first")
            assert await fine(by) == b"first"
            held = await within(scene.app.arrivals.get())
            await held.head()
            await held.chunk(b"one")
            await last.head()
            assert await last.chunk() == b"one"
            await held.chunk(b"", more=False)
            await held.leave()
            assert await last.chunk() == b""
            settled(scene.admission)

    run(main())


def test_under_a_stock_uvicorn_the_connection_of_a_refused_body_is_closed():
    async def main() -> None:
        limits = {"body_bytes": 1000}
        async with under_uvicorn(limits=limits) as (scene, url), connected(url) as client:
            client.send("POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
            client.send(b"800\r\n" + bytes(0x800))  # and the rest never comes
            head, body = await client.response()
            assert (head.status, head.get("connection")) == (413, "close")
            assert b"body_too_large" in body
            assert await client.ended() == b""
            settled(scene.admission)

    run(main())
