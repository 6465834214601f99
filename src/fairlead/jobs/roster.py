"""Who can run jobs: the workers as the leader sees them, and which of them runs what.

A worker is given up only if its lease has run out by the store's clock *and* this leader, by its own monotonic clock,
has seen no sign of life for as long: a clock that jumps robs nobody.  One that had expired before this leader ever saw
it alive is given up at once.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from fairlead.jobs.records import Id, RunningJob, WorkerRow


class Roster:
    """The workers of all processes."""

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._rows: dict[int, WorkerRow] = {}
        self._takers: dict[str, list[WorkerRow]] = {}  # those that take more, by executor
        self._signs: dict[int, tuple[int, float]] = {}  # worker -> beats, and when they changed
        self._used: dict[int, int] = {}
        self._places: dict[Id, int] = {}

    def see(self, rows: Sequence[WorkerRow], clock: float) -> None:
        """Note the workers there are now."""
        gone = set(self._executors()) - {row.executor for row in rows}
        self._rows = {row.id: row for row in rows}
        self._gone = gone
        signs = {}
        for row in rows:
            old = self._signs.get(row.id)
            if old is None:
                signs[row.id] = (row.beats, -1.0 if row.expired else clock)
            else:
                signs[row.id] = old if old[0] == row.beats else (row.beats, clock)
        self._signs = signs
        self._takers = {}
        for row in rows:
            if not row.expired and not row.draining:
                self._takers.setdefault(row.executor, []).append(row)

    def _executors(self) -> Iterable[str]:
        return (row.executor for row in self._rows.values())

    _gone: Collection[str] = ()

    def silent(self, clock: float) -> list[int]:
        """Tell whom to give up."""
        return [
            row.id
            for row in self._rows.values()
            if row.expired
            and (self._signs[row.id][1] < 0 or clock - self._signs[row.id][1] >= self._lease)
        ]

    def slots(self) -> dict[str, int]:
        """Tell the slots per executor of workers that live and take more; an executor that lost them all has 0."""
        found = dict.fromkeys(self._gone, 0)
        for row in self._rows.values():
            usable = 0 if row.expired or row.draining else row.slots
            found[row.executor] = found.get(row.executor, 0) + usable
        return found

    def hold(self, running: Iterable[RunningJob]) -> None:
        """Note where jobs run already."""
        for job in running:
            self._put((job.dag, job.node), job.worker)

    def common(self) -> dict[str, frozenset[str]]:
        """Return the tasks that every worker of an executor knows; an executor is left out where no worker said."""
        found: dict[str, frozenset[str]] = {}
        for executor, rows in self._takers.items():
            told = [row.tasks for row in rows if row.tasks is not None]
            if told:
                found[executor] = told[0].intersection(*told[1:])
        return found

    def free(self, executor: str, task: str) -> int:
        """Count the free slots of workers that know a task."""
        return sum(
            max(0, row.slots - self._used.get(row.id, 0))
            for row in self._takers.get(executor, ())
            if row.knows(task)
        )

    def place(self, executor: str, task: str, job: Id, own: Collection[int]) -> int | None:
        """Choose a worker that knows the task and has a free slot; None if there is none.

        Of several, the worker that knows the fewest tasks, so that the others stay free for tasks that only they know;
        then the worker with most slots free; then one of this process.
        """
        best: int | None = None
        best_rank = (0.0, 0, False)
        for row in self._takers.get(executor, ()):
            free = row.slots - self._used.get(row.id, 0)
            if free <= 0 or not row.knows(task):
                continue
            known = inf if row.tasks is None else float(len(row.tasks))
            rank = (-known, free, row.id in own)
            if best is None or rank > best_rank:
                best, best_rank = row.id, rank
        if best is not None:
            self._put(job, best)
        return best

    def release(self, jobs: Iterable[Id]) -> None:
        """Note that jobs run no more."""
        for job in jobs:
            worker = self._places.pop(job, None)
            if worker is not None:
                left = self._used[worker] - 1
                if left:
                    self._used[worker] = left
                else:
                    del self._used[worker]

    def _put(self, job: Id, worker: int) -> None:
        if job in self._places:
            self.release((job,))
        self._places[job] = worker
        self._used[worker] = self._used.get(worker, 0) + 1

    def busy(self) -> dict[str, int]:
        """Tell how many slots are in use, by executor."""
        found = dict.fromkeys(self._executors(), 0)
        for worker, used in self._used.items():
            row = self._rows.get(worker)
            if row is not None:
                found[row.executor] = found.get(row.executor, 0) + used
        return found
