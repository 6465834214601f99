"""Lending slots of a pool to a door in another thread, or with another clock: the pool's side, on the pool's loop.

The door never touches the pool's gate, nor the pool the door's: each side counts, all its life, and tells the other its
counts.  Such as only rise can be told late and several at once; what was not seen yet is the difference.

A slot that a door wants, or has, is a ticket of the pool's gate that stands in for one of the door's: it waits in the
fair queue by door like any other, and which of its tickets is served with it the door decides when it is lent.
"""

from __future__ import annotations

from asyncio import _get_running_loop
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from fairlead.core.ticket import RUNNING, WAITING, Outcome, Ticket
from fairlead.errors import PolicyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fairlead.runtime.sharing import GatePool

BUSY = 0.001  # seconds after which a door is roused again that was busy
AGAIN = 1.0  # seconds after which what failed for another door's policy is tried again


class Said(NamedTuple):
    """What a door says: what it counted all its life, how many slots it lacks, and whether it goes on."""

    taken: int = 0  # slots it knows to be lent
    adopted: int = 0  # slots it has without asking, for tickets that ran already
    unused: int = 0  # slots it gave back because they came in vain
    given: int = 0  # slots it gave back because their tickets have ended
    wanted: int = 0
    open: bool = True


class Account:
    """What one gate of a door apart has of a pool."""

    def __init__(self, pool: GatePool, name: str, wake: Callable[[], bool]) -> None:
        self.pool = pool
        self.name = name
        self.lent = 0  # slots lent, all told; the door reads it
        self._wake = wake  # says whether the door was free to look
        self._said = Said()
        self._called = False
        self._waking = False
        self._done = Said()  # what was said when it was last heard
        self._waiting: dict[StandIn, None] = {}
        self._held: dict[StandIn, None] = {}

    def most(self) -> int:
        """How many slots there are, for whomever."""
        return self.pool.slots.total

    def say(self, said: Said) -> None:
        """Tell the pool what has changed; from the door's thread, and never waits."""
        if said == self._said:
            return
        self._said = said
        if _get_running_loop() is self.pool.runtime.loop:
            self._hear()  # nobody else is at the pool's gate
        elif not self._called:  # one call for all that is said until the pool listens
            self._called = True
            self.pool.post(self._hear)

    # On the pool's loop

    def _hear(self) -> None:
        self._called = False  # first: what is said from now on is another call
        said, done = self._said, self._done
        self._done = said
        self._adopt(said.adopted - done.adopted)
        on_its_way = self.lent - said.taken
        self._want(max(0, said.wanted - on_its_way) if said.open else 0)
        # Last, so that who wants a slot is known when one is given back.
        self._end(said.unused - done.unused, Outcome.LOST)
        self._end(said.given - done.given if said.open else len(self._held), Outcome.OK)

    def _adopt(self, number: int) -> None:
        if number:
            adopted = [StandIn(self) for _ in range(number)]
            for one in adopted:
                one.state, one.started_at = RUNNING, self.pool.runtime.now()
                self._held[one] = None
            self.pool.gate.adopt(adopted, self.pool.runtime.now())

    def _want(self, number: int) -> None:
        more = number - len(self._waiting)
        if more > 0:
            new = dict.fromkeys(StandIn(self) for _ in range(more))
            self._waiting |= new
            if not self._do(self.pool.gate.enlist, new):  # then none of them waits
                self._waiting = {one: None for one in self._waiting if one not in new}
                self.pool.runtime.entered.call_later(AGAIN, self._hear)
        elif more < 0:
            last = [one for one in self._waiting if one.state is WAITING][more:]
            for one in last:
                del self._waiting[one]
            self._do(self.pool.gate.withdraw, last)

    def _end(self, number: int, outcome: Outcome) -> None:
        ended = list(islice(self._held, number))
        for one in ended:
            del self._held[one]
        if ended:
            self._do(self.pool.gate.finish_all, ended, outcome)

    def _do(
        self, verb: Callable[..., Sequence[Ticket]], tickets: Iterable[StandIn], *more: Outcome
    ) -> bool:
        """Do a verb of the pool's gate; False if a policy, of whichever door, failed in it."""
        runtime = self.pool.runtime
        try:
            changed = verb(tickets, runtime.now(), *more)
        except PolicyError as error:
            runtime.report(error)
            runtime.after(())  # what it had changed by then is told by the next verb
            return False
        runtime.after(changed)
        return True

    def started(self, one: StandIn) -> None:
        """A slot is lent."""
        del self._waiting[one]
        self._held[one] = None
        self.lent += 1
        if not self._said.open:
            self.pool.post(self._hear)  # nobody there will use it
        elif not self._waking:  # one call for all that are lent in this turn of the loop
            self._waking = True
            self.pool.runtime.entered.call_soon(self._rouse)

    def _rouse(self) -> None:
        self._waking = self.lent > self._said.taken and not self._wake()
        if self._waking:
            self.pool.runtime.entered.call_later(BUSY, self._rouse)


class StandIn(Ticket):
    """A slot that a door wants, or has."""

    __slots__ = ("_account", "member")

    def __init__(self, account: Account) -> None:
        super().__init__()
        self._account = account
        self.member = account.name

    def told(self) -> None:
        """Carry out the verdict; there is but one, for it waits as long as it takes."""
        self._account.started(self)
