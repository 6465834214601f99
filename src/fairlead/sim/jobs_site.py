"""The frontier of jobs, for the simulator: planners, tenants and executors are the door's own.

A durable door decides in rounds: what comes and ends at one instant is planned together.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationInfo, field_validator

from fairlead.core import Gate
from fairlead.core.ticket import RUNNING, WAITING, WITHDRAWN
from fairlead.documents.values import Duration, DurationOrZero, Model
from fairlead.errors import ConfigError
from fairlead.jobs.frontier import Frontier
from fairlead.jobs.planners import kind_of
from fairlead.jobs.planning import planner_of
from fairlead.jobs.records import ReadyJob
from fairlead.jobs.settings import TenantLimits
from fairlead.sim.graphs import followers_of, in_turn
from fairlead.sim.site import SimTicket, Site

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fairlead.runtime import MakeGate
    from fairlead.sim.reading import Draft
    from fairlead.sim.result import Arrival

Most = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
ALONE = 1 << 24  # runs from here on are of one job each


class TenantSettings(Model):
    """What a tenant gets."""

    weight: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] = 1.0
    max_running: Most | None = None


class JobsSettings(Model):
    """What `Jobs` takes that decides who goes next, and the slots that workers would bring."""

    planner: Any = None  # by its name; once read, a planner or the class of one
    executors: Annotated[dict[str, Most], Field(min_length=1)] = Field(
        default_factory=lambda: {"default": 16}
    )
    max_concurrent_dags: Most | None = None
    max_running_per_dag: Most | None = None
    max_wait: Duration = 3600.0
    max_withheld: DurationOrZero = 10.0
    burst: DurationOrZero = 60.0
    tenants: dict[str, TenantSettings] = Field(default_factory=dict)

    @field_validator("planner")
    @classmethod
    def _known(cls, given: Any, info: ValidationInfo) -> Any:
        return None if given is None else kind_of(given, info.context or {})


class FrontierGate:
    """The verbs of a gate, as a frontier carries them out."""

    def __init__(self, said: JobsSettings, make: MakeGate = Gate) -> None:
        self.planner: Any = planner_of(said.planner)
        self.frontier = Frontier(
            planners=lambda executor: self.planner,
            tenants={
                name: TenantLimits(one.weight, one.max_running)
                for name, one in said.tenants.items()
            },
            max_concurrent_dags=said.max_concurrent_dags,
            max_running_per_dag=said.max_running_per_dag,
            max_wait=said.max_wait,
            max_withheld=said.max_withheld,
            burst=said.burst,
            gate=make,
        )
        for executor, slots in said.executors.items():
            self.frontier.resize(executor, slots, 0.0)
        self.jobs: dict[int, ReadyJob] = {}  # by the number of the arrival
        self.left: dict[int, int] = {}  # jobs of a run that have yet to end
        self._tickets: dict[int, Any] = {}
        self._arriving: list[ReadyJob] = []
        self._ending: list[ReadyJob] = []
        self._round_at = inf  # a round is due
        self.due = inf

    def offer(self, ticket: Any, now: float) -> Sequence[Any]:
        """Let a job wait for the next round."""
        ticket.state, ticket.arrived_at = WAITING, now
        job = self.jobs[ticket.work]._replace(ready_at=now)
        self._tickets[ticket.work] = ticket
        self._arriving.append(job)
        self._round_at = self.due = now
        return ()

    def finish(self, ticket: Any, now: float) -> Sequence[Any]:
        """Take room back in the next round."""
        ticket.state = type(ticket.state).DONE
        self._ending.append(self.jobs[ticket.work])
        del self._tickets[ticket.work]
        self._round_at = self.due = now
        return ()

    def withdraw(self, tickets: Iterable[Any], now: float) -> Sequence[Any]:
        """Let jobs wait no longer."""
        changed = self._round(now)
        for ticket in tickets:
            if ticket.state is WAITING:
                job = self.jobs[ticket.work]
                self.frontier.drop(job.dag, now, [job.node])
                ticket.state = WITHDRAWN
                del self._tickets[ticket.work]
                self._ended(job, now)
        return changed + self._round(now)

    def advance(self, now: float) -> Sequence[Any]:
        """Plan a round."""
        return self._round(now)

    def next_wakeup(self, now: float) -> float:
        """Tell when to call `advance`."""
        self.due = min(self._round_at, self.frontier.due)
        return self.due

    def lent(self, now: float) -> None:
        """Use slots of a pool that were lent, in the next round."""
        self._round_at = self.due = now

    def commit(self, ticket: Any) -> bool:
        """Nobody preempts a job."""
        return True

    def _round(self, now: float) -> list[Any]:
        frontier = self.frontier
        ending, self._ending = self._ending, []
        arriving, self._arriving = self._arriving, []
        self._round_at = inf
        # As the door does it: room is given back when all that became ready by that is there to have it.
        if arriving:
            frontier.add(arriving, now)
        if ending:
            frontier.ended([(job.dag, job.node) for job in ending], now)
            for job in ending:
                self._ended(job, now)
        frontier.advance(now)
        for executor in frontier.needs_plan(now):
            jobs = frontier.candidates(executor, now)
            active, recent = frontier.active_dags_text(), frontier.recent_dags_text(now)
            planned = self.planner.plan(jobs, frontier.slots(), active, recent)
            frontier.planned(executor, [job.id for job in planned], now)
        changed = []
        for job in frontier.started():
            ticket = self._tickets[job.node]
            ticket.state, ticket.started_at = RUNNING, now
            changed.append(ticket)
        self.next_wakeup(now)
        return changed

    def _ended(self, job: ReadyJob, now: float) -> None:
        self.left[job.dag] -= 1
        if not self.left[job.dag]:
            del self.left[job.dag]
            self.frontier.ended_run(job.dag, now)


class JobsSite(Site):
    """A planner over executors."""

    def __init__(self, said: JobsSettings, make: MakeGate = Gate) -> None:
        self._frontier = FrontierGate(said, make)
        super().__init__(self._frontier)
        self.slots = sum(said.executors.values())
        self.pools = tuple(said.executors)

    def refuses(self, arrival: Arrival) -> str | None:
        return super().refuses(arrival._replace(pool=arrival.pool or "default"))

    def check(self, arrivals: Iterable[Arrival], numbers: Sequence[int] | None = None) -> None:
        """Learn the graphs: a planner knows how deep a job stands, and how long what follows it takes."""
        arrivals = list(arrivals)
        super().check(arrivals)
        if any(arrival.patience is not None for arrival in arrivals):
            raise ConfigError("jobs wait as long as it takes: leave patience out, or use leaves")
        levels, heights = _measured(arrivals)
        known = zip(arrivals, levels, heights, strict=True)
        for number, one in zip(numbers or range(len(arrivals)), known, strict=True):
            self._learn(number, *one)

    def _learn(self, number: int, arrival: Arrival, level: int, height: float) -> None:
        run = arrival.dag + 1 if arrival.dag >= 0 else ALONE + number
        gate = self._frontier
        gate.left[run] = gate.left.get(run, 0) + 1
        gate.jobs[number] = ReadyJob(
            run,
            number,
            arrival.key or str(number),
            arrival.workload or "job",
            arrival.pool or "default",
            arrival.tenant,
            level,
            height,
            _estimate(arrival),
            arrival.deadline,
            None,
            arrival.at,
            0,
            False,
        )

    def ticket(self, number: int, arrival: Arrival, now: float) -> Any:
        if number not in self._frontier.jobs:  # of a client that comes again and again
            self._learn(number, arrival, 0, _estimate(arrival))
        return SimTicket(number, arrival, now)


def _estimate(arrival: Arrival) -> float:
    return arrival.service if arrival.estimate is None else arrival.estimate


def _measured(arrivals: Sequence[Arrival]) -> tuple[list[int], list[float]]:
    """Tell the depth of each in its graph, and the longest way from its start to the end of all that follows."""
    followers = followers_of(arrivals)
    order = in_turn(arrivals, followers)
    levels = [0] * len(arrivals)
    for number in order:
        for follower in followers.get(number, ()):
            levels[follower] = max(levels[follower], levels[number] + 1)
    heights = [_estimate(arrival) for arrival in arrivals]
    for number in reversed(order):
        heights[number] += max((heights[one] for one in followers.get(number, ())), default=0.0)
    return levels, heights


def read(draft: Draft, own: Iterable[str]) -> Callable[[], Site] | None:
    """Read planner, executors and limits."""
    said = draft.read(JobsSettings, without=own)
    return None if said is None else lambda: JobsSite(said)
