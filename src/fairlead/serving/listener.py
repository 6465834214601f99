"""One address that an ASGI app is served on: taken early, left alone by signals, ended with or without patience."""

from __future__ import annotations

import asyncio
import socket
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import uvicorn

from fairlead.documents.addresses import is_here, split_address
from fairlead.serving.connections import SHARE, Caps, Connections, descriptors
from fairlead.serving.intake import Inlet, Intake, reads_into_room
from fairlead.serving.limits import USUAL
from fairlead.serving.protocol import LimitedProtocol

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from fairlead.serving.limits import Limits

BACKLOG = 2048
IDLE = 60  # seconds that a connection may stay open between requests
LAST_MOMENT = 1.0  # seconds for what is cancelled to clean up
# A client that vanishes without a word, with its machine or the way to it, is noticed within a minute, also while it
# waits for an answer: seconds of silence after which it is asked for, seconds between questions, how many of them.
VANISHED = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class Tls(NamedTuple):
    """The files of a certificate, with those that signed it, and of its key."""

    certificate: str | os.PathLike[str]
    key: str | os.PathLike[str] | None = None


class Listener(uvicorn.Server):
    """Serve an app on one address.

    `bind` takes the address, `begin` accepts, `refuse` accepts no more, `end` waits for what runs and cuts what is
    left, `hurry` makes it wait no longer, `close` gives the address up.  `limits` are asked for at each connection.
    They say how many connections may be open; else a `share` of the descriptors that the system allows may be, and a
    quarter of those for one address, unless it is `exempt`.
    """

    def __init__(
        self,
        app: Any,
        address: str,
        *,
        limits: Callable[[], Limits] = lambda: USUAL,
        protocol: Callable[..., LimitedProtocol] = LimitedProtocol,
        share: float = SHARE,
        exempt: Callable[[str], bool] = is_here,
        tls: Tls | None = None,
    ) -> None:
        self.connections = Connections(
            address, lambda: Caps.of(self._descriptors, share, limits()), exempt
        )
        self.intake = Intake()  # what its connections brought and the app has not taken
        self._protocol = partial(
            protocol, limits=limits, connections=self.connections, intake=self.intake
        )
        super().__init__(
            uvicorn.Config(
                app,
                http=self._make_protocol,  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=IDLE,
                ssl_certfile=None if tls is None else tls.certificate,
                ssl_keyfile=None if tls is None or tls.key is None else str(tls.key),
                # Of a key that has one, nobody is asked for it: a service has no terminal to wait at.
                ssl_keyfile_password=None if tls is None else "none",
            )
        )
        self._descriptors = descriptors()
        self.address = address  # its host and port; once it is bound, those it really has
        self._socket: socket.socket | None = None
        self._ready = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    def _make_protocol(self, **given: Any) -> asyncio.BaseProtocol:
        protocol = self._protocol(**given)
        return Inlet(protocol, self.intake) if reads_into_room() else protocol

    @property
    def url(self) -> str:
        """Where it listens, as a URL."""
        return f"{'https' if self.config.ssl_certfile else 'http'}://{self.address}"

    def bind(self) -> socket.socket:
        """Take the address, and read the certificate, so that a failure shows before anything runs."""
        if self._socket is not None:
            return self._socket
        try:
            self.config.load()
        except OSError as error:  # ssl.SSLError is one
            told = error.strerror or error
            raise OSError(error.errno, f"cannot use the certificate or its key: {told}") from None
        self._socket = bound(self.address)
        self.address = self.connections.where = written_address(*self._socket.getsockname()[:2])
        self._descriptors = descriptors()
        return self._socket

    async def begin(self) -> None:
        """Accept connections from now on."""
        self._serving = asyncio.create_task(self.serve([self.bind()]))
        ready = asyncio.create_task(self._ready.wait())
        await asyncio.wait({self._serving, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._serving.done():
            self._serving.result()  # what went wrong

    def refuse(self) -> None:
        """Accept no more connections."""
        self.should_exit = True
        for server in self.servers:
            server.close()

    async def end(self, grace: float | None = None) -> None:
        """Accept no more; finish what runs, for at most `grace` seconds or until hurried, then cut it."""
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
        self.close()

    def hurry(self) -> None:
        """Wait no longer for what still runs."""
        self.force_exit = True

    def close(self) -> None:
        """Give up the address."""
        if self._socket is not None:
            self._socket.close()

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready.set()


def bound(address: str) -> socket.socket:
    """Take an address; an error says which one could not be had."""
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's delay off only on sockets that say that they are TCP.
    taken = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # what it accepts has it too
        for option, value in VANISHED.items():
            if hasattr(socket, option):
                taken.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        taken.bind((host, port))
        taken.listen(BACKLOG)
    except OSError as error:
        taken.close()
        reason = error.strerror or str(error)
        raise OSError(error.errno, f"cannot listen on {address}: {reason}") from None
    return taken


def written_address(host: str, port: int) -> str:
    """Write host:port; an IPv6 host stands in brackets.

    >>> written_address("::1", 80), written_address("127.0.0.1", 80)
    ('[::1]:80', '127.0.0.1:80')
    """
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Tell the fastest event loop there is; None stands for Python's own."""
    try:
        import uvloop
    except ImportError:  # on Windows there is none
        return None
    return uvloop.new_event_loop


def allow_many_connections() -> None:
    """Raise the number of open files to what the system allows: a proxied request takes two."""
    try:
        import resource
    except ImportError:  # on Windows there is no such limit
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
