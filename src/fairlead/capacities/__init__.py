"""Capacities: is there room?  Pure; see `fairlead.core.capacity` for the contract."""

from fairlead.capacities.both import Both
from fairlead.capacities.bucket import TokenBucket
from fairlead.capacities.inflight import InFlight, Pools
from fairlead.capacities.leased import LeasedTokens
from fairlead.capacities.leased_slots import LeasedSlots
from fairlead.capacities.reserved import Reserved
from fairlead.capacities.slots import Slots
from fairlead.capacities.unlimited import Unlimited

__all__ = [
    "Both",
    "InFlight",
    "LeasedSlots",
    "LeasedTokens",
    "Pools",
    "Reserved",
    "Slots",
    "TokenBucket",
    "Unlimited",
]
