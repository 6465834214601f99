"""Flows between threads: the synchronous twin, for code without an event loop."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from fairlead.core.ticket import DONE, NEW, WAITING
from fairlead.errors import Misuse
from fairlead.flows.decorating import BlockingDecorating
from fairlead.flows.flow import FAILED, OK, Flow
from fairlead.flows.points import Points
from fairlead.flows.scheduler import PATIENCE
from fairlead.runtime import ThreadGate, plain_gates

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from fairlead.core.ticket import Ticket
    from fairlead.flows.flow import Status
    from fairlead.flows.point import Point
    from fairlead.flows.settings import Settings
    from fairlead.ledger.leases import Lease
    from fairlead.runtime import MakeGates


class BlockingFlow(Flow):
    """A flow whose thread waits its turn: `with flows.flow(...) as flow: ...`."""

    scheduler: SyncFlowScheduler
    _told: threading.Event | None = None

    def __enter__(self) -> Self:
        """Ask for tokens, and wait for them as long as it may."""
        point = self.point
        drawn = None if point is None else point.drawing
        if point is not None and drawn is not None:
            runtime = point.runtime
            if runtime.entered:
                with runtime.lock:
                    # Else a reload came before, or it has to wait.
                    if drawn is point.drawing and point.gate.draw(self, runtime.clock()):
                        self.drawn = flows = drawn.flows
                        flows[self] = None
                        drawn.started += 1
                        self.accepted = True
                        return self
        return self._ask()

    def _ask(self) -> Self:
        if self.state is not NEW:
            raise Misuse(f"{self!r} was entered before; make a new flow for each turn")
        self.line_up()
        point = self.point
        if point is None:
            self.accepted = True  # nothing limits it
        while point is not None:
            runtime = point.runtime
            if not runtime.entered:
                runtime.enter("flow")
                self.scheduler.start()
            with runtime.lock:
                if point.retired:  # since the flow was made
                    self.point = point = self.scheduler.points.get(self.control_point)
                    self.accepted = point is None
                    continue
                changed: Sequence[Ticket] = ()
                try:
                    changed = point.ask(self, runtime.now())
                finally:  # if that failed, the timer tells what it had changed by then
                    if changed or point.gate.due < runtime.timer_at:
                        runtime.after(changed)
                if self.accepted:
                    break
                waits = self.state is WAITING and point.waits(self)
                if waits:
                    self._told = threading.Event()
                elif not (point.parts.leases and self.had_no_wait):
                    point.answered(self, runtime.now())
                    break
            if waits and self._told is not None:
                self._wait(self._told)
            else:
                self._try_again(point)
            if self.moved:
                point = self.scheduler.points.get(self.control_point)
                self.move(point)
                continue
            with self._at_point() as point:
                if not self.accepted:  # else a reload noted the answer
                    point.answered(self, point.runtime.now())
            break
        return self

    @contextmanager
    def _at_point(self) -> Iterator[Point]:
        """Hold the lock of the point it is at: a reload may bring it to another before that is held."""
        while (point := self.point) is not None:
            with point.runtime.lock:
                if point is self.point:
                    yield point
                    return

    def _try_again(self, point: Point) -> None:
        """It would not wait; but more may be lent than this process has borrowed: wait for that one answer."""
        runtime = point.runtime
        with runtime.lock:
            if not point.parts.may_lend(self, runtime.now()):
                return
            woken = self._told = threading.Event()
            told = point.ask_ledger(self, PATIENCE)
        answer = self.scheduler.answered()
        try:
            if answer is not None:
                answer.add_done_callback(lambda _: woken.set())
                woken.wait(PATIENCE)
        except BaseException:
            with self._at_point() as here:
                here.take_out(self)
            raise
        finally:
            if answer is not None:
                answer.cancel()
            with runtime.lock:
                point.stand_by(told, self)

    def _wait(self, told: threading.Event) -> None:
        try:
            told.wait()  # the gate's timer tells it when its time is up
        except BaseException:  # a signal's handler raised in this thread
            with self._at_point() as point:
                point.left(self)
            raise

    def end(self, status: Status = "ok", tokens: float | None = None) -> bool:
        """Say that the work is done; see `Flow.end`."""
        while (point := self.point) is not None:
            with point.runtime.lock:
                if point is self.point:  # else another has taken its place meanwhile
                    return super().end(status, tokens)
        return super().end(status, tokens)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        drawn = self.drawn
        if drawn is not None and kind is None:
            try:
                del drawn[self]  # as `end_drawn`
            except KeyError:
                pass  # it has ended, or was forgotten
            else:
                self.ended = True
                self.state = DONE
                return
        point = self.point
        if point is not None and self.accepted:
            with point.runtime.lock:
                if point is self.point:  # else another has taken its place meanwhile
                    point.end(self, OK if kind is None else FAILED, None)
                    return
        self.end("ok" if kind is None else "error")

    def told(self) -> None:
        """Carry out a verdict that another's verb brought; the lock is held."""
        if self._told is not None:
            self._told.set()


