"""What the tests of the flow service share: a whole service on loopback, and questions to it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fairlead.flows.loading import load
from fairlead.flows.serving import FlowServer
from tests.gateway.rig import Client, Head, connected, until

JSON = [("content-type", "application/json")]
ONE = {"control_points": {"one": {"concurrency": {"max_concurrency": 1}}}}


@asynccontextmanager
async def serving(
    config: Any = None, *, grpc: bool = False, grace: float = 0.0, **given: Any
) -> AsyncIterator[FlowServer]:
    """Run a service on free ports for the length of a block; what is not ended then is waited for during `grace`."""
    loaded = load(ONE if config is None else config)
    assert not loaded.problems, loaded.lines
    given.setdefault("http", "127.0.0.1:0")
    async with FlowServer(loaded, grpc="127.0.0.1:0" if grpc else None, **given) as server:
        server.grace = grace
        yield server


def url(server: FlowServer) -> str:
    assert server.http is not None
    return f"http://{server.http.address}"


def body_of(content: Any) -> bytes:
    return content if isinstance(content, bytes) else json.dumps(content).encode()


async def post(client: Client, path: str, content: Any) -> tuple[Head, Any]:
    """Ask on a connection, and read the JSON of the answer."""
    head, body = await client.ask("POST", path, JSON, body_of(content))
    return head, json.loads(body)


async def check(server: FlowServer, control_point: str = "one", **more: Any) -> tuple[Head, Any]:
    """Ask for a flow, on a connection of its own."""
    async with connected(url(server)) as client:
        return await post(client, "/v1/flows/check", {"control_point": control_point, **more})


async def end(server: FlowServer, flow_id: str, **more: Any) -> tuple[Head, Any]:
    """End a flow, on a connection of its own."""
    async with connected(url(server)) as client:
        return await post(client, "/v1/flows/end", {"flow_id": flow_id, **more})


def waiting(server: FlowServer, control_point: str = "one") -> int:
    return server.flows.points[control_point].gate.waiting


def active(server: FlowServer, control_point: str = "one") -> int:
    return server.flows.points[control_point].gate.active


async def until_waiting(server: FlowServer, count: int = 1, control_point: str = "one") -> None:
    await until(lambda: waiting(server, control_point) == count)
