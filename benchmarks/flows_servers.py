"""The servers that the flows suite asks, each a process of its own.

python -m benchmarks.flows_servers NAME      what the suite starts

A server takes a free port on loopback, prints it, and serves until its standard input ends, so that none outlives the
benchmark.  The bare ones answer without deciding anything, on the very server that the product uses.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from benchmarks.gateway_servers import leave_with_parent, tell

Server = Callable[[], Coroutine[Any, Any, None]]
Codec = tuple[Callable[[bytes], Any], Callable[[Any], bytes]]

ANYWHERE = "127.0.0.1:0"
SETTINGS = {
    "control_points": {
        "checkout": {"quota": {"bucket_capacity": 1e9, "fill_amount": 1e9, "interval": "1s"}}
    }
}
# As long as what the product answers to a check.
ANSWER = (
    b'{"decision":"accepted","flow_id":"9c1f0d5e7b3a42688a6f0e1d2c3b4a59","control_point":"checkout",'
    b'"workload":"default","priority":1.0,"tokens":1.0,"wait":0.0}'
)
START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(ANSWER)),
        (b"cache-control", b"no-store"),
    ],
}


def standard() -> Codec:
    """JSON by the standard library; the encoder is made once, where `json.dumps` would make one for each answer."""
    encode = json.JSONEncoder(separators=(",", ":")).encode
    return json.loads, lambda said: encode(said).encode()


def quickest() -> Codec:
    """JSON by what the product reads and writes it with."""
    from pydantic_core import from_json, to_json

    return from_json, to_json


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


async def rest(port: int) -> None:
    """Serve until the parent leaves."""
    gc.collect()
    gc.freeze()  # as the product does
    tell(port)
    await asyncio.Event().wait()


async def bare(codec: Codec | None = None) -> None:
    """An ASGI callable on the product's own listener that answers without deciding: in JSON, or with fixed bytes.

    It neither finds a route nor asks who is there, and takes whatever the body says for good.
    """
    from fairlead.serving.listener import Listener

    async def fixed(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        while message.get("more_body", False):
            message = await receive()
        await send(START)
        await send({"type": "http.response.body", "body": ANSWER})

    def reading(codec: Codec) -> Any:
        read, write = codec
        said = read(ANSWER)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            message = await receive()
            while message.get("more_body", False):
                message = await receive()
            said["control_point"] = read(message["body"])["control_point"]
            body = write(said)
            await send(START)
            await send({"type": "http.response.body", "body": body})

        return app

    listener = Listener(fixed if codec is None else reading(codec), ANYWHERE)
    await listener.begin()
    await rest(port_of(listener.address))


async def product(wire: str) -> None:
    """The product over HTTP or gRPC."""
    from fairlead.flows import load
    from fairlead.flows.serving import FlowServer

    loaded = load(SETTINGS)
    given: dict[str, Any] = {"http": None, wire: ANYWHERE}
    async with FlowServer(loaded, **given) as server:
        listener = getattr(server, wire)
        await rest(port_of(listener.address))


async def handler(*, messages: bool) -> None:
    """A gRPC handler that answers without deciding, with the product's messages or with their bytes."""
    import grpc
    import grpc.aio

    from fairlead.flows import messages as wire
    from fairlead.flows.grpc_service import OPTIONS

    request, reply = wire.message("CheckRequest"), wire.message("CheckResponse")
    fixed = reply(control_point="checkout", flow_label_keys=["user_id"]).SerializeToString()

    async def check(asked: Any, context: Any) -> Any:
        if not messages:
            return fixed
        return reply(control_point=asked.control_point, flow_label_keys=sorted(asked.labels))

    deed = grpc.unary_unary_rpc_method_handler(
        check,
        request_deserializer=request.FromString if messages else None,
        response_serializer=reply.SerializeToString if messages else None,
    )
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(wire.SERVICE, {"Check": deed}),)
    )
    port = server.add_insecure_port(ANYWHERE)
    await server.start()
    await rest(port)


SERVERS: dict[str, Server] = {
    "flows": lambda: product("http"),
    "messages": lambda: bare(standard()),
    "quick-messages": lambda: bare(quickest()),
    "bytes": lambda: bare(),
    "grpc": lambda: product("grpc"),
    "grpc-messages": lambda: handler(messages=True),
    "grpc-bytes": lambda: handler(messages=False),
}


def main(name: str) -> None:
    import uvloop

    logging.getLogger("fairlead").setLevel(logging.ERROR)
    threading.Thread(target=leave_with_parent, daemon=True).start()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(SERVERS[name]())


if __name__ == "__main__":
    main(*sys.argv[1:])
