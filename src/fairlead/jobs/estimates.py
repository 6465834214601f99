"""How long tasks take, learned from those that ran.

A running mean in which the last `MEMORY` runs count most: the first runs count as a plain mean.  What a task was
declared with is not touched by it.  Whoever runs jobs, be it a leader, a standby or a worker, now and then shares what
it saw through the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.jobs.states import COMPLETED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fairlead.jobs.records import Ending, ReadyJob
    from fairlead.jobs.stores.base import Store

MEMORY = 50


class Estimates:
    """Mean seconds by task: what all processes have learned, and what this one has seen since."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, int]] = {}
        self._fresh: dict[str, list[float]] = {}  # seen here, and not shared yet

    @property
    def fresh(self) -> bool:
        """Whether anything was seen that others do not know."""
        return bool(self._fresh)

    def note(self, endings: Iterable[Ending]) -> None:
        """Note those of some endings that completed here."""
        ran: dict[str, list[float]] = {}
        for ending in endings:
            if ending.state == COMPLETED and ending.task is not None and ending.ran is not None:
                ran.setdefault(ending.task, []).append(ending.ran)
        for task, seconds in ran.items():
            self.saw(task, seconds)

    def saw(self, task: str, ran: Sequence[float]) -> None:
        """Note for how many seconds a task ran, each time that it completed; from now on that counts here."""
        self._fresh.setdefault(task, []).extend(ran)
        self._count(task, ran)

    def replace(self, known: Mapping[str, tuple[float, int]]) -> None:
        """Note what all processes together have learned."""
        self._known = dict(known)
        for task, ran in self._fresh.items():
            self._count(task, ran)

    def merged(self, known: Mapping[str, tuple[float, int]]) -> dict[str, tuple[float, int]]:
        """Add what this process saw to what is known; tell what has changed."""
        self.replace(known)
        changed = {task: self._known[task] for task in self._fresh}
        self._fresh = {}
        return changed

    async def share(self, store: Store) -> None:
        """Tell others what was seen here, and hear what they saw; of two that do so at once one may be forgotten."""
        if changed := self.merged(await store.estimates()):
            await store.learn(changed)

    def _count(self, task: str, ran: Sequence[float]) -> None:
        mean, count = self._known.get(task, (0.0, 0))
        for seconds in ran:
            count += 1
            mean += (seconds - mean) / min(count, MEMORY)
        self._known[task] = (mean, count)

    def of(self, task: str) -> float | None:
        """Tell the mean, or None if nobody has seen it run."""
        found = self._known.get(task)
        return None if found is None else found[0]

    def means(self) -> dict[str, float]:
        """Tell the mean of every task that was seen to run."""
        return {task: mean for task, (mean, _) in self._known.items()}

    def fill(self, jobs: Sequence[ReadyJob]) -> Sequence[ReadyJob]:
        """Give jobs without an estimate the learned one."""
        if not self._known:
            return jobs
        return [
            job
            if job.estimate is not None or job.task not in self._known
            else job._replace(estimate=self._known[job.task][0])
            for job in jobs
        ]
