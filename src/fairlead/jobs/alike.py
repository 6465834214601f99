"""DAGs of one job that differ in nothing but names and arguments: one look at each makes columns of their runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.jobs.graph import Dag
from fairlead.jobs.records import AlikeRuns
from fairlead.jobs.rows import Registered, only_job, run_of_one

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def take_alike(
    dags: Iterator[Any],
    registered: Registered,
    estimates: Mapping[str, float],
    start_at: float | None,
) -> tuple[AlikeRuns | None, list[Any]]:
    """Make runs of DAGs for as long as they are alike; tell them, and the DAG that was taken and is another."""
    runs: AlikeRuns | None = None
    call = task = tenant = None
    for dag in dags:
        node = only_job(dag) if isinstance(dag, Dag) and dag.key is None else None
        if node is None:
            return runs, [dag]
        if runs is None:
            call, tenant = node.call, dag.tenant
            task = registered.find(call)
            runs = AlikeRuns(run_of_one(dag, node, task, estimates, start_at))
        elif dag.tenant != tenant or not (node.call is call or registered.find(node.call) is task):
            return runs, [dag]
        runs.names.append(dag.name)
        runs.job_names.append(node.name)
        runs.payloads.append(node.payload)
    return runs, []
