"""The configuration, for people at the dashboard: shown without its secrets, judged before it counts, written whole."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.config import shown
from fairlead.documents.losses import told
from fairlead.documents.reading import MOST_BYTES, content_of, tree_of_yaml
from fairlead.documents.reading import Problem as Fault
from fairlead.server.api import Deed
from fairlead.server.judging import ChangedText, Judge, Judged, NewText, judged_body, problems_of
from fairlead.server.loading import MOST_PROBLEMS
from fairlead.server.masking import NOT_SHOWN, Masks
from fairlead.serving.access import Role
from fairlead.serving.aside import LARGE
from fairlead.serving.auditing import noted
from fairlead.serving.http import Answer, Problem, answer, read_body, read_query, strictly

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlead.server.loading import Loaded
    from fairlead.server.service import Server
    from fairlead.serving.http import Receive, Scope

LARGEST_BODY = 2 * MOST_BYTES


class Configuring:
    """The configuration's part of the API."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._masks = Masks()
        self._writing = asyncio.Lock()
        # Long texts take seconds to read, so one at a time is; who looks does not wait for who asks.
        self._looking = asyncio.Lock()
        self._judging = asyncio.Lock()

    def deeds(self) -> list[Deed]:
        """The table of it."""
        # fmt: off
        return [
            Deed("GET", "/api/v1/config", Role.VIEWER, "Show the configuration, without secrets",
                 self.show),
            Deed("POST", "/api/v1/config/validate", Role.OPERATOR, "Judge a configuration",
                 self.validate, takes=NewText, changes=False),
            Deed("PUT", "/api/v1/config", Role.ADMIN, "Write a configuration, and follow it",
                 self.write, takes=ChangedText, conflict="application/problem+json"),
        ]
        # fmt: on

    async def show(self, scope: Scope, receive: Receive) -> Answer:
        read_query(scope, ())
        path = self._server.path
        async with self._looking:
            text, problems = await asyncio.to_thread(self._shown, path)
        return answer({"text": text, "path": path, "problems": _told(problems)})

    async def validate(self, scope: Scope, receive: Receive) -> Answer:
        read_query(scope, ())
        body = await read_body(scope, receive, largest=LARGEST_BODY)
        if len(body) < LARGE:
            problems = (await self._judged_apart(strictly(NewText, body).text)).problems
        else:
            problems = await self._server.aside.run(problems_of, self._judge(), body)
        return answer({"problems": _told(problems)})

    async def write(self, scope: Scope, receive: Receive) -> Answer:
        read_query(scope, ())
        body = await read_body(scope, receive, largest=LARGEST_BODY)
        path = self._server.path
        if path is None:
            detail = (
                "there is no file to write to: start with fairlead serve --config fairlead.yaml"
            )
            raise Problem(409, "no_file", detail)
        async with self._writing:
            if len(body) < LARGE:
                asked = strictly(ChangedText, body)
                judged, allowed = await self._judged_apart(asked.text), asked.allow_loss
            else:
                judged, allowed = await self._server.aside.run(judged_body, self._judge(), body)
            if judged.problems or judged.loaded is None:
                said = f"the configuration has {len(judged.problems)} problems; nothing was changed"
                raise Problem(422, "bad_config", said, problems=_told(judged.problems))
            self._refuse_losses(judged.loaded, allowed)
            try:
                await asyncio.to_thread(_replace, Path(path), judged.text)
            except OSError as error:
                detail = f"{path} cannot be written: {error.strerror or error}"
                raise Problem(409, "not_written", detail) from None
            before = self._server.digest
            notes = self._server.retune(judged.loaded, by=None)
        noted(scope, f"wrote {path}", before, self._server.digest)
        return answer({"path": path, "problems": [], "notes": notes})

    def _refuse_losses(self, loaded: Loaded, allowed: Sequence[str]) -> None:
        if strange := self._server.strange_losses(allowed):
            said = ", ".join(map(shown, strange[:MOST_PROBLEMS]))
            detail = f"allow_loss names what no configuration of this server can lose: {said}; nothing was changed"
            raise Problem(422, "bad_allow_loss", detail)
        if lost := self._server.losses(loaded, allowed):
            detail = (
                f"the configuration would lose {told(lost)}; nothing was changed.  To lose it on purpose, "
                "send the paths in allow_loss"
            )
            problems = [Fault(0, 0, one.path, f"would be lost: {one.what}") for one in lost]
            paths = [one.path for one in lost]
            raise Problem(422, "would_lose", detail, problems=_told(problems), losses=paths)

    async def _judged_apart(self, text: str) -> Judged:
        async with self._judging:
            return await asyncio.to_thread(self._judge().sent, text)

    def _judge(self) -> Judge:
        running = self._server.loaded
        named = frozenset((*(file for file, _ in running.files), *running.apps.values()))
        return Judge(self._masks, self._server.path or "configuration", named)

    def _shown(self, path: str | None) -> tuple[str, Sequence[Fault]]:
        if path is None:
            return self._masks.hide(self._server.text), ()
        content = content_of(path)
        if isinstance(content, Fault):
            return "", (content,)
        if unreadable := tree_of_yaml(content)[1]:
            return NOT_SHOWN, unreadable
        text = content.decode("utf-8-sig")
        hidden = self._masks.hide(text)
        return hidden, Judge(self._masks, path, ()).judgment(hidden, text).problems


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
