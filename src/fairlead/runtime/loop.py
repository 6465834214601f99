"""A gate on an event loop: the clock, the one timer, and telling tickets their verdicts.

The loop's own clock is the gate's, so that a virtual loop moves both.  There is one timer however many tickets
wait: at the gate's next wake-up.  Verdicts are carried out by the tickets themselves, which know what their door
does with them.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import types
from contextlib import nullcontext
from math import inf
from threading import get_ident
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from fairlead.core.ticket import Outcome, Ticket
from fairlead.errors import Misuse, PolicyError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
    from contextlib import AbstractContextManager

    from fairlead.core.gate import Change, Gate

# The task that a loop runs.  Before Python 3.12 this look-up is written in Python and costs three times as much.
task_of: Callable[[asyncio.AbstractEventLoop | None], asyncio.Task[Any] | None]
if sys.version_info >= (3, 12):
    task_of = asyncio.current_task
else:
    task_of = asyncio.tasks._current_tasks.get  # type: ignore[attr-defined]


@types.coroutine
def _end() -> Generator[Any, Any, None]:
    yield from ()


# Awaiting it goes on at once, any number of times; a coroutine made for each time costs more (benchmarks/flows.py).
_ended: Any = _end()
next(_ended, None)
NO_WAIT: Coroutine[Any, Any, None] = _ended

GATES: WeakSet[LoopGate] = WeakSet()


def _forget_threads() -> None:
    """After a fork the thread has the same number, and the loop seems to run the same task; neither is so."""
    for gate in GATES:
        gate.thread = 0


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_forget_threads)


class LoopGate:
    """A gate that belongs to one event loop, the first that uses it."""

    lock: AbstractContextManager[Any] = nullcontext()  # nobody else is there

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread = 0  # the one that last entered; no thread has this number
        GATES.add(self)
        self.clock: Callable[[], float] = _no_time
        self.blocked: set[object] = set()  # tasks that wait for room, to warn of self-deadlock
        self._timer: asyncio.TimerHandle | None = None
        self.timer_at = inf  # when the gate's `due` is earlier, `after` is to be called

    def enter(self, verb: str) -> None:
        """Make sure that the running loop is the one this gate belongs to."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise Misuse(
                f"{verb}() was called outside the event loop: call it from a coroutine, "
                "or use ThreadScheduler in code without one"
            ) from None
        if loop is self.loop:
            self.thread = get_ident()
            return
        if self.loop is not None and not (self.loop.is_closed() and not self.gate.active):
            raise Misuse(
                f"{verb}() was called from another event loop than the one this scheduler belongs to; "
                "make one scheduler per loop, or use ThreadScheduler between threads"
            )
        self.loop = loop
        self.thread = get_ident()
        stock = getattr(type(loop), "time", None) is asyncio.BaseEventLoop.time
        self.clock = time.monotonic if stock else loop.time  # the same clock, without the detour
        self._timer, self.timer_at = None, inf

    @property
    def entered(self) -> asyncio.AbstractEventLoop:
        """The loop this gate belongs to; it has been entered."""
        if self.loop is None:
            raise Misuse("the scheduler has not been used on any event loop yet")
        return self.loop

    def now(self) -> float:
        """Read the clock."""
        return self.clock()

    def after(self, changed: Iterable[Ticket]) -> None:
        """Follow up a verb: have each changed ticket carry out its verdict, and set the timer."""
        for ticket in changed:
            ticket.told()  # type: ignore[attr-defined]
        if self.gate.due < self.timer_at:
            self._arm()

    def offer(self, ticket: Ticket) -> None:
        """Ask for a turn; `ticket.state` is the answer."""
        changed = self.gate.offer(ticket, self.clock())
        if changed or self.gate.due < self.timer_at:
            self.after(changed)

    def finish(
        self, ticket: Ticket, outcome: Outcome = Outcome.OK, spent: float | None = None
    ) -> None:
        """End a ticket's work; what starts in its place is told.

        A policy that fails here fails for those who wait, not for the one who has finished.
        """
        changed: Sequence[Ticket] = ()
        try:
            changed = self.gate.finish(ticket, self.clock(), outcome, spent)
        except PolicyError as error:
            self.report(error)
        if changed or self.gate.due < self.timer_at:
            self.after(changed)

    def withdraw(self, tickets: Iterable[Ticket]) -> None:
        """Stop waiting."""
        try:
            changed = self.gate.withdraw(tickets, self.clock())
        except PolicyError as error:
            self.report(error)
            changed = ()
        self.after(changed)

    def adjust(self, change: Change) -> None:
        """Change a setting; what may start now is told."""
        changed: Sequence[Ticket] = ()
        try:
            changed = self.gate.adjust(change, self.clock())
        finally:
            self.after(changed)  # of a verb that fails, the next one tells what it had changed

    def rest(self) -> None:
        """Put the timer away: nothing waits any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self.timer_at = None, inf

    def _arm(self) -> None:
        self.rest()
        if self.loop is not None and not self.loop.is_closed():
            self.timer_at = self.gate.due
            self._timer = self.loop.call_at(self.timer_at, self._tick)

    def _tick(self) -> None:
        self._timer, self.timer_at = None, inf
        changed: Sequence[Ticket] = ()
        try:
            changed = self.gate.advance(self.clock())
        except PolicyError as error:
            self.report(error)
        self.gate.next_wakeup(self.clock())
        self.after(changed)

    def report(self, error: PolicyError) -> None:
        """Tell the loop's exception handler of a policy that failed."""
        if self.loop is not None:
            self.loop.call_exception_handler({"message": f"fairlead: {error}", "exception": error})


def _no_time() -> float:
    return 0.0  # no loop has been entered, so nothing has happened yet
