"""Gates of the usual shapes, with tickets that spread over their classes, flows and keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from fairlead.capacities import Reserved, Slots, TokenBucket
from fairlead.core import Gate, Policy, Ticket
from fairlead.policies import FIFO, Aging, Classes, FairQueue, Level, Planner

SLOTS = 16
FLOWS = 64
NAMES = ("bulk", "batch", "normal", "interactive")


@dataclass(frozen=True, slots=True)
class Shape:
    """How to make a gate and its i-th ticket; a ticket arrives every `step` seconds."""

    gate: Callable[[], Gate]
    ticket: Callable[[int], Ticket]
    step: float = 1e-3


class CheapestFirst(Policy):
    """A user's own policy of one key."""

    def key(self, ticket: Ticket) -> float:
        return ticket.cost


def classes(inside: Callable[[], Policy] = FIFO, starvation: float = 3600.0) -> Classes:
    return Classes(*[Level(name, inside, starvation=starvation) for name in NAMES])


def earliest_deadline() -> Planner:
    return Planner(lambda waiting, now: sorted(waiting, key=attrgetter("deadline", "seq")))


def slots(policy: Callable[[], Policy]) -> Callable[[], Gate]:
    return lambda: Gate(policy(), Slots(SLOTS))


def by_key() -> Gate:
    """One token a second for each key: FLOWS tickets a second in all."""
    return Gate(FIFO(), TokenBucket(1.0, burst=1.0, by=attrgetter("tenant")))


def reserved() -> Gate:
    return Gate(classes(), Reserved(SLOTS, floors=(0, 2, 2, 2)))


def plain(i: int) -> Ticket:
    return Ticket(i, i * 7919 % 101)


def costly(i: int) -> Ticket:
    return Ticket(i, 50, i * 7919 % 101 + 1)


def dated(i: int) -> Ticket:
    return Ticket(i, deadline=i + i * 7919 % 101)


def of_tenant(i: int) -> Ticket:
    return Ticket(i, i * 7919 % 101, tenant=i * 31 % FLOWS)


def of_class(i: int) -> Ticket:
    return Ticket(i, i * 7919 % 101, rank=i * 7 % 4, tenant=i * 31 % FLOWS)


FAIR = f"FairQueue over {FLOWS} flows"
NESTED = "Classes of FairQueues of Aging"
SHAPES: dict[str, Shape] = {
    "FIFO": Shape(slots(FIFO), plain),
    "Aging": Shape(slots(Aging), plain),
    "Aging, most at the ceiling": Shape(slots(Aging), plain, step=0.05),
    "a user's Policy with a key": Shape(slots(CheapestFirst), costly),
    "Classes (4)": Shape(slots(classes), of_class),
    "Classes (4), starved ones promoted": Shape(slots(lambda: classes(starvation=0.1)), of_class),
    "Classes (4) + Reserved": Shape(reserved, of_class),
    FAIR: Shape(slots(FairQueue), of_tenant),
    "Classes of FairQueues": Shape(slots(lambda: classes(FairQueue)), of_class),
    NESTED: Shape(slots(lambda: classes(lambda: FairQueue(inside=Aging))), of_class),
    f"TokenBucket for each of {FLOWS} keys": Shape(by_key, of_tenant, step=1 / FLOWS),
}
PLANNER = Shape(slots(earliest_deadline), dated)
