"""Calling a scheduler that others have written: every call is measured, and none of them can hurt more than its group.

- `schedule_consumption` or `manage` raises: its class, method and error are logged and the group is reset.  If `manage`
  misuses a job, that is the job's group; and none, if the job has finished or was cleared: that would change nothing.
- Any other method raises: it is logged, and the jobs it was given are pushed in order, as the default would have done.
- A call takes over `SLOW` seconds: it is warned of.
- A call *hangs*: it has not returned for `patience` seconds.  User code cannot be stopped, so the scheduler is left
  alone until it has, and for `REST` times as long after.  Meanwhile nobody waits for its lock, and what it has not let
  go of the other groups, and all that is new, goes into the queue in the order in which it came (`overrule`).  The
  call that hangs may still push such jobs; that changes nothing.  So to be wrong about it costs the order the
  scheduler wanted for a while, and never a job.

Whether a call hangs is found by `look`, which the app's watch calls at even beats, and which counts beats, not
seconds: a pause of the whole process is one beat, and on a starved machine beats are late as everything is.  To wait
while others have their turns with the scheduler is not to hang.  The others are held up for 1.1 · `patience` at most,
and then not for `REST` · `patience`: for less than 4 % of the time.

After a job has finished, and on ticks, `manage` is called by the *steward*, a thread of its own: listeners, workers
and the loop of the coroutines are never at its mercy.  The built-in scheduler is quick, called directly, and trusted.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from math import ceil
from queue import SimpleQueue
from typing import TYPE_CHECKING

from fairlead.errors import StreamMisuse
from fairlead.streams.jobs import Job, Kind
from fairlead.streams.scheduler import SchedulerStuck
from fairlead.streams.turnstile import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairlead.streams.queue import JobsQueue
    from fairlead.streams.scheduler import StreamScheduler

    Reset = Callable[[str, str], None]

log = logging.getLogger("fairlead.streams")

SLOW = 0.1  # seconds
BEATS = 10  # of the watch, in the patience
SLOWEST_BEAT = 1.0  # seconds
REST = 30  # times the patience
IN_HAND = -1  # less than the number of any turn
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

    def __init__(
        self, scheduler: StreamScheduler, queue: JobsQueue, reset: Reset, patience: float = 0.5
    ) -> None:
        self.scheduler = scheduler
        self.name = type(scheduler).__name__
        self.timings: dict[str, Timing] = {}
        self.seconds = 0.0
        self.calls = 0
        self.slowest = 0.0
        self.slow = 0
        self.raised = 0
        self.hangs = 0
        self.patience = patience
        self.beat = min(SLOWEST_BEAT, patience / BEATS)  # seconds between two looks
        self._queue = queue
        self._reset = reset
        self._current: dict[int, tuple[str, float]] = {}  # by thread
        self._beats: dict[tuple[int, float, str], int] = {}  # how many each of them has lasted
        self._enough = ceil(patience / self.beat)
        self._rest = 0  # beats until it is asked again
        self._unheard: dict[str, bool] = {}  # groups to clear when it is
        # Held by whoever is telling it, from before a group leaves `_unheard`.
        self._telling = threading.Lock()
        self._warned: dict[str, float] = {}

    @property
    def away(self) -> bool:
        """Say whether the scheduler is left alone, and to be gone round."""
        return self.scheduler.left_alone

    def consumption(self, group_id: str, jobs: Sequence[Job]) -> None:
        """Give new batches to the scheduler."""
        try:
            self._call("schedule_consumption", jobs)
        except SchedulerStuck:
            self.go_round(group_id)
        except BaseException as error:
            job = error.job if isinstance(error, StreamMisuse) else None
            if job is not None and job.cleared and job in jobs:
                return  # under its hands, by a call that failed: the group begins anew already
            self._blame("schedule_consumption", error)
            self._queue.clear(group_id)  # at once, lest another call of it pushes one of them
            self._reset(group_id, f"{self.name}.schedule_consumption raised {error!r}")

    def lifecycle(self, group_id: str, kind: Kind, jobs: Sequence[Job]) -> None:
        """Give jobs of another kind to the scheduler; if it fails, push them as it should have done."""
        try:
            self._call(f"schedule_{kind}", list(jobs))  # its own, to do with what it likes
        except SchedulerStuck:
            self.go_round(group_id)
        except BaseException as error:
            self._blame(f"schedule_{kind}", error)
            self._push(jobs)

    def go_round(self, group_id: str) -> None:
        """Push what it has not let go of a group; before it is asked again it is told to forget that group.

        Else it would count on jobs that nobody waits for, and hold new ones back for them.
        """
        if self._queue.overrule(group_id):
            self._unheard[group_id] = True

    def _push(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            try:
                self._queue.release(job) if job.locked else self._queue.push(job)
            except StreamMisuse:
                pass  # it was pushed before the scheduler failed, or cleared

    def manage(self, group_id: str) -> None:
        """Have the scheduler look again."""
        try:
            self._call("manage")
        except SchedulerStuck:
            return
        except BaseException as error:
            self._blame("manage", error)
            job = error.job if isinstance(error, StreamMisuse) else None
            if job is None or not (job.cleared or job.ended):
                group_id = group_id if job is None else job.group_id
                self._queue.clear(group_id)
                self._reset(group_id, f"{self.name}.manage raised {error!r}")

    def clear(self, group_id: str) -> None:
        """Have the scheduler forget a group, as soon as it can be asked."""
        self._unheard[group_id] = True
        self._tell_unheard()

    def _tell_unheard(self) -> None:
        # Nobody passes while another tells it: new jobs of a group that came before its clear would be forgotten.
        if not wait_for(self._telling, lambda: self.away):
            return
        try:
            for group_id in list(self._unheard):
                if self.away:
                    return
                del self._unheard[group_id]
                try:
                    self._measured("clear", group_id)
                except SchedulerStuck:
                    self._unheard[group_id] = True
                except BaseException as error:
                    self._blame("clear", error)
        finally:
            self._telling.release()

    def _call(self, method: str, *args: object) -> None:
        if self._unheard or self._telling.locked():
            self._tell_unheard()
        if self.away:
            raise SchedulerStuck(f"{self.name} is left alone")
        self._measured(method, *args)

    def _measured(self, method: str, *args: object) -> None:
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

    def look(self) -> None:
        """Note which calls have not returned, and how many looks ago they began; at even beats, by one thread."""
        if self.scheduler.buffered:
            return
        before = self._beats
        self._beats = {call: before.get(call, 0) + 1 for call in self._lasting()}
        hung = [call for call, beats in self._beats.items() if beats > self._enough]
        if hung:
            if not self.away:
                self.hangs += 1
                self._say_hung(min(hung)[2])
            self._rest = REST * self._enough
            self.scheduler.left_alone = True
        elif self.away:
            self._rest -= 1
            if not self._rest:
                log.warning("%s is asked again", self.name)
                self.scheduler.left_alone = False

    def _lasting(self) -> list[tuple[int, float, str]]:
        """Tell the calls that have not returned.

        One that waits for the lock is a new one with each turn that others have: it lasts no longer than the one that
        is inside, which may be a thread of the scheduler's own.  Those in its hands come first: they are to blame.
        """
        turnstile = self.scheduler.turnstile
        return [
            (turnstile.turns if thread in turnstile.outside else IN_HAND, since, method)
            for thread, (method, since) in list(self._current.items())
        ]

    def _say_hung(self, method: str) -> None:
        log.error(
            "%s.%s hangs: it has not returned for %.3g s; until it does, and for %.3g s after, jobs go round the "
            "scheduler, in the order in which they come; it must not wait for anything",
            self.name,
            method,
            self.patience,
            REST * self.patience,
        )

    def overdue(self) -> None:
        """Warn of calls that have not returned."""
        now = time.perf_counter()
        meanwhile = "jobs go round it" if self.away else "nothing new is scheduled"
        for method, since in list(self._current.values()):
            if now - since > 10 * SLOW:
                self._warn(
                    f"hang {method}",
                    f"{self.name}.{method} has not returned for {now - since:.1f} s; until it does, {meanwhile}",
                )


class Steward:
    """Calls `manage` for each job that has finished, and on ticks."""

    def __init__(self, calls: SchedulerCalls) -> None:
        self._calls = calls
        self._asked: SimpleQueue[Job | str | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="fairlead-steward", daemon=True)
        self._thread.start()

    def after(self, job: Job) -> None:
        """A job has ended."""
        if self._calls.away:
            job.finished = True  # not asked: it may be long, and would only pile up
        else:
            self._asked.put(job)

    def tick(self, group_id: str) -> None:
        """Time has passed, for a group."""
        if not self._calls.away:
            self._asked.put(group_id)

    def _serve(self) -> None:
        calls = self._calls
        while (what := self._asked.get()) is not None:
            try:
                if isinstance(what, Job):
                    after(calls, what)
                    calls.manage(what.group_id)
                else:
                    calls.manage(what)
            except Exception:
                log.exception("the scheduler could not be asked because of %r", what)

    def stop(self, timeout: float) -> None:
        """End, after what has finished by now."""
        self._asked.put(None)
        self._thread.join(timeout)


def after(calls: SchedulerCalls, job: Job) -> None:
    """What precedes `manage`: the partition's next batch waits before the room of the last one is given back.

    The job is `finished` from here on, and not before: what `manage` finds new is the job that it is called for, so
    if it raises, that is about this job's group.
    """
    job.finished = True
    scheduler = calls.scheduler
    try:
        if scheduler.buffered:
            job.holding.listener.intake.go_on(job.holding)
    finally:
        scheduler.settle(job)
