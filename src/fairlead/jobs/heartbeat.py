"""The sign of life of all workers of one process, given from a thread of its own.

Nothing that jobs do to the loop of the process can keep it from beating: it has its own thread, its own loop and its
own connection.  What it hears (cancels, workers that are no longer known) it tells the loop of the process.

**The local deadline.**  The store may give a worker's jobs away when it has heard nothing of it for `lease` seconds,
and what it heard last was sent no earlier than the *start* of the last beat that succeeded.  So at that start plus
`lease` minus a margin, on this machine's monotonic clock, everything the process runs is stopped: before anybody else
can begin it.  An alarm of its own watches that, however long a beat may hang.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from time import monotonic
from typing import TYPE_CHECKING

from fairlead.errors import StoreUnavailable
from fairlead.jobs.executors.threads import tell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairlead.jobs.stores.base import Store

MARGIN = 0.2  # of a lease, to stop what runs in
GOODBYE = 5.0  # seconds that the thread gets to end

log = logging.getLogger("fairlead.jobs")


class Heartbeat:
    """Beats for workers; `cancel` and `lost` are called on the loop that started it, `sever` on the beating thread."""

    def __init__(
        self,
        store: Store,
        lease: float,
        *,
        cancel: Callable[[Sequence[tuple[int, int, int]]], None],
        lost: Callable[[Sequence[int], str], None],
        sever: Callable[[Sequence[int]], None],
    ) -> None:
        self._store = store
        self._lease = lease
        self._cancel = cancel
        self._lost = lost
        self._sever = sever
        # The start of each worker's last good beat; touched by the thread only.
        self._renewed: dict[int, float] = {}
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # the thread's
        self._wake: asyncio.Event
        self._alarm: asyncio.TimerHandle | None = None
        self._stopping = False
        self._watchdog: Watchdog

    @property
    def alive(self) -> bool:
        """Whether anybody beats."""
        return self._loop is not None and not self._stopping

    # Called on the loop of the process

    async def start(self) -> None:
        """Start the thread; it beats for nobody yet."""
        self._home = asyncio.get_running_loop()
        self._ended = self._home.create_future()
        self._watchdog = Watchdog(self._home, self._lease / 3)
        ready = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(ready,), name="fairlead-heartbeat", daemon=True
        )
        self._thread.start()
        ready.wait()  # for a loop to be made: microseconds

    def watch(self, workers: Sequence[int], since: float) -> None:
        """Beat for these workers too; `since` is the monotonic time just before they were registered."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._watch, tuple(workers), since)

    def beat_soon(self) -> None:
        """Beat now, not when it is time: there may be cancels to hear of."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake.set)

    async def stop(self) -> None:
        """End the thread; may be called twice, or without a start."""
        thread, self._stopping = self._thread, True
        if thread is None or not thread.is_alive():
            return
        self.beat_soon()
        done, _ = await asyncio.wait({self._ended}, timeout=GOODBYE)
        if not done:
            log.warning("the heartbeat does not end, for its store does not answer")
            return
        thread.join()  # its last act was to say that it has ended

    # Called on the thread

    def _run(self, ready: threading.Event) -> None:
        try:
            with asyncio.Runner() as runner:
                self._loop = runner.get_loop()
                self._wake = asyncio.Event()
                ready.set()
                runner.run(self._beat_for_ever())
        except BaseException:
            log.exception("the heartbeat has ended; this process will lose what it runs")
            self._expire()
        finally:
            ready.set()
            self._loop = None
            tell(self._home, self._end)

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    async def _beat_for_ever(self) -> None:
        store = self._store.twin()
        is_open = False
        pause = self._lease / 3
        try:
            # A loop that was closed without a stop runs nothing any more: its leases must run out.
            while not self._stopping and not self._home.is_closed():
                begun = monotonic()
                self._watchdog.look(begun)
                workers = list(self._renewed)
                if workers:
                    try:
                        # Longer than this the answer is of no use: the alarm will have gone off.
                        async with asyncio.timeout(self._lease):
                            if not is_open:
                                await store.open()
                                is_open = True
                            beat = await store.beat(workers, self._lease)
                    except (StoreUnavailable, TimeoutError, OSError) as error:
                        log.warning("a heartbeat failed: %s", str(error) or "no answer")
                        pause = self._lease / 12
                    except Exception:
                        log.exception("a heartbeat failed")
                        pause = self._lease / 12
                    else:
                        self._heard(workers, begun, set(beat.alive))
                        if beat.cancel:
                            cancel = list(beat.cancel)
                            tell(self._home, lambda cancel=cancel: self._cancel(cancel))  # type: ignore[misc]
                        pause = self._lease / 3
                await self._sleep(begun + pause - monotonic())
        finally:
            if self._alarm is not None:
                self._alarm.cancel()
            if is_open:
                await store.close()

    async def _sleep(self, pause: float) -> None:
        try:
            async with asyncio.timeout(max(pause, 0.001)):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    def _heard(self, workers: Sequence[int], begun: float, alive: set[int]) -> None:
        known = [worker for worker in workers if worker in self._renewed]
        for worker in known:
            if worker in alive:
                self._renewed[worker] = begun
        if gone := [worker for worker in known if worker not in alive]:
            self._give_up(gone, "the store no longer knows this worker")
        self._set_alarm()

    def _watch(self, workers: Sequence[int], since: float) -> None:
        self._renewed.update(dict.fromkeys(workers, since))
        self._set_alarm()
        self._wake.set()

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._renewed and self._loop is not None:
            deadline = min(self._renewed.values()) + self._lease * (1 - MARGIN)
            self._alarm = self._loop.call_later(max(0.0, deadline - monotonic()), self._expire)

    def _expire(self) -> None:
        """The deadline has come without a beat that succeeded."""
        late = monotonic() - self._lease * (1 - MARGIN)
        gone = [worker for worker, begun in self._renewed.items() if begun <= late + 1e-6]
        if not self._thread_is_well():
            gone = list(self._renewed)
        if gone:
            self._give_up(
                gone, f"no heartbeat reached the store for {self._lease * (1 - MARGIN):g} s"
            )
        self._set_alarm()

    def _thread_is_well(self) -> bool:
        return self._loop is not None and self._loop.is_running()

    def _give_up(self, workers: list[int], why: str) -> None:
        for worker in workers:
            del self._renewed[worker]
        self._sever(workers)
        tell(self._home, lambda: self._lost(workers, why))


class Watchdog:
    """Notices that a loop stands still, and says where."""

    def __init__(self, loop: asyncio.AbstractEventLoop, patience: float) -> None:
        self._loop = loop
        self._patience = patience
        self._thread = threading.get_ident()  # made on the loop's own thread
        self._asked_at: float | None = None
        self._warn_after = patience

    def look(self, now: float) -> None:
        """Ask the loop for a sign; if it owes one for long, warn, and again when that has doubled."""
        if self._asked_at is None:
            self._asked_at = now
            tell(self._loop, self._answer)
            return
        blocked = now - self._asked_at
        if blocked >= self._warn_after:
            self._warn_after = 2 * blocked
            log.warning(
                "the event loop has been blocked for %.1f s, in %s; "
                "run what blocks as a plain function, which gets a thread, or in a process",
                blocked,
                self._where(),
            )

    def _answer(self) -> None:
        self._asked_at = None
        self._warn_after = self._patience

    def _where(self) -> str:
        frame = sys._current_frames().get(self._thread)
        if frame is None:
            return "a thread that has ended"
        return f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"
