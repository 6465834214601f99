"""The gates a scheduler has had: when those before the present one let go of what runs.

A gate may hold what others want, such as slots of a pool.  What runs goes on when the scheduler throws away what
it believes, and so keeps its room until the next gate has taken it over, or until it is not ours to count.  Meanwhile
it has it in a gate where nothing waits: what ends gives its room back, and none is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.capacities import Unlimited
from fairlead.jobs.ticket import id_of
from fairlead.policies import FIFO

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlead.core import Capacity, Gate, Policy
    from fairlead.jobs.records import Id
    from fairlead.runtime import MakeGate


class Gates:
    """Those that were made and have not let go."""

    def __init__(self, make: MakeGate) -> None:
        self._make = make
        self._made: list[Gate] = []
        # Has what ran when the last one that planned stepped down.
        self._resting: Gate | None = None

    def make(self, policy: Policy, capacity: Capacity) -> Gate:
        """Make the next one."""
        made = self._make(policy, capacity)
        self._made.append(made)
        return made

    def let_go(self, keep: Gate | None = None) -> None:
        """Have all but one give up what they hold."""
        former = [gate for gate in self._made if gate is not keep]
        self._made = [] if keep is None else [keep]
        if keep is not self._resting:
            self._resting = None
        for gate in former:
            gate.surrender()

    def rest(self, led: Gate | None, now: float) -> None:
        """Nobody plans for now: what runs in the gate that led, if one did, keeps its room; tries to read let go."""
        if led is not None:
            running = list(led.holders)
            self._resting = self.make(FIFO(), Unlimited())
            self._resting.adopt(running, now)
        self.let_go(self._resting)

    def ended(self, jobs: Sequence[Id], now: float) -> None:
        """Jobs have ended; while nobody plans, that is all there is to know."""
        if self._resting is not None:
            gone = set(jobs)
            ended = [ticket for ticket in self._resting.holders if id_of(ticket) in gone]
            self._resting.finish_all(ended, now)
