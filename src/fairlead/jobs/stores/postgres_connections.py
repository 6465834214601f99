"""Connections to PostgreSQL: few, made when needed, thrown away at the first doubt.

Every failure that passes by itself (no server, a restart, a fail-over, read-only, a full disk, a lock or an answer that
takes too long) becomes `StoreUnavailable`, and the connection is not used again: the next call makes a new one.

Behind pgbouncer in transaction mode a connection has another server in each transaction.  Then nothing is prepared by
name, and each statement stands in a transaction of its own, so that its parts (parse, bind, execute) meet one server.
It is recognised by the server's process number, which a pooler cannot know when it greets; `?pgbouncer=on|off` decides.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import asyncpg

from fairlead.config import hide_password, is_readable, shown
from fairlead.errors import ConfigError, Misuse, SchemaMismatch, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

CONNECT = 5.0  # seconds for a connection to be made
ANSWER = 10.0  # seconds for an answer
MOST = 3  # connections of one store
SCHEMA = "fairlead"

# Classes of SQLSTATE (or single ones) of what passes by itself.
PASSING = ("08", "25006", "25P02", "25P03", "26", "40", "53", "55", "57", "58", "F0", "XX")
UNMIGRATED = ("3F000", "42P01", "42883", "42703")
REFUSED_FOR_GOOD = ("28", "3D000", "42501")
# A connection that its server has ended while it was idle may answer with an internal error of the driver.
BROKEN = (OSError, EOFError, asyncpg.InterfaceError, asyncpg.InternalClientError)
DRIVER = (*BROKEN, TimeoutError, asyncpg.PostgresError)
STATEMENT_MODE = "not allowed in statement pooling mode"
# After these the connection is as good as before.
HARMLESS = ("22", "23", "40", "42", "53100", "55P03")


class Address(NamedTuple):
    """A URL of PostgreSQL, taken apart."""

    dsn: str  # for the driver
    shown: str  # without the password
    schema: str
    listen: bool
    pooled: bool | None  # None: find out
    answer: float

    def with_schema(self, sql: str) -> str:
        """Write statements about `fairlead.…` for the schema in use."""
        return sql if self.schema == SCHEMA else sql.replace(f"{SCHEMA}.", f'"{self.schema}".')


SWITCH = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}


def read_url(url: str) -> Address:
    """Take a URL apart; what is not ours goes on to the driver.

    >>> read_url("postgresql://me:secret@db/app?schema=jobs").shown
    'postgresql://me:***@db/app?schema=jobs'
    """
    if not is_readable(url):
        raise ConfigError(
            "the URL of the database cannot be read; write postgresql://user@host/name"
        )
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    own = {
        name: value for name, value in query if name in {"schema", "listen", "pgbouncer", "timeout"}
    }
    rest = urlencode([(name, value) for name, value in query if name not in own], quote_via=quote)
    schema = own.get("schema", SCHEMA)
    if not schema.isidentifier() or not schema.isascii() or len(schema) > 48:
        raise ConfigError(f"schema= must be letters, digits and _, at most 48; got {shown(schema)}")
    return Address(
        urlunsplit(parts._replace(query=rest)),
        hide_password(url),
        schema,
        _switch(own, "listen") is not False,
        _switch(own, "pgbouncer"),
        _seconds(own.get("timeout")),
    )


def _switch(own: dict[str, str], name: str) -> bool | None:
    value = own.get(name, "auto").lower()
    if value != "auto" and value not in SWITCH:
        raise ConfigError(
            f"{name}= in the URL of the database must be on, off or auto; got {shown(value)}"
        )
    return SWITCH.get(value)


def _seconds(text: str | None) -> float:
    if text is None:
        return ANSWER
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 3600:
        raise ConfigError(
            f"timeout= in the URL of the database must be 0.1 to 3600 seconds; got {shown(text)}"
        )
    return value


def judged(error: BaseException, address: Address) -> StoreError | None:
    """Say an error of the driver in our words; None if it is nobody's but ours."""
    where = address.shown
    if STATEMENT_MODE in str(error):  # said as the connection is cut, in words alone
        return StoreError(
            f"{where} is a pgbouncer in statement mode, which knows no transactions; "
            "set pool_mode = transaction for it, or connect to PostgreSQL itself"
        )
    if isinstance(error, ValueError):  # a value that cannot be sent; trying again would not help
        return None
    if isinstance(error, TimeoutError):
        return StoreUnavailable(f"{where} does not answer; is it up, and can it be reached?")
    if isinstance(error, BROKEN):
        return StoreUnavailable(f"{where} cannot be reached: {_line(error)}")
    code = getattr(error, "sqlstate", None) or ""
    psycopg: Any = sys.modules.get("psycopg")
    if psycopg is not None and isinstance(error, psycopg.Error):
        if not code and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            return StoreUnavailable(f"{where} cannot be reached: {_line(error)}")
    elif not isinstance(error, asyncpg.PostgresError):
        return None
    if code.startswith("40"):
        return StoreUnavailable(
            f"{where} could not keep two transactions apart ({_line(error)}); "
            "nothing was changed: run the transaction again"
        )
    if code in UNMIGRATED:
        return SchemaMismatch(
            f"{where} has no complete Fairlead schema {address.schema!r} ({_line(error)}); "
            f"run: {migrate_command(address)}"
        )
    if code.startswith(REFUSED_FOR_GOOD):
        return StoreError(
            f"{where} refuses: {_line(error)}; check the user, its rights and the database's name"
        )
    if code.startswith(PASSING):
        return StoreUnavailable(f"{where} refuses for now: {_line(error)}")
    return None


