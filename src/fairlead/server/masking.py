"""A configuration for people to look at: its text, with secrets replaced by marks; and the way back.

A mark names its secret by a keyed hash, so that a text that was shown, changed and sent back gets each secret where its
mark stands, wherever among secrets that was moved to; a mark anywhere else is refused, for what stands there is shown.
The key lives as long as the process: marks of another one are refused.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from fairlead.documents.reading import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = frozenset({"token", "sha256", "password", "secret", "webhook"})
MARK = re.compile(r"masked-[0-9a-f]{16}")
# A password before the last @ of an address, or among its parameters.
_IN_URL = re.compile(
    r"""(?<=://)[^/\s:@"]*:([^/\s"]+)(?=@)|(?<=[?&])(?:\w*password|token|secret)=([^&\s"'#]+)"""
)
# Where a text cannot be read as YAML, whatever stands behind such a key on its line.
_LINE = re.compile(rf"""(?m)^([^#\n]*?["']?\b(?:{"|".join(sorted(SECRET))})["']?\s*:\s*)(\S.*)$""")

UNKNOWN = "stands for a secret that this process does not know; write the secret itself"
MISPLACED = "stands for a secret, and this is no place for one; leave it as it was shown"


class _Span(NamedTuple):
    start: int
    end: int
    key: str


class Masks:
    """The secrets shown as marks by one process."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._known: dict[str, str] = {}

    def hide(self, text: str) -> str:
        """Replace every secret by its mark."""
        try:
            spans = [span for span in _scalars(text) if span.key in SECRET]
        except (YAMLError, ValueError):
            hidden = _LINE.sub(lambda found: found[1] + self._mark(found[2]), text)
        else:
            hidden = text
            for span in reversed(spans):
                raw = text[span.start : span.end]
                if raw.strip():
                    hidden = hidden[: span.start] + self._mark(raw) + hidden[span.end :]
        return _IN_URL.sub(self._hidden_password, hidden)

    def _hidden_password(self, found: re.Match[str]) -> str:
        raw = found[found.lastindex or 0]
        return found[0].removesuffix(raw) + (raw if MARK.fullmatch(raw) else self._mark(raw))

    def _mark(self, raw: str) -> str:
        mark = f"masked-{hmac.digest(self._key, raw.encode(), 'sha256').hex()[:16]}"
        self._known[mark] = raw
        return mark

    def restore(self, text: str, *, passwords: bool = True) -> tuple[str, list[Problem]]:
        """Put the secrets back, except perhaps the passwords in addresses.

        A mark nobody was shown is a problem, and so is one that stands where no secret does.
        """
        marks = list(MARK.finditer(text))
        problems = [_problem(text, one, UNKNOWN) for one in marks if one[0] not in self._known]
        restored = MARK.sub(lambda found: self._known.get(found[0], found[0]), text)
        if not problems:
            secret = Counter(MARK.findall(self.hide(restored)))
            secret.subtract(one[0] for one in marks)
            problems = [_problem(text, one, MISPLACED) for one in marks if secret[one[0]] < 0]
        if not passwords:
            kept = {found.start(found.lastindex or 0) for found in _IN_URL.finditer(text)}
            restored = MARK.sub(
                lambda one: one[0] if one.start() in kept else self._known.get(one[0], one[0]), text
            )
        return restored, problems


def _problem(text: str, found: re.Match[str], said: str) -> Problem:
    line = text.count("\n", 0, found.start()) + 1
    return Problem(
        line, found.start() - text.rfind("\n", 0, found.start()), "", f"{found[0]} {said}"
    )


def _scalars(text: str) -> Iterator[_Span]:
    """Tell each value that stands behind a key, and where; a list under a key counts as its values."""
    # Of each open mapping the key whose value is due; None: a key is due.
    keys: list[str | None] = []
    lists: list[bool] = []
    named: list[str] = []  # the key each open collection stands behind
    for event in YAML(typ="safe", pure=True).parse(text):
        if isinstance(event, MappingStartEvent | SequenceStartEvent):
            named.append(_named(keys, lists, named))
            lists.append(isinstance(event, SequenceStartEvent))
            keys.append(None)
        elif isinstance(event, MappingEndEvent | SequenceEndEvent):
            keys.pop()
            lists.pop()
            named.pop()
            if keys:
                keys[-1] = None
        elif isinstance(event, ScalarEvent | AliasEvent) and keys:
            if not lists[-1] and keys[-1] is None:
                keys[-1] = getattr(event, "value", "")
                continue
            if isinstance(event, ScalarEvent):
                start, end = event.start_mark.index, event.end_mark.index
                yield _Span(start, end, _named(keys, lists, named))
            keys[-1] = None


def _named(keys: list[str | None], lists: list[bool], named: list[str]) -> str:
    if not keys:
        return ""
    return named[-1] if lists[-1] else keys[-1] or ""
