"""Jobs for people at the dashboard: lists by key, a run with its graph, why a job waits, and what can be done about it.

Everything is what the jobs' own operations tell, in the shape the dashboard reads; instants are epoch seconds.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, StringConstraints

from fairlead.errors import UnknownRun
from fairlead.server.api import Deed
from fairlead.serving.access import Role
from fairlead.serving.auditing import noted
from fairlead.serving.http import Answer, Body, Problem, answer, read_query, read_strictly
from fairlead.serving.queries import whole_of

if TYPE_CHECKING:
    from fairlead.jobs.operating import Operations
    from fairlead.jobs.records import JobRow, RunRow
    from fairlead.server.service import Server
    from fairlead.serving.http import Receive, Scope

SHOWN = 50
MOST_SHOWN = 500
MOST_JOBS = 2000  # of one run

Text = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Sla = Annotated[
    str | float | None,
    Field(
        description="a duration from now such as 15m, an instant with its zone, or null for none",
        union_mode="left_to_right",
    ),
]


class Nothing(Body):
    """A body in which nothing need be said: {}."""


class NewSla(Body):
    """What `POST …/sla` takes; what is left out stays."""

    soft: Sla = None
    hard: Sla = None
    node: Annotated[int, Field(ge=0)] | None = Field(None, description="of this job alone")


class NewPlanner(Body):
    """What `PUT /api/v1/jobs/planner` takes."""

    planner: Text | None = Field(
        description="a built-in planner, or one of the app's by its name; null: as at first"
    )
    executor: Text | None = Field(None, description="of this executor alone")


class JobDeeds:
    """The jobs' part of the API; without a jobs door everything here is 404."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def deeds(self) -> list[Deed]:
        """The table of it."""
        viewer, operator, admin = Role.VIEWER, Role.OPERATOR, Role.ADMIN
        runs = "/api/v1/jobs/runs"
        # fmt: off
        return [
            Deed("GET", runs, viewer, "List runs, newest first", self.runs,
                 ("state", "tenant", "cursor", "limit")),
            Deed("GET", f"{runs}/{{run}}", viewer, "Show a run and its jobs", self.run),
            Deed("GET", f"{runs}/{{run}}/jobs/{{node}}/explain", viewer, "Say why a job waits",
                 self.explain),
            Deed("POST", f"{runs}/{{run}}/cancel", operator, "Cancel a run", self.cancel,
                 takes=Nothing, conflict="application/json"),
            Deed("POST", f"{runs}/{{run}}/retry", operator, "Give what failed fresh attempts",
                 self.retry, takes=Nothing, conflict="application/json"),
            Deed("POST", f"{runs}/{{run}}/sla", operator, "Change SLAs", self.sla, takes=NewSla),
            Deed("GET", "/api/v1/jobs/workers", viewer, "List those who run jobs", self.workers),
            Deed("GET", "/api/v1/jobs/planner", viewer, "Tell which planner orders what",
                 self.planner),
            Deed("PUT", "/api/v1/jobs/planner", admin, "Have another planner", self.set_planner,
                 takes=NewPlanner),
        ]
        # fmt: on

    def _operations(self) -> Operations:
        door: Any = next((door for door in self._server.doors if door.kind == "jobs"), None)
        if door is None:
            raise Problem(404, "no_jobs", "no jobs are hosted here; add a jobs section")
        found: Operations = door.server.api.operations
        return found

    async def runs(self, scope: Scope, receive: Receive) -> Answer:
        query = read_query(scope, ("state", "tenant", "cursor", "limit"))
        limit = whole_of(query, "limit", SHOWN, MOST_SHOWN)
        state, tenant, cursor = (query.get(name) or None for name in ("state", "tenant", "cursor"))
        try:
            rows = await self._operations().rows(
                state=state, tenant=tenant, before=cursor, limit=limit
            )
        except UnknownRun as error:  # of the cursor
            raise Problem(422, "bad_query", str(error)) from None
        last = str(rows[-1].dag) if len(rows) == limit else None
        return answer({"items": [run_document(row) for row in rows], "next": last})

    async def run(self, scope: Scope, receive: Receive, run: str) -> Answer:
        read_query(scope, ())
        operations = self._operations()
        row = await operations.row(run)
        jobs = await (await operations.jobs.store()).jobs(row.dag, MOST_JOBS)
        return answer({**run_document(row), "jobs": [job_document(job) for job in jobs]})

    async def explain(self, scope: Scope, receive: Receive, run: str, node: str) -> Answer:
        read_query(scope, ())
        return answer((await self._operations().explain(f"{run}.{node}")).document())

    async def cancel(self, scope: Scope, receive: Receive, run: str) -> Answer:
        return await self._change(scope, receive, run, "cancel")

    async def retry(self, scope: Scope, receive: Receive, run: str) -> Answer:
        return await self._change(scope, receive, run, "retry")

    async def _change(self, scope: Scope, receive: Receive, run: str, verb: str) -> Answer:
        read_query(scope, ())
        await read_strictly(scope, receive, Nothing)
        operations = self._operations()
        before = (await operations.row(run)).state
        said = await getattr(operations, verb)(run)
        noted(scope, f"{verb} of run {said['id']}", before, said["state"])
        return answer(said, 200 if said["changed"] else 409)

    async def sla(self, scope: Scope, receive: Receive, run: str) -> Answer:
        from fairlead.jobs.sla import KEEP

        read_query(scope, ())
        asked = await read_strictly(scope, receive, NewSla)
        given = asked.model_fields_set
        operations = self._operations()
        row = await operations.row(run)
        await operations.change_sla(
            run,
            soft=asked.soft if "soft" in given else KEEP,
            hard=asked.hard if "hard" in given else KEEP,
            job=None if asked.node is None else f"{row.dag}.{asked.node}",
        )
        after = await operations.row(run)
        noted(scope, f"SLA of run {row.dag} changed", _slas(row), _slas(after))
        return answer(run_document(after))

    async def workers(self, scope: Scope, receive: Receive) -> Answer:
        read_query(scope, ())
        return answer({"workers": await self._operations().workers()})

    async def planner(self, scope: Scope, receive: Receive) -> Answer:
        read_query(scope, ())
        return answer(await self._planners())

    async def _planners(self) -> dict[str, Any]:
        from fairlead.jobs.planners import BUILT_IN

        operations = self._operations()
        known = sorted([*BUILT_IN, *operations.jobs.settings.planners])
        return {**await operations.planners(), "known": known}

    async def set_planner(self, scope: Scope, receive: Receive) -> Answer:
        read_query(scope, ())
        asked = await read_strictly(scope, receive, NewPlanner)
        before = _ordering(await self._planners(), asked.executor)
        await self._operations().set_planner(asked.planner, asked.executor)
        found = await self._planners()
        subject = "jobs:planner" if asked.executor is None else f"jobs:planner:{asked.executor}"
        what = f"planner of {asked.executor or 'all'} set to {asked.planner}"
        noted(scope, what, before, _ordering(found, asked.executor), subject)
        return answer(found)


