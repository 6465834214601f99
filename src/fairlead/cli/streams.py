"""`fairlead streams`: consume, look at a process that does, and ask the broker how far behind a group is.

Streams are an extra and slow to load: nothing of them is imported before a command needs it.  Exit codes: 0 done, 1 it
cannot be done (a scheduler that cannot be made, a broker that is away, nobody who listens), 2 a command line or an app
that cannot be used.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fairlead.cli.carrying import carried_out

streams = typer.Typer(
    help="Kafka consumption under a scheduler of your own.", rich_markup_mode=None
)

App = Annotated[
    str, typer.Argument(metavar="MODULE:APP", help="The StreamApp, such as billing:app.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="FAIRLEAD_STREAMS_TOKEN",
        show_envvar=True,
        help="What clients must show; needed to listen beyond this machine.",
    ),
]


@streams.callback(invoke_without_command=True)
def about(context: typer.Context) -> None:
    """Kafka consumption under a scheduler of your own."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@streams.command()
def run(
    app: App,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            "--metrics-port",
            metavar="HOST:PORT",
            help='Where to show metrics and status, a port alone is on 127.0.0.1; or "off". '
            "Without it, 127.0.0.1:8090 if that is free.",
        ),
    ] = None,
    token: Token = None,
) -> Any:
    """Consume until SIGTERM or SIGINT.

    Then what runs is finished, what waits is handed back, all is committed, and the exit code is 0.
    """

    def consume() -> int:
        from fairlead.cli.apps import find_stream_app, token_of
        from fairlead.streams.running import run

        shown = token_of(token, "FAIRLEAD_STREAMS_TOKEN")
        return run(find_stream_app(app), listen=listen, token=shown, name=app)

    return carried_out(consume, "streams")


@streams.command()
def lag(app: App, as_json: Json = False) -> Any:
    """Ask the broker how far behind the group is.

    One line per partition, whoever consumes it.
    """

    def ask() -> int:
        import logging

        from fairlead.cli.apps import find_stream_app
        from fairlead.cli.streams_view import say_lag
        from fairlead.streams.lag import ask_lag

        # What matters of the client's own news is in the error that it raises.
        logging.getLogger("fairlead").addHandler(logging.NullHandler())
        asked = find_stream_app(app)
        found, missing = ask_lag(asked)
        say_lag(asked.settings.group, found, missing, as_json=as_json)
        return 1 if missing else 0

    return carried_out(ask, "streams")


@streams.command()
def top(
    app: Annotated[
        str | None,
        typer.Argument(metavar="[MODULE:APP]", help="Which app is meant to run there."),
    ] = None,
    address: Annotated[
        str,
        typer.Option("--address", metavar="HOST:PORT", help="Where the process shows itself."),
    ] = "127.0.0.1:8090",
    token: Token = None,
    once: Annotated[bool, typer.Option("--once", help="Print it once and end.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, max=60, help="Seconds between two looks.")
    ] = 1.0,
    as_json: Json = False,
) -> Any:
    """Look at a running app: lag, workers, what is withheld and why.  Ctrl-C ends it."""

    def look() -> int:
        from fairlead.cli.streams_view import Window, say_json, watch

        window = Window(address, token or None, app)
        if as_json:
            say_json(window.look())
            return 0
        return watch(window, interval, once=once)

    return carried_out(look, "streams")
