"""The pure decision core: who goes next, and is there room?  No clock, no loop, no I/O."""

from fairlead.core.capacity import FULL, NEVER, STOP, Capacity, Halt, Hold, Later
from fairlead.core.explain import Explanation
from fairlead.core.gate import Change, Gate
from fairlead.core.policy import Policy
from fairlead.core.ticket import Outcome, QueueLimit, State, Ticket
from fairlead.core.trace import Recorder, replay

__all__ = [
    "Capacity",
    "Change",
    "Explanation",
    "FULL",
    "Gate",
    "Halt",
    "Hold",
    "Later",
    "NEVER",
    "Outcome",
    "Policy",
    "QueueLimit",
    "Recorder",
    "STOP",
    "State",
    "Ticket",
    "replay",
]
