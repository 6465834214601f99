"""Jobs that are ready but for the time: a retry that waits, or a run that was to start later."""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fairlead.jobs.records import ReadyJob


class Later:
    """Jobs by `start_at`, and by run."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._jobs: dict[int, dict[int, ReadyJob]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, dag: int) -> bool:
        return dag in self._jobs

    def find(self, dag: int, node: int) -> ReadyJob | None:
        """Find a job."""
        return self._jobs.get(dag, {}).get(node)

    def nodes(self, dag: int) -> Iterable[int]:
        """Tell which jobs of a run are here."""
        return list(self._jobs.get(dag, ()))

    def add(self, job: ReadyJob) -> None:
        """Keep a job until its time; what was known of it is forgotten."""
        self.remove(job.dag, job.node)
        self._jobs.setdefault(job.dag, {})[job.node] = job
        self._size += 1
        heappush(self._heap, (job.start_at, job.dag << 32 | job.node))

    def remove(self, dag: int, node: int) -> bool:
        """Forget a job; False if it is not here."""
        jobs = self._jobs.get(dag)
        if jobs is None or jobs.pop(node, None) is None:
            return False
        self._size -= 1
        if not jobs:
            del self._jobs[dag]
        if len(self._heap) > 64 + 2 * self._size:
            everything = (job for jobs in self._jobs.values() for job in jobs.values())
            self._heap = sorted((job.start_at, job.dag << 32 | job.node) for job in everything)
        return True

    def due(self) -> float:
        """Tell when the first may start; a lower bound."""
        return self._heap[0][0] if self._heap else inf

    def take(self, now: float) -> Iterator[ReadyJob]:
        """Take out those whose time has come."""
        while self._heap and self._heap[0][0] <= now:
            start_at, number = heappop(self._heap)
            job = self.find(number >> 32, number & 0xFFFFFFFF)
            if job is not None and job.start_at == start_at:
                self.remove(job.dag, job.node)
                yield job
