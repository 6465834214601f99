"""Two threads for one file: a lane that writes and a lane that reads, and how asyncio reaches them.

**Group commit.**  What is queued when the writer comes round shares one transaction, and so one flush to the disk.  If
anything in such a group raises, all of it is rolled back and each is done again by itself: a call is all or nothing,
and no call suffers from another.  So work must be a function of the database and its arguments alone.

**The interpreter's lock.**  `sqlite3` gives it up at every step of a statement, and a thread that competes with a busy
event loop waits up to 5 ms to have it back.  So work hands whole batches to SQLite as JSON and takes them back as JSON:
a step per statement, not per row.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
from concurrent.futures import Future as ThreadFuture
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar, cast

from fairlead.errors import Misuse, StoreUnavailable
from fairlead.jobs.stores.sqlite_file import code_of, connect, patient, transaction, translated

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")
MOST_AT_ONCE = 64
RECONNECT = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM})

log = logging.getLogger("fairlead.jobs")


class Request:
    """A call that waits for its answer, in an event loop or in a thread."""

    __slots__ = ("work", "durable", "future", "loop", "value", "error")

    def __init__(
        self,
        work: Callable[[sqlite3.Connection], Any],
        durable: bool | None,
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self.work = work
        self.durable = durable  # None: no transaction
        self.loop = loop  # None: a thread without one
        self.future: asyncio.Future[Any] | ThreadFuture[Any]
        self.future = ThreadFuture() if loop is None else loop.create_future()
        self.value: Any = None
        self.error: BaseException | None = None

    def settle(self) -> None:
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.value)


class Lane:
    """A thread with a connection of its own, doing what it is asked in order."""

    def __init__(self, path: Path, *, reading: bool) -> None:
        self._path = path
        self._reading = reading
        self._queue: SimpleQueue[Request | None] = SimpleQueue()
        self._connection: sqlite3.Connection | None = connect(path, reading=reading)
        self._full: bool | None = None  # is PRAGMA synchronous FULL?
        self._process = os.getpid()
        self._closed = False
        name = f"fairlead-sqlite-{'reads' if reading else 'writes'}"
        # A daemon: a process that forgets to close must still be able to end, and SQLite survives that.
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    async def call(
        self, work: Callable[[sqlite3.Connection], T], *, durable: bool | None = None
    ) -> T:
        """Do work on the lane's thread; with `durable` not None, in a transaction."""
        self._check()  # first: after a fork no loop runs
        request = self._ask(work, durable, asyncio.get_running_loop())
        answer: T = await cast("asyncio.Future[T]", request.future)
        return answer

    def do(self, work: Callable[[sqlite3.Connection], T], *, durable: bool | None = None) -> T:
        """Do work as `call` does, and block the calling thread until it is done."""
        self._check()
        future = cast("ThreadFuture[T]", self._ask(work, durable, None).future)
        try:
            return future.result()
        except BaseException:  # Ctrl-C among them: what has not begun is not wanted any more
            future.cancel()
            raise

    def _ask(
        self,
        work: Callable[[sqlite3.Connection], Any],
        durable: bool | None,
        loop: asyncio.AbstractEventLoop | None,
    ) -> Request:
        request = Request(work, durable, loop)
        self._queue.put(request)
        return request

    def _check(self) -> None:
        if os.getpid() != self._process:
            raise Misuse(
                f"the store of {self._path} was opened before a fork; open one in each process"
            )
        if self._closed:
            raise Misuse(f"the store of {self._path} is closed; open it first")

    async def close(self) -> None:
        """Finish what is queued, and let go of the file."""
        await asyncio.to_thread(self.end)

    def end(self) -> None:
        """Do what `close` does, and block the calling thread."""
        if self._closed:
            return
        self._closed = True
        if os.getpid() != self._process:
            return  # the parent's connection: touching it here would harm the file
        self._queue.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while True:
            batch, last = self._take()
            if batch:
                self._do(batch)
                deliver(batch)
            if last:
                break
        if self._connection is not None:
            self._connection.close()

    def _take(self) -> tuple[list[Request], bool]:
        """Wait for a request, and take those behind it."""
        batch: list[Request] = []
        request = self._queue.get()
        while request is not None:
            # Whoever is not waiting any more wants nothing done.
            if not request.future.cancelled():
                batch.append(request)
            if len(batch) >= MOST_AT_ONCE:
                return batch, False
            try:
                request = self._queue.get_nowait()
            except Empty:
                return batch, False
        return batch, True

    def _do(self, batch: list[Request]) -> None:
        group = [request for request in batch if request.durable is not None]
        for request in batch:
            if request.durable is None:
                self._try([request])
        if group and not self._try(group) and len(group) > 1:
            for request in group:
                request.error = None
                self._try([request])

    def _try(self, group: list[Request]) -> bool:
        """Do a group in one transaction; on any error nothing of it has happened."""
        try:
            connection = self._connected()
            if group[0].durable is None:
                group[0].value = patient(lambda: group[0].work(connection))
                return True
            self._flush(connection, full=any(request.durable for request in group))
            with transaction(connection):
                for request in group:
                    request.value = request.work(connection)
        except sqlite3.Error as error:
            said = translated(error, self._path)
            said.__cause__ = error if said is not error else None
            if code_of(error) in RECONNECT:
                self._disconnect()
        except Exception as error:
            said = error
        else:
            return True
        for request in group:
            request.error = said
        return False

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            if not self._path.exists():
                raise StoreUnavailable(
                    f"database {self._path} is gone; nothing was changed; put it back"
                )
            self._connection = connect(self._path, reading=self._reading)
            self._full = None
        return self._connection

    def _disconnect(self) -> None:
        """After an I/O error a connection's caches are not to be trusted."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except sqlite3.Error:
                log.debug("closing %s after an I/O error", self._path, exc_info=True)

    def _flush(self, connection: sqlite3.Connection, *, full: bool) -> None:
        """FULL waits at each commit for the disk; NORMAL keeps the order, but a power cut may take the end."""
        if full != self._full:
            connection.execute(f"PRAGMA synchronous = {'FULL' if full else 'NORMAL'}")
            self._full = full


def deliver(batch: list[Request]) -> None:
    """Hand answers to the loops that wait for them, one visit to each."""
    for loop in {request.loop for request in batch}:
        settled = [request for request in batch if request.loop is loop]
        if loop is None:
            settle(settled)
            continue
        try:
            loop.call_soon_threadsafe(settle, settled)
        except RuntimeError:
            log.debug("a loop was closed while it waited for %d answers", len(settled))


def settle(requests: list[Request]) -> None:
    for request in requests:
        request.settle()
