"""`fairlead jobs`: serve, submit, look at runs and change them.

Jobs are an extra and slow to load: nothing of them is imported before a command needs it.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli.carrying import carried_out
from fairlead.cli.jobs_asking import App, Db, Json, carry_out
from fairlead.cli.jobs_settings import planner, schedule

if TYPE_CHECKING:
    from fairlead.jobs.operating import Operations

jobs = typer.Typer(
    help="Durable DAGs of jobs with SLAs, planned onto executors.", rich_markup_mode=None
)
jobs.add_typer(planner, name="planner")
jobs.add_typer(schedule, name="schedule")

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The id of a run, such as 1042.")]
Timeout = Annotated[
    str | None, typer.Option("--timeout", metavar="TIME", help="Wait no longer, such as 10m.")
]


@jobs.callback(invoke_without_command=True)
def about(context: typer.Context) -> None:
    """Durable DAGs of jobs with SLAs, planned onto executors."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@jobs.command()
def serve(
    app: App = None,
    http: Annotated[
        str,
        typer.Option("--http", metavar="HOST:PORT", help='Where to serve the HTTP API, or "off".'),
    ] = "127.0.0.1:8089",
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            envvar="FAIRLEAD_JOBS_TOKEN",
            show_envvar=True,
            help="What clients must show; needed to listen beyond this machine.",
        ),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            "--tokens",
            metavar="FILE",
            help="Tokens with roles (viewer, submitter, operator), instead of one; it is watched.",
        ),
    ] = None,
    grace: Annotated[
        str, typer.Option("--grace", metavar="TIME", help="For what runs when a signal comes.")
    ] = "30s",
) -> Any:
    """Plan and run jobs, and serve the HTTP API.

    A signal ends it.  It runs what its local executors can; workers run the rest.
    """

    def start() -> int:
        from fairlead.cli.apps import APP, find_jobs, token_of
        from fairlead.config import seconds
        from fairlead.errors import ConfigError
        from fairlead.jobs.serving import run

        limit = seconds(grace, "--grace", zero=True)
        served = find_jobs(app, None, tasks=True)
        where = None if http == "off" else http
        named = app or os.environ.get(APP)
        shown = token_of(token, "FAIRLEAD_JOBS_TOKEN")
        if shown is not None and tokens is not None:
            raise ConfigError(
                "give either --token or --tokens: one token for all, or a file of them"
            )
        return run(served, http=where, token=shown, tokens=tokens, grace=limit, app=named)

    return carried_out(start, "jobs")


@jobs.command()
def submit(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A DAG file, YAML or JSON; - is standard input.")
    ],
    app: App = None,
    start_at: Annotated[
        str | None,
        typer.Option(
            "--start-at", metavar="TIME", help="Not before, such as 2026-03-01T12:00:00Z."
        ),
    ] = None,
    on_conflict: Annotated[
        str,
        typer.Option(
            "--on-conflict",
            metavar="error|existing",
            help="If its key belongs to a run of another DAG: fail, or give that run.",
        ),
    ] = "error",
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end; 1 if it fails.")] = False,
    timeout: Timeout = None,
    as_json: Json = False,
) -> Any:
    """Submit a DAG file as a run, durably, and print its id."""

    async def deed(operations: Operations) -> int:
        from fairlead.cli.jobs_view import tell
        from fairlead.cli.saying import note

        given = file if file != "-" else sys.stdin.buffer.read()
        said = await operations.submit(given, start_at, on_conflict)
        if not wait:
            tell(said, as_json, said["id"])
            if not said["new"] and not as_json:
                note(f"run {said['id']} had been submitted before, with the same key")
            return 0
        return await _follow(operations, said["id"], timeout, as_json)

    return carry_out(app, None, deed, tasks=True, creates=True)


