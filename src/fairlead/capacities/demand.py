"""How much is asked of one key of a limit whose room is lent by somebody else: what waits, by workload, and the rate.

Tickets that wait are counted by workload, since a workload's weight decides its share among processes, and by user
within it, since equal users of one workload are to get equal shares wherever they are.
"""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from fairlead.core.ticket import Ticket

    Mode = Literal["leased", "local", "closed", "open"]
    FlowOf = Callable[[Ticket], tuple[Hashable, float, Hashable]]

MEMORY = 0.1  # seconds over which the rate is remembered


def by_workload(ticket: Ticket) -> tuple[Hashable, float, Hashable]:
    """Tell a ticket's workload, its weight, and its user, as tickets of the core name them."""
    return ticket.workload, 1.0, ticket.tenant


class Claim(NamedTuple):
    """What one workload asks for: `unit` is what one of its tickets needs, on average; `largest`, at most."""

    workload: Hashable
    weight: float
    users: int
    tokens: float
    unit: float
    largest: float


class Line:
    """The tickets of one workload."""

    __slots__ = ("weight", "tokens", "tickets", "largest", "users")

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.tokens = 0.0
        self.tickets = 0
        self.largest = 0.0
        self.users: dict[Hashable, int] = {}


class Demand:
    """The tickets that ask for one key, by workload.

    >>> demand = Demand()
    >>> demand.add("paid", 3.0, "ann", 2.0)
    >>> demand.add("paid", 3.0, "bob", 4.0)
    >>> demand.claims()
    [Claim(workload='paid', weight=3.0, users=2, tokens=6.0, unit=3.0, largest=4.0)]
    """

    __slots__ = ("lines",)

    def __init__(self) -> None:
        self.lines: dict[Hashable, Line] = {}

    def add(self, workload: Hashable, weight: float, user: Hashable, cost: float) -> None:
        """Count a ticket."""
        line = self.lines.get(workload)
        if line is None:
            line = self.lines[workload] = Line(weight)
        line.weight = weight
        line.tokens += cost
        line.tickets += 1
        line.largest = max(line.largest, cost)
        line.users[user] = line.users.get(user, 0) + 1

    def remove(self, workload: Hashable, user: Hashable, cost: float) -> bool:
        """Count one less; True if none of that workload is left."""
        line = self.lines[workload]
        line.tickets -= 1
        if not line.tickets:
            del self.lines[workload]
            return True
        line.tokens -= cost
        left = line.users[user] - 1
        if left:
            line.users[user] = left
        else:
            del line.users[user]
        return False

    def claims(self) -> list[Claim]:
        """Tell what all of them ask for."""
        return [claim_of(workload, (line,)) for workload, line in self.lines.items()]


def claim_of(workload: Hashable, lines: Iterable[Line]) -> Claim:
    """Sum up lines of one workload."""
    lines = list(lines)
    tokens = sum(line.tokens for line in lines)
    tickets = sum(line.tickets for line in lines)
    users: dict[Hashable, None] = {user: None for line in lines for user in line.users}
    largest = max(line.largest for line in lines)
    return Claim(workload, lines[0].weight, len(users), tokens, tokens / tickets, largest)


class Leased:
    """A limit whose room is lent; `stir` is called, at most once until `wants` is, when there is something to want."""

    def __init__(self) -> None:
        self.mode: Mode = "leased"
        self.stir: Callable[[], None] = _nobody
        self._stirred: dict[Hashable, None] = {}
        self._called = False

    def look_at(self, key: Hashable) -> None:
        """Have the next `wants` look at a key."""
        self._stirred[key] = None

    def _stir(self, key: Hashable) -> None:
        self._stirred[key] = None
        if not self._called:
            self._called = True
            self.stir()

    def _look(self) -> list[Hashable]:
        """Tell the keys where something happened since the last look."""
        stirred, self._stirred = list(self._stirred), {}
        self._called = False
        return stirred


def _nobody() -> None:
    """Nobody is to be told."""


class Rate:
    """Tokens per second of late: each look forgets what is older than `MEMORY`, by and by."""

    __slots__ = ("per_second", "looked_at")

    def __init__(self, now: float) -> None:
        self.per_second = 0.0
        self.looked_at = now

    def look(self, tokens: float, now: float) -> float:
        """Tell the rate, given the tokens since the last look."""
        elapsed = now - self.looked_at
        if elapsed <= 0:
            return self.per_second
        self.looked_at = now
        self.per_second += (1 - exp(-elapsed / MEMORY)) * (tokens / elapsed - self.per_second)
        if self.per_second < 0.01:
            self.per_second = 0.0
        return self.per_second
