"""The frontier starts jobs in exactly the order that the planner's own `plan` gives, whatever the time and the DAGs."""

import random

import pytest

from fairlead.jobs.planners import (
    EarliestDeadlineExecutionPlanner,
    ExecutionPlanner,
    GlobalPriorityExecutionPlanner,
    HRRNExecutionPlanner,
    LeastSlackExecutionPlanner,
    SJFSExecutionPlanner,
)
from tests.jobs.frontier_rig import Reference, frontier, ids, job

PLANNERS = [
    GlobalPriorityExecutionPlanner(),
    GlobalPriorityExecutionPlanner(level="critical_path"),
    HRRNExecutionPlanner(),
    SJFSExecutionPlanner(),
    EarliestDeadlineExecutionPlanner(),
    LeastSlackExecutionPlanner(),
]
NAMES = ["global", "critical path", "hrrn", "sjfs", "deadline", "slack"]
INF = float("inf")


def some_job(rng: random.Random, dag: int, node: int, now: int):
    sla = rng.choice((None, None, rng.randrange(-3000, 6000)))
    return job(
        dag,
        node,
        level=rng.randrange(3),
        height=rng.choice((0.0, 5.0, 20.0, 80.0)),
        estimate=rng.choice((None, 0.0, 1.0, 4.0, 64.0, INF)),
        soft=None if sla is None or rng.random() < 0.3 else now + sla,
        hard=None if sla is None or rng.random() < 0.3 else now + sla + rng.randrange(1000),
        ready_at=float(now - rng.randrange(1, 600)),
        active=rng.random() < 0.2 and dag % 3 == 0,
    )


@pytest.mark.parametrize("planner", PLANNERS, ids=NAMES)
@pytest.mark.parametrize("seed", range(12))
def test_every_start_is_what_plan_would_put_first(planner: ExecutionPlanner, seed: int) -> None:
    rng = random.Random(f"{seed}")
    burst = 60.0
    tested = frontier(planner, burst=burst)
    tested.resize("ocr", 1, 0.0)
    reference = Reference(planner, burst)
    now, nodes, running = 10_000, 0, None
    for _ in range(150):
        now += rng.choice((0, 1, 7, 50, 450, 900))
        deed = rng.random()
        if deed < 0.5:
            batch = []
            for _ in range(rng.randrange(1, 6)):
                nodes += 1
                batch.append(some_job(rng, rng.randrange(1, 8), nodes, now))
            began = {one.dag for one in batch if one.active}
            batch = [one._replace(active=one.dag in began) for one in batch]
            reference.add(batch)
            tested.add(batch, now)
        elif deed < 0.6 and reference.waiting:
            gone = rng.choice(reference.waiting)
            reference.waiting.remove(gone)
            tested.drop(gone.dag, now, [gone.node])
        elif running is not None:
            tested.ended([running], now)
            running = None
        if running is None and reference.waiting:
            running = reference.first(now)
            reference.start(running, now)
            assert ids(tested.started()) == [running]
        else:
            assert not tested.started()
    assert tested.waiting == len(reference.waiting)
    assert tested.active_dags_text() == set(map(str, reference.active))
