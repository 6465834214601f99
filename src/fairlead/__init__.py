"""Fairlead decides who goes next when there is not room for everyone."""

from fairlead.core import Capacity, Gate, Policy, Ticket
from fairlead.errors import (
    FairleadError,
    Misuse,
    PolicyError,
    QueueFull,
    Refused,
    ShuttingDown,
    WaitedTooLong,
)
from fairlead.tasks import Priority, Scheduler

__version__ = "0.1.0"
