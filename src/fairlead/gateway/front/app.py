"""The first that a request of the data port meets: a closed path ends here, the list of models needs no slot."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from fairlead.gateway.front.catalog import LIST, asks_for_models
from fairlead.gateway.front.exposure import LONGEST_READ, Exposure, too_long
from fairlead.gateway.responses import Failure, send_failure
from fairlead.serving.framing import Refusal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fairlead.gateway.admission import Admission
    from fairlead.gateway.fleet import Fleet
    from fairlead.gateway.front.exposure import Closed
    from fairlead.gateway.settings import Settings

    App = Callable[[Any, Any, Any], Awaitable[None]]

TOO_LONG = Failure(
    414, "path_too_long", f"a path of more than {LONGEST_READ} characters is not read; shorten it"
)

log = logging.getLogger("fairlead.gateway")


class Front:
    """Refuses closed paths and passes the rest on: to the list of models, or to admission."""

    def __init__(
        self,
        app: App,
        catalog: App,
        admission: Admission,
        fleet: Fleet,
        refused: Callable[[Refusal], object],
    ) -> None:
        self._app = app
        self._catalog = catalog
        self._admission = admission
        self._fleet = fleet
        self._refused = refused
        self._warned: set[str] = set()
        self.retune(admission.settings)

    def retune(self, settings: Settings) -> None:
        """Follow a changed configuration."""
        self._exposure = Exposure(settings.expose)

    def __call__(self, scope: Any, receive: Any, send: Any) -> Awaitable[None]:
        """Serve one connection; no coroutine of its own for a request that passes."""
        if scope["type"] == "http":
            raw = scope.get("raw_path")
            path = scope["path"] if raw is None else raw.decode("latin-1")
            self._exposure.mount(self._fleet.mounts)
            if too_long(path):
                return self._refuse(TOO_LONG, path, scope, send)
            closed = self._exposure.closed(path)
            if closed is not None:
                return self._refuse(self._not_exposed(closed), path, scope, send)
            if asks_for_models(scope) and LIST in self._admission.exempt:
                return self._catalog(scope, receive, send)
        return self._app(scope, receive, send)

    def _not_exposed(self, closed: Closed) -> Failure:
        if closed.denied:
            remedy = f"take {closed.entry} out of expose: {{deny: [...]}}"
            detail = f"the configuration closes this path; to open it, {remedy}"
        else:
            remedy = f"set expose: {{allow: [{closed.entry!r}]}}"
            detail = f"{closed.entry} is for operators, not for clients; to open it, {remedy}"
        if closed.entry not in self._warned:  # never more than the table and the configuration have
            self._warned.add(closed.entry)
            log.warning(
                "a request for %s got 404 (logged once); to open it, %s", closed.entry, remedy
            )
        return Failure(404, "path_not_exposed", detail)

    async def _refuse(self, failure: Failure, path: str, scope: Any, send: Any) -> None:
        self._refused(Refusal(failure.code, failure.status, scope["method"], path, begun=False))
        await send_failure(send, failure, scope["path"])
