"""The store in PostgreSQL for threads without an event loop: the same verbs and statements, over psycopg.

A verb runs on the calling thread from its beginning to its end (see `at_once`).  Connections are few and shared by all
threads; a thread waits for one if all are in use.
"""

from __future__ import annotations

import importlib
import os
import selectors
import threading
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import finalize

from fairlead.errors import ConfigError, Misuse, StoreError, StoreUnavailable
from fairlead.jobs.stores.at_once import at_once
from fairlead.jobs.stores.postgres import PostgresStore
from fairlead.jobs.stores.postgres_connections import CONNECT, judged
from fairlead.jobs.stores.postgres_hints import NOTIFY, channel_of
from fairlead.jobs.stores.postgres_submitting import submit_through

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from fairlead.jobs.records import NewRun, Submitted
    from fairlead.jobs.stores.postgres_connections import Address

MOST = 8  # connections of one process


class BlockingPostgresStore(PostgresStore):
    """A store in PostgreSQL whose verbs never suspend."""

    def __init__(self, url: str) -> None:
        super().__init__(url, listen=False)
        self._connections = connections = BlockingConnections(self._address)  # type: ignore[assignment]
        self._hints = BlockingHints(connections)  # type: ignore[assignment]

    async def _submit_on(
        self, connection: Any, runs: Sequence[NewRun], compare: bool
    ) -> list[Submitted]:
        return submit_through(connection, self._address, self._hints.channel, runs, compare)


class Session:
    """One connection, asked as asyncpg's are; statements have `$1` for the first value."""

    def __init__(self, connection: Any, psycopg: Any) -> None:
        self.connection = connection
        self._cursor = psycopg.RawCursor(connection, row_factory=psycopg.rows.tuple_row)

    async def fetch(self, sql: str, *args: Any) -> list[Any]:
        self._cursor.execute(sql, args or None)
        rows: list[Any] = self._cursor.fetchall() if self._cursor.description else []
        return rows

    async def fetchval(self, sql: str, *args: Any) -> Any:
        rows = await self.fetch(sql, *args)
        return rows[0][0] if rows else None


class BlockingConnections:
    """At most so many connections of psycopg, for any number of threads."""

    def __init__(self, address: Address, most: int = MOST) -> None:
        try:
            self._psycopg: Any = importlib.import_module("psycopg")
        except ImportError:
            raise ConfigError(
                'jobs.sync needs psycopg for PostgreSQL: pip install "psycopg[binary]"'
            ) from None
        self.address = address
        self.pooled = bool(address.pooled)
        self._patience = str(int(address.answer * 1000))
        self._most = most
        self._room: threading.BoundedSemaphore | None = None
        self._idle: list[Any] = []
        self._process = os.getpid()
        finalize(self, _close_all, self._idle, self._process)

    @property
    def is_open(self) -> bool:
        """Whether it may be used."""
        return self._room is not None

    async def open(self) -> None:
        """Make the first connection."""
        self._room = threading.BoundedSemaphore(self._most)
        try:
            with self._held():
                pass
        except BaseException:
            self._room = None
            raise

    async def close(self) -> None:
        """Close every idle connection; those in use are closed when they come back."""
        self._room = None
        _close_all(self._idle, self._process)

    async def fetch(self, sql: str, *args: Any, again: bool = False) -> Sequence[Any]:
        """Run one statement as one transaction; with `again`, a second time if its connection broke."""
        for last in (not again, True):
            try:
                async with self._session() as session:
                    return await session.fetch(sql, *args)
            except StoreUnavailable as error:
                if last or isinstance(error.__cause__, self._psycopg.errors.QueryCanceled):
                    raise
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def transaction(self, isolation: str = "read_committed") -> AsyncIterator[Session]:
        """Run several statements in one transaction."""
        with self._held() as connection, connection.transaction():
            session = Session(connection, self._psycopg)
            if isolation != "read_committed":
                await session.fetch(
                    f"SET TRANSACTION ISOLATION LEVEL {isolation.replace('_', ' ').upper()}"
                )
            if self.pooled:
                await session.fetch(f"SET LOCAL statement_timeout = {self._patience}")
            yield session

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Session]:
        if self.pooled:
            async with self.transaction() as session:
                yield session
            return
        with self._held() as connection:
            yield Session(connection, self._psycopg)

    @contextmanager
    def _held(self) -> Iterator[Any]:
        """Use a connection; errors of the driver come out in our words."""
        room = self._room
        if room is None:
            raise Misuse(f"the store {self.address.shown} is closed; open it first")
        with room:
            try:
                connection = self._take() or self._connect()
                try:
                    yield connection
                finally:
                    self._give(connection, room)
            except self._psycopg.Error as error:
                judgement = judged(error, self.address)
                if judgement is None:
                    raise
                raise judgement from error

    def _take(self) -> Any:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            # The server says nothing to an idle connection but that it is at its end.
            if not connection.closed and not _readable(connection.fileno()):
                return connection
            connection.close()

    def _give(self, connection: Any, room: threading.BoundedSemaphore) -> None:
        idle = self._psycopg.pq.TransactionStatus.IDLE
        if self._room is room and connection.info.transaction_status == idle:
            self._idle.append(connection)
        else:  # broken, or interrupted in the middle of a statement
            connection.close()

    def _connect(self) -> Any:
        connection = self._psycopg.connect(
            self.address.dsn,
            autocommit=True,
            connect_timeout=int(CONNECT),
            prepare_threshold=None,  # behind a pooler each transaction has another server
            application_name="fairlead",
        )
        try:
            if self.address.pooled is None:
                server = connection.execute("SELECT pg_backend_pid()").fetchone()[0]
                self.pooled = server != connection.info.backend_pid
            if not self.pooled:
                connection.execute(f"SET statement_timeout = {self._patience}")
                connection.execute("SET jit = off")
        except BaseException:
            connection.close()
            raise
        return connection


class BlockingHints:
    """Tell other processes that something was written: at once, and one hint for all threads that wait to send."""

    def __init__(self, connections: BlockingConnections) -> None:
        self.channel = channel_of(connections.address)
        self._connections = connections
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._covered = 0  # calls of `send` with a lower number

    def start(self) -> None:
        """Do nothing: a thread sends its own hint."""

    async def stop(self) -> None:
        """Do nothing."""

    def send(self) -> None:
        """Send a hint, unless that of another thread began after this call."""
        mine = next(self._numbers)
        with self._lock:
            if self._covered > mine:
                return
            covered = next(self._numbers)
            try:
                at_once(self._connections.fetch(NOTIFY, self.channel, ""))
            except StoreError:
                pass  # a scheduler looks by itself, too
            self._covered = covered


def _readable(descriptor: int) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(0))


def _close_all(idle: list[Any], process: int) -> None:
    while idle and process == os.getpid():  # after a fork they are the parent's
        idle.pop().close()
