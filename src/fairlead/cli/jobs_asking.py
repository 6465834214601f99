"""What commands about jobs share: options, and the way to the jobs that are meant."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli.carrying import carried_out
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fairlead.jobs.operating import Operations

    Deed = Callable[[Operations], Awaitable[int]]

App = Annotated[
    str | None,
    typer.Option("--app", metavar="MODULE:JOBS", help="The Jobs to use; or set FAIRLEAD_APP."),
]
Db = Annotated[
    str | None,
    typer.Option("--db", metavar="URL", help="Its database alone; or set FAIRLEAD_DB."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]


def carry_out(
    app: str | None, db: str | None, deed: Deed, *, tasks: bool = False, creates: bool = False
) -> int:
    """Find the jobs meant, do something with them, and let go of them.

    Only what puts something into a database may make one: elsewhere a wrong name would look like an empty database.
    """

    def do() -> int:
        from fairlead.cli.apps import find_jobs
        from fairlead.jobs.operating import Operations

        jobs = find_jobs(app, db, tasks=tasks)
        jobs.creates = creates

        async def whole() -> int:
            try:
                return await deed(Operations(jobs))
            finally:
                await jobs.close()

        return asyncio.run(whole())

    return carried_out(do, "jobs")


def read_argument(text: str, name: str, kind: type) -> Any:
    """Read JSON that was given as an option."""
    import json

    wanted: dict[type, str] = {
        list: 'a JSON list, such as ["a.pdf", 2]',
        dict: 'a JSON object, such as {"dpi": 300}',
    }
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, kind):
        from fairlead.config import shown

        raise ConfigError(f"{name} must be {wanted[kind]}; got {shown(text)}")
    return found
