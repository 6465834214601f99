"""Dead letters in a local file, a line of JSON each: where a record goes when its dead-letter topic does not take it.

A line is on the disk, or not in the file at all, when its future ends.  Files are written by a thread of their own,
because a disk may take its time.  Several processes may append to one file.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import json
import os
import stat
import threading
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairlead.streams.broker import Message


class LetterFiles:
    """Append lines to files; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._lines: SimpleQueue[tuple[str, bytes, Future[None]] | None] = SimpleQueue()

    def write(self, path: str, line: bytes) -> Future[None]:
        """Append a line; the future ends when it is on the disk, or with `OSError`."""
        written: Future[None] = Future()
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="fairlead-letters", daemon=True
                )
                self._thread.start()
        self._lines.put((path, line, written))
        return written

    def _serve(self) -> None:
        while (given := self._lines.get()) is not None:
            path, line, written = given
            try:
                append(path, line)
            except Exception as error:
                written.set_exception(error)
            else:
                written.set_result(None)

    def close(self, timeout: float) -> None:
        """End the thread after what was given by now."""
        if self._thread is not None:
            self._lines.put(None)
            self._thread.join(timeout)


def append(path: str, line: bytes) -> None:
    """Append a line and wait until it is on the disk; after an error the file is as it was."""
    place = Path(path).absolute()
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = not place.exists()
    # Non-blocking: to open a pipe that nobody reads would wait for ever.
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(place, flags, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        fcntl.flock(file, fcntl.LOCK_EX)
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            line = b"\n" + line  # after a line that a crash cut off
        try:
            left = memoryview(line)
            while left:
                left = left[os.write(file, left) :]
            os.fsync(file)
        except OSError:
            os.ftruncate(file, size)
            raise
    finally:
        os.close(file)
    if new:
        folder = os.open(place.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def line_of(message: Message, *, time: float, **more: str) -> bytes:
    """Write a record as a line of JSON; `more` says why it is here."""
    record = {
        "time": datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds"),
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp,
        "key": shown(message.key),
        "value": shown(message.value),
        "headers": [[name, shown(value)] for name, value in message.headers],
        **more,
    }
    return json.dumps(record).encode() + b"\n"


def shown(data: bytes | str | None) -> Any:
    """Return bytes as text where they are UTF-8, else as `{"base64": ...}`."""
    if data is None or isinstance(data, str):
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def read(shown: Any) -> bytes | None:
    """Return the bytes that `shown` has written."""
    if isinstance(shown, dict):
        return base64.b64decode(shown["base64"])
    return None if shown is None else str(shown).encode()
