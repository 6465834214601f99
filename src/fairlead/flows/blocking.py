"""Flows between threads: the synchronous twin, for code without an event loop."""

from __future__ import annotations

import functools
import inspect
import threading
from typing import TYPE_CHECKING, Any, Self

from fairlead.core.ticket import RUNNING, WAITING, Outcome
from fairlead.errors import Misuse
from fairlead.flows.flow import Flow
from fairlead.flows.points import Points
from fairlead.runtime import ThreadGate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fairlead.flows.scheduler import Labels


class BlockingFlow(Flow):
    """A flow whose thread waits its turn: `with flows.flow(...) as flow: ...`."""

    _told: threading.Event | None = None

    def __enter__(self) -> Self:
        """Ask for tokens, and wait for them as long as it may."""
        point = self.point
        if point is None:  # nothing limits it
            self.accepted = True
            return self
        runtime = point.runtime
        runtime.enter("flow")
        with runtime.lock:
            point.prepare(self, runtime.now())
            runtime.offer(self)
            if self.state is not WAITING:
                point.answered(self, runtime.now())
                return self
            point.waits(self)
            told = self._told = threading.Event()
        try:
            told.wait()  # the gate's timer tells it when its time is up
        except BaseException:  # a signal's handler raised in this thread
            with runtime.lock:
                if self.state is WAITING:
                    runtime.withdraw([self])
                elif self.state is RUNNING:
                    runtime.finish(self, Outcome.LOST)
                point.left(self)
            raise
        with runtime.lock:
            point.answered(self, runtime.now())
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.end("ok" if kind is None else "error")

    def told(self) -> None:
        """Carry out a verdict that another's verb brought; the lock is held."""
        if self._told is not None:
            self._told.set()


class SyncFlowScheduler(Points):
    """`FlowScheduler` for threads.

    >>> flows = SyncFlowScheduler.from_config({"control_points": {"checkout": {"concurrency": {"max_concurrency": 1}}}})
    >>> with flows.flow("checkout") as first, flows.flow("checkout", timeout=0) as second:
    ...     first.should_run(), second.should_run()
    (True, False)
    """

    runtime_of = ThreadGate

    def flow(
        self,
        control_point: str,
        labels: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> BlockingFlow:
        """Make a flow, to be entered with `with`; without a timeout it waits as long as its workload lets it."""
        flow = BlockingFlow(control_point, labels)
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

    def decorate(
        self,
        control_point: str,
        labels: Labels = None,
        timeout: float | None = None,
        on_reject: Callable[[], Any] | None = None,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Make each call of a function a flow, ended however the call ends.

        A call that is refused does not run: `on_reject()` answers for it, or the refusal is raised.
        """

        def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
            if inspect.iscoroutinefunction(function):
                raise Misuse(
                    f"{function.__qualname__} is a coroutine function: decorate it with a FlowScheduler, "
                    "for to wait here would stop its event loop"
                )

            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                said = labels(*args, **kwargs) if callable(labels) else labels
                with self.flow(control_point, said, timeout) as flow:
                    if flow.should_run():
                        return function(*args, **kwargs)
                    return flow.rejected(on_reject)

            return call

        return wrap
