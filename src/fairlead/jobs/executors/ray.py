"""Calls on a Ray cluster: bounded by our slots, killed for real, and nothing of ours pickled but text.

What is sent is JSON, and the one function that Ray knows lives in this package, so Fairlead and the modules of the
tasks must be importable on the cluster.  Ray's own retries are off: a worker process that dies is a crash of the job it
ran, and what follows is decided where everything else is.  Without an address (in the options or in RAY_ADDRESS) a
small cluster is started on this machine and ended with the runner; with one a running cluster is used.

Ray is never imported here.  The connection lives in a process of its own (`driver.py`), which is started again whenever
it ends.  While the cluster is away, calls wait here and no clock of theirs runs; calls that were lost with the
connection end as `Lost`, at once, and the jobs are handed back.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from fairlead.errors import ConfigError
from fairlead.jobs.executors.base import Crashed, Lost, Raised, Returned, Stopped
from fairlead.jobs.executors.calls import message_of
from fairlead.jobs.executors.cluster import CRASHED, RAISED, RETURNED
from fairlead.jobs.executors.cluster import LOST as GONE
from fairlead.jobs.executors.frames import framed, receive
from fairlead.jobs.executors.threads import tell
from fairlead.jobs.payload import error_of
from fairlead.jobs.wording import moment, roughly

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairlead.jobs.executors.base import Call, ExecutorSpec, Outcome

ADDRESS = "RAY_ADDRESS"
LOCAL = "local"
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 2.0  # seconds before the driver is started again
GOODBYE = 5.0  # seconds that the driver gets to end

BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from fairlead.jobs.executors.driver import main; main(int(sys.argv[2]))"
)

log = logging.getLogger("fairlead.jobs")


class RayRunner:
    """Runs every call as a Ray task; `boot` is the Python code of the driver's process."""

    def __init__(self, spec: ExecutorSpec, *, app: str | None = None, boot: str = BOOT) -> None:
        self.slots = spec.slots or 0
        options = dict(spec.options)
        self._name = spec.name
        self._app = app
        self._boot = boot
        self._address: str = options.pop("address", None) or os.environ.get(ADDRESS) or LOCAL
        self._described = {
            "script": sys.argv[0],
            "slots": self.slots,
            "address": self._address,
            "options": options,
        }
        self._calls: dict[int, Call] = {}  # in the order they came
        self._sent: set[int] = set()  # those that Ray has
        self._numbers = 0
        self._driver: _DriverProcess | None = None
        self._usable = False
        self._away_since: float | None = None
        self._why = ""
        self.address: str | None = None  # of the head that was connected to last
        self._closing = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    @property
    def trouble(self) -> str | None:
        """Why calls wait, if the cluster is away; None if it is not."""
        if self._away_since is None:
            return None
        return f"{self._cluster} is away since {moment(self._away_since)} ({self._why})"

    @property
    def driver_pid(self) -> int | None:
        """The number of the driver's process, if there is one."""
        return None if self._driver is None else self._driver.pid

    @property
    def _cluster(self) -> str:
        return "its Ray cluster" + ("" if self._address == LOCAL else f" at {self._address}")

    async def start(self) -> None:
        """Connect to the cluster, or start one; that takes seconds.

        A cluster that is away is waited for later, if the number of slots is known without it.
        """
        if os.name != "posix" or not sys.executable:
            raise ConfigError("executors of kind ray need Linux or macOS, and a sys.executable")
        self._loop = asyncio.get_running_loop()
        self._first: asyncio.Future[None] = self._loop.create_future()
        self._keeping = self._loop.create_task(self._keep(), name="fairlead-ray")
        await asyncio.shield(self._first)

    def run(self, call: Call) -> None:
        """Begin a call as a Ray task; while the cluster is away it waits."""
        self._numbers += 1
        call.seat = self._numbers
        self._calls[call.seat] = call
        if self._usable:
            self._submit(call)

    def cancel(self, call: Call) -> None:
        """Kill the worker process that runs a call."""
        if call.seat in self._sent:
            self._tell("kill", call.seat)
        elif call.seat in self._calls:
            self._end(call, Stopped())

    def sever(self) -> None:
        """Kill what runs, from any thread."""
        self._tell("sever")

    async def close(self) -> None:
        """Kill what runs, and end the cluster if it is ours."""
        if self._keeping is None:
            return
        self._closing.set()
        if self._driver is not None:
            self._driver.close()
        await self._keeping
        for call in list(self._calls.values()):
            self._end(call, Stopped())

    # The driver

    async def _keep(self) -> None:
        """Start the driver, and start it again whenever it has ended."""
        pause = FIRST_PAUSE
        while not self._closing.is_set():
            self._driver = driver = _DriverProcess(self._boot, self._loop, self._heard)
            driver.send(self._described)
            died = await driver.ended
            if self._usable:
                pause = FIRST_PAUSE
            self._over(died)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._closing.wait()
            pause = min(2 * pause, LONGEST_PAUSE)

    def _tell(self, *frame: Any) -> None:
        driver = self._driver
        if driver is not None:
            driver.send(frame)

    def _heard(self, driver: _DriverProcess, frame: list[Any]) -> None:
        if driver is not self._driver:
            return
        verb, *rest = frame
        if verb == "end":
            self._ended(*rest)
        elif verb == "ready":
            self._connected(*rest)
        elif verb == "back":
            self._back()
        elif verb == "gone":
            self._why = rest[0]
        elif verb == "away":
            self._away(rest[0])
        elif verb == "refused":
            self._why = rest[0]
            self._refuse(rest[0])

    def _refuse(self, why: str) -> None:
        """End the start with an error; later, a cluster that refuses us is away."""
        if self._first.done():
            return
        at = "" if self._address == LOCAL else f" at {self._address!r}"
        said = why if why.startswith(("needs ", "has ")) else f"cannot use Ray{at}: {why}"
        self._first.set_exception(ConfigError(f"executor {self._name!r} {said}"))
        self._closing.set()

    def _connected(self, cpus: int, address: str) -> None:
        self.slots = self.slots or cpus
        self.address = address
        if not self._first.done():
            self._first.set_result(None)
        self._back()

    def _back(self) -> None:
        """Go on: clocks run again, and what waited is sent."""
        self._usable = True
        if self._away_since is not None:
            log.warning(
                "executor %r: %s is back after %s",
                self._name,
                self._cluster,
                roughly(time.time() - self._away_since),
            )
            self._away_since = None
        for number, call in list(self._calls.items()):
            if number in self._sent:
                call.arm()
            else:
                self._submit(call)

    def _away(self, why: str) -> None:
        """Wait: no clock runs out for an outage."""
        self._usable = False
        self._why = why
        for number in self._sent:
            self._calls[number].hold()
        if not self._first.done():
            if not self.slots:
                self._refuse(f"{why}; with slots given, jobs would wait for it")
                return
            self._first.set_result(None)
        if self._away_since is None:
            self._away_since = time.time()
            log.error("executor %r: %s; its jobs wait", self._name, self.trouble)

    def _over(self, died: str) -> None:
        """Hand back what was lost with the driver; what was never sent waits for the next."""
        self._usable = False
        why, self._why = self._why or died, ""
        if not self._closing.is_set():
            self._away(why)
        lost = [self._calls[number] for number in sorted(self._sent)]
        for call in lost:
            self._end(
                call, Stopped() if call.stopping else Lost(f"{self._cluster} went away: {why}")
            )

    # Calls

    def _submit(self, call: Call) -> None:
        try:
            message = message_of(call, self._app)
        except Exception as error:
            self._loop.call_soon(self._end, call, Raised(error_of(error)))
            return
        call.arm()
        self._sent.add(call.seat)
        self._tell("run", call.seat, message)

    def _ended(self, number: int, how: str, text: str) -> None:
        call = self._calls.get(number)
        if call is None:
            return
        if how == RETURNED:
            self._end(call, Returned(text))
        elif how == RAISED:
            self._end(call, Raised(text))
        elif call.job.cancelled:
            self._end(call, Stopped())
        elif how == CRASHED:
            self._end(call, Crashed(text))
        elif how == GONE:
            self._end(call, Lost(text))
        else:
            self._end(call, Raised(text))

    def _end(self, call: Call, outcome: Outcome) -> None:
        self._sent.discard(call.seat)
        if self._calls.pop(call.seat, None) is not None:
            call.end(outcome)


