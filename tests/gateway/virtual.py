"""The middleware on a virtual loop: a hold-gate application, a client that checks what it is sent, books that balance.

The application signals each arrival and then does what the test tells it, one deed at a time.  The client is the
server's side of ASGI: it refuses a second head, bytes after the end, and a length that does not hold.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from fairlead.gateway.metrics import DISCONNECTED, FAILED, PREEMPTED
from fairlead.gateway.middleware import PriorityMiddleware
from fairlead.gateway.settings import CLASSES

Header = tuple[bytes, bytes]


class Held:
    """One request inside the application, which does what the test tells it."""

    def __init__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scope, self.receive, self.raw_send = scope, receive, send
        self.path: str = scope["path"]
        self.deeds: asyncio.Queue[tuple[Callable[[], Awaitable[Any]] | None, Any]] = asyncio.Queue()
        self.cancellations = 0
        self.over = asyncio.Event()

    async def run(self, stubborn: int) -> None:
        while True:
            try:
                deed, told = await self.deeds.get()
                if deed is None:
                    told.set_result(None)
                    return
                told.set_result(await deed())
            except asyncio.CancelledError:
                self.cancellations += 1
                if self.cancellations > stubborn:
                    raise

    async def do(self, deed: Callable[[], Awaitable[Any]] | None) -> Any:
        """Have the application do something; wait until it has."""
        told = asyncio.get_running_loop().create_future()
        self.deeds.put_nowait((deed, told))
        return await told

    def post(self, deed: Callable[[], Awaitable[Any]] | None) -> None:
        """Have the application do something, whenever it comes to it."""
        self.deeds.put_nowait((deed, asyncio.get_running_loop().create_future()))

    async def send(self, message: Any) -> None:
        """Have the application send one message."""
        await self.do(lambda: self.raw_send(message))

    async def head(self, status: int = 200, headers: Iterable[Header] = (), **more: Any) -> None:
        start = {"type": "http.response.start", "status": status, "headers": list(headers)}
        await self.send(start | more)

    async def chunk(self, body: bytes = b"x", more: bool = True) -> None:
        await self.send({"type": "http.response.body", "body": body, "more_body": more})

    async def answer(self, body: bytes = b"done", status: int = 200) -> None:
        """Have the application answer and return."""
        await self.head(status)
        await self.chunk(body, more=False)
        await self.leave()

    async def leave(self) -> None:
        """Have the application return."""
        await self.do(None)
        await self.over.wait()

    def fail(self, error: BaseException) -> None:
        """Have the application raise."""

        async def deed() -> None:
            raise error

        self.post(deed)

    async def read(self) -> Any:
        """Have the application read one message."""
        return await self.do(self.receive)


class HoldGate:
    """The application: it signals arrival and parks until it is told what to do."""

    def __init__(self, stubborn: int = 0) -> None:
        self.arrivals: asyncio.Queue[Held] = asyncio.Queue()
        self.inside: dict[str, Held] = {}
        self.stubborn = stubborn  # how many cancellations it swallows
        self.stubborn_paths: set[str] = set()  # where it swallows one more
        self.most = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        held = Held(scope, receive, send)
        self.inside[held.path] = held
        self.most = max(self.most, len(self.inside))
        self.arrivals.put_nowait(held)
        try:
            await held.run(self.stubborn + (held.path in self.stubborn_paths))
        finally:
            held.over.set()
            del self.inside[held.path]

    async def next(self) -> Held:
        """Wait for the next arrival."""
        return await asyncio.wait_for(self.arrivals.get(), 3600)


class Client:
    """One request, as the server sees it."""

    count = 0

    def __init__(
        self,
        app: Any,
        path: str = "",
        priority: str | None = None,
        *,
        tenant: str | None = None,
        headers: Iterable[Header] = (),
        body: bytes | Iterable[bytes] = b"",
        method: str = "GET",
        address: str | None = "127.0.0.1",
        version: str = "1.1",
        stay: bool = True,
    ) -> None:
        Client.count += 1
        lines = list(headers)
        if priority is not None:
            lines.append((b"x-fairlead-priority", priority.encode("latin-1")))
        if tenant is not None:
            lines.append((b"x-tenant-id", tenant.encode()))
        self.scope: dict[str, Any] = {
            "type": "http",
            "path": path or f"/{Client.count}",
            "method": method,
            "headers": lines,
            "client": None if address is None else (address, 1),
            "http_version": version,
        }
        self.path: str = self.scope["path"]
        self.incoming: asyncio.Queue[Any] = asyncio.Queue()
        if stay:
            parts = [body] if isinstance(body, bytes) else list(body)
            for number, part in enumerate(parts, 1):
                self.give(part, more=number < len(parts))
        self.sent: list[Any] = []
        self.wrongs: list[str] = []
        self.gone = False
        self.stalled: asyncio.Event | None = None
        self.takes: asyncio.Event | None = None  # a large piece: until then no other is written
        self.task: asyncio.Task[None] = asyncio.get_running_loop().create_task(
            app(self.scope, self.receive, self.send)
        )

    def give(self, part: bytes, more: bool = False) -> None:
        """Send a part of the body."""
        self.incoming.put_nowait({"type": "http.request", "body": part, "more_body": more})

    def leave(self) -> None:
        """Close the connection."""
        self.gone = True
        self.incoming.put_nowait({"type": "http.disconnect"})

    async def receive(self) -> Any:
        message = await self.incoming.get()
        if message["type"] == "http.disconnect":
            self.incoming.put_nowait(message)  # it stays so
        return message

    async def send(self, message: Any) -> None:
        await asyncio.sleep(0)  # a server may wait for the socket to take it
        if self.stalled is not None:
            await self.stalled.wait()
        if self.takes is not None and len(self.body) > 100_000:
            await self.takes.wait()
        kind = message["type"]
        if self.complete:
            self.wrongs.append(f"{kind} after the end")
        if kind == "http.response.start" and self.sent:
            self.wrongs.append("a second head")
        if kind == "http.response.body" and not self.sent:
            self.wrongs.append("a body without a head")
        self.sent.append(message)

    async def done(self) -> "Client":
        """Wait until the request is over, and see that what was sent is well formed."""
        await asyncio.wait_for(asyncio.shield(self.task), 100_000)
        self.check()
        return self

    def check(self) -> None:
        assert not self.wrongs, self.wrongs
        length = self.head.get("content-length")
        if self.complete and length is not None:
            assert int(length) == len(self.body)

    @property
    def complete(self) -> bool:
        return any(
            message["type"] == "http.response.body" and not message.get("more_body", False)
            for message in self.sent
        )

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None

    @property
    def head(self) -> dict[str, str]:
        """The header of the response; a field that comes twice fails."""
        fields: dict[str, str] = {}
        for name, value in self.sent[0].get("headers", ()) if self.sent else ():
            assert name.decode() not in fields, name
            fields[name.decode()] = value.decode()
        return fields

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])

    @property
    def code(self) -> str:
        """The error's code, which header and body must agree on."""
        document = json.loads(self.body)
        code: str = document["error"]["code"] if "error" in document else document["code"]
        assert self.head["x-fairlead-error-code"] == code
        return code


