"""Work given to `spawn`, and the workers that run it.

A queued unit of work is one object, a ticket that is its own future, and no task: a task costs a kilobyte and
four microseconds.  Workers are tasks that live while there is work: one takes the next started ticket straight
from the finish of its last, so that a full queue drains without a trip through the loop per unit.
"""

from __future__ import annotations

import asyncio
import inspect
import types
from contextvars import Context
from math import inf
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Literal

from fairlead.core.ticket import RUNNING, WAITING, WITHDRAWN, LeanTicket, Outcome, Ticket
from fairlead.errors import PolicyError
from fairlead.runtime.loop import task_of
from fairlead.tasks.stats import NOTED

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator, Sequence

    from fairlead.runtime import LoopGate
    from fairlead.tasks.scheduler import Scheduler

    class _TicketAndFuture(Ticket, asyncio.Future[Any]):  # type: ignore[misc]
        """Two classes with slots cannot be joined at run time; the core asks for attributes only."""

        def __init__(self, *, loop: asyncio.AbstractEventLoop | None) -> None: ...

else:
    _TicketAndFuture = asyncio.Future

TURN = 100  # units of work a worker runs before it lets the loop look at others
OK = Outcome.OK
set_result = asyncio.Future.set_result  # to look it up on a future takes longer than to call it


# What a policy, a capacity or a bound view may write on a ticket, and seldom does.
SELDOM = {"can_preempt", "evictable", "hold_until", "promoted", "scopes", "wait_until"}


class Work(_TicketAndFuture):
    """A unit of spawned work: cancelling it withdraws what waits and cancels what runs."""

    __slots__ = (*(set(LeanTicket.__slots__) - SELDOM), "context", "door", "owner")

    context: Context | None  # of the spawner; None: it had no variables
    door: Scheduler
    owner: Worker | Literal[False] | None  # that runs it; False: a worker has it, and is about to

    def told(self) -> None:
        """Carry out the verdict the gate has just written."""
        if self.state is RUNNING:
            self.door._started(self)
            self.door._workers.start(self)
            return
        if self.owner is not None:
            # Its hold has expired: it goes on, and is counted when it ends.
            self.door._count.adrift.add(self)
            return
        if self.started_at < inf:  # it started and expired within one late verb
            self.door._started(self)
            self.door._ended(self, Outcome.LOST, None)
            self.door._look_whether_drained()
        else:
            self.door._left(self)
        self._forget()
        if not self.done():
            self.set_exception(self.door._refusal(self))
            if self.state is WITHDRAWN:
                self.exception()  # who aborts a scheduler knows; nobody need be told by a log

    def cancel(self, msg: Any | None = None) -> bool:
        """Withdraw work that waits; cancel work that runs, and be done when it has ended, as a task is."""
        if self.done():
            return False
        if self.state is WAITING:
            self.door._withdraw(self)
            self._forget()
        elif self.owner:
            return self.owner.cancel_work(msg)
        # else it is granted and not begun: its worker will find it cancelled
        return asyncio.Future.cancel(self, msg)

    def _forget(self) -> None:
        """Let go of what was to be run; a coroutine that will not be awaited is closed."""
        discard(self.work)
        self.work = self.context = None


# A future has a dict: what few units of work carry is a default of the class, and kept there only if it was set.
for _name in Ticket.RARE:
    setattr(Work, _name, getattr(LeanTicket, _name))
Work.can_preempt = Work.evictable = Work.promoted = False
Work.hold_until = Work.wait_until = inf
Work.scopes = ()


class Worker(asyncio.Task[None]):
    """A task that runs one unit after another, and knows whether a cancellation is meant for the unit or for itself.

    What a unit does to its own task ends that unit alone.  Whoever else cancels a worker and does not take it back,
    as a timeout inside the unit would, means the worker and what is queued: so does a loop that ends.
    """

    __slots__ = ("meant_for_work", "touched", "work")

    meant_for_work: int  # how many of `cancelling()` are
    touched: bool  # there was a cancellation, which may be yet to arrive though it was taken back
    # The unit that runs or is next, whether it holds its room or lost it; None: it has none left, or handed it on.
    work: Work | None

    def cancel(self, msg: Any | None = None) -> bool:
        # Asked of this loop, not of a running one: loops are ended from outside, when none runs.
        if task_of(self.get_loop()) is self:
            return self.cancel_work(msg)
        self.touched = True
        return super().cancel(msg)

    def cancel_work(self, msg: Any | None) -> bool:
        """Cancel the unit that runs."""
        self.touched = True
        self.meant_for_work += 1
        return super().cancel(msg)

    def uncancel(self) -> int:
        left = super().uncancel()
        self.meant_for_work = min(self.meant_for_work, left)
        return left

    async def pause(self) -> None:
        """Let the loop look at others between two units, and what cancelled the last one hit nobody else."""
        while self.cancelling():
            self.uncancel()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if self.cancelling():
                raise  # it came just now, when no unit runs
        self.touched = False


