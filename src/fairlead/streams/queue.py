"""The jobs queue: what schedulers push to and workers take from, and whether a group may be polled.

From the moment a job is given to the scheduler it is in the books of its group, and if it is a blocking one, the
group is *blocked* until it has finished and is not locked any more.  Neither forgetting a job nor unlocking it
without pushing it opens the group: it was read, so the next records must wait.  Only `clear`, when a group is
reset, takes jobs out.  While the scheduler hangs, `overrule` does its part.

`concurrency` jobs run at once.  A push starts its job on the spot if a worker is free, so a job is busy from then
on; starting is `start(job)`, which only hands it over.  Jobs of one partition do not run beside each other, except
for consumption by key; one whose turn it is not stands aside until the partition is free.

A job that is to run `alone` waits until nothing runs, for a while, and nothing starts beside it.

Every method may be called by any thread.  Nothing here calls user code or waits.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from fairlead.config import shown
from fairlead.errors import StreamMisuse
from fairlead.streams.jobs import Job, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

FAREWELLS = (Kind.REVOCATION, Kind.SHUTDOWN)
COMPANY = 10.0  # seconds that a job waits to run alone
HOUSEKEEPING = (*FAREWELLS, Kind.IDLE)  # what still starts while the app stops


def _nobody(group_id: str) -> None:
    pass


class JobsQueue:
    """What a scheduler does with jobs: `queue << job`, `lock`, `unlock`, `release`; and `statistics`."""

    def __init__(
        self,
        concurrency: int,
        start: Callable[[Job], None],
        *,
        freed: Callable[[str], None] = _nobody,
        assignments: Mapping[str, tuple[int, ...]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.concurrency = concurrency
        self.assignments: Mapping[str, tuple[int, ...]] = {} if assignments is None else assignments
        self.scheduler = "the scheduler"  # its class, for the texts of errors
        self.clock = clock
        self.stopping = False
        self.handed_back = 0
        self._start = start
        self._freed = freed  # told of a group that is no longer blocked
        self._lock = threading.RLock()
        self._idle = threading.Condition(self._lock)
        self._books: dict[str, dict[Job, None]] = {}
        self._blocking: dict[str, int] = {}
        self._ready: deque[Job] = deque()
        self._aside = 0
        self._waiting = 0
        self._running: dict[Job, None] = {}
        self._lonely: Job | None = None  # runs alone

    # What schedulers call

    def push(self, job: Job) -> None:
        """Put a job into the queue; a free worker starts it at once."""
        with self._lock:
            if not self._heeded(job, "pushed"):
                return
            if job.queued_at is not None:
                raise self._misuse(job, f"was pushed twice: it is {job.state}")
            self._enqueue(job)
            started = self._fill()
        for other in started:
            self._start(other)

    def _enqueue(self, job: Job) -> None:
        job.queued_at = self.clock()
        job.withheld_since = None
        self._waiting -= 1
        self._ready.append(job)

    def __lshift__(self, job: Job) -> JobsQueue:
        self.push(job)
        return self

    def lock(self, job: Job) -> None:
        """Withhold a job: its group is not polled until it is unlocked and has finished."""
        with self._lock:
            if not self._heeded(job, "locked"):
                return
            if job.locked:
                raise self._misuse(job, "was locked twice")
            if job.queued_at is not None:
                raise self._misuse(job, f"was locked too late: it is {job.state}")
            job.locked = True

    def unlock(self, job: Job) -> None:
        """End what `lock` began; the job still blocks its group until it has finished."""
        with self._lock:
            if not self._heeded(job, "unlocked"):
                return
            if not job.locked:
                raise self._misuse(job, "was unlocked without being locked")
            job.locked = False
            freed = job.ended and self._strike(job)
        if freed:
            self._freed(job.group_id)

    def release(self, job: Job) -> None:
        """Unlock and push in one step."""
        with self._lock:
            if not self._heeded(job, "released"):
                return
            if not job.locked:
                raise self._misuse(job, "was released without being locked")
            if job.queued_at is not None:
                raise self._misuse(job, f"was released twice: it is {job.state}")
            job.locked = False
            self.push(job)

    @property
    def statistics(self) -> Mapping[str, int]:
        """Count the jobs that are `busy` (a worker has them), `enqueued` and `waiting` (not in the queue yet)."""
        with self._lock:
            return {
                "busy": len(self._running),
                "enqueued": len(self._ready) + self._aside,
                "waiting": self._waiting,
            }

    def _heeded(self, job: Any, deed: str) -> bool:
        """Refuse what is no open job; say whether the scheduler may still decide about it."""
        if not isinstance(job, Job):
            raise StreamMisuse(
                f"{self.scheduler} {deed} {shown(job)}, which is no job; it may use only the jobs it was given"
            )
        if job.overruled:
            return False
        if job.cleared:
            raise self._misuse(
                job,
                f"was {deed} after clear({job.group_id!r}): forget its jobs when clear is called",
            )
        if job not in self._books.get(job.group_id, ()):
            said = "after it had finished" if job.ended else "though it was never given"
            raise self._misuse(job, f"was {deed} {said}")
        return True

    def _misuse(self, job: Job, what: str) -> StreamMisuse:
        age = job.age(self.clock())
        return StreamMisuse(
            f"{self.scheduler}: the {job.kind} job of {job.topic}[{job.partition}], given {age:.3f} s ago, {what}; "
            "nothing was changed",
            job=job,
        )

    # What the runtime calls

    def give(self, jobs: Iterable[Job]) -> None:
        """Enter jobs in the books, right before the scheduler is given them."""
        with self._lock:
            now = self.clock()
            for job in jobs:
                job.given_at = job.withheld_since = now
                book = self._books.get(job.group_id)
                if book is None:
                    book = self._books[job.group_id] = {}
                book[job] = None
                self._waiting += 1
                if job.blocking:
                    self._blocking[job.group_id] = self._blocking.get(job.group_id, 0) + 1

    def overrule(self, group_id: str) -> bool:
        """Push what the scheduler has not let go of a group, in the order in which it was given.

        Whatever it does to these jobs from then on changes nothing: it may still be at it.  Say whether there were any.
        """
        freed = taken = False
        with self._lock:
            for job in list(self._books.get(group_id, ())):
                if job.queued_at is None or job.locked:
                    self._take_over(job)
                    taken = True
                    freed |= job.ended and self._strike(job)
            started = self._fill()
        for job in started:
            self._start(job)
        if freed:
            self._freed(group_id)
        return taken

    def _take_over(self, job: Job) -> None:
        job.overruled, job.locked = True, False
        if job.queued_at is None:
            self._enqueue(job)

    def done(self, job: Job) -> None:
        """A job has run, or was skipped: its worker takes the next one."""
        with self._lock:
            del self._running[job]
            if self._lonely is job:
                self._lonely = None
            job.ended = True
            freed = not job.locked and self._strike(job)
            aside = job.holding.turns.leave(job.kind)
            if aside:
                self._aside -= len(aside)
                self._ready.extendleft(reversed(aside))
            started = self._fill()
            if not self._running:
                self._idle.notify_all()
        for other in started:
            self._start(other)
        if freed:
            self._freed(job.group_id)

    def _strike(self, job: Job) -> bool:
        """Strike a job out of the books; say whether its group is free now."""
        book = self._books.get(job.group_id)
        if book is None or job not in book:
            return False  # cleared while it ran
        del book[job]
        if not job.blocking:
            return False
        self._blocking[job.group_id] -= 1
        return not self._blocking[job.group_id]

    def _fill(self) -> list[Job]:
        started: list[Job] = []
        ready, running = self._ready, self._running
        while ready and len(running) < self.concurrency:
            if not self.stopping and (self._lonely is not None or self._waits_alone(ready[0])):
                break
            job = ready.popleft()
            if self.stopping and job.kind not in HOUSEKEEPING:
                self._hand_back(job)
            elif job.holding.turns.enter(job):
                job.started_at = self.clock()
                running[job] = None
                self._lonely = job if job.alone else self._lonely
                started.append(job)
            else:
                self._aside += 1
        return started

    def _waits_alone(self, job: Job) -> bool:
        """Return whether the next job has to wait until nothing runs; after a while it runs in company."""
        if not job.alone or not self._running:
            return False
        waits = self.clock() - (job.queued_at or 0.0) < COMPANY
        job.alone = waits
        return waits

    def look(self) -> None:
        """Start what may have waited long enough."""
        with self._lock:
            started = self._fill()
        for job in started:
            self._start(job)

    def _hand_back(self, job: Job) -> None:
        job.handed_back = job.ended = job.finished = True
        self.handed_back += 1
        self._strike(job)

    def blocked(self, group_id: str) -> bool:
        """Say whether blocking work of a group waits, is queued or runs."""
        return bool(self._blocking.get(group_id))

    def clear(self, group_id: str) -> list[Job]:
        """Forget a group's jobs: what has not started is cleared, what runs goes on without the books.

        Farewells are said all the same, for nobody would say them again: those that are queued stay, others are pushed.
        """
        with self._lock:
            cleared = []
            for job in self._books.pop(group_id, ()):
                if job.started_at is not None:
                    continue
                if job.kind not in FAREWELLS:
                    cleared.append(job)
                elif job.queued_at is None:
                    self._take_over(job)
            self._blocking.pop(group_id, None)
            for job in cleared:
                job.cleared = True
                self._waiting -= job.queued_at is None
            dropped = set(cleared)
            self._ready = deque(job for job in self._ready if job not in dropped)
            for job in cleared:
                self._aside -= job.holding.turns.drop(job)
            started = self._fill()
        for job in started:
            self._start(job)
        return cleared

    def stop(self) -> None:
        """Start nothing new: what is queued, or pushed from now on, is handed back."""
        with self._lock:
            self.stopping = True
            ready, self._ready = self._ready, deque()
            for job in ready:
                if job.kind in HOUSEKEEPING:
                    self._ready.append(job)
                else:
                    self._hand_back(job)

    def drain(self, timeout: float) -> bool:
        """Wait until nothing runs; False if it still does."""
        with self._lock:
            return self._idle.wait_for(lambda: not self._running, max(0.0, timeout))

    @property
    def lonely(self) -> Job | None:
        """The job that runs alone, or is next to; None if there is none."""
        with self._lock:
            if self._lonely is not None:
                return self._lonely
            return self._ready[0] if self._ready and self._ready[0].alone else None

    def before(self, job: Job) -> int | None:
        """Count the jobs that are queued before one; None if it stands aside for another of its partition."""
        with self._lock:
            ready = list(self._ready)
        return ready.index(job) if job in ready else None

    def running(self) -> list[Job]:
        """Tell what runs now, oldest first."""
        with self._lock:
            return list(self._running)

    def given(self, group_id: str | None = None) -> list[Job]:
        """Tell the jobs in the books, of one group or of all."""
        with self._lock:
            books = self._books.values() if group_id is None else [self._books.get(group_id, {})]
            return [job for book in books for job in book]
