"""The ways to ask a thread scheduler for a turn, shared by the scheduler itself and by its bound views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from fairlead.config import seconds
from fairlead.errors import Misuse
from fairlead.tasks.door import Bound, bound_fields
from fairlead.tasks.priority import Priority

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from fairlead.core import Explanation
    from fairlead.tasks.stats import SchedulerStats
    from fairlead.tasks.threads import BlockingTicket, ThreadScheduler, WorkResult


def _hold() -> None:
    """The work of a turn, which its caller does."""


class ThreadSubmitting:
    """Submit, spawn, take turns, and bind values to the tickets that do; from any thread."""

    _door: ThreadScheduler
    _fields: Mapping[str, Any]

    def submit(self, priority: int, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run `work(*args, **kwargs)` in this thread when it is its turn; return its result."""
        door = self._door
        ticket = door._enter(priority, work, self._fields)
        error: BaseException | None = None
        try:
            return work(*args, **kwargs)
        except BaseException as raised:
            error = raised
            raise
        finally:
            door._leave(ticket, error)

    def submit_normal(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Submit with priority 50."""
        return self.submit(50, work, *args, **kwargs)

    def spawn(
        self, priority: int, work: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> WorkResult:
        """Queue work for a worker thread; the future has its result."""
        return self._door._spawn(priority, work, self._fields, args, kwargs)

    def turn(self, priority: int = Priority.NORMAL, timeout: Any = None) -> BlockingTurn:
        """Hold a slot in this thread: `with scheduler.turn(priority=80, timeout=5.0): ...`"""
        fields = self._fields
        if timeout is not None:
            fields = {**fields, "timeout": seconds(timeout, "timeout", zero=True)}
        return BlockingTurn(self._door, priority, fields)

    def bind(self, **fields: Unpack[Bound]) -> BoundThreadScheduler:
        """Return a view with the same API whose tickets carry values for policies and capacities."""
        return BoundThreadScheduler(self._door, {**self._fields, **bound_fields(fields)})

    def explain(self, future: WorkResult) -> Explanation:
        """Say why spawned work waits."""
        with self._door._gate.lock:
            return self._door._explain(future.ticket)


class BoundThreadScheduler(ThreadSubmitting):
    """A view of a thread scheduler whose tickets carry a tenant, a cost and the like."""

    def __init__(self, door: ThreadScheduler, fields: Mapping[str, Any]) -> None:
        self._door = door
        self._fields = fields

    def __enter__(self) -> Self:
        self._door.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._door.__exit__(*exc)

    def stats(self) -> SchedulerStats:
        """Take a snapshot of the counters."""
        return self._door.stats()

    def resize(self, max_concurrency: int) -> None:
        """Resize the scheduler behind the view."""
        self._door.resize(max_concurrency)

    def shutdown(self, mode: Literal["drain", "abort"] = "drain", timeout: Any = None) -> None:
        """Shut down the scheduler behind the view."""
        self._door.shutdown(mode, timeout)


class BlockingTurn:
    """A slot held for the length of a `with`."""

    def __init__(self, door: ThreadScheduler, priority: int, fields: Mapping[str, Any]) -> None:
        self._door = door
        self._priority = priority
        self._fields = fields
        self._ticket: BlockingTicket | None = None

    def __enter__(self) -> Self:
        if self._ticket is not None:
            raise Misuse(
                "this turn was entered before; ask the scheduler for a new turn() each time"
            )
        self._ticket = self._door._enter(self._priority, _hold, self._fields)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._ticket is not None:
            self._door._leave(self._ticket, error)
