"""Runs, jobs, schedules and workers as documents: the JSON of the command line and of the HTTP API."""

from __future__ import annotations

import asyncio
import json
import unicodedata
from typing import TYPE_CHECKING, Any

from fairlead.errors import ConfigError
from fairlead.jobs.cron import upcoming
from fairlead.jobs.sla import score
from fairlead.jobs.times import written

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fairlead.jobs.records import JobRow, RunRow, Schedule, WorkerRow

PART = 250  # jobs described at once, some milliseconds of the event loop
TICKS = 5  # of a schedule, to see whether it is the one that was meant


def visible(text: str) -> str:
    r"""Write out what a terminal would obey or hide: control characters, escapes, marks of direction.

    >>> visible("a\x1b[31mb\u202e")
    'a\\x1b[31mb\\u202e'
    """
    if text.isprintable():
        return text
    return "".join(one if _harmless(one) else _escaped(one) for one in text)


def _harmless(one: str) -> bool:
    return one.isprintable() or unicodedata.category(one) == "Zs"


def _escaped(one: str) -> str:
    return one.encode("unicode_escape", "surrogatepass").decode("ascii")


def run_document(run: RunRow) -> dict[str, Any]:
    """Describe a run, without its jobs."""
    return {
        "id": str(run.dag),
        "name": run.name,
        "state": run.state,
        "tenant": run.tenant or None,
        "key": run.key,
        "soft_sla": written(run.soft),
        "hard_sla": written(run.hard),
        "created_at": written(run.created_at),
        "start_at": written(run.start_at),
        "started_at": written(run.started_at),
        "completed_on": written(run.completed_on),
        "job_count": run.jobs,
        "jobs_left": run.left,
        "cancelling": run.cancelling,
    }


async def run_with_jobs(run: RunRow, jobs: Sequence[JobRow], now: float) -> dict[str, Any]:
    """Describe a run with all its jobs; other work goes on between parts of many."""
    names = {job.node: job.name for job in jobs}
    shown: list[dict[str, Any]] = []
    for start in range(0, len(jobs), PART):
        shown += [job_document(job, names, now) for job in jobs[start : start + PART]]
        await asyncio.sleep(0)
    return {**run_document(run), "jobs": shown}


def job_document(job: JobRow, names: Mapping[int, str], now: float) -> dict[str, Any]:
    """Describe a job; its priority is that of this moment, or of its end."""
    at = now if job.completed_on is None else job.completed_on
    return {
        "id": f"{job.dag}.{job.node}",
        "name": job.name,
        "state": job.state,
        "task": job.task,
        "executor": job.executor,
        "result": None if job.result is None else json.loads(job.result),
        "error": None if job.error is None else json.loads(job.error),
        "priority": score(at, job.soft, job.hard),
        "needs": [names[node] for node in job.needs],
        "waits": job.waits,
        "level": job.level,
        "estimate": job.estimate,
        "soft_sla": written(job.soft),
        "hard_sla": written(job.hard),
        "attempts": job.attempts,
        "retries": job.retries,
        "crashes": job.crashes,
        "start_at": written(job.start_at or None),
        "ready_at": written(job.ready_at),
        "claimed_at": written(job.claimed_at),
        "started_at": written(job.started_at),
        "completed_on": written(job.completed_on),
        "worker": job.worker,
        "cancelling": job.cancelling,
    }


def schedule_document(schedule: Schedule, now: float) -> dict[str, Any]:
    """Describe a schedule and its next ticks."""
    try:
        ticks = [] if schedule.paused else upcoming(schedule.cron, schedule.timezone, now, TICKS)
    except ConfigError:  # of an earlier version: it does not fire, and the log says why
        ticks = []
    return {
        "name": schedule.name,
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "misfire": schedule.misfire,
        "paused": schedule.paused,
        "run": schedule.run,
        "next": [written(tick) for tick in ticks],
    }


def worker_document(worker: WorkerRow) -> dict[str, Any]:
    """Describe a worker."""
    return {
        "id": worker.id,
        "name": worker.name,
        "executor": worker.executor,
        "slots": worker.slots,
        "process": worker.process,
        "silent": worker.expired,
        "draining": worker.draining,
    }
