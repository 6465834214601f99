"""`fairlead worker`: run the jobs of some executors here, wherever the scheduler is.

SIGTERM and SIGINT end it: nothing more is taken, what runs gets `--grace` to finish, the rest is handed back.  A second
signal cuts the grace short.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli.apps import APP, find_jobs
from fairlead.config import seconds
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlead.jobs.service import Jobs
    from fairlead.jobs.worker import Crew

log = logging.getLogger("fairlead.jobs")


def worker(
    app: Annotated[
        str | None,
        typer.Option(
            "--app",
            metavar="MODULE:JOBS",
            help="The Jobs object whose tasks it runs; else $FAIRLEAD_APP.",
        ),
    ] = None,
    executor: Annotated[
        list[str] | None,
        typer.Option(
            "--executor", metavar="NAME", help="The executor it serves; may be given several times."
        ),
    ] = None,
    slots: Annotated[
        int, typer.Option("--slots", metavar="N", help="How many jobs of each run at once.")
    ] = 4,
    kind: Annotated[
        str,
        typer.Option(
            "--kind",
            metavar="KIND",
            help="How they run: local (on the loop, or on threads), threads, processes or ray.",
        ),
    ] = "local",
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="What it is called; else the host.")
    ] = None,
    grace: Annotated[
        str,
        typer.Option("--grace", metavar="DURATION", help="How long jobs may go on after a signal."),
    ] = "30s",
) -> Any:
    """Run the jobs of some executors, on any host that reaches the database."""
    limit = seconds(grace, "--grace", zero=True)
    app = app or os.environ.get(APP)
    jobs = find_jobs(app, None, tasks=True)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    executors = executor or sorted({task.executor for task in jobs.tasks.values()})
    if not executors:
        raise ConfigError(f"{app} has no tasks, so there is nothing to serve; name an --executor")
    return asyncio.run(_serve(jobs, app, executors, slots, kind, name, limit))


async def _serve(
    jobs: Jobs,
    app: str | None,
    names: Sequence[str],
    slots: int,
    kind: str,
    name: str | None,
    grace: float,
) -> int:
    from fairlead.jobs.executors.base import specs_of
    from fairlead.jobs.worker import Crew

    if kind == "worker":
        raise ConfigError(
            "--kind must be local, threads, processes or ray; a worker is what this is"
        )
    specs = specs_of({one: {"kind": kind, "slots": slots} for one in names})
    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number)
    store = await jobs.store()
    crew = Crew(
        store,
        jobs.tasks,
        specs,
        name=name or socket.gethostname(),
        process=f"{socket.gethostname()}:{os.getpid()}:{token_hex(6)}",
        lease=jobs.settings.lease,
        poll=jobs.settings.poll,
        max_crashes=jobs.settings.max_crashes,
        app=app,
        listen=True,
    )
    try:
        await crew.start()
        for one, worker_id in crew.workers.items():
            log.info("worker %d serves executor %s with %d slots", worker_id, one, crew.slots[one])
        await signals.get()
        log.info(
            "no more jobs are taken; what runs gets %g s, a second signal cuts that short", grace
        )
        hurry = asyncio.ensure_future(_hurry(signals, crew))
        try:
            await crew.drain(grace)
        finally:
            hurry.cancel()
            await asyncio.gather(hurry, return_exceptions=True)
    finally:
        await crew.stop()
        await jobs.close()
    log.info("this worker has ended")
    return 0


async def _hurry(signals: asyncio.Queue[int], crew: Crew) -> None:
    await signals.get()
    log.info("hurrying: what still runs is handed back now")
    crew.hurry()
