"""Why a job is not running, in one sentence, and when it likely will.

A ready job is explained by the dispatcher itself: by the leader's own frontier if it lives in this process, else by a
frontier of the same class that holds what runs, the job, and the first and nearest of the other ready jobs.  What
refuses a job, slots and caps, is counted in what runs; how many ready jobs there are changes neither the reason nor the
cost.  Everything before and after that state stands in the rows of the job and of those that it waits for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.errors import ConfigError, UnknownRun
from fairlead.jobs.estimates import Estimates
from fairlead.jobs.frontier import Frontier
from fairlead.jobs.limits import limited
from fairlead.jobs.outcome import find_run
from fairlead.jobs.planning import Elsewhere, name_of, planner_of
from fairlead.jobs.reasons import EXECUTOR_FULL
from fairlead.jobs.roster import Roster
from fairlead.jobs.rows import MOST_NODES
from fairlead.jobs.states import (
    ACTIVE,
    CANCELLED,
    COMPLETED,
    EXPIRED,
    FRUITLESS,
    RETRY,
    SKIPPED,
    SUSPENDED,
    TERMINAL,
)
from fairlead.jobs.times import written
from fairlead.jobs.wording import (
    cut,
    ending_of,
    error_of,
    job_name,
    moment,
    roughly,
    worker_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlead.jobs.records import Id, JobRow, RunRow, WorkerRow
    from fairlead.jobs.scheduling import Scheduler
    from fairlead.jobs.settings import Settings
    from fairlead.jobs.stores.base import Store

MOST_READ = (
    1_000  # ready jobs at once; of more than that the place in line is not exact, the reason is
)


class Explanation(NamedTuple):
    """Why a job does not run; `reason` is one word of it for machines."""

    job: str
    state: str
    reason: str
    sentence: str
    expected_at: float | None = None

    def document(self) -> dict[str, Any]:
        """Describe it."""
        return {
            "job": self.job,
            "state": self.state,
            "reason": self.reason,
            "explanation": self.sentence,
            "expected_at": written(self.expected_at),
        }


async def explain(
    store: Store, settings: Settings, job: Id, scheduler: Scheduler | None = None
) -> Explanation:
    """Explain a job."""
    run = await find_run(store, job[0])
    rows = await store.some_jobs(job[0], [job[1]])
    if not rows:
        raise UnknownRun(
            f"run {job[0]} has no job {job[0]}.{job[1]}; it has {job[0]}.0 to {job[0]}.{run.jobs - 1}"
        )
    if scheduler is None or not scheduler.leading:
        settings = limited(settings, await store.settings())
    return await _Case(store, settings, scheduler, run).explained(rows[0])


class _Case:
    """One question, and what was looked up for it."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        scheduler: Scheduler | None,
        run: RunRow,
    ) -> None:
        self.store = store
        self.settings = settings
        self.scheduler = scheduler
        self.run = run
        self.now = store.now()
        self.planners: dict[str, Any] = {}  # as they were set, by executor

    async def explained(self, row: JobRow) -> Explanation:
        reason, clause, at = await self._why(row)
        sentence = cut(f"{job_name(row)} {clause}")
        return Explanation(f"{row.dag}.{row.node}", row.state, reason, sentence, at)

    async def _why(self, row: JobRow) -> tuple[str, str, float | None]:
        """Tell the reason as a word and as the rest of a sentence, and when the job likely starts."""
        if row.state in TERMINAL:
            return row.state, await self._ended(row), None
        if row.state == ACTIVE:
            return await self._running(row)
        if row.state == SUSPENDED:
            return (
                "paused",
                f"does not start because its run is paused; fairlead jobs resume {row.dag} lets it go on",
                None,
            )
        if row.waits:
            return await self._blocked(row)
        if row.start_at > self.now:
            return self._delayed(row)
        return await self._ready(row)

    # Ended

    async def _ended(self, row: JobRow) -> str:
        at = f" at {moment(row.completed_on)}" if row.completed_on is not None else ""
        if row.state == COMPLETED:
            return f"completed{at}"
        if row.state == SKIPPED:
            cause = await self._cause(row)
            why = (
                ""
                if cause is None
                else f" because {job_name(cause)}, which it needs, {ending_of(cause)}"
            )
            return f"was skipped{at} and never runs{why}"
        if row.state == CANCELLED:
            return f"was cancelled{at}"
        told = [f"{row.attempts} attempt{'s' * (row.attempts != 1)}"] if row.attempts else []
        if row.crashes:
            told.append(f"{row.crashes} crash{'es' * (row.crashes != 1)}")
        tries = f" after {' and '.join(told)}" if told else ""
        what = "expired, timed out" if row.state == EXPIRED else "failed"
        again = f"fairlead jobs retry {row.dag} gives it fresh attempts"
        if self.run.state not in TERMINAL:
            again = f"once its run has ended, {again}"
        elif not await self._kept():
            again = "its run is archived, and is not retried"
        return f"{what}{at}{tries}{error_of(row)}; {again}"

    async def _kept(self) -> bool:
        """Tell whether the run is still among those that are listed, or archived."""
        listed = await self.store.runs(before=self.run.dag + 1, limit=1)
        return [one.dag for one in listed] == [self.run.dag]

    async def _cause(self, row: JobRow) -> JobRow | None:
        """Find the job that was not skipped itself, and for which this one was."""
        seen: set[int] = set()
        found: JobRow | None = row
        while found is not None and found.state == SKIPPED and found.node not in seen:
            seen.add(found.node)
            found = next(iter(await self._needed(found, lambda one: one.state in FRUITLESS)), None)
        return found if found is not row else None

    # Running

    async def _running(self, row: JobRow) -> tuple[str, str, float | None]:
        if row.cancelling:
            return (
                "cancelling",
                "runs and has been asked to stop; that takes one heartbeat at most, or as long as its code does not "
                "stop: a thread, which has to look at current_job().cancelled, keeps its slot until it ends",
                None,
            )
        workers = {one.id: one for one in await self.store.workers()}
        worker = workers.get(row.worker or -1)
        _, running = await self.store.reread(row.dag)
        claim = next((one for one in running if one.node == row.node), None)
        since = self.now - (row.claimed_at or self.now)
        if worker is None:
            return (
                "worker_lost",
                f"was started on worker {row.worker} of executor {row.executor!r}, which is gone; the scheduler "
                f"gives it to another within {self.settings.sweep:g} s",
                self.now + self.settings.sweep,
            )
        if claim is not None and not claim.acked:
            return (
                "not_acknowledged",
                f"was given to {worker_of(worker)} {roughly(since)} ago, which has not acknowledged it yet; "
                f"after {self.settings.ack:g} s it is given to another",
                None,
            )
        limit = None if claim is None else claim.timeout
        over = (
            None if limit is None or row.started_at is None else self.now - row.started_at - limit
        )
        if limit is not None and over is not None and over > 0:
            return (
                "stuck",
                f"is past its timeout of {roughly(limit)} for {roughly(over)} and was told to stop; its code still "
                f"runs on {worker_of(worker)}, and keeps the slot until it ends",
                None,
            )
        silent = ", which gives no sign of life" if worker.expired else ""
        left = ""
        if row.estimate is not None:
            rest = row.estimate - since
            left = (
                f"; by its estimate it ends in {roughly(rest)}"
                if rest > 0
                else (f"; that is longer than its estimate of {roughly(row.estimate)}")
            )
        return "running", f"runs on {worker_of(worker)}{silent}, since {roughly(since)}{left}", None

    # Not ready yet

    async def _blocked(self, row: JobRow) -> tuple[str, str, float | None]:
        next_one, root = await self._blocker(row)
        if next_one is None or root is None:
            return "blocked", f"waits for {row.waits} jobs that it needs", None
        others = row.waits - 1
        more = f" and {others} other job{'s' * (others != 1)}" if others else ""
        waits = f"waits for upstream {job_name(next_one)}{more}"
        if root is not next_one:
            waits += f", which waits for {job_name(root)}"
        _, clause, _ = await self._why(root)
        return "upstream", f"{waits}; that one {clause}", None

    async def _needed(self, row: JobRow, wanted: Callable[[JobRow], bool]) -> list[JobRow]:
        """Read the jobs that a job needs, as many at once as may be read, until some are wanted."""
        for place in range(0, len(row.needs), MOST_READ):
            nodes = row.needs[place : place + MOST_READ]
            found = list(filter(wanted, await self.store.some_jobs(row.dag, nodes)))
            if found:
                return found
        return []

    async def _blocker(self, row: JobRow) -> tuple[JobRow | None, JobRow | None]:
        """Find what it waits for, and what that in the end waits for."""
        nearest: JobRow | None = None
        found = row
        while found.waits:
            left = await self._needed(found, lambda one: one.state != COMPLETED)
            if not left:
                break
            # One that is under way says most about the time.
            found = min(left, key=lambda one: (one.state != ACTIVE, one.waits > 0, one.node))
            nearest = nearest or found
        return nearest, None if found is row else found

    def _delayed(self, row: JobRow) -> tuple[str, str, float | None]:
        wait = roughly(row.start_at - self.now)
        if row.state == RETRY:
            tries = f"attempt {row.attempts + 1} of {row.retries + 1}"
            return (
                "retry",
                f"waits {wait} for its retry at {moment(row.start_at)} ({tries}){error_of(row)}",
                row.start_at,
            )
        return "start_at", f"was asked to start at {moment(row.start_at)}, in {wait}", row.start_at

    # Ready

    async def _ready(self, row: JobRow) -> tuple[str, str, float | None]:
        executor = repr(row.executor)
        workers = [one for one in await self.store.workers() if one.executor == row.executor]
        served = any(not one.expired and not one.draining for one in workers)
        if await self.store.leader() is None:
            clause = f"is ready for executor {executor}, but no scheduler is running"
            if served:
                return "no_scheduler", f"{clause}; start fairlead jobs serve", None
            return (
                "no_scheduler",
                f"{clause}, and it has no worker; start fairlead jobs serve, and unless the executor is "
                f"local there, fairlead worker --executor {row.executor}",
                None,
            )
        if not served:
            how = "all its workers are silent or shutting down" if workers else "it has no worker"
            return (
                "no_worker",
                f"is ready, but executor {executor} cannot run anything: {how}; "
                f"start fairlead worker --executor {row.executor}",
                None,
            )
        able = [one for one in workers if not (one.expired or one.draining)]
        if not any(one.knows(row.task) for one in able):
            return (
                "unknown_task",
                f"is ready, but no worker of {executor} knows task {row.task!r}: "
                "start one whose application registers it",
                None,
            )
        frontier = self.scheduler.frontier if self.scheduler is not None else None
        own, chosen, whole = frontier is not None, False, True
        if frontier is None:
            frontier, whole = await self._filled(row, workers)
            chosen = any(one[:2] == (row.dag, row.node) for one in frontier.started())
        if chosen and self.settings.pool is not None:
            return (
                "held",
                f"is ready, and executor {executor} has a slot for it: it starts with one of the slots of "
                f"{self.settings.pool}, which others share",
                None,
            )
        if chosen:
            return (
                "starting",
                f"is ready, and executor {executor} has a slot for it: it starts with the scheduler's next turn",
                self.now,
            )
        if not own and row.executor in frontier.needs_plan(self.now):
            return "planner", self._unranked(row), None
        why = frontier.explain((row.dag, row.node), self.now, whole)
        clause = f"is ready for executor {executor} and waits: {why.said}"
        if why.reason == EXECUTOR_FULL and frontier.slots().get(row.executor, 0) > 0:
            return "held", clause, None
        pace = await self._pace(row)
        if why.before is None or pace is None or why.capped:  # a cap ends when it ends
            return why.reason, clause, None
        most = pace * ((why.before + 1) / _slots(workers)[row.executor])
        clause += f"; at {roughly(pace)} each it likely starts within {roughly(most)}"
        return why.reason, clause, self.now + most

    def _unranked(self, row: JobRow) -> str:
        """Say of a job that a user's planner may order what can be said without asking that planner."""
        planner = self.planners.get(row.executor) or self.planners.get("") or self.settings.planner
        name = name_of(planner, self.settings.planners)
        known = "" if not isinstance(planner, Elsewhere) else "it is the app's and not known here; "
        return (
            f"is ready for executor {row.executor!r}, and planner {name} orders what runs there; {known}"
            f"what it leaves out runs all the same after {self.settings.max_withheld:g} s"
        )

    async def _pace(self, row: JobRow) -> float | None:
        """Tell how long jobs on this one's executor take, as far as that is known."""
        if row.estimate is not None:
            return row.estimate
        found = (await self.store.estimates()).get(row.task)
        return None if found is None else found[0]

    async def _filled(self, row: JobRow, workers: list[WorkerRow]) -> tuple[Frontier, bool]:
        """Fill a frontier from the database; say whether all ready jobs are in it."""
        self.planners = planners = await self._planners()

        def planner_for(executor: str) -> Any:
            return planners.get(executor) or planners.get("") or self.settings.planner

        frontier = Frontier.of(self.settings, planner_for)
        running = await self.store.running()
        if (most := self.settings.max_concurrent_dags) is not None:
            # Also runs that are active though nothing of them runs just now.
            active = await self.store.runs(state="active", limit=most + 1)
            frontier.begin([run.dag for run in active], self.now)
        frontier.hold(running, self.now)
        everyone = await self.store.workers()
        roster = Roster(self.settings.lease)
        roster.see(everyone, self.now)
        roster.hold(running)
        frontier.follow(roster, self.now)
        for executor, slots in _slots(everyone).items():
            frontier.resize(executor, slots, self.now)
        estimates = Estimates()
        estimates.replace(await self.store.estimates())
        oldest = await self.store.ready(None, MOST_READ)
        before = (row.dag, row.node - 1) if row.node else (row.dag - 1, MOST_NODES)
        nearest = await self.store.ready(before, MOST_READ)
        ready = {one[:2]: one for one in (*oldest, *nearest)}
        frontier.add(estimates.fill(list(ready.values())), self.now)
        return frontier, len(oldest) < MOST_READ

    async def _planners(self) -> dict[str, Any]:
        planners: dict[str, Any] = {}
        for name, value in (await self.store.settings()).items():
            if name == "planner" or name.startswith("planner."):
                try:
                    planners[name.partition(".")[2]] = planner_of(value, self.settings.planners)
                except ConfigError:
                    planners[name.partition(".")[2]] = Elsewhere(value)
        return planners


def _slots(workers: list[WorkerRow]) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in workers:
        usable = 0 if row.expired or row.draining else row.slots
        found[row.executor] = found.get(row.executor, 0) + usable
    return found
