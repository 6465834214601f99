"""The PostgreSQL of the jobs suite: with its own defaults, started by whoever needs it first, ended with the suite."""

from __future__ import annotations

import os
from pathlib import Path

from tests.engines_postgres import Postgres, binaries

TICKS = os.sysconf("SC_CLK_TCK")
# What tests make smaller, as PostgreSQL has it by itself.
DEFAULTS = {"shared_buffers": "128MB", "autovacuum_naptime": "1min"}


def installed() -> bool:
    """Whether there is one to start."""
    return binaries() is not None


class Engine:
    """A server for the whole suite."""

    def __init__(self) -> None:
        self._server: Postgres | None = None

    def url(self) -> str:
        if self._server is None:
            self._server = Postgres(**DEFAULTS)
            self._server.start()
        return self._server.url

    def cpu(self) -> float:
        """CPU seconds of the server and all its sessions, also of those that have ended."""
        self.url()
        assert self._server is not None
        postmaster = int((self._server.data / "postmaster.pid").read_text().split()[0])
        own, ended = _used(postmaster)
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        return own + ended + sum(sum(_used(int(child))) for child in children)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None


def _used(pid: int) -> tuple[float, float]:
    """CPU seconds of a process, and of its children that have ended."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0, 0.0  # it has just ended: its parent tells it next time
    return sum(map(int, words[11:13])) / TICKS, sum(map(int, words[13:15])) / TICKS
