"""The server's own HTTP: the control API, the operators' paths, and the dashboard's files.

Every path of the API is a `Deed` that says who may do it; the description at /api/openapi.json is made from the same
table.  Whatever a client sends is answered below 500.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairlead.observe.negotiation import ranges_of
from fairlead.server import static
from fairlead.server.openapi import described
from fairlead.serving.access import Access, Role, refuse_strangers
from fairlead.serving.auditing import CALLER, UNCHANGED
from fairlead.serving.http import Answer, Problem, Stream, answer, values_of
from fairlead.serving.routes import READING, Application, Routes, telling_errors

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from pydantic import BaseModel

    from fairlead.serving.auditing import Audit
    from fairlead.serving.http import Receive, Scope, Send

    Handler = Callable[..., Awaitable[Answer | Stream | None]]

GUARDED = ("/api/", "/metrics")
JSON = "application/json"


@dataclass(frozen=True)
class Deed:
    """One thing the API does: where, who may, and what it takes."""

    method: str
    path: str
    role: Role
    summary: str
    handler: Handler
    query: tuple[str, ...] = ()
    takes: type[BaseModel] | None = None
    media: str = JSON  # of its answer; several parted by commas
    conflict: str | None = None  # the media type of a 409, if there can be one
    changes: bool = True  # unless it is a GET: then the audit trail has an entry for it

    async def __call__(self, scope: Scope, receive: Receive, *holes: str) -> Answer | Stream | None:
        return await self.handler(scope, receive, *holes)


class ControlApi(Application):
    """The app; `access` may be replaced while it serves."""

    open_paths = frozenset({"/livez", "/readyz"})

    def __init__(
        self,
        deeds: Iterable[Deed],
        access: Access,
        *,
        readiness: Callable[[], tuple[bool, dict[str, str]]],
        draining: Callable[[], bool],
        metrics: Callable[[], Awaitable[Any]],
        audit: Audit,
    ) -> None:
        self.access = access
        self.audit = audit
        self._readiness = readiness
        self._draining = draining
        self._metrics = metrics
        own = (
            Deed("GET", "/api/openapi.json", Role.VIEWER, "Show this document", self._openapi),
            Deed("GET", "/livez", Role.VIEWER, "Tell whether the process answers", self._livez),
            Deed(
                "GET",
                "/metrics",
                Role.VIEWER,
                "Show metrics",
                self._show_metrics,
                media=f"text/plain, {JSON}",
            ),
            Deed("GET", "/metrics.json", Role.VIEWER, "Show metrics as JSON", self._metrics_json),
            Deed("GET", "/readyz", Role.VIEWER, "Tell whether traffic is welcome", self._readyz),
        )
        self.deeds = (*own, *deeds)
        table: dict[str, dict[str, Any]] = {}
        for deed in self.deeds:
            methods = READING if deed.method == "GET" else (deed.method,)
            table.setdefault(deed.path, {}).update(dict.fromkeys(methods, deed))
        self.routes = Routes(table, hint="see /api/openapi.json")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, _tidied(send))

    async def answered(self, scope: Scope, receive: Receive) -> Answer | Stream | None:
        path = scope["path"]
        if path in self.open_paths:
            return await super().answered(scope, receive)
        if not path.startswith(GUARDED):
            return self._file(scope)
        try:
            deed, holes = self.routes.find(path, scope["method"])
        except Problem:
            # What there is, is not for everybody to know; that nothing comes of it is told whatever was sent.
            self.access.allow({**scope, "method": "GET"}, Role.VIEWER)
            raise
        needed = deed.role if isinstance(deed, Deed) else Role.ADMIN
        scope[CALLER] = self.access.allow(scope, needed)
        scope[UNCHANGED] = not (isinstance(deed, Deed) and deed.changes)
        with telling_errors():
            return await deed(scope, receive, *holes)

    def _file(self, scope: Scope) -> Answer:
        if self.access.open:
            refuse_strangers(scope)
        if scope["method"] not in READING:
            headers = ((b"allow", b"GET, HEAD"),)
            raise Problem(405, "method_not_allowed", "files are for GET, HEAD", headers=headers)
        return static.file_at(scope)

    async def _livez(self, scope: Scope, receive: Receive) -> Answer:
        return answer({"status": "ok"})

    async def _readyz(self, scope: Scope, receive: Receive) -> Answer:
        if self._draining():
            return answer({"status": "draining"}, 503)
        ready, found = self._readiness()
        if not ready:
            return answer({"status": "not ready", "doors": found}, 503)
        if found:
            return answer({"status": "degraded", "doors": found})
        return answer({"status": "ok"})

    async def _openapi(self, scope: Scope, receive: Receive) -> Answer:
        return answer(described(self.deeds, secured=not self.access.open))

    async def _show_metrics(self, scope: Scope, receive: Receive) -> Answer:
        accept = b",".join(values_of(scope, b"accept")).decode("latin-1")
        if prefers_json(accept):
            return await self._metrics_json(scope, receive)
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

        return Answer(200, generate_latest(await self._metrics()), CONTENT_TYPE_LATEST.encode())

    async def _metrics_json(self, scope: Scope, receive: Receive) -> Answer:
        families = (await self._metrics()).collect()
        return answer({"metrics": [_family_document(family) for family in families]})


def prefers_json(accept: str) -> bool:
    """Tell whether a client names JSON and weighs no text as much; `*/*` is for text.

    >>> prefers_json("application/json"), prefers_json("*/*"), prefers_json("text/plain, application/json;q=0.5")
    (True, False, False)
    """
    ranges = ranges_of(accept)
    wanted = max((one.weight for one in ranges if one.media == JSON), default=0.0)
    text = max(
        (one.weight for one in ranges if one.media != JSON and "*" not in one.media), default=0.0
    )
    return wanted > text


def _family_document(family: Any) -> dict[str, Any]:
    return {
        "name": family.name,
        "type": family.type,
        "help": family.documentation,
        "samples": [
            {"name": one.name, "labels": dict(one.labels), "value": _finite(one.value)}
            for one in family.samples
        ],
    }


def _finite(value: float) -> float | None:
    # Some say yes or no, which as text is 1.0 or 0.0.
    return float(value) if value - value == 0 else None


def _tidied(send: Send) -> Send:
    """Let an answer's own cache-control win, guard every answer, and keep 304 without a length."""

    async def tidy(message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = dict(message["headers"])  # the last of a name
            if message["status"] == 304:
                headers.pop(b"content-length", None)
            headers.setdefault(b"x-content-type-options", b"nosniff")
            message = {**message, "headers": list(headers.items())}
        await send(message)

    return tidy
