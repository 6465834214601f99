"""The tasks door: coroutines that share bounded slots, with priorities that age.

One unit of work: `submit` makes a ticket and offers it.  RUNNING, it awaits the function in the caller's own task;
WAITING, it awaits a future first; refused, it raises.  On return, error or cancellation it finishes the ticket, and
whoever starts in its place is woken.  `spawn` does the same without a task per unit (work.py), `turn` without a
function.
"""

from __future__ import annotations

import asyncio
import inspect
import warnings
from asyncio import Future, current_task
from functools import partial
from math import inf
from types import BuiltinFunctionType, CoroutineType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Literal, Self

from fairlead.capacities import Slots, Unlimited
from fairlead.config import SchedulerSettings, seconds, shown, whole
from fairlead.core import Change, Gate, Outcome, Policy, State
from fairlead.core.ticket import UNSET
from fairlead.errors import ConfigError, Misuse, PolicyError, SelfDeadlockWarning, WaitedTooLong
from fairlead.policies import FIFO
from fairlead.runtime import LoopGate
from fairlead.runtime.loop import task_of
from fairlead.tasks.door import DEFAULT_SLOTS, Door, aging_or, slots_or
from fairlead.tasks.priority import read_priority
from fairlead.tasks.submitting import Submitting, TaskTicket
from fairlead.tasks.work import Work, Workers, discard

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from fairlead.core import Capacity
    from fairlead.runtime import MakeGate

NEW, RUNNING, WAITING, WITHDRAWN = State.NEW, State.RUNNING, State.WAITING, State.WITHDRAWN
OK = Outcome.OK
PLAIN = frozenset({FunctionType, MethodType, BuiltinFunctionType, partial})  # needs no second look


