"""Calls on threads of our own: as many as there are slots, whatever the size of the loop's default executor.

Nobody can stop a thread.  A call that is cancelled or out of time sees `current_job().cancelled` and keeps its slot
until it returns, so that nothing runs beside it.  If others end it before it does, its thread is *abandoned*: of no
more account.  Another takes its place.

Coroutine functions get a loop of their own on the thread, where they can be cancelled; whatever they block, it is not
the loop of the service.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from fairlead.jobs.context import running
from fairlead.jobs.executors.base import Raised, Returned, Stopped
from fairlead.jobs.executors.calls import result_text
from fairlead.jobs.payload import decode_call, error_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlead.jobs.executors.base import Call, Outcome

IDLE = 60.0  # seconds after which a thread with nothing to do ends
# Seconds that threads get to end when the runner closes; they were told before, and who is hurried has 1.5 s for both.
GOODBYE = 0.5

log = logging.getLogger("fairlead.jobs")


def tell(loop: asyncio.AbstractEventLoop, fn: Callable[[], object]) -> None:
    """Have a loop call something, from any thread; if it is closed, nobody is left to hear of it."""
    try:
        loop.call_soon_threadsafe(fn)
    except RuntimeError:
        if not loop.is_closed():
            raise


class Threads:
    """Threads that run what they are given; there is one for everything that runs, and some wait for more."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # One for each thread that is free or will be before it is needed.
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._count = 0
        self._on_empty: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def submit(self, fn: Callable[[], None]) -> None:
        """Run `fn` soon, on a thread of its own; it must not raise."""
        self._queue.put(fn)
        if not self._idle.acquire(blocking=False):
            self._count += 1
            # Daemons: a job that never ends must not keep the process from ending.
            thread = threading.Thread(
                target=self._work, name=f"{self._name}-{self._count}", daemon=True
            )
            with self._lock:
                self._threads.add(thread)
            thread.start()

    async def close(self) -> list[threading.Thread]:
        """Have every thread end after what it runs; tell which have not within a moment."""
        ended = asyncio.Event()
        with self._lock:
            left = list(self._threads)
            self._on_empty = (asyncio.get_running_loop(), ended)
        for _ in left:
            self._queue.put(None)
        if left:
            try:
                async with asyncio.timeout(GOODBYE):
                    await ended.wait()
            except TimeoutError:
                return [thread for thread in left if thread in self._threads]
        for thread in left:
            thread.join()  # its last act was to say that it has ended
        return []

    def _work(self) -> None:
        try:
            while True:
                try:
                    fn = self._queue.get(timeout=IDLE)
                except Empty:
                    if self._idle.acquire(blocking=False):
                        return
                    continue  # somebody counts on this thread: it is about to be given something
                if fn is None:
                    return
                fn()
                del fn
                self._idle.release()
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())
                if self._on_empty is not None and not self._threads:
                    loop, ended = self._on_empty
                    tell(loop, ended.set)


class ThreadRunner:
    """Runs functions, plain ones and coroutine functions, each on a thread."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._stopping: set[Call] = set()  # plain functions that were told, and have not returned
        self._threads = Threads("fairlead-job")
        self._ended: deque[tuple[Call, Outcome]] = deque()
        self._told = False  # is the loop about to look at what has ended?

    async def start(self) -> None:
        """Remember the loop, and the context that calls begin with."""
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()

    @property
    def abandoned(self) -> int:
        """Threads that still run something nobody waits for."""
        return sum(call.ended for call in self._stopping)

    def run(self, call: Call) -> None:
        """Begin a call on a thread."""
        call.seat = _Seat()
        call.arm()
        self._threads.submit(lambda: self._work(call))

    def cancel(self, call: Call) -> None:
        """Cancel a coroutine; a plain function has been told by `job.cancelled`, and nobody can do more."""
        if call.ended:
            return
        if call.task.is_async:
            call.seat.cancel()
        else:
            self._stopping.add(call)

    def sever(self) -> None:
        """Do what can be done from outside: nothing more than `job.cancelled` has."""

    async def close(self) -> None:
        """Wait a moment for the threads to end, and leave the others behind."""
        if stuck := await self._threads.close():
            names = ", ".join(thread.name for thread in stuck)
            log.warning("threads that still run a job are left behind: %s", names)

    def _work(self, call: Call) -> None:
        """Run a call; on its thread."""
        outcome: Outcome = Stopped()
        if not call.job.cancelled:
            outcome = self._context.copy().run(self._outcome_of, call)
        self._ended.append((call, outcome))
        if not self._told:
            self._told = True
            tell(self._loop, self._collect)

    def _outcome_of(self, call: Call) -> Outcome:
        running.set(call.job)
        claimed = call.claimed
        try:
            args, kwargs = decode_call(claimed.payload, claimed.inputs)
            if call.task.is_async:
                return Returned(result_text(call.seat.run(call.task.fn(*args, **kwargs))))
            result = result_text(call.task.fn(*args, **kwargs))
            # Nobody knows whether what returns after it was told has finished or only stopped.
            return Stopped() if call.job.cancelled else Returned(result)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and call.seat.asked:
                return Stopped()
            return Raised(error_of(error))

    def _collect(self) -> None:
        """End what has ended; on the loop."""
        self._told = False  # before looking: what ends from now on asks for another look
        while self._ended:
            call, outcome = self._ended.popleft()
            self._stopping.discard(call)
            call.end(outcome)


class _Seat:
    """What is known of a call on a thread."""

    __slots__ = ("_loop", "_lock", "_task", "asked")

    def __init__(self) -> None:
        self.asked = False  # to be cancelled
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def run(self, coroutine: Any) -> Any:
        """Run a coroutine on a loop of this thread."""
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            task = loop.create_task(coroutine, context=copy_context())
            with self._lock:
                if self.asked:
                    task.cancel()
                self._loop, self._task = loop, task
            try:
                return loop.run_until_complete(task)
            finally:
                with self._lock:
                    self._loop = self._task = None

    def cancel(self) -> None:
        """Cancel the coroutine, from any thread."""
        with self._lock:
            self.asked = True
            if self._loop is not None and self._task is not None:
                self._loop.call_soon_threadsafe(self._task.cancel)
