"""The bytes of bodies that came to a listener and that no app has taken yet: bounded for any number of connections.

A connection is read 256 KiB at a time, so that a thousand uploads bring 256 MiB in one round of the loop, before any
app can count a byte.  Where much is not taken yet each read is small, and a connection whose last bytes are not taken
is not read at all.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from uvicorn.protocols.http.flow_control import FlowControl

if TYPE_CHECKING:
    from fairlead.serving.protocol import LimitedProtocol

LARGEST_READ = 256 * 1024
SMALLEST_READ = 4 * 1024
MUCH = 4 * 1024 * 1024  # bytes that no app has taken, from which on reads are smallest


class Intake:
    """What the connections of one listener have brought and no app has taken."""

    __slots__ = ("_buffer", "untaken")

    def __init__(self) -> None:
        self.untaken = 0
        self._buffer = memoryview(bytearray(LARGEST_READ))  # a read ends before another begins

    @property
    def full(self) -> bool:
        """Whether a connection whose last bytes are not taken has to wait."""
        return self.untaken >= MUCH

    def room(self) -> memoryview:
        """Return the room for one read."""
        return self._buffer[: max(SMALLEST_READ, min(LARGEST_READ, MUCH - self.untaken))]


class Flow(FlowControl):
    """Stop and start the reading of a connection, and count what it brought until an app takes it."""

    def __init__(self, transport: asyncio.Transport, intake: Intake) -> None:
        super().__init__(transport)
        self._intake = intake
        self._untaken = 0

    def came(self, size: int) -> None:
        """Count bytes of a body."""
        self._untaken += size
        self._intake.untaken += size
        if self._intake.full:
            self.pause_reading()

    def resume_reading(self) -> None:
        """Read on: an app asks for the next bytes, and takes those that are there."""
        self.taken()
        super().resume_reading()

    def taken(self) -> None:
        """Count nothing of this connection any more."""
        self._intake.untaken -= self._untaken
        self._untaken = 0


class Inlet(asyncio.BufferedProtocol):
    """Hand a connection's bytes to its protocol, in reads that the listener has room for."""

    def __init__(self, protocol: LimitedProtocol, intake: Intake) -> None:
        self._intake = intake
        self._data_received = protocol.data_received
        self.connection_made = protocol.connection_made  # type: ignore[method-assign,assignment]
        self.connection_lost = protocol.connection_lost  # type: ignore[method-assign]
        self.eof_received = protocol.eof_received  # type: ignore[method-assign]
        self.pause_writing = protocol.pause_writing  # type: ignore[method-assign]
        self.resume_writing = protocol.resume_writing  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the room for the next read."""
        self._room = self._intake.room()
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on what was read."""
        self._data_received(bytes(self._room[:nbytes]))


def reads_into_room() -> bool:
    """Return whether a read ends in the round of the loop in which its room was asked for: not so on Windows."""
    return sys.platform != "win32"
