"""The ways to ask a scheduler for a turn, shared by the scheduler itself and by its bound views."""

from __future__ import annotations

from contextvars import copy_context
from functools import partial
from math import inf
from threading import get_ident
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from fairlead.config import seconds
from fairlead.core import Outcome, State, Ticket
from fairlead.core.ticket import LeanTicket
from fairlead.errors import Misuse
from fairlead.runtime.loop import NO_WAIT, task_of
from fairlead.tasks.door import Bound, bound_fields
from fairlead.tasks.priority import Priority
from fairlead.tasks.work import Work

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine, Generator, Mapping
    from types import TracebackType

    from fairlead.core import Explanation
    from fairlead.tasks.scheduler import Scheduler
    from fairlead.tasks.stats import SchedulerStats

NEW, OK, RUNNING = State.NEW, Outcome.OK, State.RUNNING


class TaskTicket(LeanTicket):
    """A ticket of `submit` and `turn`, whose work runs in the caller's own task; awaiting it waits for its slot."""

    __slots__ = ("door", "member", "owner", "reason", "woken")

    door: Scheduler
    owner: asyncio.Task[Any] | None  # the caller's task, while it holds the slot
    woken: asyncio.Future[None] | None  # what the caller awaits, while it waits

    def __await__(self) -> Generator[Any, Any, None]:
        if self.state is RUNNING:
            return NOTHING  # type: ignore[no-any-return]
        return self.door._wait(self)

    def told(self) -> None:
        """Carry out the verdict the gate has just written: wake the caller, who will read it."""
        if self.state is RUNNING:
            self.door._started(self)
        elif self.started_at == inf:
            self.door._left(self)
        elif self.woken is None:
            # Its hold has expired: it runs, and is counted when it ends.
            self.door._count.adrift.add(self)
        else:
            if not self.woken.done():  # it started and expired within one late verb
                self.door._started(self)
            self.door._ended(self, Outcome.LOST, None)
            self.door._look_whether_drained()
        if self.woken is not None and not self.woken.done():
            self.woken.set_result(None)


class Turn(TaskTicket):
    """A slot held for the length of an `async with`; a ticket that is its own context manager.

    Entering and leaving return awaitables that are no coroutines: two of those would cost more than the decision.
    """

    __slots__ = ("_fields",)

    def __init__(self, door: Scheduler, priority: int, fields: Mapping[str, Any]) -> None:
        self.door = door
        self.priority = priority
        self.state = NEW
        self.reason = self.woken = None
        self.scopes = ()
        self.promoted = self.can_preempt = self.evictable = False
        self.wait_until = self.hold_until = inf
        self._fields = fields

    def __await__(self) -> Generator[Any, Any, None]:
        if self.state is NEW:
            raise Misuse("a turn is entered, not awaited: async with scheduler.turn(...)")
        return super().__await__()

    def __repr__(self) -> str:
        return "<Turn not entered>" if self.state is NEW else super().__repr__()

    def __aenter__(self) -> Self:
        if self.state is not NEW:
            raise Misuse(
                "this turn was entered before; ask the scheduler for a new turn() each time"
            )
        door = self.door
        gate = door._gate
        task = task_of(gate.loop) if get_ident() == gate.thread else None
        door._offer(self, self.priority, _the_body, self._fields, None, task)
        return self

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Coroutine[Any, Any, None]:
        self.door._finish(self, OK, error)
        return NO_WAIT


def _the_body() -> None:
    """Stand for the work of a turn, which is whatever the caller does."""


NOTHING: Any = iter(())  # for ever at its end: awaiting it goes on at once
RARE = tuple(name for name in Ticket.RARE if name not in TaskTicket.__slots__)


class BoundTicket(TaskTicket):
    """A ticket with room for what bound views write on tickets."""

    __slots__ = RARE

    def __init__(self) -> None:
        for name in RARE:
            setattr(self, name, getattr(LeanTicket, name))


class BoundTurn(Turn):
    """A turn with room for what bound views write on tickets."""

    __slots__ = RARE

    def __init__(self, door: Scheduler, priority: int, fields: Mapping[str, Any]) -> None:
        Turn.__init__(self, door, priority, fields)
        for name in RARE:
            setattr(self, name, getattr(LeanTicket, name))


class Submitting:
    """Submit, spawn, take turns, and bind values to the tickets that do."""

    _door: Scheduler
    _fields: Mapping[str, Any]

    async def submit(self, priority: int, work: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run `work(*args, **kwargs)`, or await a given awaitable, when it is its turn; return its result."""
        door, fields = self._door, self._fields
        gate = door._gate
        task = task_of(gate.loop) if get_ident() == gate.thread else None
        ticket = BoundTicket() if fields else TaskTicket()
        ticket.reason = ticket.woken = None
        ticket.scopes = ()
        ticket.promoted = ticket.can_preempt = ticket.evictable = False
        ticket.wait_until = ticket.hold_until = inf
        if not door._offer(ticket, priority, work, fields, args or kwargs, task):
            await ticket
        try:
            result = work
            if callable(work):
                result = work(*args, **kwargs) if kwargs else work(*args)
            if type(result) is CoroutineType or hasattr(type(result), "__await__"):
                result = await result
        except BaseException as error:
            door._finish(ticket, OK, error)
            raise
        door._finish(ticket, OK, None)
        return result

    async def submit_normal(self, work: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Submit with priority 50."""
        return await self.submit(50, work, *args, **kwargs)

    def spawn(self, priority: int, work: Any, /, *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        """Queue work without a task of its own; the future has its result, and cancelling it cancels the work."""
        door, fields = self._door, self._fields
        gate = door._gate
        task = task_of(gate.loop) if get_ident() == gate.thread else None
        if task is None:
            door._prepare_spawn(work)
        ticket = Work(loop=gate.loop)
        ticket.context = copy_context() or None
        called = args or kwargs
        runs = door._offer(ticket, priority, work, fields, called, task)
        if called:
            ticket.work = partial(work, *args, **kwargs)
        if runs:
            door._workers.start(ticket)
        return ticket

    def turn(self, priority: int = Priority.NORMAL, timeout: Any = None) -> Turn:
        """Hold a slot in the caller's own task: `async with scheduler.turn(priority=80, timeout=5.0): ...`"""
        fields = self._fields
        if timeout is not None:
            fields = {**fields, "timeout": seconds(timeout, "timeout", zero=True)}
        return (
            BoundTurn(self._door, priority, fields)
            if fields
            else Turn(self._door, priority, fields)
        )

    def bind(self, **fields: Unpack[Bound]) -> BoundScheduler:
        """Return a view with the same API whose tickets carry values for policies and capacities.

        Known are tenant, workload, cost, deadline, timeout, rank, pool and estimate.  `timeout` bounds the wait,
        `deadline` is for the policy to read; both count from the submission.
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

    async def __aenter__(self) -> Self:
        await self._door.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._door.__aexit__(*exc)

    def resize(self, max_concurrency: int) -> None:
        """Resize the scheduler behind the view."""
        self._door.resize(max_concurrency)

    async def shutdown(
        self, mode: Literal["drain", "abort"] = "drain", timeout: Any = None
    ) -> None:
        """Shut down the scheduler behind the view."""
        await self._door.shutdown(mode, timeout)
