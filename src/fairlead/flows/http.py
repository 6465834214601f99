"""What an HTTP service over flows is made of: answers, RFC 9457 problems, bodies within limits, routes and a token."""

from __future__ import annotations

import hmac
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import to_json

from fairlead.config import shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

Headers = tuple[tuple[bytes, bytes], ...]

JSON = b"application/json"
PROBLEM = b"application/problem+json"
USUAL = [JSON]
LARGEST_BODY = 64 * 1024
MOST_PROBLEMS = 50
# The sentences of pydantic, in the words of this project.
SENTENCES = {
    "missing": "is required",
    "extra_forbidden": "is not known here; remove it",
    "float_type": "must be a number",
    "string_type": "must be text",
    "dict_type": "must be an object of texts",
    "model_type": "must be a JSON object",
    "finite_number": "must be a finite number",
    "greater_than_equal": "must be {ge:g} or more",
    "less_than_equal": "must be {le:g} or less",
    "string_too_short": "may not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "may not hold control characters",
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
    """What is wrong with a request; answered as RFC 9457."""

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


def retry_header(seconds: float | None) -> Headers:
    """Write Retry-After in whole seconds, rounded up; nothing where a retry is of no use.

    >>> retry_header(0.2), retry_header(1.5), retry_header(None)
    (((b'retry-after', b'1'),), ((b'retry-after', b'2'),), ())
    """
    if seconds is None:
        return ()
    return ((b"retry-after", b"%d" % whole_seconds(seconds)),)


def whole_seconds(seconds: float) -> int:
    """Round a delay up, to one second at least."""
    return max(1, -int(-seconds // 1))


async def respond(send: Send, answer: Answer, *, bodiless: bool = False) -> None:
    """Send a response."""
    headers = [
        (b"content-type", answer.media),
        (b"content-length", b"%d" % len(answer.body)),
        (b"cache-control", b"no-store"),
        *answer.headers,
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if bodiless else answer.body})


async def read_json(scope: Scope, receive: Receive, kind: type[BodyType]) -> BodyType:
    """Read a body as JSON of that kind, or say everything that is wrong with it."""
    media = [value for name, value in scope["headers"] if name == b"content-type"]
    if media != USUAL and (len(media) != 1 or media[0].split(b";", 1)[0].strip().lower() != JSON):
        raise Problem(415, "not_json", "send the body as content-type: application/json")
    message = await receive()
    body = message.get("body", b"")
    if message.get("more_body") or message["type"] == "http.disconnect":
        body = await _rest_of(message, receive)
    if len(body) > LARGEST_BODY:
        raise _too_large()
    try:
        return kind.__pydantic_validator__.validate_json(body)  # type: ignore[no-any-return]
    except ValidationError as error:
        raise _unusable(error) from None


async def _rest_of(message: Message, receive: Receive) -> bytes:
    body = bytearray()
    while message["type"] != "http.disconnect":
        body += message.get("body", b"")
        if len(body) > LARGEST_BODY:
            raise _too_large()
        if not message.get("more_body", False):
            return bytes(body)
        message = await receive()
    raise Problem(400, "incomplete", "the body did not arrive")


def _too_large() -> Problem:
    return Problem(413, "body_too_large", f"the body is over {LARGEST_BODY} bytes")


def _unusable(error: ValidationError) -> Problem:
    found = error.errors(include_url=False, include_input=False)
    if found[0]["type"] == "json_invalid":
        return Problem(400, "bad_json", f"the body is no JSON: {found[0]['msg']}")
    problems = [
        {
            "field": ".".join(str(part) for part in one["loc"] if part != "[key]")[:200] or "body",
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
    """Ask for the token, if there is one."""
    if token is None:
        return
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    scheme, _, secret = (given[0] if len(given) == 1 else b"").partition(b" ")
    known = hmac.compare_digest(secret.strip(), token.encode())
    if scheme.lower() != b"bearer" or not known:
        detail = "this service needs its token: send Authorization: Bearer <token>"
        challenge = ((b"www-authenticate", b'Bearer realm="fairlead flows"'),)
        raise Problem(401, "unauthorized", detail, headers=challenge)
