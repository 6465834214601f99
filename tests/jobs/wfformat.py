"""Workflows of other people, recorded in WfFormat, as DAGs of ours; the traces stay where they are."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from fairlead.jobs.graph import Dag
from fairlead.jobs.registry import Task

# Beside the project; who has them elsewhere says where.
FOLDER = Path(
    os.environ.get("FAIRLEAD_TRACES") or Path(__file__).parents[3] / "shared" / "traces" / "dags"
)
TRACES = sorted(FOLDER.glob("*.json")) if FOLDER.is_dir() else []


class Step(NamedTuple):
    """A task of a workflow; `seconds` is how long it took."""

    id: str
    program: str
    parents: tuple[str, ...]
    seconds: float


class Workflow(NamedTuple):
    """A recorded workflow."""

    name: str
    steps: tuple[Step, ...]


def read(path: Path) -> Workflow:
    """Read a file of WfFormat 1.5."""
    document = json.loads(path.read_text(encoding="utf-8"))
    workflow = document["workflow"]
    took = {
        task["id"]: float(task.get("runtimeInSeconds") or 0.0)
        for task in workflow["execution"]["tasks"]
    }
    steps = tuple(
        Step(task["id"], task["name"], tuple(task["parents"]), took[task["id"]])
        for task in workflow["specification"]["tasks"]
    )
    return Workflow(document["name"], steps)


def dag_of(workflow: Workflow, fn: Any, **options: Any) -> Dag:
    """Make a DAG of it: `fn(id, results of the parents)`, each job named after its step.

    Parents that come later in the file are named by `after` alone, so `fn` does not get their results.
    """
    dag = Dag(workflow.name, **options)
    known: dict[str, Any] = {}
    for step in workflow.steps:
        inputs = [known[parent] for parent in step.parents if parent in known]
        late = [parent for parent in step.parents if parent not in known]
        known[step.id] = dag.add(fn, step.id, inputs).options(name=step.id, after=late)
    return dag


def dag_of_programs(workflow: Workflow) -> tuple[Dag, dict[str, Task]]:
    """Make a DAG with a task for each program, which is estimated to take what it took on average."""
    took: dict[str, list[float]] = {}
    for step in workflow.steps:
        took.setdefault(step.program[-64:], []).append(step.seconds)
    tasks = {
        name: Task(name, print, estimate=sum(seconds) / len(seconds))
        for name, seconds in took.items()
    }
    dag = Dag(workflow.name)
    for step in workflow.steps:
        dag.add(step.program[-64:]).options(name=step.id, after=step.parents)
    return dag, tasks