def config(capacity: int = 1, **sections: Any) -> dict[str, Any]:
    """A configuration without reservations; classes and policies are laid over it.

    `header:root` may be system; everybody may be interactive.
    """
    classes: dict[str, Any] = {
        name: {"reserved_floor": 0, "reserved_per_slot": 0.0} for name in CLASSES
    }
    for name, entry in sections.pop("classes", {}).items():
        classes[name] |= entry
    policies = {"header:root": {"max_class": "system"}} | sections.pop("policies", {})
    scheduler = {
        "enabled": True,
        "default_max_class": "interactive",
        "classes": classes,
        "tenant_policies": policies,
    } | sections.pop("scheduler", {})
    tenants = {"trusted_header": "x-tenant-id"} | sections.pop("tenants", {})
    return {
        "capacity": capacity,
        "tenants": tenants,
        "priority_scheduler": scheduler,
        "access_log": False,
    } | sections


class Backends:
    """A fleet of which no more is known than its pools, and which models nobody can run just now."""

    empty = False
    lists_models = True

    def __init__(self, pool_of: Callable[[str | None], str | None]) -> None:
        self.pool_of = pool_of
        self.down: set[str | None] = set()

    def runs(self, model: str | None) -> bool:
        return model not in self.down

    def may_run(self, model: str | None) -> bool:
        return model not in self.down


