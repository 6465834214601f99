"""The command line: which commands there are, and what becomes of one that cannot be read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead import __version__
from fairlead.cli.db import db
from fairlead.cli.flows import flows
from fairlead.cli.gateway import config, gateway
from fairlead.cli.jobs import jobs
from fairlead.cli.serve import serve
from fairlead.cli.simulate import record, simulate, tune
from fairlead.cli.starting import doctor, export, init
from fairlead.cli.streams import streams
from fairlead.cli.top import top
from fairlead.cli.worker import worker
from fairlead.errors import FairleadError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DOORS = {
    "gateway": gateway,
    "config": config,
    "flows": flows,
    "jobs": jobs,
    "streams": streams,
    "db": db,
}


def run(args: Sequence[str]) -> int:
    """Read a command line and carry it out; a mistake in it is told in one line."""
    command = typer.main.get_command(_application(args))
    try:
        code = command.main(list(args), prog_name="fairlead", standalone_mode=False)
    except typer.Abort:
        return 130
    except FairleadError as error:
        return _mistake(str(error))
    except Exception as error:
        # Where typer keeps click's exceptions has changed; that they can format themselves has not.
        if not hasattr(error, "format_message"):
            raise
        return _mistake(error.format_message())
    return code if isinstance(code, int) else 0


def _application(args: Sequence[str]) -> typer.Typer:
    """Put the command line together; of a door that is not named only its name, for each option takes time to read."""
    # Plain help: rich would take longer to load than to read it.
    application = typer.Typer(
        name="fairlead",
        help="Who goes next, and is there room?",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    application.callback(invoke_without_command=True)(root)
    application.command()(demo)
    application.command()(serve)
    application.command()(worker)
    everything = "_FAIRLEAD_COMPLETE" in os.environ  # a shell asks what may come next
    for command in (init, doctor, top, export, simulate, tune, record):
        wanted = everything or command.__name__ in args
        application.command(command.__name__)(command if wanted else _only_named(command))
    for name, door in DOORS.items():
        wanted = everything or name in args
        named = door if wanted else typer.Typer(help=door.info.help, rich_markup_mode=None)
        application.add_typer(named, name=name)
    return application


def _only_named(command: Callable[..., Any]) -> Callable[[], None]:
    """Stand for a command in a list of commands."""

    def named() -> None: ...

    named.__doc__ = command.__doc__
    return named


def _mistake(message: str) -> int:
    line = " ".join(message.split()) or "there is nothing to do"
    typer.echo(f"fairlead: {line} (see fairlead --help)", err=True)
    return 2


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fairlead {__version__}")
        raise typer.Exit


def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Who goes next, and is there room?"""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def demo(
    seconds: Annotated[
        float, typer.Option(min=0.5, max=600, help="How long work arrives, under each policy.")
    ] = 8.0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other arrivals.")] = 1,
) -> Any:
    """Overload a pool, under FIFO and under Fairlead, and compare.

    125 % of what its slots can do arrives under each.
    """
    from fairlead.cli import demo_view

    return demo_view.show(seconds, seed, as_json=json)
