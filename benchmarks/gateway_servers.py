"""The servers that the gateway suite puts load on, each a process of its own.

python -m benchmarks.gateway_servers NAME [ARGUMENT]      what the suite starts

A server takes a free port on loopback, prints it, and serves until its standard input ends, so that none outlives the
benchmark.  It loads only what it serves: each function imports what it needs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

Server = Callable[[str], Coroutine[Any, Any, None]]

HEAD = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/plain"), (b"content-length", b"13")],
}
BODY = {"type": "http.response.body", "body": b"Hello, world!"}
WIRE = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 13\r\n\r\nHello, world!"
SLOTS = 256
RESERVED = 128  # slots that the bulk requests in front of a queue cannot have
LONG = "300s"


async def hello(scope: Any, receive: Any, send: Any) -> None:
    """The floor: a bare ASGI callable.  What asks for /hold is held until its client leaves."""
    if scope["path"] == "/hold":
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    await send(HEAD)
    await send(BODY)


class NoOp:
    """A pure ASGI middleware that sees every message, as admission has to, and does nothing."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def pass_on(message: Any) -> None:
            await send(message)

        await self.app(scope, receive, pass_on)


def admitted(argument: str) -> Any:
    """The product: built-in classes, 256 slots, and its state for whoever asks for /healthz, which is exempt.

    With an argument that many bulk requests may wait; what interactive keeps from them is not lent meanwhile.
    """
    from fairlead.gateway import PriorityMiddleware

    classes: dict[str, Any] = {
        "interactive": {"reserved_floor": RESERVED, "starvation_threshold": LONG},
        "bulk": {"queue_size": int(argument or 1024), "starvation_threshold": LONG},
    }
    scheduler = {
        "enabled": True,
        "default_max_class": "interactive",
        "classes": classes if argument else {},
    }
    app = PriorityMiddleware(hello_or_state, {"capacity": SLOTS, "priority_scheduler": scheduler})
    if app.admission.problems:
        raise SystemExit("\n".join(app.admission.problems))

    def state() -> bytes:
        pool = app.admission.pools[""]
        return json.dumps({"active": pool.gate.active, "waiting": pool.gate.waiting}).encode()

    STATE.append(state)
    return app


STATE: list[Callable[[], bytes]] = []


async def hello_or_state(scope: Any, receive: Any, send: Any) -> None:
    if scope["path"] != "/healthz":
        await hello(scope, receive, send)
        return
    body = STATE[0]()
    length = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": length})
    await send({"type": "http.response.body", "body": body})


def starlette(argument: str) -> Any:
    """Starlette alone, or with slowapi's limit on its route."""
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    async def home(request: Any) -> Any:
        return PlainTextResponse("Hello, world!")

    if argument != "slowapi":
        return Starlette(routes=[Route("/", home)])
    from slowapi import Limiter
    from slowapi.util import get_remote_address

    limiter = Limiter(key_func=get_remote_address)
    app = Starlette(routes=[Route("/", limiter.limit("100000000/second")(home))])
    app.state.limiter = limiter
    return app


def on_uvicorn(make: Callable[[str], Any]) -> Server:
    """Serve an ASGI application as most do: uvicorn with uvloop and httptools."""

    async def serve(argument: str) -> None:
        import uvicorn

        config = uvicorn.Config(
            make(argument), http="httptools", lifespan="off", log_level="warning", access_log=False
        )
        taken = socket.create_server(("127.0.0.1", 0), backlog=2048)
        tell(taken.getsockname()[1])
        await uvicorn.Server(config).serve([taken])

    return serve


def proxy_settings(upstream: str) -> Any:
    from fairlead.gateway import load

    listed = {"url": upstream, "capacity": SLOTS}
    given = {
        "listen": "127.0.0.1:0",
        "admin": {"listen": "127.0.0.1:0"},
        "upstreams": [listed],
        "priority_scheduler": {"enabled": True},
        "access_log": False,
    }
    loaded = load(given)
    if loaded.problems:
        raise SystemExit("\n".join(loaded.lines))
    return loaded


async def gateway(upstream: str) -> None:
    """The whole product, access log off."""
    from fairlead.gateway.serving import Gateway

    async with Gateway(proxy_settings(upstream)) as running:
        tell(int(running.data_listener.url.rpartition(":")[2]))
        await asyncio.Event().wait()


async def proxy(upstream: str) -> None:
    """The very same proxy on the same listener, without admission."""
    from fairlead.gateway.fleet import Fleet
    from fairlead.gateway.proxy import Proxy
    from fairlead.gateway.serving import listener_of

    settings = proxy_settings(upstream).settings
    fleet = Fleet(settings, lambda: None)
    listener = listener_of(Proxy(fleet, settings), settings.listen, lambda: settings)
    listener.bind()
    await fleet.start()
    await listener.begin()
    tell(int(listener.url.rpartition(":")[2]))
    await asyncio.Event().wait()


class Backend(asyncio.Protocol):
    """Answer every request with the same bytes, at once or after a while; requests have no body."""

    transport: asyncio.Transport

    def __init__(self, delay: float, loop: asyncio.AbstractEventLoop) -> None:
        self.delay = delay
        self.loop = loop
        self.rest = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        *heads, self.rest = (self.rest + data).split(b"\r\n\r\n")
        for _ in heads:
            if self.delay:
                self.loop.call_later(self.delay, self.answer)
            else:
                self.transport.write(WIRE)

    def answer(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(WIRE)


async def backend(delay: str) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Backend(float(delay or 0), loop), "127.0.0.1", 0, backlog=2048
    )
    tell(server.sockets[0].getsockname()[1])
    await asyncio.Event().wait()


SERVERS: dict[str, Server] = {
    "bare": on_uvicorn(lambda argument: hello),
    "no-op": on_uvicorn(lambda argument: NoOp(hello)),
    "admitted": on_uvicorn(admitted),
    "starlette": on_uvicorn(starlette),
    "gateway": gateway,
    "proxy": proxy,
    "backend": backend,
}


def tell(port: int) -> None:
    print(port, flush=True)


def leave_with_parent() -> None:
    """End when the other end of standard input is closed, however the benchmark ended."""
    while os.read(0, 1):
        pass
    os._exit(0)


def main(name: str, argument: str = "") -> None:
    import uvloop

    logging.getLogger("fairlead").setLevel(logging.ERROR)  # no advice on what is meant so
    threading.Thread(target=leave_with_parent, daemon=True).start()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(SERVERS[name](argument))


if __name__ == "__main__":
    main(*sys.argv[1:])
