"""The pieces that descriptions of services share (OpenAPI 3.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import BaseModel

Schema = dict[str, Any]

PROBLEM: Schema = {
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
TEXT: Schema = {
    "description": "the metrics",
    "content": {"text/plain": {"schema": {"type": "string"}}},
}
BODY_PROBLEMS = ("400", "413", "415", "422")


def document(
    title: str, paths: dict[str, Any], schemas: dict[str, Any], *, secured: bool
) -> dict[str, Any]:
    """Put a description together; the schema of problems is added."""
    components: dict[str, Any] = {"schemas": {**schemas, "Problem": PROBLEM}}
    if secured:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": "1"},
        "paths": paths,
        "components": components,
    }


def operation(
    summary: str,
    responses: dict[str, Any],
    secured: bool | None = None,
    parameters: Iterable[Schema] = (),
    *,
    of: str | None = None,
    takes: str | None = None,
    example: Any = None,
) -> dict[str, Any]:
    """Describe one operation.

    `secured` None: open to all; False: foreign pages are refused; True: a token is asked for.  `of` is what stands in
    its path, `takes` the schema of its body.
    """
    made: dict[str, Any] = {"summary": summary, "responses": dict(responses)}
    given = list(parameters)
    if of is not None:
        given.append(in_path(of))
        made["responses"] |= problems("404")
    if given:
        made["parameters"] = given
    if takes is not None:
        content: dict[str, Any] = {"schema": ref(takes)}
        if example is not None:
            content["example"] = example
        made["requestBody"] = {"required": True, "content": {"application/json": content}}
        made["responses"] |= problems(*BODY_PROBLEMS)
    if secured is not None:
        made["responses"] |= problems("401" if secured else "403")
    if secured:
        made["security"] = [{"token": []}]
    return made


def operators(
    status: Schema, secured: bool | None, ready: str = "Tell whether traffic is welcome"
) -> dict[str, Any]:
    """Describe the paths every service has for those who run it."""
    whole = json_of({"type": "object"})
    return {
        "/livez": {"get": operation("Tell whether the process answers", {"200": status})},
        "/metrics": {"get": operation("Show metrics as Prometheus text", {"200": TEXT}, secured)},
        "/openapi.json": {"get": operation("Show this document", {"200": whole}, secured)},
        "/readyz": {"get": operation(ready, {"200": status, "503": status}, secured)},
    }


def ref(name: str) -> Schema:
    """Point to a schema by name."""
    return {"$ref": f"#/components/schemas/{name}"}


def json_of(schema: Schema) -> dict[str, Any]:
    """Describe an answer of that schema."""
    return {"description": "the answer", "content": {"application/json": {"schema": schema}}}


def list_of(name: str, of: str) -> Schema:
    """Describe an object that holds a list under a name."""
    items = {"type": "array", "items": ref(of)}
    return {"type": "object", "required": [name], "properties": {name: items}}


def problems(*statuses: str) -> dict[str, Any]:
    """Describe what can be wrong."""
    content = {"application/problem+json": {"schema": ref("Problem")}}
    return {status: {"description": "what is wrong", "content": content} for status in statuses}


def in_path(name: str) -> Schema:
    """Describe what stands in a path."""
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def in_query(name: str, schema: Schema, *, required: bool = False) -> Schema:
    """Describe a parameter of the query."""
    return {"name": name, "in": "query", "required": required, "schema": schema}


def schemas_of(bodies: dict[str, type[BaseModel]]) -> dict[str, Any]:
    """The schemas of models, with those they are made of."""
    found: dict[str, Any] = {}
    for name, body in bodies.items():
        schema = body.model_json_schema(ref_template="#/components/schemas/{model}")
        found |= {**schema.pop("$defs", {}), name: schema}
    return found
