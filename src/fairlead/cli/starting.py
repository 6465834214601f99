"""`fairlead init`, `fairlead doctor` and `fairlead export`: what a server needs before it is started."""

from __future__ import annotations

import json as json_format
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fairlead.errors import ConfigError

MARKS = {"ok": "ok   ", "note": "note ", "wrong": "WRONG"}


def init(
    path: Annotated[Path, typer.Argument(metavar="[FILE]", help="Where to write it.")] = Path(
        "fairlead.yaml"
    ),
    force: Annotated[
        bool, typer.Option("--force", help="Write over a file that is there.")
    ] = False,
) -> Any:
    """Write a commented configuration for `fairlead serve`."""
    from fairlead.server.shipping import CONFIG, read

    _write(path, read(CONFIG), force=force)
    typer.echo(
        f"{path} is written: edit it, then fairlead doctor --config {path}, then fairlead serve --config {path}"
    )


def export(
    what: Annotated[
        str | None, typer.Argument(metavar="[WHAT]", help="Without: what there is.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Instead of printing it.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Write over a file that is there.")
    ] = False,
) -> Any:
    """Print a file for Grafana, Prometheus, Kubernetes and others.

    Dashboard, alert rules, systemd unit, Dockerfile, manifests, compose file, configuration.
    """
    from fairlead.server.shipping import SHIPPED, read

    if what is None:
        for name, one in SHIPPED.items():
            typer.echo(f"{name:<12} {one.about}")
        return
    text = read(what)
    if out is None:
        sys.stdout.write(text)
    else:
        _write(out, text, force=force)


def doctor(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            envvar="FAIRLEAD_CONFIG",
            help="The configuration to check; else ./fairlead.yaml, if it is there.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")] = False,
) -> Any:
    """Say whether this machine and a configuration are fit to serve.

    Looks at extras, limits, addresses, applications, databases and backends; exit code 1 if anything is wrong.
    """
    from fairlead.server import doctor as looking

    if config is None and Path("fairlead.yaml").exists():
        config = Path("fairlead.yaml")
    if config is None:
        said = "there is none: fairlead init writes one"
        found = [*looking.machine(), looking.Finding("configuration", "note", said)]
    else:
        found = _configured(str(config))
    wrong = sum(one.grade == "wrong" for one in found)
    if json:
        typer.echo(
            json_format.dumps(
                {"fit": not wrong, "findings": [one._asdict() for one in found]}, indent=2
            )
        )
    else:
        wide = max(len(one.what) for one in found)
        for one in found:
            typer.echo(f"{MARKS[one.grade]}  {one.what:<{wide}}  {one.said}")
        typer.echo(
            "fit to serve" if not wrong else f"{wrong} thing{'s' * (wrong > 1)} to put right"
        )
    return 1 if wrong else 0


def _configured(path: str) -> list[Any]:
    import asyncio

    from fairlead.server import doctor as looking

    try:
        from fairlead.server.loading import load

        loaded = load(path)
    except ModuleNotFoundError as error:
        said = f"{error.name} is needed to read it: pip install 'fairlead[serve]'"
        return [*looking.machine(), looking.Finding("configuration", "wrong", said)]
    found = [*looking.machine(looking.extras_of(loaded)), *looking.configuration(loaded)]
    if not loaded.problems:
        found += asyncio.run(looking.surroundings(loaded))
    return found


def _write(path: Path, text: str, *, force: bool) -> None:
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(
            f"{path} is there already: name another file, or write over it with --force"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from None
