"""Fairlead decides who goes next when there is not room for everyone."""

from fairlead.capacities import Both, InFlight, Pools, Reserved, Slots, TokenBucket
from fairlead.core import Capacity, Gate, Policy, Ticket
from fairlead.errors import (
    ConfigError,
    FairleadError,
    Misuse,
    PolicyError,
    Preempted,
    QueueFull,
    Refused,
    SelfDeadlockWarning,
    ShuttingDown,
    WaitedTooLong,
)
from fairlead.policies import FIFO, Aging, Classes, FairQueue, Level, Planner
from fairlead.tasks import Dag, Priority, Scheduler, SharedPool, ThreadScheduler

__version__ = "0.1.0"

__all__ = [
    "Aging",
    "Both",
    "Capacity",
    "Classes",
    "ConfigError",
    "Dag",
    "FIFO",
    "FairQueue",
    "FairleadError",
    "Gate",
    "InFlight",
    "Level",
    "Misuse",
    "Planner",
    "Policy",
    "PolicyError",
    "Pools",
    "Preempted",
    "Priority",
    "QueueFull",
    "Refused",
    "Reserved",
    "Scheduler",
    "SelfDeadlockWarning",
    "SharedPool",
    "ShuttingDown",
    "Slots",
    "ThreadScheduler",
    "Ticket",
    "TokenBucket",
    "WaitedTooLong",
    "__version__",
]
