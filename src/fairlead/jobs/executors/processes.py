"""Calls in processes of our own, one at a time in each: what a call does to its process it does to itself alone.

A process is started when it is first needed (by executing Python anew, never by forking this process and its threads)
and used again as long as it lives.  It is a group of its own: stopping a call is SIGTERM, then SIGKILL, to the process
and everything it started.  Whatever ends it otherwise (`os._exit`, a segmentation fault, the kernel short of memory) is
a crash of the one call it ran.  It ends itself when its parent is gone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

from fairlead.errors import ConfigError
from fairlead.jobs.executors.base import Crashed, Lost, Raised, Returned, Stopped
from fairlead.jobs.executors.calls import message_of
from fairlead.jobs.payload import error_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlead.jobs.executors.base import Call, Outcome
    from fairlead.jobs.registry import Task

    Instead = Callable[[Any, str], None]

KILL_AFTER = 1.0  # seconds from SIGTERM to SIGKILL
GOODBYE = 1.0  # seconds that idle processes get to end when the runner closes
LAST_WORDS = 0.2  # seconds that the answer of a process which has ended may take to be read

BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from fairlead.jobs.executors.child import main; main(int(sys.argv[2]))"
)

log = logging.getLogger("fairlead.jobs")


class ProcessRunner:
    """Runs every call in a process, at most `slots` at once; coroutine functions get a loop there."""

    def __init__(
        self, slots: int, *, app: str | None = None, instead: Instead | None = None
    ) -> None:
        self.slots = slots
        self._app = app
        self._instead = instead  # runs a call that raised here; without it the call ends so
        self._idle: list[Child] = []
        self._children: set[Child] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._queue: deque[Call] = (
            deque()
        )  # calls for which there is no process yet; their clocks stand still

    async def start(self) -> None:
        """Check that processes can be started; none is yet."""
        if os.name != "posix":
            raise ConfigError("executors of kind processes need Linux or macOS; use threads here")
        if not sys.executable:
            raise ConfigError("executors of kind processes need sys.executable to name a Python")

    def finds(self, task: Task) -> bool:
        """Whether another process can find a task's function without running the script that this process runs."""
        return self._app is not None or (
            getattr(task.fn, "__module__", None) not in (None, "__main__")
            and "<" not in getattr(task.fn, "__qualname__", "<")
        )

    def run(self, call: Call) -> None:
        """Begin a call in a process that has nothing to do, or a new one."""
        call.seat = None
        self._queue.append(call)
        self._begin()

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        while self._queue and len(self._tasks) < self.slots:
            call = self._queue.popleft()
            call.arm()
            task = loop.create_task(self._call(call), name="fairlead-process")
            self._tasks.add(task)
            task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._begin()

    def cancel(self, call: Call) -> None:
        """Kill the process that runs a call."""
        if call.seat is not None:
            call.seat.kill()
        elif call in self._queue:
            self._queue.remove(call)
            call.end(Stopped())

    def sever(self) -> None:
        """Kill what runs a call, from any thread."""
        for child in list(self._children):
            if child.busy:
                child.signal(signal.SIGKILL)

    async def close(self) -> None:
        """End every process."""
        waiting, self._queue = self._queue, deque()
        for call in waiting:
            call.end(Stopped())
        for child in list(self._children):
            if child.busy:
                child.signal(signal.SIGKILL)
            else:
                child.writer.close()
        ends = [asyncio.ensure_future(child.wait()) for child in list(self._children)]
        if ends:
            await asyncio.wait(ends, timeout=GOODBYE)
            for child in list(self._children):
                child.signal(signal.SIGKILL)
            await asyncio.gather(*ends)
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        self._idle.clear()

    async def _call(self, call: Call) -> None:
        outcome: Outcome = Stopped()
        try:
            if not call.stopping:
                outcome = await self._outcome_of(call)
        except OSError as error:
            # This host is short of something: that is not the job's doing.
            outcome = Lost(f"no process could be started: {error}")
        except Exception as error:
            outcome = Raised(error_of(error))
        if self._instead is not None and isinstance(outcome, Raised) and not call.stopping:
            self._instead(call, outcome.error)
        else:
            call.end(outcome)

    async def _outcome_of(self, call: Call) -> Outcome:
        child = self._idle.pop() if self._idle else await self._spawn()
        child.busy = True
        call.seat = child
        # It may have been stopped while its process was started.
        answer = None if call.stopping else await child.ask(message_of(call, self._app))
        if answer is None and not (call.stopping and child.alive):
            await child.wait()
            child.writer.close()
            return Stopped() if call.stopping else Crashed(child.death)
        child.busy = False
        if child.killed:
            await child.wait()
        else:
            self._idle.append(child)
        if answer is None:
            return Stopped()
        return Returned(answer[1:]) if answer[0] == "+" else Raised(answer[1:])

    async def _spawn(self) -> Child:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-c",
                    BOOT,
                    json.dumps(sys.path),
                    str(theirs.fileno()),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            reader, writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        child = Child(process, reader, writer, self._forget)
        self._children.add(child)
        return child

    def _forget(self, child: Child) -> None:
        self._children.discard(child)
        if child in self._idle:
            self._idle.remove(child)


class Child:
    """A process, and the line to it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_end: Callable[[Child], None],
    ) -> None:
        self.process = process
        self.reader = reader
        self.writer = writer
        self.busy = True
        self.killed = False
        self._on_end = on_end
        self._end = asyncio.ensure_future(self._watch())

    @property
    def alive(self) -> bool:
        """Whether it runs, and nobody has killed it."""
        return not self.killed and not self._end.done()

    @property
    def death(self) -> str:
        """How it ended."""
        code = self.process.returncode
        if code is None:
            return "its process closed the line"
        if code >= 0:
            return f"its process ended with exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"its process was killed by {name}"

    async def ask(self, message: str) -> str | None:
        """Send a call and wait for its answer; None if the process ended first."""
        data = message.encode()
        self.writer.write(len(data).to_bytes(4, "big") + data)
        answer = asyncio.ensure_future(self._read())
        try:
            await asyncio.wait({answer, self._end}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                # Something that the process started may hold the line open; what it said itself is there already.
                await asyncio.wait({answer}, timeout=LAST_WORDS)
            if answer.done() and (said := answer.result()) is not None:
                return said
            self.signal(signal.SIGKILL)
            return None
        finally:
            answer.cancel()

    def kill(self) -> None:
        """Have it end: ask, then force."""
        if self.killed:
            return
        self.killed = True
        self.signal(signal.SIGTERM)
        asyncio.get_running_loop().call_later(KILL_AFTER, self.signal, signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send a signal to it and everything it started, from any thread."""
        if self.process.returncode is None or number == signal.SIGKILL:
            try:
                os.killpg(self.process.pid, number)
            except (ProcessLookupError, PermissionError):
                pass

    async def wait(self) -> None:
        """Wait until it has ended."""
        await asyncio.shield(self._end)

    async def _read(self) -> str | None:
        try:
            size = await self.reader.readexactly(4)
            return (await self.reader.readexactly(int.from_bytes(size, "big"))).decode()
        except (asyncio.IncompleteReadError, OSError):
            return None

    async def _watch(self) -> None:
        await self.process.wait()
        self._on_end(self)
        if not self.busy:  # else its last words may be unread
            self.writer.close()
