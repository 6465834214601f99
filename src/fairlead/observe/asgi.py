"""An ASGI app over one scheduler: /metrics, /healthz, /livez, /readyz.

It reads `stats()` and changes nothing.  It knows no framework: mount it in any, or serve it alone.  It names no tenants
and no work, but it does show how loaded you are: bind it to loopback, or put it behind your own authentication.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.config import shown
from fairlead.errors import Misuse
from fairlead.observe.document import document
from fairlead.observe.health import Health
from fairlead.observe.negotiation import JSON, chosen
from fairlead.observe.prometheus import render

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from fairlead.observe.health import Observed

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

PATHS = ("/healthz", "/livez", "/metrics", "/readyz")
PROBLEM = "application/problem+json"


class Answer(NamedTuple):
    """One HTTP response."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


def app(scheduler: Observed) -> ObserveApp:
    """Make an ASGI app that shows a scheduler: anything with `stats()`, on an event loop or on threads.

    >>> from fairlead import Scheduler
    >>> application = app(Scheduler.bounded(max_concurrency=4))

    - `GET /metrics`: JSON by default, a Prometheus format if `Accept` prefers one.
    - `GET /healthz`: the verdict of `Health` with its reasons; 503 when unhealthy.
    - `GET /livez`: 200 while the process answers.  `GET /readyz`: 503 once the scheduler is shutting down.
    """
    if not callable(getattr(scheduler, "stats", None)):
        raise Misuse(f"observe.app() needs a scheduler, something with stats(); got {scheduler!r}")
    return ObserveApp(scheduler)


class ObserveApp:
    """The app; `health` is what `/healthz` asks."""

    def __init__(self, scheduler: Observed) -> None:
        self._scheduler = scheduler
        self.health = Health(scheduler)
        self._answers = {
            "/healthz": self._healthz,
            "/livez": self._livez,
            "/metrics": self._metrics,
            "/readyz": self._readyz,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http":
            await _respond(scope, send, self._answer(scope))
        elif kind == "lifespan":
            await _live(receive, send)
        elif kind == "websocket":
            await _decline(scope, receive, send)
        else:
            raise Misuse(f"this app speaks http, websocket (to decline) and lifespan, not {kind!r}")

    def _answer(self, scope: Scope) -> Answer:
        path = _route(scope)
        answer = self._answers.get(path)
        if answer is None:
            detail = f"nothing is served at {shown(path)}; ask for {', '.join(PATHS)}"
            return _problem(404, "Not Found", detail, paths=PATHS)
        if scope["method"] not in ("GET", "HEAD"):
            detail = f"{path} is for reading: use GET or HEAD, not {shown(scope['method'])}"
            problem = _problem(405, "Method Not Allowed", detail)
            return problem._replace(headers=((b"allow", b"GET, HEAD"),))
        return answer(scope)

    def _metrics(self, scope: Scope) -> Answer:
        stats = self._scheduler.stats()
        accept = b",".join(value for name, value in scope["headers"] if name.lower() == b"accept")
        media = chosen(accept.decode("latin-1"))
        vary = ((b"vary", b"Accept"),)
        if media == JSON:
            return _json(200, document(stats))._replace(headers=vary)
        body, content_type = render(stats, media)
        return Answer(200, content_type, body, vary)

    def _healthz(self, scope: Scope) -> Answer:
        verdict = self.health.verdict()
        body = {
            "status": verdict.status,
            "reasons": verdict.reasons,
            "indicators": dict(verdict.indicators),
        }
        return _json(503 if verdict.status == "unhealthy" else 200, body)

    def _livez(self, scope: Scope) -> Answer:
        return _json(200, {"status": "alive"})

    def _readyz(self, scope: Scope) -> Answer:
        if self._scheduler.stats().shutting_down:
            reason = "the scheduler is shutting down and takes nothing new; send work elsewhere"
            return _json(503, {"status": "not ready", "reasons": [reason]})
        return _json(200, {"status": "ready", "reasons": []})


def _route(scope: Scope) -> str:
    """Tell which path of ours is asked for, wherever the app is mounted.

    Servers disagree on whether `path` includes `root_path`; the stripped reading is tried first.
    """
    path: str = scope["path"].rstrip("/")
    root: str = scope.get("root_path", "").rstrip("/")
    if root and path.startswith(root + "/"):
        inner = path[len(root) :]
        return inner if inner in PATHS or path not in PATHS else path
    return path or "/"


def _json(status: int, body: Any, content_type: str = JSON) -> Answer:
    return Answer(status, content_type, json.dumps(body).encode() + b"\n")


def _problem(status: int, title: str, detail: str, **more: Any) -> Answer:
    """Make an RFC 9457 problem."""
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail, **more}
    return _json(status, body, PROBLEM)


async def _respond(scope: Scope, send: Send, answer: Answer, prefix: str = "http") -> None:
    headers = [
        (b"content-type", answer.content_type.encode()),
        (b"content-length", str(len(answer.body)).encode()),
        (b"cache-control", b"no-store"),
        *answer.headers,
    ]
    await send({"type": f"{prefix}.response.start", "status": answer.status, "headers": headers})
    body = b"" if scope.get("method") == "HEAD" else answer.body
    await send({"type": f"{prefix}.response.body", "body": body})


async def _live(receive: Receive, send: Send) -> None:
    """Nothing is to be set up or torn down: the scheduler is its owner's."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _decline(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a websocket before it opens, with words where the server can carry them."""
    await receive()
    if "websocket.http.response" in (scope.get("extensions") or {}):
        problem = _problem(404, "Not Found", f"no websockets here; GET {', '.join(PATHS)}")
        await _respond(scope, send, problem, "websocket.http")
    else:
        await send({"type": "websocket.close", "code": 1000, "reason": "no websockets here"})
