"""What every case of the jobs suite tells: one line of figures, counted by the job itself."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Awaitable, Callable

BATCH = 1_000  # jobs enqueued at once
Figures = dict[str, float]

# Names of figures.
DRAIN = "drain"  # µs per job, from starting the worker to the end of the last job
STEADY = "steady"  # the same from the first job's run on
ENQUEUE = "enqueue"  # µs per job, in batches
CLIENT = "client"  # CPU µs per drained job of the process that drains


class Meter:
    """Counts the jobs that ran, from the moment the worker is started."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.ran = 0
        self.done = threading.Event()  # for peers that run jobs on threads
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken: asyncio.Event | None = None
        self._lock = threading.Lock()
        self._began = self._cpu = 0.0
        self._took = self._used = self._first = 0.0

    def start(self) -> None:
        """Begin to measure: the worker is started now."""
        self._began, self._cpu = time.perf_counter(), time.process_time()

    def hit(self) -> None:
        """One job has run."""
        with self._lock:
            self.ran += 1
            if self.ran == 1:
                self._first = time.perf_counter() - self._began
            if self.ran == self.jobs:
                self.stop()

    def stop(self) -> None:
        """End measuring; called again, what is later counts."""
        self._took = time.perf_counter() - self._began
        self._used = time.process_time() - self._cpu
        self.done.set()
        if self._loop is not None and self._woken is not None:
            self._loop.call_soon_threadsafe(self._woken.set)

    async def wait(self) -> None:
        """Wait on a loop until all jobs have run."""
        self._loop, self._woken = asyncio.get_running_loop(), asyncio.Event()
        if not self.done.is_set():
            await self._woken.wait()

    def figures(self) -> Figures:
        if self.ran < self.jobs:
            raise RuntimeError(f"only {self.ran} of {self.jobs} jobs ran")
        return {
            DRAIN: self._took / self.jobs * 1e6,
            STEADY: (self._took - self._first) / self.jobs * 1e6,
            CLIENT: self._used / self.jobs * 1e6,
        }


async def enqueued(batch: Callable[[int], Awaitable[object]], jobs: int) -> Figures:
    """Enqueue in batches, and tell how long that took, after one job by which everybody prepares what he asks."""
    await batch(1)
    began = time.perf_counter()
    for size in batches(jobs):
        await batch(size)
    return {ENQUEUE: (time.perf_counter() - began) / (jobs - 1) * 1e6}


def batches(jobs: int) -> list[int]:
    """Tell the sizes of the batches that follow the first job."""
    return [min(BATCH, jobs - first) for first in range(1, jobs, BATCH)]


def tell_and_leave(figures: Figures) -> None:
    """Print the line that the suite reads; what the peer still has open may take long to close."""
    print(json.dumps(figures), flush=True)
    os._exit(0)
