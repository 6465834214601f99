"""One lock, had in turns: whoever leaves and comes back goes behind who waits already.

A plain lock goes to whoever asks first once it is free, and that is mostly the thread that has just let go of it: one
that comes back again and again keeps the others out.  So one of those who wait stands at the lock, with `_next` in its
hand, and whoever comes back waits for `_next`.  Waiting is in slices, so that it can be given up.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SLICE = 0.02  # seconds between two looks whether it is worth to wait


def wait_for(lock: threading.Lock, hopeless: Callable[[], bool]) -> bool:
    """Acquire a lock; False if it became hopeless to wait for it."""
    while not lock.acquire(timeout=SLICE):
        if hopeless():
            return False
    return True


class Turnstile:
    """Lets one thread in at a time."""

    def __init__(self) -> None:
        self.turns = 0  # how often somebody was let in
        self.outside: set[int] = set()  # threads that wait
        self._inside: int | None = None  # the thread that was let in; only that one writes it
        self._lock = threading.Lock()  # of the one inside
        self._next = threading.Lock()  # of the one who is let in next

    @property
    def mine(self) -> bool:
        """Say whether this thread is inside."""
        return self._inside == threading.get_ident()

    def enter(self, hopeless: Callable[[], bool]) -> bool:
        """Wait for a turn; False if it became hopeless."""
        me = threading.get_ident()
        self.outside.add(me)
        try:
            if not wait_for(self._next, hopeless):
                return False
            try:
                if not wait_for(self._lock, hopeless):
                    return False
                self._inside = me
                self.turns += 1
                return True
            finally:
                self._next.release()
        finally:
            self.outside.discard(me)

    def leave(self) -> None:
        """Let the next one in."""
        self._inside = None
        self._lock.release()
