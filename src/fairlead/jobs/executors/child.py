"""The other end of `processes.py`: a process that makes one call after another, and dies with its parent.

A call comes as a frame of JSON (see `calls.py`); the answer is "+" and the result, or "-" and the error.
"""

from __future__ import annotations

import contextvars
import os
import signal
import socket
import sys
import threading
from queue import SimpleQueue

from fairlead.jobs.executors.calls import perform
from fairlead.jobs.executors.frames import framed, receive


def main(fd: int) -> None:
    """Serve calls that come through a socket until its other end is closed."""
    sys.argv[:] = ["fairlead-job"]
    os.set_inheritable(fd, False)  # what a job starts must not hold the line open
    line = _Line(socket.socket(fileno=fd))
    threading.Thread(target=line.listen, name="fairlead-parent", daemon=True).start()
    while (message := line.calls.get()) is not None:
        returned, text = contextvars.copy_context().run(perform, message)
        line.answer(("+" if returned else "-") + text)


class _Line:
    def __init__(self, connection: socket.socket) -> None:
        self.calls: SimpleQueue[str | None] = SimpleQueue()
        self._connection = connection
        self._stream = connection.makefile("rb")
        self._busy = False

    def listen(self) -> None:
        """Take calls; on a thread, so that the end of the parent is noticed while a call runs."""
        while (message := receive(self._stream)) is not None:
            self._busy = True
            self.calls.put(message)
        if self._busy:
            # The parent is gone, and with it everybody who would have heard of the result.  With us go our children.
            os.killpg(os.getpgrp(), signal.SIGKILL)
        self.calls.put(None)

    def answer(self, text: str) -> None:
        """Tell how a call ended."""
        self._busy = False
        self._connection.sendall(framed(text))
