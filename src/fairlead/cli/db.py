"""`fairlead db`: bring the database of jobs up to date, and say how it stands.

The store is an extra and slow to load: nothing of it is imported before a command needs it.
"""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import typer

from fairlead.cli.carrying import carried_out

db = typer.Typer(help="The database of jobs: its schema.", rich_markup_mode=None)

Url = Annotated[
    str,
    typer.Option(
        "--db",
        metavar="URL",
        envvar="FAIRLEAD_DB",
        show_envvar=True,
        help="sqlite:///file or postgresql://user@host/database.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]


@db.callback(invoke_without_command=True)
def about(context: typer.Context) -> None:
    """Look after the database of jobs."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@db.command()
def migrate(url: Url, as_json: AsJson = False) -> Any:
    """Bring the schema up to date; many may do so at once, and again."""
    return carried_out(lambda: _migrate(url, as_json), "db", "jobs")


@db.command()
def status(url: Url, as_json: AsJson = False) -> Any:
    """Say which schema the database has and which is needed.

    Exit code 1 if they differ.
    """
    return carried_out(lambda: _status(url, as_json), "db", "jobs")


def _migrate(url: str, as_json: bool) -> int:
    from fairlead.config import hide_password
    from fairlead.jobs.stores.opening import open_store

    store = open_store(url)
    taken = asyncio.run(store.migrate())
    if as_json:
        typer.echo(json.dumps({"migrated": taken}))
        return 0
    for name in taken:
        typer.echo(f"took step {name}")
    typer.echo(f"{hide_password(url)} is up to date")
    return 0


def _status(url: str, as_json: bool) -> int:
    from fairlead.config import hide_password
    from fairlead.jobs.stores.opening import open_store

    found, needed = asyncio.run(open_store(url).versions())
    state = "current" if found == needed else "older" if found < needed else "newer"
    if as_json:
        document = {"schema": found, "needed": needed, "state": state if found else "none"}
        typer.echo(json.dumps(document))
        return int(found != needed)
    if found == needed:
        typer.echo(f"{hide_password(url)} has schema {found}, as needed")
        return 0
    if found > needed:
        advice = "a newer Fairlead migrated it: upgrade this one"
    else:
        advice = f"run: fairlead db migrate --db '{hide_password(url)}'"
    have = f"has schema {found}" if found else "has no Fairlead schema"
    typer.echo(f"{hide_password(url)} {have}; this Fairlead needs {needed}; {advice}")
    return 1
