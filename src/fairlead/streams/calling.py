"""Calling a scheduler that others have written: every call is measured, and none of them can hurt more than its group.

- `schedule_consumption` or `manage` raises: its class, method and error are logged and the group is reset.  If `manage`
  misuses a job, that is the job's group; and none, if the job has finished or was cleared: that would change nothing.
- Any other method raises: it is logged, and the jobs it was given are pushed in order, as the default would have done.
- A call takes over `SLOW` seconds: it is warned of.  One that does not return is warned of by `overdue`, which the
  app's watch calls; meanwhile the others find the scheduler's lock taken, go on without it, and try again.
- A call hangs for over `HUNG` seconds: new batches of other groups go straight into the queue, in the order in which
  they come, until it returns.  What the scheduler was given before stays with it.

After a job has finished, `manage` is called for it by the *steward*, a thread of its own: workers and the loop of
the coroutines are never at the mercy of a scheduler.  The built-in one is quick, and called directly.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from queue import SimpleQueue
from typing import TYPE_CHECKING

from fairlead.errors import StreamMisuse
from fairlead.streams.jobs import Job, Kind
from fairlead.streams.scheduler import SchedulerStuck

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairlead.streams.queue import JobsQueue
    from fairlead.streams.scheduler import StreamScheduler

    Reset = Callable[[str, str], None]

log = logging.getLogger("fairlead.streams")

SLOW = 0.1  # seconds
HUNG = 5.0  # seconds
QUIET = 10.0  # seconds between two warnings of one kind
BOUNDS = (0.00001, 0.0001, 0.001, 0.01, 0.1, 1.0)  # seconds, of the histograms


class Timing:
    """How long the calls of one method took: a count per bound of `BOUNDS`, and one beyond."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0

    def add(self, took: float) -> None:
        """Count a call."""
        self.counts[bisect_left(BOUNDS, took)] += 1
        self.seconds += took


