"""Logs of a process: lines of text or of JSON on standard error; the access log, if any, on standard output."""

from __future__ import annotations

import asyncio
import json as json_format
import logging
import sys
import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT = "%(asctime)s %(levelname)s %(name)s %(message)s"
LEVELS = (("fairlead", logging.INFO), ("uvicorn.error", logging.WARNING))
# Of everybody else, such as asyncio and the modules of users: Python would write their warnings as bare text.
OTHERS = (("", logging.WARNING),)
ACCESS = "fairlead.access"


class JsonLines(logging.Formatter):
    """Write a record as one line of JSON; whatever stands in the message cannot forge another."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json_format.dumps(line)


@contextmanager
def set_up_logging(
    *, json: bool = False, access: bool = False, quiet: tuple[type[BaseException], ...] = ()
) -> Iterator[None]:
    """Write logs while inside; errors of a kind in `quiet` have been told, or were meant, and leave no traceback."""
    shown = logging.StreamHandler(sys.stderr)
    shown.setFormatter(JsonLines() if json else logging.Formatter(TEXT))
    meant = (*quiet, asyncio.CancelledError)

    def is_news(record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], meant))

    requests = logging.StreamHandler(sys.stdout)
    requests.setFormatter(logging.Formatter("%(message)s"))
    wanted = [(name, level, shown) for name, level in (*LEVELS, *(OTHERS if json else ()))]
    wanted.append((ACCESS, logging.INFO if access else logging.WARNING, requests))
    before = []
    for name, level, handler in wanted:
        logger = logging.getLogger(name)
        before.append((logger, logger.level, logger.propagate, handler))
        logger.setLevel(level)
        logger.addHandler(handler)
        logger.propagate = False
    uvicorn = logging.getLogger("uvicorn.error")
    uvicorn.addFilter(is_news)
    in_threads = threading.excepthook
    if json:
        logging.captureWarnings(True)
        threading.excepthook = _log_of_thread
    try:
        yield
    finally:
        if json:
            logging.captureWarnings(False)
            threading.excepthook = in_threads
        uvicorn.removeFilter(is_news)
        for logger, level, propagate, handler in before:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate


def _log_of_thread(given: threading.ExceptHookArgs) -> None:
    if given.exc_value is not None and not isinstance(given.exc_value, SystemExit):
        raised = (given.exc_type, given.exc_value, given.exc_traceback)
        name = None if given.thread is None else given.thread.name
        logging.getLogger("fairlead").error("thread %s ended by an error", name, exc_info=raised)
