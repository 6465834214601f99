"""What a scheduler counts, and the snapshot it shows."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from fairlead.tasks.priority import TIER_OF, TIERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fairlead.core.ticket import Ticket

NOTED = 1000  # waits that are counted at a time
BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass(frozen=True, slots=True)
class WaitHistogram:
    """Waits of one tier, in seconds: how many fell in each bucket, up to its bound and above the one before."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """A snapshot of a scheduler.

    At rest `total_submitted == total_completed + total_cancelled`; a refusal is not a submission.
    """

    enabled: bool
    active_count: int
    queued_count: int
    total_submitted: int
    total_completed: int
    high_priority_completed: int
    low_priority_completed: int
    starvation_promotions: int
    total_failed: int
    total_cancelled: int
    total_refused: int
    total_clamped: int
    total_expired: int
    max_concurrency: int | None
    max_queue_size: int
    shutting_down: bool
    waits: Mapping[str, WaitHistogram]


class Tally:
    """Plain counters of one tier."""

    __slots__ = ("completed", "lost", "noted", "waited", "waits")

    def __init__(self) -> None:
        self.completed = 0
        self.lost = 0  # granted a slot, and gone before they could start
        self.noted: list[float] = []  # waits that have yet to be counted: NOTED at most
        self.waits = [0] * (len(BOUNDS) + 1)  # of those that did wait
        self.waited = 0.0

    def count(self) -> None:
        """Count what was noted: to look for the bucket of each wait as it comes takes longer (benchmarks/tasks.py)."""
        self.waits, self.waited = self._counted()
        self.noted.clear()

    def _counted(self) -> tuple[list[int], float]:
        noted, before = sorted(self.noted), 0
        counts = list(self.waits)
        for bucket, bound in enumerate((*BOUNDS, inf)):
            upto = bisect_right(noted, bound)
            counts[bucket] += upto - before
            before = upto
        return counts, self.waited + sum(noted)

    def histogram(self, running: int) -> WaitHistogram:
        """Tell the waits of all that started; who never waited is not counted one by one, these are the rest."""
        counts, waited = self._counted()
        counts[0] += self.completed + self.lost + running - sum(counts)
        return WaitHistogram(BOUNDS, tuple(counts), waited)


class Counts:
    """Plain counters, one addition each."""

    __slots__ = (
        "adrift",
        "cancelled",
        "clamped",
        "expired",
        "failed",
        "promotions",
        "refused",
        "submitted",
        "tallies",
        "tally_of",
    )

    def __init__(self) -> None:
        self.submitted = 0
        self.tallies = [Tally() for _ in TIERS]
        self.tally_of = [self.tallies[tier] for tier in TIER_OF]  # by priority
        self.failed = 0
        self.cancelled = 0  # with those that were lost
        self.expired = 0  # part of cancelled: waited longer than it may
        self.adrift: set[Ticket] = set()  # under way without room: their hold has expired
        self.refused = 0
        self.clamped = 0
        self.promotions = 0

    @property
    def completed(self) -> int:
        """What ran to an end."""
        return sum(tally.completed for tally in self.tallies)

    @property
    def outstanding(self) -> int:
        """What was submitted and has not come to its end."""
        return self.submitted - self.completed - self.cancelled

    def histograms(self, running: Iterable[Ticket]) -> dict[str, WaitHistogram]:
        """Tell the waits of everything started, by tier."""
        under_way = Counter(TIER_OF[ticket.priority] for ticket in (*running, *self.adrift))
        return {
            name: self.tallies[tier].histogram(under_way[tier]) for tier, name in enumerate(TIERS)
        }
