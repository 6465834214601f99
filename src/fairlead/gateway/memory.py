"""Memory that is free in this process, given back to the system: C's allocator keeps much of it after a flood."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def give_back() -> None:
    """Return free memory to the system, where the C library can."""
    _trim()(0)


@lru_cache(maxsize=1)
def _trim() -> Callable[[int], object]:
    try:
        trim: Callable[[int], object] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # only the GNU library has it
        return lambda kept: None
    return trim
