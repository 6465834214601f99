"""The control API described (OpenAPI 3.1), from the table that serves it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from fairlead.serving.openapi import (
    document,
    in_path,
    in_query,
    json_of,
    operation,
    problems,
    schemas_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlead.server.api import Deed

OPEN = ("/livez", "/readyz")
_HOLE = re.compile(r"\{([a-z_]+)(?::path)?\}")
WHOLE: dict[str, Any] = {"type": "integer", "minimum": 1}
SCHEMAS: dict[str, dict[str, Any]] = {"limit": WHOLE, "minutes": {"type": "number"}}


def described(deeds: Iterable[Deed], *, secured: bool) -> dict[str, Any]:
    """Describe every deed; each says which role it needs."""
    paths: dict[str, Any] = {}
    bodies: dict[str, Any] = {}
    for deed in deeds:
        path = _HOLE.sub(r"{\1}", deed.path)
        if deed.takes is not None:
            bodies[deed.takes.__name__] = deed.takes
        paths.setdefault(path, {})[deed.method.lower()] = _operation(deed, secured)
    return document("Fairlead", paths, schemas_of(bodies), secured=secured)


def _operation(deed: Deed, secured: bool) -> dict[str, Any]:
    held = None if deed.path in OPEN else secured
    content = {
        media: {"schema": {"type": "object" if media == "application/json" else "string"}}
        for media in deed.media.split(", ")
    }
    found = json_of({"type": "object"})
    found["content"] = content
    made = operation(
        deed.summary,
        {"200": found},
        held,
        [in_query(name, SCHEMAS.get(name, {"type": "string"})) for name in deed.query],
        takes=None if deed.takes is None else deed.takes.__name__,
    )
    if holes := _HOLE.findall(deed.path):
        made.setdefault("parameters", []).extend(in_path(hole) for hole in holes)
    if deed.query:
        made["responses"] |= problems("422")
    if held is not None:
        made["description"] = f"Needs the role {deed.role.name.lower()}."
        made["responses"] |= problems("403", "404", *(("415",) if deed.method != "GET" else ()))
    if deed.conflict is not None:
        content = {deed.conflict: {"schema": {"type": "object"}}}
        made["responses"]["409"] = {"description": "it cannot be done now", "content": content}
    if deed.path == "/readyz":
        made["responses"]["503"] = found
    elif held is not None:
        made["responses"] |= problems("503")
    return made
