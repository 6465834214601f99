"""The gateway as a process: two listeners on one event loop, from start-up to a graceful end.

On the first SIGTERM or SIGINT nothing more is accepted, `/readyz` says so, and what runs or waits is finished, for as
long as `shutdown_grace` allows; on the second everything ends at once.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn

from fairlead.documents.values import split_address
from fairlead.documents.watching import Watch
from fairlead.gateway.admin import Admin
from fairlead.gateway.admission import Admission
from fairlead.gateway.fleet import Fleet
from fairlead.gateway.loading import load, load_content
from fairlead.gateway.middleware import PriorityMiddleware
from fairlead.gateway.protocol import GatewayProtocol
from fairlead.gateway.proxy import CutShort, Proxy

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from fairlead.gateway.loading import Loaded
    from fairlead.gateway.settings import Settings

BACKLOG = 2048
IDLE = 60  # seconds that a connection may stay open between requests
LAST_MOMENT = 1.0  # seconds for what is cancelled to clean up

log = logging.getLogger("fairlead.gateway")


class Listener(uvicorn.Server):
    """A server that leaves signals alone and can be told to stop."""

    def __init__(
        self,
        app: Any,
        address: str,
        settings: Callable[[], Settings],
        refused: Callable[[str], object] = lambda code: None,
    ) -> None:
        protocol: Any = partial(GatewayProtocol, limits=lambda: settings().limits, refused=refused)
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=IDLE,
            )
        )
        self._address = address
        self._sockets: list[socket.socket] = []
        self._serving: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self._sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def bind(self) -> None:
        """Take the address, so that a failure shows before anything runs."""
        host, port = split_address(self._address)
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
            raise OSError(error.errno, f"cannot listen on {self._address}: {reason}") from None
        self._sockets = [taken]

    def unbind(self) -> None:
        """Give up the address."""
        for taken in self._sockets:
            taken.close()

    async def begin(self) -> None:
        """Accept connections from now on."""
        self._serving = asyncio.create_task(self.serve(self._sockets))
        ready = asyncio.create_task(self._ready.wait())
        await asyncio.wait({self._serving, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()

    def refuse(self) -> None:
        """Accept no more connections."""
        self.should_exit = True
        for server in self.servers:
            server.close()

    async def end(self, grace: float) -> None:
        """Finish what runs, for at most `grace` seconds, then cut it."""
        self.refuse()
        self.config.timeout_graceful_shutdown = grace  # type: ignore[assignment]
        if self._serving is not None:
            await self._serving
        left = list(self.server_state.tasks)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=LAST_MOMENT)
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready.set()


class Gateway:
    """A whole gateway: `async with Gateway(load("gateway.yaml")) as gateway: ...` serves while inside."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self.admission = Admission(loaded)
        self.fleet = Fleet(loaded.settings, self._follow_capacity)
        self.proxy = Proxy(self.fleet, loaded.settings)
        self.admin = Admin(self.fleet, self.admission, loaded.settings.admin.token)
        app = PriorityMiddleware(self.proxy, self.admission)
        count = self.admission.metrics.count_refused_request
        self.data_listener = Listener(app, loaded.settings.listen, self._settings, count)
        self.admin_listener = Listener(self.admin, loaded.settings.admin.listen, self._settings)

    def _settings(self) -> Settings:
        return self._loaded.settings

    def _follow_capacity(self) -> None:
        self.admission.set_capacities(self.fleet.capacities())

    async def __aenter__(self) -> Gateway:
        self.data_listener.bind()
        try:
            self.admin_listener.bind()
        except OSError:
            self.data_listener.unbind()
            raise
        self.admission.follow(self.fleet.pool_of)
        self._follow_capacity()
        await self.fleet.start()
        self._follow_capacity()
        await self.admin_listener.begin()
        await self.data_listener.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.admin.draining = True
        await self.data_listener.end(self._settings().shutdown_grace)
        await self.admin_listener.end(LAST_MOMENT)
        await self.proxy.close()
        await self.fleet.stop()

    def hurry(self) -> None:
        """End at once what still runs."""
        self.data_listener.force_exit = True

    def retune(self, loaded: Loaded) -> None:
        """Follow a changed configuration; listeners stay where they are."""
        before, after = self._settings(), loaded.settings
        if (before.listen, before.admin.listen) != (after.listen, after.admin.listen):
            log.warning("listen and admin.listen change only when the gateway starts anew")
        self._loaded = loaded
        self.admin.token = after.admin.token
        self.proxy.retune(after)
        self.admission.retune(loaded)
        self.fleet.retune(after)

    def describe(self) -> str:
        """Say in one line what is served where."""
        count = len(self.fleet.describe())
        slots = sum(self.fleet.capacities().values())
        return (
            f"fairlead gateway: {self.data_listener.url} → {count} upstream{'s' * (count != 1)}, "
            f"{slots} slots; admin {self.admin_listener.url}"
        )


async def serve(
    loaded: Loaded,
    stop: asyncio.Event,
    *,
    watch: str | os.PathLike[str] | None = None,
    started: Callable[[Gateway], None] = lambda gateway: None,
) -> None:
    """Serve until told to stop; with `watch`, follow that file."""
    async with Gateway(loaded) as gateway:
        watcher = None
        if watch is not None:
            count = gateway.admission.metrics.count_refused_reload
            watcher = Watch(watch, load_content, gateway.retune, since=loaded, refused=count)
            watcher.start(asyncio.get_running_loop())
        started(gateway)
        await stop.wait()
        if watcher is not None:
            watcher.stop()


def run(config: str | os.PathLike[str]) -> int:
    """Run a gateway from its file until a signal ends it; return the exit code."""
    loaded = load(config)
    if loaded.fatal or (loaded.settings.strict and loaded.problems):
        _say(*loaded.lines)
        return 2
    _set_up_logging(access=loaded.settings.access_log)
    _allow_many_connections()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_run(loaded, config))
    except OSError as error:
        _say(f"fairlead gateway: {error.strerror or error}")
        return 2


async def _run(loaded: Loaded, config: str | os.PathLike[str]) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    running: list[Gateway] = []
    code = 0

    def on_signal() -> None:
        nonlocal code
        if stop.is_set():
            code = 1
            for gateway in running:
                gateway.hurry()
        stop.set()

    def started(gateway: Gateway) -> None:
        running.append(gateway)
        _say(gateway.describe())

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    await serve(loaded, stop, watch=config, started=started)
    return code


def _say(*lines: str) -> None:
    # Standard output is the access log's.
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    sys.stderr.flush()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # on Windows there is none
        return None
    return uvloop.new_event_loop


def _allow_many_connections() -> None:
    """Raise the number of open files to what the system allows: each request takes two."""
    try:
        import resource
    except ImportError:  # on Windows there is no such limit
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _set_up_logging(*, access: bool) -> None:
    errors = logging.StreamHandler(sys.stderr)
    errors.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    for name, level in (("fairlead", logging.INFO), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.addHandler(errors)
        logger.propagate = False
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    requests = logging.StreamHandler(sys.stdout)
    requests.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("fairlead.access")
    logger.setLevel(logging.INFO if access else logging.WARNING)
    logger.addHandler(requests)
    logger.propagate = False


def _is_news(record: logging.LogRecord) -> bool:
    """Leave out the tracebacks of what has been logged in a line, or was meant."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, CutShort | asyncio.CancelledError)
