"""Calls in this process: coroutine functions on the loop, plain functions each on a thread.

A coroutine that never waits costs no task: one *driver* takes calls from a queue and runs them one after another.  The
first time a call waits, its driver becomes that call's own task and a new driver goes on with the queue.  So whatever
asks for the current task (a timeout, a task group) finds the one it will be cancelled by.  Where calls do wait, several
drivers start at once: one at a time would begin one call per turn of the loop.
"""

from __future__ import annotations

import asyncio
import logging
import types
from collections import deque
from contextvars import copy_context
from time import perf_counter
from typing import TYPE_CHECKING, Any

from fairlead.jobs.context import running
from fairlead.jobs.executors.base import Raised, Returned, Stopped
from fairlead.jobs.executors.calls import result_text
from fairlead.jobs.executors.threads import ThreadRunner
from fairlead.jobs.payload import decode_call, error_of

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator
    from contextvars import Context

    from fairlead.jobs.executors.base import Call, Outcome

TURN = 0.002  # seconds of calls that never wait before the loop may look at others
MOST_DRIVERS = 64
CLOSED = object()  # the seat of a call whose loop is gone
GOODBYE = 1.0  # seconds that calls which would not stop get when the runner closes

log = logging.getLogger("fairlead.jobs")


class LocalRunner:
    """The default kind: coroutines on the loop that `start` was called on, everything else on threads."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._queue: deque[Call] = deque()
        self._drivers: set[asyncio.Task[None]] = set()
        self._width = 1  # how many drivers there may be: more as long as calls wait
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = ThreadRunner(slots)

    async def start(self) -> None:
        """Remember the loop, and the context that calls begin with."""
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        await self._threads.start()

    @property
    def abandoned(self) -> int:
        """Threads that still run something nobody waits for."""
        return self._threads.abandoned

    def run(self, call: Call) -> None:
        """Begin a call, at the loop's next turn."""
        if not call.task.is_async:
            self._threads.run(call)
            return
        call.seat = None
        self._queue.append(call)
        if len(self._drivers) < self._width:
            self._drive()

    def cancel(self, call: Call) -> None:
        """Raise CancelledError where the call waits."""
        if not call.task.is_async:
            self._threads.cancel(call)
        elif isinstance(call.seat, asyncio.Task):
            call.seat.cancel()
        # else it is queued and will not begin, or it runs this very moment and is cancelled where it first waits

    def sever(self) -> None:
        """Do what can be done without the loop: nothing, for coroutines stop only where they wait."""

    async def close(self) -> None:
        """Cancel what is left and wait a moment for it."""
        for call in self._queue:
            call.end(Stopped())
        self._queue.clear()
        left = {task for task in self._tasks if task is not asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            _, stubborn = await asyncio.wait(left, timeout=GOODBYE)
            if stubborn:
                log.warning("%d jobs do not stop though they were cancelled", len(stubborn))
        await self._threads.close()

    def _drive(self) -> None:
        # A new task copies the context of whoever makes it: not that of the call which waits.
        context = self._context.copy()
        task = self._loop.create_task(self._work(), name="fairlead-jobs", context=context)
        self._drivers.add(task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _waits(self, call: Call, task: asyncio.Task[Any]) -> None:
        """A call waits for the first time: from now on this task is its own."""
        call.seat = task
        self._drivers.discard(task)
        self._width = min(2 * self._width, MOST_DRIVERS)
        while len(self._drivers) < min(self._width, len(self._queue)):
            self._drive()
        call.arm()
        if call.stopping:
            task.cancel()

    async def _work(self) -> None:
        task: asyncio.Task[Any] = asyncio.current_task()  # type: ignore[assignment]
        queue = self._queue
        turn_ends = perf_counter() + TURN
        try:
            while queue:
                call = queue.popleft()
                if call.stopping:
                    call.end(Stopped())
                    continue
                call.end(await self._call(call, task))
                if call.seat is not None:
                    return
                self._width = 1
                if perf_counter() > turn_ends:
                    await asyncio.sleep(0)
                    turn_ends = perf_counter() + TURN
        finally:
            self._drivers.discard(task)

    async def _call(self, call: Call, task: asyncio.Task[Any]) -> Outcome:
        claimed = call.claimed
        # Whatever a call does to context variables stays in it.
        context = self._context.copy()
        context.run(running.set, call.job)
        try:
            args, kwargs = decode_call(claimed.payload, claimed.inputs)
            coroutine = context.run(call.task.fn, *args, **kwargs)
            return Returned(result_text(await self._steps(call, task, coroutine, context)))
        except BaseException as error:
            if call.seat is CLOSED:
                raise
            # Also KeyboardInterrupt and SystemExit: what a job raises ends the job and nothing else.
            if isinstance(error, asyncio.CancelledError) and task.cancelling():
                # By us; by itself, or by the end of the loop, if nobody has asked for it.
                return Stopped()
            return Raised(error_of(error))

    @types.coroutine
    def _steps(
        self,
        call: Call,
        task: asyncio.Task[Any],
        coroutine: Coroutine[Any, Any, Any],
        context: Context,
    ) -> Generator[Any, Any, Any]:
        """Await `coroutine`, each of its steps inside `context`, and notice when it first waits."""
        step: Any = coroutine.send
        value: Any = None
        while True:
            try:
                waits_for = context.run(step, value)
            except StopIteration as stop:
                return stop.value
            if call.seat is None:
                self._waits(call, task)
            try:
                value = yield waits_for
                step = coroutine.send
            except GeneratorExit:
                call.seat = CLOSED
                coroutine.close()
                raise
            except BaseException as error:
                value = error
                step = coroutine.throw
