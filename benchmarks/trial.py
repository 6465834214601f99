"""The trial gate whose figures the issue quotes, as a peer: it is not ours to ship, so it is read where it lies.

Its ratios to a heapq loop were measured elsewhere and could not be found again here; beside ours, under the same
tickets in the same run, it can be compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.shapes import FAIR, FLOWS, SLOTS, Shape
from benchmarks.steady import Steady

PLACE = Path(__file__).parents[2] / "shared/trial/gate_trial.py"
STARVATION = [3600.0] * 4


def trial() -> ModuleType | None:
    """Load it, if it is on this machine."""
    place = Path(os.environ.get("FAIRLEAD_TRIAL", PLACE))
    if not place.is_file():
        return None
    spec = spec_from_file_location("gate_trial", place)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shapes(module: ModuleType) -> dict[str, Shape]:
    """Its gates, with the tickets of `benchmarks.shapes`, by the names of ours."""

    def slots(policy: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: module.Gate(policy(), module.Slots(SLOTS))

    def classes(inside: Callable[[], Any] = module.FIFO) -> Any:
        return module.Classes(4, inside, STARVATION)

    def fair() -> Any:
        return module.FairQueue(lambda ticket: ticket.tenant, lambda ticket: module.FIFO())

    def reserved() -> Any:
        return module.Gate(classes(), module.Reserved(SLOTS, (0, 2, 2, 2)))

    def of_tenant(i: int) -> Any:
        return module.Ticket(i, priority=i * 7919 % 101, tenant=i * 31 % FLOWS)

    def of_class(i: int) -> Any:
        return module.Ticket(i, cls=i * 7 % 4, priority=i * 7919 % 101, tenant=i * 31 % FLOWS)

    return {
        "Classes (4)": Shape(slots(classes), of_class),
        "Classes (4) + Reserved": Shape(reserved, of_class),
        FAIR: Shape(slots(fair), of_tenant),
        "Classes of FairQueues": Shape(slots(lambda: classes(fair)), of_class),
    }


class TrialSteady(Steady):
    """The same drive; it calls things by other names."""

    def __init__(self, module: ModuleType, shape: Shape, waiting: int, tickets: int) -> None:
        super().__init__(shape, waiting, tickets)
        self.started = module.RUNNING

    def waits(self, gate: Any) -> int:
        gate.log.clear()  # it writes down whom it started
        return int(gate.nw)
