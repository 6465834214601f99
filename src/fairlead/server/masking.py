"""A configuration for people to look at: its text, with secrets replaced by marks; and the way back.

A mark stands for one secret in one setting, by a keyed hash of both: a text that was shown, changed and sent back gets
each secret where its mark stands.  A list counts as one place, so that its members may come and go; a mark in any other
place is refused, for what stands there may be shown.  The key lives as long as the process: marks of another one are
refused.

What is judged for people is judged with stand-ins, which are as valid as the secrets they stand for.  No sentence
can tell, then, what is not in it.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from fairlead.documents.reading import Node, Problem, tree_of_yaml
from fairlead.server.loading import MOST_PROBLEMS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SECRET = frozenset({"token", "sha256", "password", "secret", "webhook"})
MARK = re.compile(r"masked-[0-9a-f]{16}")

NOT_SHOWN = (
    "This file cannot be read as YAML, so that nobody can tell what in it is a secret, and it is not shown; "
    "put it right where the server runs.\n"
)
UNKNOWN = "stands for a secret that this process does not know; write the secret itself"
MISPLACED = (
    "stands for a secret of another place; leave it where it was shown, or write the secret itself"
)

# None of these looks at a character more than a few times: texts are long, and anybody's.
_SCHEME = re.compile(r"(?:https?|postgres(?:ql)?(?:\+\w+)?|rediss?|sqlite|unix|valkeys?)://")
_PARAMETER = re.compile(r"[?&;]([^=?&;#\s]*)=(?=[^&#\s])")
_SECRET_NAME = re.compile(r"pass|pwd|token|secret|key|auth|sig", re.IGNORECASE)
_COMMENT = re.compile(r"(?m)(?:^|(?<=[ \t]))#[ \t]*(.*)")
_SETTING = re.compile(rf"""\b(?:{"|".join(sorted(SECRET))})["']?\s*[:=]""", re.IGNORECASE)
_ANCHOR = re.compile(r"&\S+\s+")
# What means the same wherever it stands: in quotes, or without a character that could end it.
_WHOLE = re.compile(
    r"""[\w./+=-](?:[\w./+=:@?&%~-]*[\w./+=-])?|"(?:[^"\\\n]|\\.)*"|'(?:[^'\n]|'')*'"""
)

Place = tuple[str, ...]
_IN_COMMENTS: Place = ("#",)


class _Known(NamedTuple):
    """A secret: where it stands, as it is written, and what that means."""

    place: Place
    raw: str
    value: Any


class _Leaf(NamedTuple):
    """A value, the place where it is written, and whether any place that it is used in makes it a secret."""

    node: Node
    place: Place
    secret: bool


class _Span(NamedTuple):
    """A part of a text, and what is to stand there."""

    start: int
    end: int
    instead: str


