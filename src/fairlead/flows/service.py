"""Flows over HTTP: check, end, signals; and /metrics, /livez, /readyz, /openapi.json.  Raw ASGI.

A refusal is an answer, not a failure: the control point's denied status with `Retry-After` and the reason.  Whatever a
client sends is answered below 500; only a denied status is what the configuration says it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, StringConstraints

from fairlead.config import shown
from fairlead.flows.ahead import Ahead
from fairlead.flows.http import (
    Answer,
    Body,
    Problem,
    authorize,
    read_json,
    respond,
    retry_header,
    written,
)
from fairlead.flows.openapi import document
from fairlead.flows.settings import MOST_TOKENS
from fairlead.flows.table import FlowTable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fairlead.flows.flow import Flow
    from fairlead.flows.http import Receive, Scope, Send
    from fairlead.flows.scheduler import FlowScheduler

    Handler = Callable[[Scope, Receive], Awaitable[Answer | None]]

READING = ("GET", "HEAD")
SIGNALS = "/v1/signals/"
MOST_LABELS = 256
LONGEST_TIMEOUT = 366 * 86_400.0
DENIED = 503  # where no control point says otherwise
PRINTABLE = r"^[^\x00-\x1f\x7f-\x9f]*$"  # no control characters

Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=PRINTABLE)]
Text = Annotated[str, StringConstraints(pattern=PRINTABLE)]
Labels = Annotated[
    dict[Text, Text],
    Field(max_length=MOST_LABELS, json_schema_extra={"additionalProperties": False}),
]


class CheckBody(Body):
    """What `POST /v1/flows/check` takes."""

    control_point: Name
    labels: Labels = Field(default_factory=dict)
    timeout: Annotated[float, Field(ge=0, le=LONGEST_TIMEOUT)] | None = Field(
        None, description="seconds it may wait; without, as long as its workload lets it"
    )


class EndBody(Body):
    """What `POST /v1/flows/end` takes."""

    flow_id: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    status: Literal["ok", "error"] = "ok"
    tokens: Annotated[float, Field(ge=0, le=MOST_TOKENS)] | None = Field(
        None, description="what the flow really cost, if that differs from what was charged"
    )


class SignalBody(Body):
    """What `POST /v1/signals/{name}` takes."""

    value: float


class FlowService:
    """The HTTP app over one scheduler; `draining` turns /readyz to 503."""

    def __init__(
        self, flows: FlowScheduler, *, token: str | None = None, table: FlowTable | None = None
    ) -> None:
        self.flows = flows
        self.table = FlowTable() if table is None else table
        self.token = token
        self.draining = False
        self._routes: dict[str, dict[str, Handler]] = {
            "/livez": dict.fromkeys(READING, self._livez),
            "/metrics": dict.fromkeys(READING, self._metrics),
            "/openapi.json": dict.fromkeys(READING, self._openapi),
            "/readyz": dict.fromkeys(READING, self._readyz),
            "/v1/flows/check": {"POST": self._check},
            "/v1/flows/end": {"POST": self._end},
        }
        self._signals: dict[str, Handler] = {"POST": self._signal}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http":
            try:
                answer = await self._answer(scope, receive)
            except Problem as problem:
                answer = problem.answer
            if answer is not None:  # else nobody is there to read it
                await respond(send, answer, bodiless=scope["method"] == "HEAD")
        elif kind == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1003, "reason": "no websockets here"})
        elif kind == "lifespan":
            await _live(receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Answer | None:
        path, method = scope["path"], scope["method"]
        if self.token is not None and path != "/livez":
            authorize(scope, self.token)
        methods = self._routes.get(path)
        if methods is None and path.startswith(SIGNALS) and len(path) > len(SIGNALS):
            methods = self._signals
        if methods is None:
            served = ", ".join((*self._routes, f"{SIGNALS}<name>"))
            raise Problem(404, "not_found", f"nothing is served at {shown(path)}; ask for {served}")
        handler = methods.get(method)
        if handler is None:
            allowed = ", ".join(methods)
            detail = f"{shown(path)[1:-1]} is for {allowed}, not for {shown(method)}"
            headers = ((b"allow", allowed.encode()),)
            raise Problem(405, "method_not_allowed", detail, headers=headers)
        return await handler(scope, receive)

    # Flows

    async def _check(self, scope: Scope, receive: Receive) -> Answer | None:
        asked = await read_json(scope, receive, CheckBody)
        flow = self.flows.flow(asked.control_point, asked.labels, asked.timeout)
        ahead = Ahead(receive)
        try:
            if not await ahead.enter(flow):
                return None
        finally:
            ahead.stop()
        return self._accepted(flow) if flow.accepted else refused(flow)

    def _accepted(self, flow: Flow) -> Answer:
        workload, priority = flow.workload
        said: dict[str, Any] = {
            "decision": "accepted",
            "flow_id": self.table.add(flow),
            "control_point": flow.control_point,
            "workload": workload,
            "priority": priority,
            "tokens": flow.tokens,
            "wait": waited(flow),
        }
        if flow.ignored:
            said["ignored_labels"] = list(flow.ignored)
        if flow.point is None:
            said["unknown_control_point"] = True
        return Answer(200, written(said))

    async def _end(self, scope: Scope, receive: Receive) -> Answer:
        asked = await read_json(scope, receive, EndBody)
        flow = self.table.take(asked.flow_id)
        if flow is None:
            said = "no such flow runs: it was ended before, expired, or never was"
            return Answer(200, written({"ended": False, "message": said}))
        if not flow.end(asked.status, asked.tokens):
            said = "it ran longer than it may: its tokens had been given to others"
            return Answer(200, written({"ended": False, "message": said}))
        return Answer(200, written({"ended": True}))

    async def _signal(self, scope: Scope, receive: Receive) -> Answer:
        asked = await read_json(scope, receive, SignalBody)
        name = scope["path"][len(SIGNALS) :]
        if not self.flows.post_signal(name, asked.value):
            detail = f"no controller listens to a signal {shown(name)}; name it in load.signal"
            raise Problem(404, "unknown_signal", detail)
        return Answer(200, written({"signal": name, "value": asked.value}))

    # Operators

    async def _livez(self, scope: Scope, receive: Receive) -> Answer:
        return Answer(200, written({"status": "ok"}))

    async def _readyz(self, scope: Scope, receive: Receive) -> Answer:
        if self.draining:
            return Answer(503, written({"status": "draining"}))
        return Answer(200, written({"status": "ok"}))

    async def _metrics(self, scope: Scope, receive: Receive) -> Answer:
        body, media = self.flows.metrics()
        return Answer(200, body, media.encode())

    async def _openapi(self, scope: Scope, receive: Receive) -> Answer:
        bodies: dict[str, type[Body]] = {"Check": CheckBody, "End": EndBody, "Signal": SignalBody}
        schemas = {name: body.model_json_schema() for name, body in bodies.items()}
        return Answer(200, written(document(schemas, secured=self.token is not None)))


def denied_status(flow: Any) -> int:
    """Tell the HTTP status for a flow that was refused, here or by a service elsewhere."""
    point = getattr(flow, "point", None)
    if point is not None:
        return int(point.settings.scheduler.denied_response_status_code)
    return int(getattr(flow, "denied_status", None) or DENIED)


def refused(flow: Any) -> Answer:
    """Answer for a flow that was refused."""
    said: dict[str, Any] = {
        "decision": "rejected",
        "control_point": flow.control_point,
        "reason": flow.reject_reason,
        "message": flow.message,
        "retry_after": flow.retry_after,
    }
    if flow.ignored:
        said["ignored_labels"] = list(flow.ignored)
    return Answer(denied_status(flow), written(said), headers=retry_header(flow.retry_after))


def waited(flow: Flow) -> float:
    """Tell how long a flow that was accepted waited, in seconds."""
    return 0.0 if flow.point is None else max(0.0, flow.started_at - flow.arrived_at)


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
