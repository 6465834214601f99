"""A gate on an event loop: the clock, the one timer, and telling tickets their verdicts.

The loop's own clock is the gate's, so that a virtual loop moves both.  There is one timer however many tickets wait: at the gate's
next wake-up.  Verdicts are carried out by the tickets themselves, which know what their door does with them.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING

from fairlead.core.ticket import Outcome, Ticket
from fairlead.errors import Misuse, PolicyError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlead.core.gate import Change, Gate


class LoopTicket(Ticket):
    """A ticket that can be told its verdict."""

    __slots__ = ()

    def told(self) -> None:
        """Carry out the verdict the gate has just written."""
        raise NotImplementedError


class LoopGate:
    """A gate that belongs to one event loop, the first that uses it."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.loop: asyncio.AbstractEventLoop | None = None
        self.owners: dict[object, Ticket] = {}  # the tasks that hold room, for warning of self-deadlock
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf

    def enter(self, verb: str) -> asyncio.AbstractEventLoop:
        """Tell the running loop; it has to be the one this gate belongs to."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise Misuse(
                f"{verb}() was called outside the event loop: call it from a coroutine, "
                "or use ThreadScheduler in code without one"
            ) from None
        if loop is not self.loop:
            if self.loop is not None and not (self.loop.is_closed() and not self.gate.active):
                raise Misuse(
                    f"{verb}() was called from another event loop than the one this scheduler belongs to; "
                    "make one scheduler per loop, or use ThreadScheduler between threads"
                )
            self.loop = loop
            self._timer, self._timer_at = None, inf
        return loop

    @property
    def entered(self) -> asyncio.AbstractEventLoop:
        """The loop this gate belongs to; it has been entered."""
        if self.loop is None:
            raise Misuse("the scheduler has not been used on any event loop yet")
        return self.loop

    def now(self) -> float:
        """Read the clock."""
        return self.loop.time() if self.loop is not None else 0.0

    def offer(self, ticket: LoopTicket) -> None:
        """Ask for a turn; the answer is the ticket's state."""
        gate = self.gate
        changed = gate.offer(ticket, self.loop.time())  # type: ignore[union-attr]
        if changed:
            self.tell(changed)
        if gate.due < self._timer_at:
            self._arm()

    def finish(self, ticket: Ticket, outcome: Outcome = Outcome.OK) -> None:
        """End a ticket's work; what starts in its place is told."""
        self.tell(self.release(ticket, outcome))

    def release(self, ticket: Ticket, outcome: Outcome = Outcome.OK) -> Iterable[Ticket]:
        """End a ticket's work and leave the telling to the caller.

        A policy that fails here fails for those who wait, not for the one who has finished: it is reported to the
        loop's exception handler, and the room has been given back.
        """
        gate = self.gate
        try:
            changed = gate.finish(ticket, self.now(), outcome)
        except PolicyError as error:
            self._report(error)
            changed = ()
        if gate.due < self._timer_at:
            self._arm()
        return changed

    def withdraw(self, tickets: Iterable[Ticket]) -> None:
        """Stop waiting."""
        try:
            changed = self.gate.withdraw(tickets, self.now())
        except PolicyError as error:
            self._report(error)
            changed = ()
        self.tell(changed)
        if self.gate.due < self._timer_at:
            self._arm()

    def adjust(self, change: Change) -> None:
        """Change a setting; what may start now is told."""
        self.tell(self.gate.adjust(change, self.now()))
        if self.gate.due < self._timer_at:
            self._arm()

    def tell(self, changed: Iterable[Ticket]) -> None:
        """Have each ticket carry out its verdict."""
        for ticket in changed:
            ticket.told()  # type: ignore[attr-defined]

    def rest(self) -> None:
        """Put the timer away: nothing waits any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, inf

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = self.gate.due
        if self._timer_at < inf and self.loop is not None and not self.loop.is_closed():
            self._timer = self.loop.call_at(self._timer_at, self._tick)

    def _tick(self) -> None:
        self._timer, self._timer_at = None, inf
        try:
            self.tell(self.gate.advance(self.now()))
        except PolicyError as error:
            self._report(error)
        self.gate.next_wakeup(self.now())
        if self.gate.due < inf:
            self._arm()

    def _report(self, error: PolicyError) -> None:
        if self.loop is not None:
            self.loop.call_exception_handler({"message": f"fairlead: {error}", "exception": error})
