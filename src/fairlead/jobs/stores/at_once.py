"""Verbs that are written for an event loop, on a thread without one.

The verbs of a store are coroutines, but all they wait for is the database.  Over connections that block, they never
suspend: one step runs them from the beginning to the end, on the calling thread.  So both kinds of callers share them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for no event loop, and return its result."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        work.close()
    raise AssertionError(f"{work!r} waits for an event loop")
