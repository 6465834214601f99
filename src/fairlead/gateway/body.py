"""The body of a request, between the server that receives it and the application that reads it.

A body is read before its request asks for a slot: its first part, or all of it where the class or the pool depends on
it.  While the request waits the gateway reads ahead, because only a reader sees a client leave.  The application gets
the bytes that were read, then the rest.  Bytes that are read before the request has a slot are counted with those of
all other bodies (`held`).  A client whose request has a slot has to send at a minimum speed; only the time in which
the application waits for the client is measured.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from fairlead.core.ticket import MOVED, WAITING
from fairlead.gateway.held import Upload
from fairlead.gateway.memory import give_back
from fairlead.gateway.pile import LARGE, Pile
from fairlead.gateway.responses import Failure

if TYPE_CHECKING:
    from fairlead.gateway.admission import Admission
    from fairlead.gateway.exchange import Exchange

BODY = "fairlead.body"  # in the scope of a request with a body: the `Body`
WINDOW = 10.0  # seconds of waiting for the client over which the speed of an upload is measured


class BodyRefused(Exception):
    """The request's body is not taken; the failure says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


class Body(Upload):
    """One body: counted as it comes, cut if it must be, and handed to the application."""

    __slots__ = (
        "_admission",
        "_asked_at",
        "_came",
        "_demanded",
        "_large",
        "_loop",
        "_paused",
        "_pile",
        "_pump",
        "_reader",
        "_receive",
        "_timer",
        "_unread",
        "_waits",
        "failure",
        "gone",
        "holds_slot",
        "keeps",
        "kept",
        "left",
        "limit",
        "whole",
    )

    def __init__(self, admission: Admission, exchange: Exchange, limit: int) -> None:
        self._loop = asyncio.get_running_loop()
        super().__init__(exchange.asker.who.key, self._loop.time())
        self._admission = admission
        self._receive = exchange.raw_receive
        self._pile = Pile()  # of bytes that were read and not handed on
        self._large = False  # the last piece: the next may be so too
        self._paused = False  # the server, since then
        self._unread = False  # by the application: something of the body, or its end, has come
        self._pump: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[Any] | None = None  # that waits for the client
        self._waits: Exchange | None = None  # for a slot
        self._timer: asyncio.TimerHandle | None = None
        self._asked_at: float | None = None  # since when the application waits for the client
        self._demanded = 0.0  # seconds for which it waited in this window before that
        self._came = 0  # bytes that came in this window
        self.limit = self.left = limit  # bytes that may come in all, and that still may
        self.whole = False  # its end has come
        self.gone = False  # the client has been seen to leave
        self.holds_slot = False
        self.failure: Failure | None = None  # why no more of it is taken
        # An application that may send the body again sets `keeps` before it receives.  Then `kept` is the whole body,
        # until `forget`, the end of the request, or until memory is short.
        self.keeps = False
        self.kept: bytes | None = None

    # Before the request has a slot

    async def read(self, most: float) -> None:
        """Read all of the body, or until `most` bytes of it are there."""
        while not (self.whole or self.gone) and self.limit - self.left < most:
            # No name for the message: while the next is awaited, no other would let go of this one.
            self._take(await self._next())
            self._check()

    def content(self) -> bytes:
        """Return the bytes that were read and not handed on."""
        return self._pile.read()

    def read_ahead(self, exchange: Exchange) -> None:
        """Read while the request waits."""
        self._waits = exchange
        if self._pump is None or self._pump.done():
            self._pump = self._loop.create_task(self._read_ahead(exchange))

    async def _read_ahead(self, exchange: Exchange) -> None:
        while exchange.state is WAITING and (self.whole or self._admission.held.spacious(self)):
            self._take(await self._ask())
            if self.gone:
                self._leave_queue()
            if self.gone or self.failure is not None:
                return

    def _take(self, message: Any) -> None:
        """Add a message to the bytes that were read; None adds nothing."""
        if message is None:
            return
        if message["type"] == "http.disconnect":
            self.gone = True
            return
        self._unread = True
        piece = message.get("body", b"")
        held = self._admission.held
        if piece:
            if self._too_long(piece):
                return
            if not self.holds_slot and not held.take(self, len(piece), self._loop.time()):
                return  # `cut` has said why
            if held.swelled():
                self._loop.call_soon(give_back)  # reading left holes in the heap
            self._pile.add(piece, last=not message.get("more_body", False))
            self._large = len(piece) > LARGE
        if not message.get("more_body", False):
            self.whole = True
            held.complete(self, self._loop.time())

    def _too_long(self, piece: bytes) -> bool:
        self.left -= len(piece)
        if self.left < 0:
            self.refuse(too_large(self.limit))
        return self.left < 0

    def admit(self) -> None:
        """Note that the request has a slot: its body is cut no more to make room, and has to come at a speed."""
        self.holds_slot = True
        self._waits = None
        self._admission.held.admit(self)

    # For the application

    async def receive(self) -> Any:
        """Hand the application the bytes that were read, then the rest as it comes."""
        if not self._unread and self._reads_ahead:
            await self._next()
        self._check()
        if self._unread:
            return self._hand_on()
        if self.gone:
            return {"type": "http.disconnect"}
        if self.whole:
            return await self._receive()  # only the news that the client has left is to come
        message = await self._next()
        if message["type"] == "http.disconnect":
            self.gone = True
            return message
        piece = message.get("body", b"")
        self._came += len(piece)
        if self._too_long(piece):
            self._check()
        if not message.get("more_body", False):
            self.whole = True
            self._stop_timer()
        return message

    def _hand_on(self) -> Any:
        content = self._pile.take()
        self._unread = False
        if self.keeps and self.whole:
            self.kept = content
            self._admission.held.keep(self)
        else:
            self._admission.held.release(self)
        return {"type": "http.request", "body": content, "more_body": not self.whole}

    def forget(self) -> None:
        """Keep no copy any more: the body will not be sent again."""
        self.kept = None
        self._admission.held.release(self)

    # Waiting for the client

    @property
    def _reads_ahead(self) -> bool:
        return self._pump is not None and not self._pump.done()

    async def _next(self) -> Any:
        """Wait for the next message; None if it came by reading ahead."""
        reader: asyncio.Task[Any] = asyncio.current_task(self._loop)  # type: ignore[assignment]
        before = reader.cancelling()
        self._reader = reader
        if self.holds_slot and not self.whole:
            self._measure()
        try:
            if self._pump is not None and not self._pump.done():
                await asyncio.wait([self._pump])  # one read is still out; it must not be lost
                return None
            return await self._ask()
        except asyncio.CancelledError:
            if self.failure is not None and reader.uncancel() <= before:
                raise BodyRefused(self.failure) from None
            raise
        finally:
            self._reader = None
            if self._asked_at is not None:
                self._demanded += self._loop.time() - self._asked_at
                self._asked_at = None

    async def _ask(self) -> Any:
        """Ask the server for a message; where the last was large, in turn with others.

        A server reads on when it is asked, and pauses after a large message that it had to wait for.  Before one that
        was there already it has begun to read the next: that has to be taken at once.
        """
        if not self._large or self.holds_slot:
            return await self._receive()
        if self._paused:
            await self._admission.turns.wait(self._loop)
        self._paused = False
        waited = self._loop.call_soon(self._note_wait)
        try:
            return await self._receive()
        finally:
            waited.cancel()

    def _note_wait(self) -> None:
        self._paused = True

    def _measure(self) -> None:
        if self._timer is None:
            if not self._admission.limits.slowest_upload:
                return
            self._start_window()
        self._asked_at = self._loop.time()

    def _start_window(self) -> None:
        self._demanded, self._came = 0.0, 0
        if self._asked_at is not None:
            self._asked_at = self._loop.time()
        self._timer = self._loop.call_later(WINDOW, self._look)

    def _look(self) -> None:
        """See how fast the upload was while the application waited for the client."""
        waited = self._demanded
        if self._asked_at is not None:
            waited += self._loop.time() - self._asked_at
        slowest = self._admission.limits.slowest_upload
        if waited < WINDOW * 0.99:  # the loop's clock is coarse
            again = max(WINDOW - waited, WINDOW / 10)
            self._timer = self._loop.call_later(again, self._look)
        elif self._came >= slowest * waited:
            self._start_window()
        else:
            self._timer = None
            self.refuse(too_slow(slowest))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Its end

    def refuse(self, failure: Failure) -> None:
        """Take no more of the body, hold nothing of it, and end the wait for it or for a slot."""
        if self.failure is None:
            self.failure = failure
        self._let_go()
        self._wake()

    def cut(self) -> None:
        bound = self._admission.held.bound
        self.refuse(no_room(bound))

    def drop(self) -> None:
        self.kept = None

    def close(self) -> None:
        """End with the request: no application will ask for more."""
        if self._reads_ahead:
            self._pump.cancel()  # type: ignore[union-attr]
        self._let_go()

    def _check(self) -> None:
        if self.failure is not None:
            raise BodyRefused(self.failure)

    def _let_go(self) -> None:
        self._stop_timer()
        self._pile.clear()
        self.kept, self._unread = None, False
        held = self._admission.held
        held.release(self)
        if held.ebbed():
            self._loop.call_soon(give_back)

    def _wake(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
        else:
            self._leave_queue()

    def _leave_queue(self) -> None:
        waits = self._waits
        if waits is not None and waits.state is WAITING:
            if self.failure is not None:
                waits.reason = MOVED  # the door counts the refusal, not the gate
            waits.pool_of_slots.runtime.withdraw([waits])
            waits.told()


def too_large(limit: int) -> Failure:
    """Refuse a body that is longer than allowed."""
    text = f"the request's body is longer than {limit} bytes, the most this gateway takes"
    return Failure(413, "body_too_large", text)


def too_slow(slowest: int) -> Failure:
    """Refuse a body that keeps a slot from others."""
    text = (
        f"the request has a slot, and its body came slower than {slowest} bytes/s for {WINDOW:g} s; "
        "send it faster"
    )
    return Failure(408, "body_too_slow", text)


def no_room(bound: int) -> Failure:
    """Refuse a body for which there is no memory."""
    text = (
        f"the bodies of requests that have no slot yet are at their bound ({bound} bytes together, a quarter of that "
        "for each client), and this was the slowest upload of the client with the most; try again"
    )
    return Failure(408, "held_bytes_exceeded", text, retry_after=1)
