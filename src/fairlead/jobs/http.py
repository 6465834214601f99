"""What the HTTP API of jobs is made of: answers, RFC 9457 problems, bodies and queries within limits, a token."""

from __future__ import annotations

import hmac
import ipaddress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json, to_json

from fairlead.config import shown
from fairlead.jobs.json_reading import read_json as read_document

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

Headers = tuple[tuple[bytes, bytes], ...]

JSON = b"application/json"
PROBLEM = b"application/problem+json"
LARGEST_BODY = 8 * 1024 * 1024
MOST_PROBLEMS = 50
# The sentences of pydantic, in the words of this project.
SENTENCES = {
    "missing": "is required",
    "extra_forbidden": "is not known here; remove it",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be a JSON object",
    "model_attributes_type": "must be a JSON object",
    "string_too_short": "may not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "too_long": "may hold at most {max_length}; there are {actual_length}",
    "literal_error": "must be {expected}",
}


class Answer(NamedTuple):
    """One HTTP response."""

    status: int
    body: bytes
    media: bytes = JSON
    headers: Headers = ()


class Problem(Exception):
    """What is wrong with a request, or with us; answered as RFC 9457."""

    def __init__(self, status: int, code: str, detail: str, **more: Any) -> None:
        super().__init__(detail)
        headers: Headers = more.pop("headers", ())
        document = {
            "type": "about:blank",
            "status": status,
            "title": HTTPStatus(status).phrase,
            "detail": detail,
            "code": code,
            **more,
        }
        self.answer = Answer(status, written(document), PROBLEM, headers)


class Body(BaseModel):
    """What all bodies share: nothing unknown, nothing converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


BodyType = TypeVar("BodyType", bound=Body)


def written(content: Any) -> bytes:
    """Write JSON."""
    return to_json(content)


def answer(content: Any, status: int = 200) -> Answer:
    """Answer with a document."""
    return Answer(status, written(content))


async def respond(send: Send, given: Answer, *, bodiless: bool = False) -> None:
    """Send a response."""
    headers = [
        (b"content-type", given.media),
        (b"content-length", b"%d" % len(given.body)),
        (b"cache-control", b"no-store"),
        *given.headers,
    ]
    await send({"type": "http.response.start", "status": given.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if bodiless else given.body})


async def read_object(scope: Scope, receive: Receive) -> dict[str, Any]:
    """Read a body as any JSON object."""
    body = await _read(scope, receive)
    try:
        found = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Problem(400, "bad_json", f"the body is no JSON: {error}") from None
    _refuse_repeated_keys(body)
    if not isinstance(found, dict):
        raise Problem(422, "bad_body", "the body must be a JSON object")
    return found


async def read_json(scope: Scope, receive: Receive, kind: type[BodyType]) -> BodyType:
    """Read a body as JSON of that kind, or say everything that is wrong with it."""
    body = await _read(scope, receive)
    try:
        found = kind.model_validate_json(body)
    except ValidationError as error:
        raise _unusable(error) from None
    _refuse_repeated_keys(body)
    return found


def _refuse_repeated_keys(body: bytes) -> None:
    """Refuse JSON in which a key is given twice: one of the two values would be lost in silence."""
    read = read_document(body)
    if isinstance(read, list):
        said = "; ".join(f"{one.path or 'the body'}: {one.message}" for one in read)
        raise Problem(422, "bad_body", said)


async def _read(scope: Scope, receive: Receive) -> bytes:
    media = [value for name, value in scope["headers"] if name == b"content-type"]
    if len(media) != 1 or media[0].split(b";", 1)[0].strip().lower() != JSON:
        raise Problem(415, "not_json", "send the body as content-type: application/json")
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


def read_query(scope: Scope, known: tuple[str, ...]) -> dict[str, str]:
    """Read a query; each parameter once, and none that is not known."""
    raw = scope.get("query_string", b"")
    try:
        pairs = parse_qsl(
            raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=20
        )
    except ValueError:  # also UnicodeDecodeError
        raise Problem(422, "bad_query", f"the query {shown(raw)} cannot be read") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in known or name in found:
            what = "is given twice" if name in found else f"is not one of {', '.join(known)}"
            raise Problem(422, "bad_query", f"the query's {shown(name)} {what}")
        found[name] = value
    return found


def _unusable(error: ValidationError) -> Problem:
    found = error.errors(include_url=False, include_input=False)
    if found[0]["type"] == "json_invalid":
        return Problem(400, "bad_json", f"the body is no JSON: {found[0]['msg']}")
    problems = [
        {
            "field": ".".join(str(part) for part in one["loc"])[:200] or "body",
            "problem": _sentence(one),
        }
        for one in found[:MOST_PROBLEMS]
    ]
    said = "; ".join(f"{shown(one['field'])[1:-1]}: {one['problem']}" for one in problems)
    more = "" if len(found) <= MOST_PROBLEMS else f"; and {len(found) - MOST_PROBLEMS} more"
    return Problem(422, "bad_body", f"{said}{more}", problems=problems)


def _sentence(found: Any) -> str:
    pattern = SENTENCES.get(found["type"])
    if pattern is None:
        return str(found["msg"]).removeprefix("Value error, ")
    return pattern.format(**found.get("ctx", {}))


def authorize(scope: Scope, token: str | None) -> None:
    """Ask for the token; without one, answer no page that came from another machine (DNS rebinding)."""
    if token is None:
        if not all(_is_here(value) for name, value in scope["headers"] if name == b"origin"):
            detail = "without a token this service does not answer pages from elsewhere"
            raise Problem(403, "foreign_origin", detail)
        return
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    scheme, _, secret = (given[0] if len(given) == 1 else b"").partition(b" ")
    known = hmac.compare_digest(secret.strip(), token.encode())
    if scheme.lower() != b"bearer" or not known:
        detail = "this service needs its token: send Authorization: Bearer <token>"
        challenge = ((b"www-authenticate", b'Bearer realm="fairlead jobs"'),)
        raise Problem(401, "unauthorized", detail, headers=challenge)


def _is_here(origin: bytes) -> bool:
    """Tell whether a page came from this machine, by an address or a name that no name server had a say in."""
    try:
        host = urlsplit(origin.decode("latin-1")).hostname
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False
