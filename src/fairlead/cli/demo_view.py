"""The demonstration's view: a live screen on a terminal, progress lines elsewhere, a summary, or one JSON document."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

from fairlead.cli.demo import (
    KINDS,
    LOAD,
    PLACES,
    SLOTS,
    Half,
    arrivals,
    compare,
    document,
    load,
    percentile,
)
from fairlead.cli.saying import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType
    from rich.table import Table

TITLES = {"fifo": "Plain FIFO", "fairlead": "Fairlead"}
COLORS = {"system": "magenta", "interactive": "cyan", "default": "green", "bulk": "yellow"}
NARROW = 80  # columns; below this a table would be cut, so kinds are listed instead
REFRESHES = 8  # per second


def show(seconds: float, seed: int, *, as_json: bool) -> int:
    """Run both halves, show them, and return the exit code."""
    planned = arrivals(seconds, seed)
    halves = [Half("fifo", planned), Half("fairlead", planned)]
    if as_json:
        asyncio.run(_run(halves))
        say(json.dumps(document(seconds, seed, halves, load(planned, seconds)), indent=2))
        return 0

    from rich.console import Console

    console = Console(highlight=False)
    if console.is_terminal and not console.is_dumb_terminal:
        _run_live(console, halves, seconds)
    else:
        asyncio.run(_run(halves, _setting(seconds)))
    with console.capture() as captured:
        console.print(_summary(halves, console.width))
        console.print("\n".join(["", *compare(halves)]))
    lines = [line.rstrip() for line in captured.get().splitlines()]
    say("\n".join(lines).strip("\n").replace("\n\n\n", "\n\n"))
    return 0


async def _run(halves: Sequence[Half], setting: str = "") -> None:
    for number, half in enumerate(halves, 1):
        if setting:
            title = f"{number}/{len(halves)} {TITLES[half.name]}: {setting}"
            print(title, file=sys.stderr, flush=True)
        await half.run()


def _run_live(console: Console, halves: Sequence[Half], seconds: float) -> None:
    """Run the halves while rich's own thread draws them, so that drawing delays no work."""
    from rich.live import Live

    def screen() -> RenderableType:
        return _screen(halves, seconds, console.width)

    with Live(get_renderable=screen, console=console, refresh_per_second=REFRESHES, transient=True):
        asyncio.run(_run(halves))


def _setting(seconds: float) -> str:
    return f"{LOAD * 100:.0f} % load on {SLOTS} slots for {seconds:g} s, room for {PLACES} to wait"


# The live screen


def _screen(halves: Sequence[Half], seconds: float, width: int) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    shown = [half for half in halves if half.elapsed]
    parts: list[RenderableType] = [
        Text(f"Fairlead demo: {_setting(seconds)}", style="bold"),
        Text(),
    ]
    for half in shown:
        parts += [_heading(half, seconds, width), *_rows(half, width), Text()]
    return Group(*parts)


def _heading(half: Half, seconds: float, width: int) -> RenderableType:
    from rich.text import Text

    part = min(1.0, half.elapsed / seconds)
    room = max(0, min(30, width - 40))
    bar = "█" * round(part * room) + "░" * (room - round(part * room))
    slots = "■" * half.active + "□" * (SLOTS - half.active)
    return Text(f"{TITLES[half.name]:<10} {bar} {half.elapsed:4.1f} s  slots {slots}", style="bold")


def _rows(half: Half, width: int) -> list[RenderableType]:
    if width < NARROW:
        return _listed([half])
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("kind", min_width=11)
    table.add_column("waiting now", min_width=30, max_width=30)
    for name in ("p50 ms", "p95 ms", "p99 ms", "refused", "promoted"):
        table.add_column(name, justify="right")
    for kind in KINDS:
        tally = half.tallies[kind.name]
        bar = "▪" * min(24, tally.waiting) + f" {tally.waiting}"
        style = COLORS[kind.name]
        table.add_row(
            Text(kind.name, style=style), Text(bar, style=style), *_cells(half, kind.name)
        )
    return [table]


def _cells(half: Half, name: str) -> list[str]:
    """Tell a kind's p50, p95 and p99 in milliseconds, what part was refused, and how many were promoted."""
    tally = half.tallies[name]
    ordered = sorted(tally.waits)
    waits = [f"{percentile(ordered, part) * 1000:.0f}" for part in (50, 95, 99)]
    return [*waits, f"{100 * tally.refused_share:.0f} %", str(tally.promoted or "–")]


# The summary


def _summary(halves: Sequence[Half], width: int) -> RenderableType:
    from rich.console import Group

    if width < NARROW:
        return Group(*_listed(halves))
    return _side_by_side(halves)


def _side_by_side(halves: Sequence[Half]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("wait in ms")
    for half in halves:
        title = TITLES[half.name].removeprefix("Plain ")
        for place, name in enumerate(("p50", "p95", "p99", "refused")):
            table.add_column(f"{title}\n{name}" if not place else f"\n{name}", justify="right")
    table.add_column("\npromoted", justify="right")
    for kind in KINDS:
        before, after = (_cells(half, kind.name) for half in halves)
        table.add_row(Text(kind.name, style=COLORS[kind.name]), *before[:4], *after)
    return table


def _listed(halves: Sequence[Half]) -> list[RenderableType]:
    """List the figures line by line, for a terminal of any width."""
    from rich.text import Text

    lines: list[RenderableType] = []
    for half in halves:
        lines.append(Text(TITLES[half.name], style="bold"))
        for kind in KINDS:
            p50, p95, p99, refused, promoted = _cells(half, kind.name)
            text = f" p50 {p50} p95 {p95} p99 {p99} ms, refused {refused}, promoted {promoted}"
            lines.append(Text.assemble((kind.name, COLORS[kind.name]), text))
    return lines
