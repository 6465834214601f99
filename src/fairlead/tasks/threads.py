"""The tasks door for synchronous code: the same core and the same API, between threads."""

from __future__ import annotations

import inspect
import threading
import warnings
from concurrent.futures import Future
from contextvars import Context, copy_context
from math import inf
from typing import TYPE_CHECKING, Any, Literal, Self

from fairlead.capacities import Slots, Unlimited
from fairlead.config import SchedulerSettings, seconds, shown, whole
from fairlead.core import Change, Gate, Outcome, Policy, State, Ticket
from fairlead.errors import ConfigError, Misuse, SelfDeadlockWarning, WaitedTooLong
from fairlead.policies import FIFO
from fairlead.runtime import ThreadGate
from fairlead.tasks.blocking import ThreadSubmitting
from fairlead.tasks.door import DEFAULT_SLOTS, Door, aging_or, slots_or
from fairlead.tasks.stats import SchedulerStats

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairlead.core import Capacity
    from fairlead.runtime import MakeGate

RUNNING, WAITING = State.RUNNING, State.WAITING
IDLE = 5.0  # seconds a worker thread waits for more work before it ends


class BlockingTicket(Ticket):
    """A ticket of the thread door: it wakes a blocked caller, or hands spawned work to a worker."""

    __slots__ = ("args", "begun", "context", "door", "future", "kwargs", "owner", "woken")

    def __init__(self, priority: int, work: Any, door: ThreadScheduler) -> None:
        super().__init__(None, priority, 1, work)
        self.door = door
        self.begun = False  # it has been told that it has room, which may be taken back again
        self.owner: object = None  # the thread that holds its room: a turn may be left in another
        self.woken: threading.Event | None = None
        self.future: WorkResult | None = None
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self.context: Context | None = None  # of the spawner

    def told(self) -> None:
        door = self.door
        if self.state is RUNNING:
            self.begun = True
            door._started(self)
        elif self.begun:
            # Its hold has expired: it goes on, and is counted when it ends.
            door._count.adrift.add(self)
            return
        elif self.started_at < inf:  # it started and expired within one late verb
            door._started(self)
            door._ended(self, Outcome.LOST, None)
            door._look_whether_drained()
        else:
            door._left(self)
        if self.woken is not None:
            self.woken.set()
        elif self.future is not None:
            door._hand_over(self)


class WorkResult(Future[Any]):
    """The result of spawned work; cancelling it withdraws work that has not started."""

    ticket: BlockingTicket

    def cancel(self) -> bool:
        door = self.ticket.door
        withdrawn = False
        with door._gate.lock:
            if self.ticket.state is WAITING:
                door._withdraw(self.ticket)
                withdrawn = self.ticket.state is State.WITHDRAWN
        if withdrawn:  # callbacks are called without the lock
            super().cancel()
            self.set_running_or_notify_cancel()
        return self.cancelled()


