"""All workers of one process: calls begun, stopped and ended, leases kept, and the way out.

A `Crew` registers one worker for each executor that its process serves, takes what is claimed for them (handed over by
a scheduler in the same process, or fetched), runs it, and writes how it ended.  Each claim gets one ending: of a
result, a timeout and a cancel that meet, the first decides.

**Stopping.**  A call is stopped by a cancel, a timeout, a lost lease or the end of its worker.  It is told again and
again.  A call that has not stopped after `patience` seconds is *stuck*: it keeps its slot, and its job stays active,
until it really ends, so that never more code runs than there are slots, across retries too.  Left behind, with its
slot free and its ending written, is only a call whose task says `abandon`, whose lease is lost, or whose worker ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from fairlead.errors import Misuse, StoreUnavailable
from fairlead.jobs import endings
from fairlead.jobs.crashes import DEFAULT_LIMITS, crashed, judged
from fairlead.jobs.executors.base import Crashed, Lost, Raised, Returned, Stopped
from fairlead.jobs.executors.kinds import apart_of, runner_of
from fairlead.jobs.flushing import Flusher
from fairlead.jobs.lanes import CANCEL, HAND_BACK, LOST, TIMEOUT, Lane, LiveCall
from fairlead.jobs.membership import Membership
from fairlead.jobs.payload import error_json

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from fairlead.jobs.crashes import Limits
    from fairlead.jobs.executors.base import ExecutorSpec, Outcome
    from fairlead.jobs.flushing import Heard
    from fairlead.jobs.records import Claimed, Ending, Finished, Id
    from fairlead.jobs.registry import Task
    from fairlead.jobs.stores.base import Store

INSIST = 0.5  # seconds after which a call that was told to stop is told again
LONGEST_PAUSE = 5.0  # seconds between tries while the store is away
GOODBYE = 2.0  # seconds that the store gets to hear of our leaving
MOST_NAMED = 10  # stuck jobs in a sentence
NOTHING_LEFT = "no job was running"

log = logging.getLogger("fairlead.jobs")

Key = tuple[int, int, int]  # dag, node, fence


class Crew:
    """The workers of this process.

    `heard` is told what the store has answered to endings; `app` is "module:jobs", by which other processes find tasks;
    `patience` is how many seconds a call gets to stop before it is stuck or left behind; with `listen` the crew waits
    for the store's hints itself, else it is told by `hint()`.  With all slots of an executor stuck for `stuck_after`
    seconds, `on_stuck` is called with a sentence, for the process to end; without it, that is logged.
    """

    def __init__(
        self,
        store: Store,
        tasks: Mapping[str, Task],
        executors: Mapping[str, ExecutorSpec],
        *,
        lease: float,
        poll: float,
        name: str | None = None,
        process: str | None = None,
        heard: Heard | None = None,
        crashes: Limits = DEFAULT_LIMITS,
        patience: float = 5.0,
        app: str | None = None,
        listen: bool = False,
        stuck_after: float = 600.0,
        on_stuck: Callable[[str], None] | None = None,
    ) -> None:
        host = socket.gethostname()
        self.process = process or f"{host}:{os.getpid()}:{token_hex(6)}"
        self.abandoned = 0  # calls that were left behind because they did not stop
        self._store = store
        self._tasks = tasks
        self._lease = lease
        self._poll = poll
        self._crashes = crashes
        self._patience = patience
        self._listen = listen
        self._stuck_after = stuck_after
        self._on_stuck = on_stuck
        self._letting_go = False
        self._calls: dict[Key, LiveCall] = {}
        self._lanes = {
            spec.name: Lane(
                spec.name, runner_of(spec, app), self._clock, self._ended, apart_of(spec, app)
            )
            for spec in executors.values()
            if spec.here
        }
        self._flusher = Flusher(self._finish, heard)
        self._membership = Membership(
            store,
            list(self._lanes.values()),
            tasks=tasks,
            name=name or host,
            process=self.process,
            lease=lease,
            flushed=self._flusher.wait_until_empty,
            cancel=self._cancel,
            lost=self._lost,
            sever=self._sever,
        )
        self._chores: set[asyncio.Task[None]] = set()
        self._hinted = asyncio.Event()
        self._idle = asyncio.Event()
        self._hurried = asyncio.Event()
        self._draining = False
        self._closing: asyncio.Task[None] | None = None
        self._started = False
        self._running = self._joined = False
        self._learning = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def workers(self) -> dict[str, int]:
        """The numbers of the workers by executor; one that has lost its lease is not there until it has a new one."""
        return self._membership.workers

    @property
    def leases_lost(self) -> int:
        """How often a worker of this process has lost its lease."""
        return self._membership.leases_lost

    @property
    def troubles(self) -> dict[str, str | None]:
        """Why calls of an executor wait for what runs them, by executor; None where they do not."""
        return {name: getattr(lane.runner, "trouble", None) for name, lane in self._lanes.items()}

    def trouble_of(self, job: Id) -> str | None:
        """Return why a job that was given to this process cannot run now; None if it can, or is not here."""
        for (dag, node, _), call in self._calls.items():
            if (dag, node) == job and (trouble := self.troubles[call.lane.executor]):
                return f"executor {call.lane.executor!r}: {trouble}"
        return None

    @property
    def running(self) -> dict[str, int]:
        """How many calls each executor runs here."""
        return {name: lane.running for name, lane in self._lanes.items()}

    @property
    def stuck(self) -> dict[str, int]:
        """How many calls of each executor were told to stop and do not; they keep their slots."""
        return {name: len(lane.stuck) for name, lane in self._lanes.items()}

    @property
    def slots(self) -> dict[str, int]:
        """How many calls each executor may run here at once."""
        return {name: lane.runner.slots for name, lane in self._lanes.items() if self._tasks}

    # Life

    async def start(self) -> None:
        """Start the executors, register the workers, and keep their leases."""
        if self._started:
            raise Misuse("this crew was started before; make another one")
        self._started = True
        self._loop = asyncio.get_running_loop()
        if self._tasks:
            try:
                await self._join()
            except BaseException:
                await self.stop()
                raise

    async def _join(self) -> None:
        """Register the workers; a process without tasks has none, for it could run nothing."""
        if not self._running:
            self._running = True
            for lane in self._lanes.values():
                await lane.runner.start()
        await self._membership.join()
        self._joined = True
        self._chore(self._fetch_for_ever())
        if self._listen:
            self._chore(self._listen_for_ever())

    async def drain(self, grace: float) -> None:
        """Take nothing more; let what runs end within `grace` seconds, and hand the rest back."""
        self._draining = True
        self._hinted.set()
        self._membership.stay_away()
        workers = list(self._membership.lane_of)
        if workers:
            await self._politely(self._store.drain(workers))
            # What was claimed before that is handed back at once.
            await self._politely(self._take())
        for call in list(self._calls.values()):
            if call.began is None:
                self._stop(call, HAND_BACK)
        await self._until_idle(grace)
        self._letting_go = True
        for call in list(self._calls.values()):
            if call.stuck:
                call.end(Stopped("what it does"))
            else:
                self._stop(call, HAND_BACK)
        await self._until_idle(self._patience + INSIST, hurried=False)
        await self._flusher.wait_until_empty(max(GOODBYE, self._lease))

    def hurry(self) -> None:
        """Cut the grace of a drain short, and the patience with calls that do not stop."""
        self._hurried.set()
        self._patience = min(self._patience, INSIST)
        for call in list(self._calls.values()):
            if call.why is not None and call.timer is not None:
                call.timer.cancel()
                self._insist(call, self._patience)

    def left(self) -> str:
        """Say which jobs the store has not been told of."""
        count = len(self._calls) + len(self._flusher)
        if not count:
            return NOTHING_LEFT
        jobs = "1 job was" if count == 1 else f"{count} jobs were"
        return (
            f"{jobs} not handed back, to be run again once the lease of {self._lease:g} s is over"
        )

    async def stop(self) -> None:
        """Hand back what runs, forget the workers, let go of everything; may be called twice, or unstarted."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        # Whoever is cancelled here does not wait for the end, but the end comes.
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if not self._draining or self._calls:
            self._hurried.set()
            await self.drain(0.0)
        for chore in self._chores:
            chore.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)
        await self._flusher.stop()
        workers = await self._membership.leave()
        for lane in self._lanes.values():
            await lane.close()
        if workers:
            await self._politely(self._store.retire(workers))

    async def _politely(self, asked: Awaitable[Any]) -> None:
        """Ask something of the store that it may leave undone."""
        try:
            async with asyncio.timeout(GOODBYE):
                await asked
        except (StoreUnavailable, TimeoutError) as error:
            log.warning("the database was not told that this worker leaves: %s", error)

    async def _until_idle(self, timeout: float, *, hurried: bool = True) -> None:
        if not self._calls:
            return
        self._idle.clear()
        waiting = [asyncio.ensure_future(self._idle.wait())]
        if hurried:
            waiting.append(asyncio.ensure_future(self._hurried.wait()))
        try:
            await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    def _chore(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(
            work, name="fairlead-crew"
        )
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    # Leases

    def _lost(self, lanes: Sequence[Lane]) -> None:
        for call in list(self._calls.values()):
            if call.lane in lanes:
                self._stop(call, LOST)

    def _sever(self, lanes: Sequence[Lane]) -> None:
        """Do without the loop what can be done; on the heartbeat's thread."""
        for call in list(self._calls.values()):
            if call.lane in lanes:
                call.severed = True
                call.job.cancel()

    # Taking

    def learn(self) -> None:
        """Write which tasks the workers know, now that one was registered since the start; from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: self._chore(self._learn()))

    async def _learn(self) -> None:
        async with self._learning:
            while not self._draining:
                try:
                    await (self._membership.know() if self._joined else self._join())
                    return
                except StoreUnavailable as error:
                    log.warning("the database has not heard of new tasks yet: %s", error)
                    await asyncio.sleep(self._poll)

    def hint(self) -> None:
        """Something may have been claimed for us: look now."""
        self._hinted.set()

    def hear_soon(self) -> None:
        """Cancels may have been asked for: hear of them now, not with the next heartbeat."""
        self._membership.beat_soon()

    def dispatch(self, claimed: Sequence[Claimed]) -> None:
        """Run what was claimed for our workers and is acknowledged already."""
        for one in claimed:
            lane = self._membership.lane_of.get(one.worker)
            key = (one.dag, one.node, one.fence)
            if lane is None or key in self._calls:
                continue  # claimed for a worker that has lost its lease: it is taken back by the scheduler
            task = self._tasks.get(one.task)
            if task is None:
                # The leader is an older Fairlead, or has not heard of it yet: another worker knows the task.
                log.warning("a job of task %r came to a worker that does not know it", one.task)
                self._flusher.add(endings.handed_back(one, delay=self._poll))
                continue
            call = LiveCall(lane, one, task)
            self._calls[key] = call
            if self._draining:
                self._stop(call, HAND_BACK)
            else:
                lane.offer(call)

    async def _take(self) -> None:
        if workers := list(self._membership.lane_of):
            self.dispatch(await self._store.fetch(workers))

    async def _fetch_for_ever(self) -> None:
        pause = 0.0
        while not self._draining:
            self._hinted.clear()
            try:
                await self._take()
                pause = 0.0
            except StoreUnavailable as error:
                pause = min(LONGEST_PAUSE, max(0.1, 2 * pause))
                log.warning("this worker waits %.1f s for the database: %s", pause, error)
                await asyncio.sleep(pause)
                continue
            except Exception:
                log.exception("what was claimed for this worker cannot be fetched")
                pause = LONGEST_PAUSE
            try:
                async with asyncio.timeout(max(pause, self._poll)):
                    await self._hinted.wait()
            except TimeoutError:
                pass

    async def _listen_for_ever(self) -> None:
        while not self._draining:
            try:
                if await self._store.wait_for_news(self._poll):
                    self.hint()
            except StoreUnavailable:
                await asyncio.sleep(self._poll)  # the fetching says so

    # Stopping and ending

    def _cancel(self, keys: Sequence[Key]) -> None:
        """Stop calls whose cancelling was asked for; those that have ended are not there."""
        for key in keys:
            call = self._calls.get(tuple(key))  # type: ignore[arg-type]
            if call is not None:
                self._stop(call, CANCEL)

    def _clock(self, timeout: float, call: LiveCall) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(timeout, self._stop, call, TIMEOUT)

    def _stop(self, call: LiveCall, why: str) -> None:
        """Have a call stop; the first reason counts."""
        if call.ended or call.why is not None:
            return
        call.why = why
        call.job.cancel()
        if call.began is None:
            call.end(Stopped())
            return
        if call.timer is not None:
            call.timer.cancel()
        self._insist(call, self._patience)

    def _insist(self, call: LiveCall, patience: float) -> None:
        """Tell a call to stop, again and again; at the end of patience let it go, or have it keep its slot."""
        if call.ended:
            return
        if patience <= 0 and not call.stuck:
            if self._letting_go or call.task.abandon or call.why not in (TIMEOUT, CANCEL):
                call.end(Stopped("what it does"))
                return
            call.lane.hold_stuck(call, self._stuck_after, self._all_stuck)
            log.warning(
                "job %s (%s) was told to stop (%s) and does not; until it ends it keeps its slot of executor %s",
                call.job.id,
                call.claimed.task,
                call.why,
                call.lane.executor,
            )
        call.runner.cancel(call)
        if not call.ended:
            call.timer = asyncio.get_running_loop().call_later(
                min(INSIST, patience), self._insist, call, patience - INSIST
            )

    def _all_stuck(self, lane: Lane) -> None:
        """Call for the end of the process, or say loudly that an executor runs nothing here any more."""
        jobs = ", ".join(f"{call.job.id} {call.claimed.task}" for call in lane.stuck[:MOST_NAMED])
        count = lane.runner.slots
        slots = "the only slot" if count == 1 else f"all {count} slots"
        have = "has" if count == 1 else "have"
        sentence = (
            f"{slots} of executor {lane.executor} {have} been held for {self._stuck_after:g} s by jobs that "
            f"were told to stop and do not ({jobs})"
        )
        if self._on_stuck is not None:
            self._on_stuck(sentence)
            return
        log.error(
            "%s: nothing of that executor runs here until they end; restart this process", sentence
        )
        lane.stuck_again(self._stuck_after, self._all_stuck)

    def _ended(self, call: LiveCall, outcome: Outcome) -> None:
        claimed = call.claimed
        del self._calls[claimed.dag, claimed.node, claimed.fence]
        ending = self._ending_of(call, outcome)
        if ending is not None:
            self._flusher.add(ending)
        if not self._calls:
            self._idle.set()

    def _ending_of(self, call: LiveCall, outcome: Outcome) -> Ending | None:
        claimed, ran = call.claimed, call.ran
        # The heartbeat's thread may have stopped it before the loop has heard why.
        why = call.why or (LOST if call.severed else None)
        if isinstance(outcome, Returned) and why in (None, HAND_BACK, LOST):
            return endings.completed(claimed, outcome.result, ran=ran)
        if isinstance(outcome, Stopped) and outcome.abandoned:
            self.abandoned += 1
            log.warning(
                "job %s (%s) was told to stop (%s) and does not; %s goes on and is left behind",
                call.job.id,
                claimed.task,
                why,
                outcome.abandoned,
            )
            if why == LOST:
                return None  # it still runs: the scheduler takes it back when its lease has run out
        if why == CANCEL:
            return endings.cancelled(claimed, ran=ran)
        if why == TIMEOUT:
            return endings.timed_out(claimed, random.random(), timeout=claimed.timeout, ran=ran)
        if isinstance(outcome, Stopped) and why is None:
            if not self._chores or any(chore.cancelling() for chore in self._chores):
                return None  # the loop is being closed under us: nobody will be there to write it
            outcome = Raised(error_json("CancelledError", "the job has cancelled itself"))
        if isinstance(outcome, Raised) and why is None:
            return endings.failed(claimed, outcome.error, random.random(), ran=ran)
        if isinstance(outcome, Crashed) and why is None:
            log.warning("job %s (%s) crashed: %s", call.job.id, claimed.task, outcome.reason)
            return crashed(claimed, outcome.reason)
        if isinstance(outcome, Lost) and why is None:
            log.warning("job %s (%s) is handed back: %s", call.job.id, claimed.task, outcome.reason)
            return endings.handed_back(
                claimed, delay=self._poll, error=error_json("WorkerLost", outcome.reason)
            )
        return endings.handed_back(claimed)

    async def _finish(self, batch: list[Ending]) -> Finished:
        # In place: what came of the endings is heard with what was written.
        batch[:] = await judged(self._store, batch, self._crashes)
        return await self._store.finish(self.process, batch)
