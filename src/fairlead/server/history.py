"""The last quarter of an hour as snapshots, and those who follow along.

A snapshot is kept as it is sent, compressed.  Whoever follows reads from here and waits for the next one: there is no
queue per reader, so one that is slow costs nothing, and skips what it missed by much.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from bisect import bisect_right
from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from fairlead.serving.http import written

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

INTERVAL = 0.5  # seconds between two snapshots
KEPT = 15 * 60.0  # seconds
MOST_POINTS = 450  # of a history: what a chart can show
MOST_BEHIND = 20  # snapshots a reader may be late before some are left out
HEARTBEAT = 10.0


class Moment(NamedTuple):
    """One snapshot, and what was decided since the one before."""

    seq: int
    t: float
    snapshot: bytes  # JSON, compressed
    decisions: bytes  # JSON; empty: none, or nobody can be sent them any more


class Follower:
    """One who follows: counted from the moment it is let in until it is closed."""

    def __init__(self, history: History, pieces: AsyncGenerator[bytes, None]) -> None:
        self._history = history
        self._pieces = pieces
        self._left = False
        history.followers += 1

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._pieces)

    async def aclose(self) -> None:
        """Follow no more; a second call changes nothing."""
        if not self._left:
            self._left = True
            self._history.followers -= 1
        await self._pieces.aclose()


class History:
    """A bounded ring of moments."""

    def __init__(self) -> None:
        self._moments: deque[Moment] = deque(maxlen=int(KEPT / INTERVAL))
        # Numbers go on rising over a restart, so that a reader who comes back is not taken to be ahead.
        self._seq = int(time.time() / INTERVAL)
        self._next: asyncio.Future[None] | None = None
        self.followers = 0
        self.closed = False
        self._dismissals = 0

    @property
    def next_seq(self) -> int:
        """The number the next moment will have."""
        return self._seq + 1

    def add(self, snapshot: dict[str, Any], decisions: dict[str, Any] | None) -> None:
        """Keep a moment, and wake whoever follows."""
        self._seq = snapshot["seq"]
        packed = zlib.compress(written(snapshot), 1)
        told = written(decisions) if decisions else b""
        self._moments.append(Moment(self._seq, snapshot["t"], packed, told))
        # Decisions are many: only those of moments that a reader may still be sent are kept.
        if len(self._moments) > MOST_BEHIND:
            late = self._moments[-1 - MOST_BEHIND]
            self._moments[-1 - MOST_BEHIND] = late._replace(decisions=b"")
        self._wake()

    def _wake(self) -> None:
        waiting, self._next = self._next, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def close(self) -> None:
        """Let followers go, and take no more."""
        self.closed = True
        self._wake()

    def dismiss(self) -> None:
        """Let followers go: who may follow has changed, and they are to ask again."""
        self._dismissals += 1
        self._wake()

    def latest(self) -> bytes | None:
        """The last snapshot, as JSON."""
        return zlib.decompress(self._moments[-1].snapshot) if self._moments else None

    def since(self, t: float) -> bytes:
        """The snapshots since an instant, thinned out, as a JSON list."""
        moments = list(self._moments)  # at once: others are added while a thread reads
        found = [moment for moment in moments if moment.t >= t]
        return b"[" + b",".join(zlib.decompress(one.snapshot) for one in _thinned(found)) + b"]"

    def follow(self, last: int | None) -> Follower:
        """Tell, as server-sent events, what came after a moment and then what comes."""
        return Follower(self, self._follow(last))

    async def _follow(self, last: int | None) -> AsyncGenerator[bytes, None]:
        clock = asyncio.get_running_loop().time
        beat_at = clock() + HEARTBEAT
        dismissals = self._dismissals
        yield b"retry: 1000\n\n"
        if last is not None and last > self._seq:
            last = None  # of a server that was ahead of this one
        if last is not None:
            for moment in _thinned(self._after(last)):
                last = moment.seq
                yield _event(b"snapshot", moment.seq, zlib.decompress(moment.snapshot))
        elif self._moments:
            last = self._moments[-1].seq - 1  # begin with what is known
        while not self.closed and self._dismissals == dismissals:
            fresh = self._after(last if last is not None else -1)
            for moment in fresh[-MOST_BEHIND:]:
                last = moment.seq
                yield _event(b"snapshot", moment.seq, zlib.decompress(moment.snapshot))
                if moment.decisions:
                    yield _event(b"decision", None, moment.decisions)
            if clock() >= beat_at:
                beat_at = clock() + HEARTBEAT
                yield b": heartbeat\n\n"
            if not fresh:
                await self._wait(beat_at - clock())

    async def _wait(self, longest: float) -> None:
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        # A shield, for others wait for the same one.
        await asyncio.wait({self._next}, timeout=max(0.0, longest))

    def _after(self, seq: int) -> list[Moment]:
        moments = self._moments
        if not moments or moments[-1].seq <= seq:
            return []
        return list(moments)[bisect_right(moments, seq, key=attrgetter("seq")) :]


def _thinned(moments: Sequence[Moment]) -> Sequence[Moment]:
    """At most MOST_POINTS, evenly, with the last one."""
    if len(moments) <= MOST_POINTS:
        return moments
    step = (len(moments) - 1) / (MOST_POINTS - 1)
    return [moments[round(index * step)] for index in range(MOST_POINTS)]


def _event(name: bytes, seq: int | None, data: bytes) -> bytes:
    number = b"" if seq is None else b"id: %d\n" % seq
    return b"event: " + name + b"\n" + number + b"data: " + data + b"\n\n"
