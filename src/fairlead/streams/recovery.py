"""When a group begins again after a failure: what was asked for, and how long it rests before.

The rests double from `FIRST` on while failures follow each other.  A group that keeps its client disturbs nobody, so
its rests stay short; a new client is a new member, and each of its joins a rebalance of the whole Kafka group.
"""

from __future__ import annotations

from math import inf

FIRST = 0.05  # seconds
LONGEST = 1.0  # with the same client
LONGEST_APART = 30.0  # with a new one
CALM = 30.0  # seconds without trouble after which rests are short again


class Recovery:
    """The resets of one group.  Only `ask` may be called by others than its listener."""

    def __init__(self) -> None:
        self.why: str | None = None  # a reset is asked for
        self.until = -inf  # rests until this instant
        self._broken = False
        self._count = 0
        self._last = -inf

    def ask(self, why: str, *, broken: bool = False) -> None:
        """Have the group begin again; with a new client if its own is `broken`."""
        self._broken |= broken
        self.why = why

    def begin(self, now: float) -> tuple[str, bool]:
        """Take what was asked for: why, and whether the client is broken."""
        why, broken = self.why or "", self._broken
        self.why, self._broken = None, False
        self._count = 0 if now - max(self._last, self.until) > CALM else self._count + 1
        self._last = now
        longest = LONGEST_APART if broken else LONGEST
        self.until = max(self.until, now + min(longest, FIRST * 2.0 ** min(self._count, 20)))
        return why, broken
