"""Results that clients keep with the service: looked up with a check, so that what is known need not be done again.

In memory, of this process, bounded in number and bytes: what was used longest ago goes first.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST = 7 * 86_400.0  # seconds; also what a time to live of 0 means
MOST_ENTRIES = 100_000
MOST_BYTES = 64 * 1024 * 1024
OVERHEAD = 200  # bytes that an entry takes beside its key and value

Key = tuple[str | None, str]  # of which control point, or None: of all; and the key


class Entry(NamedTuple):
    """A value, and until when it counts."""

    value: bytes
    until: float
    size: int


class ResultCache:
    """Values by key, for a time.

    >>> cache = ResultCache()
    >>> cache.put((None, "greeting"), b"hello", ttl=60.0)
    >>> cache.get((None, "greeting")), cache.get(("checkout", "greeting"))
    (b'hello', None)
    """

    def __init__(
        self,
        *,
        most_entries: int = MOST_ENTRIES,
        most_bytes: int = MOST_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most_entries, self._most_bytes = most_entries, most_bytes
        self._clock = clock
        self._entries: OrderedDict[Key, Entry] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> bytes | None:
        """Look a value up; None if there is none."""
        if not key[1]:
            raise ValueError("the cache key is empty")
        entry = self._entries.get(key)
        if entry is not None and entry.until <= self._clock():
            self.delete(key)
            entry = None
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry.value

    def put(self, key: Key, value: bytes, ttl: float = 0.0) -> None:
        """Keep a value for `ttl` seconds: 7 days at most, and if it is 0."""
        if not key[1]:
            raise ValueError("the cache key is empty")
        if not ttl >= 0:
            raise ValueError("the time to live is negative; give 0 for the longest")
        size = OVERHEAD + len(value) + 4 * (len(key[1]) + len(key[0] or ""))
        if size > self._most_bytes // 4:
            raise ValueError(f"the value is too large ({len(value)} bytes) to be kept")
        self.delete(key)
        until = self._clock() + (ttl if 0 < ttl <= LONGEST else LONGEST)
        self._entries[key] = Entry(value, until, size)
        self.bytes += size
        while self.bytes > self._most_bytes or len(self._entries) > self._most_entries:
            self.bytes -= self._entries.popitem(last=False)[1].size

    def delete(self, key: Key) -> None:
        """Forget a value, if there is one."""
        if not key[1]:
            raise ValueError("the cache key is empty")
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.bytes -= entry.size
