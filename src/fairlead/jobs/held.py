"""Jobs that wait outside the gate, because not every worker of their executor knows their task.

The gate counts slots by executor and takes them all for alike.  While old and new code run side by side they are not: a
job of a new task has room only on a new worker.  Such jobs stay here, ordered by deadline and age, and enter the gate a
few at a time, as slots of workers that know their task come free.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlead.jobs.records import ReadyJob

Kind = tuple[str, str]  # an executor and a task


class Held:
    """Ready jobs by executor and task, and by run."""

    def __init__(self) -> None:
        self._heaps: dict[Kind, list[tuple[float, float, int]]] = {}
        self._jobs: dict[int, dict[int, ReadyJob]] = {}
        self._counts: dict[Kind, int] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, dag: int) -> bool:
        return dag in self._jobs

    def __iter__(self) -> Iterator[ReadyJob]:
        for jobs in self._jobs.values():
            yield from jobs.values()

    def kinds(self) -> list[Kind]:
        """List the executors and tasks of which jobs are here."""
        return list(self._counts)

    def count(self, executor: str) -> int:
        """Count the jobs for an executor."""
        return sum(count for kind, count in self._counts.items() if kind[0] == executor)

    def find(self, dag: int, node: int) -> ReadyJob | None:
        """Find a job."""
        return self._jobs.get(dag, {}).get(node)

    def nodes(self, dag: int) -> list[int]:
        """List the jobs of a run."""
        return list(self._jobs.get(dag, ()))

    def add(self, job: ReadyJob) -> None:
        """Keep a job, in place of what was known of it before."""
        self.remove(job.dag, job.node)
        kind = job.executor, job.task
        self._jobs.setdefault(job.dag, {})[job.node] = job
        self._size += 1
        self._counts[kind] = self._counts.get(kind, 0) + 1
        heappush(self._heaps.setdefault(kind, []), _rank(job))

    def remove(self, dag: int, node: int) -> bool:
        """Forget a job; return False if it is not here."""
        job = self._jobs.get(dag, {}).pop(node, None)
        if job is None:
            return False
        if not self._jobs[dag]:
            del self._jobs[dag]
        kind = job.executor, job.task
        self._size -= 1
        left = self._counts[kind] - 1
        if left:
            self._counts[kind] = left
            heap = self._heaps[kind]
            if len(heap) > 64 + 2 * left:  # mostly of jobs that have gone
                heap[:] = [_rank(one) for one in self if (one.executor, one.task) == kind]
                heapify(heap)
        else:
            del self._counts[kind], self._heaps[kind]
        return True

    def take(self, kind: Kind, most: int) -> list[ReadyJob]:
        """Take out the first jobs of a kind."""
        taken: list[ReadyJob] = []
        while len(taken) < most and kind in self._heaps:
            rank = heappop(self._heaps[kind])
            job = self.find(rank[2] >> 32, rank[2] & 0xFFFFFFFF)
            if job is not None and _rank(job) == rank and (job.executor, job.task) == kind:
                self.remove(job.dag, job.node)
                taken.append(job)
        return taken


def _rank(job: ReadyJob) -> tuple[float, float, int]:
    deadline = job.hard if job.soft is None else job.soft
    return inf if deadline is None else deadline, job.ready_at, job.dag << 32 | job.node
