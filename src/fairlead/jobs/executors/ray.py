"""Calls on a Ray cluster: bounded by our slots, killed for real, and nothing of ours pickled but text.

What is sent is JSON, and the one function that Ray knows lives in this package, so Fairlead and the modules of the
tasks must be importable on the cluster.  Ray's own retries are off: a worker process that dies is a crash of the job it
ran, and what follows is decided where everything else is.  Without an address a small cluster is started on this
machine and ended with the runner; with one (or in a process that has called `ray.init`) a running cluster is used.

Every call to Ray is made on a thread of its own: a cluster that is slow to answer must not hold up the loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

from fairlead.errors import ConfigError
from fairlead.jobs.executors.base import Crashed, Raised, Returned, Stopped
from fairlead.jobs.executors.calls import message_of, perform
from fairlead.jobs.executors.threads import Threads, tell
from fairlead.jobs.payload import error_of

if TYPE_CHECKING:
    from concurrent.futures import Future

    from fairlead.jobs.executors.base import Call, ExecutorSpec, Outcome

STORE_MEMORY = 100 * 1024 * 1024  # bytes: results are small, and texts

log = logging.getLogger("fairlead.jobs")


def call_on_ray(message: str) -> str:
    """Make a call; in a worker process of the cluster."""
    returned, text = perform(message)
    return ("+" if returned else "-") + text


class RayRunner:
    """Runs every call as a Ray task."""

    def __init__(self, spec: ExecutorSpec, *, app: str | None = None) -> None:
        self.slots = spec.slots or 0
        self._spec = spec
        self._app = app
        self._ours = False  # was the cluster started by us?
        self._ray: Any = None
        self._function: Any = None
        self._threads = Threads("fairlead-ray")
        self._calls: set[Call] = set()
        self._connecting: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Connect to the cluster, or start one; that takes seconds."""
        self._loop = asyncio.get_running_loop()
        self._connecting = asyncio.ensure_future(self._aside(self._connect))
        # Who is cancelled here leaves; Ray goes on starting, and `close` waits for it.
        await asyncio.shield(self._connecting)

    def run(self, call: Call) -> None:
        """Begin a call as a Ray task."""
        call.seat = _Seat()
        self._calls.add(call)
        call.arm()
        self._threads.submit(lambda: self._submit(call))

    def cancel(self, call: Call) -> None:
        """Kill the worker process that runs a call."""
        self._threads.submit(lambda: self._kill(call))

    def sever(self) -> None:
        """Kill what runs, from any thread."""
        for call in list(self._calls):
            self._threads.submit(lambda call=call: self._kill(call))  # type: ignore[misc]

    async def close(self) -> None:
        """Kill what runs, and end the cluster if it is ours."""
        if self._connecting is not None:
            await asyncio.wait({self._connecting})
        if self._ray is None:
            return
        for call in list(self._calls):
            await self._aside(lambda call=call: self._kill(call))
        if self._ours:
            await self._aside(self._ray.shutdown)
        self._ray = None
        await self._threads.close()

    async def _aside(self, fn: Any) -> None:
        """Run something slow on a thread, and wait for it."""
        done: asyncio.Future[None] = self._loop.create_future()

        def work() -> None:
            try:
                fn()
            except BaseException as error:
                failure = error
                tell(self._loop, lambda: done.done() or done.set_exception(failure))  # type: ignore[func-returns-value]
            else:
                tell(self._loop, lambda: done.done() or done.set_result(None))  # type: ignore[func-returns-value]

        self._threads.submit(work)
        await done

    # On threads

    def _connect(self) -> None:
        # On the main thread Ray would take SIGTERM for itself; here it cannot, and says so in its log.
        ray_log = logging.getLogger("ray._private.worker")
        level = ray_log.level
        ray_log.setLevel(logging.ERROR)
        try:
            self._initialize()
        finally:
            ray_log.setLevel(level)

    def _initialize(self) -> None:
        try:
            import ray
        except ImportError as error:
            raise ConfigError(
                f"executor {self._spec.name!r} needs Ray: pip install 'fairlead[ray]' ({error})"
            ) from error
        options = dict(self._spec.options)
        address = options.pop("address", None)
        if not ray.is_initialized():
            quiet: dict[str, Any] = {
                "include_dashboard": False,
                "log_to_driver": False,
                "logging_level": logging.ERROR,
                "configure_logging": False,
            }
            if address is None:
                quiet |= {
                    "address": "local",
                    "num_cpus": max(self.slots, os.cpu_count() or 1),
                    "object_store_memory": STORE_MEMORY,
                }
            else:
                quiet["address"] = address
                del quiet["include_dashboard"]
            try:
                ray.init(**quiet)
            except Exception as error:
                raise ConfigError(
                    f"executor {self._spec.name!r} cannot use Ray"
                    f"{'' if address is None else f' at {address!r}'}: {error}"
                ) from error
            self._ours = True
        self._ray = ray
        if not self.slots:
            self.slots = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        self._function = ray.remote(max_retries=0, **options)(call_on_ray)

    def _submit(self, call: Call) -> None:
        seat: _Seat = call.seat
        try:
            with seat.lock:
                if call.job.cancelled:
                    self._end(call, Stopped())
                    return
                reference = self._function.remote(message_of(call, self._app))
                seat.reference = reference
            future: Future[str] = reference.future()
            future.add_done_callback(lambda future: self._end(call, self._outcome_of(call, future)))
        except BaseException as error:
            self._end(call, Raised(error_of(error)))

    def _kill(self, call: Call) -> None:
        with call.seat.lock:
            reference = call.seat.reference
        if reference is None or call.ended:
            return
        try:
            self._ray.cancel(reference, force=True, recursive=True)
        except Exception as error:
            log.warning("job %s could not be killed on Ray yet: %s", call.job.id, error)

    def _outcome_of(self, call: Call, future: Future[str]) -> Outcome:
        error = future.exception()
        if error is None:
            text = future.result()
            return Returned(text[1:]) if text[0] == "+" else Raised(text[1:])
        errors = self._ray.exceptions if self._ray is not None else None
        if call.job.cancelled or errors is None:
            return Stopped()
        if isinstance(error, errors.RayTaskError):
            # Not the job: that would have been answered.  The cluster cannot import Fairlead, or some such thing.
            return Raised(error_of(error))
        return Crashed(f"its Ray worker died: {type(error).__name__}: {error}".partition("\n")[0])

    def _end(self, call: Call, outcome: Outcome) -> None:
        def end() -> None:
            self._calls.discard(call)
            call.seat.reference = None
            call.end(outcome)

        tell(self._loop, end)


class _Seat:
    """What is known of a call on Ray."""

    __slots__ = ("lock", "reference")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.reference: Any = None
