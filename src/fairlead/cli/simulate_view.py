"""What `fairlead simulate` and `fairlead tune` show on a terminal: tables, and sentences computed from the figures."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from fairlead.cli.saying import say
from fairlead.sim.words import NOTHING, amount, change, duration, relative

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

    from fairlead.sim.goals import Goal

COLUMNS = (
    ("wait.p50", "p50 wait"),
    ("wait.p95", "p95 wait"),
    ("wait.p99", "p99 wait"),
    ("completion.p95", "p95 done in"),
    ("dag.p95", "p95 DAG"),
    ("lost", "lost"),
    ("missed", "late"),
)
STYLES = {"better": "green", "worse": "red"}
MOST_TRIED = 6
NOTICED = 0.05  # a difference that is worth a word though it is not clear


def show_report(document: Mapping[str, Any], out: Sequence[str]) -> None:
    """Show the classes under each policy, what that means, and where the report is."""
    seeds = document["seeds"]
    first = document["policies"][0]
    arrived = document["figures"][first["name"]]["all"]["all"]["arrived"]["mean"]
    count = f"{len(seeds)} seeds" if len(seeds) > 1 else "one seed"
    say(
        f"{document['scenario']['name']}: {arrived:,.0f} tickets a run, {duration(first['seconds'])} "
        f"of virtual time, {count}\n"
    )
    if document["groups"]["class"]:
        _print(_classes(document))
        say("")
    say("\n".join(document["sentences"]))
    _where(out)


def _where(out: Sequence[str]) -> None:
    if out:
        say(f"\nThe report is in {' and '.join(out)}.")


def _classes(document: Mapping[str, Any]) -> Table:
    from rich.text import Text

    names = [policy["name"] for policy in document["policies"]]
    figures = document["figures"]
    used = [
        (measure, title)
        for measure, title in COLUMNS
        if any(
            measure in one for found in figures.values() for one in found.get("class", {}).values()
        )
    ]
    table = _table(["class", "policy", *(title for _, title in used)], left=2)
    for group in document["groups"]["class"]:
        for place, name in enumerate(names):
            found = figures[name].get("class", {}).get(group, {})
            against = document["differences"].get(name, {}).get("class", {}).get(group, {})
            cells = []
            for measure, _ in used:
                text = amount(measure, found[measure]["mean"]) if measure in found else NOTHING
                verdict = against.get(measure, {}).get("verdict", "")
                cells.append(Text(text + _mark(measure, against), style=STYLES.get(verdict, "")))
            table.add_row(Text(group if place == 0 else ""), Text(name), *cells)
    return table


def _mark(measure: str, against: Mapping[str, Any]) -> str:
    """Write a clear difference beside a figure."""
    found = against.get(measure)
    if not found or found["verdict"] not in STYLES:
        return ""
    by = found["relative"]
    size = relative(by) if by is not None and "." in measure else change(measure, found["mean"])
    return f" ({size})"


def show_tuning(told: Mapping[str, Any], goals: Sequence[Goal], out: Sequence[str]) -> None:
    """Show the best settings, the goals under them, what each class gains and loses, and what else was tried."""
    settings = told["best"]["settings"]
    count = len(told["tried"]) - 1
    seeds = f"{len(told['seeds'])} seeds" if len(told["seeds"]) > 1 else "one seed"
    over = f"{count} settings tried, {seeds}"
    if told["met"]:
        head = (
            "The policy meets the goals as it is"
            if not settings
            else "These settings meet the goals"
        )
    else:
        head = "No settings tried meet all the goals; these come nearest"
    say(f"{head} ({over}).\n")
    for path, value in settings.items():
        say(f"  {path}: {value}")
    if settings:
        say("")
    _print(_goals(told, goals))
    say("")
    _print(_trade_offs(told))
    say("\n".join(["", *_gains(told), ""]))
    _print(_tried(told, goals))
    if told["refused"]:
        one = told["refused"][0]["problem"]
        say(f"\n{len(told['refused'])} more were refused by the policy, such as: {one}")
    _where(out)


def _goals(told: Mapping[str, Any], goals: Sequence[Goal]) -> Table:
    from rich.text import Text

    table = _table(["goal", "as it is", "with these", "met"], left=1)
    for goal, found in zip(goals, told["goals"], strict=True):
        met = NOTHING if goal.limit is None else "yes" if found["met"] else "no"
        style = {"yes": "green", "no": "red"}.get(met, "")
        cells = [goal.told(found["before"]), goal.told(found["after"]), met]
        table.add_row(Text(goal.text), *(Text(cell, style=style) for cell in cells))
    return table


def _trade_offs(told: Mapping[str, Any]) -> Table:
    from rich.text import Text

    used = [
        (measure, title)
        for measure, title in COLUMNS
        if any(measure in found for found in told["classes"].values())
    ]
    table = _table(["class", *(title for _, title in used)], left=1)
    for name, found in told["classes"].items():
        cells = []
        for measure, _ in used:
            one = found.get(measure)
            if one is None or one["after"] is None:
                cells.append(Text(NOTHING))
                continue
            verdict = (one["difference"] or {}).get("verdict", "same")
            was, now = amount(measure, one["before"]), amount(measure, one["after"])
            cells.append(
                Text(now if was == now else f"{was} → {now}", style=STYLES.get(verdict, ""))
            )
        table.add_row(Text(name), *cells)
    return table


def _gains(told: Mapping[str, Any]) -> list[str]:
    """Say who gains and who pays, by the 95th percentile of waits and by what is lost."""
    return [
        f"{name} {_gain(found, len(told['seeds']))}." for name, found in told["classes"].items()
    ]


def _gain(found: Mapping[str, Any], seeds: int) -> str:
    clear, unclear = [], []
    for measure, what in (("wait.p95", "p95 wait"), ("lost", "loss")):
        difference = found.get(measure, {}).get("difference")
        if not difference or difference["verdict"] == "same":
            continue
        by = difference["relative"]
        size = change(measure, difference["mean"])
        if by is not None and "." in measure:
            size = relative(by)
        verdict = difference["verdict"]
        if verdict in STYLES:
            clear.append(f"{'gains' if verdict == 'better' else 'pays'} ({what} {size})")
        elif by is not None and abs(by) >= NOTICED:
            unclear.append(f"may have another {what} ({size})")
    if unclear:
        luck = "one seed" if seeds == 1 else f"{seeds} seeds"
        unclear[-1] += f", which {luck} cannot decide"
    return " and ".join([*clear, *unclear]) or "is as well off as before"


def _tried(told: Mapping[str, Any], goals: Sequence[Goal]) -> Table:
    """Set the best against others that came to something else: by the setting if there is one, else the best first."""
    from rich.text import Text

    best = told["tried"][0]
    paths = list(dict.fromkeys(path for trial in told["tried"] for path in trial["settings"]))
    classes = list(told["classes"])
    heads = [*(path.rpartition(".")[2] for path in paths), *(goal.text for goal in goals)]
    table = _table([*heads, *(f"{name} p95" for name in classes), "lost"], left=0)
    for trial in _others(told["tried"], len(paths) == 1):
        cells = [str(trial["settings"].get(path, "as it is")) for path in paths]
        cells += [goal.told(value) for goal, value in zip(goals, trial["values"], strict=True)]
        found = [trial["classes"].get(name, {}) for name in classes]
        cells += [amount("wait.p95", one.get("wait.p95")) for one in found]
        lost = [one["lost"] for one in found if one.get("lost") is not None]
        cells.append(amount("lost", max(lost, default=None)))
        style = "bold" if trial is best else "" if trial["met"] else "dim"
        cells[0] = f"→ {cells[0]}" if trial is best else cells[0]
        table.add_row(*(Text(cell, style=style) for cell in cells))
    return table


def _others(tried: Sequence[Mapping[str, Any]], one_range: bool) -> list[Mapping[str, Any]]:
    """Choose what to show: no two that came to the same, and the policy as it is always."""
    chosen: list[Mapping[str, Any]] = []
    seen = []
    for trial in tried:
        outcome = (trial["values"], trial["harm"])
        if outcome not in seen or not trial["settings"]:
            seen.append(outcome)
            chosen.append(trial)
    usual = [trial for trial in chosen if not trial["settings"]]
    changed = [trial for trial in chosen if trial["settings"]]
    if one_range and len(changed) <= 2 * MOST_TRIED:
        changed.sort(key=_by_setting)
    else:
        changed = changed[:MOST_TRIED]
    return [*usual, *changed]


def _by_setting(trial: Mapping[str, Any]) -> tuple[int, float, str]:
    (value,) = trial["settings"].values()
    if isinstance(value, str) and value.endswith("ms"):  # durations are written so by ranges
        bare = value.removesuffix("ms")
        return (0, float(bare), "") if bare.replace(".", "", 1).isdecimal() else (1, 0.0, value)
    return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value))


def _table(heads: Sequence[str], left: int) -> Table:
    from rich import box
    from rich.table import Table as Made

    table = Made(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place < left else "right", overflow="fold")
    return table


def _print(table: Table) -> None:
    """Print a table as wide as the terminal; into a file, as wide as it is."""
    from rich.console import Console

    plain = not sys.stdout.isatty()
    console = Console(highlight=False, width=160 if plain else None)
    with console.capture() as captured:
        console.print(table)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    say("\n".join(lines).strip("\n"))
