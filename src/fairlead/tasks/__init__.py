"""The tasks door: coroutines and threads sharing bounded slots, with priorities that age."""

from fairlead.tasks.priority import Priority
from fairlead.tasks.scheduler import Scheduler
from fairlead.tasks.stats import SchedulerStats, WaitHistogram
from fairlead.tasks.submitting import BoundScheduler, Turn

__all__ = ["BoundScheduler", "Priority", "Scheduler", "SchedulerStats", "Turn", "WaitHistogram"]
