"""Work given to `spawn`: tickets with a callable, futures that can cancel it, and the workers that run it.

A queued unit of work is a ticket and a future, no task: a task costs a kilobyte and four microseconds.  Workers are tasks that live
while there is work: one takes the next started ticket straight from the finish of its last, so that a full queue drains
without a trip through the loop per unit.
"""

from __future__ import annotations

import asyncio
import types
from typing import TYPE_CHECKING, Any

from fairlead.core.ticket import RUNNING, WAITING, Outcome
from fairlead.runtime import LoopGate, LoopTicket

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator
    from contextvars import Context

    from fairlead.tasks.scheduler import Scheduler

TURN = 100  # units of work a worker runs before it lets the loop look at others


class TaskTicket(LoopTicket):
    """A ticket of the tasks door.  `future` wakes the caller of submit and turn, or is what `spawn` returned."""

    __slots__ = ("args", "context", "door", "future", "kwargs", "owner")

    def __init__(self, priority: int, work: Any, door: Scheduler) -> None:
        super().__init__(None, priority, 1, work)
        self.door = door
        self.future: asyncio.Future[Any] | None = None
        self.owner: asyncio.Task[Any] | None = None  # the task that runs the work
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] | None = None
        self.context: Context | None = None  # not None: spawned

    def told(self) -> None:
        door, future = self.door, self.future
        if self.state is RUNNING:
            door._started(self)
            if self.context is not None:
                door._workers.start(self)
            elif future is not None and not future.done():
                future.set_result(None)
            return
        door._left(self)
        if self.context is not None:
            door._workers.refuse(self)
        elif future is not None and not future.done():
            future.set_result(None)


class WorkFuture(asyncio.Future[Any]):
    """The result of spawned work; cancelling it withdraws queued work and cancels running work."""

    __slots__ = ("asked", "ticket")

    asked: bool  # to cancel work that runs
    ticket: TaskTicket | None

    def cancel(self, msg: Any | None = None) -> bool:
        ticket = self.ticket
        if ticket is None or self.done():
            return super().cancel(msg)
        if ticket.state is WAITING:
            self.ticket = None
            ticket.door._withdraw(ticket)
            discard(ticket.work)
            return super().cancel(msg)
        if ticket.owner is None:  # granted, but not begun: its worker will find it cancelled
            return super().cancel(msg)
        self.asked = True
        return ticket.owner.cancel(msg)  # as with a task, it is done when the work has ended


class Workers:
    """The worker tasks of one gate."""

    def __init__(self, gate: LoopGate) -> None:
        self._gate = gate
        self.tasks: set[asyncio.Task[None]] = set()

    def start(self, ticket: TaskTicket) -> None:
        """Run a ticket that has just been started, in a worker of its own."""
        task = self._gate.entered.create_task(self._work(ticket), name="fairlead-worker")
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def rest(self) -> None:
        """Wait for workers that have nothing left to run to end."""
        while self.tasks and not self._gate.gate.active:
            await asyncio.wait(set(self.tasks))

    def refuse(self, ticket: TaskTicket) -> None:
        """Answer a queued ticket that will not run: it expired, or the scheduler was aborted."""
        future = ticket.future
        discard(ticket.work)
        if isinstance(future, WorkFuture):
            future.ticket = None
            if not future.done():
                future.set_exception(ticket.door._refusal(ticket))

    async def _work(self, first: TaskTicket) -> None:
        task = asyncio.current_task()
        ticket: TaskTicket | None = first
        begun = 0
        while ticket is not None:
            future: Any = ticket.future
            if future.done():  # cancelled between grant and start
                discard(ticket.work)
                ticket = self._next(ticket, Outcome.LOST, None)
                continue
            ticket.owner = task
            error: BaseException | None = None
            try:
                future.set_result(await _run(ticket))
            except asyncio.CancelledError as cancelled:
                asyncio.Future.cancel(future)
                error = cancelled
            except BaseException as raised:
                future.set_exception(_bearable(raised))
                error = raised
            following = self._next(ticket, Outcome.OK, error)
            if future.asked:
                await _uncancel(task)
            elif error is not None and not isinstance(error, Exception):
                self._leave(task, error, following)
            ticket = following
            begun += 1
            if begun % TURN == 0 and ticket is not None:
                await asyncio.sleep(0)

    def _next(
        self, ticket: TaskTicket, outcome: Outcome, error: BaseException | None
    ) -> TaskTicket | None:
        """End a ticket and take over one of those that start in its place."""
        ticket.future.ticket = None  # type: ignore[union-attr]
        door = ticket.door
        door._ended(ticket, outcome, error)
        following: TaskTicket | None = None
        for other in self._gate.release(ticket, outcome):
            if following is None and other.state is RUNNING and other.context is not None:  # type: ignore[attr-defined]
                following = other  # type: ignore[assignment]
                other.door._started(other)  # type: ignore[attr-defined]
            else:
                other.told()  # type: ignore[attr-defined]
        if door.shutting_down:
            door._look_whether_drained()
        return following

    def _leave(
        self, task: asyncio.Task[Any] | None, error: BaseException, following: TaskTicket | None
    ) -> None:
        """Decide what becomes of a worker whose work ended with more than an Exception."""
        if isinstance(error, asyncio.CancelledError):
            if task is None or not task.cancelling():
                return  # the work cancelled itself
            while following is not None:  # the loop is closing: what is queued goes with it
                asyncio.Future.cancel(following.future)  # type: ignore[arg-type]
                discard(following.work)
                following = self._next(following, Outcome.LOST, None)
        elif following is not None:
            self.start(following)
        raise error


async def _run(ticket: TaskTicket) -> Any:
    context, result = ticket.context, ticket.work
    assert context is not None  # noqa: S101 - spawned
    if type(result) is not types.CoroutineType:
        result = context.run(result, *ticket.args, **(ticket.kwargs or {}))
    if type(result) is types.CoroutineType:
        return await _drive(result, context)
    return await result if hasattr(result, "__await__") else result


@types.coroutine
def _drive(work: Coroutine[Any, Any, Any], context: Context) -> Generator[Any, Any, Any]:
    """Await `work`, each of its steps inside the context it was spawned from."""
    step: Any = work.send
    value: Any = None
    while True:
        try:
            waits_for = context.run(step, value)
        except StopIteration as stop:
            return stop.value
        try:
            value = yield waits_for
            step = work.send
        except GeneratorExit:
            work.close()
            raise
        except BaseException as error:
            value = error
            step = work.throw


async def _uncancel(task: asyncio.Task[Any] | None) -> None:
    """Take back a cancellation meant for work that has ended, delivered or not."""
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        pass
    while task is not None and task.cancelling():
        task.uncancel()


def _bearable(error: BaseException) -> BaseException:
    """A future cannot carry StopIteration."""
    if isinstance(error, StopIteration):
        wrapped = RuntimeError("the work raised StopIteration")
        wrapped.__cause__ = error
        return wrapped
    return error


def discard(work: Any) -> None:
    """Close a coroutine that will not be awaited."""
    if type(work) is types.CoroutineType:
        work.close()
