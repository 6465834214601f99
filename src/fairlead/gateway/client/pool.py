"""Connections that are kept for the next request, and which of them may be used.

A connection is used only if it is clean when it is taken.  The one that was idle longest is taken first: quiet is the
only evidence that a backend has nothing more to say.  After a backend has spoken out of turn its connections are used
once each for `DISTRUST` seconds, since nothing in HTTP/1.1 ties an answer to its request but their order.

A backend may greet: what it says on a new connection looks like the first answer, and the first answer like the second.
So the first connection to a backend is listened to before it is used, and each connection rests after its first answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from fairlead.gateway.client.connection import Connection
from fairlead.gateway.client.faults import Lost
from fairlead.gateway.client.origin import Origin

if TYPE_CHECKING:
    import socket

KEEPALIVE = 4.0  # less than uvicorn's 5 s, so that the backend is seldom the first to hang up
DISTRUST = 60.0
LISTEN = 0.05  # seconds, before the first request to a backend
REST = 0.1  # seconds, after the first answer on a connection
MOST_RESTING = 256  # connections of a backend; more are not kept

log = logging.getLogger("fairlead.gateway")


class Pool:
    """The idle connections to one backend."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.origin = Origin(url)
        self._idle: deque[Connection] = deque()
        self._resting: deque[Connection] = deque()
        self._quiet = False  # a new connection to it has been listened to
        self._closed = False
        self._spare = 0  # of the idle ones, not needed since the last sweep
        self._distrusted_until = float("-inf")
        self._sweeping: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def take(self) -> Connection | None:
        """Return a connection that is clean now, if there is one."""
        self._rouse()
        idle = self._idle
        oldest = self._loop.time() - KEEPALIVE
        while idle:
            connection = idle.popleft()
            if connection.idle_since >= oldest and connection.is_clean():
                if len(idle) < self._spare:
                    self._spare = len(idle)
                return connection
            connection.abort()
        self._spare = 0
        return None

    async def connect(self) -> Connection:
        """Return a new connection; raise `Unconnected` or `Lost` if there is none that is clean."""
        connection = await self.origin.connect(self._made)
        try:
            if not self._quiet:
                await asyncio.sleep(LISTEN)
            if not connection.is_clean():
                raise Lost("the connection was not clean before the request", unsent=True)
        except BaseException:
            connection.abort()
            raise
        self._quiet = True
        return connection

    def give(self, connection: Connection) -> None:
        """Take back a connection whose exchange is over: keep it if it may be used again."""
        now = self._loop.time()
        kept = self._idle if connection.proven else self._resting
        keeps = not self._closed and now >= self._distrusted_until
        if connection.finish() and keeps and (connection.proven or len(kept) < MOST_RESTING):
            connection.proven = True
            connection.idle_since = now
            kept.append(connection)
            if self._sweeping is None:
                self._sweep_later()
        else:
            connection.abort()

    def close(self) -> None:
        """Close what is idle, and keep nothing from now on."""
        self._closed = True
        self._drop()

    def _drop(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        for kept in (self._idle, self._resting):
            while kept:
                kept.popleft().abort()

    def _rouse(self) -> None:
        """Move the connections that have rested to those that may be used."""
        rested, resting = self._loop.time() - REST, self._resting
        while resting and resting[0].idle_since <= rested:
            self._idle.append(resting.popleft())

    def _made(self, sock: socket.socket, tls: bool) -> Connection:
        return Connection(sock, tls, self._loop, self._distrust)

    def _distrust(self, reason: str) -> None:
        now = self._loop.time()
        if now >= self._distrusted_until:
            log.warning(
                "upstream %s spoke out of turn: %s; its connections are not reused for %g s",
                self.url,
                reason,
                DISTRUST,
            )
        self._distrusted_until = now + DISTRUST
        self._quiet = False
        self._drop()

    def _sweep_later(self) -> None:
        self._spare = len(self._idle)
        self._sweeping = self._loop.call_later(KEEPALIVE, self._sweep)

    def _sweep(self) -> None:
        """Close the connections that were not needed since the last sweep."""
        self._sweeping = None
        for _ in range(min(self._spare, len(self._idle))):
            self._idle.popleft().abort()
        self._rouse()
        if self._idle or self._resting:
            self._sweep_later()


class Client:
    """The pools of all backends, by URL."""

    def __init__(self) -> None:
        self._pools: dict[str, Pool] = {}

    def pool(self, url: str) -> Pool:
        """Return the pool of a backend."""
        pool = self._pools.get(url)
        if pool is None:
            pool = self._pools[url] = Pool(url)
        return pool

    def drop(self, url: str) -> None:
        """Close the idle connections to a backend, and keep none of those that are in use."""
        pool = self._pools.pop(url, None)
        if pool is not None:
            pool.close()

    def close(self) -> None:
        """Close all idle connections."""
        for url in list(self._pools):
            self.drop(url)
