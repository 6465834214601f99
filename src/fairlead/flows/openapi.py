"""The HTTP service, described for machines (OpenAPI 3.1)."""

from __future__ import annotations

from typing import Any

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
IGNORED = {
    "type": "array",
    "items": {"type": "string"},
    "description": "labels that could not be used: the workload's values were",
}
ACCEPTED: dict[str, Any] = {
    "type": "object",
    "required": ["decision", "flow_id", "control_point", "workload", "priority", "tokens", "wait"],
    "properties": {
        "decision": {"const": "accepted"},
        "flow_id": {"type": "string", "description": "to end the flow with"},
        "control_point": {"type": "string"},
        "workload": {"type": "string"},
        "priority": {"type": "number", "minimum": 0},
        "tokens": {"type": "number", "minimum": 0, "description": "what it was charged"},
        "wait": {"type": "number", "minimum": 0, "description": "seconds it waited"},
        "ignored_labels": IGNORED,
        "unknown_control_point": {"const": True},
    },
}
REJECTED: dict[str, Any] = {
    "type": "object",
    "required": ["decision", "control_point", "reason", "message", "retry_after"],
    "properties": {
        "decision": {"const": "rejected"},
        "control_point": {"type": "string"},
        "reason": {"enum": ["queue_full", "timeout", "never_fits", "cancelled"]},
        "message": {"type": "string"},
        "retry_after": {
            "type": ["number", "null"],
            "description": "seconds after which to try again; null if it can never be admitted",
        },
        "ignored_labels": IGNORED,
    },
}
STATUS = {
    "type": "object",
    "required": ["status"],
    "properties": {"status": {"enum": ["ok", "draining"]}},
}
ENDED = {
    "type": "object",
    "required": ["ended"],
    "properties": {"ended": {"type": "boolean"}, "message": {"type": "string"}},
}
RETRY_AFTER = {
    "Retry-After": {
        "schema": {"type": "integer", "minimum": 1},
        "description": "whole seconds; absent if it can never be admitted",
    }
}
EXAMPLES: dict[str, Any] = {
    "Check": {"control_point": "checkout", "labels": {"user_id": "u1"}, "timeout": 0.5},
    "End": {"flow_id": "9c1f0d5e7b3a42688a6f0e1d2c3b4a59", "status": "ok"},
    "Signal": {"value": 0.25},
}
BODY_PROBLEMS = ("400", "413", "415", "422")


def document(bodies: dict[str, Any], *, secured: bool) -> dict[str, Any]:
    """Describe the API; `bodies` are the schemas of what it takes."""
    status = _json(_ref("Status"))
    rejected = {**_json(_ref("Rejected")), "headers": RETRY_AFTER}
    text = {
        "description": "the metrics",
        "content": {"text/plain": {"schema": {"type": "string"}}},
    }
    echoed = _json({"type": "object", "required": ["signal", "value"]})
    named = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    paths: dict[str, Any] = {
        "/livez": {"get": _operation("Tell whether the process answers", {"200": status})},
        "/metrics": {
            "get": _operation("Show metrics as Prometheus text", {"200": text}, secured=secured)
        },
        "/openapi.json": {
            "get": _operation(
                "Show this document", {"200": _json({"type": "object"})}, secured=secured
            )
        },
        "/readyz": {
            "get": _operation(
                "Tell whether traffic is welcome",
                {"200": status, "503": status},
                secured=secured,
            )
        },
        "/v1/flows/check": {
            "post": _operation(
                "Ask for tokens, and wait for them",
                {"200": _json(_ref("Accepted")), "4XX": _either(rejected), "5XX": rejected},
                takes="Check",
                secured=secured,
            )
        },
        "/v1/flows/end": {
            "post": _operation(
                "Say that a flow's work is done",
                {"200": _json(_ref("Ended"))},
                takes="End",
                secured=secured,
            )
        },
        "/v1/signals/{name}": {
            "post": {
                **_operation(
                    "Tell a load controller the value of its signal",
                    {"200": echoed, **_problems("404")},
                    takes="Signal",
                    secured=secured,
                ),
                "parameters": [named],
            }
        },
    }
    components: dict[str, Any] = {
        "schemas": {
            **bodies,
            "Accepted": ACCEPTED,
            "Ended": ENDED,
            "Problem": PROBLEM,
            "Rejected": REJECTED,
            "Status": STATUS,
        }
    }
    if secured:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Fairlead flows", "version": "1"},
        "paths": paths,
        "components": components,
    }


def _operation(
    summary: str, responses: dict[str, Any], *, takes: str | None = None, secured: bool = False
) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": summary, "responses": dict(responses)}
    if takes is not None:
        content = {"application/json": {"schema": _ref(takes), "example": EXAMPLES[takes]}}
        operation["requestBody"] = {"required": True, "content": content}
        operation["responses"] |= _problems(*BODY_PROBLEMS)
    if secured:
        operation["security"] = [{"token": []}]
        operation["responses"] |= _problems("401")
    return operation


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": "the answer", "content": {"application/json": {"schema": schema}}}


def _either(rejected: dict[str, Any]) -> dict[str, Any]:
    """A denied status may be any; in the 400s there are problems too."""
    content = {**rejected["content"], **_problems("4XX")["4XX"]["content"]}
    return {**rejected, "content": content}


def _problems(*statuses: str) -> dict[str, Any]:
    content = {"application/problem+json": {"schema": _ref("Problem")}}
    return {status: {"description": "what is wrong", "content": content} for status in statuses}
