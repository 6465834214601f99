"""What a serving process has seen since it started, for metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.jobs.states import FAILED
from fairlead.jobs.timing import Timings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlead.jobs.records import Ending, ReadyJob


class Counts:
    """Plain numbers; the scheduler adds to them."""

    def __init__(self) -> None:
        self.claimed = 0
        self.lost_claims = 0
        self.ended: dict[str, int] = {}  # jobs, by the state they went to
        self.runs_ended: dict[str, int] = {}
        self.rescued = 0
        self.quarantined = 0
        self.missed: dict[str, int] = {"soft": 0, "hard": 0}
        self.takeovers = 0
        self.planning_seconds = 0.0
        self.planning_rounds = 0
        self.waits = Timings()  # from ready, or from when it was to start, to claimed
        self.runs = Timings()

    def saw_end(self, ending: Ending, max_crashes: int) -> None:
        """Note how a try ended; a job that failed with so many crashes was quarantined."""
        self.ended[ending.state] = self.ended.get(ending.state, 0) + 1
        self.quarantined += ending.state == FAILED and (ending.crashes or 0) >= max_crashes

    def claimed_at(self, now: float, jobs: Iterable[ReadyJob]) -> None:
        """Note how long jobs that were claimed now had waited."""
        for job in jobs:
            since = max(job.ready_at, job.start_at)
            self.waits.saw(job.task, job.executor, max(0.0, now - since))
