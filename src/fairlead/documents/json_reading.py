"""JSON documents, quickly, and with places for what is wrong in them.

The C reader gives no places, so they are looked up afterwards, and only for what is wrong.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.config import shown
from fairlead.documents.reading import Path, Problem, written

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_PROBLEMS = 20  # each costs a walk through the text
_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


class Read(NamedTuple):
    """A value and its text."""

    value: Any
    text: str

    def find(self, path: Path) -> tuple[tuple[int, int], Path]:
        """Follow a path as far as it leads: line and column of where it ends, and what of it was there."""
        found: list[int | str] = []
        at = start = _skip(self.text, 0)
        for part in path:
            step = _step(self.text, at, part)
            if step is None:
                break
            start, at = step
            found.append(part)
        return _place(self.text, start), tuple(found)


def read_json(content: bytes) -> Read | Problem | list[Problem]:
    """Read a document; a Problem says that it is no JSON, a list that it is, but not good."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        at = _place(content[: error.start].decode("utf-8", "replace"), error.start)
        return Problem(*at, "", "is not UTF-8; save the file as UTF-8")
    twice: list[_Twice] = []
    odd: list[str] = []

    def pairs(given: list[tuple[str, Any]]) -> dict[str, Any]:
        known = dict(given)
        if len(known) == len(given):
            return known
        found = _Twice(known)
        count = Counter(key for key, _ in given)
        found.key = next(key for key, _ in given if count[key] > 1)
        twice.append(found)
        return found

    def constant(name: str) -> float:
        odd.append(name)
        return 0.0

    try:
        value = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except json.JSONDecodeError as error:
        said = f"cannot be read as JSON: {error.msg}"
        return Problem(error.lineno, error.colno, "", said)
    except RecursionError:
        return [Problem(0, 0, "", "is nested too deep; nothing a job takes may be so deep")]
    except ValueError as error:  # an integer of 5,000 digits
        return [Problem(0, 0, "", f"cannot be read as JSON: {shown(str(error))}")]
    read = Read(value, text)
    problems = [
        Problem(*_place(text, text.find(name)), "", f"{name} is no number in JSON; use null")
        for name in dict.fromkeys(odd)
    ]
    for path, key in islice(_places_of(value, twice), MOST_PROBLEMS):
        at, _ = read.find((*path, key))
        problems.append(Problem(*at, written((*path, key)), "is given twice; keep one"))
    return problems or read


class _Twice(dict[str, Any]):
    """A mapping in which a key was given twice."""

    key = ""


def _places_of(value: Any, twice: list[_Twice]) -> Iterator[tuple[Path, str]]:
    left: list[tuple[Path, Any]] = [((), value)] if twice else []
    while left:
        path, one = left.pop()
        if isinstance(one, _Twice):
            yield path, one.key
        inner = one.items() if isinstance(one, dict) else enumerate(one)
        left.extend(((*path, key), each) for key, each in inner if isinstance(each, dict | list))


def _step(text: str, at: int, part: int | str) -> tuple[int, int] | None:
    """Go from a value to a part of it: where it is shown (at its key, if it has one), and where it begins.

    The text has been read before, so nothing in it can surprise.
    """
    opening = text[at]
    if opening != ("[" if isinstance(part, int) else "{"):
        return None
    count = 0
    at = _skip(text, at + 1)
    while text[at] not in "]}":
        start, key = at, None
        if opening == "{":
            key, at = _DECODER.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)
        if part in (key, count if key is None else None):
            return start, at
        _, at = _DECODER.raw_decode(text, at)
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)
        count += 1
    return None


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _place(text: str, at: int) -> tuple[int, int]:
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
