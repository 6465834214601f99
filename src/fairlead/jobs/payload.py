"""What jobs are given and what they return, as JSON; nothing else is ever stored or run.

**Strict.**  What another reader of JSON, or a database, would not give back as it was is refused: NaN and infinities,
integers beyond 64 bits, NUL, halves of surrogate pairs, keys that are not text, nesting without end, too many bytes.
The error names the place: `args[0].items[3]`.

**Fast.**  The C encoder writes first; then a few searches of the text tell whether anything may be wrong.  Only then
does `_inspect` walk through the values, slowly, to find it or to clear them.

**Results of other jobs.**  A `Placeholder` among the arguments is written `{"$result": 3}`.  A key of the user's own
that reads so gets one more `$` in front, and loses it when it is read.
"""

from __future__ import annotations

import json
import re
from json import encoder as _json_encoder
from math import isfinite
from traceback import TracebackException
from typing import TYPE_CHECKING, Any

from fairlead.config import shown
from fairlead.errors import PayloadError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MOST_BYTES = 1 << 20
DEEPEST = 100
LARGEST = 2**63 - 1
NOTHING = '{"args":[],"kwargs":{}}'

_LEAVES = frozenset({str, int, float, bool, type(None)})
_MOST_VALUES = MOST_BYTES // 2  # each takes a character and a comma, or a pair of brackets
_LONG_NUMBER = re.compile("[0-9]{19}")
_UNFIT = re.compile("[\x00\ud800-\udfff]")
_RESULT = re.compile(r"\$+result", re.ASCII)
_ESCAPED = re.compile(r"\$\$+result", re.ASCII)
_HINTS = {
    "bytes": "encode it as text, such as base64",
    "bytearray": "encode it as text, such as base64",
    "set": "give a sorted list",
    "frozenset": "give a sorted list",
    "datetime": "give its isoformat()",
    "date": "give its isoformat()",
    "timedelta": "give its total_seconds()",
    "Decimal": "give text or a float",
    "coroutine": "await it, and give its result",
}


class Placeholder:
    """Stands for the result of the job at `index` of the same DAG."""

    __slots__ = ("index",)
    index: int


class _Suspect(Exception):
    """Something may be wrong with the values."""


def _refer(value: Any) -> dict[str, int]:
    if isinstance(value, Placeholder):
        return {"$result": value.index}
    raise _Suspect


def _plain_encoder() -> Any:
    """Make the C encoder once; `json.dumps` makes one for each call."""
    quick = getattr(_json_encoder, "c_make_encoder", None)
    if quick is None:  # another Python than CPython
        slow = json.JSONEncoder(
            ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_refer
        )
        return lambda value, _: (slow.encode(value),)
    return quick(None, _refer, _json_encoder.encode_basestring, None, ":", ",", False, False, False)


_encode = _plain_encoder()


def encode_call(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, Sequence[Placeholder]]:
    """Write a call as JSON; tell the placeholders in it.

    >>> encode_call(("a", 1), {"deep": True})
    ('{"args":["a",1],"kwargs":{"deep":true}}', [])
    """
    if not args and not kwargs:
        return NOTHING, ()
    placed: Sequence[Placeholder] = ()
    try:
        for value in args:
            if type(value) not in _LEAVES:
                placed = _survey((args, kwargs))
                break
        else:
            if kwargs:
                placed = _survey((kwargs,))
        text = '{"args":' + "".join(_encode(args, 0))
        text += ',"kwargs":' + "".join(_encode(kwargs, 0)) + "}" if kwargs else ',"kwargs":{}}'
        if not _is_clean(text) or text.count('$result"') != len(placed):
            raise _Suspect
    except Exception:
        text = _carefully({"args": args, "kwargs": kwargs}, "the arguments are")
    return text, placed


def encode_result(value: Any) -> str:
    """Write what a job returned as JSON.

    >>> encode_result({"pages": [1, 2]})
    '{"pages":[1,2]}'
    """
    if value is None:
        return "null"
    try:
        if type(value) not in _LEAVES and _survey(((value,),)):
            raise _Suspect
        text = "".join(_encode(value, 0))
        if not _is_clean(text):
            raise _Suspect
    except Exception:
        text = _carefully({"result": value}, "the result is")
    return text


