"""Logs of a process: lines of text or of JSON on standard error; the access log, if any, on standard output."""

from __future__ import annotations

import asyncio
import json as json_format
import logging
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT = "%(asctime)s %(levelname)s %(name)s %(message)s"
LEVELS = (("fairlead", logging.INFO), ("uvicorn.error", logging.WARNING))
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
    wanted = [(name, level, shown) for name, level in LEVELS]
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
    try:
        yield
    finally:
        uvicorn.removeFilter(is_news)
        for logger, level, propagate, handler in before:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate
