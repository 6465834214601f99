"""How a command is carried out, and what becomes of one that cannot be.

Exit codes: 0 done, 1 it cannot be done (no such run, a database that is away), 2 a command or a file that cannot be
read, or an extra that is not installed.  Whatever goes wrong is told in sentences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from fairlead.errors import BadFile, ConfigError, FairleadError, GraphError, PayloadError

if TYPE_CHECKING:
    from collections.abc import Callable

# What has an extra of its own, whichever door wants it: its package and the extra, by the module.
ELSEWHERE = {
    "asyncpg": ("asyncpg", "postgres"),
    "google": ("protobuf", "grpc"),
    "grpc": ("grpcio", "grpc"),
    "opentelemetry": ("opentelemetry", "otel"),
    "ray": ("ray", "ray"),
}


def carried_out(command: Callable[[], int], name: str, extra: str | None = None) -> int:
    """Carry out `fairlead <name>`, which needs an extra, by default of the same name; return the exit code."""
    try:
        return command()
    except ModuleNotFoundError as error:
        top = (error.name or "").split(".")[0]
        if top in {"", "fairlead"}:
            raise
        package, found_in = ELSEWHERE.get(top, (error.name, extra or name))
        typer.echo(f'fairlead {name} needs {package}: pip install "fairlead[{found_in}]"', err=True)
        return 2
    except (BadFile, ConfigError, GraphError, PayloadError) as error:
        return _told(error, 2)
    except FairleadError as error:
        return _told(error, 1)


def _told(error: Exception, code: int) -> int:
    """Tell what is wrong, a line for each mistake in a file."""
    text = str(error)
    if not isinstance(error, BadFile):
        text = f"fairlead: {' '.join(text.split())}"
    for line in text.splitlines():
        plain = line if line.isprintable() else line.encode("ascii", "backslashreplace").decode()
        typer.echo(plain, err=True)
    return code
