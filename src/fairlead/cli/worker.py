"""`fairlead worker`: run the jobs of some executors here, wherever the scheduler is.

SIGTERM and SIGINT end it: nothing more is taken, what runs gets `--grace` to finish, the rest is handed back.  A second
signal cuts the grace short.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli.apps import APP, find_jobs
from fairlead.cli.carrying import carried_out
from fairlead.config import seconds
from fairlead.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairlead.jobs.estimates import Estimates
    from fairlead.jobs.executors.base import ExecutorSpec
    from fairlead.jobs.records import Ending, Finished
    from fairlead.jobs.service import Jobs
    from fairlead.jobs.stores.base import Store
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
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="ADDRESS",
            help="The Ray cluster of --kind ray, such as head:6379 or auto; else $RAY_ADDRESS, else a small one here.",
        ),
    ] = None,
    runtime_env: Annotated[
        str | None,
        typer.Option(
            "--runtime-env",
            metavar="FILE|JSON",
            help="Ray's runtime environment for --kind ray: a JSON or YAML file, or JSON itself.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="What it is called; else the host.")
    ] = None,
    grace: Annotated[
        str,
        typer.Option("--grace", metavar="DURATION", help="How long jobs may go on after a signal."),
    ] = "30s",
) -> Any:
    """Run jobs of some executors, wherever the database is reached."""

    def start() -> int:
        from fairlead.jobs.executors.base import specs_of

        limit = seconds(grace, "--grace", zero=True)
        named = app or os.environ.get(APP)
        jobs = find_jobs(named, None, tasks=True)
        logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
        executors = executor or sorted({task.executor for task in jobs.tasks.values()})
        if not executors:
            raise ConfigError(
                f"{named} has no tasks, so there is nothing to serve; name an --executor"
            )
        value = executor_of(kind, slots, address, runtime_env)
        specs = specs_of(dict.fromkeys(executors, value))
        return asyncio.run(_serve(jobs, named, specs, name, limit))

    return carried_out(start, "worker", "jobs")


def executor_of(
    kind: str, slots: int, address: str | None, runtime_env: str | None
) -> dict[str, Any]:
    """Return the description of every executor that this worker serves."""
    if kind == "worker":
        raise ConfigError(
            "--kind must be local, threads, processes or ray; a worker is what this is"
        )
    value: dict[str, Any] = {"kind": kind, "slots": slots}
    for option, given in (("--address", address), ("--runtime-env", runtime_env)):
        if given is not None and kind != "ray":
            raise ConfigError(f"{option} is for --kind ray; this worker is of kind {kind}")
    if address is not None:
        value["address"] = address
    if runtime_env is not None:
        value["runtime_env"] = _mapping(runtime_env)
    return value


def _mapping(text: str) -> Any:
    """Read JSON, or the JSON or YAML file of that name."""
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except ValueError as error:
            raise ConfigError(f"--runtime-env is not JSON: {error}") from error
    from fairlead.documents.loading import tree_of
    from fairlead.documents.reading import content_of, lines_of

    node, problems, _ = tree_of(content_of(text), text)
    if problems or node is None:
        raise ConfigError(f"--runtime-env cannot be read: {'; '.join(lines_of(problems, text))}")
    return node.plain()


async def _serve(
    jobs: Jobs,
    app: str | None,
    specs: Mapping[str, ExecutorSpec],
    name: str | None,
    grace: float,
) -> int:
    from fairlead.jobs.estimates import Estimates
    from fairlead.jobs.worker import Crew

    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number)
    store = await jobs.store()
    estimates = Estimates()
    stuck: list[str] = []

    def on_stuck(sentence: str) -> None:
        stuck.append(sentence)
        if len(stuck) == 1:  # a second signal would hurry
            signals.put_nowait(signal.SIGTERM)

    async def heard(endings: list[Ending], _: Finished) -> None:
        estimates.note(endings)

    crew = Crew(
        store,
        jobs.tasks,
        specs,
        name=name,
        lease=jobs.settings.lease,
        poll=jobs.settings.poll,
        heard=heard,
        crashes=jobs.settings.crashes,
        stuck_after=jobs.settings.stuck_after,
        on_stuck=on_stuck,
        app=app,
        listen=True,
    )
    sharing = asyncio.create_task(_share(estimates, store, jobs.settings.sweep))
    try:
        await crew.start()
        for one, worker_id in crew.workers.items():
            log.info("worker %d serves executor %s with %d slots", worker_id, one, crew.slots[one])
        await signals.get()
        for sentence in stuck:
            log.error("this worker ends, to be restarted: %s", sentence)
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
        sharing.cancel()
        await asyncio.gather(sharing, return_exceptions=True)
        await crew.stop()
        await jobs.close()
    log.info("this worker has ended")
    return int(bool(stuck))


async def _share(estimates: Estimates, store: Store, every: float) -> None:
    """Tell the scheduler now and then how long tasks take here."""
    while True:
        await asyncio.sleep(every)
        if estimates.fresh:
            try:
                await estimates.share(store)
            except StoreError as error:  # those who cannot do without the database say so louder
                log.debug("what was learned is not told now: %s", error)


async def _hurry(signals: asyncio.Queue[int], crew: Crew) -> None:
    await signals.get()
    from fairlead.serving.process import end_soon

    log.info("hurrying: what still runs is handed back now")
    crew.hurry()
    end_soon("fairlead worker", crew.left)
