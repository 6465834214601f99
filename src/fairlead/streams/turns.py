"""Slots of a pool for an app with a scheduler of its own, which has no gate.

The scheduler decides when a batch enters the queue, and the queue keeps that order; before a worker takes a batch, it
needs a slot of the pool as well.  What waits for one has no worker, so the farewells of partitions pass it by.

The gate has the queue's own lock: either may be entered from the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.capacities import Slots
from fairlead.core import Outcome, State
from fairlead.policies import FIFO
from fairlead.runtime import ThreadGate
from fairlead.streams.gating import BatchTicket
from fairlead.streams.jobs import CONSUMPTION

if TYPE_CHECKING:
    from fairlead.runtime import MakeGate
    from fairlead.streams.jobs import Job
    from fairlead.streams.queue import JobsQueue


class Turns:
    """Who has a slot, and who waits for one.  All under the queue's lock."""

    def __init__(self, queue: JobsQueue, make: MakeGate) -> None:
        self._queue = queue
        workers = Slots(queue.concurrency, name="workers")
        self.gate = ThreadGate(make(FIFO(), workers), queue.clock, queue.mutex)

    def taken(self, job: Job) -> bool:
        """Say whether a job may run; if not, the queue has it back when it may."""
        if job.kind is not CONSUMPTION:
            return True
        if job.ticket is None:
            job.ticket = BatchTicket(job, self, None)
            self.gate.offer(job.ticket)
        return job.ticket.state is State.RUNNING

    def decided(self, ticket: BatchTicket) -> None:
        """A ticket that waited may start."""
        if ticket.state is State.RUNNING:
            self._queue.may_run(ticket.work)

    def leave(self, job: Job, outcome: Outcome = Outcome.OK) -> None:
        """A job has ended, or will not run: what it has, or waits for, others may have."""
        ticket, job.ticket = job.ticket, None
        if ticket is None:
            return
        if ticket.state is State.WAITING:
            self.gate.withdraw([ticket])
        elif ticket.state is State.RUNNING:
            self.gate.finish(ticket, outcome)

    def waiting(self) -> list[Job]:
        """Tell the jobs that wait for a slot."""
        return [ticket.work for ticket in self.gate.gate.waiters()]

    def explain(self, job: Job, now: float) -> str | None:
        """Say why a job waits here; None if it does not."""
        with self.gate.lock:
            ticket = job.ticket
            if ticket is None or ticket.state is not State.WAITING:
                return None
            return self.gate.gate.explain(ticket, now).text

    def close(self) -> None:
        """Give everything back: nothing runs any more."""
        with self.gate.lock:
            for ticket in [*self.gate.gate.waiters(), *self.gate.gate.holders]:
                self.leave(ticket.work, Outcome.LOST)
        self.gate.rest()
