"""What the gateway tests share: a backend that holds requests, a client that speaks bytes, servers on loopback.

Nothing here sleeps to be in time: a test waits for what it needs, and every wait ends.
"""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import uvloop

from fairlead.gateway.limits import GatewayLimits
from fairlead.gateway.loading import load
from fairlead.gateway.serving import Gateway, listener_of
from fairlead.gateway.settings import Settings
from fairlead.serving.limits import Limits
from fairlead.serving.listener import Listener

PATIENCE = 10.0  # seconds for what should take milliseconds
HEALTHY = {"health": "/health"}


def run(test: Coroutine[Any, Any, Any], timeout: float = 30.0) -> Any:
    """Run a test in an event loop of its own."""

    return asyncio.run(_bounded(test, timeout))


def run_on_uvloop(test: Coroutine[Any, Any, Any], timeout: float = 30.0) -> Any:
    """Run a test in the kind of event loop that the gateway has as a process."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_bounded(test, timeout))


async def _bounded(test: Coroutine[Any, Any, Any], timeout: float) -> Any:
    async with asyncio.timeout(timeout):
        return await test


async def within(awaited: Awaitable[Any], timeout: float = PATIENCE) -> Any:
    """Wait for something that should happen soon."""
    return await asyncio.wait_for(awaited, timeout)


async def until(claim: Any, timeout: float = PATIENCE, *, pause: float = 0.001) -> None:
    """Wait until a claim holds; with no pause, look at each turn of the loop."""
    async with asyncio.timeout(timeout):
        while not claim():  # noqa: ASYNC110
            await asyncio.sleep(pause)


class Head(NamedTuple):
    """The start of a message: its first line split in three, and its headers."""

    first: tuple[str, str, str]
    headers: list[tuple[str, str]]

    @property
    def status(self) -> int:
        return int(self.first[1])

    def get(self, name: str, default: str = "") -> str:
        return next((value for key, value in self.headers if key == name.lower()), default)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name.lower()]


class Cut(Exception):
    """The connection ended inside a message."""


async def read_head(reader: asyncio.StreamReader) -> Head:
    try:
        raw = await within(reader.readuntil(b"\r\n\r\n"))
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise Cut(str(error)) from None
    first, *lines = raw.decode("latin-1").split("\r\n")[:-2]
    pairs = [line.partition(":") for line in lines]
    one, two, three = [*first.split(" ", 2), "", ""][:3]
    return Head((one, two, three), [(name.lower(), value.strip()) for name, _, value in pairs])


async def read_chunk(reader: asyncio.StreamReader) -> bytes:
    """Read one chunk; the empty one is the last."""
    try:
        size = int((await within(reader.readuntil(b"\r\n"))).split(b";")[0], 16)
        data = await within(reader.readexactly(size))
        await within(reader.readexactly(2))
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise Cut(str(error)) from None
    return bytes(data)


async def read_body(reader: asyncio.StreamReader, head: Head, *, bodiless: bool = False) -> bytes:
    """Read a body to its proper end; raise Cut if it has none."""
    if bodiless:
        return b""
    if head.get("transfer-encoding") == "chunked":
        body = b""
        while chunk := await read_chunk(reader):
            body += chunk
        return body
    length = head.get("content-length")
    if not length:
        return b""
    try:
        return bytes(await within(reader.readexactly(int(length))))
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise Cut(str(error)) from None


class Held:
    """One request that a backend has got and not answered yet."""

    def __init__(self, head: Head, writer: asyncio.StreamWriter) -> None:
        self.head = head
        self.method, self.target = head.first[0], head.first[1]
        self.body = b""
        self.pieces: asyncio.Queue[bytes] = asyncio.Queue()  # of a chunked body, as they come
        self.gone = asyncio.Event()
        self.done = asyncio.Event()
        self._writer = writer

    def raw(self, data: bytes) -> None:
        """Write bytes as they are."""
        self._writer.write(data)

    def answer(
        self, status: int = 200, body: bytes = b"done", headers: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Answer in full."""
        self.start(status, [("content-length", str(len(body))), *headers])
        self.raw(body if self.method != "HEAD" else b"")
        self.done.set()

    def start(self, status: int = 200, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Write the head of an answer."""
        lines = [f"HTTP/1.1 {status} So", *(f"{name}: {value}" for name, value in headers), "", ""]
        self.raw("\r\n".join(lines).encode("latin-1"))

    def stream(self, media: str = "text/event-stream") -> None:
        """Begin an answer of chunks."""
        self.start(200, [("content-type", media), ("transfer-encoding", "chunked")])

    def event(self, text: str) -> None:
        """Write one server-sent event, a chunk of its own."""
        data = f"data: {text}\n\n".encode()
        self.raw(b"%x\r\n%s\r\n" % (len(data), data))

    async def drained(self) -> None:
        """Wait until what was written is on its way."""
        await within(self._writer.drain())

    def finish(self) -> None:
        """End an answer of chunks."""
        self.raw(b"0\r\n\r\n")
        self.done.set()

    def die(self) -> None:
        """Close the connection in the middle of whatever it was."""
        self._writer.transport.abort()
        self.done.set()

    def hang_up(self) -> None:
        """Close the connection politely, wherever the answer is."""
        self._writer.close()
        self.done.set()


class Backend:
    """A hold-gate: each request arrives in `arrivals` and is parked until the test answers it."""

    def __init__(self, *, auto: bool = False) -> None:
        self.auto = auto  # answer everything at once
        self.arrivals: asyncio.Queue[Held] = asyncio.Queue()
        self.seen = 0
        self.gone = 0  # clients that left before their answer
        self.health_status = 200
        self.health_document: Any = {"status": "ok"}
        self.server_info: Any = None
        self.health_checks = 0
        self.connections: set[asyncio.StreamWriter] = set()
        self.port = 0
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Listen no more and drop every connection."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None
        for writer in list(self.connections):
            writer.transport.abort()

    async def __aenter__(self) -> "Backend":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        await until(lambda: not self.connections)

    async def arrival(self) -> Held:
        """Wait for the next request."""
        held: Held = await within(self.arrivals.get())
        return held

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(writer)
        try:
            while await self._exchange(reader, writer):
                pass
        except (Cut, ConnectionError, asyncio.CancelledError, TimeoutError):
            pass
        finally:
            self.connections.discard(writer)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        try:
            raw = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return False
        feed = asyncio.StreamReader()
        feed.feed_data(raw)
        held = Held(await read_head(feed), writer)
        if held.target == "/health":
            self.health_checks += 1
            held.answer(self.health_status, json.dumps(self.health_document).encode())
            return True
        if held.target == "/get_server_info":
            found = self.server_info is not None
            held.answer(200 if found else 404, json.dumps(self.server_info).encode())
            return True
        self.seen += 1
        if held.head.get("transfer-encoding") == "chunked":
            self.arrivals.put_nowait(held)
            while chunk := await read_chunk(reader):
                held.body += chunk
                held.pieces.put_nowait(chunk)
            held.pieces.put_nowait(b"")
        else:
            held.body = await read_body(reader, held.head)
            if not self.auto:
                self.arrivals.put_nowait(held)
        if self.auto:
            held.answer()
        leaving = asyncio.create_task(reader.read(1))
        answered = asyncio.create_task(held.done.wait())
        try:
            await asyncio.wait({leaving, answered}, return_when=asyncio.FIRST_COMPLETED)
            if held.done.is_set():
                await writer.drain()
                return not writer.is_closing()
            self.gone += 1
            held.gone.set()
            return False
        finally:
            for task in (leaving, answered):
                task.cancel()
            await asyncio.gather(leaving, answered, return_exceptions=True)


class Client:
    """A raw connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes | str) -> None:
        """Write bytes as they are."""
        self.writer.write(data if isinstance(data, bytes) else data.encode("latin-1"))

    def request(
        self,
        method: str = "GET",
        target: str = "/",
        headers: Iterable[tuple[str, str]] = (),
        body: bytes | None = None,
    ) -> None:
        """Write a request."""
        headers = list(headers)
        lines = [f"{method} {target} HTTP/1.1"]
        if all(name != "host" for name, _ in headers):
            lines.append("host: localhost")
        if body is not None:
            lines.append(f"content-length: {len(body)}")
        lines += [f"{name}: {value}" for name, value in headers]
        self.send("\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b""))

    async def head(self) -> Head:
        """Read the head of a response."""
        return await read_head(self.reader)

    async def response(self, *, bodiless: bool = False) -> tuple[Head, bytes]:
        """Read a whole response; raise Cut if it is not whole."""
        head = await self.head()
        return head, await read_body(self.reader, head, bodiless=bodiless)

    async def ask(self, *args: Any, **given: Any) -> tuple[Head, bytes]:
        """Write a request and read the response."""
        self.request(*args, **given)
        return await self.response()

    async def chunk(self) -> bytes:
        """Read one chunk of a body."""
        return await read_chunk(self.reader)

    async def ended(self) -> bytes:
        """Wait for the server to close the connection; return what else came."""
        try:
            return bytes(await within(self.reader.read()))
        except ConnectionError:
            return b""

    def close(self) -> None:
        """Leave politely."""
        self.writer.close()

    def reset(self) -> None:
        """Leave with a reset."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Client]:
    """Connect to a server for the length of a block."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    client = Client(*await within(asyncio.open_connection(host, int(port))))
    try:
        yield client
    finally:
        client.writer.close()


def asked_here(app: Any) -> Any:
    """Wrap an app so that each request asks for this machine and comes from it, whatever its client made up."""

    async def asked(scope: Any, receive: Any, send: Any) -> None:
        given = [pair for pair in scope.get("headers", ()) if pair[0] != b"host"]
        here = {"headers": [*given, (b"host", b"localhost")], "client": ("127.0.0.1", 1)}
        await app(scope | here, receive, send)

    return asked


async def fetch(url: str, *args: Any, **given: Any) -> tuple[Head, bytes]:
    """Ask once, on a connection of its own."""
    async with connected(url) as client:
        return await client.ask(*args, **given)


@asynccontextmanager
async def listening(app: Any, limits: Limits | None = None) -> AsyncIterator[Listener]:
    """Serve an ASGI app as the gateway would."""
    given = {} if limits is None else limits.model_dump(exclude_unset=True)
    settings = Settings(limits=GatewayLimits(**given))
    listener = listener_of(app, "127.0.0.1:0", lambda: settings)
    listener.bind()
    await listener.begin()
    try:
        yield listener
    finally:
        await listener.end(0)


@asynccontextmanager
async def served(app: Any, limits: Limits | None = None) -> AsyncIterator[str]:
    """Serve an ASGI app; give its URL."""
    async with listening(app, limits) as listener:
        yield listener.url


def configured(*upstreams: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Write a configuration on free ports, with quick health checks."""
    return {
        "listen": "127.0.0.1:0",
        "admin": {"listen": "127.0.0.1:0", **more.pop("admin", {})},
        "upstreams": list(upstreams),
        "health": {"interval": "50ms", "timeout": "2s"},
        "shutdown_grace": more.pop("shutdown_grace", "5s"),
        **more,
    }


@asynccontextmanager
async def gateway(*upstreams: dict[str, Any], **more: Any) -> AsyncIterator[Gateway]:
    """Run a whole gateway for the length of a block."""
    loaded = load(configured(*upstreams, **more))
    assert not loaded.fatal, loaded.lines
    async with Gateway(loaded) as running:
        yield running
