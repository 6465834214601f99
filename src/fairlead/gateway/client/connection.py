"""One connection to a backend: one answer at a time, read no faster than it is taken.

Data that arrives while no answer is awaited is out of turn: nothing later on this connection can be told from it.  A
request is written to the socket at once, so that what happens between the last look at the connection and the first
byte is next to nothing, and so that a connection that is found closed is known to have taken nothing.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, cast

from fairlead.gateway.client.faults import BadAnswer, Lost

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlead.gateway.client.answer import Answer

MOST_UNREAD = 64 * 1024  # bytes received and not taken, beyond which the connection is not read
NOT_READY = (BlockingIOError, InterruptedError)


def nothing() -> None:
    """Do nothing."""


class Connection(asyncio.Protocol):
    """A connection; `out_of_turn` is called when the backend speaks unasked."""

    __slots__ = (
        "_awaited",
        "_loop",
        "_out_of_turn",
        "_reading",
        "_sock",
        "_tls",
        "_transport",
        "_unread",
        "_waiter",
        "answer",
        "asked",
        "blocked",
        "fault",
        "idle_since",
        "on_room",
        "proven",
        "sent",
    )

    _transport: asyncio.Transport
    answer: Answer  # awaited now or last

    def __init__(
        self,
        sock: socket.socket,
        tls: bool,
        loop: asyncio.AbstractEventLoop,
        out_of_turn: Callable[[str], object],
    ) -> None:
        self._sock = sock
        self._tls = tls
        self._loop = loop
        self._out_of_turn = out_of_turn
        self._awaited = False  # an answer
        self._waiter: asyncio.Future[None] | None = None
        self._unread = 0
        self._reading = True
        self.fault: BadAnswer | Lost | None = None  # why there will be no more of the answer
        self.idle_since = 0.0
        self.proven = False  # it was fit to be used again after its first answer
        self.sent = False  # a byte of the request
        self.asked = False  # the whole request has been written
        self.blocked = False  # the backend does not take what has been written
        self.on_room: Callable[[], object] = nothing  # called when it takes more

    # The exchange

    def begin(self, answer: Answer) -> None:
        """Await an answer from now on; the request is to be written at once."""
        self.answer = answer
        self._awaited = True
        self._unread = 0
        self.sent = self.asked = False

    def write(self, data: bytes) -> None:
        """Write to the backend; a failure shows where the answer is awaited."""
        if self.fault is not None:
            return
        if self._transport.is_closing():
            self._fail(Lost("the connection was closed", unsent=not self.sent))
            return
        rest: bytes | memoryview = data
        if not self._tls and not self._transport.get_write_buffer_size():
            try:
                count = self._sock.send(data)
            except NOT_READY:
                count = 0
            except OSError as error:
                if not self.sent:
                    self._fail(Lost(str(error), unsent=True))
                return  # the backend may have answered before it closed: reading finds out
            if count:
                self.sent = True
            if count == len(data):
                return
            rest = memoryview(data)[count:]
        self.sent = True
        self._transport.write(rest)

    async def more(self) -> None:
        """Wait until there is something to take, or a head; raise the fault if there will be none."""
        if self.answer.parts or self.answer.complete:
            return
        if self.fault is None:
            self._read_on()
            waiter = self._waiter = self._loop.create_future()
            try:
                await waiter
            finally:
                self._waiter = None
        if self.fault is not None:
            raise self.fault

    def _read_on(self) -> None:
        self._unread = 0
        if self.answer.status and self.answer.rest:
            self._loop.call_soon(self._feed_rest)
        elif not self._reading:
            self._reading = True
            self._transport.resume_reading()

    def _feed_rest(self) -> None:
        if not self._awaited or self.fault is not None:
            return
        try:
            self.answer.feed_rest()
        except BadAnswer as fault:
            self._fail(fault)
        self._wake()

    def finish(self) -> bool:
        """End the exchange; return whether the connection is as it was before."""
        answer = self.answer
        self._awaited = False
        self.on_room = nothing
        if self.fault is not None:
            return False
        if answer.surplus:
            self._out_of_turn("it sent more than one answer")
            return False
        whole = self.asked and answer.complete and answer.reusable
        if not whole or self.unsent or self._transport.is_closing():
            return False
        self._read_on()  # so that it is seen when the backend closes, or speaks
        return True

    @property
    def takes(self) -> bool:
        """Whether more of the request may be written now."""
        return not (self.blocked or self.fault is not None or self._transport.is_closing())

    @property
    def unsent(self) -> int:
        """Count the bytes that were written here and that the backend has not taken."""
        return self._transport.get_write_buffer_size()

    def is_clean(self) -> bool:
        """Look whether the connection is open, with nothing unread on it."""
        if self._transport.is_closing():
            return False
        if self._tls and not self.proven:
            return True  # a server goes on after its handshake: tickets lie there unread
        try:
            unread = self._sock.recv(1, socket.MSG_PEEK)
        except NOT_READY:
            return True
        except OSError:
            return False
        if unread and not self._tls:
            self._out_of_turn("it spoke before it was asked")
        return False

    def abort(self) -> None:
        """Close the connection at once, which tells the backend to stop."""
        self._awaited = False
        self.on_room = nothing
        self._transport.abort()

    def fail(self, reason: str) -> None:
        """End the exchange for a reason of this side."""
        self._fail(Lost(reason))

    def _fail(self, fault: BadAnswer | Lost) -> None:
        if self.fault is None:
            self.fault = fault
        self._transport.abort()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # asyncio's

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if not self._awaited:
            if not self._transport.is_closing():
                self._transport.abort()
                self._out_of_turn("it spoke before it was asked")
            return
        if self.fault is not None:
            return
        answer = self.answer
        try:
            answer.feed(data)
        except BadAnswer as fault:
            self._fail(fault)
            return
        if not answer.status:
            return  # a head has bounds of its own
        # Bytes as they came, not as they are passed on: this bounds the work of one pass of the loop.
        self._unread += len(data)
        full = self._unread >= MOST_UNREAD or answer.rest
        if full and self._reading and not answer.complete:
            self._reading = False
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        if self._awaited and self.fault is None:
            try:
                self.answer.end()
            except Lost as fault:
                self._fail(fault)
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._awaited and self.fault is None and not self.answer.complete:
            self.fault = Lost(str(exc) if exc else "the connection was closed")
            self._wake()

    def pause_writing(self) -> None:
        self.blocked = True

    def resume_writing(self) -> None:
        self.blocked = False
        self.on_room()
