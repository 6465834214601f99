"""What an HTTP service is made of: answers, RFC 9457 problems, bodies and queries within limits.

Whatever a client sends is answered below 500: reading raises a Problem, and nothing has changed by then.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json, to_json

from fairlead.config import shown
from fairlead.documents.json_reading import read_json as read_document

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Awaitable, Callable, MutableMapping

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

Headers = tuple[tuple[bytes, bytes], ...]

JSON = b"application/json"
PROBLEM = b"application/problem+json"
LARGEST_BODY = 64 * 1024
# In the scope: the status that the connection itself answered with, for an app that was too late to.
ANSWERED = "fairlead.answered"
# In the scope, false: set by an app that refuses the rest of the body, for the connection to be closed once the client
# has read the answer.  Other servers than ours have no such key.
CLOSING = "fairlead.closing"
MOST_PROBLEMS = 50
PART = 250  # entries of a long list that are written at once, some milliseconds of the event loop
# The sentences of pydantic, in the words of this project.
SENTENCES = {
    "missing": "is required",
    "extra_forbidden": "is not known here; remove it",
    "bool_type": "must be true or false",
    "float_type": "must be a number",
    "string_type": "must be text",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be a JSON object",
    "model_attributes_type": "must be a JSON object",
    "finite_number": "must be a finite number",
    "greater_than_equal": "must be {ge:g} or more",
    "less_than_equal": "must be {le:g} or less",
    "string_too_short": "may not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "may not hold control characters",
    "too_long": "may hold at most {max_length}; there are more",
    "literal_error": "must be {expected}",
}


class Answer(NamedTuple):
    """One HTTP response."""

    status: int
    body: bytes
    media: bytes = JSON
    headers: Headers = ()


class Stream(NamedTuple):
    """A response that goes on for as long as its pieces come, or its reader stays."""

    pieces: AsyncIterable[bytes]  # its `aclose`, if it has one, is called at the end
    media: bytes
    headers: Headers = ()


class Problem(Exception):
    """What is wrong with a request, or with us; answered as RFC 9457."""

    def __init__(self, status: int, code: str, detail: str, **more: Any) -> None:
        super().__init__(detail)
        self.code, self.detail = code, detail
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

    def __reduce__(self) -> Any:  # it comes from another process, with its answer as it is
        return _raised, (self.code, self.detail, self.answer)


def _raised(code: str, detail: str, answer: Answer) -> Problem:
    problem = Problem(answer.status, code, detail)
    problem.answer = answer
    return problem


class Body(BaseModel):
    """What all bodies share: nothing unknown, nothing converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


Model = TypeVar("Model", bound=BaseModel)


def written(content: Any) -> bytes:
    """Write JSON."""
    return to_json(content)


def answer(content: Any, status: int = 200, headers: Headers = ()) -> Answer:
    """Answer with a document."""
    return Answer(status, written(content), JSON, headers)


async def answer_by_parts(content: dict[str, Any], name: str) -> Answer:
    """Answer with a document whose list of that name may be long: other requests are served between its parts."""
    items = content[name]
    parts = []
    for start in range(0, len(items), PART):
        parts.append(written(items[start : start + PART])[1:-1])
        await asyncio.sleep(0)
    rest = written({key: value for key, value in content.items() if key != name})[:-1]
    body = b"%b,%b:[%b]}" % (rest, written(name), b",".join(parts))
    return Answer(200, body, JSON)


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


def values_of(scope: Scope, name: bytes) -> list[bytes]:
    """All values of a header; its name in lower case."""
    return [value for key, value in scope["headers"] if key == name]


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


