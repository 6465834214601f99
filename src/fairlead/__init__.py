"""Fairlead decides who goes next when there is not room for everyone.

Names are loaded when they are first used, so that the `fairlead` command can answer a signal within milliseconds.
"""

TYPE_CHECKING = False  # as of `typing`, which would take longer to load than all of this

if TYPE_CHECKING:
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

_HOMES = {
    "fairlead.capacities": ("Both", "InFlight", "Pools", "Reserved", "Slots", "TokenBucket"),
    "fairlead.core": ("Capacity", "Gate", "Policy", "Ticket"),
    "fairlead.errors": (
        "ConfigError",
        "CycleFound",
        "FairleadError",
        "GraphError",
        "Misuse",
        "NeverFits",
        "PolicyError",
        "Preempted",
        "QueueFull",
        "Refused",
        "SelfDeadlockWarning",
        "ShuttingDown",
        "WaitedTooLong",
    ),
    "fairlead.policies": ("Aging", "Classes", "FIFO", "FairQueue", "Level", "Planner"),
    "fairlead.tasks": ("Dag", "Priority", "Scheduler", "SharedPool", "ThreadScheduler"),
}
_PARTS = frozenset(
    ("capacities", "config", "core", "errors", "observe", "policies", "runtime", "tasks")
)


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _PARTS:
        return import_module(f"fairlead.{name}")
    for home, names in _HOMES.items():
        if name in names:
            globals()[name] = found = getattr(import_module(home), name)
            return found
    raise AttributeError(f"module 'fairlead' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