class ThreadScheduler(Door, ThreadSubmitting):
    """Bounded concurrency with priorities that age, for threads.

    >>> with ThreadScheduler.bounded(max_concurrency=2) as scheduler:
    ...     scheduler.spawn(20, pow, 2, 5).result(), scheduler.submit(80, pow, 2, 3)
    (32, 8)
    """

    def __init__(self, gate: ThreadGate, policy: Policy, *, enabled: bool = True) -> None:
        """For `bounded`, `unbounded` and `from_env`; use one of these."""
        super().__init__(gate.gate, policy, gate.now, enabled=enabled)
        self._door = self
        self._fields: Mapping[str, Any] = {}
        self._gate = gate
        self._drained = threading.Condition(gate.lock)
        self._ready: list[BlockingTicket] = []  # started, and not yet with a worker
        self._work = threading.Condition(gate.lock)
        self._workers: set[threading.Thread] = set()
        self._idle = 0

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
        """Share `max_concurrency` slots (default 16) between threads; see `Scheduler.bounded`."""
        capacity = slots_or(capacity, max_concurrency)
        policy = aging_or(policy, max_queue_size, starvation_timeout)
        return cls(ThreadGate(gate(policy, capacity)), policy)

    @classmethod
    def unbounded(cls) -> Self:
        """Run everything at once, with the same API."""
        policy = FIFO()
        return cls(ThreadGate(Gate(policy, Unlimited())), policy, enabled=False)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Make what the FAIRLEAD_SCHEDULER_ variables say."""
        settings = SchedulerSettings.from_env(environ)
        return cls.bounded(*settings[1:]) if settings.enabled else cls.unbounded()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()

    def stats(self) -> SchedulerStats:
        """Take a snapshot of the counters."""
        with self._gate.lock:
            return super().stats()

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
        with self._gate.lock:
            self._gate.adjust(Change(capacity.name, "resize", (total,)))

    def shutdown(self, mode: Literal["drain", "abort"] = "drain", timeout: Any = None) -> None:
        """Take nothing new; drain what waits, or answer it with ShuttingDown; wait for what runs.

        When `timeout` has passed, what waits is aborted and WaitedTooLong is raised; running threads cannot be stopped.
        """
        if mode not in ("drain", "abort"):
            raise ConfigError(f'mode must be "drain" or "abort"; got {shown(mode)}')
        limit = None if timeout is None else seconds(timeout, "timeout", zero=True)
        self._gate.enter("shutdown")
        with self._gate.lock:
            if threading.current_thread() in self._gate.owners:
                raise Misuse(
                    "shutdown() was called from work this scheduler runs: it would wait for itself"
                )
            self.shutting_down = True
            if mode == "abort":
                self._abort()
            drained = self._drained.wait_for(lambda: not self._count.outstanding, limit)
            if not drained:
                left = self._count.outstanding
                self._abort()
                raise WaitedTooLong(
                    f"{left} units of work had not finished {limit:g} s after shutdown began; "
                    "what waited was aborted, what runs goes on"
                )
            self._work.notify_all()
            workers = self._workers - {threading.current_thread()}
        for worker in workers:
            worker.join()
        self._gate.rest()

    def _abort(self) -> None:
        waiting: list[Any] = list(self._policy)
        self._gate.withdraw(waiting)
        for ticket in waiting:
            if ticket.state is State.WITHDRAWN:  # others have expired or started on the way
                ticket.told()

    # A ticket's way in

    def _enter(self, priority: int, work: Any, fields: Mapping[str, Any]) -> BlockingTicket:
        """Take a slot in this thread, waiting for it if need be."""
        ticket = BlockingTicket(priority, work, self)
        thread = threading.current_thread()
        self._gate.enter("submit")
        with self._gate.lock:
            self._offer(ticket, fields)
            if ticket.state is RUNNING:
                ticket.owner = self._gate.own()
                return ticket
            ticket.woken = threading.Event()
            self._gate.blocked.add(thread)
            stuck = self._deadlock() if self._all_blocked(thread, ticket) else None
        try:
            if stuck is not None:
                warnings.warn(stuck, SelfDeadlockWarning, stacklevel=4)
            ticket.woken.wait()
        except BaseException:  # Ctrl-C in the main thread, or the warning as an error
            with self._gate.lock:
                if ticket.state is WAITING:
                    self._withdraw(ticket)
                elif ticket.begun:
                    self._finish(ticket, Outcome.LOST, None)
            raise
        finally:
            with self._gate.lock:
                self._gate.blocked.discard(thread)
        with self._gate.lock:
            if not ticket.begun:
                raise self._refusal(ticket)
            ticket.owner = self._gate.own()
        return ticket

    def _all_blocked(self, thread: object, ticket: BlockingTicket) -> bool:
        """Is every slot held by a thread that waits for one, this thread among them, and no end to it?"""
        owners, blocked = self._gate.owners, self._gate.blocked
        held = sum(slots for owner, slots in owners.items() if owner in blocked)
        if thread not in owners or held < self._core.active:
            return False
        return self._explain(ticket).ready_at == inf

    def _spawn(
        self,
        priority: int,
        work: Any,
        fields: Mapping[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> WorkResult:
        ticket = BlockingTicket(priority, work, self)
        ticket.args, ticket.kwargs, ticket.context = args, kwargs, copy_context()
        ticket.future = future = WorkResult()
        future.ticket = ticket
        self._gate.enter("spawn")
        with self._gate.lock:
            self._offer(ticket, fields)
            if ticket.state is RUNNING:
                self._hand_over(ticket)
        return future

    def _offer(self, ticket: BlockingTicket, fields: Mapping[str, Any]) -> None:
        work, priority = ticket.work, ticket.priority
        if inspect.iscoroutine(work) or inspect.iscoroutinefunction(work):
            if inspect.iscoroutine(work):
                work.close()
            raise ConfigError(
                "a ThreadScheduler runs plain functions; use Scheduler for coroutines"
            )
        if not callable(work):
            raise ConfigError(f"work must be a function; got {shown(work)}")
        if type(priority) is not int or not 0 <= priority <= 100:
            ticket.priority = self._read(priority)
        self._refuse_when_shutting_down()
        self._fill(ticket, fields)
        self._gate.offer(ticket)
        ticket.begun = ticket.state is RUNNING
        self._entered(ticket)

    # Workers

    def _hand_over(self, ticket: BlockingTicket) -> None:
        """Give a ticket to a worker, to be run, or to be answered if it will not start.  The lock is held."""
        self._ready.append(ticket)
        if self._idle >= len(self._ready):
            self._work.notify()
        else:
            worker = threading.Thread(target=self._run_worker, name="fairlead-worker", daemon=True)
            self._workers.add(worker)
            worker.start()

    def _run_worker(self) -> None:
        thread = threading.current_thread()
        lock = self._gate.lock
        while True:
            with lock:
                self._idle += 1
                self._work.wait_for(lambda: self._ready or self._ended_for_good, IDLE)
                self._idle -= 1
                if not self._ready:
                    self._workers.discard(thread)
                    return
                ticket = self._ready.pop(0)
                if ticket.begun:
                    ticket.owner = self._gate.own()
            if ticket.begun:
                self._run(ticket)
            elif ticket.future is not None and ticket.future.set_running_or_notify_cancel():
                ticket.future.set_exception(self._refusal(ticket))

    @property
    def _ended_for_good(self) -> bool:
        return self.shutting_down and not self._count.outstanding

    def _run(self, ticket: BlockingTicket) -> None:
        future: Any = ticket.future
        context: Any = ticket.context
        future.set_running_or_notify_cancel()
        error: BaseException | None = None
        result = None
        try:
            result = context.run(ticket.work, *ticket.args, **ticket.kwargs)
        except BaseException as raised:
            error = raised
        self._leave(ticket, error)
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    # A ticket's way out

    def _leave(self, ticket: BlockingTicket, error: BaseException | None) -> None:
        with self._gate.lock:
            self._gate.disown(ticket.owner)
            self._finish(ticket, Outcome.OK, error)

    def _finish(
        self, ticket: BlockingTicket, outcome: Outcome, error: BaseException | None
    ) -> None:
        self._ended(ticket, outcome, error)
        self._gate.finish(ticket, outcome)
        self._look_whether_drained()

    def _withdraw(self, ticket: BlockingTicket) -> None:
        # This brings the gate to now: it may have expired or started first.
        self._gate.withdraw([ticket])
        if ticket.state is State.WITHDRAWN:
            self._left(ticket)
        elif ticket.state is RUNNING and ticket.future is None:
            self._finish(ticket, Outcome.LOST, None)

    def _look_whether_drained(self) -> None:
        if self.shutting_down:
            self._drained.notify_all()
