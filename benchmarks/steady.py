"""Gates under a steady load: a number of tickets wait, and each step adds one and ends one.

A gate is filled in the first round and driven further in each: filling a million for every figure would take an hour.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator
from itertools import count
from math import inf
from time import process_time

from benchmarks.shapes import Shape
from fairlead.core import Gate, State, Ticket


class Steady:
    """A case: each step offers a ticket and finishes one that runs, which starts another."""

    def __init__(self, shape: Shape, waiting: int, tickets: int, *, making: bool = False) -> None:
        self.shape = shape
        self.waiting = waiting
        self.tickets = tickets
        self.making = making  # does the time include making the tickets?
        self.started: object = State.RUNNING
        self.gate: Gate | None = None
        self.running: deque[Ticket] = deque()
        self.numbers = count()
        self.now = 0.0

    def fill(self) -> Gate:
        gate, ticket = self.shape.gate(), self.shape.ticket
        while self.waits(gate) < self.waiting:
            made = ticket(next(self.numbers))
            gate.offer(made, self.now)
            if made.state is self.started:
                self.running.append(made)
        return gate

    def waits(self, gate: Gate) -> int:
        return gate.waiting

    def __call__(self) -> float:
        if self.gate is None:
            self.gate = self.fill()
            gc.freeze()
        gate = self.gate
        ticket, numbers = self.shape.ticket, range(self.tickets)
        first = next(self.numbers)
        self.numbers = count(first + self.tickets)
        tickets = (ticket(first + i) for i in numbers)
        took = self.drive(gate, tickets if self.making else iter(list(tickets)))
        gc.freeze()  # a million tickets at rest are not to be walked over before every other case
        return took

    def drive(self, gate: Gate, tickets: Iterator[Ticket]) -> float:
        offer, finish, started = gate.offer, gate.finish, self.started
        running, step, now = self.running, self.shape.step, self.now
        began = process_time()
        for ticket in tickets:
            now += step
            changed = offer(ticket, now)
            if changed:
                running.extend(changed)
            if ticket.state is started:
                running.append(ticket)
            if running:
                running.extend(finish(running.popleft(), now))
        took = process_time() - began
        self.now = now
        return took / self.tickets * 1e6

    def empty(self) -> None:
        """Let the tickets go."""
        self.gate = None
        self.running.clear()


class Withdrawing(Steady):
    """Tickets arrive and leave again before their turn."""

    def drive(self, gate: Gate, tickets: Iterator[Ticket]) -> float:
        made, now = list(tickets), self.now
        began = process_time()
        for ticket in made:
            gate.offer(ticket, now)
        for ticket in made:
            gate.withdraw((ticket,), now)
        return (process_time() - began) / self.tickets * 1e6


class Expiring(Steady):
    """Tickets arrive and wait too long, each with a limit of its own."""

    def drive(self, gate: Gate, tickets: Iterator[Ticket]) -> float:
        made, now = list(tickets), self.now
        for i, ticket in enumerate(made):
            ticket.wait_until = now + 1 + i * self.shape.step
        began = process_time()
        for ticket in made:
            gate.offer(ticket, now)
        while (at := gate.next_wakeup(now)) < inf:
            now = at
            gate.advance(now)
        took = process_time() - began
        self.now = now
        return took / self.tickets * 1e6
