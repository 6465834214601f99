"""For tests, ours and yours: a self-checking gate, contract suites, and time under control."""

from fairlead.testing.checked import CheckedGate
from fairlead.testing.clock import ManualClock, VirtualLoop, run_virtual
from fairlead.testing.contracts import CapacityContract, PolicyContract, drive

__all__ = [
    "CapacityContract",
    "CheckedGate",
    "ManualClock",
    "PolicyContract",
    "VirtualLoop",
    "drive",
    "run_virtual",
]
