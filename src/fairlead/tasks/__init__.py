"""The tasks door: coroutines and threads sharing bounded slots, with priorities that age."""

from fairlead.tasks.blocking import BoundThreadScheduler
from fairlead.tasks.dag import Dag, Node
from fairlead.tasks.pool import SharedPool
from fairlead.tasks.priority import Priority
from fairlead.tasks.scheduler import Scheduler
from fairlead.tasks.stats import SchedulerStats, WaitHistogram
from fairlead.tasks.submitting import BoundScheduler, Turn
from fairlead.tasks.threads import ThreadScheduler

__all__ = [
    "BoundScheduler",
    "BoundThreadScheduler",
    "Dag",
    "Node",
    "Priority",
    "Scheduler",
    "SchedulerStats",
    "SharedPool",
    "ThreadScheduler",
    "Turn",
    "WaitHistogram",
]
