"""An app as a process: `fairlead streams run`.  Consumes until SIGTERM or SIGINT, and shows itself meanwhile."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fairlead.serving.locality import notice
from fairlead.streams.status import ADDRESS, StatusServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlead.streams.app import StreamApp

NOWHERE = "off"


def run(
    app: StreamApp, *, listen: str | None = None, token: str | None = None, name: str = ""
) -> int:
    """Consume until a signal ends it; return the exit code.

    `listen` is where to show it, None where it is usually shown if that is free, "off" nowhere.
    """
    try:
        status = _status(app, listen, token, name)
    except OSError as error:
        _say(f"fairlead streams: {error.strerror or error}")
        return 2
    try:
        with _logging():
            if status is not None:
                status.start()
            _say(_described(app, status))
            if status is not None and status.token is None:
                _say(notice("it", setting="--token"))
            app.run()
    finally:
        if status is not None:
            status.close()
    return 0


def _status(
    app: StreamApp, listen: str | None, token: str | None, name: str
) -> StatusServer | None:
    if listen == NOWHERE:
        return None
    try:
        return StatusServer(app, listen or ADDRESS, token=token, name=name)
    except OSError as error:
        if listen is not None:
            raise
        # Several processes on one host are usual: the first has the address, and all of them consume.
        _say(
            f"fairlead streams: {error.strerror or error}, so this process is not shown; give it an address of its "
            "own with --listen"
        )
        return None


def _described(app: StreamApp, status: StatusServer | None) -> str:
    where = "not shown" if status is None else f"http://{status.address}"
    topics = ", ".join(sorted(app.topics)) or "no topics"
    chosen = app.settings.scheduler
    scheduler = "" if chosen is None else f" under {chosen.__name__}"
    return (
        f"fairlead streams: {where}; group {app.settings.group}: {topics}; "
        f"{app.settings.concurrency} workers{scheduler}"
    )


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


@contextmanager
def _logging() -> Iterator[None]:
    """Write the log to the error stream."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logger = logging.getLogger("fairlead")
    before = (logger.level, logger.propagate)
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
