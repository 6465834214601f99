"""The process that is connected to a Ray cluster; the other end of `ray.py`.  It dies with its parent.

Ray's core ends its process when the head of the cluster has been away for a minute.  So nothing else lives in this
process, and its parent starts another.  Frames (see `frames.py`) are JSON arrays.  From the parent come a description
of the executor first, then `["run", number, message]`, `["kill", number]` and `["sever"]`.  To the parent go
`["ready", cpus, address]`, `["refused", why]` (trying again is no use), `["away", why]`, `["back"]`, `["gone", why]`
(the last frame: this process ends) and `["end", number, how, text]`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fairlead.jobs.executors.cluster import LOST, RayCluster, Unusable, ending_of
from fairlead.jobs.executors.frames import framed, receive
from fairlead.jobs.executors.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlead.jobs.executors.cluster import Cluster

LOOK = 0.5  # seconds between looks at the head
GOODBYE = 4.0  # seconds that Ray gets to end


def main(fd: int, cluster_of: Callable[[dict[str, Any]], Cluster] | None = None) -> None:
    """Serve the parent until the line or the cluster is gone."""
    os.set_inheritable(fd, False)  # what Ray starts must not hold the line open
    connection = socket.socket(fileno=fd)
    stream = connection.makefile("rb")
    described = receive(stream)
    if described is not None:
        spec = json.loads(described)
        sys.argv[:] = [spec["script"]]
        Driver(connection, stream, (cluster_of or RayCluster)(spec)).serve()
    end()


def end() -> None:
    """End this process, and whatever it started."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def ignore_sigterm() -> None:
    """Ignore the signal: a service manager sends it to every process, and the parent decides when this one ends."""
    signal.signal(signal.SIGTERM, lambda *_: None)


class Driver:
    """Hands calls from the parent to the cluster, and their ends back."""

    def __init__(self, connection: socket.socket, stream: Any, cluster: Cluster) -> None:
        self._connection = connection
        self._stream = stream
        self._cluster = cluster
        self._sending = threading.Lock()
        self._seats: dict[int, _Seat] = {}
        self._threads = Threads("fairlead-ray")
        self._left = threading.Event()  # the parent has closed the line, or is dead

    def serve(self) -> None:
        """Connect, and watch the head, until the line or the cluster is gone."""
        threading.Thread(target=self._listen, name="fairlead-parent", daemon=True).start()
        ignore_sigterm()
        if self._connect():
            self._watch()
        if self._left.is_set():
            threading.Timer(GOODBYE, end).start()
            for seat in list(self._seats.values()):
                self._kill(seat)
            self._cluster.close()

    def _connect(self) -> bool:
        try:
            self._cluster.prepare()
            said: str | None = None
            while (why := self._cluster.unreachable()) is not None:
                if why != said:
                    self._send("away", why)
                    said = why
                if self._left.wait(LOOK):
                    return False
            ready = self._cluster.connect()
            ignore_sigterm()  # Ray has its own idea of it
            self._send("ready", *ready)
        except Unusable as error:
            self._send("refused", str(error))
            return False
        except Exception as error:
            self._send("gone", f"{type(error).__name__}: {error}".partition("\n")[0])
            return False
        return True

    def _watch(self) -> None:
        away = False
        while not self._left.wait(LOOK):
            why = self._cluster.unreachable()
            if (gone := self._cluster.gone()) is not None:
                self._send("gone", gone)
                return
            if why is not None and not away:
                self._send("away", why)
            elif why is None and away:
                self._send("back")
            away = why is not None

    def _listen(self) -> None:
        """Take frames; on a thread, so that the end of the parent is noticed while Ray keeps the others waiting."""
        while (text := receive(self._stream)) is not None:
            verb, *rest = json.loads(text)
            if verb == "run":
                number, message = rest
                seat = self._seats[number] = _Seat(number)
                self._threads.submit(lambda seat=seat, message=message: self._run(seat, message))  # type: ignore[misc]
            else:
                named = [self._seats.get(number) for number in rest] or list(self._seats.values())
                for one in named:
                    if one is not None:
                        self._threads.submit(lambda seat=one: self._kill(seat))  # type: ignore[misc]
        self._left.set()
        # Ray may keep the main thread waiting for a head that is away.
        timer = threading.Timer(GOODBYE, end)
        timer.daemon = True
        timer.start()

    def _run(self, seat: _Seat, message: str) -> None:
        def done(how: str, text: str) -> None:
            self._seats.pop(seat.number, None)
            self._send("end", seat.number, how, text)

        with seat.lock:
            if seat.killed:
                done(LOST, "it was told to stop before it began")
                return
            try:
                seat.reference = self._cluster.submit(message, done)
            except Exception as error:
                done(*ending_of(error))

    def _kill(self, seat: _Seat) -> None:
        seat.killed = True
        with seat.lock:
            if seat.reference is None:
                return
        with suppress(Exception):  # the parent insists
            self._cluster.kill(seat.reference)

    def _send(self, *frame: Any) -> None:
        with self._sending:
            try:
                self._connection.sendall(framed(json.dumps(frame)))
            except OSError:
                pass  # the parent is gone, as the listener hears too


class _Seat:
    """What is known of a call."""

    __slots__ = ("killed", "lock", "number", "reference")

    def __init__(self, number: int) -> None:
        self.number = number
        self.killed = False
        self.lock = threading.Lock()
        self.reference: Any = None
