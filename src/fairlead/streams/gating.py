"""The built-in scheduler: a gate, as at every other door.

A batch is a ticket: workload = topic, key = (topic, partition), cost = number of messages, estimate = what batches of
its topic took, per message.  The gate's policy says which batch is next and its capacity whether there is room; a batch
that has to wait is locked, and released when the gate starts it.  The listener keeps the next batch of each partition
waiting here, so priorities and weights hold across polls.

A batch cannot be dropped.  If a policy or a capacity refuses one for good, it is pushed without room, and that is said.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fairlead.capacities import Both, Slots
from fairlead.core import Change, Gate, Outcome, State, Ticket
from fairlead.errors import ConfigError, StreamMisuse
from fairlead.runtime import ThreadGate
from fairlead.streams.ordering import TopicOrder
from fairlead.streams.room import AppWorkers
from fairlead.streams.scheduler import StreamScheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fairlead.core import Capacity, Policy
    from fairlead.runtime import MakeGate
    from fairlead.streams.jobs import Job
    from fairlead.streams.queue import JobsQueue

log = logging.getLogger("fairlead.streams")

WAITING, RUNNING = State.WAITING, State.RUNNING
MEMORY = 0.2  # how much the latest batch weighs in a topic's seconds per message


class BatchTicket(Ticket):
    """The ticket of a batch."""

    __slots__ = ("partition", "scheduler", "topic")

    def __init__(self, job: Job, scheduler: GateScheduler, estimate: float | None) -> None:
        super().__init__(
            (job.topic, job.partition),
            job.priority,
            job.cost,
            job,
            tenant=job.tenant,
            workload=job.topic,
            pool=job.group_id,
            estimate=estimate,
            deadline=job.deadline,
            rank=job.rank,
        )
        self.topic = job.topic
        self.partition = job.partition
        self.scheduler = scheduler

    def __repr__(self) -> str:
        return f"{self.topic}[{self.partition}]"

    def told(self) -> None:
        """Carry out what the gate has decided since."""
        self.scheduler.decided(self)


class GateScheduler(StreamScheduler):
    """Join the jobs queue to a gate."""

    buffered = True
    inline = True

    def __init__(
        self,
        queue: JobsQueue,
        *,
        policy: Policy | None = None,
        capacity: Capacity | None = None,
        weights: Mapping[str, float] | None = None,
        gate: MakeGate = Gate,
    ) -> None:
        super().__init__(queue)
        self._make_gate = gate
        self.inline = policy is None
        joined = self._join(capacity, policy, weights or {})
        if policy is None:
            policy = TopicOrder(weights or {})
        self.gate = self._own(capacity, policy) if joined is None else joined
        self._pace: dict[str, float] = {}  # seconds per message, by topic
        self._refused: set[str] = set()

    def _own(self, capacity: Capacity | None, policy: Policy) -> ThreadGate:
        clock = self.queue.clock
        if capacity is None:
            slots = Slots(self.concurrency, name="workers")
            return ThreadGate(self._make_gate(policy, slots), clock)
        workers = AppWorkers()
        workers.admit_app(self, self.concurrency)
        gate = ThreadGate(self._make_gate(policy, Both(workers, capacity)), clock)
        capacity.thread_gate = gate
        return gate

    def _join(
        self, capacity: Capacity | None, policy: Policy | None, weights: Mapping[str, float]
    ) -> ThreadGate | None:
        """Join the gate that a capacity has already: one capacity, one gate, also between doors."""
        gate: ThreadGate | None = None if capacity is None else capacity.thread_gate
        if gate is None:
            return None
        if self._make_gate is not Gate:
            raise ConfigError(
                "capacity: it has a gate already, and cannot have one in a pool or under watch as well; "
                "give the app a capacity of its own"
            )
        if policy is not None:
            raise ConfigError(
                "policy: the capacity is shared and has a gate already, whose policy orders all; give no policy"
            )
        with gate.lock:
            gate.guests += 1
            core = gate.gate
            if isinstance(core.policy, TopicOrder):
                core.policy.weights.update(weights)
            else:
                self.inline = False
            if core.capacity.part(AppWorkers.called) is not None:
                gate.adjust(Change(AppWorkers.called, "admit_app", (self, self.concurrency)))
        return gate

    def on_schedule_consumption(self, jobs: Sequence[Job]) -> None:
        self.schedule_consumption(jobs)  # under the gate's lock

    def schedule_consumption(self, jobs: Sequence[Job]) -> None:
        pace, gate = self._pace, self.gate
        tickets = []
        for job in jobs:
            each = pace.get(job.topic)
            estimate = None if each is None else each * len(job.messages)
            job.ticket = BatchTicket(job, self, estimate)
            tickets.append(job.ticket)
        with gate.lock:
            if len(tickets) == 1:
                gate.offer(tickets[0])
                if tickets[0].state is not WAITING:
                    self._begin(tickets[0])
                elif not self._did(self.queue.lock, jobs[0]):
                    gate.withdraw(tickets)
                return
            waiting = [ticket for ticket in tickets if self._did(self.queue.lock, ticket.work)]
            gate.enlist(waiting)

    def _did(self, verb: Callable[[Job], None], job: Job) -> bool:
        """Do something with a job, unless its group has just started anew."""
        try:
            verb(job)
        except StreamMisuse:
            if not job.cleared:
                raise
            return False
        return True

    def _begin(self, ticket: BatchTicket) -> None:
        job: Job = ticket.work
        if ticket.state is not RUNNING:
            self._warn(ticket)
        begun = self._did(self.queue.release if job.locked else self.queue.push, job)
        if not begun and ticket.state is RUNNING:
            self.gate.finish(ticket, Outcome.LOST)

    def decided(self, ticket: BatchTicket) -> None:
        """A ticket that waited may start, or never will; the gate's lock is held."""
        if ticket.work.queued_at is None and ticket.state is not State.WITHDRAWN:
            self._begin(ticket)

    def _warn(self, ticket: BatchTicket) -> None:
        if ticket.topic not in self._refused:
            self._refused.add(ticket.topic)
            log.error(
                "a batch of %s was refused (%s) and is run without room, for records cannot be dropped; "
                "lower batch_size, or raise the limit",
                ticket.topic,
                ticket.reason,
            )

    def settle(self, job: Job) -> None:
        """Give the room of a finished job back; what starts in its place is pushed."""
        ticket = job.ticket
        if ticket is None:
            return
        if job.started_at is not None and job.messages:
            took = (self.queue.clock() - job.started_at) / len(job.messages)
            known = self._pace.get(job.topic)
            self._pace[job.topic] = took if known is None else known + MEMORY * (took - known)
        with self.gate.lock:
            if ticket.state is RUNNING:
                self.gate.finish(ticket)

    def on_manage(self) -> None:
        """Nothing is to be done: the gate has a timer of its own."""

    def on_clear(self, group_id: str) -> None:
        self.clear(group_id)

    def clear(self, group_id: str) -> None:
        gate = self.gate
        with gate.lock:
            core = gate.gate
            gate.withdraw(self._mine(core.waiters(), group_id))
            for ticket in self._mine(core.holders, group_id):
                if ticket.work.started_at is None:
                    gate.finish(ticket, Outcome.LOST)

    def _mine(self, tickets: Iterable[Ticket], group_id: str | None = None) -> list[BatchTicket]:
        return [
            one
            for one in tickets
            if isinstance(one, BatchTicket)
            and one.scheduler is self
            and group_id in (None, one.pool)
        ]

    def close(self) -> None:
        """Leave the gate: nothing of ours waits or holds room any more."""
        gate = self.gate
        with gate.lock:
            gate.withdraw(self._mine(gate.gate.waiters()))
            for ticket in self._mine(gate.gate.holders):
                gate.finish(ticket, Outcome.LOST)
        if not gate.guests:
            gate.rest()

    def explain(self, job: Job, now: float) -> str:
        if job.ticket is None:
            return super().explain(job, now)
        with self.gate.lock:
            gate = self.gate.gate
            text = gate.explain(job.ticket, now).text
            head = gate.policy.head(now) if job.ticket.state is WAITING else None
        if head is None or head is job.ticket:
            return text if head is None else f"{text}; it is the next to start"
        return f"{text}; it is behind {head!r}, the next to start"