def decode_call(payload: str, inputs: Mapping[int, str]) -> tuple[list[Any], dict[str, Any]]:
    """Read a call, with the results of other jobs (JSON, by node) in their places.

    >>> decode_call('{"args":[[{"$result":0}]],"kwargs":{}}', {0: '{"pages":2}'})
    ([[{'pages': 2}]], {})
    """
    if payload == NOTHING:
        return [], {}
    if '$result"' in payload:

        def place(given: dict[str, Any]) -> Any:
            if "$result" in given:
                try:
                    return json.loads(inputs[given["$result"]])
                except KeyError:
                    raise PayloadError(
                        f"the result of node {given['$result']} is not there", where="args"
                    ) from None
            for key in given:
                if _ESCAPED.fullmatch(key):
                    return {
                        key[1:] if _ESCAPED.fullmatch(key) else key: value
                        for key, value in given.items()
                    }
            return given

        call = json.loads(payload, object_hook=place)
    else:
        call = json.loads(payload)
    return call["args"], call["kwargs"]


def _survey(tops: Iterable[Any]) -> list[Placeholder]:
    """Look at the shape alone: keys, depth, how many values; tell the placeholders, also repeated ones."""
    placed = []
    layer = list(tops)
    left = _MOST_VALUES
    for _ in range(DEEPEST):
        inner: list[Any] = []
        for nest in layer:
            left -= len(nest)
            if left < 0:
                raise _Suspect
            if isinstance(nest, dict):
                for key in nest:
                    if not isinstance(key, str):
                        raise _Suspect
                nest = nest.values()
            for value in nest:
                if type(value) in _LEAVES:
                    continue
                if isinstance(value, list | tuple | dict):
                    inner.append(value)
                elif isinstance(value, Placeholder):
                    placed.append(value)
        if not inner:
            return placed
        layer = inner
    raise _Suspect


def _is_clean(text: str) -> bool:
    """Tell whether nothing in the text can be wrong; False also if something only looks so."""
    return (
        (len(text) if text.isascii() else len(text.encode())) <= MOST_BYTES
        and "\\u0000" not in text
        and not _LONG_NUMBER.search(text)
    )


def _carefully(values: dict[str, Any], what: str) -> str:
    """Write what is suspicious, or say what is wrong with it."""
    try:
        if "args" in values:
            _inspect(values, placeholders=True)
            text = "".join(_encode(_escaped(values), 0))
        else:
            _inspect(values, placeholders=False)
            text = "".join(_encode(values["result"], 0))
    except PayloadError:
        raise
    except Exception as error:  # a subclass of dict or list is anybody's code
        where = next(iter(values))
        raise PayloadError(f"{where}: cannot be written: {shown(error)}", where=where) from error
    size = len(text.encode())
    if size > MOST_BYTES:
        raise PayloadError(
            f"{what} {size:,} bytes of JSON, more than {MOST_BYTES:,}; "
            "store it elsewhere and pass where it is",
            where=next(iter(values)),
        )
    return text


def _inspect(top: dict[str, Any], *, placeholders: bool) -> None:
    """Find what is wrong, and where; return if nothing is.  A loop, not recursion: depth is what it looks for."""
    nests: list[Any] = [iter(top.items())]
    path: list[Any] = []  # the key of each nest but the first
    inside = {id(top)}
    entered = [id(top)]
    left = _MOST_VALUES + 1
    while nests:
        try:
            key, value = next(nests[-1])
        except StopIteration:
            nests.pop()
            inside.discard(entered.pop())
            if path:
                path.pop()
            continue
        left -= 1
        wrong = None
        if left < 0:
            wrong = f"{_MOST_VALUES:,} values come before it; store them elsewhere"
        elif not isinstance(value, list | tuple | dict):
            if not (placeholders and isinstance(value, Placeholder)):
                wrong = _wrong_leaf(value)
        elif id(value) in inside:
            wrong = "it contains itself"
        elif len(nests) > DEEPEST:
            wrong = f"it is nested more than {DEEPEST} levels deep"
        elif isinstance(value, dict):
            wrong = _wrong_keys(value)
        if wrong:
            where = _written((*path, key))
            raise PayloadError(f"{where}: {wrong}", where=where)
        if isinstance(value, list | tuple | dict):
            nests.append(iter(value.items()) if isinstance(value, dict) else enumerate(value))
            inside.add(id(value))
            entered.append(id(value))
            path.append(key)


