"""What follows a try: done, once more, or given up.

Pure decisions; whoever ran the job makes them, the store applies them.  An *attempt* is burnt by code that failed or
took too long, never by a process that died or had to stop.  Deaths are counted apart (`crashes`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from fairlead.jobs.payload import error_json
from fairlead.jobs.records import Ending
from fairlead.jobs.states import CANCELLED, COMPLETED, EXPIRED, FAILED, RETRY

if TYPE_CHECKING:
    from fairlead.jobs.records import Death

LONGEST_DELAY = 3600.0


class Held(Protocol):
    """What is known of a job that somebody holds; `Claimed` and `RunningJob` both say it."""

    @property
    def dag(self) -> int: ...
    @property
    def node(self) -> int: ...
    @property
    def task(self) -> str: ...
    @property
    def fence(self) -> int: ...
    @property
    def attempts(self) -> int: ...
    @property
    def crashes(self) -> int: ...
    @property
    def retries(self) -> int: ...
    @property
    def retry_delay(self) -> float: ...


def retry_delay(base: float, retry: int, draw: float) -> float:
    """Tell how long the n-th retry waits, from 0: d·2ⁿ·(1+U), at most an hour.

    >>> retry_delay(1.0, 0, 0.0), retry_delay(1.0, 3, 0.5), retry_delay(1.0, 10**9, 0.0)
    (1.0, 12.0, 3600.0)
    """
    if base <= 0:
        return 0.0
    # 2**64 times the least float above zero is still nothing, but no base that people write is so small.
    return min(LONGEST_DELAY, base * 2.0 ** min(retry, 64) * (1 + draw))


def completed(job: Held, result: str, *, ran: float | None = None) -> Ending:
    """It returned; `result` is JSON."""
    # What the record's own maker does, in a third of the time.
    return tuple.__new__(
        Ending,
        (
            job.dag,
            job.node,
            job.fence,
            COMPLETED,
            result,
            None,
            0.0,
            None,
            None,
            ran,
            job.task,
            None,
        ),
    )


def failed(job: Held, error: str, draw: float, *, ran: float | None = None) -> Ending:
    """It raised; `error` is JSON, `draw` is from [0, 1)."""
    return _tried(job, error, draw, ran, FAILED)


def timed_out(
    job: Held, draw: float, *, timeout: float | None = None, ran: float | None = None
) -> Ending:
    """It took longer than it may."""
    limit = "its timeout" if timeout is None else f"its timeout of {timeout:g} s"
    error = error_json("TimeoutError", f"the job took longer than {limit}")
    return _tried(job, error, draw, ran, EXPIRED)


def cancelled(job: Held, *, ran: float | None = None) -> Ending:
    """It was asked to stop, and has."""
    return _ending(
        job, CANCELLED, ran=ran, error=error_json("CancelledError", "the job was cancelled")
    )


def handed_back(job: Held, *, delay: float = 0.0, error: str | None = None) -> Ending:
    """Its worker stops, was lost, never took it, or does not know its task: that costs no attempt, and no crash."""
    return _ending(job, RETRY, delay=delay, error=error)


def died(job: Held, death: Death) -> Ending:
    """The process that ran it died; what follows is judged by the deaths before (`crashes.judged`)."""
    return _ending(job, RETRY)._replace(crashes=None, death=death)


def _tried(job: Held, error: str, draw: float, ran: float | None, last: str) -> Ending:
    attempts = job.attempts + 1
    if attempts > job.retries:
        return _ending(job, last, ran=ran, error=error, attempts=attempts)
    delay = retry_delay(job.retry_delay, job.attempts, draw)
    return _ending(job, RETRY, ran=ran, error=error, attempts=attempts, delay=delay)


def _ending(
    job: Held,
    state: str,
    *,
    ran: float | None = None,
    error: str | None = None,
    delay: float = 0.0,
    attempts: int | None = None,
    crashes: int | None = None,
) -> Ending:
    return Ending(
        job.dag,
        job.node,
        job.fence,
        state,
        error=error,
        delay=delay,
        attempts=job.attempts if attempts is None else attempts,
        crashes=job.crashes if crashes is None else crashes,
        ran=ran,
        task=job.task,
    )
