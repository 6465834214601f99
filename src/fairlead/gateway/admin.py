"""The operators' port: /metrics, /livez, /readyz, /workers, /openapi.json.

It shows the gateway and changes its fleet; it carries no traffic.  With a token set, everything but /livez asks for it.
Without one it listens on loopback, where a page in a browser can reach it too, should its name have been made to mean
127.0.0.1 (DNS rebinding): whatever would change the fleet then names its origin, and is refused for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from pydantic import ValidationError

from fairlead.config import shown
from fairlead.errors import Misuse
from fairlead.gateway.openapi import document
from fairlead.gateway.reservations import gate_name
from fairlead.gateway.settings import Upstream
from fairlead.serving.access import LOCAL, Caller, Role, authorize
from fairlead.serving.auditing import CALLER, Audit, noted
from fairlead.serving.http import Answer, Problem, answer, read_body, with_problems
from fairlead.serving.routes import Application, Routes, reading

if TYPE_CHECKING:
    from fairlead.gateway.admission import Admission
    from fairlead.gateway.fleet import Fleet
    from fairlead.serving.http import Receive, Scope


class Admin(Application):
    """The app; `draining` turns /readyz to 503."""

    def __init__(self, fleet: Fleet, admission: Admission, token: str | None = None) -> None:
        self._fleet = fleet
        self._admission = admission
        self.token = token
        self.draining = False
        self.audit = Audit()
        table: dict[str, Any] = {
            "/livez": reading(self._livez),
            "/metrics": reading(self._metrics),
            "/openapi.json": reading(self._openapi),
            "/readyz": reading(self._readyz),
            "/workers": {
                **reading(self._workers),
                "POST": self._add_worker,
                "DELETE": self._remove_worker,
            },
        }
        self.routes = Routes(table, hint=f"ask for {', '.join(table)}")

    def authorize(self, scope: Scope) -> None:
        authorize(scope, self.token, realm="fairlead admin", setting="admin.token")
        scope[CALLER] = LOCAL if self.token is None else Caller("admin.token", Role.ADMIN)

    async def _livez(self, scope: Scope, receive: Receive) -> Answer:
        return answer({"status": "ok"})

    async def _readyz(self, scope: Scope, receive: Receive) -> Answer:
        if self.draining:
            return answer({"status": "draining"}, 503)
        problems = [*self._admission.problems, *self._outages()]
        if problems:
            down = self._fleet.down and not self._admission.settings.ready_without_backends
            status = "down" if down else "degraded"
            return answer({"status": status, "problems": problems}, 503 if down else 200)
        said: dict[str, Any] = {"status": "ok"}
        if short := self._admission.shortages():
            said["reservations"] = short
        return answer(said)

    def _outages(self) -> list[str]:
        return [f"pool {gate_name(name)}: {why}" for name, why in self._fleet.outages().items()]

    async def _metrics(self, scope: Scope, receive: Receive) -> Answer:
        body, media = self._admission.metrics.render()
        return Answer(200, body, media.encode())

    async def _openapi(self, scope: Scope, receive: Receive) -> Answer:
        return answer(document(secured=self.token is not None))

    async def _workers(self, scope: Scope, receive: Receive) -> Answer:
        workers = self._fleet.describe()
        return answer({"workers": workers, "capacities": self._fleet.capacities()})

    async def _add_worker(self, scope: Scope, receive: Receive) -> Answer:
        body = await read_body(scope, receive)
        try:
            given = Upstream.model_validate_json(body)
        except ValidationError as error:
            raise with_problems("bad_worker", "this is no worker: ", error) from None
        try:
            upstream = self._fleet.add(given)
        except Misuse as error:
            raise Problem(409, "worker_exists", str(error)) from None
        noted(scope, f"added worker {upstream.url}", None, upstream.describe())
        return answer(upstream.describe(), 201)

    async def _remove_worker(self, scope: Scope, receive: Receive) -> Answer:
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        urls = query.pop("url", [])
        if len(urls) != 1 or query:
            detail = "say which one to remove: DELETE /workers?url=http://10.0.0.7:9001"
            raise Problem(422, "bad_query", detail)
        url = urls[0].rstrip("/")
        before = next((one for one in self._fleet.describe() if one["url"] == url), None)
        if not self._fleet.remove(url):
            raise Problem(404, "worker_unknown", f"there is no worker {shown(url)}")
        noted(scope, f"removed worker {url}", before, None)
        return answer({"removed": url})
