"""The configuration, for people at the dashboard: shown without its secrets, judged before it counts, written whole."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import StringConstraints

from fairlead.documents.reading import MOST_BYTES, content_of
from fairlead.documents.reading import Problem as Fault
from fairlead.server.api import CALLER, Deed
from fairlead.server.loading import load_content
from fairlead.server.masking import Masks
from fairlead.serving.access import LOCAL, Role
from fairlead.serving.http import Answer, Body, Problem, answer, read_query, read_strictly

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlead.server.service import Server
    from fairlead.serving.http import Receive, Scope

LARGEST_BODY = 2 * MOST_BYTES


class NewText(Body):
    """A whole configuration, as YAML; secrets that were shown as marks may stay marks."""

    text: Annotated[str, StringConstraints(max_length=MOST_BYTES)]


class Configuring:
    """The configuration's part of the API."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._masks = Masks()
        self._writing = asyncio.Lock()

    def deeds(self) -> list[Deed]:
        """The table of it."""
        # fmt: off
        return [
            Deed("GET", "/api/v1/config", Role.VIEWER, "Show the configuration, without secrets",
                 self.show),
            Deed("POST", "/api/v1/config/validate", Role.OPERATOR, "Judge a configuration",
                 self.validate, takes=NewText),
            Deed("PUT", "/api/v1/config", Role.ADMIN, "Write a configuration, and follow it",
                 self.write, takes=NewText, conflict="application/problem+json"),
        ]
        # fmt: on

    async def show(self, scope: Scope, receive: Receive) -> Answer:
        read_query(scope, ())
        path = self._server.path
        if path is None:
            text, problems = self._server.text, []
        else:
            content = await asyncio.to_thread(content_of, path)
            if isinstance(content, Fault):
                text, problems = "", [content]
            else:
                text = content.decode("utf-8", "replace")
                problems = list(load_content(content, path).problems)
        document = {"text": self._masks.hide(text), "path": path, "problems": _told(problems)}
        return answer(document)

    async def validate(self, scope: Scope, receive: Receive) -> Answer:
        read_query(scope, ())
        asked = await read_strictly(scope, receive, NewText, largest=LARGEST_BODY)
        _, problems = self._judged(asked.text)
        return answer({"problems": _told(problems)})

    async def write(self, scope: Scope, receive: Receive) -> Answer:
        read_query(scope, ())
        asked = await read_strictly(scope, receive, NewText, largest=LARGEST_BODY)
        path = self._server.path
        if path is None:
            detail = (
                "there is no file to write to: start with fairlead serve --config fairlead.yaml"
            )
            raise Problem(409, "no_file", detail)
        async with self._writing:
            text, problems = self._judged(asked.text)
            if problems:
                said = f"the configuration has {len(problems)} problems; nothing was changed"
                raise Problem(422, "bad_config", said, problems=_told(problems))
            try:
                await asyncio.to_thread(_replace, Path(path), text)
            except OSError as error:
                detail = f"{path} cannot be written: {error.strerror or error}"
                raise Problem(409, "not_written", detail) from None
            loaded = load_content(text.encode(), path)
            notes = self._server.retune(loaded)
        self._server.audit(scope.get(CALLER, LOCAL).name, f"wrote {path}")
        return answer({"path": path, "problems": [], "notes": notes})

    def _judged(self, text: str) -> tuple[str, list[Fault]]:
        restored, unknown = self._masks.restore(text)
        if unknown:
            return restored, unknown
        source = self._server.path or "configuration"
        return restored, list(load_content(restored.encode("utf-8", "replace"), source).problems)


def _told(problems: Iterable[Fault]) -> list[dict[str, Any]]:
    return [one._asdict() for one in problems]


def _replace(path: Path, text: str) -> None:
    """Write a file so that whoever reads it sees the old one or the new one, never a part."""
    target = path.resolve()
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            Path(name).chmod(target.stat().st_mode & 0o777)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
