"""A whole gateway between raw-socket clients and a hold-gate backend, and what tests ask of it."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import uvloop

from fairlead.gateway.serving import Gateway
from fairlead.gateway.settings import CLASSES
from tests.gateway.rig import (
    HEALTHY,
    Backend,
    Client,
    Head,
    Held,
    connected,
    fetch,
    gateway,
    until,
    within,
)
from tests.gateway.virtual import config, reading, settled

SOON = 0.25  # seconds in which a client that left must be noticed


class Site:
    """One gateway, its backend, and connections that are closed in the end."""

    def __init__(self, running: Gateway, backend: Backend, stack: AsyncExitStack) -> None:
        self.running = running
        self.backend = backend
        self.admission = running.admission
        self._stack = stack
        self._asked = 0

    @property
    def url(self) -> str:
        return self.running.data_listener.url

    @property
    def admin(self) -> str:
        return self.running.admin_listener.url

    async def ask(
        self,
        priority: str | None = None,
        *,
        path: str = "",
        tenant: str | None = None,
        headers: Iterable[tuple[str, str]] = (),
        method: str = "GET",
        body: bytes | None = None,
    ) -> Client:
        """Send a request on a connection of its own."""
        client = await self._stack.enter_async_context(connected(self.url))
        lines = list(headers)
        if priority is not None:
            lines.append(("x-fairlead-priority", priority))
        if tenant is not None:
            lines.append(("x-tenant-id", tenant))
        self._asked += 1
        client.request(method, path or f"/{self._asked}", lines, body)
        return client

    async def running_one(self, *args: Any, **options: Any) -> tuple[Client, Held]:
        """Send a request and wait until it has reached the backend."""
        client = await self.ask(*args, **options)
        return client, await self.backend.arrival()

    async def waiting(self, *args: Any, **options: Any) -> Client:
        """Send a request and wait until it waits."""
        before = self.depth()
        client = await self.ask(*args, **options)
        await until(lambda: self.depth() > before)
        return client

    async def streaming(self, *args: Any, **options: Any) -> tuple[Client, Held]:
        """Send a request and wait until its first byte has come."""
        client, held = await self.running_one(*args, **options)
        held.stream()
        held.event("first")
        await client.head()
        await client.chunk()
        return client, held

    def depth(self) -> int:
        return sum(pool.gate.waiting for pool in self.admission.pools.values())

    def inflight(self, name: str | None = None) -> int:
        pools = self.admission.pools.values()
        if name is None:
            return sum(pool.gate.active for pool in pools)
        return sum(pool.capacity.inflight[CLASSES.index(name)] for pool in pools)

    def gauge(self, name: str, **labels: str) -> float:
        return reading(self.admission, name, **labels)

    async def quiet(self) -> None:
        """See that nothing runs or waits any more, and that the books balance."""
        await until(lambda: self.inflight() == 0 and self.depth() == 0)
        settled(self.admission)

    async def operate(self, method: str, target: str, document: Any = None) -> tuple[Head, bytes]:
        """Ask the admin port."""
        body = None if document is None else json.dumps(document).encode()
        headers = [] if body is None else [("content-type", "application/json")]
        return await fetch(self.admin, method, target, headers, body)


@asynccontextmanager
async def site(
    capacity: int | str = 1, *, backend: Backend | None = None, **sections: Any
) -> AsyncIterator[Site]:
    """Run a gateway before one backend for the length of a block."""
    said = config(**sections)
    said.pop("capacity")
    async with backend or Backend() as started:
        upstream = {"url": started.url, "capacity": capacity, **HEALTHY}
        async with gateway(upstream, **said) as running, AsyncExitStack() as stack:
            yield Site(running, started, stack)


def code(head: Head, body: bytes) -> str:
    """The code of an error, which header and body must agree on."""
    document = json.loads(body)
    found: str = document["error"]["code"] if "error" in document else document["code"]
    assert head.get("x-fairlead-error-code") == found
    return found


async def answered(client: Client, timeout: float = 10.0) -> tuple[int, str, Head]:
    """Read a whole refusal: its status, its code, its head."""
    head, body = await within(client.response(), timeout)
    return head.status, code(head, body), head


async def fine(client: Client) -> bytes:
    """Read a whole answer that must be 200."""
    head, body = await within(client.response())
    assert head.status == 200, (head, body)
    return bytes(body)


async def elapsed(awaited: Any) -> tuple[float, Any]:
    """Tell how long something took."""
    loop = asyncio.get_running_loop()
    before = loop.time()
    result = await awaited
    return loop.time() - before, result


def run_on_uvloop(test: Any, timeout: float = 30.0) -> Any:
    """Run a test in the event loop that the gateway itself uses."""

    async def main() -> Any:
        async with asyncio.timeout(timeout):
            return await test

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())
