"""What `fairlead top` shows: the snapshots of a server's event stream, as a table that stays in place.

Names come from users: nothing in them reaches a terminal as more than visible text.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fairlead.config import shown
from fairlead.errors import ConfigError, FairleadError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from rich.console import RenderableType

PATIENCE = 15.0  # seconds between two signs of life; the server gives one every ten
COLUMNS = ("class", "run", "wait", "oldest", "p50", "p95", "p99", "in/s", "no/s")
NAME = 14
WIDTHS = (4, 5, 6, 6, 6, 6, 5, 5)
WIDEST = 80


def show(url: str, token: str | None, *, once: bool, as_json: bool) -> int:
    """Follow a server until Ctrl-C, or look once."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False, markup=False, emoji=False)
    with closing(follow(url, token)) as snapshots:
        first = next(snapshots)
        if as_json:
            print(json.dumps(first, indent=2))
        elif once or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
            console.print(table(url, first))
        else:
            with Live(table(url, first), console=console, auto_refresh=False) as live:
                for snapshot in snapshots:
                    live.update(table(url, snapshot), refresh=True)
    return 0


def follow(url: str, token: str | None) -> Generator[dict[str, Any], None, None]:
    """Yield each snapshot a server sends; whatever is wrong is told in a sentence."""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    kind = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}.get(
        parts.scheme
    )
    try:
        port = parts.port
    except ValueError:
        port = -1
    if kind is None or not parts.hostname or port == -1:
        raise ConfigError(f"{shown(url)} is no address of a server; one is http://127.0.0.1:8080")
    headers = {"accept": "text/event-stream"}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    with closing(kind(parts.hostname, port, timeout=PATIENCE)) as connection:
        try:
            connection.request("GET", f"{parts.path.rstrip('/')}/api/v1/events", headers=headers)
            answer = connection.getresponse()
            if answer.status in (401, 403):
                raise FairleadError(f"{url} asks for a token: give --token, or set FAIRLEAD_TOKEN")
            media = answer.getheader("content-type", "")
            if answer.status != 200 or not media.startswith("text/event-stream"):
                raise FairleadError(
                    f"what answers at {url} is no Fairlead server; say where one is"
                )
            yield from _snapshots(answer)
        except (OSError, http.client.HTTPException) as error:
            raise FairleadError(
                f"nothing answers at {url} ({error}): start a server with fairlead serve, or say where one is"
            ) from None
    raise FairleadError(f"the server at {url} has ended")


def _snapshots(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    event, data = "", ""
    while line := answer.readline():
        name, _, value = line.decode("utf-8", "replace").rstrip("\r\n").partition(":")
        if name == "event":
            event = value.strip()
        elif name == "data":
            data += value.strip()
        elif not name and not value:
            if event == "snapshot" and data:
                yield json.loads(data)
            event, data = "", ""


def table(url: str, snapshot: dict[str, Any]) -> RenderableType:
    """Lay a snapshot out: a line per gate, and under it a line per class; 80 columns are enough."""
    from rich.text import Text

    lines = [(f"fairlead top  {visible(url)}", "bold"), ("", ""), (_line(COLUMNS), "bold")]
    lines += _doors(snapshot)
    for gate in snapshot["gates"]:
        slots = gate["slots"]
        total = "∞" if slots["total"] is None else f"{slots['total']:g}"
        lines.append((f"{visible(gate['id'])}  {slots['used']:g} of {total} slots", "cyan"))
        for said in (slots.get("over"), slots.get("idle")):
            if said:
                lines.append((f"  {visible(said)}", "red" if said == slots.get("over") else "dim"))
        lines += [(line, "yellow") for line in _overrides(gate.get("overrides") or ())]
        if gate.get("degraded"):
            lines.append((f"  degraded: {visible(gate['degraded'])}", "bold red"))
        lines += [(line, style) for line, style in _backends(gate.get("backends") or ())]
        lines += [(line, "") for one in gate["classes"] for line in _class(one)]
    lines += [("", ""), *((said, "") for said in _rest(snapshot))]
    return Text("\n").join(Text(said, style) for said, style in lines)


def _doors(snapshot: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Name the doors that do not run as they should, with the reason."""
    for door in snapshot.get("doors") or ():
        if door["state"] not in ("running", "starting"):
            reason = f": {visible(door['reason'])}" if door.get("reason") else ""
            yield f"{visible(door['name'])} is {door['state']}{reason}", "bold red"


def _overrides(overrides: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Name what is in force by hand."""
    for one in overrides:
        what, value = visible(one["what"]), visible(_value(one["value"]))
        yield f"  set by hand: {what} is {value} (configured: {visible(_value(one['configured']))})"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_value(one)}" for name, one in value.items())
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _backends(backends: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Count backends by state, and name those that take no requests."""
    if not backends:
        return
    states = Counter(one["state"] for one in backends)
    yield f"  backends: {', '.join(f'{count} {state}' for state, count in states.items())}", ""
    for one in backends:
        if one["state"] != "healthy":
            failure = one.get("last_failure")
            said = f"    {visible(one['url'])} is {one['state']}"
            yield f"{said}: {visible(failure['what'])}" if failure else said, "red"


def _line(cells: Sequence[str]) -> str:
    return "  ".join(
        [
            f"  {cells[0]:<{NAME}}",
            *(f"{cell:>{wide}}" for cell, wide in zip(cells[1:], WIDTHS, strict=True)),
        ]
    )


def _class(one: dict[str, Any]) -> Iterator[str]:
    """Write a class; a name that is too long has a line of its own, for cut it could be that of another."""
    name, *figures = _cells(one)
    if len(name) > NAME:
        yield f"  {name}"
        name = ""
    yield _line([name, *figures])


def _cells(one: dict[str, Any]) -> list[str]:
    waits = one["waits"]
    return [
        visible(one["name"]),
        str(one["running"]),
        str(one["waiting"]),
        lasting(one["oldest_wait"]),
        *(lasting(waits[name]) for name in ("p50", "p95", "p99")),
        f"{one['admitted_per_s']:.1f}",
        f"{one['refused_per_s']:.1f}",
    ]


def _rest(snapshot: dict[str, Any]) -> Iterator[str]:
    jobs = snapshot.get("jobs")
    if jobs:
        said = [
            f"{name.replace('_', ' ')} {count}"
            for name, count in jobs.items()
            if type(count) in (int, float)
        ]
        yield from _lines("jobs: ", said)
        if jobs.get("reason"):
            yield f"jobs: {visible(jobs['reason'])}"
    for app in snapshot.get("streams") or ():
        lag = sum(one.get("lag") or 0 for one in app.get("partitions", ()))
        yield f"streams: group {visible(str(app.get('group', '')))}, lag {lag}"


def _lines(head: str, items: Sequence[str]) -> Iterator[str]:
    """Write items one after the other, and those that do not fit into a line whole into the next."""
    line = head
    for place, item in enumerate(items):
        said = item if place == len(items) - 1 else f"{item}, "
        if len(line) > len(head) and len(line + said.rstrip()) > WIDEST:
            yield line.rstrip()
            line = " " * len(head)
        line += said
    yield line


def lasting(seconds: float | None) -> str:
    """Write a time that passed."""
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def visible(text: str) -> str:
    """Write out what a terminal would obey or hide."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )
