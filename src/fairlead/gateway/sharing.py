"""One capacity for several gateways, kept by a Redis or Valkey.

Each gateway borrows slots as its requests need them and gives back what it does not use (`fairlead.ledger`), so a turn
is decided here, with what was lent, and the sum over all gateways stays within the capacity of the fleet.  Between
gateways the ledger shares by class, a higher one counting many times as much, then by tenant; within one, classes,
reservations and preemption are what they always are, over the slots that it was lent.

Slots that no gateway needs are lent too, in equal parts.  In a loss each gateway keeps what it was lent, so the sum
stays within the capacity whatever becomes of the ledger and in whatever order gateways find it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.capacities import LeasedSlots
from fairlead.errors import ConfigError
from fairlead.gateway.reservations import gate_name
from fairlead.gateway.settings import CLASSES

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Hashable

    from fairlead.core import Ticket
    from fairlead.gateway.settings import SharedCapacity
    from fairlead.ledger.slots_lease import SlotsLease
    from fairlead.runtime import LoopGate

NAME = "shared slots"
# Seconds, beside the two for which what was lent may be used, after which the requests of a gateway that has fallen
# silent are taken to have ended with it.
SILENT = 3.0
LONGEST_START, LOOK = 1.5, 0.05  # seconds for the other gateways to give back; between two looks
STEP = 16.0  # how many times as much a class counts as the one below it


def claim_of(ticket: Ticket) -> tuple[Hashable, float, Hashable]:
    """Tell what a request counts for among gateways: its class, that one's weight, and the tenant."""
    return CLASSES[ticket.rank], STEP**ticket.rank, ticket.tenant


class SharedSlots(LeasedSlots):
    """Slots that are lent; nobody is evicted here for a slot that the ledger may have to lend."""

    def refusal(self, ticket: Ticket, now: float, without: Ticket | None = None) -> Hashable | None:
        if without is not None and not self._has_been_short():
            without = None
        return super().refusal(ticket, now, without)

    def _has_been_short(self) -> bool:
        """Whether the ledger's last answer was that there is no more; without it there is no more either."""
        loan = self._loans.get(self.name)
        return self.mode != "leased" or (loan is not None and loan.short)


class Sharing:
    """The ledger of a gateway, and a lease on it for each pool."""

    def __init__(self, settings: SharedCapacity) -> None:
        try:
            from fairlead.ledger.ledger import Ledger  # redis-py takes its time to load
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"shared_capacity needs {error.name}: pip install 'fairlead[flows]'"
            ) from None
        self.settings = settings
        self.ledger = Ledger(settings.redis, "gateway", prefix=f"fairlead-gateway:{settings.name}")
        self.begun = False
        self._leases: dict[str, SlotsLease] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    def slots(self) -> LeasedSlots:
        """Make the part of a pool's capacity that is lent."""
        return SharedSlots(0, flow=claim_of, name=NAME, keeps=True)

    def join(self, pool: str, slots: LeasedSlots, gate: LoopGate) -> None:
        """Keep a pool's slots in common with the pools of that name elsewhere."""
        loss = self.settings.on_loss
        name = gate_name(pool)
        lease = self.ledger.concurrency(name, slots, 0, SILENT, loss, adjust=gate.adjust)
        self._leases[pool] = lease

    def resize(self, pool: str, total: int) -> None:
        """Follow the fleet: so many slots there are for all gateways together."""
        lease = self._leases[pool]
        if lease.max_concurrency != total:
            lease.resize(total)

    def leave(self, pool: str) -> None:
        """Share a pool no longer: it is no more."""
        import asyncio

        lease = self._leases.pop(pool)
        if self.begun:
            leaving = asyncio.get_running_loop().create_task(self.ledger.remove(lease))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
        else:
            self.ledger.leases.remove(lease)

    def begin(self) -> None:
        """Start to borrow, on the running loop; nothing is lent before."""
        if not self.begun:
            self.begun = True
            self.ledger.begin()

    async def start(self) -> None:
        """Start to borrow, and wait until this gateway has its part, for at most `LONGEST_START`."""
        import asyncio

        self.begin()
        until = asyncio.get_running_loop().time() + LONGEST_START
        while await self.ledger.answered():
            leases = self._leases.values()
            if all(lease.settled or lease.lost for lease in leases):
                return
            if asyncio.get_running_loop().time() >= until:
                return
            await asyncio.sleep(LOOK)

    async def stop(self) -> None:
        """Give everything back."""
        await self.ledger.stop()

    def describe(self) -> dict[str, Any]:
        """Tell how it stands, for people and metrics."""
        return self.ledger.describe()
