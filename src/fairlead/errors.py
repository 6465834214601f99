"""Every error Fairlead raises.

    FairleadError
      ConfigError (a ValueError)    wrong at construction: a bad number, duration, name or file
        BadFile                     of a DAG, a scenario or a policy; .lines says everything that is wrong, and where
      Refused                       the gate said no; carries .ticket, .reason, .retry_after, .status_hint
        QueueFull 429               the queue is at its limit; .current and .maximum
        WaitedTooLong 408           the wait (or a drain) passed its limit
        Preempted 503               a more important ticket took the place
        ShuttingDown 503            nothing new is taken
        NeverFits 422               larger than the capacity can ever be
      GraphError (a ValueError)     a DAG that cannot run
        CycleFound                  .cycle names every node in it
        UnknownNode                 a dependency on a node that is not there
        DuplicateNode               two nodes of one name
      PayloadError (a ValueError)   what a job is given or returns cannot be stored as JSON; .where says which part
      UnknownRun (a LookupError)    no run, or no job, has that id
      KeyConflict (a ValueError)    the key of a DAG belongs to a run of another DAG; .key and .run
      StoreError                    the database of jobs
        StoreUnavailable            it cannot be reached, or refuses for now; nothing was changed, try again
        NoDatabase                  there is none where one is only to be read; none was made
        SchemaMismatch              its tables are of another version; the message says which command helps
      BrokerFault                   a Kafka broker or the way to it; .retriable and .fatal say what helps
        CommitRefused               offsets were not stored; .refused names the partitions
      PolicyError                   a policy, planner or capacity broke its contract; names it and the ticket
      SchedulerFailed               a stream scheduler could not be made, or is stuck; names its class
      Misuse (a RuntimeError)       a call in a state that forbids it; nothing has changed
        StreamMisuse                a stream scheduler's call; names its class, the topic and the job's age

The core writes verdicts on tickets; doors raise.  A message says what happened, to what, and what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlead.core.ticket import Ticket


class FairleadError(Exception):
    """The root of every error raised by Fairlead."""


class ConfigError(FairleadError, ValueError):
    """A setting that cannot be used."""


class BadFile(ConfigError):
    """A file with mistakes in it."""

    MOST_LINES = 20

    def __init__(self, lines: Sequence[str]) -> None:
        more = len(lines) - self.MOST_LINES
        rest = [f"... and {more} more"] if more > 0 else []
        super().__init__("\n".join([*lines[: self.MOST_LINES], *rest]))
        self.lines = tuple(lines)


class Refused(FairleadError):
    """The gate said no."""

    status_hint = 503

    def __init__(
        self,
        message: str,
        *,
        ticket: Ticket | None = None,
        reason: Any = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.ticket = ticket
        self.reason = message if reason is None else reason
        self.retry_after = retry_after


class QueueFull(Refused):
    """The queue is at its limit."""

    status_hint = 429

    def __init__(self, queue: str, current: int, maximum: int, **carried: Any) -> None:
        super().__init__(
            f"{queue} queue is full ({current}/{maximum} waiting); "
            "retry later, shed load, or raise max_queue_size",
            **carried,
        )
        self.current = current
        self.maximum = maximum


class WaitedTooLong(Refused):
    """The wait passed its limit."""

    status_hint = 408


class Preempted(Refused):
    """A more important ticket took the place."""


class ShuttingDown(Refused):
    """Nothing new is taken."""


class NeverFits(Refused):
    """The ticket asks for more than the capacity can ever give."""

    status_hint = 422


class GraphError(FairleadError, ValueError):
    """A DAG that cannot run."""


def _ends(cycle: Sequence[str]) -> Sequence[str]:
    """Leave out the middle of a ring that no line can bear."""
    if len(cycle) <= 50:
        return cycle
    return [*cycle[:10], f"... {len(cycle) - 20:,} more ...", *cycle[-10:]]


class CycleFound(GraphError):
    """Nodes that wait for each other in a ring."""

    def __init__(self, cycle: Sequence[str]) -> None:
        ring = " → ".join([*_ends(cycle), cycle[0]])
        super().__init__(f"the DAG has a cycle: {ring}; remove one of these dependencies")
        self.cycle = tuple(cycle)


class UnknownNode(GraphError):
    """A dependency on a node that is not in the DAG."""


class DuplicateNode(GraphError):
    """Two nodes of one name."""


class PayloadError(FairleadError, ValueError):
    """What a job is given or returns cannot be stored as JSON."""

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__(message)
        self.where = where


class UnknownRun(FairleadError, LookupError):
    """No run, or no job, has that id."""


class KeyConflict(FairleadError, ValueError):
    """A key that belongs to a run of another DAG; nothing was stored."""

    def __init__(self, message: str, key: str, run: str | None = None) -> None:
        super().__init__(message)
        self.key = key
        self.run = run  # None: of another DAG of the same call

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.key, self.run)


class StoreError(FairleadError):
    """The database of jobs cannot be used."""


class StoreUnavailable(StoreError):
    """The database cannot be reached, or refuses for now; nothing was changed."""


class NoDatabase(StoreError):
    """There is no database where one is only to be read; none was made."""


class SchemaMismatch(StoreError):
    """The tables are of another version than this Fairlead needs."""


class BrokerFault(FairleadError):
    """A Kafka broker, or the way to it, failed.

    `retriable`: the same call may succeed later, with this client.  `fatal`: this client is of no more use; close
    it and make another.  Neither: the call was wrong, or the settings are.
    """

    def __init__(self, message: str, *, retriable: bool = False, fatal: bool = False) -> None:
        super().__init__(message)
        self.retriable = retriable
        self.fatal = fatal


class CommitRefused(BrokerFault):
    """Offsets were not stored.

    `refused` names the partitions.  Retriable: a rebalance is going on, or the broker is away; try again at the
    next interval.  Not retriable: the membership is gone, and with it the right to commit.
    """

    def __init__(
        self,
        message: str,
        *,
        refused: Iterable[tuple[str, int]] = (),
        retriable: bool = False,
        fatal: bool = False,
    ) -> None:
        super().__init__(message, retriable=retriable, fatal=fatal)
        self.refused = tuple(refused)


class PolicyError(FairleadError):
    """A user-written policy, planner or capacity broke its contract."""


class Misuse(FairleadError, RuntimeError):
    """A call in a state that forbids it; nothing has changed."""


class StreamMisuse(Misuse):
    """A stream scheduler did with a job what its state forbids; nothing has changed.  `job` is that job, or None."""

    def __init__(self, message: str, *, job: Any = None) -> None:
        super().__init__(message)
        self.job = job


class SchedulerFailed(FairleadError):
    """A stream scheduler could not be made, or does not return from a call."""


class SelfDeadlockWarning(RuntimeWarning):
    """Warn of a deadlock: work waits for a slot while work that waits itself holds every slot."""
