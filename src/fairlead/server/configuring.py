"""The configuration, for people at the dashboard: shown without its secrets, judged before it counts, written whole."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

from pydantic import StringConstraints

from fairlead.documents.reading import MOST_BYTES, content_of
from fairlead.documents.reading import Problem as Fault
from fairlead.server.api import CALLER, Deed
from fairlead.server.loading import load_content
from fairlead.server.masking import Masks
from fairlead.serving.access import LOCAL, Role
from fairlead.serving.http import Answer, Body, Problem, answer, read_query, read_strictly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fairlead.server.loading import Loaded
    from fairlead.server.service import Server
    from fairlead.serving.http import Receive, Scope

LARGEST_BODY = 2 * MOST_BYTES

Found = TypeVar("Found")


class NewText(Body):
    """A whole configuration, as YAML; secrets that were shown as marks may stay marks."""

    text: Annotated[str, StringConstraints(max_length=MOST_BYTES)]


class Judged(NamedTuple):
    """What is wrong with a text; or, if nothing is, the text with its secrets, and what it says."""

    problems: Sequence[Fault]
    text: str = ""
    loaded: Loaded | None = None


class Configuring:
    """The configuration's part of the API."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._masks = Masks()
        self._writing = asyncio.Lock()
        self._reading = asyncio.Lock()

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
        text, problems = (self._server.text, ()) if path is None else await self._apart(_read, path)
        hidden = await self._apart(self._masks.hide, text)
        return answer({"text": hidden, "path": path, "problems": _told(problems)})

    async def validate(self, scope: Scope, receive: Receive) -> Answer:
        read_query(scope, ())
        asked = await read_strictly(scope, receive, NewText, largest=LARGEST_BODY)
        judged = await self._apart(self._judged, asked.text)
        return answer({"problems": _told(judged.problems)})

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
            judged = await self._apart(self._judged, asked.text)
            if judged.loaded is None:
                said = f"the configuration has {len(judged.problems)} problems; nothing was changed"
                raise Problem(422, "bad_config", said, problems=_told(judged.problems))
            try:
                await asyncio.to_thread(_replace, Path(path), judged.text)
            except OSError as error:
                detail = f"{path} cannot be written: {error.strerror or error}"
                raise Problem(409, "not_written", detail) from None
            notes = self._server.retune(judged.loaded)
        self._server.audit(scope.get(CALLER, LOCAL).name, f"wrote {path}")
        return answer({"path": path, "problems": [], "notes": notes})

    async def _apart(self, read: Callable[..., Found], *args: Any) -> Found:
        """Read a text in a thread, one at a time: a long one takes seconds."""
        async with self._reading:
            return await asyncio.to_thread(read, *args)

    def _judged(self, text: str) -> Judged:
        """Judge a text as it was sent, and again with its passwords: a sentence may quote an address, not those."""
        source = self._server.path or "configuration"
        covered, problems = self._masks.restore(text, passwords=False)
        if problems:
            return Judged(problems)
        loaded = load_content(covered.encode(), source)
        if loaded.problems or covered == (restored := self._masks.restore(text)[0]):
            return _judgment(loaded, covered)
        return _judgment(load_content(restored.encode(), source), restored)


def _judgment(loaded: Loaded, text: str) -> Judged:
    return Judged(loaded.problems) if loaded.problems else Judged((), text, loaded)


def _read(path: str) -> tuple[str, tuple[Fault, ...]]:
    content = content_of(path)
    if isinstance(content, Fault):
        return "", (content,)
    return content.decode("utf-8", "replace"), load_content(content, path).problems


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
