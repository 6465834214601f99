"""A job: one call of a consumer that a scheduler decides the time of.

Its life, which the queue alone writes down:

    given ──lock──▶ locked ──unlock──▶ given ──push──▶ queued ──▶ running ──▶ finished
      └──────────────────push─────────────────────────────▲

A locked job may be pushed and unlocked after; `cleared` ends any job that has not started, for good.  While the
scheduler hangs, its jobs are pushed in its stead (`overruled`).
"""

from __future__ import annotations

from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlead.streams.broker import Message
    from fairlead.streams.holdings import Holding
    from fairlead.streams.partitions import Taken


class Kind(StrEnum):
    """What a job calls."""

    CONSUMPTION = "consumption"
    REVOCATION = "revocation"
    SHUTDOWN = "shutdown"
    IDLE = "idle"
    PERIODIC = "periodic"
    EOFED = "eofed"


CONSUMPTION = Kind.CONSUMPTION


class Job:
    """One call of a consumer, as a scheduler sees it.

    `topic`, `partition` and `messages` say what it is about, `group_id` whose listener it blocks; `finished` is True
    once it has run, or been skipped.  `priority`, `rank`, `tenant`, `cost` and `deadline` are hints to order by;
    `withheld_since` is the instant (`time.monotonic`) it was given to the scheduler, None once it is queued.
    """

    __slots__ = (
        "alone",
        "blocking",
        "cleared",
        "cost",
        "deadline",
        "ended",
        "finished",
        "generation",
        "given_at",
        "group_id",
        "handed_back",
        "holding",
        "kind",
        "locked",
        "messages",
        "overruled",
        "partition",
        "priority",
        "queued_at",
        "rank",
        "skipped",
        "started_at",
        "taken",
        "tenant",
        "ticket",
        "topic",
        "withheld_since",
    )

    def __init__(
        self, kind: Kind, holding: Holding, taken: Taken | None = None, *, blocking: bool = False
    ) -> None:
        topic = holding.topic
        self.kind = kind
        self.holding = holding
        self.generation = holding.partition.generation
        self.taken = taken
        self.topic = topic.name
        self.partition = holding.tp.partition
        self.group_id = topic.subscription_group
        self.messages: Sequence[Message] = () if taken is None else taken.messages
        self.priority = topic.priority
        self.rank = topic.rank
        self.tenant: Any = topic.name
        self.cost: float = len(self.messages) or 1
        self.deadline = inf
        self.blocking = blocking
        self.alone = False  # nothing else of the app may run beside it
        self.given_at: float | None = None
        self.withheld_since: float | None = None
        self.queued_at: float | None = None
        self.started_at: float | None = None
        self.locked = False
        self.ended = False  # its worker is through with it
        # The same, as the scheduler is told: job by job, each right before `manage`.
        self.finished = False
        self.cleared = False
        # Queued in the scheduler's stead: what it does to it changes nothing.
        self.overruled = False
        self.skipped = False  # its partition was gone: no user code was run
        # The app was stopping: its records are read again by the next owner.
        self.handed_back = False
        self.ticket: Any = None

    def __repr__(self) -> str:
        return f"<Job {self.kind} {self.topic}[{self.partition}] {self.state}>"

    @property
    def state(self) -> str:
        """Say in one word where the job stands."""
        if self.cleared:
            return "cleared"
        if self.ended:
            return "finished"
        if self.started_at is not None:
            return "running"
        if self.queued_at is not None:
            return "queued"
        return "locked" if self.locked else "given"

    @property
    def stale(self) -> bool:
        """Say whether its partition has gone, or begun again, since it was made: its result reaches nobody."""
        holding = self.holding
        return holding.lost or self.generation != holding.partition.generation

    def age(self, now: float) -> float:
        """Tell the seconds since the scheduler was given it."""
        return 0.0 if self.given_at is None else max(0.0, now - self.given_at)
