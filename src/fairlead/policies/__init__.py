"""Policies: who is next?  Pure; see `fairlead.core.policy` for the contract."""

from fairlead.policies.aging import Aging
from fairlead.policies.classes import Classes, Level
from fairlead.policies.fair import FairQueue
from fairlead.policies.fifo import FIFO
from fairlead.policies.planner import Planner

__all__ = ["Aging", "Classes", "FIFO", "FairQueue", "Level", "Planner"]
