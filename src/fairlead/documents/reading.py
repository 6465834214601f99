"""From bytes or mappings to a tree of plain values that knows where each came from.

It knows YAML 1.2 and nothing of doors.  What cannot be trusted is refused here: tags, duplicate keys, several
documents, and whatever is too large, too deep or expands too far through aliases.  It reads events, not objects:
nothing that a file names is ever constructed, and no recursion goes deeper than `DEEPEST`.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from datetime import timedelta
from hashlib import sha256
from pathlib import Path as File
from typing import Any, NamedTuple

from pydantic import BaseModel
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.parser import Parser
from ruamel.yaml.scanner import Scanner

from fairlead.config import shown

MOST_BYTES = 1 << 20
MOST_VALUES = 100_000  # with every alias written out
DEEPEST = 32
# ruamel reads a tag in time quadratic in its length; nothing else that is dear fits on a line of this length.
LONGEST_LINE = 10_000

Part = str | int
Path = tuple[Part, ...]

# YAML 1.2 core schema: yes, no, on, off, dates and 1:30 are text.
_CONSTANTS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **{
        sign + inf: float(sign + "inf")
        for sign in ("", "+", "-")
        for inf in (".inf", ".Inf", ".INF")
    },
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_INTEGER = re.compile(r"[-+]?[0-9]{1,100}", re.ASCII)
_OTHER_BASE = re.compile(r"0o[0-7]{1,100}|0x[0-9a-fA-F]{1,100}", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_WORD = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)
_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NO_FILE = "is not a regular file; give the path of a YAML file"
_LEAVES = (str, int, float, timedelta, BaseModel, type(None))


class Problem(NamedTuple):
    """One thing that is wrong; line and column count from 1 and are 0 where there is no file."""

    line: int
    column: int
    path: str
    message: str

    @property
    def section(self) -> str:
        """The top-level key it is in, or nothing."""
        return re.split(r"[.\[]", self.path, maxsplit=1)[0]


class Node:
    """A value, where it stands, and where its keys stand; `size` and `height` count what is inside.

    `span` is where the text of a scalar begins and ends, with its anchor.
    """

    __slots__ = ("value", "at", "keys", "size", "height", "span")

    def __init__(self, value: Any, at: tuple[int, int] = (0, 0)) -> None:
        self.value = value
        self.at = at
        self.keys: dict[str, tuple[int, int]] = {}
        self.size = self.height = 1
        self.span = (0, 0)

    def plain(self) -> Any:
        """The value without its whereabouts."""
        if isinstance(self.value, dict):
            return {key: inner.plain() for key, inner in self.value.items()}
        if isinstance(self.value, list):
            return [inner.plain() for inner in self.value]
        return self.value

    def find(self, path: Path) -> tuple[tuple[int, int], Path]:
        """Follow a path as far as it leads: where it ends, and what of it was there."""
        node, at, found = self, self.at, []
        for part in path:
            if isinstance(node.value, dict) and part in node.value:
                at, node = node.keys.get(str(part), (0, 0)), node.value[part]
            elif isinstance(node.value, list) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                at = node.at
            else:
                break
            found.append(part)
        return at, tuple(found)


class _Scanner(Scanner):
    """Ruamel's scanner, which looks for the next token once: its own looks again for each kind it could be.

    Whether more must be read depends only on what was read and taken, so that the answer stays until a token is taken.
    """

    reader = None  # found once, instead of at each character
    _ready_at = -1  # how many tokens had been taken when the next was ready

    def __init__(self, loader: Any) -> None:
        self.reader = loader.reader
        super().__init__(loader)

    def _is_ready(self) -> bool:
        if self._ready_at != self.tokens_taken or not self.tokens:
            while self.need_more_tokens():
                self.fetch_more_tokens()
            self._ready_at = self.tokens_taken
        return bool(self.tokens)

    def check_token(self, *choices: Any) -> bool:
        return self._is_ready() and (not choices or isinstance(self.tokens[0], choices))

    def peek_token(self) -> Any:
        return self.tokens[0] if self._is_ready() else None


class _Parser(Parser):
    """Ruamel's parser, which finds its scanner once."""

    scanner = None

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self.scanner = loader.scanner


