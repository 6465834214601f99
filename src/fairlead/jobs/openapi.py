"""The HTTP API of jobs, described for machines (OpenAPI 3.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.jobs.operating import RUN_STATES
from fairlead.jobs.states import TRANSITIONS
from fairlead.serving.openapi import document as whole_document
from fairlead.serving.openapi import in_query, json_of, list_of, operation, operators, problems, ref

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fairlead.serving.access import Role

TIME = {"type": ["string", "null"], "format": "date-time"}
STATE = {"enum": sorted(TRANSITIONS)}
RUN: dict[str, Any] = {
    "type": "object",
    "required": ["id", "name", "state", "job_count", "jobs_left"],
    "properties": {
        "id": {"type": "string"},
        "name": {"type": "string"},
        "state": STATE,
        "tenant": {"type": ["string", "null"]},
        "key": {"type": ["string", "null"]},
        "soft_sla": TIME,
        "hard_sla": TIME,
        "created_at": TIME,
        "start_at": TIME,
        "started_at": TIME,
        "completed_on": TIME,
        "job_count": {"type": "integer"},
        "jobs_left": {"type": "integer", "description": "those that have not ended"},
        "cancelling": {"type": "boolean"},
    },
}
JOB: dict[str, Any] = {
    "type": "object",
    "required": ["id", "name", "state", "task", "executor", "result", "priority"],
    "properties": {
        "id": {"type": "string"},
        "name": {"type": "string"},
        "state": STATE,
        "task": {"type": "string"},
        "executor": {"type": "string"},
        "result": {"description": "what it returned"},
        "error": {"type": ["object", "null"]},
        "priority": {"type": "integer", "minimum": 0, "maximum": 1999},
    },
}
RUN_WITH_JOBS: dict[str, Any] = {
    "allOf": [
        {"$ref": "#/components/schemas/Run"},
        {
            "type": "object",
            "required": ["jobs"],
            "properties": {
                "jobs": {"type": "array", "items": {"$ref": "#/components/schemas/Job"}}
            },
        },
    ]
}
SUBMITTED: dict[str, Any] = {
    "type": "object",
    "required": ["id", "new"],
    "properties": {"id": {"type": "string"}, "new": {"type": "boolean"}},
}
CHANGED: dict[str, Any] = {
    "type": "object",
    "required": ["id", "state", "changed"],
    "properties": {
        "id": {"type": "string"},
        "state": STATE,
        "changed": {"type": "boolean"},
        "message": {"type": "string", "description": "why nothing was changed"},
    },
}
EXPLANATION: dict[str, Any] = {
    "type": "object",
    "required": ["job", "state", "reason", "explanation"],
    "properties": {
        "job": {"type": "string"},
        "state": STATE,
        "reason": {"type": "string"},
        "explanation": {"type": "string", "maxLength": 400},
        "expected_at": TIME,
    },
}
PLANNERS: dict[str, Any] = {
    "type": "object",
    "required": ["planner", "executors"],
    "properties": {
        "planner": {"type": "string"},
        "executors": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}
SCHEDULED: dict[str, Any] = {
    "type": "object",
    "required": ["name", "cron", "timezone", "misfire", "paused", "run", "next"],
    "properties": {
        "name": {"type": "string"},
        "cron": {"type": "string"},
        "timezone": {"type": "string"},
        "misfire": {"enum": ["skip", "one", "all"]},
        "paused": {"type": "boolean"},
        "run": {"type": "object"},
        "next": {"type": "array", "items": {"type": "string", "format": "date-time"}},
        "new": {"type": "boolean"},
    },
}
REMOVED: dict[str, Any] = {
    "type": "object",
    "required": ["removed"],
    "properties": {"removed": {"type": "string"}},
}
WORKER: dict[str, Any] = {
    "type": "object",
    "required": ["id", "name", "executor", "slots", "silent", "draining"],
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": "string"},
        "executor": {"type": "string"},
        "slots": {"type": "integer"},
        "process": {"type": "string"},
        "silent": {"type": "boolean"},
        "draining": {"type": "boolean"},
    },
}
STATUS = {
    "type": "object",
    "required": ["status"],
    "properties": {"status": {"type": "string"}, "role": {"enum": ["leader", "standby"]}},
}
SCHEMAS: dict[str, Any] = {
    "Changed": CHANGED,
    "Explanation": EXPLANATION,
    "Job": JOB,
    "Planners": PLANNERS,
    "Removed": REMOVED,
    "Run": RUN,
    "RunWithJobs": RUN_WITH_JOBS,
    "Scheduled": SCHEDULED,
    "Status": STATUS,
    "Submitted": SUBMITTED,
    "Worker": WORKER,
}
EXAMPLES: dict[str, Any] = {
    "Dag": {
        "name": "invoice",
        "soft_sla": "15m",
        "jobs": [
            {"name": "first", "task": "extract", "args": ["a.pdf"]},
            {"name": "all", "task": "merge", "args": [[{"$result": "first"}]]},
        ],
    },
    "Planner": {"planner": "HRRNExecutionPlanner"},
    "Schedule": {"cron": "*/5 * * * *", "task": "extract", "args": ["a.pdf"]},
    "Sla": {"soft_sla": "15m"},
}


def document(
    bodies: dict[str, Any], *, secured: bool, roles: Mapping[tuple[str, str], Role]
) -> dict[str, Any]:
    """Describe the API; `bodies` are the schemas of what it takes, `roles` who may ask for what."""
    ready = "Tell whether jobs are planned and run here"
    service = operators(json_of(ref("Status")), secured, ready)
    for path in service.keys() - {"/livez", "/readyz"}:
        service[path]["get"]["responses"]["503"] = _unavailable()
    paths = {**service, **_runs(secured), **_rest(secured)}
    for (method, path), role in roles.items():
        operation = paths[path][method.lower()]
        if secured and "security" in operation:
            operation["description"] = f"Needs the role {role.name.lower()}."
            operation["responses"] |= problems("403")
    return whole_document("Fairlead jobs", paths, {**bodies, **SCHEMAS}, secured=secured)


def _runs(secured: bool) -> dict[str, Any]:
    listed = json_of(list_of("runs", "Run"))
    submitted = {
        "200": json_of(ref("Submitted")),
        "201": json_of(ref("Submitted")),
        **problems("409"),
    }
    queries = [
        in_query("state", {"enum": list(RUN_STATES)}),
        in_query("tenant", {"type": "string"}),
        in_query("before", {"type": "string", "pattern": "^[0-9]{1,18}$"}),
        in_query("limit", {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 50}),
    ]
    paths: dict[str, Any] = {
        "/v1/runs": {
            "get": _operation(
                "List runs, newest first", {"200": listed, **problems("422")}, secured, queries
            ),
            "post": _operation(
                "Submit a DAG: durable when answered, 200 if its key was used before",
                submitted,
                secured,
                [
                    in_query("start_at", {"type": "string"}),
                    in_query(
                        "on_conflict",
                        {
                            "type": "string",
                            "enum": ["error", "existing"],
                            "default": "error",
                            "description": "of a key that belongs to a run of another DAG",
                        },
                    ),
                ],
                takes="Dag",
            ),
        },
        "/v1/runs/{run}": {
            "get": _operation(
                "Show a run with its jobs", {"200": json_of(ref("RunWithJobs"))}, secured, of="run"
            )
        },
        "/v1/runs/{run}/sla": {
            "post": _operation(
                "Change the SLAs of a run or of one of its jobs; what is not named stays",
                {"200": json_of(ref("RunWithJobs"))},
                secured,
                of="run",
                takes="Sla",
            )
        },
        "/v1/jobs/{job}/explain": {
            "get": _operation(
                "Say why a job is not running, and when it likely will",
                {"200": json_of(ref("Explanation"))},
                secured,
                of="job",
            )
        },
    }
    for deed, summary in (
        ("cancel", "Cancel a run: what waits never runs, what runs is stopped"),
        ("pause", "Start nothing more of a run"),
        ("resume", "Go on with a paused run"),
        ("retry", "Give the jobs that did not complete fresh attempts"),
    ):
        changed = {"200": json_of(ref("Changed"))}
        paths[f"/v1/runs/{{run}}/{deed}"] = {
            "post": _operation(summary, changed, secured, of="run")
        }
    return paths


def _rest(secured: bool) -> dict[str, Any]:
    scheduled = {"200": json_of(ref("Scheduled"))}
    planners = {"200": json_of(ref("Planners"))}
    return {
        "/v1/planner": {
            "get": _operation("Tell which planner orders what", planners, secured),
            "put": _operation("Have another planner", planners, secured, takes="Planner"),
        },
        "/v1/schedules": {
            "get": _operation(
                "List schedules", {"200": json_of(list_of("schedules", "Scheduled"))}, secured
            )
        },
        "/v1/schedules/{name}": {
            "get": _operation("Show a schedule", scheduled, secured, of="name"),
            "put": _operation(
                "Add a schedule, or change it",
                {**scheduled, "201": json_of(ref("Scheduled"))},
                secured,
                of="name",
                takes="Schedule",
            ),
            "delete": _operation(
                "Remove a schedule",
                {"200": json_of(ref("Removed")), **problems("422")},
                secured,
                of="name",
            ),
        },
        "/v1/schedules/{name}/pause": {
            "post": _operation("Let a schedule rest", scheduled, secured, of="name")
        },
        "/v1/schedules/{name}/resume": {
            "post": _operation("Let a schedule go on", scheduled, secured, of="name")
        },
        "/v1/workers": {
            "get": _operation(
                "List those who run jobs", {"200": json_of(list_of("workers", "Worker"))}, secured
            )
        },
    }


def _operation(
    summary: str,
    responses: dict[str, Any],
    secured: bool,
    parameters: Iterable[dict[str, Any]] = (),
    *,
    of: str | None = None,
    takes: str | None = None,
) -> dict[str, Any]:
    """Describe one operation: each may find the database away."""
    example = None if takes is None else EXAMPLES[takes]
    made = operation(summary, responses, secured, parameters, of=of, takes=takes, example=example)
    made["responses"].setdefault("503", _unavailable())
    return made


def _unavailable() -> dict[str, Any]:
    seconds = {"schema": {"type": "integer", "minimum": 1}}
    return {**problems("503")["503"], "headers": {"Retry-After": seconds}}
