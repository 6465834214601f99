"""What a running app shows over HTTP: /metrics, /status, /explain, /livez, /readyz.

A small server of the standard library on threads of its own: an app may have no event loop, and whoever looks must not
hold up whoever works.  It reads and changes nothing.  It names topics and shows errors of consumers, so it listens on
loopback; to listen elsewhere it needs a token, which /livez and /readyz do without.
"""

from __future__ import annotations

import hmac
import json
import re
import socket
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

from fairlead.config import secret, shown
from fairlead.documents import addresses
from fairlead.errors import ConfigError
from fairlead.serving.locality import Stranger, stranger
from fairlead.streams.lag import LagWatch
from fairlead.streams.metrics import StreamMetrics

if TYPE_CHECKING:
    from fairlead.streams.app import StreamApp

ADDRESS = "127.0.0.1:8090"  # if nothing else is asked for
PATHS = ("/explain", "/livez", "/metrics", "/readyz", "/status")
OPEN = ("/livez", "/readyz")  # without a token
MOST_REQUESTS = 32  # that are answered at once; more are hung up on
PATIENCE = 5.0  # seconds for a client to send, or to take, the next bytes
HEAD = 10.0  # seconds for all of its headers
STILL = 60.0  # seconds, at least, after which a listener that does not move is given up


class Answer(NamedTuple):
    """One response."""

    status: int
    body: bytes
    content_type: str = "application/json"


