"""The dashboard's files, read from the package: no build step, nothing from elsewhere, and a strict policy on each."""

from __future__ import annotations

import re
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING

from fairlead.config import shown
from fairlead.serving.http import Answer, Problem, values_of

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from fairlead.serving.http import Headers, Scope

FOLDER = "dashboard"
INDEX = "index.html"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
GUARDS: Headers = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
# What may be served; any other file of the folder is not there.
MEDIA = {
    ".css": b"text/css; charset=utf-8",
    ".html": b"text/html; charset=utf-8",
    ".ico": b"image/x-icon",
    ".js": b"text/javascript; charset=utf-8",
    ".json": b"application/json",
    ".mjs": b"text/javascript; charset=utf-8",
    ".png": b"image/png",
    ".svg": b"image/svg+xml",
    ".txt": b"text/plain; charset=utf-8",
    ".webmanifest": b"application/manifest+json",
    ".woff2": b"font/woff2",
}
# Each part begins with a letter or digit: no "..", nothing hidden, no package's own files.
_PATH = re.compile(
    r"/(?:[A-Za-z0-9][A-Za-z0-9_.-]*/)*[A-Za-z0-9][A-Za-z0-9_.-]*(\.[a-z0-9]+)", re.ASCII
)


def file_at(scope: Scope) -> Answer:
    """Answer with the file at a path, or with 304 if the client has it."""
    path = scope["path"]
    found = _PATH.fullmatch(path if path != "/" else f"/{INDEX}")
    media = MEDIA.get(found[1]) if found else None
    content = _content(found[0]) if found and media else None
    if content is None or media is None:
        raise Problem(404, "not_found", f"nothing is served at {shown(path)}; see /")
    tag = f'"{sha256(content).hexdigest()[:32]}"'.encode()
    headers = (*GUARDS, (b"etag", tag), (b"cache-control", b"no-cache"))
    known = b",".join(values_of(scope, b"if-none-match"))
    if tag in [one.strip().removeprefix(b"W/") for one in known.split(b",")]:
        return Answer(304, b"", media, headers)
    return Answer(200, content, media, headers)


def _content(path: str) -> bytes | None:
    place: Traversable = files("fairlead.server") / FOLDER
    for part in path.strip("/").split("/"):
        place = place / part
    return place.read_bytes() if place.is_file() else None
