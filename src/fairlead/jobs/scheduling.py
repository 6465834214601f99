"""The scheduler: of all serving processes one leads, and plans, claims and rescues for all.

It holds what is ready and what runs in a `Frontier` (one gate), hears of changes by the endings of its own process, by
news of others and by looking for itself, and turns what the gate starts into claims.  Whatever it believes can be
thrown away: after any doubt (a database that was away, a lease that was lost) it reads everything anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing
from typing import TYPE_CHECKING

from fairlead.core import Gate
from fairlead.errors import StoreUnavailable
from fairlead.jobs.arrivals import Arrivals
from fairlead.jobs.claiming import Claimer
from fairlead.jobs.counting import Counts
from fairlead.jobs.crashes import deaths, judged
from fairlead.jobs.endings import handed_back
from fairlead.jobs.frontier import Frontier
from fairlead.jobs.gates import Gates
from fairlead.jobs.limits import SETTING, limits_of
from fairlead.jobs.planning import Planners
from fairlead.jobs.reading import ready_pages
from fairlead.jobs.roster import Roster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from fairlead.jobs.estimates import Estimates
    from fairlead.jobs.records import Ending, Finished, Id, ReadyJob, RunningJob
    from fairlead.jobs.settings import Settings
    from fairlead.jobs.stores.base import Store
    from fairlead.jobs.worker import Crew
    from fairlead.runtime import MakeGate

MOST_CLAIMS = 1_000  # in one statement
LONGEST_PAUSE = 5.0  # seconds between tries while the database is away

log = logging.getLogger("fairlead.jobs")


class Scheduler:
    """The leader's part of a serving process; while another leads it only waits."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        crew: Crew,
        estimates: Estimates,
        *,
        upkeep: Callable[[Scheduler], Awaitable[None]],
        on_ended: Callable[[Sequence[int]], None],
        gate: MakeGate = Gate,
        may_lead: Callable[[], bool] = lambda: True,
    ) -> None:
        self.store = store
        self.settings = settings
        self.crew = crew
        self.process = crew.process
        self.estimates = estimates
        self.counts = Counts()
        self.epoch = 0  # of its lease; 0: it has none
        self.frontier: Frontier | None = None
        self.roster = Roster(settings.lease)
        self.planners = Planners(
            settings.planner, store.now, settings.max_withheld, self.wake, settings.planners
        )
        self.progressed_at = time.monotonic()  # for health: a loop that stands still is no good
        self._may_lead = may_lead
        self._gates = Gates(gate)
        self._upkeep = upkeep
        self._on_ended = on_ended
        self._wake = asyncio.Event()
        self._claimer = Claimer(store, crew)
        self._arrivals = Arrivals(estimates, store.now, lambda: self.frontier)
        self._meanwhile: list[Finished] | None = None
        self._doubt: Exception | None = None  # why what is believed may be wrong
        self._renew_at = self._look_at = self._sweep_at = 0.0
        self._stopping = False

    @property
    def leading(self) -> bool:
        """Whether this process is the one that plans."""
        return self.frontier is not None

    # What other parts of this process tell it

    def wake(self) -> None:
        """Have a look now."""
        self._wake.set()

    def look_soon(self) -> None:
        """News may have come: look before the next poll."""
        self._look_at = 0.0
        self._wake.set()

    async def finish(self, endings: Sequence[Ending]) -> None:
        """Store how jobs ended, and go on with what that made ready."""
        await self._go_on(endings, await self.store.finish(self.process, endings))

    async def hear(self, endings: Sequence[Ending], finished: Finished) -> None:
        """Go on with what endings made ready that are stored already; if that cannot be, begin anew."""
        try:
            await self._go_on(endings, finished)
        except Exception as error:
            self._doubt = error
            self._wake.set()

    async def _go_on(self, endings: Sequence[Ending], finished: Finished) -> None:
        if finished.refused:
            applied = set(finished.applied)
            endings = [one for one in endings if (one.dag, one.node) in applied]
        self.counts.saw_ends(endings)
        self._on_ended([run.dag for run in finished.ended])
        frontier = self.frontier
        if frontier is not None:
            await self._hear(frontier, finished)
            self._wake.set()
            if finished.refused:
                await self._recheck(finished.refused)
        else:
            if self._meanwhile is not None:
                self._meanwhile.append(finished)
            self._gates.ended(finished.applied, self.store.now())
        self.counts.saw_run_ends(finished.ended)

    # Its own life

    async def run(self) -> None:
        """Lead whenever nobody else does, until stopped."""
        pause = 0.0
        while not self._stopping:
            self.progressed_at = time.monotonic()
            try:
                if self.frontier is None:
                    await self._try_to_lead()
                else:
                    await self._turn(self.frontier)
                pause = 0.0
            except Exception as error:
                # Whatever it was: what is believed can be thrown away, and somebody must plan.
                self._step_down()
                pause = min(LONGEST_PAUSE, max(0.1, 2 * pause))
                if isinstance(error, StoreUnavailable):
                    log.warning("the scheduler waits %.1f s for the database: %s", pause, error)
                else:
                    log.exception("the scheduler failed, and begins anew in %.1f s", pause)
                await asyncio.sleep(pause)

    def stop(self) -> None:
        """Claim nothing more."""
        self._stopping = True
        self._wake.set()

    async def lead_once_more(self) -> bool:
        """Take the lead if nobody has it, to plan nothing: what one process shall do can be done."""
        try:
            return (
                self._may_lead()
                and await self.store.lead(self.process, self.settings.lease) is not None
            )
        except StoreUnavailable:
            return False

    async def resign(self) -> bool:
        """Let another lead at once; False if the store is away, and the lease has to run out by itself."""
        self._step_down()
        self.planners.close()
        try:
            await self.store.resign(self.process)
        except StoreUnavailable:
            return False
        return True

    def let_go(self) -> None:
        """Nothing runs here any more, or nobody here knows of it."""
        self._gates.let_go()

    def _step_down(self) -> None:
        self._doubt = None
        self._gates.rest(None if self.frontier is None else self.frontier.gate, self.store.now())
        self.frontier = self._meanwhile = None
        self.epoch = 0

    async def _try_to_lead(self) -> None:
        await self._claimer.hand_back(self.finish)
        if self._may_lead():
            self.epoch = await self.store.lead(self.process, self.settings.lease) or 0
        if not self.epoch:
            self._gates.let_go()  # what runs is for another to count
            await self._stand_by()
            return
        self.counts.takeovers += 1
        self._renew_at = time.monotonic() + self.settings.lease / 3
        await self._take_over()

    async def _stand_by(self) -> None:
        """Tell the leader now and then what was learned from the jobs that run here."""
        clock = time.monotonic()
        if clock >= self._sweep_at and self.estimates.fresh:
            self._sweep_at = clock + self.settings.sweep
            await self.estimates.share(self.store)
        await self._rest(self.settings.poll)

    async def _take_over(self) -> None:
        """Read everything: from here on the frontier follows what happens.

        What jobs of this process end meanwhile writes no news, and what is read may be older: it is applied at the end.
        """
        self._meanwhile = []
        frontier = await self._read_all()
        if frontier is None or self._meanwhile is None:
            return
        for finished in self._meanwhile:
            await self._hear(frontier, finished)
        self._meanwhile = None
        self.frontier = frontier
        self._gates.let_go(frontier.gate)
        self._look_at = 0.0
        self._sweep_at = 0.0

    async def _read_all(self) -> Frontier | None:
        """Read everything; None if another process began to lead meanwhile."""
        settings = await self.store.settings()
        if settings.get(SETTING) != (limits := limits_of(self.settings)):
            await self.store.set_setting(SETTING, limits)
        self.roster = Roster(self.settings.lease)
        self.planners.follow(settings)
        frontier = Frontier.of(self.settings, self.planners.of, self._gates.make)
        self.estimates.replace(await self.store.estimates())
        self._hold(frontier, await self.store.running(), self.store.now())
        async with aclosing(ready_pages(self.store)) as pages:
            async for page in pages:
                frontier.add(self.estimates.fill(page), self.store.now())
                if time.monotonic() >= self._renew_at and not await self._renew():
                    return None
        return frontier

    async def _turn(self, frontier: Frontier) -> None:
        if self._doubt is not None:
            raise self._doubt
        await self._claimer.hand_back(self.finish)
        clock = time.monotonic()
        if clock >= self._renew_at and not await self._renew():
            return
        if clock >= self._look_at:
            self._look_at = clock + self.settings.poll
            await self._look(frontier)
        if clock >= self._sweep_at:
            self._sweep_at = clock + self.settings.sweep
            await self._rescue()
            await self._upkeep(self)
        now = self.store.now()
        begun = time.perf_counter()
        if frontier.due <= now:
            frontier.advance(now)
        started = frontier.started()
        self.counts.planning_seconds += time.perf_counter() - begun
        self.counts.planning_rounds += 1
        self.planners.ask(frontier)
        if started:
            for first in range(0, len(started), MOST_CLAIMS):
                await self._claim(frontier, started[first : first + MOST_CLAIMS])
        elif not self._wake.is_set():
            until = min(self._renew_at, self._look_at, self._sweep_at) - time.monotonic()
            await self._rest(min(until, frontier.due - self.store.now()))
        self._wake.clear()

    async def _rest(self, longest: float) -> None:
        """Sleep until something happens here, a hint comes from elsewhere, or time is up."""
        if longest <= 0 or self._stopping:
            await asyncio.sleep(0)  # whatever is due, others have their turn
            return
        wake = asyncio.ensure_future(self._wake.wait())
        hint = asyncio.ensure_future(self.store.wait_for_news(longest))
        try:
            await asyncio.wait({wake, hint}, timeout=longest, return_when=asyncio.FIRST_COMPLETED)
            if hint.done() and hint.result():
                self._look_at = 0.0
                self.crew.hint()
        finally:
            for task in (wake, hint):
                task.cancel()
            await asyncio.gather(wake, hint, return_exceptions=True)

    async def _renew(self) -> bool:
        epoch = await self.store.lead(self.process, self.settings.lease)
        if epoch != self.epoch:
            log.warning("another process leads now; this one stands by")
            self._step_down()
            return False
        self._renew_at = time.monotonic() + self.settings.lease / 3
        return True

    # Hearing

    async def _look(self, frontier: Frontier) -> None:
        if await self.store.wait_for_news(0.0):
            self.crew.hint()  # and what is asked now answers every hint so far
        news = await self.store.take_news(self.process)
        for dag in news.refreshed:
            if not await self._arrivals.drop(frontier, dag):
                return
        if not await self._arrivals.follow(frontier, self.roster, news.ready, news.ended):
            return
        now = self.store.now()
        frontier.ended_runs(news.runs_ended, now)
        self._on_ended(news.runs_ended)
        if news.settings:
            self.planners.follow(await self.store.settings())
            for executor in frontier.executors():
                frontier.set_planner(executor, self.planners.of(executor), now)
        self.roster.see(await self.store.workers(), time.monotonic())
        # First: no slot is offered to a job that its worker does not know.
        frontier.follow(self.roster, now)
        for executor, slots in self.roster.slots().items():
            frontier.resize(executor, slots, now)

    async def _rescue(self) -> None:
        """Bury silent workers, and take back what nobody runs."""
        silent = self.roster.silent(time.monotonic())
        if silent:
            buried = await self.store.bury(silent)
            for worker in buried:
                log.warning(
                    "worker %d gave no sign of life for %g s; what it ran is taken back",
                    worker,
                    self.settings.lease,
                )
        orphans = await self.store.orphans(self.settings.ack)
        if not orphans:
            return
        begun = [job for job in orphans if job.acked]
        graves = await self.store.graves({job.worker for job in begun}) if begun else {}
        endings = [handed_back(job) for job in orphans if not job.acked] + deaths(begun, graves)
        await self.finish(await judged(self.store, endings, self.settings.crashes))
        self.counts.rescued += len(orphans)

    async def _recheck(self, ids: Sequence[Id]) -> None:
        """What we believed of these jobs is wrong: read their runs anew."""
        frontier = self.frontier
        if frontier is None:
            return
        for dag in dict.fromkeys(dag for dag, _ in ids):
            ready, running = await self.store.reread(dag)
            if self.frontier is not frontier:
                return
            if not await self._arrivals.drop(frontier, dag):
                return
            now = self.store.now()
            held = {(job.dag, job.node) for job in running}
            gone = [one for one in ids if one[0] == dag and one not in held]
            self._arrivals.ended(frontier, self.roster, gone)
            self._hold(frontier, running, now)
            frontier.add(self.estimates.fill(ready), now)

    async def _hear(self, frontier: Frontier, finished: Finished) -> None:
        await self._arrivals.follow(frontier, self.roster, finished.ready, finished.applied)
        if finished.ended and self.frontier is frontier:
            frontier.ended_runs([run.dag for run in finished.ended], self.store.now())

    def _hold(self, frontier: Frontier, running: Sequence[RunningJob], now: float) -> None:
        frontier.hold(running, now)
        self.roster.hold(running)

    # Planning and claiming

    async def _claim(self, frontier: Frontier, started: Sequence[ReadyJob]) -> None:
        claimed, homeless = await self._claimer.claim(started, self.roster, self.epoch)
        now = self.store.now()
        self.counts.claimed += len(claimed)
        if len(claimed) == len(started):
            self.counts.claimed_at(now, started)
            return
        won = {(job.dag, job.node) for job in claimed}
        self.counts.claimed_at(now, (job for job in started if (job.dag, job.node) in won))
        for job in homeless:  # a worker has gone: the roster tells the frontier at the next look
            frontier.lost((job.dag, job.node), now)
        if homeless:
            frontier.add(homeless, now)
            self._look_at = 0.0
        won.update((job.dag, job.node) for job in homeless)
        lost = [(job.dag, job.node) for job in started if (job.dag, job.node) not in won]
        self.roster.release(lost)
        for one in lost:
            frontier.lost(one, now)
        self.counts.lost_claims += len(lost)
        if lost and await self._renew():
            await self._recheck(lost)