class StatusServer:
    """The server of one app; it answers from `start` until `close`, also while the app does not run.

    >>> from fairlead.testing.streams import MemoryBroker
    >>> from fairlead.streams import StreamApp
    >>> with StatusServer(StreamApp(broker=MemoryBroker(), group="billing"), "127.0.0.1:0") as server:
    ...     server.answer("/readyz").status
    503
    """

    def __init__(
        self, app: StreamApp, address: str = ADDRESS, *, token: str | None = None, name: str = ""
    ) -> None:
        host, port = split_address(address)
        token = secret(token, "token")
        if token is None and not addresses.is_here(host):
            raise ConfigError(
                f"{address} can be reached from other machines: set a token that clients must show (--token, or "
                "FAIRLEAD_STREAMS_TOKEN), or listen on 127.0.0.1"
            )
        self.app = app
        self.name = name
        self.token = token
        self._metrics = StreamMetrics(app)
        self._lag = LagWatch(app)
        try:
            self._server = _Server(host, port, self)
        except OSError as error:
            reason = error.strerror or str(error)
            raise OSError(error.errno, f"cannot listen on {address}: {reason}") from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="fairlead-status", daemon=True
        )

    @property
    def address(self) -> str:
        """Where it listens."""
        host, port = self._server.server_address[:2]
        return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"

    def start(self) -> Self:
        """Begin to answer."""
        self._thread.start()
        self._lag.start()
        return self

    def close(self) -> None:
        """Answer no more."""
        if self._thread.ident is not None:  # else nobody would ever hear of the shutdown
            self._server.shutdown()
        self._server.server_close()
        self._lag.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    # Answers

    def admits(self, path: str, authorization: str | None) -> bool:
        """Say whether a request shows the token that it needs."""
        if self.token is None or path in OPEN:
            return True
        given = (authorization or "").encode("latin-1", "replace")
        return hmac.compare_digest(given, f"Bearer {self.token}".encode())

    def answer(
        self, target: str, authorization: str | None = None, foreign: Stranger | None = None
    ) -> Answer:
        """Answer a GET; `foreign` says why it is not of this machine alone."""
        if not target.startswith("/"):  # an absolute one names a host of its own
            return problem(400, "the request target must be a path, such as /status")
        path, query = urlsplit(target).path.rstrip("/"), urlsplit(target).query
        if path not in PATHS:
            return problem(
                404, f"nothing is served at {shown(path or '/')}; ask for {', '.join(PATHS)}"
            )
        if not self.admits(path, authorization):
            return problem(401, "this needs a token: send Authorization: Bearer <token>")
        if self.token is None and path not in OPEN and foreign is not None:
            return problem(403, foreign.detail)
        if path == "/metrics":
            return Answer(200, *self._metrics.render())
        if path == "/status":
            return _json(200, {"app": self.name, **self.app.snapshot()})
        if path == "/explain":
            return self._explain(parse_qs(query))
        reasons = self.not_alive() if path == "/livez" else self.not_ready()
        good = "alive" if path == "/livez" else "ready"
        status = f"not {good}" if reasons else good
        return _json(503 if reasons else 200, {"status": status, "reasons": reasons})

    def _explain(self, query: dict[str, list[str]]) -> Answer:
        topic, number = query.get("topic", [""])[-1], query.get("partition", [""])[-1]
        if not topic or not re.fullmatch(r"[0-9]{1,9}", number):
            return problem(400, "say which: /explain?topic=orders&partition=3")
        if self.app.started is None:
            return problem(503, "the app does not run yet")
        try:
            text = self.app.explain(topic, int(number))
        except ConfigError as error:
            return problem(404, str(error))
        return _json(200, {"topic": topic, "partition": int(number), "explain": text})

    def not_alive(self) -> list[str]:
        """Tell why the process should be started again; nothing, if it need not be."""
        runtime = self.app.started
        if runtime is None or runtime.stopped:
            return []
        limit = max(STILL, self.app.settings.max_poll_interval)
        now = time.monotonic()
        return [
            f"the listener of {name!r} has not moved for {now - one.beat_at:.0f} s"
            for name, one in runtime.listeners.items()
            if now - one.beat_at > limit or not one.is_alive()
        ]

    def not_ready(self) -> list[str]:
        """Tell what keeps the app from consuming; nothing, if nothing does."""
        runtime = self.app.started
        if self.app.state != "running" or runtime is None:
            return [f"the app is {self.app.state}"]
        return [
            f"group {name!r} has no connection: it is starting, or starting anew"
            for name, one in runtime.listeners.items()
            if not one.connected
        ] + self.not_alive()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, host: str, port: int, owner: StatusServer) -> None:
        self.owner = owner
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._free = threading.Semaphore(MOST_REQUESTS)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # The base class would ask the name service who we are, which can take seconds.
        self.allow_reuse_address = True
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be had
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up in the middle is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = PATIENCE
    server_version = "fairlead"
    sys_version = ""

    def handle(self) -> None:
        # Each byte may come in time, and the last one never.
        self._late = threading.Timer(HEAD, self._hang_up)
        self._late.daemon = True
        self._late.start()
        try:
            super().handle()
        finally:
            self._late.cancel()

    def _hang_up(self) -> None:
        with suppress(OSError):  # it is gone already
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        self._late.cancel()
        owner = self.server.owner
        try:
            fields = [
                (name.lower().encode("latin-1", "replace"), value.encode("latin-1", "replace"))
                for name, value in self.headers.items()
            ]
            foreign = stranger(self.client_address[0], fields)
            answer = owner.answer(self.path, self.headers.get("Authorization"), foreign)
        except Exception as error:  # somebody's scheduler explains itself wrongly, or worse
            answer = problem(500, f"this could not be told: {error!r}")
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if answer.status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the base class has it
        """Requests are not logged: a scrape every few seconds is no news."""


def problem(status: int, detail: str) -> Answer:
    """Make an RFC 9457 problem."""
    title = {
        400: "Bad Request",
        401: "Unauthorized",
        403: "Forbidden",
        404: "Not Found",
        503: "Service Unavailable",
    }
    body = {
        "type": "about:blank",
        "title": title.get(status, "Internal Server Error"),
        "status": status,
        "detail": detail,
    }
    return _json(status, body, "application/problem+json")


def _json(status: int, body: Any, content_type: str = "application/json") -> Answer:
    text = json.dumps(body, allow_nan=False, default=str)
    return Answer(status, text.encode() + b"\n", content_type)


def split_address(text: str) -> tuple[str, int]:
    """Split host:port; a port alone is one of this machine's loopback.

    >>> split_address("9000"), split_address("[::1]:9000")
    (('127.0.0.1', 9000), ('::1', 9000))
    """
    try:
        return addresses.split_address(text if ":" in text else f"127.0.0.1:{text}")
    except ValueError:
        raise ConfigError(
            f"the address to listen on must be host:port, such as {ADDRESS}, or a port; got {shown(text)}"
        ) from None
