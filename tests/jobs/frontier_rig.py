"""Jobs for tests of the frontier, and what its orders are compared with: `plan` of the planner itself."""

from dataclasses import dataclass, field
from typing import Any

from fairlead.jobs.frontier import Frontier
from fairlead.jobs.planners import FlatJob, GlobalPriorityExecutionPlanner
from fairlead.jobs.records import ReadyJob, RunningJob
from fairlead.jobs.sla import score
from fairlead.testing import CheckedGate

EVER = 1e15


def job(
    dag: int,
    node: int = 0,
    *,
    task: str = "task",
    executor: str = "ocr",
    tenant: str = "",
    level: int = 0,
    height: float = 0.0,
    estimate: float | None = None,
    soft: float | None = None,
    hard: float | None = None,
    ready_at: float = 0.0,
    start_at: float = 0.0,
    active: bool = False,
) -> ReadyJob:
    return ReadyJob(
        dag,
        node,
        f"job-{node}",
        task,
        executor,
        tenant,
        level,
        height,
        estimate,
        soft,
        hard,
        ready_at,
        start_at,
        active,
    )


def run(dag: int, node: int = 0, executor: str = "ocr", tenant: str = "") -> RunningJob:
    return RunningJob(dag, node, "task", executor, tenant, 1, 1, True, 0.0, 0, 0, 0, 1.0, False)


def frontier(planner: object = None, **settings: Any) -> Frontier:
    """Make one that checks itself after every verb."""
    chosen = GlobalPriorityExecutionPlanner() if planner is None else planner
    settings = {"max_wait": EVER, "gate": CheckedGate, **settings}
    return Frontier(planners=lambda executor: chosen, **settings)


def ids(jobs: list[ReadyJob]) -> list[tuple[int, int]]:
    return [(one.dag, one.node) for one in jobs]


@dataclass
class Reference:
    """What waits and what has begun, kept in the plainest way; `first` asks the planner itself."""

    planner: Any
    burst: float
    waiting: list[ReadyJob] = field(default_factory=list)
    active: dict[int, float] = field(default_factory=dict)

    def add(self, jobs: list[ReadyJob]) -> None:
        self.waiting += jobs
        for one in jobs:
            if one.active:
                self.active.setdefault(one.dag, -EVER)

    def first(self, now: float) -> tuple[int, int]:
        arrived = sorted(self.waiting, key=lambda one: one.ready_at)
        flat = [
            FlatJob(
                id=(one.dag, one.node),
                dag_id=one.dag,
                executor=one.executor,
                level=one.level,
                priority=score(now, one.soft, one.hard),
                estimated_runtime=one.estimate,
                waited=now - one.ready_at,
                height=one.height,
                deadline=one.hard if one.soft is None else one.soft,
            )
            for one in arrived
        ]
        recent = {dag for dag, since in self.active.items() if now < since + self.burst}
        best: tuple[int, int] = self.planner.plan(flat, {"ocr": 1}, set(self.active), recent)[0].id
        return best

    def start(self, best: tuple[int, int], now: float) -> None:
        self.waiting = [one for one in self.waiting if (one.dag, one.node) != best]
        self.active.setdefault(best[0], now)
