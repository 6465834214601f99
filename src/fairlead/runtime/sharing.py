"""A pool of slots that several doors share: one gate, and in it a fair queue by door.

Two gates on one capacity starve each other, so doors that share one share the gate.  A door knows nothing of that: what
it is given to make its gate with (`GatePool.member`) gives it a view of the shared gate, in which its own policy orders
its own tickets and its own capacity, if it has one, limits them; the slots of the pool are limited for all, and go to
doors in proportion to their weights.  Such doors live on one event loop, and go by its clock.

A door with a thread or a clock of its own keeps a gate of its own, and borrows slots (`GatePool.borrower`): in the
shared gate a stand-in waits for, and holds, each slot that it uses.
"""

from __future__ import annotations

from asyncio import _get_running_loop
from math import inf
from typing import TYPE_CHECKING, Any

from fairlead.capacities import Both, Slots, Unlimited
from fairlead.core import Capacity, Change, Gate, Policy
from fairlead.core.part import claim
from fairlead.errors import ConfigError, Misuse
from fairlead.policies import FIFO
from fairlead.runtime.borrowing import BorrowingGate
from fairlead.runtime.joining import APART, Doors, Rooms, Told, name_of
from fairlead.runtime.lending import Account
from fairlead.runtime.loop import LoopGate
from fairlead.runtime.viewing import GateView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fairlead.core import Ticket
    from fairlead.runtime.joining import Member
    from fairlead.runtime.making import MakeGate


class GatePool:
    """Slots for several doors.

    >>> from fairlead import Scheduler
    >>> pool = GatePool(8)
    >>> api = Scheduler.bounded(gate=pool.member("api", weight=3))
    >>> reports = Scheduler.bounded(gate=pool.member("reports"))
    """

    def __init__(
        self,
        slots: int,
        *,
        name: str = "pool",
        gate: MakeGate = Gate,
        runtime: Callable[[Gate], LoopGate] = LoopGate,
    ) -> None:
        self.name = name
        self.slots = Slots(slots, name=f"slots of {name}")
        self.members: dict[str, Member] = {}
        self._doors = Doors(self.members)
        self._rooms = Rooms(self.members)
        self.gate = gate(self._doors, Both(self.slots, self._rooms))
        self.runtime = runtime(self.gate)  # keeps time for all

    def member(self, name: str, weight: float = 1.0) -> MakeGate:
        """What a door makes its gate with; under load doors get slots in proportion to their weights."""
        self._admit(name, weight)

        def make(policy: Policy, capacity: Capacity) -> Gate:
            former = self.members.get(name)
            if isinstance(former, MemberGate) and (former.holders or former.waiting):
                raise ConfigError(
                    f"{name} has tickets in {self.name}: give each gate a name of its own; "
                    "one that cannot be changed as it stands needs a new start"
                )
            return MemberGate(self, name, policy, capacity)

        return make

    def borrower(
        self,
        name: str,
        weight: float = 1.0,
        *,
        wake: Callable[[], None] | None = None,
        gate: MakeGate = Gate,
    ) -> MakeGate:
        """What a door with a thread or a clock of its own makes its gate with, of the kind `gate`.

        When slots were lent, `wake` is called on the pool's loop: the door is to call `advance` of its gate soon.  A
        door whose gate stands in a `ThreadGate` needs none.
        """
        self._admit(name, weight)
        self.members[name] = Borrower(name)

        def make(policy: Policy, capacity: Capacity) -> Gate:
            if self.runtime.loop is None:
                self.runtime.enter(name)

            def rouse() -> bool:
                if wake is None:
                    return bool(made.capacity.thread_gate.rouse())
                wake()
                return True

            account = Account(self, name, rouse)
            made = BorrowingGate(account, policy, capacity, gate)
            return made

        return make

    def _admit(self, name: str, weight: float) -> None:
        if APART in name or not name:
            raise ConfigError(f"a member of a pool needs a name without {APART!r}; got {name!r}")
        self._doors.set_weight(name, weight)

    def post(self, deed: Callable[[], None]) -> None:
        """Have something done on the pool's loop; from any thread."""
        try:
            self.runtime.entered.call_soon_threadsafe(deed)
        except RuntimeError:
            pass  # the loop has ended, and with it everybody who could want a slot

    def resize(self, slots: int) -> None:
        """Change the number of slots all doors share."""
        self.runtime.adjust(Change(self.slots.name, "resize", (slots,)))

    def set_weight(self, name: str, weight: float) -> None:
        """Change the weight of a member; it counts from the next start on."""
        self._doors.set_weight(name, weight)


class Borrower:
    """A door that takes part by stand-ins: the pool's slots are all that it waits for here."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.policy: Policy = FIFO()
        self.capacity: Capacity = Unlimited()


class MemberGate(GateView):
    """A door's view of the gate it shares: verbs go there, and of what they change this door is told its own."""

    def __init__(self, pool: GatePool, name: str, policy: Policy, capacity: Capacity) -> None:
        claim(policy, capacity)
        super().__init__(pool.gate)
        self.pool = pool
        self.name = name
        self.policy = policy
        self.capacity = capacity
        capacity.report_to(Told(name, pool.gate.capacity.opened))
        pool.members[name] = self

    # What doors read.  The pool keeps time for all, so to a door nothing is ever due.

    due = inf

    @property
    def waiting(self) -> int:  # type: ignore[override]
        return len(self.waiters())

    @property
    def holders(self) -> dict[Ticket, bool]:  # type: ignore[override]
        return {one: watched for one, watched in self._core.holders.items() if self._is_mine(one)}

    def waiters(self) -> list[Ticket]:
        return [one for one in self._core.waiters() if self._is_mine(one)]

    def next_wakeup(self, now: float) -> float:
        return inf

    # The verbs

    def offer(self, ticket: Ticket, now: float) -> Sequence[Ticket]:
        ticket.member = self.name  # type: ignore[attr-defined]
        return super().offer(ticket, now)

    def enlist(self, tickets: Iterable[Ticket], now: float) -> Sequence[Ticket]:
        return super().enlist(self._mark(tickets), now)

    def adjust(self, change: Change, now: float) -> Sequence[Ticket]:
        return super().adjust(change._replace(part=f"{self.name}{APART}{change.part}"), now)

    def surrender(self) -> list[Ticket]:
        raise Misuse(
            f"what {self.name} runs belongs to {self.pool.name}, which it shares: such a change needs a new start"
        )

    def adopt(self, tickets: Iterable[Ticket], now: float) -> None:
        super().adopt(self._mark(tickets), now)

    def _mark(self, tickets: Iterable[Ticket]) -> list[Ticket]:
        tickets = list(tickets)
        for ticket in tickets:
            ticket.member = self.name  # type: ignore[attr-defined]
        return tickets

    def _is_mine(self, ticket: Ticket) -> bool:
        return name_of(ticket) == self.name

    def _do(self, verb: Callable[..., Sequence[Ticket]], *args: Any) -> Sequence[Ticket]:
        """Do a verb, tell the tickets of other doors what became of them, and set the clock that all share."""
        changed = verb(*args)
        mine = [ticket for ticket in changed if self._is_mine(ticket)]
        runtime = self.pool.runtime
        running = _get_running_loop()
        if running is not None and running is not runtime.loop:
            runtime.enter(self.name)
        runtime.after([ticket for ticket in changed if not self._is_mine(ticket)])
        return mine
