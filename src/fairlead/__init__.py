"""Fairlead decides who goes next when there is not room for everyone."""

from fairlead import observe
from fairlead.capacities import Both, InFlight, Pools, Reserved, Slots, TokenBucket
from fairlead.core import Capacity, Gate, Policy, Ticket
from fairlead.errors import (
    ConfigError,
    CycleFound,
    FairleadError,
    GraphError,
    Misuse,
    NeverFits,
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
    "CycleFound",
    "Dag",
    "FIFO",
    "FairQueue",
    "FairleadError",
    "Gate",
    "GraphError",
    "InFlight",
    "Level",
    "Misuse",
    "NeverFits",
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
    "observe",
]
