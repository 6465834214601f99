"""How doors make their gates: plain ones, unless whoever sets the door up wants them watched, recorded or shared."""

from __future__ import annotations

from collections.abc import Callable

from fairlead.core import Capacity, Gate, Policy

MakeGate = Callable[[Policy, Capacity], Gate]
MakeGates = Callable[[str], MakeGate]  # for a door with several gates, by their names


def plain_gates(name: str) -> MakeGate:
    """Make gates that nobody watches."""
    return Gate
