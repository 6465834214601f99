"""What the asyncio door and the thread door have in common: reading what callers give, counting, and saying why not."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypedDict

from fairlead import config
from fairlead.capacities import Slots
from fairlead.config import MOST_WAITING, seconds, shown, whole
from fairlead.core import Capacity, Outcome, Policy, QueueLimit, State
from fairlead.errors import ConfigError, NeverFits, QueueFull, Refused, ShuttingDown, WaitedTooLong
from fairlead.policies import Aging, Classes
from fairlead.policies.aging import STEP
from fairlead.tasks.priority import read_priority
from fairlead.tasks.stats import NOTED, Counts, SchedulerStats

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fairlead.core import Explanation, Gate, Ticket

CLAMP_LOG_INTERVAL = 60.0
DEFAULT_SLOTS = 16
log = logging.getLogger("fairlead")


class Door:
    """The part of a scheduler that neither awaits nor blocks."""

    def __init__(
        self, gate: Gate, policy: Policy, clock: Callable[[], float], *, enabled: bool = True
    ) -> None:
        self.shutting_down = False
        self._core = gate
        self._policy = policy
        self._clock = clock
        self._enabled = enabled
        self._count = Counts()
        self._aging = policy if isinstance(policy, Aging) and policy.rate else None
        # Nobody is promoted before this wait; spares the arithmetic for those who start sooner.
        self._first_step = inf if self._aging is None else STEP / self._aging.rate
        self._clamp_told_at = -inf

    def stats(self) -> SchedulerStats:
        """Take a snapshot of the counters."""
        count, policy, capacity = self._count, self._policy, self._core.capacity
        promotions = count.promotions
        if self._aging is not None:
            promotions += self._aging.promotions(self._clock())
        elif isinstance(policy, Classes):
            promotions = policy.promotions
        low, _, high = count.tallies
        running = [ticket for ticket in self._core.holders if self._owns(ticket)]
        return SchedulerStats(
            enabled=self._enabled,
            active_count=len(running),
            queued_count=len(policy),
            total_submitted=count.submitted,
            total_completed=count.completed,
            high_priority_completed=high.completed,
            low_priority_completed=low.completed,
            starvation_promotions=promotions,
            total_failed=count.failed,
            total_cancelled=count.cancelled,
            total_refused=count.refused,
            total_clamped=count.clamped,
            total_expired=count.expired,
            max_concurrency=capacity.total if isinstance(capacity, Slots) else None,
            max_queue_size=policy.limit or 0,
            shutting_down=self.shutting_down,
            waits=MappingProxyType(count.histograms(running)),
        )

    def _owns(self, ticket: Ticket) -> bool:
        return getattr(ticket, "door", None) is self

    def _explain(self, ticket: Ticket) -> Explanation:
        return self._core.explain(ticket, self._clock())

    # Reading

    def _read(self, priority: Any) -> int:
        """Read a priority that is not plainly one: clamp and count, or refuse."""
        number = read_priority(priority)
        clamped = min(100, max(0, number))
        if clamped != number:
            self._count.clamped += 1
            now = self._clock()
            if now >= self._clamp_told_at + CLAMP_LOG_INTERVAL:
                self._clamp_told_at = now
                log.warning(
                    "priority %s is outside 0..100 and was taken as %d", shown(number), clamped
                )
        return clamped

    def _fill(self, ticket: Ticket, fields: Mapping[str, Any]) -> None:
        """Write the values of a bound view on a ticket."""
        for name, value in fields.items():
            if name == "timeout":
                ticket.wait_until = self._clock() + value
            elif name == "deadline":
                ticket.deadline = self._clock() + value
            else:
                setattr(ticket, name, value)

    # Counting

    def _entered(self, ticket: Ticket) -> None:
        """Count an offer; raise if it was refused."""
        if ticket.state is State.RUNNING or ticket.state is State.WAITING:
            self._count.submitted += 1
        else:
            self._count.refused += 1
            raise self._refusal(ticket)

    def _refuse_when_shutting_down(self) -> None:
        if self.shutting_down:
            self._count.refused += 1
            raise ShuttingDown("the scheduler is shutting down and takes nothing new")

    def _started(self, ticket: Ticket) -> None:
        """Count a ticket that starts after a wait, and the promotions it gained."""
        wait = ticket.started_at - ticket.arrived_at
        tally = self._count.tally_of[ticket.priority]
        tally.noted.append(wait)
        if len(tally.noted) >= NOTED:
            tally.count()
        if wait >= self._first_step:
            self._count_steps(ticket)

    def _count_steps(self, ticket: Ticket) -> None:
        if self._aging is not None:
            self._count.promotions += self._aging.steps(ticket, ticket.started_at)

    def _left(self, ticket: Ticket) -> None:
        """Count a ticket that leaves without having started, and the promotions it had gained."""
        count = self._count
        count.cancelled += 1
        if ticket.state is State.EXPIRED:
            count.expired += 1
        if self._aging is not None:
            count.promotions += self._aging.steps(ticket, self._clock())
        self._look_whether_drained()

    def _look_whether_drained(self) -> None:
        """Wake whoever waits for the end, if this was it."""

    def _ended(self, ticket: Ticket, outcome: Outcome, error: BaseException | None) -> None:
        """Count a ticket whose work has ended, or, LOST, had not begun."""
        count = self._count
        count.adrift.discard(ticket)
        tally = count.tally_of[ticket.priority]
        if outcome is Outcome.LOST:
            count.cancelled += 1
            tally.lost += 1
            return
        tally.completed += 1
        if isinstance(error, Exception):
            count.failed += 1

    # Saying why not

    def _refusal(self, ticket: Ticket) -> Refused:
        reason = ticket.reason
        if isinstance(reason, QueueLimit):
            return QueueFull(
                reason.queue or "scheduler",
                reason.waiting,
                reason.limit,
                ticket=ticket,
                reason=reason,
            )
        if ticket.state is State.EXPIRED:
            waited = self._clock() - ticket.arrived_at
            message = (
                f"no slot came free within {waited:g} s; retry later or allow a longer timeout"
            )
            return WaitedTooLong(message, ticket=ticket, reason=reason)
        if ticket.state is State.WITHDRAWN:
            return ShuttingDown(
                "the scheduler was shut down before this work started", ticket=ticket
            )
        return NeverFits(f"this work can never run: {reason}", ticket=ticket)

    def _deadlock(self) -> str:
        return (
            f"deadlock: submit from inside a task while max_concurrency={self._core.active}, and every slot is "
            "held by work that waits for a slot itself; "
            "give the slot back before you submit, or raise max_concurrency"
        )


def slots_or(capacity: Capacity | None, max_concurrency: int) -> Capacity:
    """Make the slots of a scheduler, or take the capacity it was given."""
    slots = whole(max_concurrency, "max_concurrency", 1)
    if capacity is None:
        return Slots(slots)
    if slots != DEFAULT_SLOTS:
        raise ConfigError(
            "give max_concurrency or capacity, not both: the capacity says how many run"
        )
    if not isinstance(capacity, Capacity):
        raise ConfigError(
            f"capacity must be a fairlead.Capacity, such as Slots(16); got {shown(capacity)}"
        )
    return capacity


def aging_or(policy: Policy | None, max_queue_size: int, starvation_timeout: Any) -> Policy:
    """Make the policy of a scheduler, or take the one it was given; either way with its queue limit."""
    limit = whole(max_queue_size, "max_queue_size", 0, MOST_WAITING)
    timeout = config.starvation_timeout(starvation_timeout, "starvation_timeout")
    if policy is None:
        policy = Aging.over(timeout)
    elif not isinstance(policy, Policy):
        raise ConfigError(
            f"policy must be a fairlead.Policy, such as FairQueue(); got {shown(policy)}"
        )
    if limit:
        policy.limit = limit
    return policy


class Bound(TypedDict, total=False):
    """What `bind` can write on tickets, for policies and capacities to read."""

    tenant: Hashable
    workload: Hashable
    cost: float
    deadline: Any
    timeout: Any
    rank: int
    pool: Hashable
    estimate: Any


def bound_fields(fields: Bound) -> dict[str, Any]:
    """Read what `bind` was given: `timeout` and `deadline` are durations from the submission on."""
    read: dict[str, Any] = {}
    for name, value in fields.items():
        if name in ("deadline", "timeout", "estimate"):
            read[name] = seconds(value, name, zero=True)
        elif name == "cost":
            read[name] = positive(value, name)
        elif name == "rank":
            read[name] = whole(value, name, 0)
        elif name in ("tenant", "workload", "pool"):
            read[name] = _hashable(value, name)
        else:
            known = ", ".join(Bound.__annotations__)
            raise ConfigError(f"bind() does not know {name!r}; it takes {known}")
    return read


def _hashable(value: Any, name: str) -> Hashable:
    try:
        hash(value)
    except TypeError:
        raise ConfigError(f"{name} must be hashable, such as a text; got {shown(value)}") from None
    return value  # type: ignore[no-any-return]


def positive(value: Any, name: str) -> float:
    """Read a cost or a weight."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
        raise ConfigError(f"{name} must be a finite number above 0; got {shown(value)}")
    return value
