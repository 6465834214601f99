"""Which paths of its backends a gateway shows.  Pure.

A path is judged as any backend could read it: percent-encoded, with dot segments, empty segments or parameters, in any
case, under the path that an upstream's URL adds.  It is closed if one such reading is.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, NamedTuple

from fairlead.gateway.front.engines import ADMINISTRATION

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlead.gateway.settings import Expose

DECODINGS = 4  # by as many servers behind each other, each taking off one layer
_ENCODED = re.compile(r"%(?:25)*([0-9A-Fa-f]{2})")
_INVISIBLE = re.compile(r"[\x00-\x20\x7f\u200b-\u200f\u2060\ufeff]+")
_QUERY = re.compile(r"[?#]")
_ONE_READING = re.compile(r"(?:/[a-z0-9_-][a-z0-9_.-]*)+")
LONGEST_READ = 4096  # of a path that has more than one reading: to find them takes time
REMEMBERED = 1024  # verdicts
LONGEST_REMEMBERED = 100


class Rule(NamedTuple):
    """How a server resolves `..`: after or before it has merged slashes, and taken parameters off."""

    resolves: bool = True
    slashes_first: bool = True  # else `..` takes back an empty segment (RFC 3986)
    parameters_first: bool = True  # else `..;` is the name of a segment


PLAIN = Rule()
RULES = (
    PLAIN,
    Rule(slashes_first=False),
    Rule(parameters_first=False),
    Rule(slashes_first=False, parameters_first=False),
    Rule(resolves=False),
)


class Closed(NamedTuple):
    """What closes a path: an entry of the table of engines or of `expose.deny`."""

    entry: str
    denied: bool  # by the configuration


class Exposure:
    """Decides which paths are closed, by the table of engines and `expose`."""

    def __init__(self, expose: Expose) -> None:
        self._table = _Paths(entry for entries in ADMINISTRATION.values() for entry in entries)
        self._allowed = _Paths(expose.allow)
        self._denied = _Paths(expose.deny)
        self._mounts: frozenset[str] = frozenset()
        self._remembered: dict[str, Closed | None] = {}

    def mount(self, mounts: frozenset[str]) -> None:
        """Follow the paths that the URLs of upstreams add in front of a request's path."""
        if mounts is not self._mounts:
            self._mounts = mounts
            self._remembered.clear()

    def closed(self, path: str) -> Closed | None:
        """Return what closes a path, as it stands on the request line; None if the path is open.

        >>> from fairlead.gateway.settings import Expose
        >>> exposure = Exposure(Expose(allow=["/metrics"], deny=["/v1/audio"]))
        >>> exposure.closed("/v1/..//%66lush_cache/").entry, exposure.closed("/metrics")
        ('/flush_cache', None)
        """
        try:
            return self._remembered[path]
        except KeyError:
            pass
        verdict = self._judge(path)
        if len(path) <= LONGEST_REMEMBERED:
            if len(self._remembered) >= REMEMBERED:
                self._remembered.clear()
            self._remembered[path] = verdict
        return verdict

    def _judge(self, path: str) -> Closed | None:
        for mount in sorted(self._mounts | {""}):
            for reading in readings(mount + path):
                if (entry := self._denied.match(reading)) is not None:
                    return Closed(entry, True)
                entry = self._table.match(reading)
                if entry is not None and self._allowed.match(reading) is None:
                    return Closed(entry, False)
        return None


class _Paths:
    """Paths, each with everything beneath it; with `*` at its end, with everything that begins so."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._whole: dict[str, str] = {}
        self._begun: dict[str, str] = {}
        for entry in entries:
            plain = entry.removesuffix("*")
            text = _joined(_segments(_cleaned(_decoded(plain)), PLAIN))
            if plain == entry:
                self._whole[text] = entry
            else:
                self._begun[text if text == "/" or plain[-1] != "/" else f"{text}/"] = entry
        self._prefixes = tuple(self._begun)
        self._deepest = max((text.count("/") for text in self._whole), default=0)

    def match(self, path: str) -> str | None:
        """Return the entry that covers a path."""
        if path.startswith(self._prefixes):
            return next(self._begun[text] for text in self._prefixes if path.startswith(text))
        if "/" in self._whole:
            return self._whole["/"]
        segments = path.split("/", self._deepest + 1)[: self._deepest + 1]
        for depth in range(2, len(segments) + 1):
            if (entry := self._whole.get("/".join(segments[:depth]))) is not None:
                return entry
        return None


def readings(path: str) -> set[str]:
    """Return the paths that some backend could read a path as."""
    if _ONE_READING.fullmatch(path):
        return {path}
    found: set[str] = set()
    path = _as_utf8(path)
    for _ in range(DECODINGS + 1):
        texts = {_cleaned(path), _cleaned(path.partition("\0")[0])}
        for text in texts | {_QUERY.split(text, maxsplit=1)[0] for text in texts}:
            for rule in RULES:
                segments = _segments(text, rule)
                found.add(_joined(segments))
                if text.startswith("//"):  # as a reference to another host
                    found.add(_joined(segments[1:]))
                elif not text.startswith("/") and "://" in text:
                    found.add(_joined(segments[2:]))
        decoded = _decoded(path)
        if decoded == path:
            break
        path = decoded
    return found


def too_long(path: str) -> bool:
    """Return whether a path is too long to be judged."""
    return len(path) > LONGEST_READ and _ONE_READING.fullmatch(path) is None


def _decoded(path: str) -> str:
    return _as_utf8(_ENCODED.sub(lambda match: chr(int(match[1], 16)), path))


def _as_utf8(text: str) -> str:
    """Read characters that stand for bytes as UTF-8."""
    if text.isascii():
        return text
    try:
        return text.encode("latin-1").decode("utf-8", "replace")
    except UnicodeEncodeError:
        return text


def _cleaned(path: str) -> str:
    """Write a path without what is not seen, in one case, with one kind of slash."""
    if not path.isascii():
        path = unicodedata.normalize("NFKC", path)
    return _INVISIBLE.sub("", path).replace("\\", "/").casefold()


def _segments(path: str, rule: Rule) -> list[str]:
    """Split a path and resolve `..` by a rule; return it without empty segments and parameters."""
    segments: list[str] = []
    for segment in path.split("/"):
        plain = segment.partition(";")[0]
        if rule.parameters_first:
            segment = plain
        if segment == ".." and rule.resolves:
            del segments[-1:]
        elif segment != "." and (segment or not rule.slashes_first):
            segments.append(plain)
    return [plain for plain in segments if plain not in ("", ".")]


def _joined(segments: list[str]) -> str:
    return "/" + "/".join(segments)
