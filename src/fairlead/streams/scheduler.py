"""The scheduler a user may write: it decides when each job enters the queue.

One instance serves every subscription group of a process.  The framework calls the `on_` twins; each takes the
scheduler's lock and calls the plain method, so a plain method needs no lock of its own.  Override a twin to go without.

A scheduler has to push every job it is given, sooner or later, also those of partitions that are gone: the worker then
skips the consumer and does the housekeeping.  The one exception are the jobs of a group for which `clear` is called.

    schedule_consumption(jobs)   new batches of one group                            has to be written
    schedule_revocation(jobs)    partitions went away                                pushes all
    schedule_shutdown(jobs)      the app stops                                       pushes all
    schedule_idle(jobs)          housekeeping of a partition, without user code      pushes all
    schedule_periodic(jobs)      a tick of partitions whose consumer has `tick`      pushes all
    schedule_eofed(jobs)         ends of partitions whose consumer has `eofed`       pushes all
    manage()                     a job has finished (`job.finished` is True by then), or `tick_interval` has passed
    clear(group_id)              the group starts anew, or its jobs were pushed in your stead: forget them
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from fairlead.errors import SchedulerFailed
from fairlead.streams.turnstile import Turnstile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fairlead.streams.jobs import Job
    from fairlead.streams.queue import JobsQueue


class SchedulerStuck(SchedulerFailed):
    """The scheduler's lock could not be had: a call of it hangs.  It is to be gone round."""


class StreamScheduler:
    """The base of every scheduler; `schedule_consumption` has to be written.

    >>> class AsTheyCome(StreamScheduler):
    ...     def schedule_consumption(self, jobs):
    ...         for job in jobs:
    ...             self.queue << job
    """

    queue: JobsQueue
    assignments: Mapping[str, tuple[int, ...]]  # the partitions this process holds now, by topic
    concurrency: int  # how many jobs run at once
    buffered = False  # True: batches of later polls may come while earlier ones of the group wait
    inline = False  # True: `manage` is quick, and may be called by whoever has finished a job
    left_alone = False  # True: a call of it hangs, or did until a moment ago; it is asked nothing

    turnstile: Turnstile  # the lock

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # Set up here, so that a subclass with its own __init__ need not call ours.
        self = super().__new__(cls)
        self.turnstile = Turnstile()
        if args:
            StreamScheduler.__init__(self, args[0])
        return self

    def __init__(self, queue: JobsQueue) -> None:
        self.queue = queue
        self.assignments = queue.assignments
        self.concurrency = queue.concurrency

    # To be written or overridden

    def schedule_consumption(self, jobs: Sequence[Job]) -> None:
        """Take new batches, all of one group: push or lock each."""
        raise NotImplementedError(f"{type(self).__name__} has to define schedule_consumption(jobs)")

    def schedule_revocation(self, jobs: Sequence[Job]) -> None:
        """Take jobs of partitions that went away."""
        self._push(jobs)

    def schedule_shutdown(self, jobs: Sequence[Job]) -> None:
        """Take jobs of partitions to be let go because the app stops."""
        self._push(jobs)

    def schedule_idle(self, jobs: Sequence[Job]) -> None:
        """Take housekeeping jobs, which run no user code."""
        self._push(jobs)

    def schedule_periodic(self, jobs: Sequence[Job]) -> None:
        """Take ticks."""
        self._push(jobs)

    def schedule_eofed(self, jobs: Sequence[Job]) -> None:
        """Take jobs of partitions read to the end."""
        self._push(jobs)

    def manage(self) -> None:
        """Look again: a job has finished, or time has passed."""

    def clear(self, group_id: str) -> None:
        """Forget the jobs of a group: it starts anew, or they were pushed while a call hung."""

    def _push(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self.queue.push(job)

    # What the framework calls

    @contextmanager
    def _locked(self) -> Iterator[None]:
        turnstile = self.turnstile
        if turnstile.mine:  # one of its methods calls a twin
            yield
            return
        if not turnstile.enter(lambda: self.left_alone):
            raise SchedulerStuck(f"a call of {type(self).__name__} has not returned")
        try:
            yield
        finally:
            turnstile.leave()

    def on_schedule_consumption(self, jobs: Sequence[Job]) -> None:
        """Call `schedule_consumption` under the lock."""
        with self._locked():
            self.schedule_consumption(jobs)

    def on_schedule_revocation(self, jobs: Sequence[Job]) -> None:
        """Call `schedule_revocation` under the lock."""
        with self._locked():
            self.schedule_revocation(jobs)

    def on_schedule_shutdown(self, jobs: Sequence[Job]) -> None:
        """Call `schedule_shutdown` under the lock."""
        with self._locked():
            self.schedule_shutdown(jobs)

    def on_schedule_idle(self, jobs: Sequence[Job]) -> None:
        """Call `schedule_idle` under the lock."""
        with self._locked():
            self.schedule_idle(jobs)

    def on_schedule_periodic(self, jobs: Sequence[Job]) -> None:
        """Call `schedule_periodic` under the lock."""
        with self._locked():
            self.schedule_periodic(jobs)

    def on_schedule_eofed(self, jobs: Sequence[Job]) -> None:
        """Call `schedule_eofed` under the lock."""
        with self._locked():
            self.schedule_eofed(jobs)

    def on_manage(self) -> None:
        """Call `manage` under the lock."""
        with self._locked():
            self.manage()

    def on_clear(self, group_id: str) -> None:
        """Call `clear` under the lock."""
        with self._locked():
            self.clear(group_id)

    # For the built-in scheduler, and for those who explain

    def settle(self, job: Job) -> None:
        """A job has finished, and `manage` is about to be called for it."""

    def explain(self, job: Job, now: float) -> str:
        """Say why a job has not started."""
        name, age = type(self).__name__, job.age(now)
        if job.locked:
            return f"locked by {name} for {age:.1f} s"
        return f"{name} was given it {age:.1f} s ago, and has neither locked nor pushed it"


def lacking(scheduler: StreamScheduler | type[StreamScheduler]) -> str:
    """Say what a scheduler, or a class of them, still has to define; nothing if it is complete."""
    for name in ("schedule_consumption", "on_schedule_consumption"):
        own = getattr(scheduler, name)
        if getattr(own, "__func__", own) is not getattr(StreamScheduler, name):
            return ""
    return (
        "has to define schedule_consumption(self, jobs): write self.queue << job for each job, "
        "or self.queue.lock(job) and push it later"
    )
