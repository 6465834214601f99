"""The admin port, described for machines (OpenAPI 3.1)."""

from __future__ import annotations

from typing import Any

from fairlead.gateway.settings import Upstream

PROBLEM: dict[str, Any] = {
    "type": "object",
    "required": ["type", "status", "title", "detail", "code"],
    "properties": {
        "type": {"type": "string"},
        "status": {"type": "integer"},
        "title": {"type": "string"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "problems": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["field", "problem"],
                "properties": {"field": {"type": "string"}, "problem": {"type": "string"}},
            },
        },
    },
}
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
    status = _json({"$ref": "#/components/schemas/Status"})
    worker = _json({"$ref": "#/components/schemas/Worker"})
    workers = _json(
        {
            "type": "object",
            "required": ["workers", "capacities"],
            "properties": {
                "workers": {"type": "array", "items": {"$ref": "#/components/schemas/Worker"}},
                "capacities": {"type": "object", "additionalProperties": {"type": "integer"}},
            },
        }
    )
    removed = _json({"type": "object", "required": ["removed"]})
    upstream = Upstream.model_json_schema(ref_template="#/components/schemas/{model}")
    more = upstream.pop("$defs", {})
    for name in upstream["properties"].keys() - {"url"}:  # null stands for what is left out
        upstream["properties"][name] = {"anyOf": [upstream["properties"][name], {"type": "null"}]}
    paths: dict[str, Any] = {
        "/livez": {"get": _operation("Tell whether the process answers", {"200": status})},
        "/metrics": {
            "get": _operation(
                "Show metrics as Prometheus text",
                {
                    "200": {
                        "description": "the metrics",
                        "content": {"text/plain": {"schema": {"type": "string"}}},
                    }
                },
                secured,
            )
        },
        "/openapi.json": {
            "get": _operation("Show this document", {"200": _json({"type": "object"})}, secured)
        },
        "/readyz": {
            "get": _operation(
                "Tell whether traffic is welcome", {"200": status, "503": status}, secured
            )
        },
        "/workers": {
            "get": _operation("Show the fleet", {"200": workers}, secured),
            "post": {
                **_operation(
                    "Add a worker",
                    {"201": worker, **_problems("400", "409", "413", "415", "422")},
                    secured,
                ),
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {
                            "schema": {"$ref": "#/components/schemas/NewWorker"},
                            "example": {"url": "http://10.0.0.7:9001", "capacity": 256},
                        }
                    },
                },
            },
            "delete": {
                **_operation(
                    "Remove a worker; what runs there drains",
                    {"200": removed, **_problems("404", "422")},
                    secured,
                ),
                "parameters": [
                    {
                        "name": "url",
                        "in": "query",
                        "required": True,
                        "schema": {"type": "string"},
                        "example": "http://10.0.0.7:9001",
                    }
                ],
            },
        },
    }
    components: dict[str, Any] = {
        "schemas": {
            **more,
            "NewWorker": upstream,
            "Problem": PROBLEM,
            "Status": STATUS,
            "Worker": WORKER,
        }
    }
    if secured:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Fairlead gateway, admin port", "version": "1"},
        "paths": paths,
        "components": components,
    }


def _operation(
    summary: str, responses: dict[str, Any], secured: bool | None = None
) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": summary, "responses": responses}
    if secured:
        operation["security"] = [{"token": []}]
    if secured is not None:
        operation["responses"] = {**responses, **_problems("401" if secured else "403")}
    return operation


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": "the answer", "content": {"application/json": {"schema": schema}}}


def _problems(*statuses: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Problem"}
    content = {"application/problem+json": {"schema": schema}}
    return {status: {"description": "what is wrong", "content": content} for status in statuses}
