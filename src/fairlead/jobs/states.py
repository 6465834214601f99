"""The states of jobs and runs, and the only ways from one to another.

    created ─┬─> active ─┬─> completed
    retry ───┘     │     ├─> retry      another attempt is left, or its worker died, or it was handed back
                   │     └─> failed, expired (timed out), cancelled
    created, retry <──> suspended       its run is paused
    created, retry, suspended ──> skipped (a dependency did not complete), cancelled
    failed, expired, cancelled, skipped ──> created      `retry` of the whole run

A job is *ready* in created or retry with no dependency left; it is claimed when its `start_at` has come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

CREATED = "created"
RETRY = "retry"
ACTIVE = "active"
COMPLETED = "completed"
SKIPPED = "skipped"
EXPIRED = "expired"
CANCELLED = "cancelled"
FAILED = "failed"
SUSPENDED = "suspended"

READY = frozenset({CREATED, RETRY})
UNSTARTED = READY | {SUSPENDED}
TERMINAL = frozenset({COMPLETED, SKIPPED, EXPIRED, CANCELLED, FAILED})
FRUITLESS = TERMINAL - {COMPLETED}  # dependents of such a job never run

TRANSITIONS: dict[str, frozenset[str]] = {
    CREATED: frozenset({ACTIVE, SKIPPED, CANCELLED, SUSPENDED}),
    RETRY: frozenset({ACTIVE, SKIPPED, CANCELLED, SUSPENDED}),
    SUSPENDED: frozenset({CREATED, RETRY, SKIPPED, CANCELLED}),
    ACTIVE: frozenset({COMPLETED, RETRY, FAILED, EXPIRED, CANCELLED}),
    COMPLETED: frozenset(),
    **dict.fromkeys((FAILED, EXPIRED, CANCELLED, SKIPPED), frozenset({CREATED})),
}


def outcome_of(states: Iterable[str]) -> str:
    """Tell the state of a run all of whose jobs have ended.

    >>> outcome_of(["completed", "failed", "skipped"]), outcome_of(["completed", "cancelled"])
    ('failed', 'cancelled')
    """
    ended = set(states)
    if ended & {FAILED, EXPIRED}:
        return FAILED
    return CANCELLED if CANCELLED in ended else COMPLETED
