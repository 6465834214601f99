"""What `fairlead jobs` prints: tables on a wide terminal, lines on a narrow one, or JSON; and progress while it waits.

Names come from users: nothing in them reaches a terminal as more than visible text.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import TYPE_CHECKING, Any

from fairlead.cli.saying import note, say
from fairlead.errors import StoreUnavailable
from fairlead.jobs.showing import visible
from fairlead.jobs.states import TERMINAL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from fairlead.jobs.operating import Operations
    from fairlead.jobs.records import RunRow

WIDE = 160  # columns, where nobody has said how many there are
NARROW = 70  # columns; below this rows are written as lines
LONGEST_PAUSE = 0.5  # seconds between two looks
QUIET = 2.0  # seconds between two lines of progress
LONELY = 3.0  # seconds after which to say that nobody serves
COLORS = {
    "active": "cyan",
    "completed": "green",
    "failed": "red",
    "expired": "red",
    "cancelled": "yellow",
    "skipped": "yellow",
    "suspended": "magenta",
}


def say_json(document: Any) -> None:
    """Print one JSON document, in ASCII: no escape of any terminal is in it."""
    say(json.dumps(document, indent=2))


def tell(document: Any, as_json: bool, words: str | Callable[[Any], None]) -> None:
    """Print a document as JSON, or what is said of it in words."""
    if as_json:
        say_json(document)
    elif isinstance(words, str):
        say(words)
    else:
        words(document)


def console_of(stream: Any = None) -> Console:
    """Make a console that leaves nothing out where nobody watches."""
    from rich.console import Console

    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDE
    return console


def say_table(
    headings: Sequence[str], rows: Sequence[Sequence[Any]], *, empty: str, state: int | None = None
) -> None:
    """Print a table; `state` is the column to be colored."""
    if not rows:
        say(empty)
        return
    shown = [[visible("–" if cell is None else str(cell)) for cell in row] for row in rows]
    console = console_of()
    if console.width < NARROW:
        say("\n".join("  ".join(row) for row in shown))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in shown:
        cells = [Text(cell) for cell in row]
        if state is not None:
            cells[state].stylize(COLORS.get(row[state], ""))
        table.add_row(*cells)
    with console.capture() as captured:
        console.print(table)
    say("\n".join(line.rstrip() for line in captured.get().splitlines()))


def say_runs(runs: Sequence[dict[str, Any]]) -> None:
    """Print a list of runs."""
    rows = [
        [
            run["id"],
            run["name"],
            run["state"],
            run["tenant"],
            f"{run['job_count'] - run['jobs_left']}/{run['job_count']}",
            moment(run["created_at"]),
            moment(run["completed_on"]),
        ]
        for run in runs
    ]
    headings = ("RUN", "NAME", "STATE", "TENANT", "JOBS", "CREATED", "COMPLETED")
    say_table(headings, rows, empty="no runs", state=2)


def say_run(run: dict[str, Any]) -> None:
    """Print a run and its jobs."""
    say(
        f"run {run['id']} {visible(run['name'])}: {run['state']}"
        f"{', being cancelled' if run['cancelling'] and run['state'] not in TERMINAL else ''}, "
        f"{run['job_count'] - run['jobs_left']} of {run['job_count']} jobs ended"
    )
    for name in ("tenant", "key", "soft_sla", "hard_sla", "created_at", "completed_on"):
        if run[name] is not None:
            say(f"  {name}: {visible(run[name])}")
    rows = [
        [
            job["id"],
            job["name"],
            job["state"],
            job["executor"],
            job["priority"],
            f"{job['attempts']}/{job['retries'] + 1}",
            _outcome(job),
        ]
        for job in run["jobs"]
    ]
    headings = ("JOB", "NAME", "STATE", "EXECUTOR", "PRIORITY", "FAILED", "RESULT")
    say_table(headings, rows, empty="no jobs", state=2)


def _outcome(job: dict[str, Any]) -> str | None:
    if job["error"] is not None:
        said = f"{job['error'].get('type', '')}: {job['error'].get('message', '')}"
        return _short(" ".join(said.split()))
    return _short(json.dumps(job["result"])) if job["state"] == "completed" else None


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def moment(text: str | None) -> str | None:
    """Shorten a time for people."""
    return None if text is None else f"{text[:10]} {text[11:19]}Z"


async def follow(operations: Operations, run: str, timeout: float | None = None) -> RunRow | None:
    """Show how a run comes on, on the error stream, until it has ended; None if that took too long."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False, markup=False)
    if not console.is_terminal or console.is_dumb_terminal:
        return await _follow(operations, run, timeout, _Lines())
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        return await _follow(operations, run, timeout, _Bar(progress))


class _Bar:
    """Progress on a terminal."""

    def __init__(self, progress: Any) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None)

    def __call__(self, row: RunRow) -> None:
        told = f"run {row.dag} {visible(row.name)[:40]}: {row.state}"
        done = row.jobs - row.left
        self._progress.update(self._task, description=told, completed=done, total=row.jobs)


class _Lines:
    """Progress in a log."""

    def __init__(self) -> None:
        self._told: tuple[str, int] | None = None
        self._at = 0.0

    def __call__(self, row: RunRow) -> None:
        now, state = time.monotonic(), (row.state, row.left)
        if state != self._told and (now >= self._at or row.state in TERMINAL):
            self._told, self._at = state, now + QUIET
            done = row.jobs - row.left
            note(f"run {row.dag} is {row.state}, {done} of {row.jobs} jobs ended")


async def _follow(
    operations: Operations, run: str, timeout: float | None, tell: _Bar | _Lines
) -> RunRow | None:
    store = await operations.jobs.store()
    begun = time.monotonic()
    pause, warned, row, away = 0.02, False, None, False
    while True:
        try:
            row = await operations.row(run)
            away = False
            tell(row)
            if row.state in TERMINAL:
                return row
            if not warned and time.monotonic() - begun >= LONELY:
                warned = True
                if await store.leader() is None:
                    note(
                        "no scheduler is running; start one with fairlead jobs serve --app module:jobs"
                    )
            if (left := _left(begun, timeout, pause)) <= 0:
                return None
            await store.wait_for_news(left)
        except StoreUnavailable as error:
            if row is None:  # at the first look, the address may be wrong
                raise
            if not away:
                away = True
                note(f"{error}; waiting for it")
            if (left := _left(begun, timeout, pause)) <= 0:
                return None
            await asyncio.sleep(left)
        pause = min(2 * pause, LONGEST_PAUSE)


def _left(begun: float, timeout: float | None, pause: float) -> float:
    """How long to wait for the next look: nothing if time is up."""
    return pause if timeout is None else min(pause, begun + timeout - time.monotonic())