async def left(receive: Receive) -> None:
    """Wait until the client is gone; its body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


def is_json(scope: Scope) -> bool:
    """Tell whether a request says that its body is JSON."""
    media: bytes | None = None
    for name, value in scope["headers"]:
        if name == b"content-type":
            if media is not None:
                return False
            media = value
    return media == JSON or (media is not None and media.split(b";", 1)[0].strip().lower() == JSON)


async def read_body(scope: Scope, receive: Receive, *, largest: int = LARGEST_BODY) -> bytes:
    """Read a body that must be JSON, within a limit."""
    if not is_json(scope):
        raise Problem(415, "not_json", "send the body as content-type: application/json")
    message = await receive()
    body: bytes = message.get("body", b"")
    if message.get("more_body") or message["type"] == "http.disconnect":
        return await _rest_of(message, receive, largest)
    if len(body) > largest:
        raise _too_large(largest)
    return body


async def _rest_of(message: Message, receive: Receive, largest: int) -> bytes:
    body = bytearray()
    while message["type"] != "http.disconnect":
        body += message.get("body", b"")
        if len(body) > largest:
            raise _too_large(largest)
        if not message.get("more_body", False):
            return bytes(body)
        message = await receive()
    raise Problem(400, "incomplete", "the body did not arrive")


def _too_large(largest: int) -> Problem:
    return Problem(413, "body_too_large", f"the body is over {largest} bytes")


async def read_object(
    scope: Scope, receive: Receive, *, largest: int = LARGEST_BODY
) -> dict[str, Any]:
    """Read a body as any JSON object in which each key is given once."""
    return object_of(await read_body(scope, receive, largest=largest))


def object_of(body: bytes) -> dict[str, Any]:
    """Read JSON as an object in which each key is given once."""
    try:
        found = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Problem(400, "bad_json", f"the body is no JSON: {error}") from None
    refuse_repeated_keys(body)
    if not isinstance(found, dict):
        raise Problem(422, "bad_body", "the body must be a JSON object")
    return found


async def read_json(
    scope: Scope, receive: Receive, kind: type[Model], *, largest: int = LARGEST_BODY
) -> Model:
    """Read a body as JSON of that kind, or say everything that is wrong with it."""
    body = await read_body(scope, receive, largest=largest)
    try:
        return kind.__pydantic_validator__.validate_json(body)  # type: ignore[no-any-return]
    except ValidationError as error:
        raise unusable(error) from None


async def read_strictly(
    scope: Scope, receive: Receive, kind: type[Model], *, largest: int = LARGEST_BODY
) -> Model:
    """Read a body like `read_json`, and refuse one in which a key is given twice."""
    return strictly(kind, await read_body(scope, receive, largest=largest))


def strictly(kind: type[Model], body: bytes) -> Model:
    """Read JSON of that kind, and refuse a key that is given twice."""
    try:
        found = kind.model_validate_json(body)
    except ValidationError as error:
        raise unusable(error) from None
    refuse_repeated_keys(body)
    return found


def refuse_repeated_keys(body: bytes) -> None:
    """Refuse JSON in which a key is given twice: one of the two values would be lost in silence."""
    read = read_document(body)
    if isinstance(read, list):
        said = "; ".join(f"{one.path or 'the body'}: {one.message}" for one in read)
        raise Problem(422, "bad_body", said)


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
            allowed = f"is not one of {', '.join(known)}" if known else "is not known here"
            what = "is given twice" if name in found else allowed
            raise Problem(422, "bad_query", f"the query's {shown(name)} {what}")
        found[name] = value
    return found


def unusable(error: ValidationError) -> Problem:
    """Make a problem of what a model finds wrong with a body."""
    found = error.errors(include_url=False, include_input=False)
    if found[0]["type"] == "json_invalid":
        return Problem(400, "bad_json", f"the body is no JSON: {found[0]['msg']}")
    return with_problems("bad_body", "", error)


def with_problems(code: str, saying: str, error: ValidationError) -> Problem:
    """Make a problem with all that a model finds wrong: every field with a sentence."""
    found = error.errors(include_url=False, include_input=False)
    problems = [
        {
            "field": ".".join(str(part) for part in one["loc"] if part != "[key]")[:200] or "body",
            "problem": _sentence(one),
        }
        for one in found[:MOST_PROBLEMS]
    ]
    said = "; ".join(f"{shown(one['field'])[1:-1]}: {one['problem']}" for one in problems)
    more = "" if len(found) <= MOST_PROBLEMS else f"; and {len(found) - MOST_PROBLEMS} more"
    return Problem(422, code, f"{saying}{said}{more}", problems=problems)


def _sentence(found: Any) -> str:
    pattern = SENTENCES.get(found["type"])
    if pattern is None:
        return str(found["msg"]).removeprefix("Value error, ")
    return pattern.format(**found.get("ctx", {}))
