"""What a scheduler counts, and the snapshot it shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairlead.tasks.priority import TIER_OF, TIERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fairlead.core.ticket import Ticket

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


class Counts:
    """Plain counters, one addition each; lists go by tier, an index into TIERS."""

    __slots__ = (
        "adrift",
        "cancelled",
        "clamped",
        "completed",
        "expired",
        "failed",
        "lost",
        "promotions",
        "refused",
        "submitted",
        "waited",
        "waits",
    )

    def __init__(self) -> None:
        self.submitted = 0
        self.completed = [0, 0, 0]
        self.failed = 0
        self.cancelled = 0
        self.expired = 0  # part of cancelled: waited longer than it may
        self.lost = [0, 0, 0]  # part of cancelled: granted a slot, and gone before it could start
        self.adrift: set[Ticket] = set()  # under way without room: their hold has expired
        self.refused = 0
        self.clamped = 0
        self.promotions = 0
        self.waits = [[0] * (len(BOUNDS) + 1) for _ in TIERS]  # of those that did wait
        self.waited = [0.0, 0.0, 0.0]

    @property
    def outstanding(self) -> int:
        """What was submitted and has not come to its end."""
        return self.submitted - sum(self.completed) - self.cancelled

    def histograms(self, running: Iterable[Ticket]) -> dict[str, WaitHistogram]:
        """Tell the waits of everything started; what never waited is not counted one by one, it is the rest."""
        started = [done + lost for done, lost in zip(self.completed, self.lost, strict=True)]
        for ticket in (*running, *self.adrift):
            started[TIER_OF[ticket.priority]] += 1
        histograms = {}
        for index, tier in enumerate(TIERS):
            counts = list(self.waits[index])
            counts[0] += started[index] - sum(counts)
            histograms[tier] = WaitHistogram(BOUNDS, tuple(counts), self.waited[index])
        return histograms
