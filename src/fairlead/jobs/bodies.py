"""The bodies that the HTTP API of jobs takes, beside a DAG's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints

from fairlead.jobs.files import DagFile
from fairlead.serving.http import Body

Text = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Sla = Annotated[
    str | float | None,
    Field(
        description="a duration from now, an instant with its zone, or null for none",
        union_mode="left_to_right",
    ),
]


class SlaBody(Body):
    """What `POST /v1/runs/{run}/sla` takes."""

    soft_sla: Sla = None
    hard_sla: Sla = None
    job: Text | None = Field(None, description="the id of one job; without, the run's own")


class PlannerBody(Body):
    """What `PUT /v1/planner` takes."""

    planner: Text | None = Field(
        description="a built-in planner, or one of the app's by its name; null: as at first"
    )
    executor: Text | None = Field(None, description="of this executor alone")


class ScheduleBody(Body):
    """What `PUT /v1/schedules/{name}` takes: a task with its arguments, or a whole DAG."""

    cron: Text
    timezone: Text = "UTC"
    misfire: Literal["skip", "one", "all"] = "one"
    task: Text | None = None
    args: list[Any] = Field(default_factory=list)
    kwargs: dict[str, Any] = Field(default_factory=dict)
    run: dict[str, Any] | None = Field(None, description="a DAG, as POST /v1/runs takes it")
    paused: bool = False


BODIES: dict[str, type[BaseModel]] = {
    "Dag": DagFile,
    "Planner": PlannerBody,
    "Schedule": ScheduleBody,
    "Sla": SlaBody,
}
