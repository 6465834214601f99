"""Flows on an event loop."""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import TYPE_CHECKING, Any, Self

from fairlead.core.ticket import RUNNING, WAITING, Outcome
from fairlead.errors import Misuse
from fairlead.flows.flow import Flow
from fairlead.flows.points import Points
from fairlead.runtime import LoopGate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fairlead.flows.point import Point

    Labels = Mapping[str, str] | Callable[..., Mapping[str, str]] | None


TICK = 1.0  # seconds between two looks at what is due now and then


class AsyncFlow(Flow):
    """A flow whose caller awaits its turn: `async with flows.flow(...) as flow: ...`."""

    waiter: asyncio.Future[None] | None = None

    def __init__(
        self, scheduler: FlowScheduler, control_point: str, labels: Mapping[str, str] | None
    ) -> None:
        super().__init__(control_point, labels)
        self.scheduler = scheduler

    async def __aenter__(self) -> Self:
        """Ask for tokens, and wait for them as long as it may."""
        point = self.point
        self.accepted = point is None  # nothing limits it
        while point is not None:
            runtime = point.runtime
            runtime.enter("flow")
            point.prepare(self, runtime.clock())
            runtime.offer(self)
            if self.state is WAITING:
                await self._wait(point)
                if self.moved:
                    point = self.scheduler.points.get(self.control_point)
                    self.move(point)
                    continue
            point.answered(self, runtime.clock())
            break
        return self

    async def _wait(self, point: Point) -> None:
        point.waits(self)
        self.waiter = point.runtime.entered.create_future()
        try:
            await self.waiter
        except asyncio.CancelledError:
            if self.state is WAITING:
                point.runtime.withdraw([self])
            elif self.state is RUNNING:  # granted, but nobody is there to use it
                point.runtime.finish(self, Outcome.LOST)
            point.left(self)
            raise

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        self.end("ok" if kind is None else "error")

    def told(self) -> None:
        """Carry out a verdict that another's verb brought."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class FlowScheduler(Points):
    """Weighted fair queueing over quota, concurrency and load, at named control points.

    >>> flows = FlowScheduler.from_config({"control_points": {"checkout": {"concurrency": {"max_concurrency": 10}}}})
    >>> async def pay():
    ...     async with flows.flow("checkout", labels={"user_id": "u1"}, timeout=0.5) as flow:
    ...         return flow.should_run()
    >>> asyncio.run(pay())
    True
    """

    runtime_of = LoopGate
    _ticker: asyncio.TimerHandle | None = None

    def now(self) -> float:
        """Read the clock of the running loop, which is the gates'."""
        return asyncio.get_running_loop().time()

    def _start_ticking(self) -> None:
        """Look after the points once a second, from the first flow on; a timer, so that nothing is pending."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # to be entered on a loop later

        def tick() -> None:
            self.tick()
            self._ticker = loop.call_later(TICK, tick)

        self._ticker = loop.call_later(TICK, tick)

    def flow(
        self,
        control_point: str,
        labels: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> AsyncFlow:
        """Make a flow, to be entered with `async with`; without a timeout it waits as long as its workload lets it."""
        flow = AsyncFlow(self, control_point, labels)
        self.place(flow, timeout)
        if self._ticker is None:
            self._start_ticking()
        return flow

    async def start_flow(
        self,
        control_point: str,
        labels: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> AsyncFlow:
        """Start a flow that `flow.end()` is to end."""
        return await self.flow(control_point, labels, timeout).__aenter__()

    def decorate(
        self,
        control_point: str,
        labels: Labels = None,
        timeout: float | None = None,
        on_reject: Callable[[], Any] | None = None,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Make each call of a coroutine function a flow, ended however the call ends.

        A call that is refused does not run: `on_reject()` answers for it, or the refusal is raised.
        """

        def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
            if not inspect.iscoroutinefunction(function):
                raise Misuse(
                    f"{function.__qualname__} is not a coroutine function: decorate it with a SyncFlowScheduler, "
                    "which can wait in a thread"
                )

            @functools.wraps(function)
            async def call(*args: Any, **kwargs: Any) -> Any:
                said = labels(*args, **kwargs) if callable(labels) else labels
                async with self.flow(control_point, said, timeout) as flow:
                    if flow.should_run():
                        return await function(*args, **kwargs)
                    answer = flow.rejected(on_reject)
                    return await answer if inspect.isawaitable(answer) else answer

            return call

        return wrap