@jobs.command("list")
def list_runs(
    app: App = None,
    db: Db = None,
    state: Annotated[
        str | None, typer.Option("--state", help="Only those: active, failed, ...")
    ] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only those of a tenant.")] = None,
    before: Annotated[
        str | None, typer.Option("--before", metavar="RUN", help="Only those before this one.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="How many.")] = 50,
    as_json: Json = False,
) -> Any:
    """List runs, newest first."""

    async def deed(operations: Operations) -> int:
        from fairlead.cli.jobs_view import say_runs, tell

        found = await operations.runs(state=state, tenant=tenant, before=before, limit=limit)
        tell(found, as_json, say_runs)
        return 0

    return carry_out(app, db, deed)


@jobs.command()
def show(
    run: RunId,
    app: App = None,
    db: Db = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow it to its end first.")] = False,
    timeout: Timeout = None,
    as_json: Json = False,
) -> Any:
    """Show a run and its jobs."""

    async def deed(operations: Operations) -> int:
        from fairlead.cli.jobs_view import say_run, tell

        if watch:
            return await _follow(operations, run, timeout, as_json)
        found = await operations.run(run)
        tell(found, as_json, say_run)
        return 0

    return carry_out(app, db, deed)


async def _follow(operations: Operations, run: str, timeout: str | None, as_json: bool) -> int:
    """Wait for the end of a run, and show it."""
    from fairlead.cli.jobs_view import follow, say_run, tell
    from fairlead.cli.saying import note
    from fairlead.config import seconds

    limit = None if timeout is None else seconds(timeout, "--timeout", zero=True)
    ended = await follow(operations, run, limit)
    found = await operations.run(run)
    tell(found, as_json, say_run)
    if ended is None:
        note(f"run {found['id']} has not ended within {timeout}; it goes on")
        return 1
    return 0 if ended.state == "completed" else 1


@jobs.command()
def explain(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The id of a job, such as 1042.3.")],
    app: App = None,
    db: Db = None,
    as_json: Json = False,
) -> Any:
    """Say why a job is not running, and when it likely will."""

    async def deed(operations: Operations) -> int:
        from fairlead.cli.jobs_view import tell

        found = await operations.explain(job)
        tell(found.document(), as_json, found.sentence)
        return 0

    return carry_out(app, db, deed)


@jobs.command()
def cancel(run: RunId, app: App = None, db: Db = None, as_json: Json = False) -> Any:
    """Cancel a run: what waits never runs, what runs is stopped."""
    return _change("cancel", "is cancelled", run, app, db, as_json)


@jobs.command()
def pause(run: RunId, app: App = None, db: Db = None, as_json: Json = False) -> Any:
    """Start nothing more of a run; what runs is not stopped."""
    return _change("pause", "is paused", run, app, db, as_json)


@jobs.command()
def resume(run: RunId, app: App = None, db: Db = None, as_json: Json = False) -> Any:
    """Go on with a paused run."""
    return _change("resume", "goes on", run, app, db, as_json)


@jobs.command()
def retry(run: RunId, app: App = None, db: Db = None, as_json: Json = False) -> Any:
    """Give what did not complete in an ended run fresh attempts."""
    return _change("retry", "is tried again", run, app, db, as_json)


def _change(verb: str, done: str, run: str, app: str | None, db: str | None, as_json: bool) -> int:
    async def deed(operations: Operations) -> int:
        from fairlead.cli.jobs_view import say_json
        from fairlead.cli.saying import note, say

        said = await getattr(operations, verb)(run)
        if as_json:
            say_json(said)
        elif said["changed"]:
            say(f"run {said['id']} {done}")
        else:
            note(said["message"])
        return 0 if said["changed"] else 1

    return carry_out(app, db, deed)


@jobs.command()
def sla(
    run: RunId,
    soft: Annotated[
        str | None,
        typer.Option("--soft", metavar="TIME", help='From now, or an instant; "none" removes it.'),
    ] = None,
    hard: Annotated[
        str | None,
        typer.Option("--hard", metavar="TIME", help='From now, or an instant; "none" removes it.'),
    ] = None,
    job: Annotated[
        str | None, typer.Option("--job", metavar="JOB", help="Of this job of the run alone.")
    ] = None,
    app: App = None,
    db: Db = None,
    as_json: Json = False,
) -> Any:
    """Change the SLAs of a run, or of one of its jobs."""

    async def deed(operations: Operations) -> int:
        from fairlead.cli.jobs_view import say_run, tell
        from fairlead.jobs.sla import KEEP

        def read(text: str | None) -> Any:
            return KEEP if text is None else None if text == "none" else text

        found = await operations.set_sla(run, soft=read(soft), hard=read(hard), job=job)
        tell(found, as_json, say_run)
        return 0

    return carry_out(app, db, deed)
