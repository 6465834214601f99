"""The gates a scheduler has had: when those before the present one let go of what runs.

A gate may hold what others want, such as slots of a pool.  What runs goes on when the scheduler throws away what
it believes, and so keeps its room until the next gate has taken it over, or until it is not ours to count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlead.core import Capacity, Gate, Policy
    from fairlead.runtime import MakeGate


class Gates:
    """Those that were made and have not let go."""

    def __init__(self, make: MakeGate) -> None:
        self._make = make
        self._made: list[Gate] = []

    def make(self, policy: Policy, capacity: Capacity) -> Gate:
        """Make the next one."""
        made = self._make(policy, capacity)
        self._made.append(made)
        return made

    def let_go(self, keep: Gate | None = None) -> None:
        """Have all but one give up what they hold."""
        former = [gate for gate in self._made if gate is not keep]
        self._made = [] if keep is None else [keep]
        for gate in former:
            gate.surrender()
