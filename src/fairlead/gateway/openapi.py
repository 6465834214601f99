"""The admin port, described for machines (OpenAPI 3.1)."""

from __future__ import annotations

from typing import Any

from fairlead.gateway.settings import Upstream
from fairlead.serving.openapi import document as whole_document
from fairlead.serving.openapi import (
    in_query,
    json_of,
    list_of,
    operation,
    operators,
    problems,
    ref,
    schemas_of,
)

WORKER: dict[str, Any] = {
    "type": "object",
    "required": ["url", "state", "capacity", "capacity_from", "in_flight", "health", "models"],
    "properties": {
        "url": {"type": "string"},
        "state": {"enum": ["healthy", "unhealthy", "draining"]},
        "capacity": {"type": "integer", "minimum": 0},
        "capacity_from": {"enum": ["configuration", "reported", "adaptive"]},
        "in_flight": {"type": "integer", "minimum": 0},
        "health": {"type": ["string", "null"]},
        "models": {"type": ["array", "null"], "items": {"type": "string"}},
        "added_by": {"enum": ["file", "api"]},
    },
}
STATUS: dict[str, Any] = {
    "type": "object",
    "required": ["status"],
    "properties": {
        "status": {"enum": ["ok", "degraded", "draining"]},
        "problems": {"type": "array", "items": {"type": "string"}},
    },
}


def document(*, secured: bool) -> dict[str, Any]:
    """Describe the admin API."""
    worker = json_of(ref("Worker"))
    workers = list_of("workers", "Worker")
    workers["required"].append("capacities")
    counts = {"type": "object", "additionalProperties": {"type": "integer"}}
    workers["properties"]["capacities"] = counts
    removed = json_of({"type": "object", "required": ["removed"]})
    schemas = schemas_of({"NewWorker": Upstream})
    given = schemas["NewWorker"]["properties"]
    for name in given.keys() - {"url"}:  # null stands for what is left out
        given[name] = {"anyOf": [given[name], {"type": "null"}]}
    example = "http://10.0.0.7:9001"
    url = {**in_query("url", {"type": "string"}, required=True), "example": example}
    paths = {
        **operators(json_of(ref("Status")), secured),
        "/workers": {
            "get": operation("Show the fleet", {"200": json_of(workers)}, secured),
            "post": operation(
                "Add a worker",
                {"201": worker, **problems("409")},
                secured,
                takes="NewWorker",
                example={"url": example, "capacity": 256},
            ),
            "delete": operation(
                "Remove a worker; what runs there drains",
                {"200": removed, **problems("404", "422")},
                secured,
                [url],
            ),
        },
    }
    schemas |= {"Status": STATUS, "Worker": WORKER}
    return whole_document("Fairlead gateway, admin port", paths, schemas, secured=secured)
