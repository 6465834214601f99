"""The tasks door: coroutines that share bounded slots, with priorities that age.

One unit of work: `submit` makes a ticket and offers it.  RUNNING, it awaits the function in the caller's own task; WAITING, it
awaits a future first; refused, it raises.  On return, error or cancellation it finishes the ticket, and whoever starts in its
place is woken.  `spawn` does the same without a task per unit (work.py), `turn` without a function.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import types
import warnings
from contextvars import copy_context
from math import inf
from typing import TYPE_CHECKING, Any, Literal, Self

from fairlead.capacities import Slots, Unlimited
from fairlead.config import SchedulerSettings, seconds, whole
from fairlead.core import Change, Gate, Outcome, Policy, QueueLimit, State
from fairlead.errors import (
    ConfigError,
    Misuse,
    NeverFits,
    QueueFull,
    Refused,
    SelfDeadlockWarning,
    ShuttingDown,
    WaitedTooLong,
)
from fairlead.policies import FIFO, Aging, Classes
from fairlead.runtime import LoopGate
from fairlead.tasks.priority import TIER_OF, read_priority
from fairlead.tasks.stats import Counts, SchedulerStats
from fairlead.tasks.submitting import Submitting
from fairlead.tasks.work import TaskTicket, Workers, WorkFuture, discard

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fairlead.core import Capacity, Explanation

EXPIRED, RUNNING, WAITING = State.EXPIRED, State.RUNNING, State.WAITING
CLAMP_LOG_INTERVAL = 60.0
log = logging.getLogger("fairlead")


class Scheduler(Submitting):
    """Bounded concurrency with priorities that age.

    >>> async def main():
    ...     async with Scheduler.bounded(max_concurrency=4) as scheduler:
    ...         return await scheduler.submit(80, asyncio.sleep, 0, "done")
    >>> asyncio.run(main())
    'done'
    """

    def __init__(
        self, gate: LoopGate, workers: Workers, policy: Policy, *, enabled: bool, limit: int
    ) -> None:
        """For `bounded`, `unbounded`, `from_env` and SharedPool; use one of these."""
        self._door = self
        self._fields: Mapping[str, Any] = {}
        self._gate = gate
        self._workers = workers
        self._policy = policy
        self._enabled = enabled
        self._limit = limit
        self._count = Counts()
        self._nested = 0  # holders of a slot that wait for another one
        self._clamp_told_at = -inf
        self._drained = asyncio.Event()
        self.shutting_down = False

    @classmethod
    def bounded(
        cls,
        max_concurrency: int | None = None,
        max_queue_size: int = 0,
        starvation_timeout: Any = "30s",
        *,
        policy: Policy | None = None,
        capacity: Capacity | None = None,
    ) -> Self:
        """Share `max_concurrency` slots (default 16); a `max_queue_size` of 0 lets any number wait.

        `policy` replaces priorities with aging, `capacity` replaces the slots.
        """
        if capacity is not None and max_concurrency is not None:
            raise ConfigError("give max_concurrency or capacity, not both: the capacity says how many run")
        if capacity is None:
            total = 16 if max_concurrency is None else max_concurrency
            capacity = Slots(whole(total, "max_concurrency", 1))
        policy, limit = ordered(policy, max_queue_size, starvation_timeout)
        gate = LoopGate(Gate(policy, capacity))
        return cls(gate, Workers(gate), policy, enabled=True, limit=limit)

    @classmethod
    def unbounded(cls) -> Self:
        """Run everything at once, with the same API."""
        policy = FIFO()
        gate = LoopGate(Gate(policy, Unlimited()))
        return cls(gate, Workers(gate), policy, enabled=False, limit=0)

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
        """Change the number of slots: with more, waiting work starts at once; with fewer, running work finishes."""
        total = whole(max_concurrency, "max_concurrency", 1)
        capacity = self._gate.gate.capacity
        if not isinstance(capacity, Slots):
            raise Misuse(f"resize() needs slots, and this scheduler has {type(capacity).__name__}")
        self._gate.enter("resize")
        self._gate.adjust(Change(capacity.name, "resize", (total,)))

    async def shutdown(self, mode: Literal["drain", "abort"] = "drain", timeout: Any = None) -> None:
        """Take nothing new; drain what waits, or answer it with ShuttingDown; wait for what runs.

        When `timeout` has passed, what waits is aborted, what was spawned is cancelled, and WaitedTooLong is raised.
        """
        if mode not in ("drain", "abort"):
            raise ConfigError(f'mode must be "drain" or "abort"; got {mode!r}')
        limit = None if timeout is None else seconds(timeout, "timeout", zero=True)
        self._gate.enter("shutdown")
        if asyncio.current_task() in self._gate.owners:
            raise Misuse("shutdown() was called from work this scheduler runs: it would wait for itself")
        self.shutting_down = True
        if mode == "abort":
            self._abort()
        self._look_whether_drained()
        try:
            async with asyncio.timeout(limit):
                await self._drained.wait()
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
        if not self._gate.gate.waiting:
            self._gate.rest()

    def _abort(self) -> None:
        waiting = [ticket for ticket in self._waiting() if ticket.state is WAITING]
        self._gate.withdraw(waiting)
        for ticket in waiting:
            ticket.told()

    async def _cancel_spawned(self) -> None:
        spawned = [ticket.future for ticket in self._running() if isinstance(ticket.future, WorkFuture)]
        for future in spawned:
            future.cancel()
        if spawned:
            await asyncio.wait(spawned)
        while self._workers.tasks and not self._gate.gate.active:
            await asyncio.wait(set(self._workers.tasks))

    def _look_whether_drained(self) -> None:
        if not self._count.outstanding:
            self._drained.set()

    # A ticket's way in

    def _enter(
        self, priority: int, work: Any, fields: Mapping[str, Any], called: bool, verb: str = "submit"
    ) -> TaskTicket:
        """Offer a ticket: it runs, or waits, or its refusal is raised and nothing has changed."""
        try:
            ticket = self._offer(TaskTicket(0, work, self), priority, fields, called, verb)
        except BaseException:
            discard(work)
            raise
        if ticket.state is RUNNING:
            gate = self._gate
            ticket.owner = task = asyncio.current_task(gate.loop)
            gate.owners[task] = ticket
        return ticket

    def _offer(
        self, ticket: TaskTicket, priority: int, fields: Mapping[str, Any], called: bool, verb: str
    ) -> TaskTicket:
        gate, count, work = self._gate, self._count, ticket.work
        gate.enter(verb)
        if type(priority) is not int or not 0 <= priority <= 100:
            priority = self._read(priority)
        ticket.priority = priority
        if type(work) is types.CoroutineType:
            _check_fresh(work, called)
        elif work is not None and not callable(work) and not hasattr(work, "__await__"):
            raise ConfigError(f"work must be a function or an awaitable; got {work!r}")
        if self.shutting_down:
            count.refused += 1
            raise ShuttingDown("the scheduler is shutting down and takes nothing new", ticket=ticket)
        if fields:
            self._fill(ticket, fields)
        gate.offer(ticket)
        if ticket.state is RUNNING:
            count.submitted += 1
            count.waits[TIER_OF[priority]][0] += 1
        elif ticket.state is WAITING:
            count.submitted += 1
        else:
            count.refused += 1
            raise self._refusal(ticket)
        return ticket

    def _spawn(
        self,
        priority: int,
        work: Any,
        fields: Mapping[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> WorkFuture:
        ticket = TaskTicket(0, work, self)
        ticket.context = copy_context()
        ticket.args = args
        if kwargs:
            ticket.kwargs = kwargs
        try:
            self._offer(ticket, priority, fields, bool(args or kwargs), "spawn")
        except BaseException:
            discard(work)
            raise
        ticket.future = future = WorkFuture(loop=self._gate.loop)
        future.asked = False
        future.ticket = ticket
        if ticket.state is RUNNING:
            self._workers.start(ticket)
        return future

    def _read(self, priority: Any) -> int:
        number = read_priority(priority)
        clamped = min(100, max(0, number))
        if clamped != number:
            self._count.clamped += 1
            now = self._gate.now()
            if now >= self._clamp_told_at + CLAMP_LOG_INTERVAL:
                self._clamp_told_at = now
                log.warning("priority %d is outside 0..100 and was taken as %d", number, clamped)
        return clamped

    def _fill(self, ticket: TaskTicket, fields: Mapping[str, Any]) -> None:
        now = self._gate.now()
        for name, value in fields.items():
            if name == "timeout":
                ticket.wait_until = now + value
            elif name == "deadline":
                ticket.deadline = now + value
            else:
                setattr(ticket, name, value)

    async def _wait(self, ticket: TaskTicket) -> None:
        """Wait until the ticket runs; on every other way out it holds nothing and its coroutine is closed."""
        gate = self._gate
        ticket.future = future = gate.entered.create_future()
        task = asyncio.current_task(gate.loop)
        nested = task in gate.owners
        if nested:
            self._nested += 1
            if self._nested >= gate.gate.active:
                warnings.warn(self._deadlock(), SelfDeadlockWarning, stacklevel=4)
        try:
            await future
        except BaseException:
            discard(ticket.work)
            if ticket.state is WAITING:
                self._withdraw(ticket)
            elif ticket.state is RUNNING:  # cancelled between grant and start
                self._count.cancelled += 1
                gate.finish(ticket, Outcome.LOST)
                self._after_end()
            raise
        finally:
            ticket.future = None
            if nested:
                self._nested -= 1
        if ticket.state is not RUNNING:
            discard(ticket.work)
            raise self._refusal(ticket)
        ticket.owner = task
        gate.owners[task] = ticket

    def _deadlock(self) -> str:
        return (
            f"submit from inside a task while max_concurrency={self._gate.gate.active}: it waits for a slot, and every "
            "slot is held by work that waits for one; give the slot back first, or raise max_concurrency"
        )

    # A ticket's way out

    def _leave(self, ticket: TaskTicket, error: BaseException | None) -> None:
        """Finish a ticket whose work ran in its caller's task."""
        gate = self._gate
        gate.owners.pop(ticket.owner, None)
        self._ended(ticket, Outcome.OK, error)
        gate.finish(ticket)
        if self.shutting_down:
            self._look_whether_drained()

    def _ended(self, ticket: TaskTicket, outcome: Outcome, error: BaseException | None) -> None:
        count = self._count
        if outcome is Outcome.LOST:
            count.cancelled += 1
            return
        count.completed[TIER_OF[ticket.priority]] += 1
        if error is not None and not isinstance(error, asyncio.CancelledError):
            count.failed += 1

    def _withdraw(self, ticket: TaskTicket) -> None:
        """Take a waiting ticket back on behalf of its caller."""
        self._left(ticket)
        self._gate.withdraw([ticket])
        self._after_end()

    def _left(self, ticket: TaskTicket) -> None:
        """Count a ticket that leaves without having started, and the promotions it had gained."""
        self._count.cancelled += 1
        if ticket.state is EXPIRED:
            self._count.expired += 1
        self._count.promotions += self._steps(ticket, self._gate.now())

    def _after_end(self) -> None:
        if self.shutting_down:
            self._look_whether_drained()

    def _started(self, ticket: TaskTicket) -> None:
        """Count a ticket that starts after a wait."""
        self._count.started(ticket)
        self._count.promotions += self._steps(ticket, ticket.started_at)

    def _refusal(self, ticket: TaskTicket) -> Refused:
        """Say why a ticket did not run."""
        reason = ticket.reason
        if isinstance(reason, QueueLimit):
            return QueueFull(reason.queue or "scheduler", reason.waiting, reason.limit, ticket=ticket)
        if ticket.state is EXPIRED:
            waited = self._gate.now() - ticket.arrived_at
            message = f"no slot came free within {waited:g} s; retry later or allow a longer timeout"
            return WaitedTooLong(message, ticket=ticket)
        if ticket.state is State.WITHDRAWN:
            return ShuttingDown("the scheduler was shut down before this work started", ticket=ticket)
        return NeverFits(f"the work cannot ever run: {reason}", ticket=ticket)

    # What there is to see

    def _steps(self, ticket: TaskTicket, now: float) -> int:
        policy = self._policy
        return policy.steps(ticket, now) if isinstance(policy, Aging) else 0

    def _running(self) -> Iterator[TaskTicket]:
        return (ticket for ticket in self._gate.gate.holders if ticket.door is self)  # type: ignore[attr-defined,misc]

    def _waiting(self) -> Iterator[TaskTicket]:
        return iter(list(self._policy))  # type: ignore[arg-type]

    def _explain(self, ticket: TaskTicket) -> Explanation:
        return self._gate.gate.explain(ticket, self._gate.now())

    def _stats(self) -> SchedulerStats:
        count, capacity = self._count, self._gate.gate.capacity
        now = self._gate.now()
        promotions = count.promotions
        if isinstance(self._policy, Aging):
            promotions += sum(self._policy.steps(ticket, now) for ticket in self._policy)
        elif isinstance(self._policy, Classes):
            promotions = self._policy.promotions
        low, _, high = count.completed
        return SchedulerStats(
            enabled=self._enabled,
            active_count=sum(1 for _ in self._running()),
            queued_count=len(self._policy),
            total_submitted=count.submitted,
            total_completed=sum(count.completed),
            high_priority_completed=high,
            low_priority_completed=low,
            starvation_promotions=promotions,
            total_failed=count.failed,
            total_cancelled=count.cancelled,
            total_refused=count.refused,
            total_clamped=count.clamped,
            total_expired=count.expired,
            max_concurrency=capacity.total if isinstance(capacity, Slots) else None,
            max_queue_size=self._limit,
            shutting_down=self.shutting_down,
            waits=count.histograms(),
        )


def ordered(policy: Policy | None, max_queue_size: int, starvation_timeout: Any) -> tuple[Policy, int]:
    """Make or take the policy of a scheduler, with its queue limit."""
    limit = whole(max_queue_size, "max_queue_size", 0, 10**9)
    timeout = seconds(starvation_timeout, "starvation_timeout")
    if policy is None:
        policy = Aging.over(timeout)
    elif not isinstance(policy, Policy):
        raise ConfigError(f"policy must be a fairlead.Policy, such as FairQueue(); got {policy!r}")
    if limit:
        policy.limit = limit
    return policy, limit


def _check_fresh(work: Any, called: bool) -> None:
    if called:
        raise ConfigError("a coroutine object takes no arguments: pass the function and its arguments, or only the object")
    if inspect.getcoroutinestate(work) != inspect.CORO_CREATED:
        raise Misuse(f"{work!r} was already awaited; pass the function, or a new coroutine object")
