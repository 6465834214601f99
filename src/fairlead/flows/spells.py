"""Flows that were drawn, and so are in nobody's books: how many run, told by the minute in which they started."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlead.flows.counts import Counts

    Workload = tuple[str, float]

LENGTH = 60.0  # seconds for which flows are counted as one
# Seconds after which a flow that nobody ended is forgotten, where nothing lets it hold its tokens longer.
LONGEST_UNENDED = 3600.0


class Spell:
    """Flows of one workload and cost that started at about the same time, counted and not kept."""

    __slots__ = ("began", "cost", "ended", "failed", "over", "started", "told", "workload")

    def __init__(self, workload: Workload, cost: float) -> None:
        self.workload, self.cost = workload, cost
        self.began = inf  # when it was first seen that flows had started
        self.started = self.ended = self.failed = 0
        self.told = 0, 0, 0  # of these
        self.over = False  # whoever has not ended by now is forgotten

    @property
    def running(self) -> int:
        """How many have not ended."""
        return self.started - self.ended

    def tell(self, counts: Counts) -> None:
        """Add what has happened since this was last done."""
        before = self.told
        self.told = started, ended, failed = self.started, self.ended, self.failed
        if started > before[0]:
            workload = counts.of(self.workload)
            workload.accepted_flows += started - before[0]
            workload.accepted_tokens += (started - before[0]) * self.cost
        counts.ended_flows += ended - before[1]
        counts.failed_flows += failed - before[2]


class Spells:
    """The spells of a control point, and of those before it: the last one goes on."""

    def __init__(self) -> None:
        self._all: deque[Spell] = deque()

    @property
    def running(self) -> int:
        """How many flows were drawn and have not ended."""
        return sum(spell.running for spell in list(self._all))

    def begin(self, workload: Workload, cost: float) -> Spell:
        """Begin a spell."""
        spell = Spell(workload, cost)
        self._all.append(spell)
        return spell

    def tell(self, counts: Counts) -> None:
        """Add what has happened to the counts of the point."""
        for spell in self._all:
            spell.tell(counts)

    def turn(self, current: Spell | None, counts: Counts, now: float) -> Spell | None:
        """Drop spells that have ended, or may no longer; begin another when the current one has its length."""
        if current is not None and now - current.began >= LENGTH:
            current = self.begin(current.workload, current.cost)
        for spell in list(self._all):
            if spell.started and spell.began == inf:
                spell.began = now
            if spell is current:
                continue
            spell.over = now - spell.began > LONGEST_UNENDED + LENGTH
            if spell.over or not spell.running:
                spell.tell(counts)
                counts.forgotten += spell.running
                self._all.remove(spell)
        return current
