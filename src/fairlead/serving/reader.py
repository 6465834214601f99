"""A client that has to read its answer: one that does not is dropped, because its request holds a slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

SLOWEST = 1000  # bytes per second of a body, or of an answer that is read


class Reader:
    """Watch the client of a connection while bytes wait to be read by it."""

    __slots__ = ("_loop", "_timeout", "_timer", "_transport")

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, timeout: float
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._timeout = timeout
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Watch, from now on."""
        unread = self._transport.get_write_buffer_size()
        self._timer = self._loop.call_later(self._timeout, self._late, unread)

    def end(self) -> None:
        """Watch no more: the client has read, or is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self, unread: int) -> None:
        taken = unread - self._transport.get_write_buffer_size()
        if taken >= SLOWEST * self._timeout:
            self.begin()
        else:
            self._timer = None
            self._transport.abort()
