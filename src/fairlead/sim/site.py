"""Where simulated work asks for a turn: a gate made as a door makes it, and tickets as that door writes them."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from fairlead.config import shown
from fairlead.core.ticket import NEW, UNSET, LeanTicket
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlead.core.ticket import Ticket
    from fairlead.sim.result import Arrival


class Verbs(Protocol):
    """The verbs of a gate that a simulation calls."""

    @property
    def due(self) -> float: ...
    def offer(self, ticket: Any, now: float) -> Sequence[Any]: ...
    def finish(self, ticket: Any, now: float) -> Sequence[Any]: ...
    def withdraw(self, tickets: Iterable[Any], now: float) -> Sequence[Any]: ...
    def advance(self, now: float) -> Sequence[Any]: ...
    def next_wakeup(self, now: float) -> float: ...
    def commit(self, ticket: Any) -> bool: ...


class SimTicket(LeanTicket):
    """The ticket of one try of one arrival; `work` is the arrival's number.

    It costs 1, as a ticket of a door does unless callers of that door state a cost: a site that stands for such a door
    passes the arrival's.
    """

    # All are set for each: a reader of a default in a class pays more than this costs.
    __slots__ = (
        "asked",
        "committed",
        "cost",
        "deadline",
        "ended_at",
        "estimate",
        "evictions",
        "key",
        "labels",
        "over",
        "pool",
        "rank",
        "reason",
        "tenant",
        "workload",
    )

    def __init__(self, number: int, arrival: Arrival, now: float, cost: float = 1.0) -> None:
        self.work = number
        self.key = arrival[9] or number
        self.tenant = arrival[3]
        self.workload = arrival[4]
        self.priority = arrival[5]
        self.cost = cost
        self.pool = arrival[11]
        self.labels = arrival[18]
        deadline, patience, estimate = arrival[7], arrival[8], arrival[17]
        self.deadline = inf if deadline is None else deadline
        self.wait_until = inf if patience is None else now + patience
        self.estimate = arrival[1] if estimate is None else estimate
        self.rank = self.seq = self.evictions = 0
        self.state = NEW
        self.arrived_at = UNSET
        self.hold_until = self.started_at = inf
        self.scopes = ()
        self.place = self.reason = None
        self.promoted = self.committed = self.can_preempt = self.evictable = False
        self.asked = now
        self.ended_at = inf
        self.over = False  # it has come to its end, or another try has taken its place


class Site:
    """A place to ask: the gate, and how an arrival becomes a ticket there.

    `classes` are the names of its classes, lowest first; none if it does not tell classes apart.
    """

    classes: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()  # those that have slots, where it tells pools apart
    slots: float | None = None
    weighs = False  # whether a ticket takes up its cost, not one slot
    first_step = inf  # seconds of waiting after which a priority has aged by a step

    def __init__(self, gate: Verbs) -> None:
        self.gate = gate

    def ticket(self, number: int, arrival: Arrival, now: float) -> Ticket:
        """Write the ticket of an arrival."""
        ticket = SimTicket(number, arrival, now, arrival.cost)
        if self.classes:
            ticket.rank = self.classes.index(arrival.cls)
        return ticket

    def check(self, arrivals: Iterable[Arrival], numbers: Sequence[int] | None = None) -> None:
        """See that every arrival can be told where it belongs; what cannot is said before anything runs.

        `numbers` are those of the arrivals, if they are not all of them.
        """
        kinds = {
            (arrival[2], arrival[11]): arrival for arrival in arrivals
        }  # one of each is enough
        wrong = dict.fromkeys(
            message for arrival in kinds.values() if (message := self.refuses(arrival)) is not None
        )
        if wrong:
            raise ConfigError("\n".join([*wrong][:20]))

    def refuses(self, arrival: Arrival) -> str | None:
        """Say why an arrival, by its class and its pool, does not belong here."""
        if self.classes and arrival.cls not in self.classes:
            return (
                f"the policy has no class {shown(arrival.cls)}; "
                f"its classes are {', '.join(self.classes)}"
            )
        if self.pools and arrival.pool not in self.pools:
            return f"the policy has no pool {shown(arrival.pool)}; its pools are {', '.join(self.pools)}"
        return None