class Scene:
    """An application behind the middleware, and what tests ask of both."""

    def __init__(self, settings: Any = None, *, stubborn: int = 0, **sections: Any) -> None:
        self.app = HoldGate(stubborn)
        self.guarded = PriorityMiddleware(
            self.app, config(**sections) if settings is None else settings
        )
        self.admission = self.guarded.admission
        assert not self.admission.problems, self.admission.problems
        self.metrics = self.admission.metrics

    def client(self, priority: str | None = None, **options: Any) -> Client:
        """Start a request."""
        return Client(self.guarded, priority=priority, **options)

    async def running(self, priority: str | None = None, **options: Any) -> tuple[Client, Held]:
        """Start a request and wait until it is inside the application."""
        client = self.client(priority, **options)
        held = await self.app.next()
        assert held.path == client.path, "another one came first"
        return client, held

    async def waiting(self, priority: str | None = None, **options: Any) -> Client:
        """Start a request that has to wait, and see that it does."""
        client = self.client(priority, **options)
        await ticks()
        assert not client.task.done(), client.sent
        assert client.path not in self.app.inside, "it runs"
        return client

    def depth(self, name: str = "", pool: str = "") -> int:
        waiting = self.admission.pools[pool].capacity.waiting
        return waiting[CLASSES.index(name)] if name else sum(waiting)

    def inflight(self, name: str = "", pool: str = "") -> int:
        inflight = self.admission.pools[pool].capacity.inflight
        return inflight[CLASSES.index(name)] if name else sum(inflight)

    def refused(self, outcome: str) -> int:
        return sum(n for (_, said), n in self.metrics.refused.items() if said == outcome)

    def ended(self, outcome: str) -> int:
        return sum(n for (_, said), n in self.metrics.ended.items() if said == outcome)

    def quiet(self) -> None:
        """See that nothing is left: no slot, no waiter, no claim, no task, and the books balance."""
        settled(self.admission)
        asking = asyncio.current_task()
        left = [task for task in asyncio.all_tasks() if task is not asking and not task.done()]
        assert not left, left


def settled(admission: Any) -> None:
    """See that nothing runs or waits, and that each one admitted has come to exactly one end."""
    for pool in admission.pools.values():
        gate = pool.gate
        assert pool.capacity.inflight == [0] * 4
        assert pool.capacity.waiting == [0] * 4
        assert (pool.capacity.used, gate.active, gate.waiting, gate.late) == (0, 0, 0, 0)
        assert not gate.waiters()
        evictions = gate._evictions
        assert (evictions.claims, evictions.owed, evictions._pools) == ({}, {}, {})
        assert pool.utilization() == 0
    metrics = admission.metrics
    for rank in range(4):
        ends = sum(metrics.ended[rank, end] for end in (FAILED, DISCONNECTED, PREEMPTED))
        assert metrics.admitted(rank) == metrics.completed[rank] + ends
    preempted = sum(n for (_, end), n in metrics.ended.items() if end == PREEMPTED)
    assert sum(metrics.preemptions.values()) >= preempted
    assert reading(admission, "inflight") == reading(admission, "queue_depth") == 0


def reading(admission: Any, name: str, **labels: str) -> float:
    """The sum of the samples of one metric, by name and labels, as a scrape would find them."""
    total = 0.0
    for family in admission.metrics.collect():
        for sample in family.samples:
            if (
                sample.name == f"fairlead_gateway_{name}"
                and labels.items() <= sample.labels.items()
            ):
                total += sample.value
    return total


async def ticks(count: int = 30) -> None:
    """Let everything that is ready take its steps; no time passes."""
    for _ in range(count):
        await asyncio.sleep(0)
