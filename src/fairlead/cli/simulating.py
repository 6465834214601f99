"""Carrying out `fairlead simulate` and `fairlead tune`: read everything, run everything, then write and show."""

from __future__ import annotations

import json
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.cli import simulate_view as view
from fairlead.cli.out_files import see_writable, write_whole
from fairlead.cli.saying import note, say
from fairlead.config import shown
from fairlead.errors import ConfigError
from fairlead.sim import read_policy, read_scenario, simulate
from fairlead.sim.figures import summarise
from fairlead.sim.goals import read_goal, read_range
from fairlead.sim.report import Contender, dump, make_report
from fairlead.sim.tune import Tuning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fairlead.sim import PolicySpec, Scenario

# A gateway's own file may hold tokens; a report is handed about.
SECRET = re.compile(r"token|secret|passw|credential|authorization|api_?key|sha256", re.IGNORECASE)


def compare_policies(
    scenario_file: str,
    policy_files: Sequence[str],
    seeds: int,
    first_seed: int | None,
    out: Sequence[str],
    *,
    as_json: bool,
) -> int:
    """Simulate each policy under each seed; write the reports and show a summary."""
    check_outs(out)
    scenario = read_scenario(Path(scenario_file))
    policies = [read_policy(Path(file)) for file in policy_files] or [_usual(scenario)]
    chosen = _seeds(scenario, seeds, first_seed)
    with progress("Simulating") as tell:
        document = _report(scenario, _text(scenario_file), _named(policies), chosen, tell)
    _write(document, out)
    if as_json:
        say(dump(document).rstrip("\n"))
    else:
        view.show_report(document, out)
    return 0


def tune_policy(
    scenario_file: str,
    policy_file: str | None,
    goals: Sequence[str],
    ranges: Sequence[str],
    seeds: int,
    first_seed: int | None,
    budget: int,
    out: Sequence[str],
    *,
    as_json: bool,
) -> int:
    """Search settings; show the best with its trade-offs, and 1 if none meets the goals."""
    check_outs(out)
    wanted = [read_goal(goal) for goal in goals]
    searched = [read_range(text) for text in ranges]
    scenario = read_scenario(Path(scenario_file))
    policy = _usual(scenario) if policy_file is None else read_policy(Path(policy_file))
    chosen = _seeds(scenario, seeds, first_seed)
    with progress("Tuning") as tell:
        tuning = Tuning(
            scenario, policy, wanted, searched, chosen, simulate, budget=budget, progress=tell
        )
        best = tuning.search()
    if out:
        tuned = policy.with_settings(best.settings) if best.settings else policy
        named = [(f"{policy.name}, as it is", policy), (f"{policy.name}, tuned", tuned)]
        with progress("Reporting") as tell:
            document = _report(scenario, _text(scenario_file), named, chosen, tell)
        _write(document, out)
    told = tuning.document()
    if as_json:
        say(json.dumps(told, ensure_ascii=False, indent=1))
    else:
        view.show_tuning(told, wanted, out)
    return 0 if told["met"] else 1


def _usual(scenario: Scenario) -> PolicySpec:
    """Take the policy that the scenario names; if it names none, the gateway's as it comes."""
    if scenario.policy is not None:
        return scenario.policy
    policy = read_policy({"name": "gateway", "preset": "gateway"})
    note(
        f"no --policy, and {shown(scenario.name)} names none: this is the gateway preset "
        f"with its defaults ({policy.build().slots:g} slots)"
    )
    return policy


def check_outs(out: Sequence[str]) -> None:
    """See that the reports can be written before an hour is spent on them."""
    for name in out:
        if Path(name).suffix.lower() not in {".html", ".htm", ".json"}:
            raise ConfigError(f"--out must end with .html or .json; got {shown(name)}")
        see_writable(name)


@contextmanager
def progress(title: str) -> Iterator[Callable[[float], None] | None]:
    """Show a bar on a terminal, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda part: bar.update(task, completed=part)


def written(document: Any, indent: int = 0) -> str:
    """Write a document as YAML, without what may be a secret.

    >>> print(written({"token": "x", "classes": {"bulk": {"queue_size": 8}}, "of": [1, {"a": True}]}))
    token: "(not shown)"
    classes:
      bulk:
        queue_size: 8
    of:
      - 1
      - {"a": true}
    """
    pad = " " * indent
    lines = []
    for key, value in document.items():
        name = key if re.fullmatch(r"[A-Za-z_][\w-]*", key) else json.dumps(key, ensure_ascii=False)
        if SECRET.search(key) and value is not None:
            lines.append(f'{pad}{name}: "(not shown)"')
        elif isinstance(value, dict) and value:
            lines += [f"{pad}{name}:", written(value, indent + 2)]
        elif isinstance(value, list) and value:
            lines.append(f"{pad}{name}:")
            lines += [f"{pad}  - {json.dumps(_masked(item), ensure_ascii=False)}" for item in value]
        else:
            lines.append(f"{pad}{name}: {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines)


def _masked(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: "(not shown)" if SECRET.search(key) else _masked(inner)
            for key, inner in value.items()
        }
    return [_masked(inner) for inner in value] if isinstance(value, list) else value


def _seeds(scenario: Scenario, number: int, first: int | None) -> list[int]:
    start = scenario.seed if first is None else first
    return list(range(start, start + number))


def _text(file: str) -> str:
    return Path(file).read_text(encoding="utf-8-sig", errors="replace").replace("\r\n", "\n")


def _named(policies: Sequence[PolicySpec]) -> list[tuple[str, PolicySpec]]:
    """Give each policy a name of its own: two files in two folders may be called the same."""
    named: dict[str, PolicySpec] = {}
    for policy in policies:
        name, number = policy.name, 1
        while name in named:
            number += 1
            name = f"{policy.name} ({number})"
        named[name] = policy
    return list(named.items())


def _report(
    scenario: Scenario,
    text: str,
    policies: Sequence[tuple[str, PolicySpec]],
    seeds: Sequence[int],
    tell: Callable[[float], None] | None,
) -> dict[str, Any]:
    contenders = []
    total = len(policies) * len(seeds)
    done = 0
    for name, policy in policies:
        runs = []
        for seed in seeds:

            def partly(part: float, before: int = done) -> None:
                if tell is not None:
                    tell((before + part) / total)

            # A run's tickets are let go of before the next begins.
            runs.append(summarise(simulate(scenario, policy, seed, partly)))
            done += 1
        contenders.append(Contender(name, written(policy.document), runs))
    return make_report(scenario.name, text, contenders)


def _write(document: dict[str, Any], out: Sequence[str]) -> None:
    from fairlead.sim.report_page import report_html

    for name in out:
        path = Path(name)
        text = dump(document) if path.suffix.lower() == ".json" else report_html(document)
        try:
            write_whole(path, [text.encode("utf-8", "replace")])
        except OSError as error:
            raise ConfigError(f"{name} cannot be written ({error.strerror or error})") from None
