"""Flows as a process: HTTP and gRPC over one scheduler on one event loop, from start-up to a graceful end.

On the first SIGTERM or SIGINT nothing more is accepted, `/readyz` says so, and those who wait may get their turn for as
long as `GRACE` allows; then, or on the second signal, they are refused.  Nobody is left without an answer: to most
clients that would be as good as a yes.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Self

import uvicorn

from fairlead.documents.values import is_loopback, split_address
from fairlead.documents.watching import Watch
from fairlead.errors import ConfigError
from fairlead.flows.loading import load, load_content
from fairlead.flows.scheduler import FlowScheduler
from fairlead.flows.service import FlowService
from fairlead.flows.table import FlowTable

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from fairlead.flows.loading import Loaded

HTTP = "127.0.0.1:8088"  # if nothing else is asked for
GRACE = 10.0  # seconds for what waits when the end is near
LONGEST_END = 86_400.0
LAST_MOMENT = 1.0  # seconds for the last answers to be sent
IDLE = 60  # seconds that a connection may stay open between requests
BACKLOG = 2048

log = logging.getLogger("fairlead.flows")


class HttpListener(uvicorn.Server):
    """A server on one address that leaves signals alone."""

    def __init__(self, app: Any, address: str) -> None:
        config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=IDLE,
        )
        super().__init__(config)
        self._socket = _bound(address)
        self._ready = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Where it listens."""
        return _written(*self._socket.getsockname()[:2])

    async def begin(self) -> None:
        """Accept connections from now on."""
        self._serving = asyncio.create_task(self.serve([self._socket]))
        ready = asyncio.create_task(self._ready.wait())
        await asyncio.wait({self._serving, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()

    async def end(self) -> None:
        """Accept no more, and finish what runs; `hurry` cuts it."""
        self.should_exit = True
        for server in self.servers:
            server.close()
        if self._serving is not None:
            await self._serving
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        self.close()

    def hurry(self) -> None:
        """Cut what still runs."""
        self.force_exit = True

    def close(self) -> None:
        """Give up the address."""
        self._socket.close()

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready.set()


class GrpcListener:
    """A gRPC server on one address."""

    def __init__(self, flows: FlowScheduler, table: FlowTable, address: str, token: str | None):
        import grpc.aio

        from fairlead.flows.grpc_service import OPTIONS, GrpcFlows

        host, port = split_address(address)
        self.service = GrpcFlows(flows, token=token, table=table)
        self._server = grpc.aio.server(options=OPTIONS)
        self.service.add_to(self._server)
        try:
            given = self._server.add_insecure_port(_written(host or "[::]", port))
        except RuntimeError:
            given = 0
        if not given:
            raise OSError(0, f"cannot listen on {address}: it is taken, or not of this machine")
        self.address = _written(host or "0.0.0.0", given)  # noqa: S104 - it is shown, not bound

    async def begin(self) -> None:
        """Accept calls from now on."""
        await self._server.start()

    async def end(self) -> None:
        """Accept no more, and finish what runs; `hurry` cuts it."""
        await self._server.stop(LONGEST_END)

    def hurry(self) -> None:
        """Cut what still runs."""
        self._cutting = asyncio.create_task(self._server.stop(0))


class FlowServer:
    """The whole service: `async with FlowServer(load("flows.yaml")) as server: ...` serves while inside."""

    def __init__(
        self,
        loaded: Loaded,
        *,
        http: str | None = HTTP,
        grpc: str | None = None,
        token: str | None = None,
    ) -> None:
        for address in (http, grpc):
            if address is not None and token is None and not is_loopback(address):
                raise ConfigError(
                    f"{address} can be reached from other machines: set a token that clients must show (--token, or "
                    "FAIRLEAD_FLOWS_TOKEN), or listen on 127.0.0.1"
                )
        self._loaded = loaded
        self._http, self._grpc, self._token = http, grpc, token
        self.flows = FlowScheduler(loaded.settings)
        self.table = FlowTable()
        self.service = FlowService(self.flows, token=token, table=self.table)
        self.http: HttpListener | None = None
        self.grpc: GrpcListener | None = None
        self.grace = GRACE
        self._hurried = asyncio.Event()

    async def __aenter__(self) -> Self:
        if self._http is not None:
            self.http = HttpListener(self.service, self._http)
        try:
            if self._grpc is not None:
                self.grpc = GrpcListener(self.flows, self.table, self._grpc, self._token)
        except BaseException:
            if self.http is not None:
                self.http.close()
            raise
        await _call(self.flows, "start")
        for listener in (self.grpc, self.http):
            if listener is not None:
                await listener.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.service.draining = True
        listeners = [one for one in (self.http, self.grpc) if one is not None]
        ending = asyncio.gather(*(one.end() for one in listeners))
        hurried = asyncio.create_task(self._hurried.wait())
        soon: set[asyncio.Future[Any]] = {ending, hurried}
        await asyncio.wait(soon, timeout=self.grace, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not ending.done():
            self._turn_away()
            await asyncio.wait({ending}, timeout=LAST_MOMENT)
        if not ending.done():
            for listener in listeners:
                listener.hurry()
        await ending
        await _call(self.flows, "close")

    def _turn_away(self) -> None:
        """Refuse everybody who waits."""
        for point in self.flows.points.values():
            waiters: list[Any] = point.gate.waiters()
            point.runtime.withdraw(waiters)
            for flow in waiters:
                flow.reason, flow.retry_after = "the service is shutting down", 1.0
                flow.told()

    def hurry(self) -> None:
        """Wait for nobody any more."""
        self._hurried.set()

    def retune(self, loaded: Loaded) -> None:
        """Follow a changed configuration."""
        self._loaded = loaded
        self.flows.retune(loaded)

    def describe(self) -> str:
        """Say in one line what is served where."""
        where = [f"http://{self.http.address}"] if self.http is not None else []
        if self.grpc is not None:
            where.append(f"grpc {self.grpc.address}")
        count = len(self._loaded.settings.control_points)
        return f"fairlead flows: {'; '.join(where)}; {count} control point{'s' * (count != 1)}"


async def serve(
    server: FlowServer,
    stop: asyncio.Event,
    *,
    watch: str | os.PathLike[str] | None = None,
    since: Loaded | None = None,
    started: Callable[[FlowServer], None] = lambda server: None,
) -> None:
    """Serve until told to stop; with `watch`, follow that file."""
    async with server:
        watcher = None if watch is None else Watch(watch, load_content, server.retune, since=since)
        if watcher is not None:
            watcher.start(asyncio.get_running_loop())
        started(server)
        await stop.wait()
        if watcher is not None:
            watcher.stop()


def run(
    config: str | os.PathLike[str],
    *,
    http: str | None = None,
    grpc: str | None = None,
    token: str | None = None,
) -> int:
    """Serve flows from their file until a signal ends it; return the exit code."""
    loaded = load(config)
    if loaded.problems:
        _say(*loaded.lines)
        return 2
    if http is None and grpc is None:
        http = HTTP
    try:
        for address in (http, grpc):
            if address is not None:
                split_address(address)
        server = FlowServer(loaded, http=http, grpc=grpc, token=token)
    except ValueError as error:
        _say(f"fairlead flows: {error}")
        return 2
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_run(server, loaded, config))
    except OSError as error:
        _say(f"fairlead flows: {error.strerror or error}")
        return 2


async def _run(server: FlowServer, loaded: Loaded, config: str | os.PathLike[str]) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    code = 0

    def on_signal() -> None:
        nonlocal code
        if stop.is_set():
            code = 1
            server.hurry()
        stop.set()

    def started(server: FlowServer) -> None:
        _set_up_logging()
        gc.collect()
        gc.freeze()  # what was loaded stays: there is no need to look through it again and again
        _say(server.describe())

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    await serve(server, stop, watch=config, since=loaded, started=started)
    return code


async def _call(flows: Any, verb: str) -> None:
    """Have a scheduler begin or end what it does beside deciding, if it does anything."""
    deed = getattr(flows, verb, None)
    result = None if deed is None else deed()
    if asyncio.iscoroutine(result):
        await result


def _bound(address: str) -> socket.socket:
    """Take an address, so that a failure shows before anything runs."""
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's delay off only on sockets that say that they are TCP.
    taken = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, port))
        taken.listen(BACKLOG)
    except OSError as error:
        taken.close()
        reason = error.strerror or str(error)
        raise OSError(error.errno, f"cannot listen on {address}: {reason}") from None
    return taken


def _written(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def _say(*lines: str) -> None:
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    sys.stderr.flush()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # on Windows there is none
        return None
    return uvloop.new_event_loop


def _set_up_logging() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    for name, level in (("fairlead", logging.INFO), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.addHandler(handler)
        logger.propagate = False
