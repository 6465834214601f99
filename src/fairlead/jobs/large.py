"""What is done aside with a large body: judged, planned and stored by another process, which tells the few words of it.

These functions run in the process of `serving.aside`.  It knows the tasks by name only, and no code of the user's.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.jobs.bodies import ScheduleBody
from fairlead.jobs.operating import Operations, schedule_of
from fairlead.jobs.registry import Task
from fairlead.jobs.service import Jobs
from fairlead.serving.http import object_of, strictly, written
from fairlead.serving.routes import telling_errors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Home(NamedTuple):
    """What another process must know of a `Jobs`: its database, its tasks without their code, its executors."""

    url: str
    tasks: dict[str, tuple[Any, ...]]
    executors: tuple[str, ...]


def home_of(jobs: Jobs) -> Home:
    """Describe a `Jobs`; what was learned of a task stands in for an estimate that nobody gave."""
    learned = {} if jobs.scheduler is None else jobs.scheduler.estimates.means()
    tasks = {}
    for name, (called, _, executor, estimate, *rest) in jobs.tasks.items():
        tasks[name] = (
            called,
            executor,
            learned.get(called) if estimate is None else estimate,
            *rest,
        )
    return Home(jobs.url, tasks, tuple(jobs.executors))


def _elsewhere() -> None:
    raise NotImplementedError("this process runs no jobs")


@asynccontextmanager
async def _operations(home: Home) -> AsyncIterator[Operations]:
    jobs = Jobs(home.url, executors=dict.fromkeys(home.executors, 1) or None)
    for name, (called, *rest) in home.tasks.items():
        jobs.tasks[name] = Task(called, _elsewhere, *rest)
    try:
        yield Operations(jobs)
    finally:
        await jobs.close()


async def submit(home: Home, body: bytes, start_at: str | None, on_conflict: str) -> dict[str, Any]:
    """Store a run, as `POST /v1/runs` does."""
    with telling_errors():
        dag = object_of(body)
        async with _operations(home) as operations:
            return await operations.submit(dag, start_at, on_conflict)


async def put_schedule(home: Home, name: str, body: bytes) -> tuple[bool, bytes]:
    """Store a schedule, as `PUT /v1/schedules/{name}` does; tell whether it is new, and the answer's JSON."""
    with telling_errors():
        asked = strictly(ScheduleBody, body)
        async with _operations(home) as operations:
            said = await operations.put_schedule(schedule_of(name, **asked.model_dump()))
            return said["new"], written(said)
