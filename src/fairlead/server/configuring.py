"""The configuration, for people at the dashboard: shown without its secrets, judged before it counts, written whole."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import StringConstraints

from fairlead.config import shown
from fairlead.documents.loading import tree_of
from fairlead.documents.losses import told
from fairlead.documents.reading import MOST_BYTES, content_of, digest_of, tree_of_yaml
from fairlead.documents.reading import Problem as Fault
from fairlead.server.api import CALLER, Deed
from fairlead.server.loading import MOST_PROBLEMS, load_tree
from fairlead.server.masking import NOT_SHOWN, Masks
from fairlead.serving.access import LOCAL, Role
from fairlead.serving.http import Answer, Body, Problem, answer, read_query, read_strictly

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from fairlead.documents.reading import Node
    from fairlead.server.loading import Loaded
    from fairlead.server.service import Server
    from fairlead.serving.http import Receive, Scope

LARGEST_BODY = 2 * MOST_BYTES
LossPath = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
NOT_VALID = "a secret in here is not valid; write it anew (a number needs quotes)"


class NewText(Body):
    """A whole configuration, as YAML; secrets that were shown as marks may stay marks."""

    text: Annotated[str, StringConstraints(max_length=MOST_BYTES)]


class ChangedText(NewText):
    """A whole configuration to follow; `allow_loss` are the paths of what it may lose."""

    allow_loss: tuple[LossPath, ...] = ()


class Judged(NamedTuple):
    """What is wrong with a text; and if nothing is, the text with its secrets, and what it says."""

    problems: Sequence[Fault]
    text: str = ""
    loaded: Loaded | None = None


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
                 self.validate, takes=NewText),
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
        asked = await read_strictly(scope, receive, NewText, largest=LARGEST_BODY)
        judged = await self._judged_apart(asked.text)
        return answer({"problems": _told(judged.problems)})

    async def write(self, scope: Scope, receive: Receive) -> Answer:
        read_query(scope, ())
        asked = await read_strictly(scope, receive, ChangedText, largest=LARGEST_BODY)
        path = self._server.path
        if path is None:
            detail = (
                "there is no file to write to: start with fairlead serve --config fairlead.yaml"
            )
            raise Problem(409, "no_file", detail)
        async with self._writing:
            judged = await self._judged_apart(asked.text)
            if judged.problems or judged.loaded is None:
                said = f"the configuration has {len(judged.problems)} problems; nothing was changed"
                raise Problem(422, "bad_config", said, problems=_told(judged.problems))
            self._refuse_losses(judged.loaded, asked.allow_loss)
            try:
                await asyncio.to_thread(_replace, Path(path), judged.text)
            except OSError as error:
                detail = f"{path} cannot be written: {error.strerror or error}"
                raise Problem(409, "not_written", detail) from None
            notes = self._server.retune(judged.loaded)
        self._server.audit(scope.get(CALLER, LOCAL).name, f"wrote {path}")
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
            return await asyncio.to_thread(self._judged, text)

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
        return hidden, self._judgment(hidden, text, path).problems

    def _judged(self, text: str) -> Judged:
        """Judge a text that a caller sent: it may name no files and apps but those that the server has already."""
        text = text.removeprefix("\ufeff")  # a mark of the encoding, as a file has it
        restored, problems = self._masks.restore(text)
        if problems:
            return Judged(problems)
        running = self._server.loaded
        named = {file for file, _ in running.files} | set(running.apps.values())
        return self._judgment(text, restored, self._server.path or "configuration", named)

    def _judgment(
        self, shown: str, text: str, source: str, named: Collection[str] | None = None
    ) -> Judged:
        """Judge a text as it is shown, then as it is; what is wrong only then is with a secret, and not quoted."""
        covered: list[tuple[Node, Any]] = []

        def cover(tree: Node) -> None:
            covered.extend(self._masks.cover(tree))

        tree = tree_of(shown.encode(), source)
        digest = digest_of(text.encode())
        loaded = load_tree(tree, digest, named=named, cover=cover)
        if (covered or shown != text) and not loaded.problems:
            for node, value in covered:
                node.value = value
            real = tree if shown == text else tree_of(text.encode(), source)
            loaded = load_tree(real, digest, named=named)
            told = (one._replace(path=one.section, message=NOT_VALID) for one in loaded.problems)
            return Judged(tuple(dict.fromkeys(told)), text, loaded)
        return Judged(loaded.problems, text, loaded)


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
