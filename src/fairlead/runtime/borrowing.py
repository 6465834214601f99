"""A gate that uses slots of a pool which lives elsewhere: the door's side, in the door's own thread and time.

Beside what its own capacity says, each ticket that runs has a slot of the pool.  The gate asks for slots when a ticket
has room of its own and lacks one, and for no more than may be used: as many as it has just given back, or one, and
while all that come are used and still a ticket lacks one, twice as many each time.  What came and cannot be used goes
back in the same verb.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.capacities.borrowed import Borrowing, Lent
from fairlead.core import Change, Gate
from fairlead.errors import PolicyError
from fairlead.runtime.lending import Account, Said
from fairlead.runtime.viewing import GateView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fairlead.core import Capacity, Policy, Ticket
    from fairlead.runtime.making import MakeGate


class BorrowingGate(GateView):
    """A gate of a door apart; whoever wakes the door has it call `advance`."""

    def __init__(
        self, account: Account, policy: Policy, own: Capacity, make: MakeGate = Gate
    ) -> None:
        self._account = account
        self._lent = Lent(account.pool.name, account.most)
        super().__init__(make(policy, Borrowing(own, self._lent)))
        self.policy = policy
        self.capacity = own  # what the door reads and changes is its own
        self._reach = 1  # how many slots are asked for at most
        self._given = 0  # slots that were given back after use, when this was last looked at
        self._adopted = 0  # tickets that ran before anybody lent them a slot
        self._open = True

    def next_wakeup(self, now: float) -> float:
        lent = self._account.lent > self._lent.taken
        return self._core.now if lent else self._core.next_wakeup(now)

    def advance(self, now: float) -> Sequence[Ticket]:
        """Let time pass, and use what was lent; on the pool's own loop also what is lent on asking for more."""
        if self._account.lent == self._lent.taken:
            return super().advance(now)
        started: list[Ticket] = []
        while slots := self._account.lent - self._lent.taken:
            try:
                started += self._do(self._use, slots, now)
            except PolicyError:
                if not started:
                    raise
                break  # those are to be told; what failed fails again, and says so, in another verb
        return started

    def _use(self, slots: int, now: float) -> Sequence[Ticket]:
        self._lent.short = False  # a policy that fails is not to be given the next slot at once
        started = self._core.adjust(Change(self._lent.name, "lend", (slots,)), now)
        if self._lent.short:
            self._reach = min(2 * self._reach, max(1, self._account.most()))
        return started

    def surrender(self) -> list[Ticket]:
        """Give up the tickets that run, and every slot."""
        tickets = self._core.surrender()
        self._open = False
        self._say()
        return tickets

    def adopt(self, tickets: Iterable[Ticket], now: float) -> None:
        """Take over tickets that run already; each has a slot from now on, above the limit if need be."""
        self._core.adopt(tickets, now)
        self._adopted -= self._lent.spare
        self._lent.spare = 0
        self._say()

    def _do(self, verb: Callable[..., Sequence[Ticket]], *args: Any) -> Sequence[Ticket]:
        try:
            return verb(*args)
        finally:  # also of a verb that failed half way
            self._say()

    def _say(self) -> None:
        lent, waiting = self._lent, self._core.waiting
        lent.return_spare()
        freed, self._given = lent.given - self._given, lent.given
        self._reach = max(self._reach, freed) if lent.short and waiting else 1
        wanted = min(waiting, self._reach) if lent.short else 0
        counts = (lent.taken, self._adopted, lent.unused, lent.given)
        self._account.say(Said(*counts, wanted, self._open))
