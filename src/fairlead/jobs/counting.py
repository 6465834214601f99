"""What a serving process has seen since it started, for metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.jobs.states import FAILED
from fairlead.jobs.timing import Timings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlead.jobs.records import Ending, ReadyJob, RunEnd


class Counts:
    """Plain numbers; the scheduler adds to them."""

    def __init__(self) -> None:
        self.claimed = 0
        self.lost_claims = 0
        self.ended: dict[str, int] = {}  # jobs, by the state they went to
        self.runs_ended: dict[str, int] = {}
        self.rescued = 0
        self.quarantined = 0
        self.company_deaths = 0
        self.missed: dict[str, int] = {"soft": 0, "hard": 0}
        self.takeovers = 0
        self.planning_seconds = 0.0
        self.planning_rounds = 0
        self.waits = Timings()  # from ready, or from when it was to start, to claimed
        self.runs = Timings()

    def saw_ends(self, endings: Iterable[Ending]) -> None:
        """Note how tries ended; a job that failed by a death was quarantined."""
        ended = self.ended
        for ending in endings:
            state = ending.state
            ended[state] = ended.get(state, 0) + 1
            if ending.death is not None:
                self.quarantined += state == FAILED
                self.company_deaths += not ending.death.alone

    def saw_run_ends(self, runs: Iterable[RunEnd]) -> None:
        """Note how runs ended."""
        for _, state in runs:
            self.runs_ended[state] = self.runs_ended.get(state, 0) + 1

    def claimed_at(self, now: float, jobs: Iterable[ReadyJob]) -> None:
        """Note how long jobs that were claimed now had waited."""
        saw = self.waits.saw
        for job in jobs:
            since = job.ready_at
            if job.start_at > since:
                since = job.start_at
            saw(job.task, job.executor, now - since if now > since else 0.0)
