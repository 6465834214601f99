"""What `fairlead streams` prints: the lag line by line, and `top` as a live screen, as plain text, or as JSON.

Names and errors come from users: nothing in them reaches a terminal as more than visible text.
"""

from __future__ import annotations

import http.client
import json
import time
from typing import TYPE_CHECKING, Any

from fairlead.cli.saying import note, say
from fairlead.errors import FairleadError
from fairlead.streams.status import split_address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType
    from rich.table import Table

    from fairlead.streams.lag import PartitionLag

PATIENCE = 5.0  # seconds for an answer
SOME = 8  # topics of which something is withheld are told of


def say_json(document: Any) -> None:
    """Print a document."""
    say(json.dumps(document, indent=2))


def visible(text: str) -> str:
    """Write out what a terminal would obey or hide."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in str(text)
    )


def say_lag(
    group: str, found: Sequence[PartitionLag], missing: Sequence[str], *, as_json: bool
) -> None:
    """Print the lag of each partition."""
    if as_json:
        total = sum(one.lag for one in found)
        partitions = [one._asdict() for one in found]
        say_json({"group": group, "lag": total, "partitions": partitions, "missing": list(missing)})
    else:
        wide = max((len(visible(one.topic)) for one in found), default=0)
        for one in found:
            at = "-" if one.committed is None else str(one.committed)
            say(
                f"{visible(one.topic):<{wide}} {one.partition:>4}  committed {at:>12}  "
                f"end {one.end:>12}  lag {one.lag:>12}"
            )
    for topic in missing:
        note(f"topic {visible(topic)} does not exist")


class Window:
    """A look into a process that shows itself."""

    def __init__(self, address: str, token: str | None, app: str | None) -> None:
        self._host, self._port = split_address(address)
        self._address = address
        self._token = token
        self._app = app

    def look(self) -> dict[str, Any]:
        """Ask for its status; whatever is wrong is told in a sentence."""
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        connection = http.client.HTTPConnection(self._host, self._port, timeout=PATIENCE)
        try:
            connection.request("GET", "/status", headers=headers)
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise FairleadError(
                f"nothing answers at {self._address} ({error}): start the app with fairlead streams run MODULE:APP, "
                f"or say where it is with --address"
            ) from None
        finally:
            connection.close()
        try:
            found = json.loads(body)
        except ValueError:
            found = None
        if answer.status == 401:
            raise FairleadError(f"{self._address} asks for a token: give --token")
        if answer.status != 200 or not isinstance(found, dict) or "partitions" not in found:
            raise FairleadError(
                f"what answers at {self._address} is no stream app of Fairlead's; say where one is with --address"
            )
        if self._app is not None and found.get("app") != self._app:
            runs = found.get("app") or "another app"
            raise FairleadError(
                f"{runs} runs at {self._address}, not {self._app}; say where that is with --address"
            )
        return found


def watch(window: Window, interval: float, *, once: bool) -> int:
    """Show it: live on a terminal, once elsewhere."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False, markup=False, emoji=False)
    document = window.look()
    if once or not console.is_terminal or console.is_dumb_terminal:
        wide = Console(highlight=False, markup=False, emoji=False, width=max(100, console.width))
        with wide.capture() as captured:
            wide.print(screen(document, None, 0.0))
        say("\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n"))
        return 0
    return _watch_live(window, console, Live, document, interval)


def _watch_live(
    window: Window, console: Console, live: Any, document: dict[str, Any], interval: float
) -> int:
    before, at = document, time.monotonic()
    try:
        with live(
            screen(document, None, 0.0), console=console, screen=True, auto_refresh=False
        ) as view:
            while True:
                time.sleep(interval)
                document, now = window.look(), time.monotonic()
                view.update(screen(document, before, now - at), refresh=True)
                before, at = document, now
    except KeyboardInterrupt:
        return 0


def screen(
    document: dict[str, Any], before: dict[str, Any] | None, seconds: float
) -> RenderableType:
    """Draw a status; rates are against an earlier one."""
    from rich.console import Group
    from rich.text import Text

    workers, scheduler = document["workers"], document["scheduler"] or {}
    lines = [
        f"{visible(document.get('app') or 'streams')}  group {visible(document['group'])}  {document['state']}  "
        f"up {document['uptime']:.0f} s",
        f"workers {workers['busy']}/{document['concurrency']} busy, {workers['enqueued']} enqueued, "
        f"{document['withheld_count']} withheld (oldest {document['withheld_oldest']:.1f} s)",
        f"scheduler {visible(scheduler.get('name', '-'))}: {scheduler.get('calls', 0)} calls, "
        f"slowest {scheduler.get('slowest', 0.0) * 1000:.1f} ms, {scheduler.get('raised', 0)} raised",
        *(_group_line(name, group) for name, group in document["groups"].items()),
    ]
    parts: list[RenderableType] = [Text("\n".join(lines)), _topics(document, before, seconds)]
    oldest: dict[str, Any] = {}  # of each topic: the others wait for much the same
    for one in document["withheld"]:
        oldest.setdefault(one["topic"], one)
    parts += [Text(visible(one["explain"])) for one in list(oldest.values())[:SOME]]
    return Group(*parts)


def _group_line(name: str, group: dict[str, Any]) -> str:
    state = "blocked" if group["blocked"] else "open"
    state = state if group["connected"] else "not connected"
    return (
        f"subscription group {visible(name)}: {state}, polled {group['polled_ago']:.1f} s ago, "
        f"{group['rebalances']} rebalances, {group['commits']} commits "
        f"({group['refused_commits']} refused), {group['resets']} resets"
    )


def _topics(document: dict[str, Any], before: dict[str, Any] | None, seconds: float) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("topic", no_wrap=True)
    for name in ("parts", "lag", "rate/s", "in flight", "buffered", "retries", "dead"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, one in document["topics"].items():
        rate = "-"
        if before is not None and seconds > 0 and "consumed" in one:
            rate = f"{(one['consumed'] - before['topics'][name].get('consumed', 0)) / seconds:.0f}"
        lag = one.get("lag")
        table.add_row(
            visible(name),
            str(one.get("partitions", 0)),
            "?" if lag is None else str(lag),
            rate,
            *(str(one.get(key, 0)) for key in ("in_flight", "buffered", "retries", "dead_letters")),
        )
    return table
