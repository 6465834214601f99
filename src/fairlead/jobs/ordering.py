"""The built-in planners as orders that are kept, not sorted: what `plan` would put first is found in a few steps.

Each planner's key, within one executor, is of the shape of `fairlead.policies.ranked`:

    planner             band                          score            middle     then
    GlobalPriority      −level (or −height)           SLA priority     0          new DAG, runtime, burst, arrival
    SJFS                runtime, −level               SLA priority     0          new DAG, runtime, burst, arrival
    EarliestDeadline    deadline                      SLA priority     −level     new DAG, burst, runtime, arrival
    LeastSlack          deadline − work               SLA priority     −level     new DAG, burst, runtime, arrival
    HRRN                ratio, waited, −level         SLA priority     0          new DAG, runtime, burst, arrival

HRRN's turns with time: `fairlead.policies.ratio`.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from fairlead.jobs.planners import (
    EarliestDeadlineExecutionPlanner,
    GlobalPriorityExecutionPlanner,
    HRRNExecutionPlanner,
    LeastSlackExecutionPlanner,
    SJFSExecutionPlanner,
    number,
)
from fairlead.jobs.sla import next_change, score
from fairlead.policies.ranked import Ranked, Ranking
from fairlead.policies.ratio import Ratio, RatioRanking

if TYPE_CHECKING:
    from collections.abc import Hashable

    from fairlead.core.policy import Policy
    from fairlead.core.ticket import Ticket
    from fairlead.jobs.records import ReadyJob
    from fairlead.policies.cohorts import Register

SHARED = frozenset({"executor", "tenant"})  # scopes of all the jobs in one queue


LONGEST = 1.7976931348623157e308  # stands for an infinite estimate: a missing one is later still


def runtime(job: ReadyJob) -> float:
    """Read an estimate for comparison: an infinite one goes before a missing one."""
    estimate = job.estimate
    return min(estimate, LONGEST) if estimate is not None and estimate >= 0 else inf


class JobRanking(Ranking):
    """What the orders of jobs have in common."""

    def __init__(self, capped: bool) -> None:
        self._capped = capped  # is there a cap per DAG?

    def group(self, ticket: Ticket) -> Hashable:
        return ticket.workload

    def changes_at(self, ticket: Ticket, now: float) -> float:
        job: ReadyJob = ticket.work
        soft, hard = job.soft, job.hard
        return inf if soft is None and hard is None else next_change(now, soft, hard)

    def size(self, ticket: Ticket) -> Any:
        return runtime(ticket.work)

    def section(self, ticket: Ticket, begun: bool) -> Hashable:
        # A cap per DAG keeps out only what belongs to a DAG that has begun.
        return ticket.workload if begun and self._capped else begun

    def shared(self, scope: Hashable) -> bool:
        return scope[0] in SHARED  # type: ignore[index]


NEGATIVE = [-score for score in range(2000)]  # each number once, not once for each job


def urgency(job: ReadyJob, now: float) -> int:
    """Tell the SLA priority, negative: less is sooner."""
    soft, hard = job.soft, job.hard
    return 0 if soft is None and hard is None else NEGATIVE[score(now, soft, hard)]


def sla(job: ReadyJob) -> tuple[float | None, ...]:
    """Tell the SLA as part of a cohort's name, of which there may be a million: the shorter the better."""
    soft, hard = job.soft, job.hard
    return (soft,) if hard is None else (soft, hard)


class ByLevel(JobRanking):
    """GlobalPriorityExecutionPlanner, by depth."""

    def standing(self, ticket: Ticket, now: float) -> tuple[Any, float, Any]:
        job: ReadyJob = ticket.work
        return -job.level, urgency(job, now), 0

    def terms(self, ticket: Ticket) -> tuple[Hashable, ...]:
        job: ReadyJob = ticket.work
        return (job.level, *sla(job))


class ByHeight(JobRanking):
    """GlobalPriorityExecutionPlanner, by critical path."""

    def standing(self, ticket: Ticket, now: float) -> tuple[Any, float, Any]:
        job: ReadyJob = ticket.work
        return -number(job.height), urgency(job, now), 0

    def terms(self, ticket: Ticket) -> tuple[Hashable, ...]:
        job: ReadyJob = ticket.work
        return (job.height, *sla(job))


class ByRuntime(JobRanking):
    """SJFSExecutionPlanner."""

    def standing(self, ticket: Ticket, now: float) -> tuple[Any, float, Any]:
        job: ReadyJob = ticket.work
        return (runtime(job), -job.level), urgency(job, now), 0

    def terms(self, ticket: Ticket) -> tuple[Hashable, ...]:
        job: ReadyJob = ticket.work
        return (runtime(job), job.level, *sla(job))


class ByDeadline(JobRanking):
    """EarliestDeadlineExecutionPlanner."""

    size_first = False

    def limit(self, job: ReadyJob) -> float:
        """Tell until when it has to start; inf if at any time."""
        deadline = job.hard if job.soft is None else job.soft
        return inf if deadline is None else deadline

    def standing(self, ticket: Ticket, now: float) -> tuple[Any, float, Any]:
        job: ReadyJob = ticket.work
        return self.limit(job), urgency(job, now), -job.level

    def terms(self, ticket: Ticket) -> tuple[Hashable, ...]:
        job: ReadyJob = ticket.work
        return (self.limit(job), job.level, *sla(job))


class BySlack(ByDeadline):
    """LeastSlackExecutionPlanner."""

    def limit(self, job: ReadyJob) -> float:
        work = number(job.height) or runtime(job)
        return super().limit(job) - (work if work < LONGEST else 0.0)


class ByRatio(JobRanking, RatioRanking):
    """HRRNExecutionPlanner."""

    def length(self, ticket: Ticket) -> float | None:
        estimate: float | None = ticket.work.estimate
        return estimate if estimate is not None and estimate >= 0 else None

    def level(self, ticket: Ticket) -> Any:
        return -ticket.work.level

    def score(self, ticket: Ticket, now: float) -> float:
        return -urgency(ticket.work, now)

    def size(self, ticket: Ticket) -> Any:
        return 0

    def terms(self, ticket: Ticket) -> tuple[Hashable, ...]:
        job: ReadyJob = ticket.work
        return (self.length(ticket), self.age(ticket), job.level, *sla(job))


class ByUrgency(JobRanking):
    """SLA priority and age: the order in which jobs are shown to a user's planner, and in which they go without it."""

    prefers_begun = False

    def standing(self, ticket: Ticket, now: float) -> tuple[Any, float, Any]:
        return 0, urgency(ticket.work, now), 0

    def terms(self, ticket: Ticket) -> tuple[Hashable, ...]:
        job: ReadyJob = ticket.work
        return sla(job)

    def size(self, ticket: Ticket) -> Any:
        return 0


RANKINGS: dict[type, type[JobRanking]] = {
    SJFSExecutionPlanner: ByRuntime,
    EarliestDeadlineExecutionPlanner: ByDeadline,
    LeastSlackExecutionPlanner: BySlack,
}


def order_of(planner: object, register: Register, capped: bool) -> Policy | None:
    """Make the order that serves as a built-in planner plans; None for a planner of a user's own."""
    kind = type(planner)
    if kind is GlobalPriorityExecutionPlanner:
        by_height = planner.level == "critical_path"  # type: ignore[attr-defined]
        return Ranked((ByHeight if by_height else ByLevel)(capped), register)
    if kind is HRRNExecutionPlanner:
        return Ratio(ByRatio(capped), register)
    ranking = RANKINGS.get(kind)
    return None if ranking is None else Ranked(ranking(capped), register)
