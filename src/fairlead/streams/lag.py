"""How far behind a group is: asked of the broker, by somebody who is no member of the group.

`ask_lag` serves those outside (`fairlead streams lag`).  `LagWatch` runs beside an app that is being looked at: what
listeners read tells them where partitions end, and what they do not read (a group that is withheld, a partition that
is paused, one from which nothing has come yet) is asked for here, on a client of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from fairlead.errors import BrokerFault
from fairlead.streams.broker import Tp

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fairlead.streams.app import StreamApp
    from fairlead.streams.broker import Client
    from fairlead.streams.holdings import Holding

log = logging.getLogger("fairlead.streams")

LOOK = 1.0  # seconds between two looks
OLD = 5.0  # seconds after which an end is asked for again
AGAIN = 10.0  # seconds until a broker that did not answer is asked again
AT_ONCE = 200  # partitions that are asked for in one look


class PartitionLag(NamedTuple):
    """One partition, as the broker knows it.

    Without a commit, or with one beyond the end, `lag` counts from where the group would begin.
    """

    topic: str
    partition: int
    committed: int | None
    end: int
    lag: int


def ask_lag(app: StreamApp) -> tuple[list[PartitionLag], list[str]]:
    """Ask for every partition of the app's topics; also tell the topics that do not exist.  Raises `BrokerFault`."""
    latest = begins_latest(app.settings.kafka)
    client = app.broker.client(app.settings.group, name="lag")
    missing: list[str] = []
    tps: list[Tp] = []
    try:
        for topic in sorted(app.topics):
            count = client.partitions(topic)
            tps += [Tp(topic, number) for number in range(count)]
            if not count:
                missing.append(topic)
        committed = client.committed(tps) if tps else {}
        found = []
        for tp in tps:
            begin, end = client.watermarks(tp)
            at = committed.get(tp)
            done = done_of(at, begin, end, latest=latest)
            found.append(PartitionLag(*tp, at, end, max(0, end - done)))
        return found, missing
    finally:
        client.close()


def done_of(committed: int | None, begin: int, end: int, *, latest: bool) -> int:
    """Tell before which offset a group has nothing to do.

    Commits are asked for before ends, so one beyond the end is of a topic that was made anew: it is void.
    """
    if committed is None or committed > end:
        return end if latest else begin
    return max(committed, begin)


def begins_latest(kafka: Mapping[str, object]) -> bool:
    """Say whether a group without a commit begins at the end, by its settings."""
    return str(kafka.get("auto.offset.reset", "")).lower() in ("latest", "end", "largest")


class LagWatch:
    """Keeps what is known of the ends of an app's partitions fresh."""

    def __init__(self, app: StreamApp) -> None:
        self._app = app
        self._latest = begins_latest(app.settings.kafka)
        self._client: Client | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="fairlead-lag", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Watch no more; a question that is being asked is left to end by itself."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(LOOK)

    def _watch(self) -> None:
        pause = LOOK
        while not self._ended.wait(pause):
            pause = LOOK
            try:
                self.look(time.monotonic())
            except BrokerFault as fault:
                log.debug("lag: %s", fault)
                pause = AGAIN
            except Exception:
                log.exception("lag cannot be watched")
                pause = AGAIN
        if self._client is not None:
            self._client.close()

    def look(self, now: float) -> None:
        """Ask for what is old or unknown."""
        runtime = self._app.started
        if runtime is None or runtime.stopped:
            return
        held = [one for each in runtime.listeners.values() for one in list(each.holdings.values())]
        new = [one for one in held if one.start is None][:AT_ONCE]
        old = sorted((one for one in held if one.end_at < now - OLD), key=lambda one: one.end_at)
        if not new and not old:
            return
        if self._client is None:
            self._client = self._app.broker.client(self._app.settings.group, name="lag")
        self._ask(self._client, new, old[:AT_ONCE])

    def _ask(self, client: Client, new: Iterable[Holding], old: Iterable[Holding]) -> None:
        starts = dict.fromkeys(new)
        committed = client.committed([one.tp for one in starts]) if starts else {}
        for one in dict.fromkeys([*starts, *old]):
            if self._ended.is_set() or one.lost:
                continue
            begin, end = client.watermarks(one.tp)
            one.note_end(end, time.monotonic())
            if one in starts and one.start is None:
                one.start = done_of(committed.get(one.tp), begin, end, latest=self._latest)
