"""What a listener reads at a time: bounded for each connection, and for all that no app has taken yet.

Each connection is read once in a round of the loop: 256 KiB of a body whose length is known, else 16 KiB, since in
256 KiB of the smallest chunks there is a quarter of a second of parsing.  A thousand uploads still bring 256 MiB in one
round, before any app can count a byte.  So where much is not taken yet each read is small, and a connection whose last
bytes are not taken is not read at all.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from uvicorn.protocols.http.flow_control import FlowControl

if TYPE_CHECKING:
    from fairlead.serving.protocol import LimitedProtocol

LARGEST_READ = 256 * 1024
USUAL_READ = 16 * 1024
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

    def room(self, most: int) -> memoryview:
        """Return the room for one read."""
        return self._buffer[: max(SMALLEST_READ, min(most, MUCH - self.untaken))]


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
    """Hand a connection's bytes to its protocol, one read in each round of the loop."""

    def __init__(self, protocol: LimitedProtocol, intake: Intake) -> None:
        self._protocol = protocol
        self._intake = intake
        self.connection_made = protocol.connection_made  # type: ignore[method-assign,assignment]
        self.connection_lost = protocol.connection_lost  # type: ignore[method-assign]
        self.eof_received = protocol.eof_received  # type: ignore[method-assign]
        self.pause_writing = protocol.pause_writing  # type: ignore[method-assign]
        self.resume_writing = protocol.resume_writing  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the room for the next read."""
        most = LARGEST_READ if self._protocol.receives_sized_body else USUAL_READ
        self._room = self._intake.room(most)
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on what was read."""
        protocol, room = self._protocol, self._room
        protocol.data_received(bytes(room[:nbytes]))
        if nbytes == len(room) and not protocol.transport.is_closing():
            # There is more: an event loop may go on reading for as long as a read is full.
            protocol.transport.pause_reading()
            protocol.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        protocol = self._protocol
        if not (protocol.flow.read_paused or protocol.transport.is_closing()):
            protocol.transport.resume_reading()


def reads_into_room() -> bool:
    """Return whether a read ends in the round of the loop in which its room was asked for: not so on Windows."""
    return sys.platform != "win32"
