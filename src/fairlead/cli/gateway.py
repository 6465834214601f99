"""`fairlead gateway` and `fairlead config`: run the proxy, check its configuration, describe it.

The gateway is an extra and slow to load: nothing of it is imported before a command needs it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli.carrying import carried_out

if TYPE_CHECKING:
    from fairlead.gateway.loading import Loaded

gateway = typer.Typer(help="A reverse proxy that admits by priority.", rich_markup_mode=None)
config = typer.Typer(help="What a configuration may say.", rich_markup_mode=None)


@gateway.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="The configuration to run.")
    ] = None,
) -> Any:
    """Run a reverse proxy that admits by priority, or check its configuration."""
    if context.invoked_subcommand is not None:
        return None
    if config is None:
        raise typer.BadParameter("say what to run: --config FILE", param_hint="--config")

    def serve() -> int:
        from fairlead.gateway.serving import run

        return run(config)

    return carried_out(serve, "gateway")


@gateway.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A YAML file.")],
) -> Any:
    """Say whether a configuration is valid, or all that is wrong with it."""

    def tell() -> int:
        from fairlead.gateway.loading import load

        loaded = load(file)
        for line in loaded.lines:
            typer.echo(line, err=True)
        if loaded.problems:
            return 2
        for line in _summary(loaded):
            typer.echo(line)
        return 0

    return carried_out(tell, "gateway")


@config.command()
def schema() -> Any:
    """Print the JSON Schema of a gateway's configuration."""

    def tell() -> int:
        from fairlead.gateway.settings import json_schema

        typer.echo(json.dumps(json_schema(), indent=2))
        return 0

    return carried_out(tell, "gateway")


@config.callback()
def about() -> None:
    """What a configuration may say."""


def _summary(loaded: Loaded) -> list[str]:
    from fairlead.gateway.reservations import Table, by_class, pools
    from fairlead.gateway.settings import CLASSES

    settings = loaded.settings
    scheduler, plain = settings.priority_scheduler, settings.fallback
    lines = [f"{loaded.source}: valid"]
    if not scheduler.enabled:
        lines.append(
            f"priority_scheduler is disabled: {plain.max_concurrent_requests} requests at once, "
            f"{plain.queue_size} waiting"
        )
        return lines
    table = Table(scheduler.classes)
    for pool in pools(settings):
        if pool.capacity is not None:
            asked, fitting = table.need(pool.capacity), table.fitting(pool.capacity)
            scaled = f" ({sum(fitting)} of {asked} asked for)" if asked > pool.capacity else ""
            lines.append(f"{pool.name} is {pool.capacity}; reserved: {by_class(fitting)}{scaled}")
        else:
            lines.append(f"{pool.name} is known at run time; {_needed(table)}")
    if len(lines) == 1:
        lines.append(f"no capacity is configured; {_needed(table)}")
    for name in reversed(CLASSES):
        entry = scheduler.classes[name]
        share = f" or {entry.reserved_per_slot:.6g} of all" if entry.reserved_per_slot else ""
        lines.append(
            f"  {name:<12} reserves {entry.reserved_floor}{share}, {entry.queue_size} wait up to "
            f"{entry.queue_timeout:g} s, promoted after {entry.starvation_threshold:g} s"
            f"{', preempts' if entry.can_preempt else ''}"
        )
    return lines + [f"warning: {warning}" for warning in loaded.warnings]


def _needed(table: Any) -> str:
    enough = table.enough(1)
    return f"the reservations need {enough} slots or more" if enough else "no capacity is enough"