def _wrong_keys(value: dict[Any, Any]) -> str | None:
    for key in value:
        if not isinstance(key, str):
            return f"the key {shown(key)} must be text, not {_kind(key)}"
        if _UNFIT.search(key):
            return f"the key {shown(key)} contains NUL or half of a surrogate pair"
    return None


def _wrong_leaf(value: Any) -> str | None:
    if isinstance(value, str):
        if not (found := _UNFIT.search(value)):
            return None
        what = "NUL" if found.group() == "\0" else f"half of a surrogate pair ({found.group()!a})"
        return f"the text contains {what}, which no database stores; remove it"
    if isinstance(value, float):
        if isfinite(value):
            return None
        return f"{shown(float(value))} is no number in JSON; give None or text instead"
    if isinstance(value, int):
        if -LARGEST - 1 <= value <= LARGEST:
            return None
        return f"the integer {shown(value)} needs more than 64 bits; give it as text"
    if value is None:
        return None
    hint = _HINTS.get(_kind(value), "give text, numbers, lists and dicts")
    return f"a {_kind(value)} is not JSON; {hint}"


def _kind(value: Any) -> str:
    return type(value).__name__


def _written(path: tuple[Any, ...]) -> str:
    """Write a path for people: `args[0].items[3]`, without the middle of a long one."""
    parts = [
        f".{part}" if isinstance(part, str) and part.isidentifier() else f"[{shown(part)}]"
        for part in path
    ]
    if len(parts) > 20:
        parts[10:-10] = ["..."]
    return "".join(parts).removeprefix(".")


def _escaped(value: Any) -> Any:
    """Copy what was inspected, with a `$` more in keys that look like ours."""
    if isinstance(value, dict):
        return {
            f"${key}" if _RESULT.fullmatch(key) else key: _escaped(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_escaped(inner) for inner in value]
    return value


LONGEST_MESSAGE = 8_000
LONGEST_TRACEBACK = 16_000
_LONGEST_LINE = 2_000


def error_json(kind: str, message: str, traceback: str = "") -> str:
    """Write an error so that every store takes it.

    >>> error_json("TimeoutError", "took longer than 5 s")
    '{"type":"TimeoutError","message":"took longer than 5 s","traceback":""}'
    """
    told = {
        "type": _storable(kind, 200),
        "message": _storable(message, LONGEST_MESSAGE),
        "traceback": _storable(traceback, LONGEST_TRACEBACK),
    }
    return json.dumps(told, ensure_ascii=False, separators=(",", ":"))


def error_of(error: BaseException) -> str:
    """Write what a job raised, whatever it is; nothing it does can keep it from being stored."""
    kind = type(error).__name__
    try:
        message = str(error)
    except BaseException as failed:
        message = f"<its __str__ raised {type(failed).__name__}>"
    try:
        lines = [
            _cut(line, _LONGEST_LINE)
            for line in TracebackException.from_exception(error, limit=-50).format()
        ]
        traceback = "".join(lines)
    except BaseException as failed:
        traceback = f"<could not be shown: {type(failed).__name__}>"
    return error_json(kind, message, traceback)


def _cut(text: str, most: int) -> str:
    """Keep both ends of a text."""
    if len(text) <= most:
        return text
    head, tail = most // 4, most - most // 4
    return (
        f"{text[:head]}\n... ({len(text) - head - tail:,} characters left out) ...\n{text[-tail:]}"
    )


def _storable(text: str, most: int) -> str:
    plain = str.__str__(text)  # a subclass of str is anybody's code
    plain = _cut(plain, most).replace("\0", "\\x00")
    return plain.encode("utf-8", "backslashreplace").decode()