class SyncFlowScheduler(BlockingDecorating, Points):
    """`FlowScheduler` for threads.

    >>> flows = SyncFlowScheduler.from_config({"control_points": {"checkout": {"concurrency": {"max_concurrency": 1}}}})
    >>> with flows.flow("checkout") as first, flows.flow("checkout", timeout=0) as second:
    ...     first.should_run(), second.should_run()
    (True, False)
    """

    twin = "FlowScheduler"

    runtime_of = ThreadGate

    def __init__(self, settings: Settings, gates: MakeGates = plain_gates) -> None:
        super().__init__(settings, gates)
        self._ticker: threading.Thread | None = None
        self._closed = threading.Event()
        self._starting = threading.Lock()
        self._joined = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event

    def _start_ticking(self) -> None:
        """Look after the points now and then, in a thread of their own, from the first flow on."""
        with self._starting:
            if self._ticker is None and not self._closed.is_set():
                self._ticker = threading.Thread(
                    target=self._keep_ticking, name="fairlead-flows", daemon=True
                )
                self._ticker.start()

    def _keep_ticking(self) -> None:
        asyncio.run(self._look_after())

    async def _look_after(self) -> None:
        """Keep the ledger on a loop of its own, and tick, until told to stop."""
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        if self.ledger is not None:
            self.ledger.begin()
        self._joined.set()
        while not self._closed.is_set():
            try:
                await asyncio.wait_for(self._stop.wait(), self.until_tick())
            except TimeoutError:
                self.tick()
        if self.ledger is not None:
            await self.ledger.stop()

    def start(self) -> None:
        """Join the ledger, if there is one; the first flow does so too.  A second call changes nothing."""
        if self._ticker is None:
            self._start_ticking()
        if self.ledger is not None and not self._closed.is_set():
            self._joined.wait()

    def answered(self) -> Future[bool] | None:
        """Tell when the ledger has answered all that was asked; None if it cannot be asked."""
        ledger, loop = self.ledger, self._loop
        if ledger is None or loop is None or self._closed.is_set():
            return None

        async def answered() -> bool:
            return await ledger.answered()

        return asyncio.run_coroutine_threadsafe(answered(), loop)

    def _unshare(self, lease: Lease) -> None:
        if self.ledger is not None and self._loop is not None and not self._closed.is_set():
            asyncio.run_coroutine_threadsafe(self.ledger.remove(lease), self._loop)

    def close(self) -> None:
        """Stop looking after the points, and leave the ledger; flows go on being decided."""
        self._closed.set()
        if self._ticker is not None:
            self._joined.wait()
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._stop.set)
            self._ticker.join()

    def flow(
        self,
        control_point: str,
        labels: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> BlockingFlow:
        """Make a flow, to be entered with `with`; without a timeout it waits as long as its workload lets it."""
        flow = BlockingFlow(control_point, labels, self, self.points.get(control_point))
        if timeout is not None or flow.point is None:
            self.place(flow, timeout)
        return flow

    def start_flow(
        self,
        control_point: str,
        labels: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> BlockingFlow:
        """Start a flow that `flow.end()` is to end."""
        return self.flow(control_point, labels, timeout).__enter__()
