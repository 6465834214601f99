"""What a ready job takes in the frontier: there may be a million, each with an SLA of its own."""

import gc
import tracemalloc

import pytest

from fairlead.jobs.planners import GlobalPriorityExecutionPlanner
from fairlead.jobs.records import ReadyJob
from tests.jobs.frontier_rig import frontier

JOBS = 20_000
# By what is asked of the allocator, which hands out up to 15 bytes more for each of some twelve objects.
BYTES = 905


def ready(number: int, nodes: int) -> ReadyJob:
    return ReadyJob(
        dag=number // nodes + 1,
        node=number % nodes,
        name=f"page-{number}",
        task="extract",
        executor="ocr",
        tenant="",
        level=number % 5,
        height=number + 0.5,
        estimate=30.0,
        soft=50_000.0 + number * 7 % 100_000 + 0.5,
        hard=None,
        ready_at=number / 1000,
        start_at=0.0,
        active=False,
    )


@pytest.mark.parametrize("nodes", [JOBS, 100, 1])
def test_a_ready_job_with_an_sla_takes_less_than_a_kibibyte(nodes: int) -> None:
    tested = frontier(GlobalPriorityExecutionPlanner())
    gc.collect()
    tracemalloc.start()
    try:
        tested.add([ready(number, nodes) for number in range(JOBS)], 1000.0)
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert tested.waiting == JOBS
    assert taken / JOBS < BYTES
