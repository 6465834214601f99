"""What operators do, for the command line and for the HTTP API alike: look, change, and be told in a sentence.

Each deed answers with a document.  What cannot be done is a Fairlead error: `UnknownRun` for what is not there, another
one for what cannot be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.config import shown, whole
from fairlead.documents.reading import Problem, content_of, lines_of
from fairlead.errors import BadFile, ConfigError, UnknownRun
from fairlead.jobs.conflicts import ERROR
from fairlead.jobs.cron import checked
from fairlead.jobs.executors.base import check_declared
from fairlead.jobs.explaining import explain
from fairlead.jobs.files import MOST_FILE_BYTES, run_of_content, run_of_file, source_of
from fairlead.jobs.limits import limited
from fairlead.jobs.outcome import find_run, job_id, run_number
from fairlead.jobs.planners import kind_of
from fairlead.jobs.planning import name_of
from fairlead.jobs.records import Schedule
from fairlead.jobs.registry import named
from fairlead.jobs.showing import (
    run_document,
    run_with_jobs,
    schedule_document,
    worker_document,
)
from fairlead.jobs.sla import KEEP
from fairlead.jobs.states import ACTIVE, COMPLETED, CREATED, SUSPENDED, TERMINAL
from fairlead.jobs.wording import cut

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from fairlead.jobs.explaining import Explanation
    from fairlead.jobs.records import NewRun, RunRow
    from fairlead.jobs.registry import Task
    from fairlead.jobs.service import Jobs
    from fairlead.jobs.stores.base import Store

MOST_SHOWN = 10_000
SHOWN = 50
RUN_STATES = (CREATED, ACTIVE, SUSPENDED, *sorted(TERMINAL - {"skipped", "expired"}))


class Operations:
    """All that can be done to the runs of one `Jobs`."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs

    # Runs

    async def submit(
        self, dag: Any, start_at: Any = None, on_conflict: str = ERROR
    ) -> dict[str, Any]:
        """Store a DAG file, by its path or its content, or a mapping like it."""
        given: Any = _Content(dag) if isinstance(dag, bytes) else dag
        run = await self.jobs.submit(given, start_at=start_at, on_conflict=on_conflict)
        return {"id": run.id, "new": run.new}

    async def runs(
        self,
        *,
        state: str | None = None,
        tenant: str | None = None,
        before: Any = None,
        limit: int = SHOWN,
    ) -> list[dict[str, Any]]:
        """List runs, newest first."""
        rows = await self.rows(state=state, tenant=tenant, before=before, limit=limit)
        return [run_document(row) for row in rows]

    async def rows(
        self,
        *,
        state: str | None = None,
        tenant: str | None = None,
        before: Any = None,
        limit: int = SHOWN,
    ) -> list[RunRow]:
        """Find runs, newest first."""
        if state is not None and state not in RUN_STATES:
            raise ConfigError(f"state must be one of {', '.join(RUN_STATES)}; got {shown(state)}")
        whole(limit, "limit", 1, MOST_SHOWN)
        last = None if before is None else run_number(before)
        if tenant is not None and "\0" in tenant:
            raise ConfigError(f"no tenant has a NUL in its name; got {shown(tenant)}")
        store = await self.jobs.store()
        return await store.runs(state=state, tenant=tenant, before=last, limit=limit)

    async def run(self, run: Any) -> dict[str, Any]:
        """Show a run and its jobs."""
        store = await self.jobs.store()
        row = await self.row(run)
        return await run_with_jobs(row, await store.jobs(row.dag), store.now())

    async def cancel(self, run: Any) -> dict[str, Any]:
        """Cancel a run: what waits never runs, what runs is stopped."""
        return await self._changed(run, self.jobs.cancel)

    async def pause(self, run: Any) -> dict[str, Any]:
        """Start nothing more of a run."""
        return await self._changed(run, self.jobs.pause)

    async def resume(self, run: Any) -> dict[str, Any]:
        """Go on with a paused run."""
        return await self._changed(run, self.jobs.resume)

    async def retry(self, run: Any) -> dict[str, Any]:
        """Give what did not complete fresh attempts."""
        return await self._changed(run, self.jobs.retry)

    async def _changed(
        self, run: Any, deed: Callable[[Any], Coroutine[Any, Any, bool]]
    ) -> dict[str, Any]:
        changed = await deed(run)
        row = await self.row(run)
        said: dict[str, Any] = {"id": str(row.dag), "state": row.state, "changed": changed}
        if not changed:
            said["message"] = _unchanged(deed.__name__, row)
        return said

    async def set_sla(
        self, run: Any, *, soft: Any = KEEP, hard: Any = KEEP, job: Any = None
    ) -> dict[str, Any]:
        """Change the SLAs of a run or of one of its jobs, and show it."""
        await self.change_sla(run, soft=soft, hard=hard, job=job)
        return await self.run(run)

    async def change_sla(
        self, run: Any, *, soft: Any = KEEP, hard: Any = KEEP, job: Any = None
    ) -> None:
        """Change the SLAs of a run or of one of its jobs; relative ones count from now, None is none."""
        node = None
        if job is not None:
            own = run_number(run)
            dag, node = job_id(job if "." in str(job) else f"{own}.{job}")
            if dag != own:
                raise UnknownRun(f"run {own} has no job {shown(job)}")
        await self.jobs.set_sla(run, soft_sla=soft, hard_sla=hard, node=node)

    async def explain(self, job: Any) -> Explanation:
        """Say in one sentence why a job does not run, and when it likely will."""
        dag, node = job_id(job)
        found = await explain(
            await self.jobs.store(), self.jobs.settings, (dag, node), self.jobs.scheduler
        )
        crew = self.jobs.crew
        trouble = crew.trouble_of((dag, node)) if crew is not None else None
        if trouble is None or found.reason != "running":
            return found
        sentence = cut(f"job {found.job} was given to this process and waits here: {trouble}")
        return found._replace(reason="cluster_away", sentence=sentence, expected_at=None)

    async def row(self, run: Any) -> RunRow:
        """Find a run."""
        return await find_run(await self.jobs.store(), run_number(run))

    # Planners

    async def planners(self) -> dict[str, Any]:
        """Tell which planner orders what: for all executors, and for those that have their own."""
        store = await self.jobs.store()
        settings = await store.settings()
        scheduler = self.jobs.scheduler
        leads = scheduler is not None and scheduler.leading
        first = self.jobs.settings if leads else limited(self.jobs.settings, settings)
        return {
            "planner": settings.get("planner", name_of(first.planner, first.planners)),
            "executors": {
                name.partition(".")[2]: value
                for name, value in sorted(settings.items())
                if name.startswith("planner.")
            },
        }

    async def stored_planners(self) -> list[tuple[str | None, str, str]]:
        """List planners that were set while it ran: the executor or None for all, the planner, the one at first."""
        store = await self.jobs.store()
        settings = await store.settings()
        scheduler = self.jobs.scheduler
        leads = scheduler is not None and scheduler.leading
        first = self.jobs.settings if leads else limited(self.jobs.settings, settings)
        name = name_of(first.planner, first.planners)
        found: list[tuple[str | None, str, str]] = []
        if "planner" in settings:
            found.append((None, settings["planner"], name))
        whole = settings.get("planner", name)
        for key, planner in sorted(settings.items()):
            if key.startswith("planner."):
                found.append((key.partition(".")[2], planner, whole))
        return found

    async def set_planner(self, planner: str | None, executor: str | None = None) -> dict[str, Any]:
        """Have another planner, within a poll; None is the one there was at first."""
        store = await self.jobs.store()
        if planner is not None:
            kind_of(planner, self.jobs.settings.planners)
        if executor is not None:
            known = set(self.jobs.executors) | await store.executors()
            if named(executor, "executor") not in known:
                raise ConfigError(
                    f"there is no executor {executor!r}; there are {', '.join(sorted(known))}"
                )
        await store.set_setting("planner" if executor is None else f"planner.{executor}", planner)
        self.look()
        return await self.planners()

    # Schedules

    async def schedules(self) -> list[dict[str, Any]]:
        """List schedules."""
        store = await self.jobs.store()
        return [schedule_document(one, store.now()) for one in await store.schedules()]

    async def schedule(self, name: str) -> dict[str, Any]:
        """Show a schedule."""
        store = await self.jobs.store()
        return schedule_document(await self._schedule(store, name), store.now())

    async def put_schedule(self, schedule: Schedule, *, known_tasks: bool = True) -> dict[str, Any]:
        """Add a schedule, or change it; what it runs is checked as a DAG file, if the tasks are known here.

        One that rests goes on resting; another cron or time zone counts from now.
        """
        checked(schedule)
        store = await self.jobs.store()
        now = store.now()
        if known_tasks:
            run = run_of_file(schedule.run, self.jobs.tasks, now=now)
            await check_declared(store, self.jobs.executors, [run])
        old = {one.name: one for one in await store.schedules()}.get(schedule.name)
        paused = schedule.paused if old is None else old.paused
        schedule = schedule._replace(cursor=now, paused=paused)
        await store.put_schedule(schedule)
        self.look()
        return {**schedule_document(schedule, now), "new": old is None}

    async def pause_schedule(self, name: str, paused: bool) -> dict[str, Any]:
        """Let a schedule rest, or go on."""
        store = await self.jobs.store()
        schedule = (await self._schedule(store, name))._replace(paused=paused)
        await store.put_schedule(schedule)
        self.look()
        return schedule_document(schedule, store.now())

    async def drop_schedule(self, name: str) -> dict[str, Any]:
        """Remove a schedule; runs that it has submitted stay."""
        store = await self.jobs.store()
        if not await store.drop_schedule(named(name, "the name of a schedule")):
            raise _no_schedule(name)
        self.look()
        return {"removed": name}

    async def _schedule(self, store: Store, name: str) -> Schedule:
        for one in await store.schedules():
            if one.name == name:
                return one
        raise _no_schedule(name)

    # Workers

    async def workers(self) -> list[dict[str, Any]]:
        """List those who run jobs."""
        store = await self.jobs.store()
        return [worker_document(one) for one in await store.workers()]

    def look(self) -> None:
        """Have the scheduler look for news soon."""
        if self.jobs.scheduler is not None:
            self.jobs.scheduler.look_soon()


