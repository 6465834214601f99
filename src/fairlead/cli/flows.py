"""`fairlead flows`: serve flows over HTTP and gRPC, and check their configuration.

Flows are an extra and slow to load: nothing of them is imported before a command needs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli.carrying import carried_out

if TYPE_CHECKING:
    from fairlead.flows.settings import ControlPoint

flows = typer.Typer(
    help="Weighted fair queueing over quota, concurrency and load.",
    rich_markup_mode=None,
)


@flows.callback(invoke_without_command=True)
def about(context: typer.Context) -> None:
    """Weighted fair queueing over quota, concurrency and load."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@flows.command()
def serve(
    config: Annotated[
        Path, typer.Option("--config", metavar="FILE", help="The configuration; it is watched.")
    ],
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            help="Where to serve HTTP; 127.0.0.1:8088 if neither is named.",
        ),
    ] = None,
    grpc: Annotated[
        str | None,
        typer.Option("--grpc", metavar="HOST:PORT", help="Where to serve gRPC, if at all."),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            envvar="FAIRLEAD_FLOWS_TOKEN",
            show_envvar=True,
            help="What clients must show; needed to listen beyond this machine.",
        ),
    ] = None,
) -> Any:
    """Serve flows over HTTP and gRPC until a signal ends it."""

    def start() -> int:
        from fairlead.cli.apps import token_of
        from fairlead.flows.serving import run

        shown = token_of(token, "FAIRLEAD_FLOWS_TOKEN")
        return run(config, http=http, grpc=grpc, token=shown)

    return carried_out(start, "flows")


@flows.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A YAML file.")],
) -> Any:
    """Say whether a configuration is valid, or all that is wrong with it."""

    def tell() -> int:
        from fairlead.flows.loading import load

        loaded = load(file)
        for line in loaded.lines:
            typer.echo(line, err=True)
        if loaded.problems:
            return 2
        typer.echo(f"{loaded.source}: valid")
        where = "shared through Redis" if loaded.settings.redis else "of each process alone"
        points = loaded.settings.control_points
        typer.echo(f"{len(points)} control point{'s' * (len(points) != 1)}, limits {where}")
        for name, point in points.items():
            typer.echo(f"  {name}: {_said(point)}")
        for warning in loaded.warnings:
            typer.echo(f"warning: {warning}")
        return 0

    return carried_out(tell, "flows")


def _said(point: ControlPoint) -> str:
    parts = []
    if point.quota is not None:
        quota = point.quota
        parts.append(
            f"quota {quota.fill_amount:g} per {quota.interval:g} s up to {quota.bucket_capacity:g}"
            f"{_by(quota.limit_by_label_key)}"
        )
    if point.concurrency is not None:
        most = point.concurrency.max_concurrency
        learned = isinstance(most, str)
        parts.append(
            f"concurrency {f'learned by {most}' if learned else f'{most:g}'}"
            f"{_by(point.concurrency.limit_by_label_key)}"
        )
    if point.load is not None:
        parts.append(f"load by {point.load.controller} on {point.load.signal}")
    names = [one.name or str(index) for index, one in enumerate(point.scheduler.workloads)]
    return f"{', '.join(parts) or 'no limit'}; workloads {', '.join([*names, 'default'])}"


def _by(label: str | None) -> str:
    return f" for each {label}" if label else ""
