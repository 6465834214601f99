"""Refusals on the wire: complete JSON bodies, in the form the client's library reads.

On `/v1/*` paths that is OpenAI's, elsewhere RFC 9457's.  `code` is for programs and never changes; the sentence beside
it is for people: what happened, and what to do.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, MutableMapping

    Message = MutableMapping[str, Any]
    Send = Callable[[Message], Awaitable[None]]
    Headers = Iterable[tuple[bytes, bytes]]


class Failure(NamedTuple):
    """Why a request gets no answer of its own."""

    status: int
    code: str
    detail: str
    retry_after: int | None = None  # whole seconds, at least 1
    headers: tuple[tuple[bytes, bytes], ...] = ()


def own_path(scope: Any) -> str:
    """Tell the path as the application knows it: without what it is mounted under, which ASGI puts before it."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if not root:
        return path
    root = root.rstrip("/")
    return path[len(root) :] if root and path.startswith(root + "/") else path


def openai_form(path: str) -> bool:
    """Tell whether clients of this path expect errors as OpenAI writes them."""
    return path == "/v1" or path.startswith("/v1/")


def body_of(failure: Failure, path: str) -> tuple[bytes, bytes]:
    """Write the content type and the body."""
    title = HTTPStatus(failure.status).phrase
    if openai_form(path):
        error = {"message": failure.detail, "type": _openai_type(failure.status)}
        document: dict[str, Any] = {"error": {**error, "code": failure.code, "param": None}}
        return b"application/json", json.dumps(document).encode()
    document = {
        "type": "about:blank",
        "status": failure.status,
        "title": title,
        "detail": failure.detail,
        "code": failure.code,
    }
    return b"application/problem+json", json.dumps(document).encode()


def _openai_type(status: int) -> str:
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_error"
    return "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"


async def send_failure(send: Send, failure: Failure, path: str, headers: Headers = ()) -> None:
    """Answer with a failure."""
    media, body = body_of(failure, path)
    lines = [
        (b"content-type", media),
        (b"content-length", b"%d" % len(body)),
        (b"x-fairlead-error-code", failure.code.encode()),
        *failure.headers,
        *headers,
    ]
    if failure.retry_after is not None:
        lines.append((b"retry-after", b"%d" % max(1, failure.retry_after)))
    await send({"type": "http.response.start", "status": failure.status, "headers": lines})
    await send({"type": "http.response.body", "body": body})
