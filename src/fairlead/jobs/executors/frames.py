"""Frames on a socket between two processes: four bytes of length, and so many bytes of UTF-8."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import BinaryIO


def framed(text: str) -> bytes:
    """Return a text as a frame."""
    data = text.encode()
    return len(data).to_bytes(4, "big") + data


def receive(stream: BinaryIO) -> str | None:
    """Read one frame; None at the end of the stream, also where that is in the middle of a frame."""
    try:
        if len(size := stream.read(4)) < 4:
            return None
        data = stream.read(length := int.from_bytes(size, "big"))
    except OSError:
        return None
    return data.decode() if len(data) == length else None
