"""Workers: where consumers run.  Coroutines on one loop, plain functions on threads, `processes = True` in processes.

The queue hands over at most `concurrency` jobs at once, whichever kind they are; here they only find their place.
A job whose partition is gone, or has begun again, runs no user code, except `revoked` and `shutdown`, which are
about just that.

Threads are daemons: a handler that never returns keeps nobody from stopping.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from fairlead.streams.consumer import called
from fairlead.streams.jobs import CONSUMPTION
from fairlead.streams.processes import Children
from fairlead.streams.queue import FAREWELLS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from fairlead.streams.jobs import Job

    Finished = Callable[[Job, BaseException | None], None]

log = logging.getLogger("fairlead.streams")


class Workers:
    """Runs jobs, and tells `finished(job, error)` of each, on the thread it ran on."""

    def __init__(self, concurrency: int, finished: Finished) -> None:
        self._most = concurrency
        self._finished = finished
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._load = 0  # jobs with the threads
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._new: deque[Job] = deque()  # for the loop
        self._called = False
        self._children = Children()
        self._stopped = False

    def start(self, job: Job) -> None:
        """Hand a job to the worker of its kind; from any thread, never waits."""
        shape = job.holding.topic.shape
        if job.kind in shape.coroutines and not (shape.processes and job.kind is CONSUMPTION):
            loop = self._loop or self._start_loop()
            self._new.append(job)
            if threading.current_thread() is self._loop_thread:
                loop.call_soon(self._spawn)
            elif not self._called:
                self._called = True  # one call wakes the loop for all that come until it looks
                loop.call_soon_threadsafe(self._spawn)
            return
        with self._lock:
            self._load += 1
            if self._load > len(self._threads) < self._most:
                self._add_thread()
        self._jobs.put(job)

    # Threads

    def _add_thread(self) -> None:
        thread = threading.Thread(
            target=self._work, name=f"fairlead-stream-{len(self._threads) + 1}", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            error = self._run(job)
            with self._lock:
                self._load -= 1
            self._tell(job, error)

    def _run(self, job: Job) -> BaseException | None:
        shape = job.holding.topic.shape
        name = shape.methods.get(job.kind)
        if job.stale and job.kind not in FAREWELLS:
            job.skipped = True
        if job.skipped or name is None:
            return None
        answer: Any = None
        before = called.set(job.holding)
        try:
            if job.kind is not CONSUMPTION:
                answer = getattr(job.holding.consumer, name)()
            elif shape.processes:
                self._children.consume(job)
            else:
                answer = job.holding.consumer.consume(job.messages)
            if asyncio.iscoroutine(answer):
                answer.close()
                raise TypeError(
                    f"{shape.consumer.__name__}.{name} returned a coroutine, and is no coroutine function; "
                    "write it with async def"
                )
        except BaseException as error:  # also SystemExit: it ends the job and nothing else
            return error
        finally:
            called.reset(before)
        return None

    # The loop

    def _start_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._loop_thread = threading.Thread(
                    target=self._serve, args=(self._loop,), name="fairlead-stream-loop", daemon=True
                )
                self._loop_thread.start()
            return self._loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            pending = asyncio.all_tasks(loop)
            for task in pending:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    def _spawn(self) -> None:
        self._called = False
        loop = asyncio.get_running_loop()
        while self._new:
            job = self._new.popleft()
            try:
                task = loop.create_task(self._consume(job))
            except BaseException as error:
                self._tell(job, error)
                continue
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _consume(self, job: Job) -> None:
        error: BaseException | None = None
        try:
            holding = job.holding
            if job.stale and job.kind not in FAREWELLS:
                job.skipped = True
            else:
                called.set(holding)  # in the context of this task alone
                method = getattr(holding.consumer, holding.topic.shape.methods[job.kind])
                answer: Coroutine[None, None, None]
                answer = method(job.messages) if job.kind is CONSUMPTION else method()
                await answer
        except asyncio.CancelledError as cancelled:
            error = cancelled  # only at the end of the grace
        except BaseException as raised:
            error = raised
        self._tell(job, error)

    def _tell(self, job: Job, error: BaseException | None) -> None:
        try:
            self._finished(job, error)
        except Exception:
            log.exception("the end of %r could not be noted", job)

    def stop(self, timeout: float) -> None:
        """End what is idle, cancel coroutines that still run, kill processes; wait up to `timeout`."""
        with self._lock:
            self._stopped = True
            threads, loop = list(self._threads), self._loop
        for _ in threads:
            self._jobs.put(None)
        self._children.close()
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)
            if self._loop_thread is not None:
                self._loop_thread.join(max(0.1, timeout))
        for thread in threads:
            thread.join(max(0.05, timeout / max(1, len(threads))) if timeout else 0.05)
