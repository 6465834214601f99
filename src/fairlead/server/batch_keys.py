"""What batches of streams held, kept for a recording: where order is kept by key, how many records of each key.

Keys come without end and a batch may hold many, so what is kept of them is bounded, whatever an app does: the oldest
rows forget theirs.  A key is told by a number, given in turn, for it may be somebody's name; it is compared, as the
partition does, and never shown.
"""

from __future__ import annotations

from array import array
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable

    from fairlead.core import Ticket
    from fairlead.streams.jobs import Job

MOST_COUNTS = 1_000_000  # of keys in batches, in one stretch: 8 bytes each
MOST_KEYS = 100_000  # in one stretch


class Stretch:
    """The keys of batches that ended one after another: their numbers, and how many records each had in its batch."""

    __slots__ = ("named", "numbers", "sizes")

    def __init__(self) -> None:
        self.named: dict[Hashable, int] = {}
        self.numbers = array("I")
        self.sizes = array("I")

    def is_full(self, more: int) -> bool:
        """Say whether so many more keys might be too many."""
        return len(self.numbers) + more > MOST_COUNTS or len(self.named) + more > MOST_KEYS

    def forget(self) -> None:
        """Let go of everything; who still asks is told nothing."""
        self.named, self.numbers, self.sizes = {}, array("I"), array("I")


class Span(NamedTuple):
    """Where a stretch has the keys of one batch."""

    stretch: Stretch
    start: int
    end: int

    def counts(self) -> dict[str, int] | None:
        """How many records of each key, by its number; None if that is forgotten.  From any thread."""
        numbers = self.stretch.numbers[self.start : self.end]
        sizes = self.stretch.sizes[self.start : self.end]
        if not self.start < self.end == self.start + len(numbers) == self.start + len(sizes):
            return None
        return {str(number): size for number, size in zip(numbers, sizes, strict=True)}


class Held(NamedTuple):
    """What a batch held: how many records, and where order is kept by key, of which."""

    records: int
    keys: Span | None


class BatchKeys:
    """The keys of the batches that pass one gate.

    There are two stretches: this one, and the one before.  Of a key in either the number is known, so that whatever is
    still told of a key is told by one number.  A stretch that is full begins the next, and the last but one is
    forgotten.
    """

    def __init__(self) -> None:
        self._before, self._now = Stretch(), Stretch()
        self._serial = count(1)

    def held_by(self, ticket: Ticket) -> Held:
        """Look into a batch that has ended.  The gate is locked meanwhile, and nothing may fail."""
        job: Job = ticket.work
        records = len(job.messages)
        if job.holding.topic.parallel_by is None or job.taken is None:
            return Held(records, None)
        lanes, sizes = job.taken.lanes, job.taken.sizes
        unknown = Held(records, Span(self._now, 0, 0))
        if len(lanes) > min(MOST_COUNTS, MOST_KEYS):
            return unknown
        if self._now.is_full(len(lanes)):
            self._before.forget()
            self._before, self._now = self._now, Stretch()
        now, start = self._now, len(self._now.numbers)
        try:
            named = now.named
            numbers = [named.get(lane.key) or self._name(lane.key) for lane in lanes]
        except Exception:  # a key is the user's own code, which must not break the verb
            return unknown
        now.numbers.extend(numbers)
        now.sizes.extend(sizes)
        return Held(records, Span(now, start, start + len(numbers)))

    def _name(self, key: Hashable) -> int:
        """The number of a key that is new in this stretch."""
        number = self._before.named.get(key) or next(self._serial)
        self._now.named[key] = number
        return number
