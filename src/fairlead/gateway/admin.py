"""The operators' port: /metrics, /livez, /readyz, /workers, /openapi.json.

It shows the gateway and changes its fleet; it carries no traffic.  With a token set, everything but /livez asks for it.
Without one it listens on loopback, where a page in a browser can reach it too, should its name have been made to mean
127.0.0.1 (DNS rebinding): whatever would change the fleet then names its origin, and is refused for it.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from pydantic import ValidationError

from fairlead.config import shown
from fairlead.errors import Misuse
from fairlead.gateway.openapi import document
from fairlead.gateway.settings import Upstream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from fairlead.gateway.admission import Admission
    from fairlead.gateway.fleet import Fleet

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

JSON = "application/json"
PROBLEM = "application/problem+json"
LARGEST_BODY = 64 * 1024
READING = ("GET", "HEAD")


class Answer(NamedTuple):
    """One HTTP response."""

    status: int
    body: bytes
    media: str = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Problem(Exception):
    """What is wrong with a request; answered as RFC 9457."""

    def __init__(self, status: int, code: str, detail: str, **more: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.headers: tuple[tuple[bytes, bytes], ...] = more.pop("headers", ())
        self.document = {
            "type": "about:blank",
            "status": status,
            "title": HTTPStatus(status).phrase,
            "detail": detail,
            "code": code,
            **more,
        }


class Admin:
    """The app; `draining` turns /readyz to 503."""

    def __init__(self, fleet: Fleet, admission: Admission, token: str | None = None) -> None:
        self._fleet = fleet
        self._admission = admission
        self.token = token
        self.draining = False
        self._routes: dict[str, dict[str, Callable[[Scope, Receive], Awaitable[Answer]]]] = {
            "/livez": dict.fromkeys(READING, self._livez),
            "/metrics": dict.fromkeys(READING, self._metrics),
            "/openapi.json": dict.fromkeys(READING, self._openapi),
            "/readyz": dict.fromkeys(READING, self._readyz),
            "/workers": {
                **dict.fromkeys(READING, self._workers),
                "POST": self._add_worker,
                "DELETE": self._remove_worker,
            },
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1003, "reason": "no websockets here"})
        if scope["type"] != "http":
            return
        try:
            answer = await self._answer(scope, receive)
        except Problem as problem:
            body = json.dumps(problem.document).encode() + b"\n"
            answer = Answer(problem.status, body, PROBLEM, problem.headers)
        headers = [
            (b"content-type", answer.media.encode()),
            (b"content-length", b"%d" % len(answer.body)),
            (b"cache-control", b"no-store"),
            *answer.headers,
        ]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        body = b"" if scope["method"] == "HEAD" else answer.body
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        path, method = scope["path"], scope["method"]
        if path != "/livez":
            self._authorize(scope)
        methods = self._routes.get(path)
        if methods is None:
            served = ", ".join(self._routes)
            detail = f"nothing is served at {shown(path)}; ask for {served}"
            raise Problem(404, "not_found", detail)
        if method not in methods:
            allowed = ", ".join(methods)
            detail = f"{path} is for {allowed}, not for {shown(method)}"
            headers = ((b"allow", allowed.encode()),)
            raise Problem(405, "method_not_allowed", detail, headers=headers)
        return await methods[method](scope, receive)

    def _authorize(self, scope: Scope) -> None:
        if self.token is None:
            if not all(_is_here(value) for name, value in scope["headers"] if name == b"origin"):
                detail = "without admin.token this port does not answer pages from elsewhere"
                raise Problem(403, "foreign_origin", detail)
            return
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, token = (given[0] if len(given) == 1 else b"").partition(b" ")
        known = hmac.compare_digest(token.strip(), self.token.encode())
        if scheme.lower() != b"bearer" or not known:
            detail = "this port needs its token: send Authorization: Bearer <admin.token>"
            challenge = ((b"www-authenticate", b'Bearer realm="fairlead admin"'),)
            raise Problem(401, "unauthorized", detail, headers=challenge)

    async def _livez(self, scope: Scope, receive: Receive) -> Answer:
        return _json(200, {"status": "ok"})

    async def _readyz(self, scope: Scope, receive: Receive) -> Answer:
        if self.draining:
            return _json(503, {"status": "draining"})
        problems = list(self._admission.problems)
        if problems:
            return _json(200, {"status": "degraded", "problems": problems})
        return _json(200, {"status": "ok"})

    async def _metrics(self, scope: Scope, receive: Receive) -> Answer:
        body, media = self._admission.metrics.render()
        return Answer(200, body, media)

    async def _openapi(self, scope: Scope, receive: Receive) -> Answer:
        return _json(200, document(secured=self.token is not None))

    async def _workers(self, scope: Scope, receive: Receive) -> Answer:
        workers = self._fleet.describe()
        return _json(200, {"workers": workers, "capacities": self._fleet.capacities()})

    async def _add_worker(self, scope: Scope, receive: Receive) -> Answer:
        kinds = [value for name, value in scope["headers"] if name == b"content-type"]
        media = kinds[0].split(b";")[0].strip().lower() if len(kinds) == 1 else b""
        if media != b"application/json":
            raise Problem(415, "not_json", "send the worker as content-type: application/json")
        body = await _read(receive)
        try:
            given = Upstream.model_validate_json(body)
        except ValidationError as error:
            problems = [
                {
                    "field": ".".join(map(str, found["loc"])) or "body",
                    "problem": found["msg"].removeprefix("Value error, "),
                }
                for found in error.errors(include_url=False, include_context=False)
            ]
            said = "; ".join(f"{found['field']}: {found['problem']}" for found in problems)
            detail = f"this is no worker: {said}"
            raise Problem(422, "bad_worker", detail, problems=problems) from None
        try:
            upstream = self._fleet.add(given)
        except Misuse as error:
            raise Problem(409, "worker_exists", str(error)) from None
        return _json(201, upstream.describe())

    async def _remove_worker(self, scope: Scope, receive: Receive) -> Answer:
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        urls = query.pop("url", [])
        if len(urls) != 1 or query:
            detail = "say which one to remove: DELETE /workers?url=http://10.0.0.7:9001"
            raise Problem(422, "bad_query", detail)
        url = urls[0].rstrip("/")
        if not self._fleet.remove(url):
            raise Problem(404, "worker_unknown", f"there is no worker {shown(url)}")
        return _json(200, {"removed": url})


def _is_here(origin: bytes) -> bool:
    """Tell whether a page came from this machine, by an address or a name that no name server had a say in."""
    try:
        host = urlsplit(origin.decode("latin-1")).hostname
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


async def _read(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Problem(400, "incomplete", "the body did not arrive")
        body += message.get("body", b"")
        if len(body) > LARGEST_BODY:
            raise Problem(413, "body_too_large", f"the body is over {LARGEST_BODY} bytes")
        if not message.get("more_body", False):
            return bytes(body)


def _json(status: int, content: Any) -> Answer:
    return Answer(status, json.dumps(content).encode() + b"\n")
