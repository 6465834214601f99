"""How commands about jobs are carried out: which options they share, and what becomes of one that fails.

Exit codes: 0 done, 1 it cannot be done (no such run, a database that is away), 2 a command or a file that cannot be
read.  Whatever goes wrong is told in sentences.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.errors import BadFile, ConfigError, FairleadError, GraphError, PayloadError

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


def with_extra(command: Callable[[], int]) -> int:
    """Carry out a command that needs what not everybody has installed."""
    try:
        return command()
    except ModuleNotFoundError as error:
        top = (error.name or "").split(".")[0]
        if top in {"", "fairlead"}:
            raise
        extra = {"asyncpg": "postgres", "ray": "ray"}.get(top, "jobs")
        typer.echo(f'fairlead jobs needs {error.name}: pip install "fairlead[{extra}]"', err=True)
        return 2
    except (BadFile, ConfigError, GraphError, PayloadError) as error:
        return mistake(error, 2)
    except FairleadError as error:
        return mistake(error, 1)


def mistake(error: Exception, code: int) -> int:
    """Tell what is wrong, a line for each mistake in a file."""
    text = str(error)
    if not isinstance(error, BadFile):
        text = f"fairlead: {' '.join(text.split())}"
    for line in text.splitlines():
        typer.echo(_plain(line), err=True)
    return code


def _plain(line: str) -> str:
    return line.encode("ascii", "backslashreplace").decode() if not line.isprintable() else line


def carry_out(app: str | None, db: str | None, deed: Deed, *, tasks: bool = False) -> int:
    """Find the jobs meant, do something with them, and let go of them."""

    def do() -> int:
        from fairlead.cli.apps import find_jobs
        from fairlead.jobs.operating import Operations

        jobs = find_jobs(app, db, tasks=tasks)

        async def whole() -> int:
            try:
                return await deed(Operations(jobs))
            finally:
                await jobs.close()

        return asyncio.run(whole())

    return with_extra(do)


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
