"""How long tasks take, learned from those that ran.

A running mean in which the last `MEMORY` runs count most: the first runs count as a plain mean.  What a task was
declared with is not touched by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fairlead.jobs.records import ReadyJob

MEMORY = 50


class Estimates:
    """Mean seconds by task."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, int]] = {}
        self._fresh: dict[str, list[float]] = {}

    def saw(self, task: str, seconds: float) -> None:
        """Note a run that completed."""
        self._fresh.setdefault(task, []).append(seconds)

    def replace(self, known: Mapping[str, tuple[float, int]]) -> None:
        """Note what all processes together have learned."""
        self._known = dict(known)

    def merged(self, known: Mapping[str, tuple[float, int]]) -> dict[str, tuple[float, int]]:
        """Add what this process saw to what is known; tell what has changed."""
        changed = {}
        for task, ran in self._fresh.items():
            mean, count = known.get(task, (0.0, 0))
            for seconds in ran:
                count += 1
                mean += (seconds - mean) / min(count, MEMORY)
            changed[task] = (mean, count)
        self._fresh = {}
        self._known = {**known, **changed}
        return changed

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
