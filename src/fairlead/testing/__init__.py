"""For tests, ours and yours: a self-checking gate, contract suites, time under control, a Kafka broker in memory."""

from fairlead.testing.checked import CheckedGate
from fairlead.testing.clock import ManualClock, VirtualLoop, run_virtual
from fairlead.testing.contracts import CapacityContract, PolicyContract, drive
from fairlead.testing.streams import MemoryBroker

__all__ = [
    "CapacityContract",
    "CheckedGate",
    "ManualClock",
    "MemoryBroker",
    "PolicyContract",
    "VirtualLoop",
    "drive",
    "run_virtual",
]
