"""Any ASGI application behind a control point: each request is a flow.

A pure ASGI callable.  The flow lasts until the response is complete, the application has returned or raised, or the
server cancels it because the client has left; a client that leaves while its request waits frees its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.config import shown
from fairlead.errors import ConfigError
from fairlead.flows.ahead import Ahead
from fairlead.flows.service import refused
from fairlead.serving.http import respond

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fairlead.serving.http import Message, Receive, Scope, Send

    Application = Callable[[Scope, Receive, Send], Any]

DATA = frozenset({"http.response.body", "http.response.pathsend", "http.response.zerocopysend"})


class FlowMiddleware:
    """Put an application behind a control point.

    `flows` is a `FlowScheduler` or a `FlowClient`.  `labels` makes a request's labels from its scope; without it they
    are `http.method`, `http.target`, `http.host` and `http.request.header.<name>` for each of `headers`, where `<name>`
    is in snake case.  Without a `timeout` a request waits as long as its workload lets it.

    >>> from fairlead.flows.scheduler import FlowScheduler
    >>> async def app(scope, receive, send): ...
    >>> flows = FlowScheduler.from_config({"control_points": {"api": {"concurrency": {"max_concurrency": 64}}}})
    >>> guarded = FlowMiddleware(app, flows, "api", headers=["x-api-key"], timeout=2.0)
    """

    def __init__(
        self,
        app: Application,
        flows: Any,
        control_point: str,
        labels: Callable[[Scope], Mapping[str, str]] | None = None,
        timeout: float | None = None,
        *,
        headers: Iterable[str] = (),
    ) -> None:
        if not hasattr(flows, "flow"):
            raise ConfigError(
                "FlowMiddleware takes a FlowScheduler or a FlowClient, such as "
                f"FlowScheduler.from_config({shown(flows)})"
            )
        self.app = app
        self.flows = flows
        self.control_point = control_point
        self.timeout = timeout
        names = {name.lower() for name in headers}
        self._headers = {
            name.encode("latin-1"): f"http.request.header.{name.replace('-', '_')}"
            for name in sorted(names)
        }
        self._labels = self.labels_of if labels is None else labels

    def labels_of(self, scope: Scope) -> dict[str, str]:
        """Make a request's labels; where a header is given twice, the first counts."""
        target = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
        query = scope.get("query_string", b"").decode("latin-1")
        said = {
            "http.method": scope["method"],
            "http.target": f"{target}?{query}" if query else target,
        }
        for name, value in scope["headers"]:
            if name == b"host":
                said.setdefault("http.host", value.decode("latin-1"))
            if (label := self._headers.get(name)) is not None:
                said.setdefault(label, value.decode("latin-1"))
        return said

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection: an HTTP request in its turn, anything else at once."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        flow = self.flows.flow(self.control_point, self._labels(scope), self.timeout)
        ahead = Ahead(receive)
        try:
            if not await ahead.enter(flow):
                return
            if flow.should_run():
                await self._run(flow, scope, ahead.reader, send)
            else:
                await respond(send, refused(flow), bodiless=scope["method"] == "HEAD")
        finally:
            ahead.stop()

    async def _run(self, flow: Any, scope: Scope, receive: Receive, send: Send) -> None:
        status = 0

        async def passed_on(message: Message) -> None:
            nonlocal status
            kind = message["type"]
            if kind == "http.response.start":
                status = message["status"]
            await send(message)
            if kind in DATA and not message.get("more_body", False):
                await _end(flow, "error" if status >= 500 else "ok")

        try:
            await self.app(scope, receive, passed_on)
        except BaseException:
            await _end(flow, "error")
            raise
        await _end(flow, "error" if not 0 < status < 500 else "ok")


async def _end(flow: Any, status: str) -> None:
    """End a flow, of a scheduler here or of a service elsewhere; all but the first end change nothing."""
    result = flow.end(status)
    if not isinstance(result, bool):
        await result