class _DriverProcess:
    """A process that is connected to the cluster, and the line to it; slow or frozen, it never holds up the loop."""

    def __init__(
        self,
        boot: str,
        loop: asyncio.AbstractEventLoop,
        heard: Callable[[_DriverProcess, list[Any]], None],
    ) -> None:
        self.ended: asyncio.Future[str] = loop.create_future()  # how it ended
        self._boot = boot
        self._loop = loop
        self._heard = heard
        self._frames: SimpleQueue[bytes | None] = SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        threading.Thread(target=self._live, name="fairlead-ray-driver", daemon=True).start()

    @property
    def pid(self) -> int | None:
        """Its number, once it was started."""
        return None if self._process is None else self._process.pid

    def send(self, frame: Sequence[Any] | dict[str, Any]) -> None:
        """Send a frame, from any thread; a process that has ended is not told."""
        self._frames.put(framed(json.dumps(frame)))

    def close(self) -> None:
        """Have it end: ask, then force."""
        self._frames.put(None)
        self._loop.call_later(GOODBYE, self._kill)

    def _live(self) -> None:
        died = "its driver could not be started"
        try:
            died = self._serve()
        except OSError as error:
            died += f": {error}"
        finally:
            self._frames.put(None)
            tell(self._loop, lambda: self.ended.done() or self.ended.set_result(died))  # type: ignore[func-returns-value]

    def _serve(self) -> str:
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                process = subprocess.Popen(  # noqa: S603 - our own Python
                    [sys.executable, "-c", self._boot, json.dumps(sys.path), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            self._process = process
            writer = threading.Thread(
                target=self._write, args=(ours,), name="fairlead-ray-line", daemon=True
            )
            writer.start()
            with ours.makefile("rb") as stream:
                while (text := receive(stream)) is not None:
                    frame = json.loads(text)
                    tell(self._loop, lambda frame=frame: self._heard(self, frame))  # type: ignore[misc]
            self._frames.put(None)
            self._kill()  # whatever else it started: a cluster of its own, for example
            code = process.wait()
            writer.join()
        return f"its driver ended with {'exit code' if code >= 0 else 'signal'} {abs(code)}"

    def _write(self, line: socket.socket) -> None:
        try:
            while (data := self._frames.get()) is not None:
                line.sendall(data)
            line.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has ended, as the reader hears too

    def _kill(self) -> None:
        # Its number is its own, and its group's, as long as nobody has waited for it.
        process = self._process
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
