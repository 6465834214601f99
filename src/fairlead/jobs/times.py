"""Times as people read them."""

from __future__ import annotations

from datetime import UTC, datetime


def written(seconds: float | None) -> str | None:
    """Write a time since the epoch.

    >>> written(0.5)
    '1970-01-01T00:00:00.500Z'
    """
    if seconds is None:
        return None
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
