"""The ways to ask a scheduler for a turn, shared by the scheduler itself and by its bound views."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Unpack

from fairlead.config import seconds
from fairlead.core import State
from fairlead.errors import Misuse
from fairlead.tasks.door import Bound, bound_fields
from fairlead.tasks.priority import Priority
from fairlead.tasks.work import Work

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from fairlead.core import Explanation
    from fairlead.tasks.scheduler import Scheduler, TaskTicket
    from fairlead.tasks.stats import SchedulerStats

RUNNING = State.RUNNING


class Submitting:
    """Submit, spawn, take turns, and bind values to the tickets that do."""

    _door: Scheduler
    _fields: Mapping[str, Any]

    async def submit(self, priority: int, work: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run `work(*args, **kwargs)`, or await a given awaitable, when it is its turn; return its result."""
        door = self._door
        ticket = door._enter(priority, work, self._fields, args or kwargs)
        if ticket.state is not RUNNING:
            await door._wait(ticket)
        error: BaseException | None = None
        try:
            result = work if hasattr(work, "__await__") else work(*args, **kwargs)
            return await result if hasattr(result, "__await__") else result
        except BaseException as raised:
            error = raised
            raise
        finally:
            door._leave(ticket, error)

    async def submit_normal(self, work: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Submit with priority 50."""
        return await self.submit(50, work, *args, **kwargs)

    def spawn(self, priority: int, work: Any, /, *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        """Queue work without a task of its own; the future has its result, and cancelling it cancels the work."""
        return self._door._spawn(priority, work, self._fields, args, kwargs)

    def turn(self, priority: int = Priority.NORMAL, timeout: Any = None) -> Turn:
        """Hold a slot in the caller's own task: `async with scheduler.turn(priority=80, timeout=5.0): ...`"""
        fields = self._fields
        if timeout is not None:
            fields = {**fields, "timeout": seconds(timeout, "timeout", zero=True)}
        return Turn(self._door, priority, fields)

    def bind(self, **fields: Unpack[Bound]) -> BoundScheduler:
        """Return a view with the same API whose tickets carry values for policies and capacities.

        Known are tenant, workload, cost, deadline, timeout, rank, pool and estimate.  `timeout` bounds the wait, `deadline` is
        for the policy to read; both count from the submission.
        """
        return BoundScheduler(self._door, {**self._fields, **bound_fields(fields)})

    def stats(self) -> SchedulerStats:
        """Take a snapshot of the counters."""
        return self._door.stats()

    def explain(self, future: asyncio.Future[Any]) -> Explanation:
        """Say why spawned work waits."""
        if not isinstance(future, Work):
            raise Misuse(f"explain() takes what spawn() returned; got {future!r}")
        return self._door._explain(future)


class BoundScheduler(Submitting):
    """A view of a scheduler whose tickets carry a tenant, a cost and the like."""

    def __init__(self, door: Scheduler, fields: Mapping[str, Any]) -> None:
        self._door = door
        self._fields = fields


class Turn:
    """A slot held for the length of an `async with`."""

    __slots__ = ("_door", "_fields", "_priority", "_ticket")

    def __init__(self, door: Scheduler, priority: int, fields: Mapping[str, Any]) -> None:
        self._door = door
        self._priority = priority
        self._fields = fields
        self._ticket: TaskTicket | None = None

    async def __aenter__(self) -> Turn:
        if self._ticket is not None:
            raise Misuse("this turn was entered before; ask the scheduler for a new turn() each time")
        ticket = self._door._enter(self._priority, None, self._fields, False)
        self._ticket = ticket
        if ticket.state is not RUNNING:
            await self._door._wait(ticket)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        if self._ticket is not None:
            self._door._leave(self._ticket, error)
