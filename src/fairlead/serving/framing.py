"""What the head of a request may say: one target, one host, one way to tell where its body ends.  Pure.

The parser has refused what is not HTTP at all; this refuses what another parser down the line might read otherwise.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from fairlead.serving.http import Problem, retry_header

if TYPE_CHECKING:
    import httptools

    from fairlead.serving.limits import Limits

METHODS = b"DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"

_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+;=%\-]*(:[0-9]*)?|\[[0-9A-Fa-f:.]+\](:[0-9]*)?")
_FRAMING = frozenset(
    {b"connection", b"content-length", b"expect", b"host", b"transfer-encoding", b"upgrade"}
)


class Refusal(NamedTuple):
    """What a connection refused by itself; who asked for what, as far as that could be read."""

    code: str
    status: int
    method: str | None
    target: str | None
    begun: bool  # an app serves the request already, and sees its client leave


def bad_request(detail: str) -> Problem:
    """Refuse what cannot be read in one way only."""
    return Problem(400, "bad_request", detail)


def headers_too_large(limits: Limits) -> Problem:
    """Refuse more headers than are read here."""
    detail = (
        f"the headers are over the limit of {limits.header_fields} fields "
        f"or {limits.header_bytes} bytes"
    )
    return Problem(431, "headers_too_large", detail)


def too_many_connections() -> Problem:
    """Refuse a connection beyond those that may be open."""
    detail = "too many connections are open here; try again in a second, or use fewer connections"
    return Problem(503, "too_many_connections", detail, headers=retry_header(1.0))


def body_too_large(limit: int) -> Problem:
    """Refuse a longer body than is read here."""
    detail = f"the body is over the limit of {limit} bytes"
    return Problem(413, "body_too_large", detail)


def problem_of(error: httptools.HttpParserError) -> Problem:
    """Return what is wrong with bytes that the parser did not take, or that a callback of it refused."""
    cause = error.__context__
    if isinstance(cause, Problem):
        return cause
    return bad_request(f"the request is not valid HTTP/1.1 ({error})")


def wire(problem: Problem, media: bytes, body: bytes, defaults: list[tuple[bytes, bytes]]) -> bytes:
    """Write the last answer of a connection."""
    status, headers = problem.answer.status, problem.answer.headers
    lines = [
        b"HTTP/1.1 %d %s" % (status, HTTPStatus(status).phrase.encode()),
        *(name + b": " + value for name, value in defaults),
        b"content-type: " + media,
        b"content-length: %d" % len(body),
        b"x-fairlead-error-code: " + problem.code.encode(),
        *(name + b": " + value for name, value in headers),
        b"connection: close",
        b"",
        b"",
    ]
    return b"\r\n".join(lines) + body


def check_head(
    method: bytes,
    version: str,
    target: bytes,
    headers: list[tuple[bytes, bytes]],
    limits: Limits,
) -> None:
    """Raise a Problem for a request that is not to be served."""
    size = len(target)
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        size += len(name) + len(value) + 4
        if name in _FRAMING:
            if name in found and name not in (b"connection", b"upgrade"):
                raise bad_request(f"the header {name.decode()} stands there twice")
            found[name] = value if name not in found else found[name] + b"," + value
    if size > limits.header_bytes or len(headers) > limits.header_fields:
        raise headers_too_large(limits)
    if _CONTROL.search(b"".join([value for _, value in headers])):
        name = next(name for name, value in headers if _CONTROL.search(value))
        raise bad_request(f"the header {name.decode('latin-1')} holds a control character")
    if method in (b"CONNECT", b"TRACE"):
        detail = f"{method.decode()} is not served here"
        raise Problem(405, "method_not_allowed", detail, headers=((b"allow", METHODS),))
    if version not in ("1.0", "1.1"):
        raise Problem(505, "http_version_not_supported", "speak HTTP/1.1")
    if not target.startswith(b"/") or b"#" in target:
        raise bad_request("the request target must be a path, such as /v1/models")
    host = found.get(b"host")
    if (host is None and version == "1.1") or not _HOST.fullmatch(host or b""):
        raise bad_request("the request needs one valid host header")
    length = _check_body(found, version)
    if length:
        path = target.partition(b"?")[0].decode("latin-1")
        limit = limits.body_limit(unquote(path) if "%" in path else path)
        if length > limit:
            raise body_too_large(limit)
    if found.get(b"expect", b"100-continue").lower() != b"100-continue":
        raise Problem(417, "expectation_failed", "the only expectation met here is 100-continue")
    # h2c is offered by clients that are as happy with HTTP/1.1; whoever offers another protocol needs it.
    if found.get(b"upgrade", b"h2c").lower() != b"h2c":
        tokens = found.get(b"connection", b"").lower().split(b",")
        if b"upgrade" in [token.strip() for token in tokens]:
            detail = "connections are not upgraded here; speak HTTP/1.1"
            upgrade = ((b"upgrade", b"HTTP/1.1"),)
            raise Problem(426, "upgrade_not_served", detail, headers=upgrade)


def _check_body(found: dict[bytes, bytes], version: str) -> int:
    """Return the length of the body, as far as the head tells it."""
    coding, length = found.get(b"transfer-encoding"), found.get(b"content-length")
    if coding is not None and (length is not None or version == "1.0"):
        raise bad_request("the length of the body is ambiguous")
    if coding is not None and coding.lower() != b"chunked":
        raise bad_request("the only transfer-encoding taken here is chunked")
    if length is not None and not (length.isdigit() and len(length) < 19):
        raise bad_request("content-length must be a number")
    return 0 if length is None else int(length)
