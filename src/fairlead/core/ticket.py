"""One unit of work asking for a turn, and the verdict written on it.

While a gate has a ticket, only the gate writes `state`, `reason`, `seq`, `arrived_at` and `started_at`; only policies
write `place`; only a policy that promotes writes `promoted`.  Everything else is the caller's, fixed before `offer`
(`evictable` until it starts), except that a policy may shorten `wait_until` when the ticket starts to wait, and a
capacity `hold_until` when it starts.  Before `offer`, and after its end, all of it is its door's: to say that it runs
already (`adopt`), to write a verdict of the door's own, or to make it new and offer it again.
"""

from __future__ import annotations

from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping


class State(Enum):
    """Where a ticket stands.  DONE, REFUSED, EXPIRED and WITHDRAWN are final; EVICTED holds its room until `finish`."""

    NEW = "new"
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    REFUSED = "refused"
    EXPIRED = "expired"
    EVICTED = "evicted"
    WITHDRAWN = "withdrawn"


class Outcome(Enum):
    """How work ended.  IGNORED keeps the sample out of learned limits; LOST means it never really started: refunded."""

    OK = "ok"
    FAILED = "failed"
    IGNORED = "ignored"
    LOST = "lost"


class QueueLimit(NamedTuple):
    """The reason on a ticket refused because a queue was full."""

    queue: str
    waiting: int
    limit: int

    def __str__(self) -> str:
        return f"{self.waiting} wait already, the limit is {self.limit}"


class Evicted(NamedTuple):
    """The reason on an evicted ticket: for whom, and of which class that one is."""

    by: Hashable
    rank: int

    def __str__(self) -> str:
        return f"for {'one' if self.by is None else repr(self.by)} of a higher class"


NEW, WAITING, RUNNING, DONE, REFUSED, EXPIRED, EVICTED, WITHDRAWN = State
MOVED = "it was offered again"  # the reason on a ticket that its door withdrew for that
UNSET = -inf  # an `arrived_at` for the gate to fill in


class Bare:
    """What the gate reads of every ticket.

    A door that makes very many derives its own from this: what it never sets costs nothing.  The core reads any
    attribute of a `Ticket` from any ticket; those a class has no slot for are defaults of the class.
    """

    __slots__ = (
        "arrived_at",
        "can_preempt",
        "evictable",
        "hold_until",
        "place",
        "priority",
        "promoted",
        "scopes",
        "seq",
        "started_at",
        "state",
        "wait_until",
        "work",
    )

    arrived_at: float
    can_preempt: bool
    evictable: bool
    hold_until: float
    place: Any
    priority: int
    promoted: bool
    scopes: tuple[Hashable, ...]
    seq: int
    started_at: float
    state: State
    wait_until: float
    work: Any

    key: Hashable = None
    cost: float = 1
    rank: int = 0
    tenant: Hashable = None
    workload: Hashable = None
    pool: Hashable = None
    estimate: float | None = None
    deadline: float = inf
    labels: Mapping[str, str] | None = None
    evictions: int = 0
    committed: bool = False
    reason: QueueLimit | Evicted | str | None = None

    @property
    def patience(self) -> float | None:
        """Seconds it would wait, for a record; None: as long as it takes.

        A door whose policies shorten `wait_until` tells its caller's own here: a replay brings the policy again.
        """
        return None if self.wait_until == inf else self.wait_until - self.arrived_at

    def __repr__(self) -> str:
        name = self.seq if self.key is None else self.key
        return f"<{type(self).__name__} {name} {self.state.value}>"


class Ticket(Bare):
    """One unit of work asking for a turn.

    >>> Ticket("report-7", priority=80, tenant="acme").state
    <State.NEW: 'new'>
    """

    __slots__ = RARE = (
        "committed",
        "cost",
        "deadline",
        "estimate",
        "evictions",
        "key",
        "labels",
        "pool",
        "rank",
        "reason",
        "tenant",
        "workload",
    )

    def __init__(
        self,
        key: Hashable = None,
        priority: int = 50,
        cost: float = 1,
        work: Any = None,
        *,
        rank: int = 0,
        tenant: Hashable = None,
        workload: Hashable = None,
        pool: Hashable = None,
        estimate: float | None = None,
        deadline: float = inf,
        labels: Mapping[str, str] | None = None,
        wait_until: float = inf,
        hold_until: float = inf,
        arrived_at: float = UNSET,
        can_preempt: bool = False,
        evictable: bool = False,
        evictions: int = 0,
    ) -> None:
        self.key = key
        self.priority = priority
        self.cost = cost
        self.work = work
        self.rank = rank
        self.tenant = tenant
        self.workload = workload
        self.pool = pool
        self.estimate = estimate
        self.deadline = deadline
        self.labels = labels
        self.wait_until = wait_until
        self.hold_until = hold_until
        self.can_preempt = can_preempt
        self.evictable = evictable
        self.evictions = evictions
        self.arrived_at = arrived_at
        self.state = NEW
        self.reason = None
        self.seq = 0
        self.started_at = inf
        self.scopes = ()
        self.place = None
        self.promoted = False
        self.committed = False


# The core asks for attributes, not for a class: to a type checker a lean ticket is a ticket like any other.
if TYPE_CHECKING:
    LeanTicket = Ticket
else:
    LeanTicket = Bare
