"""Priorities 0 to 100, and the tiers statistics are kept by."""

from __future__ import annotations

import operator
from enum import IntEnum
from typing import Any

from fairlead.config import shown
from fairlead.errors import ConfigError

LOWEST, HIGHEST = 0, 100
LOW_BELOW, HIGH_FROM = 25, 75
TIERS = ("low", "normal", "high")
TIER_OF = [0 if p < LOW_BELOW else 2 if p >= HIGH_FROM else 1 for p in range(LOWEST, HIGHEST + 1)]


class Priority(IntEnum):
    """The usual priorities; any whole number from 0 to 100 will do.

    >>> Priority.HIGH + 0
    80
    """

    CRITICAL = 100
    HIGH = 80
    NORMAL = 50
    LOW = 20
    BACKGROUND = 0


def read_priority(priority: Any) -> int:
    """Read a whole number, which may lie outside 0..100; anything else is an error."""
    if not isinstance(priority, bool):
        try:
            return operator.index(priority)
        except TypeError:
            pass
    raise ConfigError(
        f"priority must be an integer 0..100, got {shown(priority)}; example: submit(80, fn)"
    )
