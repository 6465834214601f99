"""One request on its way through the proxy: its body as it arrives, and whether client and backend are still there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]

LOOKS = 4  # at each call in the time for which its backend may be silent
# Of bodies that backends do not take yet.  A client is seen to leave only behind what it has sent, so a call may hold
# more than its own pieces while all together hold less than this.
PIECES = 8
MOST_HELD = 64 * 1024 * 1024
OVERHEAD = 64  # bytes that a piece takes beside its own


class Uploads:
    """How many bytes all calls of a proxy hold for backends that do not take them yet."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = 0


class Call:
    """One request on its way: its body as it arrives, and whether client and backend are still there."""

    __slots__ = (
        "_first",
        "_more",
        "_pieces",
        "_room",
        "_uploads",
        "backends_turn",
        "ending",
        "error",
        "gone",
        "looks",
        "number",
        "scope",
        "sent",
        "silent",
        "started_at",
        "task",
        "upstream",
    )

    def __init__(
        self, scope: Scope, message: Message, task: asyncio.Task[Any], uploads: Uploads
    ) -> None:
        self.scope = scope
        self.task = task
        self.upstream = ""
        self.number = 0  # of the try, as its fleet counts them
        self.gone = False
        self.backends_turn = True  # not the client's, to send on or to take what was sent
        self.looks = 0  # since the backend took or sent something
        self.silent = False  # the backend, for longer than it may
        self.sent = False  # of the answer's body, or its end
        self.error: Exception | None = None  # why there is no more to receive
        self.ending = False  # the last byte is on its way: leaving now is no news
        self.started_at = 0.0
        self._first: bytes = message.get("body", b"")
        self._more: bool = message.get("more_body", False)
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._room: asyncio.Future[None] | None = None  # awaited by who would hold more
        self._uploads = uploads

    def moved(self) -> None:
        """Note that the backend has taken or sent something, and that more is expected of it."""
        self.backends_turn = True
        self.looks = 0

    def look(self) -> None:
        """See whether the backend has been silent for too long."""
        if not self.backends_turn or self.gone or self.ending or self.silent:
            return
        self.looks += 1
        if self.looks > LOOKS:  # the first of them may have come just after a byte
            self.silent = True
            self.task.cancel()

    def data(self) -> Any:
        """Give the body in the form to send: whole if it has arrived, else piece by piece."""
        return self._stream() if self._more else self._first or None

    async def _stream(self) -> AsyncIterator[bytes]:
        piece: bytes | None = self._first
        while piece is not None:
            if piece:
                yield piece
            self.backends_turn = False
            piece = await self._pieces.get()
            if piece is not None:
                self._uploads.held -= len(piece) + OVERHEAD
            if self._room is not None and not self._room.done():
                self._room.set_result(None)
            self.moved()

    async def watch(self, receive: Receive) -> None:
        """Take in the rest of the body, then wait for the client to leave; end the call when it does."""
        try:
            await self._take_in(receive)
        except Exception as error:
            self.error = error
        if not (self.ending or self.silent):
            self.gone = True
            self.task.cancel()

    async def _take_in(self, receive: Receive) -> None:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            if message.get("body"):
                self._pieces.put_nowait(message["body"])
                self._uploads.held += len(message["body"]) + OVERHEAD
            if not message.get("more_body", False):
                self._pieces.put_nowait(None)
            while self._pieces.qsize() > PIECES and self._uploads.held > MOST_HELD:
                self._room = asyncio.get_running_loop().create_future()
                await self._room

    def close(self) -> None:
        """Hold nothing any more: the call is over."""
        while not self._pieces.empty():
            piece = self._pieces.get_nowait()
            if piece is not None:
                self._uploads.held -= len(piece) + OVERHEAD