class SchedulerCalls:
    """The calls of one scheduler, contained."""

    def __init__(self, scheduler: StreamScheduler, queue: JobsQueue, reset: Reset) -> None:
        self.scheduler = scheduler
        self.name = type(scheduler).__name__
        self.timings: dict[str, Timing] = {}
        self.seconds = 0.0
        self.calls = 0
        self.slowest = 0.0
        self.slow = 0
        self.raised = 0
        self._queue = queue
        self._reset = reset
        self._bypassed = False  # it hangs: batches go round it
        self._current: dict[int, tuple[str, float]] = {}
        self._warned: dict[str, float] = {}

    def consumption(self, group_id: str, jobs: Sequence[Job]) -> bool:
        """Give new batches to the scheduler; False if it could not be asked now."""
        if self._bypassed and self._go_round(jobs):
            return True
        try:
            self._call("schedule_consumption", jobs)
        except SchedulerStuck as stuck:
            self._warn("stuck", str(stuck))
            return self._go_round(jobs)
        except BaseException as error:
            self._blame("schedule_consumption", error)
            self._queue.clear(group_id)  # at once, lest another call of it pushes one of them
            self._reset(group_id, f"{self.name}.schedule_consumption raised {error!r}")
        return True

    def lifecycle(self, kind: Kind, jobs: Sequence[Job]) -> None:
        """Give jobs of another kind to the scheduler; if it fails, push them as it should have done."""
        try:
            self._call(f"schedule_{kind}", jobs)
        except SchedulerStuck as stuck:
            self._warn("stuck", str(stuck))
        except BaseException as error:
            self._blame(f"schedule_{kind}", error)
        else:
            return
        self._push(jobs)

    def _push(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            try:
                self._queue.release(job) if job.locked else self._queue.push(job)
            except StreamMisuse:
                pass  # it was pushed before the scheduler failed, or cleared

    def _go_round(self, jobs: Sequence[Job]) -> bool:
        """Push batches without the scheduler, if a call of it hangs."""
        limit = time.perf_counter() - HUNG
        hung = [method for method, since in list(self._current.values()) if since < limit]
        self._bypassed = bool(hung)
        if hung:
            self._warn(
                "hung",
                f"{self.name}.{hung[0]} hangs: until it returns, new batches are run in the order in which they come",
            )
            self._push(jobs)
        return self._bypassed

    def manage(self, group_id: str) -> bool:
        """Have the scheduler look again; False if it could not be asked now."""
        try:
            self._call("manage")
        except SchedulerStuck as stuck:
            self._warn("stuck", str(stuck))
            return False
        except BaseException as error:
            self._blame("manage", error)
            job = error.job if isinstance(error, StreamMisuse) else None
            if job is None or not (job.cleared or job.finished):
                group_id = group_id if job is None else job.group_id
                self._queue.clear(group_id)
                self._reset(group_id, f"{self.name}.manage raised {error!r}")
        return True

    def clear(self, group_id: str) -> None:
        """Have the scheduler forget a group."""
        try:
            self._call("clear", group_id)
        except SchedulerStuck as stuck:
            self._warn("stuck", str(stuck))
        except BaseException as error:
            self._blame("clear", error)

    def _call(self, method: str, *args: object) -> None:
        me = threading.get_ident()
        since = time.perf_counter()
        self._current[me] = (method, since)
        try:
            getattr(self.scheduler, f"on_{method}")(*args)
        finally:
            del self._current[me]
            took = time.perf_counter() - since
            timing = self.timings.get(method)
            if timing is None:
                timing = self.timings.setdefault(method, Timing())
            timing.add(took)
            self.calls += 1
            self.seconds += took
            if took > self.slowest:
                self.slowest = took
            if took > SLOW:
                self.slow += 1
                self._warn(
                    f"slow {method}",
                    f"{self.name}.{method} took {took * 1000:.0f} ms; while it runs nothing else is scheduled",
                )

    def _blame(self, method: str, error: BaseException) -> None:
        self.raised += 1
        log.error("%s.%s raised %r", self.name, method, error, exc_info=error)

    def _warn(self, kind: str, text: str) -> None:
        now = time.monotonic()
        if now - self._warned.get(kind, -QUIET) >= QUIET:
            self._warned[kind] = now
            log.warning("%s", text)

    def hanging(self) -> tuple[str, float] | None:
        """Tell the call that has not returned for longest, and for how many seconds; None if all are quick."""
        now = time.perf_counter()
        late = [(now - since, method) for method, since in list(self._current.values())]
        age, method = max(late, default=(0.0, ""))
        return (method, age) if age > SLOW else None

    def overdue(self) -> None:
        """Warn of calls that have not returned."""
        now = time.perf_counter()
        for method, since in list(self._current.values()):
            if now - since > 10 * SLOW:
                self._warn(
                    f"hang {method}",
                    f"{self.name}.{method} has not returned for {now - since:.1f} s; "
                    "until it does, nothing new is scheduled",
                )


class Steward:
    """Calls `manage` for each job that has finished."""

    def __init__(self, calls: SchedulerCalls) -> None:
        self._calls = calls
        self._finished: SimpleQueue[Job | None] = SimpleQueue()
        self._stopping = False
        self._thread = threading.Thread(target=self._serve, name="fairlead-steward", daemon=True)
        self._thread.start()

    def after(self, job: Job) -> None:
        """A job has finished."""
        self._finished.put(job)

    def _serve(self) -> None:
        calls = self._calls
        while (job := self._finished.get()) is not None:
            try:
                after(calls, job)
                while not calls.manage(job.group_id) and not self._stopping:
                    pass
            except Exception:
                log.exception("the scheduler could not be told of %r", job)

    def stop(self, timeout: float) -> None:
        """End, after what has finished by now."""
        self._stopping = True
        self._finished.put(None)
        self._thread.join(timeout)


def after(calls: SchedulerCalls, job: Job) -> None:
    """What precedes `manage`: the partition's next batch waits before the room of the last one is given back."""
    scheduler = calls.scheduler
    try:
        if scheduler.buffered:
            job.holding.listener.intake.go_on(job.holding)
    finally:
        scheduler.settle(job)
