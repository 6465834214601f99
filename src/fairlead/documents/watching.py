"""Follow a configuration file: a good new content is applied, a bad one is told and changes nothing."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from fairlead.documents.reading import content_of, digest_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from fairlead.documents.reading import Problem

logger = logging.getLogger("fairlead.config")

INTERVAL = 1.0
SETTLED = 0.25


class Document(Protocol):
    """What a door makes of a file: settings, and what is wrong with them."""

    @property
    def problems(self) -> tuple[Problem, ...]: ...

    @property
    def lines(self) -> tuple[str, ...]: ...

    @property
    def warnings(self) -> tuple[str, ...]: ...

    @property
    def digest(self) -> str: ...


Loaded = TypeVar("Loaded", bound=Document)


class Watch(Generic[Loaded]):
    """Look at a file once a second and hand each new, valid content to `apply`.

    The content is compared, not the file: it may be replaced, be a link that is turned elsewhere, or go and come
    back.  A change counts once two looks, a quarter of a second apart, agree: a file that is being written is left
    alone.  With `since` the first look compares with what was loaded then, else with what `start` finds.  `refused` is
    called for each content that is not applied.  Between two looks nothing is pending but a timer.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        load_content: Callable[[bytes | Problem, str], Loaded],
        apply: Callable[[Loaded], object],
        *,
        since: Loaded | None = None,
        refused: Callable[[], object] = lambda: None,
    ) -> None:
        self.path = os.fsdecode(path)
        self._load_content = load_content
        self._apply = apply
        self._refused = refused
        self._known = since.digest if since else None
        self._changing: str | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to look; a second call changes nothing."""
        if self._timer is None:
            self._loop = loop
            if self._known is None:
                self._known = digest_of(content_of(self.path))
            self._timer = loop.call_later(INTERVAL, self._look)

    def know(self, digest: str) -> None:
        """Take a content for known: somebody else has applied it."""
        self._known, self._changing = digest, None

    def stop(self) -> None:
        """Look no more; a second call changes nothing."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop = None

    def look(self) -> None:
        """Look once, for whoever has a timer already; whatever goes wrong is told and changes nothing."""
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

    def _follow(self) -> None:
        content = content_of(self.path)
        digest = digest_of(content)
        if digest == self._known:
            self._changing = None
        elif digest != self._changing:
            self._changing = digest
        else:
            self._changing, self._known = None, digest
            self._take(self._load_content(content, self.path))

    def _take(self, loaded: Loaded) -> None:
        if loaded.problems:
            self._refused()
            for line in loaded.lines:
                logger.error("%s", line)
            logger.error("%s: not applied; the old configuration stays", self.path)
            return
        for warning in loaded.warnings:
            logger.warning("%s: %s", self.path, warning)
        self._apply(loaded)
        logger.info("%s: applied", self.path)
