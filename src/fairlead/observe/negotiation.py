"""Which format of the metrics a client asked for, by RFC 9110 §12.5.1.

Each format has the weight of the most specific range that matches it.  The heaviest wins; between equals the one that
was named beats the one a wildcard let in, then JSON beats the others.  So `*/*` and a browser's header give JSON, and
Prometheus' own header gives what Prometheus weighs highest among what is spoken here.  A header that leaves nothing
gets JSON as well: a client is better served by a type it can look at than by an empty 406.
"""

from __future__ import annotations

import re
from typing import NamedTuple

JSON = "application/json"
ESCAPINGS = {"allow-utf-8", "underscores", "dots", "values"}
# What is spoken, best first: the media type, and the versions of it a range may ask for (None: it asked for none).
FORMATS: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (JSON, (None,)),
    ("application/openmetrics-text", ("1.0.0", None)),
    ("text/plain", ("1.0.0", "0.0.4", None)),
)

NAMED = 3  # how specific a range is that names the type itself

_PIECE = re.compile(r'(?:[^,;"]|"(?:[^"\\]|\\.)*")*')
_WEIGHT = re.compile(r"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?", re.ASCII)


class Range(NamedTuple):
    """One media range of an Accept header."""

    media: str
    version: str | None
    escaping: str | None
    weight: float


def chosen(accept: str) -> str:
    """Tell the format to answer in: `application/json`, or a media type for prometheus_client's `choose_encoder`.

    >>> chosen("text/html,*/*;q=0.8")
    'application/json'
    >>> chosen("application/json;q=0.5, text/plain;version=0.0.4")
    'text/plain;version=0.0.4'
    """
    ranges = ranges_of(accept)
    best, best_rank = JSON, (0.0, 0)
    for media, versions in FORMATS:
        for version in versions:
            matching = [(specificity(one, media, version), one) for one in ranges]
            matching = [pair for pair in matching if pair[0]]
            if not matching:
                continue
            level, found = max(matching, key=lambda pair: (pair[0], pair[1].weight))
            rank = (found.weight, min(level, NAMED))
            if found.weight and rank > best_rank:
                best, best_rank = written(media, version, found), rank
    return best


def written(media: str, version: str | None, found: Range) -> str:
    """Write a format out from values known here, so that nothing a client sent comes back in a header."""
    text = media if version is None else f"{media};version={version}"
    return f"{text};escaping={found.escaping}" if found.escaping in ESCAPINGS and version else text


def specificity(found: Range, media: str, version: str | None) -> int:
    """Tell how precisely a range names a format; 0 if it does not match."""
    if found.media == media:
        return 0 if found.version != version else NAMED + 1 if version else NAMED
    if version is not None:
        return 0  # a wildcard asks for no version
    if found.media == media.split("/")[0] + "/*":
        return 2
    return 1 if found.media == "*/*" else 0


def ranges_of(accept: str) -> list[Range]:
    """Read an Accept header, without what is malformed in it."""
    found = []
    for element in _split(accept, ","):
        media, *parameters = (piece.strip() for piece in _split(element, ";"))
        values = dict[str, str]()
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            values.setdefault(name.strip().lower(), value.strip().strip('"'))
        weight = values.get("q", "1")
        if media.count("/") == 1 and _WEIGHT.fullmatch(weight):
            version, escaping = values.get("version"), values.get("escaping")
            found.append(Range(media.lower(), version, escaping, float(weight)))
    return found


def _split(text: str, separator: str) -> list[str]:
    """Split at a separator that stands outside quotes."""
    parts, start, at = [], 0, 0
    while at < len(text):
        piece = _PIECE.match(text, at)
        at = piece.end() if piece is not None else at
        if at < len(text):
            if text[at] == separator:
                parts.append(text[start:at])
                start = at + 1
            at += 1
    parts.append(text[start:])
    return parts
