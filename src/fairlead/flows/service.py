"""Flows over HTTP: check, end, signals; and /metrics, /livez, /readyz, /openapi.json.  Raw ASGI.

A refusal is an answer, not a failure: the control point's denied status with `Retry-After` and the reason.  Whatever a
client sends is answered below 500; only a denied status is what the configuration says it is.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, StringConstraints

from fairlead.config import shown
from fairlead.flows.ahead import Ahead, begin
from fairlead.flows.openapi import document
from fairlead.flows.settings import MOST_TOKENS
from fairlead.flows.signals import LARGEST
from fairlead.flows.table import FlowTable
from fairlead.serving.access import authorize
from fairlead.serving.http import Answer, Body, Problem, answer, read_json, retry_header
from fairlead.serving.openapi import schemas_of
from fairlead.serving.routes import Application, Routes, reading
from fairlead.serving.unread import undo_if_unread

if TYPE_CHECKING:
    from fairlead.flows.flow import Flow
    from fairlead.flows.scheduler import FlowScheduler
    from fairlead.serving.http import Receive, Scope

MOST_LABELS = 256
LONGEST_TIMEOUT = 366 * 86_400.0
DENIED = 503  # where no control point says otherwise
PRINTABLE = r"^[^\x00-\x1f\x7f-\x9f]*$"  # no control characters

Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=PRINTABLE)]
# Any texts: labels are often made of what strangers send, and `canonical` makes them harmless.
Labels = Annotated[dict[str, str], Field(max_length=MOST_LABELS)]


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

    value: Annotated[float, Field(ge=-LARGEST, le=LARGEST)]


class FlowService(Application):
    """The HTTP app over one scheduler; `draining` turns /readyz to 503."""

    def __init__(
        self, flows: FlowScheduler, *, token: str | None = None, table: FlowTable | None = None
    ) -> None:
        self.flows = flows
        self.table = FlowTable() if table is None else table
        self.token = token
        self.draining = False
        served: dict[str, Any] = {
            "/livez": reading(self._livez),
            "/metrics": reading(self._metrics),
            "/openapi.json": reading(self._openapi),
            "/readyz": reading(self._readyz),
            "/v1/flows/check": {"POST": self._check},
            "/v1/flows/end": {"POST": self._end},
            "/v1/signals/{name:path}": {"POST": self._signal},
        }
        named = ", ".join(served).replace("{name:path}", "<name>")
        self.routes = Routes(served, hint=f"ask for {named}")

    def authorize(self, scope: Scope) -> None:
        authorize(scope, self.token, realm="fairlead flows")

    # Flows

    async def _check(self, scope: Scope, receive: Receive) -> Answer | None:
        asked = await read_json(scope, receive, CheckBody)
        flow = self.flows.flow(asked.control_point, asked.labels, asked.timeout)
        begun = begin(flow)
        if begun is not None:
            ahead = Ahead(receive)
            try:
                if not await ahead.wait(*begun):
                    return None
            finally:
                ahead.stop()
        if not flow.accepted:
            return refused(flow)
        key = self.table.add(flow)
        undo_if_unread(scope, partial(self.table.abandon, key))
        return accepted(flow, key)

    async def _end(self, scope: Scope, receive: Receive) -> Answer:
        asked = await read_json(scope, receive, EndBody)
        flow = self.table.take(asked.flow_id)
        if flow is None:
            said = "no such flow runs: it was ended before, expired, or never was"
            return answer({"ended": False, "message": said})
        if not flow.end(asked.status, asked.tokens):
            said = "it ran longer than it may: its tokens had been given to others"
            return answer({"ended": False, "message": said})
        return answer({"ended": True})

    async def _signal(self, scope: Scope, receive: Receive, name: str) -> Answer:
        asked = await read_json(scope, receive, SignalBody)
        if not self.flows.post_signal(name, asked.value):
            detail = f"no controller listens to a signal {shown(name)}; name it in load.signal"
            raise Problem(404, "unknown_signal", detail)
        return answer({"signal": name, "value": asked.value})

    # Operators

    async def _livez(self, scope: Scope, receive: Receive) -> Answer:
        return answer({"status": "ok"})

    async def _readyz(self, scope: Scope, receive: Receive) -> Answer:
        if self.draining:
            return answer({"status": "draining"}, 503)
        return answer({"status": "ok"})

    async def _metrics(self, scope: Scope, receive: Receive) -> Answer:
        body, media = self.flows.metrics()
        return Answer(200, body, media.encode())

    async def _openapi(self, scope: Scope, receive: Receive) -> Answer:
        schemas = schemas_of({"Check": CheckBody, "End": EndBody, "Signal": SignalBody})
        return answer(document(schemas, secured=self.token is not None))


def denied_status(flow: Any) -> int:
    """Tell the HTTP status for a flow that was refused, here or by a service elsewhere."""
    point = getattr(flow, "point", None)
    if point is not None:
        return int(point.settings.scheduler.denied_response_status_code)
    return int(getattr(flow, "denied_status", None) or DENIED)


def accepted(flow: Flow, key: str) -> Answer:
    """Answer for a flow that was accepted, under its id."""
    workload, priority = flow.workload
    said: dict[str, Any] = {
        "decision": "accepted",
        "flow_id": key,
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
    return answer(said)


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
    return answer(said, denied_status(flow), retry_header(flow.retry_after))


def waited(flow: Flow) -> float:
    """Tell how long a flow that was accepted waited, in seconds."""
    return 0.0 if flow.point is None else max(0.0, flow.started_at - flow.arrived_at)
