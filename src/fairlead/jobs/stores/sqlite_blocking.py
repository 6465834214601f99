"""The store in a SQLite file for threads without an event loop: the same verbs on the same two lanes.

A verb runs on the calling thread, which waits for the lanes (see `at_once`); what threads write at once shares a flush.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from fairlead.errors import Misuse
from fairlead.jobs.stores.sqlite import SqliteStore
from fairlead.jobs.stores.sqlite_file import prepare
from fairlead.jobs.stores.sqlite_lanes import Lane

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

T = TypeVar("T")


class BlockingSqliteStore(SqliteStore):
    """A store in a SQLite file whose verbs never suspend."""

    async def open(self, *, create: bool = True) -> None:
        prepare(self._path, create=create)
        self._writer = Lane(self._path, reading=False)
        self._reader = Lane(self._path, reading=True)

    async def close(self) -> None:
        lanes = [lane for lane in (self._reader, self._writer) if lane is not None]
        self._reader = self._writer = None
        for lane in lanes:
            lane.end()

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return self._open(self._reader).do(work)

    async def _write(self, work: Callable[[sqlite3.Connection], T], *, durable: bool = False) -> T:
        return self._open(self._writer).do(work, durable=durable)

    def _open(self, lane: Lane | None) -> Lane:
        if lane is None:
            raise Misuse(f"the store of {self._path} is not open; open it first")
        return lane