def _slas(run: RunRow) -> dict[str, float | None]:
    return {"soft": run.soft, "hard": run.hard}


def _ordering(planners: dict[str, Any], executor: str | None) -> str:
    found: str = planners["executors"].get(executor, planners["planner"])
    return found


def run_document(run: RunRow) -> dict[str, Any]:
    """Describe a run."""
    return {
        "id": str(run.dag),
        "name": run.name,
        "tenant": run.tenant or None,
        "state": run.state,
        "submitted": run.created_at,
        "started": run.started_at,
        "ended": run.completed_on,
        "soft_sla": run.soft,
        "hard_sla": run.hard,
        "done": run.jobs - run.left,
        "total": run.jobs,
        "failed": run.failed,
        "cancelling": run.cancelling,
    }


def job_document(job: JobRow) -> dict[str, Any]:
    """Describe a job of a run."""
    return {
        "node": job.node,
        "name": job.name,
        "task": job.task,
        "executor": job.executor,
        "state": job.state,
        "deps": list(job.needs),
        "attempts": job.attempts,
        "submitted": job.ready_at,
        "started": job.started_at,
        "ended": job.completed_on,
        "worker": job.worker,
        "error": _error(job.error),
        "estimate": job.estimate,
        "soft_sla": job.soft,
        "hard_sla": job.hard,
    }


def _error(text: str | None) -> str | None:
    if text is None:
        return None
    found = json.loads(text)
    said = f"{found.get('type', '')}: {found.get('message', '')}".strip(": ")
    return said[:2000]
