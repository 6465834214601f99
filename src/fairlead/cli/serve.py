"""`fairlead serve`: one process for every door a configuration names, with a control API and a dashboard.

The server is slow to load: nothing of it is imported before the command needs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fairlead.cli.carrying import carried_out


def serve(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            envvar="FAIRLEAD_CONFIG",
            help="The configuration; it is watched.  Without, ./fairlead.yaml, or embedded defaults.",
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen", metavar="HOST:PORT", help="Where the dashboard and the control API are."
        ),
    ] = None,
    no_demo: Annotated[
        bool, typer.Option("--no-demo", help="No demo upstream and no demo traffic.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only say whether the configuration is valid.")
    ] = False,
) -> Any:
    """Run all doors in one process, with a dashboard over them.

    Which doors, and how, is said by a configuration; without one they run on embedded defaults,
    with demo traffic.  A control API is there too.  A signal drains and ends it.
    """

    def start() -> int:
        from fairlead.server import running

        named = None if config is None else str(config)
        if check:
            return running.check(named, listen=listen)
        return running.run(named, listen=listen, shows=not no_demo)

    return carried_out(start, "serve")
