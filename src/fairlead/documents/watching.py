"""Follow a configuration file: apply a good new content; log a bad one, which changes nothing.

A content that would lose something which the running configuration has (`losses`) is refused like a bad one: a file
that was cut short is often valid.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from fairlead.documents.loading import EMPTY
from fairlead.documents.losses import told
from fairlead.documents.reading import content_of, digest_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Sequence

    from fairlead.documents.losses import Loss
    from fairlead.documents.reading import Problem

logger = logging.getLogger("fairlead.config")

INTERVAL = 1.0
SETTLED = 0.25
ON_PURPOSE = "restart to lose it on purpose"


class Document(Protocol):
    """What a door makes of a file: settings, and what is wrong with them; `files` are others that were read."""

    @property
    def problems(self) -> tuple[Problem, ...]: ...

    @property
    def lines(self) -> tuple[str, ...]: ...

    @property
    def warnings(self) -> tuple[str, ...]: ...

    @property
    def digest(self) -> str: ...

    @property
    def files(self) -> tuple[tuple[str, str], ...]: ...


Loaded = TypeVar("Loaded", bound=Document)
Contents = dict[str, str]  # the digest of each file


class Watch(Generic[Loaded]):
    """Look at a file, and at those it names, once a second, and apply each new, valid content that loses nothing.

    Contents are compared, not files: a file may be replaced, be a link that is turned elsewhere, or go and come back.
    Every byte that is applied was read twice, a quarter of a second apart, and was the same: a file that is being
    written is left alone.  With `since` the first look compares with what was loaded then, else with what `start`
    finds.  `losses` reports what a content would lose; `refused` is called for each content that is not applied.
    Between two looks nothing is pending but a timer.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        load_content: Callable[[bytes | Problem, str], Loaded],
        apply: Callable[[Loaded], object],
        *,
        losses: Callable[[Loaded], Sequence[Loss]],
        since: Loaded | None = None,
        refused: Callable[[], object] = lambda: None,
        on_purpose: str = ON_PURPOSE,
    ) -> None:
        self.path = os.fsdecode(path)
        self._load_content = load_content
        self._apply = apply
        self._losses = losses
        self._refused = refused
        self._on_purpose = on_purpose
        self._known = self._contents(since) if since else None
        self._changing: Contents | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to look; a second call changes nothing."""
        if self._timer is None:
            self._loop = loop
            if self._known is None:
                self._known = _read([self.path])
            self._timer = loop.call_later(INTERVAL, self._look)

    def know(self, loaded: Loaded) -> None:
        """Count a content as known: it is applied already."""
        self._known, self._changing = self._contents(loaded), None

    def stop(self) -> None:
        """Look no more; a second call changes nothing."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop = None

    def look(self) -> None:
        """Look once, for a caller with a timer of its own; an error is logged and changes nothing."""
        try:
            self._follow()
        except Exception:
            logger.exception("%s: could not be followed; the old configuration stays", self.path)
            self._refused()

    def _look(self) -> None:
        self.look()
        if self._loop is not None:  # else `apply` has stopped us
            delay = INTERVAL if self._changing is None else SETTLED
            self._timer = self._loop.call_later(delay, self._look)

    def _contents(self, loaded: Loaded) -> Contents:
        return {self.path: loaded.digest, **dict(loaded.files)}

    def _follow(self) -> None:
        known = self._known if self._known is not None else {self.path: ""}
        found = _read(known if self._changing is None else self._changing)
        if all(known.get(path) == digest for path, digest in found.items()):
            self._changing = None
            return
        if found != self._changing:
            self._changing = found
            return
        self._changing, self._known = None, found
        loaded = self._load_content(content_of(self.path), self.path)
        read = self._contents(loaded)
        if any(found.get(path) != digest for path, digest in read.items()):
            self._changing = (
                read  # a file that is named only now, or changed again: read it twice too
            )
            return
        self._known = read
        self._take(loaded, [path for path in read if read[path] != known.get(path)])

    def _take(self, loaded: Loaded, changed: list[str]) -> None:
        empty = any(not problem.path and problem.message == EMPTY for problem in loaded.problems)
        if loaded.problems and not empty:
            for line in loaded.lines:
                logger.error("%s", line)
            self._refuse("not applied")
        elif lost := self._losses(loaded):
            what = "is empty; not applied" if empty else "not applied"
            advice = "" if empty else f"; {self._on_purpose}"
            self._refuse(f"{what}, for it loses {told(lost)}", advice)
        elif empty:
            self._refuse("is empty; not applied")
        else:
            for warning in loaded.warnings:
                logger.warning("%s: %s", self.path, warning)
            self._apply(loaded)
            logger.info("%s: applied", ", ".join(changed) or self.path)

    def _refuse(self, why: str, advice: str = "") -> None:
        self._refused()
        logger.error("%s: %s; the old configuration stays%s", self.path, why, advice)


def _read(paths: Iterable[str]) -> Contents:
    return {path: digest_of(content_of(path)) for path in paths}
