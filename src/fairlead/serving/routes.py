"""An ASGI app of routes: paths with holes, methods, and an answer for everything else."""

from __future__ import annotations

import asyncio
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fairlead.config import shown
from fairlead.errors import FairleadError, KeyConflict, ShuttingDown, StoreError, UnknownRun
from fairlead.serving.auditing import UNCHANGED
from fairlead.serving.http import Answer, Problem, Stream, left, respond

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Awaitable, Callable, Iterator, Mapping

    from fairlead.serving.auditing import Audit
    from fairlead.serving.http import Receive, Scope, Send

    Handler = Callable[..., Awaitable[Answer | Stream | None]]

READING = ("GET", "HEAD")
RETRY_AFTER = ((b"retry-after", b"2"),)
OPEN = frozenset({"/livez"})
_HOLE = re.compile(r"\{([a-z_]+)(:path)?\}")


def reading(handler: Handler) -> dict[str, Handler]:
    """The methods of what is only read."""
    return dict.fromkeys(READING, handler)


@contextmanager
def telling_errors() -> Iterator[None]:
    """Make problems of what a door's own verbs raise."""
    try:
        yield
    except UnknownRun as error:
        raise Problem(404, "not_found", str(error)) from None
    except KeyConflict as error:
        raise Problem(409, "key_conflict", str(error)) from None
    except (StoreError, ShuttingDown) as error:
        detail = f"{error}; nothing was changed, try again"
        raise Problem(503, "unavailable", detail, headers=RETRY_AFTER) from None
    except FairleadError as error:
        raise Problem(422, "refused", str(error)) from None


class Routes:
    """Paths × methods.  In a path, `{run}` stands for one segment and `{id:path}` for one or more.

    Paths come decoded: what was sent as %2F is a slash, and fits `{id:path}` alone.
    """

    def __init__(
        self, table: Mapping[str, Mapping[str, Handler]], *, hint: str = "see /openapi.json"
    ) -> None:
        self._plain = {path: dict(methods) for path, methods in table.items() if "{" not in path}
        self._holed = [
            (_pattern(path), dict(methods)) for path, methods in table.items() if "{" in path
        ]
        self._hint = hint

    def find(self, path: str, method: str) -> tuple[Handler, tuple[str, ...]]:
        """Tell who answers, and what stands in the holes; a Problem if nobody does."""
        holes: tuple[str, ...] = ()
        methods = self._plain.get(path)
        if methods is None:
            matches = ((pattern.fullmatch(path), methods) for pattern, methods in self._holed)
            found, methods = next((one for one in matches if one[0]), (None, None))
            if found is None or methods is None:
                detail = f"nothing is served at {shown(path)}; {self._hint}"
                raise Problem(404, "not_found", detail)
            holes = found.groups()
        handler = methods.get(method)
        if handler is None:
            allowed = ", ".join(methods)
            detail = f"{shown(path)[1:-1]} is for {allowed}, not for {shown(method)}"
            headers = ((b"allow", allowed.encode()),)
            raise Problem(405, "method_not_allowed", detail, headers=headers)
        return handler, holes


def _pattern(path: str) -> re.Pattern[str]:
    parts = []
    at = 0
    for hole in _HOLE.finditer(path):
        parts += [re.escape(path[at : hole.start()]), "(.+)" if hole[2] else "([^/]+)"]
        at = hole.end()
    return re.compile("".join(parts) + re.escape(path[at:]), re.DOTALL)


class Application:
    """An ASGI app over routes.  A handler is called with scope, receive and what stands in the path's holes.

    It returns an Answer, a Stream, or None where nobody is there to read one, and raises Problem.  Derived apps say
    who may ask in `authorize`, and turn errors of their own into answers in `answered`.
    """

    routes: Routes
    open_paths = OPEN  # asked for by anybody
    audit: Audit | None = None  # where changes are recorded, if they are

    def authorize(self, scope: Scope) -> None:
        """Raise a Problem if this request may not be answered."""

    def answered(self, scope: Scope, receive: Receive) -> Awaitable[Answer | Stream | None]:
        """Answer a request; whoever may not ask, or asks for nothing there is, is told before anything is awaited."""
        path = scope["path"]
        if path not in self.open_paths:
            self.authorize(scope)
        handler, holes = self.routes.find(path, scope["method"])
        return handler(scope, receive, *holes)

    def _record(self, scope: Scope, given: Answer | Stream | None) -> None:
        """Leave an entry for a request that has changed something: each that is not read, and was answered well."""
        if self.audit is None or scope["method"] in READING or scope.get(UNCHANGED):
            return
        if not isinstance(given, Answer) or given.status < 400:
            self.audit.record(scope)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http":
            try:
                given = await self.answered(scope, receive)
                self._record(scope, given)
            except Problem as problem:
                given = problem.answer
            if isinstance(given, Answer):
                await respond(send, given, bodiless=scope["method"] == "HEAD")
            elif given is not None:
                await _stream(send, receive, given, bodiless=scope["method"] == "HEAD")
        elif kind == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1003, "reason": "no websockets here"})
        elif kind == "lifespan":
            await live(receive, send)


async def _stream(send: Send, receive: Receive, given: Stream, *, bodiless: bool) -> None:
    headers = [(b"content-type", given.media), (b"cache-control", b"no-store"), *given.headers]
    try:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if bodiless:
            await send({"type": "http.response.body"})
        else:
            await _pump(send, receive, given.pieces)
    finally:
        close = getattr(given.pieces, "aclose", None)
        if close is not None:
            await close()


async def _pump(send: Send, receive: Receive, pieces: AsyncIterable[bytes]) -> None:
    async def pump() -> None:
        async for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})

    both: list[asyncio.Task[Any]] = [
        asyncio.create_task(pump()),
        asyncio.create_task(left(receive)),
    ]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in both:
            task.cancel()
        told = await asyncio.gather(*both, return_exceptions=True)
    if isinstance(told[0], Exception):
        raise told[0]


async def live(receive: Receive, send: Send) -> None:
    """Agree to whatever a server says of its life: an app that needs nothing to begin or end."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
