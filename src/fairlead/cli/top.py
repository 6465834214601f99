"""`fairlead top`: what a server's gates do now, in a terminal."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fairlead.cli.carrying import carried_out

HERE = "http://127.0.0.1:8080"


def top(
    url: Annotated[
        str, typer.Argument(metavar="[URL]", envvar="FAIRLEAD_URL", help="Where the server is.")
    ] = HERE,
    token: Annotated[
        str | None,
        typer.Option("--token", envvar="FAIRLEAD_TOKEN", help="A token of the server's."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Show it once, and end.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one snapshot as JSON, and end.")
    ] = False,
) -> Any:
    """Watch a server: who runs, who waits and how long, at every gate.  Ends with 1 if it cannot be asked."""

    def look() -> int:
        from fairlead.cli import top_view

        return top_view.show(url, token, once=once, as_json=json)

    return carried_out(look, "top", "cli")