class _Unreadable(Exception):
    """Reading cannot go on."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def written(path: Path) -> str:
    """Write a path for people.

    >>> written(("upstreams", 0, "url")), written(("tenant_policies", "header:acme"))
    ('upstreams[0].url', 'tenant_policies["header:acme"]')
    """
    text = ""
    for part in path:
        if isinstance(part, str) and _WORD.fullmatch(part):
            text += f".{part}" if text else part
        elif isinstance(part, str):
            text += f"[{json.dumps(part if len(part) <= 80 else part[:77] + '...')}]"
        else:
            text += f"[{part}]"
    return text


def lines_of(problems: Iterable[Problem], source: str) -> tuple[str, ...]:
    """Put each problem on a line: `gateway.yaml:17:3 priority_scheduler.classes.bulk: what is wrong`."""
    source = source if source.isprintable() else shown(source)
    return tuple(
        f"{source}{f':{problem.line}:{problem.column}' if problem.line else ''}"
        f"{f' {problem.path}' if problem.path else ''}: {problem.message}"
        for problem in problems
    )


def digest_of(content: bytes | Problem) -> str:
    """Identify a file's content, or the reason why there is none."""
    return content.message if isinstance(content, Problem) else sha256(content).hexdigest()


def content_of(path: str, most: int = MOST_BYTES) -> bytes | Problem:
    """Read a file; what is too large, or no file, is a problem."""
    try:
        if not stat.S_ISREG(File(path).stat().st_mode):  # opening a device may have effects
            return Problem(0, 0, "", _NO_FILE)
        with open(path, "rb", opener=_without_waiting) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                return Problem(0, 0, "", _NO_FILE)
            # What a kernel makes while it is read tells no size, and reading it may wait for ever.
            content = file.read(most + 1) if found.st_size else b""
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return Problem(0, 0, "", f"cannot be read ({reason}); check the path and its permissions")
    if len(content) > most:
        return Problem(0, 0, "", f"is larger than {most:,} bytes, the most that is read")
    return content


