"""One request on its way through the proxy: its body as it arrives, and whether client and backend are still there."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from fairlead.gateway.client import Connection

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]

LOOKS = 4  # at each call in the time for which its backend may be silent
# Of bodies that backends do not take yet.  A client is seen to leave only behind what it has sent, so a call may hold
# more than its own pieces while all together hold less than this.
PIECES = 8
MOST_HELD = 64 * 1024 * 1024
OVERHEAD = 64  # bytes that a piece takes beside its own
SMALL = 64 * 1024  # bytes of a body that is written together with its head
LAST_CHUNK = b"0\r\n\r\n"
BODY_EXPECTED = frozenset({"PATCH", "POST", "PUT"})


class Uploads:
    """How many bytes all calls of a proxy hold for backends that do not take them yet."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = 0


class Call:
    """One request on its way: its body as it arrives, and whether client and backend are still there."""

    __slots__ = (
        "_arrived",
        "_connection",
        "_left",
        "_pieces",
        "_room",
        "_unsent",
        "_uploads",
        "_whole",
        "attempts",
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
        "waits",
    )

    def __init__(
        self, scope: Scope, message: Message, task: asyncio.Task[Any], uploads: Uploads
    ) -> None:
        self.scope = scope
        self.task = task
        self.upstream = ""
        self.number = 0  # of the try, as its fleet counts them
        self.attempts = 0  # tries that failed after a byte was sent
        self.gone = False
        self.waits = False  # for the backend, not for the client to take what was sent
        self.looks = 0  # since the backend took or sent something
        self.silent = False  # the backend, for longer than it may
        self.sent = False  # of the answer's body, or its end
        self.error: Exception | None = None  # why there is no more to receive
        self.ending = False  # the last byte is on its way: leaving now is no news
        self.started_at = 0.0
        body: bytes = message.get("body", b"")
        self._arrived: bool = not message.get("more_body", False)  # all of the body
        self._whole = body if self._arrived else None
        self._left: int | None = None  # bytes of the body to be written; None: it goes in chunks
        self._pieces: deque[bytes] = deque()  # not taken by the backend yet
        self._room: asyncio.Future[None] | None = None  # awaited by who would hold more
        self._uploads = uploads
        self._connection: Connection | None = None
        self._unsent = 0  # bytes at the last look
        if not self._arrived and body:
            self._hold(body)

    # Time

    def moved(self) -> None:
        """Note that the backend has taken or sent something, and that more is expected of it."""
        self.waits = True
        self.looks = 0

    def look(self) -> None:
        """See whether the backend has been silent for too long."""
        if not self.waits or self.gone or self.ending or self.silent:
            return
        if not (self._arrived or self._pieces):
            self.looks = 0  # it may be waiting for the client's body, as this call is
            return
        if self._connection is not None:
            before, self._unsent = self._unsent, self._connection.unsent
            if self._unsent < before:
                self.looks = 0
        self.looks += 1
        if self.looks > LOOKS:  # the first of them may have come just after a byte
            self.silent = True
            self.task.cancel()

    # The body

    def framing(self, length: int | None) -> tuple[bytes, bytes] | None:
        """Return the field that says where the body ends, given the length that the client announced."""
        if self._whole is not None:
            if self._whole or length is not None or self.scope["method"] in BODY_EXPECTED:
                return (b"content-length", b"%d" % len(self._whole))
            return None
        self._left = length
        if length is None:
            return (b"transfer-encoding", b"chunked")
        return (b"content-length", b"%d" % length)

    @property
    def whole(self) -> bool:
        """Whether the body is in hand, and can be written again."""
        return self._whole is not None

    def ask(self, connection: Connection, head: bytes) -> None:
        """Write the request, as far as it has arrived; the rest follows by itself."""
        self._connection = connection
        self._unsent = 0
        self.moved()
        whole = self._whole
        if whole is None:
            connection.write(head)
            connection.on_room = self._pass_on
            self._pass_on()
            return
        if len(whole) <= SMALL:
            connection.write(head + whole if whole else head)
        else:
            connection.write(head)
            connection.write(whole)
        connection.asked = True

    def _pass_on(self) -> None:
        """Write what the backend takes of what the client has sent."""
        connection, pieces = self._connection, self._pieces
        if connection is None or not connection.takes:
            return
        while pieces and connection.takes:
            piece = pieces.popleft()
            self._uploads.held -= len(piece) + OVERHEAD
            self.looks = 0
            if self._left is None:
                piece = b"%x\r\n%b\r\n" % (len(piece), piece)
            else:
                self._left -= len(piece)
                if self._left < 0:
                    break
            connection.write(piece)
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        if self._arrived and not pieces and not connection.asked:
            if self._left is None:
                connection.write(LAST_CHUNK)
            connection.asked = True
        if self._left is not None and (self._left < 0 or (connection.asked and self._left)):
            connection.fail("the body is not as long as its head says")

    def _hold(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._uploads.held += len(piece) + OVERHEAD

    # The client

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
            if self._arrived:
                continue
            if message.get("body"):
                self._hold(message["body"])
            self._arrived = not message.get("more_body", False)
            self._pass_on()
            while len(self._pieces) > PIECES and self._uploads.held > MOST_HELD:
                self._room = asyncio.get_running_loop().create_future()
                await self._room

    def close(self) -> None:
        """Hold nothing any more: the call is over."""
        while self._pieces:
            self._uploads.held -= len(self._pieces.popleft()) + OVERHEAD
        self._connection = None
