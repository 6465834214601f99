"""The bytes of one body as they come in, and turns for those that bring many.

Large bodies lie outside of C's heap, where a flood of them would leave holes that nothing else fits in: what was held
for them goes back to the system as soon as they are gone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from mmap import mmap

SMALL = 16 * 1024  # bytes of a body that are worth no map
LARGE = 64 * 1024  # bytes of one read, from which on the next is in turn with others
CHUNK = 256 * 1024
AT_ONCE = 32  # large reads in one round of the loop: each may bring 256 KiB, and the others wait for the loop


class Pile:
    """Bytes that were read and not handed on."""

    __slots__ = ("_maps", "_room", "_start", "size")

    def __init__(self) -> None:
        self.size = 0
        self._start: bytes | bytearray = b""
        self._maps: list[mmap | bytearray] = []
        self._room = 0  # in the last map

    def add(self, piece: bytes, *, last: bool) -> None:
        """Put a piece on top."""
        if not self.size and (last or len(piece) <= SMALL):
            self._start = bytes(piece)
        elif not self._maps and self.size + len(piece) <= SMALL:
            if not isinstance(self._start, bytearray):
                self._start = bytearray(self._start)
            self._start += piece
        else:
            self._map(piece)
        self.size += len(piece)

    def _map(self, piece: bytes) -> None:
        with memoryview(piece) as view:
            begin = 0
            while begin < len(view):
                if not self._room:
                    self._maps.append(_chunk())
                    self._room = CHUNK
                end = min(len(view), begin + self._room)
                place = CHUNK - self._room
                self._maps[-1][place : place + end - begin] = view[begin:end]
                self._room -= end - begin
                begin = end

    def take(self) -> bytes:
        """Return all of it, and hold nothing any more."""
        content = self.read()
        self.clear()
        return content

    def read(self) -> bytes:
        """Return all of it, which is in one piece from now on."""
        if self._maps or not isinstance(self._start, bytes):
            parts: list[bytes | bytearray | mmap] = [self._start, *self._maps[:-1]]
            if self._maps:
                parts.append(self._maps[-1][: CHUNK - self._room])
            content = b"".join(parts)
            self.clear()
            self._start, self.size = content, len(content)
        return self._start

    def clear(self) -> None:
        """Hold nothing any more."""
        for one in self._maps:
            if isinstance(one, mmap):
                one.close()
        self._maps.clear()
        self._start, self.size, self._room = b"", 0, 0


def _chunk() -> mmap | bytearray:
    try:
        return mmap(-1, CHUNK)
    except OSError:  # a process may have only so many maps
        return bytearray(CHUNK)


class Turns:
    """Let so many go on in each round of the loop, in the order in which they ask."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._runs = False

    async def wait(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for a turn."""
        turn = loop.create_future()
        self._waiting.append(turn)
        if not self._runs:
            self._runs = True
            loop.call_soon(self._round, loop)
        await turn

    def _round(self, loop: asyncio.AbstractEventLoop) -> None:
        for _ in range(min(AT_ONCE, len(self._waiting))):
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
        if self._waiting:
            loop.call_soon(self._round, loop)
        else:
            self._runs = False
