"""`fairlead simulate`, `tune` and `record`: policies tried on virtual time, before anybody waits under them.

The simulator is slow to load: nothing of it is imported before a command needs it.  Exit codes: 0 done, 1 no settings
meet the goals or no recording could be had, 2 a command or a file that cannot be read.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fairlead.cli.carrying import carried_out
from fairlead.errors import ConfigError

MOST_MINUTES = 15.0  # that a server looks back

ScenarioFile = Annotated[
    str, typer.Argument(metavar="SCENARIO", help="A scenario file: who comes when, with what work.")
]
Out = Annotated[
    list[str] | None,
    typer.Option(
        "--out", metavar="FILE", help="Write the report: report.html, report.json, or both in turn."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
Seeds = Annotated[
    int, typer.Option("--seeds", min=1, max=1000, metavar="N", help="How many seeds.")
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", min=0, metavar="N", help="The first of them; else the scenario's."),
]


def simulate(
    scenario: ScenarioFile,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="FILE",
            help="A policy file; several are compared, each with the first.  Without, the scenario's, "
            "or the gateway preset.",
        ),
    ] = None,
    seeds: Seeds = 5,
    seed: Seed = None,
    out: Out = None,
    json: Json = False,
) -> Any:
    """Replay a workload under policies, on virtual time, and compare."""

    def do() -> int:
        from fairlead.cli.simulating import compare_policies

        return compare_policies(scenario, policy or [], seeds, seed, out or [], as_json=json)

    return carried_out(do, "simulate", "sim")


def tune(
    scenario: ScenarioFile,
    goal: Annotated[
        list[str],
        typer.Option(
            "--goal",
            metavar="GOAL",
            help='Such as "interactive.p99 < 500ms"; several must all be met.',
        ),
    ],
    over: Annotated[
        list[str],
        typer.Option(
            "--over",
            metavar="SETTING=RANGE",
            help="What to search: classes.bulk.queue_size=8..64, or policy=fifo,aging.",
        ),
    ],
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="FILE",
            help="The policy file to start from.  Without, the scenario's, or the gateway preset.",
        ),
    ] = None,
    seeds: Seeds = 3,
    seed: Seed = None,
    budget: Annotated[
        int,
        typer.Option("--budget", min=2, max=10_000, metavar="N", help="Settings tried at most."),
    ] = 60,
    out: Out = None,
    json: Json = False,
) -> Any:
    """Search settings that meet goals, in the simulator.

    Shows what each class gains and loses by the best of them; exit code 1 if none meets all goals.
    """

    def do() -> int:
        from fairlead.cli.simulating import tune_policy

        return tune_policy(
            scenario, policy, goal, over, seeds, seed, budget, out or [], as_json=json
        )

    return carried_out(do, "tune", "sim")


def record(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="A running server, such as http://127.0.0.1:8080.")
    ],
    gate: Annotated[
        str, typer.Option("--gate", metavar="ID", help="Which gate, such as gateway/default.")
    ],
    out: Annotated[
        str,
        typer.Option("--out", metavar="FILE", help="Where to write it, such as incident.jsonl."),
    ],
    minutes: Annotated[
        float,
        typer.Option(
            "--minutes", metavar="M", help=f"How far back, {MOST_MINUTES:g} minutes at most."
        ),
    ] = MOST_MINUTES,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            envvar="FAIRLEAD_TOKEN",
            show_envvar=True,
            help="What the server wants to see.",
        ),
    ] = None,
) -> Any:
    """Fetch what passed a gate of a server lately, to simulate it."""

    def do() -> int:
        from fairlead.cli.recording import fetch

        if not 0 < minutes <= MOST_MINUTES:  # nan is neither
            raise ConfigError(
                f"--minutes must be above 0 and at most {MOST_MINUTES:g}; got {minutes:g}"
            )
        number = fetch(url, gate, minutes, out, token or None)
        typer.echo(f"{number:,} tickets of {gate} are in {out}.")
        if not number:
            typer.echo(f"Nothing passed {gate} in the last {minutes:g} minutes.", err=True)
        return 0

    return carried_out(do, "record", "sim")
