"""`fairlead jobs planner` and `fairlead jobs schedule`: what can be set while everything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli.jobs_asking import App, Db, Json, carry_out, read_argument

if TYPE_CHECKING:
    from fairlead.jobs.operating import Operations

planner = typer.Typer(help="Which planner orders the jobs.", rich_markup_mode=None)
schedule = typer.Typer(help="Runs that are submitted by the clock.", rich_markup_mode=None)

Executor = Annotated[
    str | None, typer.Option("--executor", metavar="NAME", help="For this executor alone.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of a schedule.")]


@planner.callback(invoke_without_command=True)
def about_planners(context: typer.Context) -> None:
    """Which planner orders the jobs."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@planner.command("show")
def show_planner(app: App = None, db: Db = None, as_json: Json = False) -> Any:
    """Tell which planner orders what."""

    async def deed(operations: Operations) -> int:
        _tell_planners(await operations.planners(), as_json)
        return 0

    return carry_out(app, db, deed)


@planner.command("set")
def set_planner(
    chosen: Annotated[
        str,
        typer.Argument(
            metavar="PLANNER",
            help="A built-in one such as HRRNExecutionPlanner, or the name of one of the app's.",
        ),
    ],
    executor: Executor = None,
    app: App = None,
    db: Db = None,
    as_json: Json = False,
) -> Any:
    """Have another planner, within a poll."""

    async def deed(operations: Operations) -> int:
        _tell_planners(await operations.set_planner(chosen, executor), as_json)
        return 0

    return carry_out(app, db, deed)


@planner.command("reset")
def reset_planner(
    executor: Executor = None, app: App = None, db: Db = None, as_json: Json = False
) -> Any:
    """Go back to the planner there was at first."""

    async def deed(operations: Operations) -> int:
        _tell_planners(await operations.set_planner(None, executor), as_json)
        return 0

    return carry_out(app, db, deed)


def _tell_planners(found: dict[str, Any], as_json: bool) -> None:
    from fairlead.cli.jobs_view import say_json, say_table

    if as_json:
        say_json(found)
        return
    others = "all executors" if not found["executors"] else "all others"
    rows = [*found["executors"].items(), (others, found["planner"])]
    say_table(("EXECUTOR", "PLANNER"), rows, empty="")


@schedule.callback(invoke_without_command=True)
def about_schedules(context: typer.Context) -> None:
    """Runs that are submitted by the clock."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@schedule.command("add")
def add_schedule(
    name: Name,
    cron: Annotated[
        str, typer.Option("--cron", metavar="CRON", help='Such as "*/5 * * * *" or "0 9 * * 1-5".')
    ],
    task: Annotated[
        str | None, typer.Option("--task", metavar="NAME", help="The task to run.")
    ] = None,
    args: Annotated[
        str, typer.Option("--args", metavar="JSON", help='Its arguments, such as ["a.pdf"].')
    ] = "[]",
    kwargs: Annotated[
        str, typer.Option("--kwargs", metavar="JSON", help='Its keywords, such as {"dpi": 300}.')
    ] = "{}",
    file: Annotated[
        str | None, typer.Option("--file", metavar="FILE", help="A DAG file, instead of one task.")
    ] = None,
    timezone: Annotated[
        str, typer.Option("--timezone", metavar="ZONE", help="Such as Europe/Berlin.")
    ] = "UTC",
    misfire: Annotated[
        str,
        typer.Option("--misfire", metavar="HOW", help="Of ticks missed: skip, fire one, or all."),
    ] = "one",
    app: App = None,
    db: Db = None,
    as_json: Json = False,
) -> Any:
    """Add a schedule, or change it, and show when it fires next."""

    async def deed(operations: Operations) -> int:
        from fairlead.cli.jobs_view import moment, say_json
        from fairlead.cli.saying import note, say
        from fairlead.jobs.operating import mapping_of_file, schedule_of

        made = schedule_of(
            name,
            cron,
            task=task,
            args=read_argument(args, "--args", list),
            kwargs=read_argument(kwargs, "--kwargs", dict),
            run=None if file is None else mapping_of_file(file),
            timezone=timezone,
            misfire=misfire,
        )
        known = bool(operations.jobs.tasks)
        said = await operations.put_schedule(made, known_tasks=known)
        if not known:
            note("the task was not checked; with --app it would be")
        if as_json:
            say_json(said)
            return 0
        done = f"schedule {name} {'added' if said['new'] else 'changed'}"
        say(f"{done}; it is paused" if said["paused"] else f"{done}; it fires next at")
        for tick in said["next"]:
            say(f"  {moment(tick)}")
        return 0

    return carry_out(app, db, deed, creates=True)


@schedule.command("list")
def list_schedules(app: App = None, db: Db = None, as_json: Json = False) -> Any:
    """List schedules and when they fire next."""

    async def deed(operations: Operations) -> int:
        from fairlead.cli.jobs_view import moment, say_json, say_table

        found = await operations.schedules()
        if as_json:
            say_json(found)
            return 0
        rows = [
            [
                one["name"],
                one["cron"],
                one["timezone"],
                one["misfire"],
                "paused" if one["paused"] else moment(next(iter(one["next"]), None)),
            ]
            for one in found
        ]
        headings = ("SCHEDULE", "CRON", "ZONE", "MISFIRE", "NEXT")
        say_table(headings, rows, empty="no schedules")
        return 0

    return carry_out(app, db, deed)


@schedule.command("remove")
def remove_schedule(name: Name, app: App = None, db: Db = None, as_json: Json = False) -> Any:
    """Remove a schedule; the runs it has submitted stay."""

    async def deed(operations: Operations) -> int:
        from fairlead.cli.jobs_view import tell

        said = await operations.drop_schedule(name)
        tell(said, as_json, f"schedule {said['removed']} removed")
        return 0

    return carry_out(app, db, deed)


@schedule.command("pause")
def pause_schedule(name: Name, app: App = None, db: Db = None, as_json: Json = False) -> Any:
    """Let a schedule rest."""
    return _rest(name, True, app, db, as_json)


@schedule.command("resume")
def resume_schedule(name: Name, app: App = None, db: Db = None, as_json: Json = False) -> Any:
    """Let a schedule go on.

    Ticks it has missed are treated by its misfire policy.
    """
    return _rest(name, False, app, db, as_json)


def _rest(name: str, paused: bool, app: str | None, db: str | None, as_json: bool) -> int:
    async def deed(operations: Operations) -> int:
        from fairlead.cli.jobs_view import tell

        said = await operations.pause_schedule(name, paused)
        tell(said, as_json, f"schedule {name} {'rests' if paused else 'goes on'}")
        return 0

    return carry_out(app, db, deed)
