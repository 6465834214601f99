"""The body of a request, where it is not left to the server and the application alone.

One that says no length is counted as it comes.  One that is asked for its model or its tier is read before admission.
And while a request waits its body is read ahead, for only who reads sees a client leave.  What was read goes to the
application first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from fairlead.core.ticket import WAITING

if TYPE_CHECKING:
    from fairlead.gateway.exchange import Exchange
    from fairlead.gateway.pool import Pool

# Bytes of bodies read ahead for requests that wait.  Who has more to send than is read is not seen to leave, so each
# may go beyond its own part while all of a pool have not used up theirs.
MOST_BUFFERED = 256 * 1024
MOST_BUFFERED_TOGETHER = 64 * 1024 * 1024


class BodyTooLarge(Exception):
    """The request's body is longer than allowed."""


class Body:
    """A body that is counted, and perhaps read, before the application has it."""

    __slots__ = ("_messages", "_pump", "_receive", "ahead", "left")

    def __init__(self, receive: Any, limit: int) -> None:
        self._receive = receive
        self._messages: deque[Any] = deque()  # read, and not handed on yet
        self._pump: asyncio.Task[None] | None = None
        self.left = limit  # bytes that may still come
        self.ahead = 0  # bytes read ahead in this wait

    @property
    def gone(self) -> bool:
        """Whether the client has been seen to leave."""
        messages = self._messages
        return bool(messages) and messages[-1]["type"] == "http.disconnect"

    async def receive(self) -> Any:
        """Hand the application what was read ahead, then the rest, within the limit."""
        message = await self._next()
        body = message.get("body")
        if body:
            self.left -= len(body)
            if self.left < 0:
                raise BodyTooLarge
        return message

    async def read(self) -> bytes | None:
        """Read all of it before the application does, to be handed on later; None if the client left."""
        parts = []
        while True:
            message = await self._next()
            if message["type"] == "http.disconnect":
                self._messages.append(message)
                return None
            parts.append(message.get("body", b""))
            self.left -= len(parts[-1])
            if self.left < 0:
                raise BodyTooLarge
            if not message.get("more_body", False):
                break
        body = b"".join(parts)
        self.left += len(body)  # counted again as the application reads it
        self._messages.append({"type": "http.request", "body": body, "more_body": False})
        return body

    async def _next(self) -> Any:
        if not self._messages and self._pump is not None and not self._pump.done():
            await asyncio.wait([self._pump])  # one read is still out; it must not be lost
        return self._messages.popleft() if self._messages else await self._receive()

    def read_ahead(self, exchange: Exchange, loop: asyncio.AbstractEventLoop) -> None:
        """Read while the request waits, if nobody does already."""
        if self._pump is None or self._pump.done():
            self._pump = loop.create_task(self._read_ahead(exchange))

    async def _read_ahead(self, exchange: Exchange) -> None:
        while exchange.state is WAITING and self._may_read_ahead(exchange.pool_of_slots):
            message = await self._receive()
            self._messages.append(message)
            if exchange.state is WAITING:
                size = len(message.get("body", b""))
                self.ahead += size
                exchange.pool_of_slots.read_ahead += size
            if message["type"] == "http.disconnect":
                if exchange.state is WAITING:
                    exchange.pool_of_slots.runtime.withdraw([exchange])
                    exchange.told()
                return

    def _may_read_ahead(self, pool: Pool) -> bool:
        if self.ahead < MOST_BUFFERED:
            return True
        return self.ahead <= self.left and pool.read_ahead < MOST_BUFFERED_TOGETHER

    def stop_reading(self) -> None:
        """The exchange is over: nobody will ask for what was being read ahead."""
        if self._pump is not None and not self._pump.done():
            self._pump.cancel()
