"""A gate between threads: one lock around the core, one timer thread while there is something to wait for.

Whoever calls a verb holds the lock for the length of the decision and carries the verdicts out itself.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from math import inf
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from fairlead.core.ticket import Outcome, Ticket
from fairlead.errors import Misuse, PolicyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fairlead.core.gate import Change, Gate

log = logging.getLogger("fairlead")


GATES: WeakSet[ThreadGate] = WeakSet()


def _note_fork() -> None:
    """In the child: what the parent has used is the parent's.  To ask for the process each time costs a system call."""
    for gate in GATES:
        if gate.entered:
            gate.entered, gate._forked = False, True


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_note_fork)


class ThreadGate:
    """A gate any thread may use; `clock` tells the time in seconds."""

    def __init__(self, gate: Gate, clock: Callable[[], float] = time.monotonic) -> None:
        self.gate = gate
        self.now = self.clock = clock
        self.guests = 0  # doors that have joined, beside the one that made it
        gate.capacity.thread_gate = self
        self.lock = threading.RLock()
        # For warning of self-deadlock: how often each thread holds room, and those that wait for more.
        self.owners: dict[object, int] = {}
        self.blocked: set[object] = set()
        self._sooner = threading.Condition(self.lock)
        self._timer: threading.Thread | None = None
        self.timer_at = inf  # when the gate's `due` is earlier, `after` is to be called
        self._resting = False
        self.entered = False  # used in this process
        self._forked = False  # used in another, of which this one is a fork
        GATES.add(self)

    def enter(self, verb: str) -> None:
        """Before the lock is taken: after a fork, locks and threads are those of the parent."""
        if self._forked:
            raise Misuse(
                f"{verb}() was called after a fork, in another process than the one this scheduler belongs to; "
                "make one scheduler per process"
            )
        self.entered = True

    def own(self) -> object:
        """Note that this thread holds room, once more; tell which thread it is.  The lock is held."""
        thread = threading.current_thread()
        self.owners[thread] = self.owners.get(thread, 0) + 1
        return thread

    def disown(self, thread: object) -> None:
        """Note that the room a thread took is given back, by whichever thread.  The lock is held."""
        self.owners[thread] -= 1
        if not self.owners[thread]:
            del self.owners[thread]

    def rest(self) -> None:
        """End the timer: nothing waits any more, and nothing will.  The lock is not held."""
        with self.lock:
            timer, self._resting = self._timer, True
            self._sooner.notify()
        if timer is not None:
            timer.join()

    def offer(self, ticket: Ticket) -> None:
        """Ask for a turn; the lock is held."""
        self._carry_out(self.gate.offer, ticket, self.now())

    def enlist(self, tickets: Iterable[Ticket]) -> None:
        """Ask for several turns at once; the lock is held."""
        self._carry_out(self.gate.enlist, tickets, self.now())

    def finish(
        self, ticket: Ticket, outcome: Outcome = Outcome.OK, spent: float | None = None
    ) -> None:
        """End a ticket's work; what starts in its place is told.  The lock is held.

        A policy that fails here fails for those who wait, not for the one who has finished.
        """
        try:
            self._carry_out(self.gate.finish, ticket, self.now(), outcome, spent)
        except PolicyError as error:
            self.report(error)

    def report(self, error: PolicyError) -> None:
        """Log that a policy failed."""
        log.error("a policy failed while work was being handed over", exc_info=error)

    def withdraw(self, tickets: Iterable[Ticket]) -> None:
        """Stop waiting.  The lock is held."""
        try:
            self._carry_out(self.gate.withdraw, tickets, self.now())
        except PolicyError:
            log.exception("a policy failed while work was being withdrawn")

    def adjust(self, change: Change) -> None:
        """Change a setting; what may start now is told.  The lock is held."""
        self._carry_out(self.gate.adjust, change, self.now())

    def rouse(self) -> bool:
        """Have the gate look at what has come from elsewhere; False if a thread is at it: rouse it again soon.

        For an event loop, which waits for no thread, however long a policy takes there.
        """
        if not self.lock.acquire(blocking=False):
            return False
        try:
            self._carry_out(self.gate.advance, self.now())
        except PolicyError:
            log.exception("a policy failed as room came from elsewhere")
        finally:
            self.lock.release()
        return True

    def _carry_out(self, verb: Callable[..., Sequence[Ticket]], *args: Any) -> None:
        changed: Sequence[Ticket] = ()
        try:
            changed = verb(*args)
        finally:
            self.after(changed)  # if the verb failed, the timer tells what it had changed by then

    def after(self, changed: Sequence[Ticket]) -> None:
        """Follow up a verb: have each changed ticket carry out its verdict, and set the timer.  The lock is held."""
        for ticket in changed:
            ticket.told()  # type: ignore[attr-defined]
        if self.gate.due < self.timer_at:
            self.timer_at = self.gate.due
            if self._timer is None:
                self._timer = threading.Thread(
                    target=self._tick, name="fairlead-timer", daemon=True
                )
                self._timer.start()
            else:
                self._sooner.notify()

    def _tick(self) -> None:
        with self.lock:
            while (wakes_at := self.gate.next_wakeup(self.now())) < inf and not self._resting:
                self.timer_at = wakes_at
                if wakes_at > self.now():
                    self._sooner.wait(min(wakes_at - self.now(), threading.TIMEOUT_MAX))
                else:
                    try:
                        self.after(self.gate.advance(self.now()))
                    except PolicyError:
                        log.exception("a policy failed as time passed")
            self._timer, self.timer_at = None, inf
