"""The states of jobs and runs, and the only ways from one to another.

    created ─┬─> active ─┬─> completed
    retry ───┘     │     ├─> retry      another attempt is left, or its worker died, or it was handed back
                   │     └─> failed, expired (timed out), cancelled
    created, retry <──> suspended       its run is paused
    created, retry, suspended ──> skipped (a dependency did not complete), cancelled
    skipped ──> cancelled               its run was cancelled, and all it needs completed in spite of that
    failed, expired, cancelled, skipped ──> created      `retry` of the whole run

A job is *ready* in created or retry with no dependency left; it is claimed when its `start_at` has come.
"""

from __future__ import annotations

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
TERMINAL = frozenset({COMPLETED, SKIPPED, EXPIRED, CANCELLED, FAILED})
FRUITLESS = TERMINAL - {COMPLETED}  # dependents of such a job never run

TRANSITIONS: dict[str, frozenset[str]] = {
    CREATED: frozenset({ACTIVE, SKIPPED, CANCELLED, SUSPENDED}),
    RETRY: frozenset({ACTIVE, SKIPPED, CANCELLED, SUSPENDED}),
    SUSPENDED: frozenset({CREATED, RETRY, SKIPPED, CANCELLED}),
    ACTIVE: frozenset({COMPLETED, RETRY, FAILED, EXPIRED, CANCELLED}),
    COMPLETED: frozenset(),
    SKIPPED: frozenset({CREATED, CANCELLED}),
    **dict.fromkeys((FAILED, EXPIRED, CANCELLED), frozenset({CREATED})),
}
