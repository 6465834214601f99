"""Jobs as a process: the scheduler, the local executors and the HTTP API on one event loop, to a graceful end.

On the first SIGTERM or SIGINT nothing more is claimed, `/readyz` says so, and what runs may finish for as long as
`grace` allows; what has not by then, or by the second signal, is stopped and handed back: another process runs it.
The HTTP API answers until all of that is done.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Self

import uvicorn

from fairlead.documents.values import is_loopback, split_address
from fairlead.errors import ConfigError
from fairlead.jobs.api import JobsApi

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from fairlead.jobs.service import Jobs

HTTP = "127.0.0.1:8089"  # if nothing else is asked for
GRACE = 30.0  # seconds for what runs when the end is near
LAST_MOMENT = 1.0  # seconds for the last answers to be sent
IDLE = 60  # seconds that a connection may stay open between requests
BACKLOG = 2048


class Listener(uvicorn.Server):
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
        host, port = self._socket.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def begin(self) -> None:
        """Accept connections from now on."""
        self._serving = asyncio.create_task(self.serve([self._socket]))
        ready = asyncio.create_task(self._ready.wait())
        await asyncio.wait({self._serving, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()

    async def end(self) -> None:
        """Accept no more; give what is being answered a moment, then cut it."""
        self.should_exit = True
        for server in self.servers:
            server.close()
        if self._serving is not None:
            await asyncio.wait({self._serving}, timeout=LAST_MOMENT)
            self.force_exit = True
            await self._serving
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        self.close()

    def close(self) -> None:
        """Give up the address."""
        self._socket.close()

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready.set()


class JobServer:
    """The whole service: `async with JobServer(jobs) as server: ...` serves while inside."""

    def __init__(
        self,
        jobs: Jobs,
        *,
        http: str | None = HTTP,
        token: str | None = None,
        grace: float = GRACE,
        app: str | None = None,
    ) -> None:
        if http is not None:
            try:
                alone = is_loopback(http)
            except ValueError as error:
                raise ConfigError(f"--http {error}") from None
            if token is None and not alone:
                raise ConfigError(
                    f"{http} can be reached from other machines: set a token that clients must show (--token, or "
                    "FAIRLEAD_JOBS_TOKEN), or listen on 127.0.0.1"
                )
        self.jobs = jobs
        self.api = JobsApi(jobs, token=token)
        self.grace = grace
        self.http: Listener | None = None
        self._address = http
        self._app = app

    async def __aenter__(self) -> Self:
        if self._address is not None:
            self.http = Listener(self.api, self._address)
        try:
            await self.jobs.start(app=self._app)
        except BaseException:
            if self.http is not None:
                self.http.close()
            await self.jobs.close()
            raise
        if self.http is not None:
            await self.http.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.api.draining = True
        try:
            await self.jobs.stop(self.grace)
        finally:
            if self.http is not None:
                await self.http.end()
            await self.api.metrics.close()
            await self.jobs.close()

    def hurry(self) -> None:
        """Wait for nothing that runs: hand it back."""
        self.grace = 0.0
        if self.jobs.crew is not None:
            self.jobs.crew.hurry()

    def describe(self) -> str:
        """Say in one line what is served where."""
        where = "no HTTP" if self.http is None else f"http://{self.http.address}"
        count = len(self.jobs.tasks)
        slots = [
            f"{one.name} {one.slots or ''}{' by ' + one.kind if one.kind != 'local' else ''}"
            for one in self.jobs.executors.values()
        ]
        return (
            f"fairlead jobs: {where}; {count} task{'s' * (count != 1)}; "
            f"slots {', '.join(' '.join(one.split()) for one in slots)}"
        )


def run(
    jobs: Jobs,
    *,
    http: str | None = HTTP,
    token: str | None = None,
    grace: float = GRACE,
    app: str | None = None,
) -> int:
    """Serve until a signal ends it; return the exit code.  `app` is "module:jobs", by which processes find tasks."""
    server = JobServer(jobs, http=http, token=token, grace=grace, app=app)
    try:
        with _logging(), asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_run(server))
    except OSError as error:
        _say(f"fairlead jobs: {error.strerror or error}")
        return 2


async def _run(server: JobServer) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            server.hurry()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    async with server:
        gc.collect()
        gc.freeze()  # what was loaded stays: there is no need to look through it again and again
        _say(server.describe())
        await stop.wait()
    return 0


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


def _say(*lines: str) -> None:
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    sys.stderr.flush()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # on Windows there is none
        return None
    return uvloop.new_event_loop


@contextmanager
def _logging() -> Iterator[None]:
    """Write the log to the error stream."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    loggers = [logging.getLogger(name) for name in ("fairlead", "uvicorn.error")]
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger, level in zip(loggers, (logging.INFO, logging.WARNING), strict=True):
        logger.setLevel(level)
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, (level, propagate) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate
