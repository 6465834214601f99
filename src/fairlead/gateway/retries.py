"""Which failed tries are repeated: what is safe to repeat, and no more than a budget allows.  Pure.

Without a budget retries double the load of a fleet that fails because it is overloaded.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlead.gateway.settings import Retries

WINDOW = 10.0  # seconds
LEAST = 10  # retries in a window that are always allowed
IDEMPOTENT = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PUT", "TRACE"})
INFERENCE = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/messages",
        "/v1/responses",
    }
)


class Budget:
    """How many retries the requests of the last seconds allow.

    >>> budget = Budget(0.1)
    >>> for _ in range(10):
    ...     budget.spend(now=0.0)
    >>> budget.allows(now=9.9), budget.allows(now=10.1)
    (False, True)
    """

    __slots__ = ("_requests", "_retries", "share")

    def __init__(self, share: float) -> None:
        self.share = share
        # Counts by tenths of a second, so that memory does not grow with load.
        self._requests: deque[list[int]] = deque()
        self._retries: deque[list[int]] = deque()

    def count(self, now: float) -> None:
        """Count a request."""
        _add(self._requests, now)

    def allows(self, now: float) -> bool:
        """Return whether one more retry is allowed."""
        allowed = max(LEAST, int(self.share * _sum(self._requests, now)))
        return _sum(self._retries, now) < allowed

    def spend(self, now: float) -> None:
        """Count a retry."""
        _add(self._retries, now)


def _add(counts: deque[list[int]], now: float) -> None:
    slot = int(now * 10)
    if counts and counts[-1][0] >= slot:
        counts[-1][1] += 1
        return
    counts.append([slot, 1])
    while counts[0][0] <= slot - 10 * WINDOW:
        counts.popleft()


def _sum(counts: deque[list[int]], now: float) -> int:
    oldest = int(now * 10) - 10 * WINDOW
    return sum(count for slot, count in counts if slot > oldest)


def is_safe(settings: Retries, method: str, path: str) -> bool:
    """Return whether a request may run twice."""
    return method in IDEMPOTENT or (settings.inference and method == "POST" and path in INFERENCE)