def _without_waiting(path: str, flags: int) -> int:
    """Open what may have become a FIFO since it was looked at."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def tree_of_yaml(content: bytes) -> tuple[Node | None, list[Problem]]:
    """Read a document; without a tree the one problem says why there is none."""
    try:
        text = _text(content)
        builder = _Builder()
        yaml = YAML(typ="safe", pure=True)
        yaml.Scanner, yaml.Parser = _Scanner, _Parser
        for event in yaml.parse(text):
            builder.take(event)
    except _Unreadable as error:
        return None, [error.problem]
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        said = ", ".join(part for part in (error.context, error.problem) if part)
        if "'\\t'" in said:
            said = "a tab may not stand here; use spaces"
        return None, [Problem(line, column, "", f"cannot be read as YAML: {said}")]
    except Exception as error:  # ruamel has others too: "\U00110000" is a ValueError of chr()
        return None, [Problem(0, 0, "", f"cannot be read as YAML: {shown(str(error))}")]
    return builder.root, builder.problems


def _text(content: bytes) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        at = _place(content[: error.start].decode("utf-8-sig"))
        raise _Unreadable(Problem(*at, "", "is not UTF-8; save the file as UTF-8")) from None
    if found := _FORBIDDEN.search(text):
        message = f"the character {found.group()!a} is not allowed; remove it"
        raise _Unreadable(Problem(*_place(text[: found.start()]), "", message))
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > LONGEST_LINE:
            message = f"the line is longer than {LONGEST_LINE:,} characters; break it"
            raise _Unreadable(Problem(number, LONGEST_LINE + 1, "", message))
    return text


def _place(before: str) -> tuple[int, int]:
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def _is_text(key: Any) -> bool:
    """Half of a surrogate pair (`"\\ud800"`) is no character; pydantic would not say where it stands."""
    return isinstance(key, str) and not re.search("[\ud800-\udfff]", key)


def _scalar(event: Any) -> Any:
    text = event.value
    if not event.implicit[0]:  # quoted or a block
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _OTHER_BASE.fullmatch(text):
        return int(text[2:], 8 if text[1] == "o" else 16)
    return float(text) if _FLOAT.fullmatch(text) else text


# What an open mapping waits for besides the value of a key: a key, or a value to be thrown away.
_A_KEY = object()
_NOTHING = object()


class _Builder:
    """Grows the tree by one event at a time; its stack is as deep as the document, at most `DEEPEST`."""

    def __init__(self) -> None:
        self.root: Node | None = None
        self.problems: list[Problem] = []
        self._open: list[Node] = []
        self._waits_for: list[Any] = []  # one for each open node
        self._anchors: dict[str, Node] = {}
        self._documents = self._events = 0

    def take(self, event: Any) -> None:
        at = (event.start_mark.line + 1, event.start_mark.column + 1)
        self._events += 1
        if self._events > 2 * MOST_VALUES:
            raise _too_large(at)
        if isinstance(event, ScalarEvent):
            node = self._begun(Node(_scalar(event), at), event)
            node.span = event.start_mark.index, event.end_mark.index
            self._add(node, at)
        elif isinstance(event, MappingStartEvent | SequenceStartEvent):
            node = Node({} if isinstance(event, MappingStartEvent) else [], at)
            if len(self._open) >= DEEPEST:
                raise _too_deep(at)
            self._open.append(self._begun(node, event))
            self._waits_for.append(_A_KEY)
        elif isinstance(event, MappingEndEvent | SequenceEndEvent):
            self._waits_for.pop()
            node = self._open.pop()
            self._add(node, node.at)
        elif isinstance(event, AliasEvent):
            self._add(self._meant(event.anchor, at), at)
        elif isinstance(event, DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                message = "a second document begins here; a configuration is one document"
                raise _Unreadable(Problem(*at, "", message))

    def _begun(self, node: Node, event: Any) -> Node:
        if event.tag is not None:
            # Not which: a secret that begins with ! looks like a tag, and with * like an alias.
            self._problem(node.at, "a tag is not allowed; remove it, or put the value in quotes")
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _meant(self, anchor: str, at: tuple[int, int]) -> Node:
        node = self._anchors.get(anchor)
        if node is None:
            said = "no anchor of this name comes before this alias; if it is none, put it in quotes"
            self._problem(at, said)
        elif any(node is outer for outer in self._open):
            self._problem(at, "the alias stands inside what it stands for")
        else:
            return node
        return Node(None, at)

    def _add(self, node: Node, at: tuple[int, int]) -> None:
        if not self._open:
            self.root = node
            return
        parent, key = self._open[-1], self._waits_for[-1]
        if isinstance(parent.value, list):
            parent.value.append(node)
        elif key is _A_KEY:
            self._waits_for[-1] = self._key(parent, node, at)
            return
        else:
            self._waits_for[-1] = _A_KEY
            if key is _NOTHING:
                return
            parent.value[key] = node
        _grow(parent, node, at)

    def _key(self, parent: Node, node: Node, at: tuple[int, int]) -> Any:
        key = node.value
        if not _is_text(key):
            self._problem(at, "a key must be text; put it in quotes")
        elif key == "<<":
            self._problem(at, "merge keys are not part of YAML 1.2; write the fields out")
        elif key in parent.keys:
            first = parent.keys[key][0]
            self._problem(at, f"is given twice, first on line {first}; keep one", key)
        else:
            parent.keys[key] = at
            return key
        return _NOTHING

    def _problem(self, at: tuple[int, int], message: str, *more: Part) -> None:
        path = [
            len(node.value) if isinstance(node.value, list) else key
            for node, key in zip(self._open, self._waits_for, strict=True)
        ]
        self.problems.append(
            Problem(
                *at, written((*(part for part in path if isinstance(part, Part)), *more)), message
            )
        )


def _grow(parent: Node, node: Node, at: tuple[int, int]) -> None:
    """Count what an inner value brings, so that aliases cannot multiply without limit."""
    parent.size += node.size
    parent.height = max(parent.height, node.height + 1)
    if parent.size > MOST_VALUES:
        raise _too_large(at)
    if parent.height > DEEPEST:
        raise _too_deep(at)


def _too_large(at: tuple[int, int]) -> _Unreadable:
    message = f"holds more than {MOST_VALUES:,} values with every alias written out"
    return _Unreadable(Problem(*at, "", message))


def _too_deep(at: tuple[int, int]) -> _Unreadable:
    return _Unreadable(Problem(*at, "", f"is nested more than {DEEPEST} levels deep"))


def tree_of_mapping(given: Mapping[Any, Any]) -> tuple[Node | None, list[Problem]]:
    """Read a mapping by the same rules; every value stands at line 0."""
    problems: list[Problem] = []
    try:
        return _copied(given, (), problems), problems
    except _Unreadable as error:
        return None, [error.problem]
    except Exception as error:  # a mapping is anybody's code
        return None, [Problem(0, 0, "", f"cannot be read: {shown(str(error))}")]


def _copied(given: Any, path: Path, problems: list[Problem]) -> Node:
    if len(path) > DEEPEST:
        raise _too_deep((0, 0))
    if isinstance(given, Mapping):
        node = Node({})
        for key, value in given.items():
            if _is_text(key):
                node.keys[key] = (0, 0)
                node.value[key] = _copied(value, (*path, key), problems)
                _grow(node, node.value[key], (0, 0))
            else:
                problems.append(Problem(0, 0, written(path), f"the key {shown(key)} must be text"))
        return node
    if isinstance(given, list | tuple):
        node = Node([])
        for index, value in enumerate(given):
            node.value.append(_copied(value, (*path, index), problems))
            _grow(node, node.value[-1], (0, 0))
        return node
    if not isinstance(given, _LEAVES):
        kind = type(given).__name__
        problems.append(Problem(0, 0, written(path), f"a value may not be a {kind}"))
        return Node(None)
    return Node(given)
