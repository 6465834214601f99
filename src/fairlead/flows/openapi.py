"""The HTTP service, described for machines (OpenAPI 3.1)."""

from __future__ import annotations

from typing import Any

from fairlead.serving.openapi import document as whole_document
from fairlead.serving.openapi import json_of, operation, operators, problems, ref

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


def document(bodies: dict[str, Any], *, secured: bool) -> dict[str, Any]:
    """Describe the API; `bodies` are the schemas of what it takes."""
    rejected = {**json_of(ref("Rejected")), "headers": RETRY_AFTER}
    echoed = json_of({"type": "object", "required": ["signal", "value"]})

    def post(summary: str, responses: dict[str, Any], takes: str, of: str | None = None) -> Any:
        example = EXAMPLES[takes]
        return {"post": operation(summary, responses, secured, of=of, takes=takes, example=example)}

    paths = {
        **operators(json_of(ref("Status")), secured),
        "/v1/flows/check": post(
            "Ask for tokens, and wait for them",
            {"200": json_of(ref("Accepted")), "4XX": _either(rejected), "5XX": rejected},
            "Check",
        ),
        "/v1/flows/end": post(
            "Say that a flow's work is done", {"200": json_of(ref("Ended"))}, "End"
        ),
        "/v1/signals/{name}": post(
            "Tell a load controller the value of its signal", {"200": echoed}, "Signal", "name"
        ),
    }
    answers = {"Accepted": ACCEPTED, "Ended": ENDED, "Rejected": REJECTED, "Status": STATUS}
    return whole_document("Fairlead flows", paths, {**bodies, **answers}, secured=secured)


def _either(rejected: dict[str, Any]) -> dict[str, Any]:
    """A denied status may be any; in the 400s there are problems too."""
    content = {**rejected["content"], **problems("4XX")["4XX"]["content"]}
    return {**rejected, "content": content}