def migrate_command(address: Address) -> str:
    """Tell the command that brings the schema up to date."""
    return f"fairlead db migrate --db '{address.shown}'"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


class Connections:
    """At most so many connections; a caller waits for one if all are in use."""

    def __init__(self, address: Address, most: int = MOST) -> None:
        self.address = address
        self.pooled = bool(address.pooled)
        # The server gives up first, and undoes what it began; we only if it says nothing at all.
        self._answer = address.answer + 0.5
        self._patience = str(int(address.answer * 1000))
        self._most = most
        self._idle: list[tuple[asyncpg.Connection[Any], set[str]]] = []  # with what each has run
        self._room: asyncio.Semaphore | None = None
        self._abandoned: set[asyncio.Task[asyncpg.Connection[Any]]] = set()

    @property
    def is_open(self) -> bool:
        """Whether it may be used."""
        return self._room is not None

    async def open(self) -> None:
        """Make the first connection, and find out what stands between."""
        self._room = asyncio.Semaphore(self._most)
        if self.address.pooled is None:
            # As if there were a pooler, until it is known that there is none.
            self.pooled = True
            async with self.hold() as connection, connection.transaction():
                server = await connection.fetchval("SELECT pg_backend_pid()")
                direct = server == connection.get_server_pid()
            if direct:
                self.pooled = False
                await self.close()
                self._room = asyncio.Semaphore(self._most)

    async def close(self) -> None:
        """Let every idle connection go; those in use go when they come back."""
        self._room = None
        idle, self._idle = self._idle, []
        for connection, _ in idle:
            try:
                await connection.close(timeout=1)
            except DRIVER:
                connection.terminate()
        if self._abandoned:
            await asyncio.wait(self._abandoned)

    async def connect(self) -> asyncpg.Connection[Any]:
        """Make a connection; it belongs to the caller.

        A caller that is cancelled leaves at once, but the driver is not interrupted in the middle of its greeting.
        """
        task = asyncio.ensure_future(self._connect())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._abandoned.add(task)
            task.add_done_callback(self._let_go)
            raise

    def _let_go(self, task: asyncio.Task[asyncpg.Connection[Any]]) -> None:
        self._abandoned.discard(task)
        if not task.cancelled() and task.exception() is None:
            task.result().terminate()

    async def _connect(self) -> asyncpg.Connection[Any]:
        own = {"application_name": "fairlead", "jit": "off", "statement_timeout": self._patience}
        try:
            return await asyncpg.connect(
                self.address.dsn,
                timeout=CONNECT,
                command_timeout=self._answer,
                statement_cache_size=0 if self.pooled else 100,
                # A plan is kept for as long as the connection: they follow keys, and do not age.
                max_cached_statement_lifetime=0,
                server_settings={} if self.pooled else own,
            )
        except (ValueError, asyncpg.exceptions.ClientConfigurationError) as error:
            raise ConfigError(
                f"the URL {self.address.shown} cannot be used: {_line(error)}"
            ) from None
        except DRIVER as error:
            judgement = judged(error, self.address)
            if judgement is None:
                raise
            raise judgement from error

    @asynccontextmanager
    async def hold(self, sql: str | None = None) -> AsyncIterator[asyncpg.Connection[Any]]:
        """Use a connection, for one statement if it is told; errors of the driver come out in our words."""
        room = self._room
        if room is None:
            raise Misuse(f"the store {self.address.shown} is closed; open it first")
        async with room:
            connection, ran = self._take(sql) or (await self.connect(), set())
            if sql is not None:
                ran.add(sql)
            sound = False
            try:
                yield connection
                sound = True
            except DRIVER as error:
                code = getattr(error, "sqlstate", None) or ""
                sound = code.startswith(HARMLESS)
                judgement = judged(error, self.address)
                if judgement is None:
                    raise
                raise judgement from error
            finally:
                if sound and self._room is room and not connection.is_in_transaction():
                    self._idle.append((connection, ran))
                else:
                    connection.terminate()

    def _take(self, sql: str | None) -> tuple[asyncpg.Connection[Any], set[str]] | None:
        while self._idle:
            # Of those that have run it, for they have its plan: to make that of a verb takes longer than a small call.
            has_plan = (place for place, (_, ran) in enumerate(self._idle) if sql in ran)
            connection, ran = self._idle.pop(next(has_plan, -1))
            if not connection.is_closed():
                return connection, ran
        return None

    async def fetch(self, sql: str, *args: Any, again: bool = False) -> Sequence[asyncpg.Record]:
        """Run one statement as one transaction.

        `again`: it may be run twice, so it is, if its connection broke.
        """
        for last in (not again, True):
            try:
                if not self.pooled:
                    async with self.hold(sql) as connection:
                        return list(await connection.fetch(sql, *args))
                async with self.transaction() as connection:
                    return list(await connection.fetch(sql, *args))
            except StoreUnavailable as error:
                if last or isinstance(error.__cause__, TimeoutError):
                    raise
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def transaction(
        self, isolation: str = "read_committed"
    ) -> AsyncIterator[asyncpg.Connection[Any]]:
        """Run several statements in one transaction."""
        async with self.hold() as connection, connection.transaction(isolation=isolation):
            if self.pooled:
                await connection.execute(f"SET LOCAL statement_timeout = {self._patience}")
            yield connection