class Scheduler(Door, Submitting):
    """Bounded concurrency with priorities that age.

    >>> async def main():
    ...     async with Scheduler.bounded(max_concurrency=4) as scheduler:
    ...         return await scheduler.submit(80, asyncio.sleep, 0, "done")
    >>> asyncio.run(main())
    'done'
    """

    def __init__(
        self, gate: LoopGate, workers: Workers, policy: Policy, *, enabled: bool = True
    ) -> None:
        """For `bounded`, `unbounded`, `from_env` and SharedPool; use one of these."""
        super().__init__(gate.gate, policy, gate.now, enabled=enabled)
        self._door = self
        self._fields: Mapping[str, Any] = {}
        self._gate = gate
        self._workers = workers
        self._drained = asyncio.Event()

    @classmethod
    def bounded(
        cls,
        max_concurrency: int = DEFAULT_SLOTS,
        max_queue_size: int = 0,
        starvation_timeout: Any = "30s",
        *,
        policy: Policy | None = None,
        capacity: Capacity | None = None,
        gate: MakeGate = Gate,
    ) -> Self:
        """Share `max_concurrency` slots (default 16); a `max_queue_size` of 0 lets any number wait.

        `policy` replaces priorities with aging, `capacity` the slots, and `gate` what joins them: `Feed.gate` watches.
        """
        capacity = slots_or(capacity, max_concurrency)
        policy = aging_or(policy, max_queue_size, starvation_timeout)
        loop_gate = LoopGate(gate(policy, capacity))
        return cls(loop_gate, Workers(loop_gate), policy)

    @classmethod
    def unbounded(cls) -> Self:
        """Run everything at once, with the same API."""
        policy = FIFO()
        gate = LoopGate(Gate(policy, Unlimited()))
        return cls(gate, Workers(gate), policy, enabled=False)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Make what FAIRLEAD_SCHEDULER_ENABLED, _MAX_CONCURRENCY, _MAX_QUEUE_SIZE and _STARVATION_TIMEOUT say."""
        settings = SchedulerSettings.from_env(environ)
        return cls.bounded(*settings[1:]) if settings.enabled else cls.unbounded()

    async def __aenter__(self) -> Self:
        self._gate.enter("async with")
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.shutdown()

    def resize(self, max_concurrency: int) -> None:
        """Change the number of slots: with more, waiting work starts at once; with fewer, running work finishes.

        An unbounded scheduler has none to change, and goes on without a limit.
        """
        total = whole(max_concurrency, "max_concurrency", 1)
        capacity = self._core.capacity
        if isinstance(capacity, Unlimited):
            return
        if not isinstance(capacity, Slots):
            raise Misuse(f"resize() needs slots, and this scheduler has {type(capacity).__name__}")
        self._gate.enter("resize")
        self._gate.adjust(Change(capacity.name, "resize", (total,)))

    async def shutdown(
        self, mode: Literal["drain", "abort"] = "drain", timeout: Any = None
    ) -> None:
        """Take nothing new; drain what waits, or answer it with ShuttingDown; wait for what runs.

        When `timeout` has passed, what waits is aborted, what was spawned is cancelled, and WaitedTooLong is raised.
        """
        if mode not in ("drain", "abort"):
            raise ConfigError(f'mode must be "drain" or "abort"; got {shown(mode)}')
        limit = None if timeout is None else seconds(timeout, "timeout", zero=True)
        self._gate.enter("shutdown")
        task = current_task()
        holders: Any = self._core.holders
        ours = [ticket for ticket in holders if self._owns(ticket)]
        if any(ticket.owner is task for ticket in (*ours, *self._workers.of(self))):
            raise Misuse(
                "shutdown() was called from work this scheduler runs: it would wait for itself"
            )
        self.shutting_down = True
        if mode == "abort":
            self._abort()
        self._look_whether_drained()
        try:
            if not self._drained.is_set():
                async with asyncio.timeout(limit):
                    await self._drained.wait()
            await self._workers.rest()
        except TimeoutError:
            left = self._count.outstanding
            self._abort()
            await self._cancel_spawned()
            raise WaitedTooLong(
                f"{left} units of work had not finished {limit:g} s after shutdown began; "
                "what waited was aborted, what was spawned was cancelled"
            ) from None
        except asyncio.CancelledError:
            self._abort()
            raise
        if not self._core.waiting:
            self._gate.rest()

    def _abort(self) -> None:
        waiting: list[Any] = list(self._policy)
        self._gate.withdraw(waiting)
        for ticket in waiting:
            # Others have expired or started on the way, and were told.
            if ticket.state is WITHDRAWN:
                ticket.told()
        self._look_whether_drained()

    async def _cancel_spawned(self) -> None:
        """Cancel running work of ours; work in callers' own tasks is theirs to cancel."""
        spawned = self._workers.of(self)
        for work in spawned:
            work.cancel()
        if spawned:
            await asyncio.wait(spawned)
        await self._workers.rest()

    def _look_whether_drained(self) -> None:
        if self.shutting_down and not self._count.outstanding:
            self._drained.set()

    # A ticket's way in.  This is the hot path (benchmarks/tasks.py): few calls, each step in its place.

    def _offer(
        self,
        ticket: TaskTicket | Work,
        priority: int,
        work: Any,
        fields: Mapping[str, Any],
        called: Any,
        task: asyncio.Task[Any] | None,
    ) -> bool:
        """Fill in a new ticket, offer it and say whether it runs; if this raises, nothing has changed.

        A coroutine object that is refused is closed.  `task` is the caller's, if it was found on the gate's own loop
        and thread: that is cheaper than to ask for the running loop, which takes a system call before Python 3.12.
        """
        gate, core = self._gate, self._core
        ticket.state = NEW
        ticket.priority = priority
        ticket.work = work
        ticket.door = self
        ticket.place = ticket.owner = None
        ticket.started_at = inf
        ticket.arrived_at = UNSET
        if (
            task is None
            or type(priority) is not int
            or not 0 <= priority <= 100
            or type(work) not in PLAIN
            or fields
            or self.shutting_down
        ):
            task = self._prepare(ticket, fields, called)
        clock = gate.clock  # that of the loop, which has been entered
        try:
            now = clock()
            if not (core.waiting and core.line_up(ticket, now)):
                changed = core.offer(ticket, now)
            elif now < core.due:
                if core.due < gate.timer_at:
                    gate.after(())
                self._count.submitted += 1
                return False
            else:  # it may wait no longer than that
                changed = [other for other in core.advance(now) if other is not ticket]
        except BaseException:
            discard(ticket.work)
            gate.after(())  # of a verb that fails, the next one tells what it had changed
            raise
        if changed or core.due < gate.timer_at:
            gate.after(changed)
        state = ticket.state
        if state is WAITING:
            self._count.submitted += 1
            return False
        if state is RUNNING:
            self._count.submitted += 1
            ticket.owner = task
            return True
        discard(work)
        self._count.refused += 1
        raise self._refusal(ticket)

    def _prepare(
        self, ticket: TaskTicket | Work, fields: Mapping[str, Any], called: Any
    ) -> asyncio.Task[Any] | None:
        """Check what is not plainly in order, and write the values of a bound view on the ticket."""
        work = ticket.work
        try:
            self._gate.enter("spawn" if type(ticket) is Work else "submit")
            if type(work) is CoroutineType:
                _check_fresh(work, called)
            elif not callable(work):
                _check_awaitable(work, called)
            read_priority(ticket.priority)
            self._refuse_when_shutting_down()
            ticket.priority = self._read(ticket.priority)
            self._fill(ticket, fields)
            return current_task()
        except BaseException:
            discard(work)
            raise

    def _prepare_spawn(self, work: Any) -> None:
        """Find the loop that a future is to belong to."""
        try:
            self._gate.enter("spawn")
        except Misuse:
            discard(work)
            raise

    def _wait(self, ticket: TaskTicket) -> Generator[Any, None, None]:
        """Wait until the ticket runs; on every other way out it holds nothing and its coroutine is closed."""
        gate = self._gate
        task = task_of(gate.loop)
        woken: Future[None] = Future(loop=gate.loop)
        ticket.woken = woken
        gate.blocked.add(task)
        try:
            if self._all_blocked(task) and self._explain(ticket).ready_at == inf:
                warnings.warn(self._deadlock(), SelfDeadlockWarning, stacklevel=3)
            yield from woken
        except BaseException:
            discard(ticket.work)
            if ticket.state is WAITING:
                self._withdraw(ticket)
            elif ticket.state is RUNNING:  # cancelled between grant and start
                self._finish(ticket, Outcome.LOST, None)
            raise
        finally:
            ticket.woken = None
            gate.blocked.discard(task)
        if ticket.state is not RUNNING:
            discard(ticket.work)
            raise self._refusal(ticket)
        ticket.owner = task

    def _all_blocked(self, task: Any) -> bool:
        """Does every slot belong to a task that waits for one, this task among them?"""
        holders: Any = self._core.holders
        blocked = self._gate.blocked
        for holder in holders:
            if holder.owner not in blocked:
                return False  # as is usual, and at the first of them
        return any(holder.owner is task for holder in holders)

    # A ticket's way out

    def _finish(self, ticket: TaskTicket, outcome: Outcome, error: BaseException | None) -> None:
        """Finish a ticket whose work ran, or was to run, in its caller's task."""
        if error is None and outcome is OK and ticket.state is RUNNING:
            self._count.tally_of[ticket.priority].completed += 1
        else:
            self._ended(ticket, outcome, error)
        gate, core = self._gate, self._core
        clock = gate.clock
        try:
            changed = core.finish(ticket, clock(), outcome)
        except PolicyError as failure:
            gate.report(failure)
            changed = ()
        if changed or core.due < gate.timer_at:
            gate.after(changed)
        if self.shutting_down:
            self._look_whether_drained()

    def _withdraw(self, ticket: TaskTicket | Work) -> None:
        """Take a waiting ticket back on behalf of its caller.

        The verb first brings the gate to now: the ticket may turn out to have expired, or to have started.
        """
        self._gate.withdraw([ticket])
        if ticket.state is WITHDRAWN:
            self._left(ticket)
        elif ticket.state is RUNNING and type(ticket) is not Work:
            # A started Work, in contrast, is finished by its worker.
            self._finish(ticket, Outcome.LOST, None)  # type: ignore[arg-type]


def _check_awaitable(work: Any, called: Any) -> None:
    if not hasattr(work, "__await__"):
        raise ConfigError(f"work must be a function or an awaitable; got {shown(work)}")
    if called:
        raise ConfigError(f"an awaitable takes no arguments; got {shown(called)} with it")


def _check_fresh(work: Any, called: Any) -> None:
    if called:
        raise ConfigError(
            "a coroutine object takes no arguments; pass the function and its arguments instead"
        )
    if inspect.getcoroutinestate(work) != inspect.CORO_CREATED:
        raise Misuse(f"{work!r} was already awaited; pass the function, or a new coroutine object")
