"""The HTTP API of jobs: what the command line can do, for programs; and /metrics, /livez, /readyz.  Raw ASGI.

Whatever a client sends is answered below 500.  A database that cannot be reached is 503 with Retry-After: nothing was
changed then, and the request may be repeated.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.errors import UnknownRun
from fairlead.jobs import large
from fairlead.jobs.bodies import BODIES, PlannerBody, ScheduleBody, SlaBody
from fairlead.jobs.conflicts import ERROR
from fairlead.jobs.metrics import Metrics
from fairlead.jobs.openapi import document
from fairlead.jobs.operating import MOST_SHOWN, SHOWN, Operations, schedule_of
from fairlead.jobs.sla import KEEP
from fairlead.serving.access import Access, Role, Token, digest_of
from fairlead.serving.aside import LARGE, Aside
from fairlead.serving.auditing import CALLER, UNCHANGED
from fairlead.serving.http import (
    Answer,
    Problem,
    Stream,
    answer,
    answer_by_parts,
    object_of,
    read_body,
    read_query,
    read_strictly,
    strictly,
)
from fairlead.serving.openapi import schemas_of
from fairlead.serving.queries import whole_of
from fairlead.serving.routes import READING, Application, Routes, telling_errors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlead.jobs.service import Jobs
    from fairlead.serving.http import Receive, Scope
    from fairlead.serving.routes import Handler

LARGEST_BODY = 8 * 1024 * 1024
STILL = 30.0  # seconds without a turn of the scheduler after which it is taken to hang


# Who may do what; docs/jobs.md has the same table.  Each role may do what those before it may.
_VIEWER, _SUBMITTER, _OPERATOR = Role.VIEWER, Role.SUBMITTER, Role.OPERATOR
ROLES: dict[tuple[str, str], Role] = {
    ("GET", "/livez"): _VIEWER,  # in fact open to all, as `open_paths` says
    ("GET", "/metrics"): _VIEWER,
    ("GET", "/openapi.json"): _VIEWER,
    ("GET", "/readyz"): _VIEWER,
    ("GET", "/v1/jobs/{job}/explain"): _VIEWER,
    ("GET", "/v1/planner"): _VIEWER,
    ("GET", "/v1/runs"): _VIEWER,
    ("GET", "/v1/runs/{run}"): _VIEWER,
    ("GET", "/v1/schedules"): _VIEWER,
    ("GET", "/v1/schedules/{name}"): _VIEWER,
    ("GET", "/v1/workers"): _VIEWER,
    ("POST", "/v1/runs"): _SUBMITTER,
    ("DELETE", "/v1/schedules/{name}"): _OPERATOR,
    ("POST", "/v1/runs/{run}/cancel"): _OPERATOR,
    ("POST", "/v1/runs/{run}/pause"): _OPERATOR,
    ("POST", "/v1/runs/{run}/resume"): _OPERATOR,
    ("POST", "/v1/runs/{run}/retry"): _OPERATOR,
    ("POST", "/v1/runs/{run}/sla"): _OPERATOR,
    ("POST", "/v1/schedules/{name}/pause"): _OPERATOR,
    ("POST", "/v1/schedules/{name}/resume"): _OPERATOR,
    ("PUT", "/v1/planner"): _OPERATOR,
    ("PUT", "/v1/schedules/{name}"): _OPERATOR,
}


class Guarded(NamedTuple):
    """A handler, and the role that it asks for."""

    role: Role
    handler: Handler

    def __call__(self, scope: Scope, receive: Receive, *holes: str) -> Any:
        return self.handler(scope, receive, *holes)


class JobsApi(Application):
    """The app over one `Jobs`; `access` may be replaced while it serves, `draining` turns /readyz to 503."""

    def __init__(
        self, jobs: Jobs, *, token: str | None = None, tokens: Iterable[Token] = ()
    ) -> None:
        self.jobs = jobs
        self.operations = Operations(jobs)
        self.aside = Aside()
        self.metrics = Metrics(jobs)
        own = () if token is None else (Token("token", Role.OPERATOR, digest_of(token)),)
        self.access = Access((*own, *tokens), realm="fairlead jobs")
        self.draining = False
        self.routes = Routes(self._table())

    def _table(self) -> dict[str, dict[str, Any]]:
        """Join each route with its handler: a route without a role is a KeyError at the start."""
        handlers: dict[tuple[str, str], Handler] = {
            ("GET", "/livez"): self._livez,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/openapi.json"): self._openapi,
            ("GET", "/readyz"): self._readyz,
            ("GET", "/v1/jobs/{job}/explain"): self._explain,
            ("GET", "/v1/planner"): self._planner,
            ("PUT", "/v1/planner"): self._set_planner,
            ("GET", "/v1/runs"): self._runs,
            ("POST", "/v1/runs"): self._submit,
            ("GET", "/v1/runs/{run}"): self._run,
            **{
                ("POST", f"/v1/runs/{{run}}/{deed}"): self._deed(deed)
                for deed in ("cancel", "pause", "resume", "retry")
            },
            ("POST", "/v1/runs/{run}/sla"): self._sla,
            ("GET", "/v1/schedules"): self._schedules,
            ("GET", "/v1/schedules/{name}"): self._schedule,
            ("PUT", "/v1/schedules/{name}"): self._put_schedule,
            ("DELETE", "/v1/schedules/{name}"): self._drop_schedule,
            ("POST", "/v1/schedules/{name}/pause"): self._rest(True),
            ("POST", "/v1/schedules/{name}/resume"): self._rest(False),
            ("GET", "/v1/workers"): self._workers,
        }
        table: dict[str, dict[str, Any]] = {}
        for (method, path), handler in handlers.items():
            guarded = Guarded(ROLES[method, path], handler)
            methods = READING if method == "GET" else (method,)
            table.setdefault(path, {}).update(dict.fromkeys(methods, guarded))
        return table

    def authorize(self, scope: Scope) -> None:
        try:
            found, _ = self.routes.find(scope["path"], scope["method"])
        except Problem:  # only a caller that may look is told what there is
            self.access.require(scope, Role.VIEWER)
            return
        role = found.role if isinstance(found, Guarded) else Role.ADMIN
        scope[CALLER] = self.access.require(scope, role)
        scope[UNCHANGED] = (
            role < Role.OPERATOR
        )  # work that is submitted is no change by an operator

    async def answered(self, scope: Scope, receive: Receive) -> Answer | Stream | None:
        with telling_errors():
            return await super().answered(scope, receive)

    # Runs

    async def _submit(self, scope: Scope, receive: Receive) -> Answer:
        query = read_query(scope, ("start_at", "on_conflict"))
        body = await read_body(scope, receive, largest=LARGEST_BODY)
        how = query.get("start_at"), query.get("on_conflict", ERROR)
        if len(body) < LARGE:
            said = await self.operations.submit(object_of(body), *how)
        else:
            said = await self.aside.run(large.submit, large.home_of(self.jobs), body, *how)
            self.operations.look()
        given = answer(said, 201 if said["new"] else 200)
        return given._replace(headers=((b"location", f"/v1/runs/{said['id']}".encode()),))

    async def _runs(self, scope: Scope, receive: Receive) -> Answer:
        query: dict[str, Any] = dict(read_query(scope, ("state", "tenant", "before", "limit")))
        query["limit"] = whole_of(query, "limit", SHOWN, MOST_SHOWN)
        try:
            return answer({"runs": await self.operations.runs(**query)})
        except UnknownRun as error:  # of `before`
            raise Problem(422, "bad_query", str(error)) from None

    async def _run(self, scope: Scope, receive: Receive, run: str) -> Answer:
        return await answer_by_parts(await self.operations.run(run), "jobs")

    def _deed(self, name: str) -> Handler:
        async def do(scope: Scope, receive: Receive, run: str) -> Answer:
            return answer(await getattr(self.operations, name)(run))

        return do

    async def _sla(self, scope: Scope, receive: Receive, run: str) -> Answer:
        asked = await read_strictly(scope, receive, SlaBody)
        given = asked.model_fields_set
        said = await self.operations.set_sla(
            run,
            soft=asked.soft_sla if "soft_sla" in given else KEEP,
            hard=asked.hard_sla if "hard_sla" in given else KEEP,
            job=asked.job,
        )
        return answer(said)

    async def _explain(self, scope: Scope, receive: Receive, job: str) -> Answer:
        return answer((await self.operations.explain(job)).document())

    # Planners, schedules, workers

    async def _planner(self, scope: Scope, receive: Receive) -> Answer:
        return answer(await self.operations.planners())

    async def _set_planner(self, scope: Scope, receive: Receive) -> Answer:
        asked = await read_strictly(scope, receive, PlannerBody)
        return answer(await self.operations.set_planner(asked.planner, asked.executor))

    async def _schedules(self, scope: Scope, receive: Receive) -> Answer:
        return answer({"schedules": await self.operations.schedules()})

    async def _schedule(self, scope: Scope, receive: Receive, name: str) -> Answer:
        return answer(await self.operations.schedule(name))

    async def _put_schedule(self, scope: Scope, receive: Receive, name: str) -> Answer:
        body = await read_body(scope, receive, largest=LARGEST_BODY)
        if len(body) < LARGE:
            asked = strictly(ScheduleBody, body)
            said = await self.operations.put_schedule(schedule_of(name, **asked.model_dump()))
            return answer(said, 201 if said["new"] else 200)
        home = large.home_of(self.jobs)
        new, content = await self.aside.run(large.put_schedule, home, name, body)
        self.operations.look()
        return Answer(201 if new else 200, content)

    async def _drop_schedule(self, scope: Scope, receive: Receive, name: str) -> Answer:
        return answer(await self.operations.drop_schedule(name))

    def _rest(self, paused: bool) -> Handler:
        async def do(scope: Scope, receive: Receive, name: str) -> Answer:
            return answer(await self.operations.pause_schedule(name, paused))

        return do

    async def _workers(self, scope: Scope, receive: Receive) -> Answer:
        return answer({"workers": await self.operations.workers()})

    # Operators

    async def _livez(self, scope: Scope, receive: Receive) -> Answer:
        return answer({"status": "ok"})

    async def _readyz(self, scope: Scope, receive: Receive) -> Answer:
        if self.draining:
            return answer({"status": "draining"}, 503)
        scheduler = self.jobs.scheduler
        if scheduler is None:
            return answer({"status": "not serving"}, 503)
        if time.monotonic() - scheduler.progressed_at > STILL:
            return answer({"status": "stuck"}, 503)
        return answer({"status": "ok", "role": "leader" if scheduler.leading else "standby"})

    async def _metrics(self, scope: Scope, receive: Receive) -> Answer:
        body, media = await self.metrics.render()
        return Answer(200, body, media.encode())

    async def _openapi(self, scope: Scope, receive: Receive) -> Answer:
        schemas = schemas_of(BODIES)
        return answer(document(schemas, secured=not self.access.open, roles=ROLES))
