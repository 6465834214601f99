"""The pure decision core: who goes next, and is there room?  No clock, no loop, no I/O."""

from fairlead.core.capacity import FULL, NEVER, STOP, Capacity, Halt, Hold
from fairlead.core.explain import Explanation
from fairlead.core.gate import Change, Gate
from fairlead.core.policy import Policy
from fairlead.core.ticket import Outcome, QueueLimit, State, Ticket
from fairlead.core.trace import Recorder, replay

__all__ = [
    "FULL",
    "NEVER",
    "STOP",
    "Capacity",
    "Change",
    "Explanation",
    "Gate",
    "Halt",
    "Hold",
    "Outcome",
    "Policy",
    "QueueLimit",
    "Recorder",
    "State",
    "Ticket",
    "replay",
]
