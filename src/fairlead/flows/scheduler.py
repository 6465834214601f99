"""Flows on an event loop."""

from __future__ import annotations

import asyncio
from threading import get_ident
from typing import TYPE_CHECKING, Any, Self

from fairlead.core.ticket import DONE, NEW, WAITING
from fairlead.errors import Misuse
from fairlead.flows.decorating import Decorating
from fairlead.flows.flow import FAILED, OK, Flow
from fairlead.flows.point import NOWHERE
from fairlead.flows.points import Points
from fairlead.runtime import LoopGate, plain_gates
from fairlead.runtime.loop import NO_WAIT, task_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from fairlead.flows.point import Point
    from fairlead.flows.settings import Settings
    from fairlead.ledger.leases import Lease
    from fairlead.runtime import MakeGates


PATIENCE = 0.2  # seconds that who would not wait waits for an answer of the ledger


class AsyncFlow(Flow):
    """A flow whose caller awaits its turn: `async with flows.flow(...) as flow: ...`."""

    scheduler: FlowScheduler
    waiter: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        """Ask for tokens, and wait for them as long as it may."""
        point = self.point
        drawn = None if point is None else point.drawing
        if point is not None and drawn is not None:
            runtime = point.runtime
            if (
                get_ident() == runtime.thread
                and task_of(point.home) is not None
                and point.gate.draw(self, runtime.clock())
            ):
                drawn.flows[self] = None
                drawn.started += 1
                self.drawn = drawn.flows
                self.accepted = True
                return self
        return await self._ask()

    async def _ask(self) -> Self:
        if self.state is not NEW:
            raise Misuse(f"{self!r} was entered before; make a new flow for each turn")
        self.line_up()
        point = self.point
        if point is None:
            self.accepted = True  # nothing limits it
        while point is not None:
            runtime = point.runtime
            if get_ident() != runtime.thread or task_of(point.home) is None:
                if point.retired:  # since the flow was made
                    self.point = point = self.scheduler.points.get(self.control_point)
                    self.accepted = point is None
                    continue
                self.scheduler.settle(point)
            changed = point.ask(self, runtime.clock())
            if changed or point.gate.due < runtime.timer_at:
                runtime.after(changed)
            if self.accepted:
                break
            if point.parts.leases and self.had_no_wait:
                await self._try_again(point)
            if self.state is WAITING and point.waits(self):
                await self._wait()
            if self.moved:
                point = self.scheduler.points.get(self.control_point)
                self.move(point)
                continue
            point = self.point  # a reload may have brought it to another, and noted the answer
            if point is not None and not self.accepted:
                point.answered(self, point.runtime.clock())
            break
        return self

    async def _try_again(self, point: Point) -> None:
        """It would not wait; but more may be lent than this process has borrowed: wait for that one answer."""
        runtime, ledger = point.runtime, self.scheduler.ledger
        if ledger is None or not point.parts.may_lend(self, runtime.clock()):
            return
        told = point.ask_ledger(self, PATIENCE)
        if self.state is not WAITING:
            return
        self.waiter, answer = runtime.entered.create_future(), ledger.answered()
        try:
            await asyncio.wait({self.waiter, answer}, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            if self.point is not None:
                self.point.take_out(self)
            raise
        finally:
            answer.cancel()
            point.stand_by(told, self)

    async def _wait(self) -> None:
        self.waiter = asyncio.get_running_loop().create_future()
        try:
            await self.waiter
        except BaseException:  # cancelled, or closed
            if self.point is not None:
                self.point.left(self)
            raise

    def __aexit__(self, kind: object, error: object, trace: object) -> Coroutine[Any, Any, None]:
        drawn = self.drawn
        if drawn is not None and kind is None:
            try:
                del drawn[self]  # as `end_drawn`
            except KeyError:
                pass  # it has ended, or was forgotten
            else:
                self.ended = True
                self.state = DONE
                return NO_WAIT
        point = self.point
        if point is not None and self.accepted:
            point.end(self, OK if kind is None else FAILED, None)
        return NO_WAIT

    def told(self) -> None:
        """Carry out a verdict that another's verb brought."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class FlowScheduler(Decorating, Points):
    """Weighted fair queueing over quota, concurrency and load, at named control points.

    >>> flows = FlowScheduler.from_config({"control_points": {"checkout": {"concurrency": {"max_concurrency": 10}}}})
    >>> async def pay():
    ...     async with flows.flow("checkout", labels={"user_id": "u1"}, timeout=0.5) as flow:
    ...         return flow.should_run()
    >>> asyncio.run(pay())
    True
    """

    twin = "SyncFlowScheduler"

    runtime_of = LoopGate
    _joined: asyncio.AbstractEventLoop | None = None  # the loop on which the ledger is kept
    _ticker: asyncio.TimerHandle | None = None
    _loop_closed: Callable[[], bool]

    def __init__(self, settings: Settings, gates: MakeGates = plain_gates) -> None:
        super().__init__(settings, gates)
        self._removals: set[asyncio.Task[None]] = set()

    def now(self) -> float:
        """Read the clock of the running loop, which is the gates'."""
        return asyncio.get_running_loop().time()

    async def start(self) -> None:
        """Join the ledger, if there is one, and wait for its first answer.  A second call changes nothing."""
        if self.ledger is not None and self.join():
            await self.ledger.answered()

    def join(self) -> bool:
        """Join the ledger, as the first flow does; False if that was done before, or there is none."""
        loop = asyncio.get_running_loop()
        if self.ledger is None or self._joined is loop:
            return False
        self._joined = loop
        self.ledger.begin()
        return True

    def settle(self, point: Point) -> None:
        """Let a point's flows go on this loop from now on, without further ado."""
        self.join()
        point.runtime.enter("flow")
        self.start_ticking()
        point.home = point.runtime.entered

    async def close(self) -> None:
        """Leave the ledger: what was lent is given back."""
        for point in self.points.values():
            point.home = NOWHERE  # the next flow joins again
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        if self.ledger is not None:
            self._joined = None
            await self.ledger.stop()

    def _unshare(self, lease: Lease) -> None:
        if self.ledger is not None:
            removal = asyncio.get_running_loop().create_task(self.ledger.remove(lease))
            self._removals.add(removal)
            removal.add_done_callback(self._removals.discard)

    def start_ticking(self) -> None:
        """Look after the points now and then, from the first flow on; a timer, so that nothing is pending."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # to be entered on a loop later
        if self._ticker is not None and not self._loop_closed():
            return

        def tick() -> None:
            self.tick()
            self._ticker = loop.call_later(self.until_tick(), tick)

        self._ticker = loop.call_later(self.until_tick(), tick)
        self._loop_closed = loop.is_closed

    def flow(
        self,
        control_point: str,
        labels: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> AsyncFlow:
        """Make a flow, to be entered with `async with`; without a timeout it waits as long as its workload lets it."""
        flow = AsyncFlow(control_point, labels, self, self.points.get(control_point))
        if timeout is not None or flow.point is None:
            self.place(flow, timeout)
        if self._ticker is None:
            self.start_ticking()
        return flow

    async def start_flow(
        self,
        control_point: str,
        labels: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> AsyncFlow:
        """Start a flow that `flow.end()` is to end."""
        return await self.flow(control_point, labels, timeout).__aenter__()