class Workers:
    """The workers of one gate."""

    def __init__(self, gate: LoopGate) -> None:
        self._gate = gate
        self.tasks: set[Worker] = set()

    def start(self, work: Work) -> None:
        """Run work that has just been granted its slot, in a worker of its own."""
        work.owner = False
        own = Context() if work.context is None else work.context
        worker = Worker(
            self._work(work, own), loop=self._gate.entered, name="fairlead-worker", context=own
        )
        worker.meant_for_work, worker.touched, worker.work = 0, False, work
        self.tasks.add(worker)
        worker.add_done_callback(self._ended)

    def _ended(self, worker: Worker) -> None:
        """A worker that was cancelled before its first step could not see to its unit itself."""
        self.tasks.discard(worker)
        if worker.work is not None:
            self._abandon(worker)

    def of(self, door: Scheduler) -> list[Work]:
        """Tell the work of one door that has started and not ended."""
        return [task.work for task in self.tasks if task.work and task.work.door is door]

    async def rest(self) -> None:
        """Wait for workers that have nothing left to run to end, which takes a step or two."""
        ending = [task for task in self.tasks if task.work is None]
        if ending:
            await asyncio.wait(ending)

    async def _work(self, first: Work, own: Context) -> None:
        """Run one unit after another.

        Work whose spawner had context variables runs inside a copy of them, which is this task's `own` context if it
        is its first; other work needs one that is empty, and if this task's is not, a new worker.
        """
        task: Any = asyncio.current_task()
        work: Work | None = first
        following: Any
        gate = self._gate
        relay, clock = gate.gate.relay, gate.clock
        while work is not None:
            if own and work.context is None:
                self._hand_on(task)
                return
            if work.done():  # others ran since it was granted its slot, and have cancelled it
                discard(work.work)
                task.work = work = self._end(work, Outcome.LOST, None)
                continue
            for _ in range(TURN):
                work.owner = task
                context = work.context
                try:
                    result = work.work
                    if context is None or context is own:  # else this task runs inside of another
                        if callable(result):
                            result = result()
                        if type(result) is CoroutineType or hasattr(type(result), "__await__"):
                            result = await result
                    else:
                        if callable(result):
                            result = context.run(result)
                        if type(result) is CoroutineType:
                            result = await _inside(context, result)
                        elif hasattr(type(result), "__await__"):
                            result = await result
                    set_result(work, result)
                except asyncio.CancelledError as cancelled:
                    asyncio.Future.cancel(work)
                    task.work = following = self._end(work, OK, cancelled)
                    self._leave(task, cancelled)
                except BaseException as raised:
                    work.set_exception(_bearable(raised))
                    task.work = following = self._end(work, OK, raised)
                    if not isinstance(raised, Exception):
                        self._leave(task, raised)
                else:
                    # Most end well and leave their slot to the next.  What a call would cost: benchmarks/tasks.py.
                    work.work = work.context = (
                        None  # what this frees may do anything, and nobody is granted yet
                    )
                    try:
                        following = relay(work, clock())
                    except PolicyError as failure:
                        gate.report(failure)
                        following = self._close(work, OK, None, ())
                    else:
                        if following is None:
                            following = self._end(work, OK, None)
                        elif type(following) is not Work or work.door.shutting_down:
                            following = self._close(work, OK, None, (following,))
                        else:
                            work.door._count.tally_of[work.priority].completed += 1
                            door = following.door
                            wait = following.started_at - following.arrived_at
                            tally = door._count.tally_of[following.priority]
                            tally.noted.append(wait)
                            if len(tally.noted) >= NOTED:
                                tally.count()
                            if wait >= door._first_step:
                                door._count_steps(following)
                    task.work = following
                if following is None or task.touched or (own and following.context is None):
                    break
                work = following
            work = following
            if work is not None:
                work.owner = False
            elif not task.touched:
                break
            try:
                await task.pause()
            except asyncio.CancelledError as cancelled:
                self._leave(task, cancelled)

    def _end(self, work: Work, outcome: Outcome, error: BaseException | None) -> Work | None:
        """End a unit of work, however it went, and take over one that starts in its place."""
        gate = self._gate
        work.work = work.context = None
        changed: Sequence[Ticket] = ()
        try:
            changed = gate.gate.finish(work, gate.now(), outcome)
        except PolicyError as failure:
            gate.report(failure)
        return self._close(work, outcome, error, changed)

    def _close(
        self,
        work: Work,
        outcome: Outcome,
        error: BaseException | None,
        changed: Sequence[Ticket],
    ) -> Work | None:
        """Count a unit whose room is given back, and tell who has changed by it.

        The first of them is taken over, if it is spawned work that starts.
        """
        door = work.door
        door._ended(work, outcome, error)
        following: Work | None = None
        if changed and type(changed[0]) is Work and changed[0].state is RUNNING:
            following, changed = changed[0], changed[1:]
            following.door._started(following)
        self._gate.after(changed)
        if door.shutting_down:
            door._look_whether_drained()
        return following

    def _leave(self, task: Worker, error: BaseException) -> None:
        """Decide what becomes of a worker that is cancelled, or whose work ended with more than an Exception."""
        if isinstance(error, asyncio.CancelledError):
            if task.cancelling() <= task.meant_for_work:
                return  # the work was cancelled, or cancelled itself
            self._abandon(task)
        elif task.work is not None:
            self._hand_on(task)
        raise error

    def _hand_on(self, worker: Worker) -> None:
        """Leave the next unit to another worker."""
        following, worker.work = worker.work, None
        self.start(following)  # type: ignore[arg-type]

    def _abandon(self, worker: Worker) -> None:
        """The loop is closing: what is queued goes with the worker."""
        following, worker.work = worker.work, None
        while following is not None:
            asyncio.Future.cancel(following)
            discard(following.work)
            following = self._end(following, Outcome.LOST, None)


@types.coroutine
def _inside(context: Context, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Await `work`, each of its steps inside the context it was spawned from."""
    run, step = context.run, work.send
    value: Any = None
    while True:
        try:
            waits_for = run(step, value)
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


def _bearable(error: BaseException) -> BaseException:
    """A future cannot carry StopIteration."""
    if isinstance(error, StopIteration):
        wrapped = RuntimeError("the work raised StopIteration")
        wrapped.__cause__ = error
        return wrapped
    return error


def discard(work: Any) -> None:
    """Close a coroutine that will not be awaited, unless it is under way elsewhere."""
    if type(work) is CoroutineType and inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
        work.close()
