"""Two schedulers to use as they are, and to learn from: one job at a time, and workers shared evenly by topic."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from fairlead.streams.jobs import Job
from fairlead.streams.queue import JobsQueue
from fairlead.streams.scheduler import StreamScheduler


class OneAtATime(StreamScheduler):
    """Withhold every job but one, whatever the concurrency."""

    def __init__(self, queue: JobsQueue) -> None:
        super().__init__(queue)
        self._jobs: list[Job] = []

    def schedule_consumption(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._jobs.append(job)
            self.queue.lock(job)
        self._start_one()

    def manage(self) -> None:
        self._start_one()

    def clear(self, group_id: str) -> None:
        self._jobs = [job for job in self._jobs if job.group_id != group_id]

    def _start_one(self) -> None:
        for job in list(self._jobs):
            if self.queue.statistics["busy"]:
                continue
            self.queue << job
            self.queue.unlock(job)
            self._jobs.remove(job)


class FairByTopic(StreamScheduler):
    """Give every topic that is assigned now an even share of the workers."""

    def __init__(self, queue: JobsQueue) -> None:
        super().__init__(queue)
        self._waiting: list[Job] = []
        self._scheduled: list[Job] = []

    def schedule_consumption(self, jobs: Sequence[Job]) -> None:
        # Lock always, for the sake of simplicity.
        for job in jobs:
            self._waiting.append(job)
            self.queue.lock(job)
        self.manage()

    def manage(self) -> None:
        # Forget what has finished: it tells which topics have workers now.
        self._scheduled = [job for job in self._scheduled if not job.finished]
        # More would only stand in the queue.
        if self.queue.statistics["busy"] >= self.concurrency:
            return
        for job in list(self._waiting):
            if self._active(job.topic) >= self._workers_per_topic():
                continue
            self._scheduled.append(job)
            self.queue.unlock(job)
            self.queue << job
            self._waiting.remove(job)

    def clear(self, group_id: str) -> None:
        self._waiting = [job for job in self._waiting if job.group_id != group_id]
        # Those that were queued and had not started are never going to finish.
        self._scheduled = [job for job in self._scheduled if not job.cleared]

    def _active(self, topic: str) -> int:
        return sum(job.topic == topic for job in self._scheduled)

    def _workers_per_topic(self) -> int:
        """Share the workers out; with more topics than workers, one each."""
        return ceil(self.concurrency / max(1, len(self.assignments)))
