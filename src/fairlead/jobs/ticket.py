"""A job as a ticket of the frontier's gate, and as planners see it."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from fairlead.core.ticket import NEW, Bare, Ticket
from fairlead.jobs.planners import FlatJob
from fairlead.jobs.sla import score

if TYPE_CHECKING:
    from collections.abc import Hashable

    from fairlead.core.ticket import State
    from fairlead.jobs.records import Id, ReadyJob, RunningJob


def number_of(job: Any) -> int:
    """Make one number of an id, (dag, node) or "dag.node"; 0, which no job has, of any other text."""
    if isinstance(job, str):
        dag, _, node = job.partition(".")
        return int(dag) << 32 | int(node) if dag.isdecimal() and node.isdecimal() else 0
    dag, node = job
    number: int = dag << 32 | node
    return number


def id_of(ticket: Ticket) -> Id:
    """Tell the id of a ticket's job."""
    return ticket.work.dag, ticket.work.node


def flat(ticket: Ticket, now: float) -> FlatJob:
    """Tell a waiting job as planners see it."""
    job: ReadyJob = ticket.work
    return FlatJob(
        id=f"{job.dag}.{job.node}",
        dag_id=str(job.dag),
        executor=job.executor,
        level=job.level,
        priority=score(now, job.soft, job.hard),
        estimated_runtime=job.estimate,
        waited=max(0.0, now - ticket.arrived_at),
        height=job.height,
        deadline=job.hard if job.soft is None else job.soft,
        tenant=job.tenant,
    )


class _Job:
    # What no job sets is a default of the class: there may be a million of them.
    __slots__ = (
        "arrived_at",
        "place",
        "pool",
        "scopes",
        "seq",
        "started_at",
        "state",
        "tenant",
        "work",
        "workload",
    )

    arrived_at: float
    place: Any
    pool: Hashable
    scopes: tuple[Hashable, ...]
    seq: int
    started_at: float
    state: State
    tenant: Hashable
    work: Any
    workload: Hashable

    can_preempt = False
    committed = False
    cost = 1
    evictable = False
    evictions = 0
    hold_until = inf
    labels = None
    patience = None
    priority = 0
    promoted = False
    rank = 0
    reason = None
    wait_until = inf

    def __init__(self, job: ReadyJob | RunningJob, arrived_at: float) -> None:
        self.work = job
        self.workload = job.dag
        self.pool = job.executor
        self.tenant = job.tenant
        self.arrived_at = arrived_at
        self.state = NEW
        self.seq = 0
        self.started_at = inf
        self.scopes = ()
        self.place = None

    @property
    def key(self) -> str:
        return f"{self.work.dag}.{self.work.node}"

    @property
    def estimate(self) -> float | None:
        return getattr(self.work, "estimate", None)  # a job found running says nothing of it

    @property
    def deadline(self) -> float:
        soft, hard = getattr(self.work, "soft", None), getattr(self.work, "hard", None)
        found: float | None = hard if soft is None else soft
        return inf if found is None else found

    __repr__ = Bare.__repr__


# The core asks for attributes, not for a class: to a type checker it is a ticket like any other.
if TYPE_CHECKING:

    class JobTicket(Ticket):
        """One job asking for a slot."""

        def __init__(self, job: ReadyJob | RunningJob, arrived_at: float) -> None: ...

else:

    class JobTicket(_Job):
        """One job asking for a slot."""

        __slots__ = ()