class Masks:
    """The secrets shown as marks by one process."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._known: dict[str, _Known] = {}

    def hide(self, text: str) -> str:
        """Replace every secret by its mark; what cannot be read is not shown at all."""
        tree, problems = tree_of_yaml(text.encode())
        if problems:
            return NOT_SHOWN
        leaves = _leaves(tree)
        return _spliced(text, chain(self._hidden(text, leaves), self._hidden_notes(text, leaves)))

    def _hidden(self, text: str, leaves: list[_Leaf]) -> Iterator[_Span]:
        for node, place, secret in leaves:
            if secret and node.value is not None:
                span, raw = _written(text, node)
                quote = raw[0] if raw[0] in "\"'" else ""
                mark = self._mark(_Known(place, raw, node.value))
                yield span._replace(instead=quote + mark + quote)

    def _hidden_notes(self, text: str, leaves: list[_Leaf]) -> Iterator[_Span]:
        for span in _comments(text, leaves):
            said = span.instead
            if _SETTING.search(said) or _has_password(said):
                yield span._replace(instead=self._mark(_Known(_IN_COMMENTS, said, said)))

    def _mark(self, known: _Known) -> str:
        mark = f"masked-{self._digest(known.place, known.raw)[:16]}"
        self._known[mark] = known
        return mark

    def _digest(self, *parts: Any) -> str:
        return hmac.digest(self._key, repr(parts).encode(), "sha256").hex()

    def restore(self, text: str) -> tuple[str, list[Problem]]:
        """Put the secrets back; a mark nobody was shown is a problem, and so is one in another place than its own."""
        if not MARK.search(text):
            return text, []
        tree, problems = tree_of_yaml(text.encode())
        if problems:
            return text, problems
        leaves = _leaves(tree)
        spans = [*self._restored(text, leaves), *self._restored_notes(text, leaves)]
        right = {
            mark.start() for span in spans for mark in MARK.finditer(text, span.start, span.end)
        }
        wrong = (found for found in MARK.finditer(text) if found.start() not in right)
        for found in islice(wrong, MOST_PROBLEMS):
            said = MISPLACED if found[0] in self._known else UNKNOWN
            problems.append(_problem(text, found, said))
        return _spliced(text, spans), problems

    def _restored(self, text: str, leaves: list[_Leaf]) -> Iterator[_Span]:
        for node, place, _ in leaves:
            known = self._of(node.value)
            if known is not None and known.place == place:
                whole = _WHOLE.fullmatch(known.raw) or not isinstance(known.value, str)
                raw = known.raw if whole else _quoted(known.value)
                yield _written(text, node)[0]._replace(instead=raw)

    def _restored_notes(self, text: str, leaves: list[_Leaf]) -> Iterator[_Span]:
        for span in _comments(text, leaves):
            known = self._of(span.instead)
            if known is not None and known.place == _IN_COMMENTS:
                yield span._replace(instead=known.raw)

    def _of(self, value: Any) -> _Known | None:
        return self._known.get(value) if isinstance(value, str) else None

    def cover(self, tree: Node) -> list[tuple[Node, Any]]:
        """Put a stand-in for each secret and each mark into a tree; return what stood there."""
        covered = []
        for node, _, secret in _leaves(tree):
            known = self._of(node.value)
            if known is not None or secret:
                covered.append((node, node.value))
                node.value = self._stand_in(node.value if known is None else known.value)
        return covered

    def _stand_in(self, value: Any) -> Any:
        """Make up a value that is as good or bad as a secret."""
        if not isinstance(value, str):
            return value if value is None else type(value)()
        digest = self._digest(value)
        if re.fullmatch(r"[0-9a-fA-F]{64}", value):
            return digest
        mark = f"masked-{digest[:16]}" if value else ""
        scheme = _SCHEME.match(value)
        if scheme is None:
            return mark
        user = f"{mark}@" if "@" in value else ""
        return scheme[0] + user + mark + (f"?{mark}" if "?" in value else "")


def _leaves(tree: Node | None) -> list[_Leaf]:
    """Find all single values, in the order in which they are written."""
    found: dict[int, _Leaf] = {}

    def walk(node: Node, place: Place) -> None:
        if isinstance(node.value, dict):
            for key, inner in node.value.items():
                walk(inner, (*place, key))
        elif isinstance(node.value, list):
            for inner in node.value:
                walk(inner, (*place, "[]"))
        else:
            text = node.value if isinstance(node.value, str) else ""
            secret = not SECRET.isdisjoint(map(str.lower, place)) or _has_password(text)
            before = found.get(id(node), _Leaf(node, place, secret=False))
            found[id(node)] = before._replace(secret=before.secret or secret)

    if tree is not None:
        walk(tree, ())
    return list(found.values())


def _has_password(text: str) -> bool:
    """Tell whether somebody stands before the @ of an address, or a secret among its parameters."""
    begin = text.find("://")
    return (begin >= 0 and text.rfind("@") > begin + len("://")) or any(
        _SECRET_NAME.search(unquote(found[1])) for found in _PARAMETER.finditer(text)
    )


def _comments(text: str, leaves: list[_Leaf]) -> Iterator[_Span]:
    """Find the comments, which stand between the values, and what they say."""
    done = 0
    for start, end in [*sorted(leaf.node.span for leaf in leaves), (len(text), len(text))]:
        for found in _COMMENT.finditer(text, done, start):
            said = found[1].rstrip()
            yield _Span(found.start(1), found.start(1) + len(said), said)
        done = end


def _written(text: str, node: Node) -> tuple[_Span, str]:
    """Find a value's own text: without its anchor, and without the lines that end a block."""
    start, end = node.span
    raw = text[start:end].rstrip("\r\n")
    if (anchor := _ANCHOR.match(raw)) is not None:
        start, raw = start + anchor.end(), raw[anchor.end() :]
    return _Span(start, start + len(raw), ""), raw


def _quoted(value: str) -> str:
    """Write a value so that it means the same wherever it stands."""
    return json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace").decode()


def _spliced(text: str, spans: Iterable[_Span]) -> str:
    parts, done = [], 0
    for start, end, instead in sorted(spans):
        if start >= done:  # else it stands inside the one before
            parts += [text[done:start], instead]
            done = end
    return "".join([*parts, text[done:]])


def _problem(text: str, found: re.Match[str], said: str) -> Problem:
    line = text.count("\n", 0, found.start()) + 1
    return Problem(
        line, found.start() - text.rfind("\n", 0, found.start()), "", f"{found[0]} {said}"
    )