class _Content:
    """What a DAG file held, from standard input."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def plan(
        self,
        tasks: Mapping[str, Task],
        *,
        now: float,
        start_at: float | None,
        estimates: Mapping[str, float] | None,
    ) -> NewRun:
        """Make a run of it."""
        return run_of_content(
            self._content,
            tasks,
            now=now,
            start_at=start_at,
            estimates=estimates,
            name="standard input",
        )


def mapping_of_file(path: str) -> dict[str, Any]:
    """Read a DAG file, without looking at what it says."""
    content = content_of(path, MOST_FILE_BYTES)
    if isinstance(content, Problem):
        raise BadFile(lines_of([content], path))
    found = source_of(content, path).value
    if not isinstance(found, dict):
        raise ConfigError(f"{path} is no DAG file: it must be a mapping with name and jobs")
    return found


def schedule_of(
    name: str,
    cron: str,
    *,
    task: str | None = None,
    args: Any = (),
    kwargs: Any = None,
    run: Any = None,
    timezone: str = "UTC",
    misfire: str = "one",
    paused: bool = False,
) -> Schedule:
    """Make a schedule of one task, or of a whole DAG file."""
    if (task is None) == (run is None):
        raise ConfigError("a schedule runs either one task or one DAG file; give one of the two")
    if task is not None:
        named(task, "the name of a task")
        job = {"name": task, "task": task, "args": list(args), "kwargs": dict(kwargs or {})}
        run = {"name": name, "jobs": [job]}
    return Schedule(name, cron, timezone, run, misfire, 0.0, paused)


def _no_schedule(name: str) -> UnknownRun:
    return UnknownRun(f"there is no schedule {shown(name)}; see fairlead jobs schedule list")


def _unchanged(deed: str, row: RunRow) -> str:
    """Say why nothing was changed."""
    ended = row.state in TERMINAL
    if deed == "retry":
        if row.state == COMPLETED:
            return f"every job of run {row.dag} completed: there is nothing to retry"
        if ended:
            return f"run {row.dag} has ended ({row.state}) and is archived: submit its DAG anew"
        rest = "" if row.cancelling else ", or cancel it first"
        return f"run {row.dag} has not ended ({row.state}): wait for its end{rest}"
    if ended:
        return f"run {row.dag} has ended already ({row.state})"
    if row.cancelling:
        return f"run {row.dag} is being cancelled{' already' if deed == 'cancel' else ''}"
    if deed == "resume":
        return f"run {row.dag} is not paused ({row.state})"
    return f"run {row.dag} is paused already"
