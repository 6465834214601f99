"""The jobs service in the server's process."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from fairlead.errors import FairleadError
from fairlead.jobs.api import STILL
from fairlead.jobs.planning import name_of
from fairlead.jobs.service import Jobs
from fairlead.jobs.serving import JobServer
from fairlead.jobs.states import SUSPENDED
from fairlead.server import apps
from fairlead.server.hosted_pool import borrowing
from fairlead.server.hosting import Hosted, View
from fairlead.server.overrides import NEVER, Override
from fairlead.server.recording import job_lines, job_of
from fairlead.serving.access import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from prometheus_client import Metric

    from fairlead.core import Capacity, Gate, Policy, Ticket
    from fairlead.observe.passed import Passed
    from fairlead.observe.watched import Feed
    from fairlead.server.hosted_pool import HostedPool
    from fairlead.server.loading import Loaded
    from fairlead.server.recording import Job
    from fairlead.server.settings import JobsSettings
    from fairlead.serving.auditing import Audit

LEADER = "jobs/leader"
LOOK = 2.0  # seconds between two counts of what is stored
SHARE = 20.0  # counting takes at most this part of the time

log = logging.getLogger("fairlead.server")


def class_of(ticket: Ticket) -> str:
    """Name the class of a job: its executor."""
    return str(ticket.pool)


def jobs_of(settings: JobsSettings) -> Jobs:
    """Find the application, or make one that only its database knows."""
    if settings.app is None:
        return Jobs(settings.database or "", executors=settings.executors, **settings.own)
    found = apps.find(settings.app, Jobs, "jobs.app")
    if settings.database is not None:
        found.move_to(settings.database)
    return found


def _executors(names: Iterable[str]) -> str:
    return "executor " + ", ".join(repr(name) for name in sorted(names))


class HostedJobs(Hosted):
    """A jobs service: it plans, or stands by, and runs what local executors can."""

    name = kind = "jobs"

    def __init__(
        self,
        settings: JobsSettings,
        feed: Feed,
        *,
        grace: float,
        prepare: Callable[[Jobs], None] = lambda jobs: None,
        pools: Sequence[HostedPool] = (),
    ) -> None:
        self._settings = settings
        self._channel = feed.channel(LEADER, class_of)
        watched = feed.gate(LEADER, class_of)
        self._make_gate = borrowing(pools, self, LEADER, watched, self._wake) or watched
        self.jobs = jobs_of(settings)
        # Whoever explains a job from another process has only what the leader leaves in the database.
        shared = next((one.pool.name for one in pools if LEADER in one.members), None)
        self.jobs.settings = self.jobs.settings._replace(pool=shared)
        prepare(self.jobs)
        self.jobs.make_gate = self._gate
        self.server = JobServer(
            self.jobs,
            http=settings.http,
            token=settings.token,
            grace=grace,
            app=settings.app,
            # With a database and no application it is a view: it knows neither the tasks nor their limits.
            view=settings.app is None,
        )
        self.counted: dict[str, int] | None = None  # jobs by state
        self.workers = 0
        self._looking: asyncio.Task[None] | None = None

    @property
    def planners(self) -> Mapping[str, Any]:
        return self.jobs.settings.planners

    def _gate(self, policy: Policy, capacity: Capacity) -> Gate:
        """Make the gate of a scheduler that begins to lead; what the one before it knew is thrown away."""
        before = self._channel.gate
        if before is not None:
            self._channel.forget([*before.waiters(), *before.holders])
        return self._make_gate(policy, capacity)

    def _wake(self) -> None:
        """Slots of a pool were lent."""
        if self.jobs.scheduler is not None:
            self.jobs.scheduler.wake()

    async def start(self) -> None:
        """Open the database, and begin."""
        await self.server.__aenter__()
        self._looking = asyncio.create_task(self._look())
        self.state, self.detail = "running", self.server.describe().partition("\n")[0]

    async def _look(self) -> None:
        """Count what is stored, now and then."""
        while True:
            begun = time.monotonic()
            try:
                store = await self.jobs.store()
                self.counted = await store.states()
                self.workers = sum(not one.expired for one in await store.workers())
                if self.state == "failed":
                    self.state, self.detail = "running", self.server.describe().partition("\n")[0]
            except FairleadError as error:
                self.state, self.detail = "failed", str(error)
            await asyncio.sleep(max(LOOK, SHARE * (time.monotonic() - begun)))

    async def stop(self, grace: float) -> None:
        """Let what runs finish, or hand it back."""
        self.state = "stopped"
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        self.server.grace = min(self.server.grace, grace)
        await self.server.__aexit__()

    def hurry(self) -> None:
        """Hand back what runs now."""
        self.server.hurry()

    def left(self) -> str:
        """Tell of jobs."""
        return self.server.left()

    def retune(self, loaded: Loaded) -> list[str]:
        """Jobs change by their own verbs, such as the planner's; their section counts at a start."""
        if loaded.settings.jobs != self._settings:
            return ["jobs: the section changes only at the next start"]
        return []

    def views(self) -> list[View]:
        """The gate of the scheduler, while this process leads."""
        scheduler = self.jobs.scheduler
        if scheduler is None or scheduler.frontier is None or self._channel.gate is None:
            return []
        return [
            View(
                LEADER,
                self.name,
                self._channel,
                now=scheduler.store.now,
                total=lambda: float(sum(scheduler.roster.slots().values())),
                overfull=self._overfull,
                idle=self._idle,
                weight_of=self._weight_of,
            )
        ]

    def _idle(self) -> str | None:
        """Say why slots of workers are free while jobs wait."""
        scheduler = self.jobs.scheduler
        if scheduler is None:
            return None
        slots, busy = scheduler.roster.slots(), scheduler.roster.busy()
        free = {name for name, count in slots.items() if count > busy.get(name, 0)}
        waits = {one.name for one in self._channel.standing() if one.waiting}
        if not free & waits:
            return f"the free slots are of {_executors(free)}; what waits needs {_executors(waits)}"
        return (
            f"jobs wait for {_executors(free & waits)} though slots are free there: a limit of a run or a tenant, "
            "the planner, or the tasks that workers know; explain a job to learn which"
        )

    def _overfull(self) -> str:
        """Name the executors that run more than their workers have slots."""
        roster = self.jobs.scheduler.roster if self.jobs.scheduler is not None else None
        slots = {} if roster is None else roster.slots()
        busy = {} if roster is None else roster.busy()
        over = [
            f"executor {name!r} runs {used} and has {slots.get(name, 0)}"
            for name, used in sorted(busy.items())
            if used > slots.get(name, 0)
        ]
        return (
            f"{'; '.join(over) or 'some run at workers that are gone'}. "
            "Workers that have left, or take no more, still hold these jobs until they end or are taken back"
        )

    def _weight_of(self, tenant: Any) -> float:
        limits = self.jobs.settings.tenants.get(tenant)
        return 1.0 if limits is None else limits.weight

    def policy(self, gate: str) -> dict[str, Any] | None:
        """The planner, over the slots of the workers there are now."""
        scheduler = self.jobs.scheduler
        if scheduler is None:
            return None
        slots = {name: count for name, count in scheduler.roster.slots().items() if count}
        planner = name_of(self.jobs.settings.planner, self.planners)
        set_now = self.jobs.settings
        limits = {
            "max_concurrent_dags": set_now.max_concurrent_dags,
            "max_running_per_dag": set_now.max_running_per_dag,
            "max_wait": set_now.max_wait,
            "max_withheld": set_now.max_withheld,
            "burst": set_now.burst,
            "tenants": {name: one._asdict() for name, one in set_now.tenants.items()},
        }
        return {"preset": "jobs", "planner": planner, "executors": slots or {"default": 1}} | limits

    async def recorded(self, rows: Sequence[Passed]) -> Iterable[dict[str, Any]]:
        """A line for each try of a job, with what it waited for; only the database knows that."""
        store = await self.jobs.store()
        needs: dict[Job, tuple[int, ...]] = {}
        # A run of one job has no other node, and nothing in it waits for anything.
        for run in sorted({run for run, node in map(job_of, rows) if node > 0}):
            needs |= {(run, job.node): job.needs for job in await store.jobs(run)}
        return job_lines(rows, needs)

    def summary(self) -> dict[str, Any] | None:
        """Count jobs for a snapshot; None before they were first counted.

        Ready and running are those of the gate while this process leads, so that they are the gate's numbers; where
        another process leads, what runs is counted in the database, and what is ready only the leader knows.
        """
        counted, scheduler = self.counted, self.jobs.scheduler
        if counted is None:
            return None
        missed = {} if scheduler is None else scheduler.counts.missed
        leading = bool(self.views())
        reading = self._channel.reading() if leading else None
        ready = None if reading is None else sum(one.waiting for one in reading.standing)
        unstarted = counted.get("created", 0) + counted.get("retry", 0)
        return {
            "leading": leading,
            "reason": None if leading else self._led_elsewhere(),
            "ready": ready,
            "running": counted.get("active", 0) if reading is None else reading.running,
            "waiting": max(0, unstarted - (ready or 0)) + counted.get("suspended", 0),
            "failed": counted.get("failed", 0) + counted.get("expired", 0),
            "done": counted.get("completed", 0),
            "sla_soft_missed": missed.get("soft", 0),
            "sla_hard_missed": missed.get("hard", 0),
            "workers": self.workers,
        }

    def _led_elsewhere(self) -> str:
        """Say where the numbers come from while this process does not lead."""
        if self.state == "failed":
            return f"{self.detail}; shown is what was counted before"
        if not self.jobs.tasks:
            return "this process has no tasks: it only shows what its database holds"
        return (
            "this process does not lead: another one plans the jobs, or is about to. "
            f"What runs is counted in the database every {LOOK:g} s"
        )

    def record_in(self, audit: Audit) -> None:
        """Record what operators change at the door's own port."""
        self.server.api.audit = audit

    async def overrides(self) -> list[Override]:
        """List stored planners, paused schedules and paused runs."""
        operations = self.server.api.operations
        found = [
            Override(
                "jobs:planner" if executor is None else f"jobs:planner:{executor}",
                self.name,
                "the planner" if executor is None else f"the planner of executor {executor}",
                configured,
                planner,
                NEVER,
                partial(operations.set_planner, None, executor),
                Role.ADMIN,
            )
            for executor, planner, configured in await operations.stored_planners()
        ]
        for one in await operations.schedules():
            if one["paused"]:
                name = one["name"]
                undo = partial(operations.pause_schedule, name, False)
                found.append(self._paused(f"schedule:{name}", f"schedule {name}", undo))
        for row in await operations.rows(state=SUSPENDED):
            undo = partial(operations.resume, str(row.dag))
            found.append(self._paused(f"run:{row.dag}", f"run {row.dag}", undo))
        return found

    def _paused(self, key: str, what: str, undo: Callable[[], Any]) -> Override:
        return Override(f"jobs:{key}:pause", self.name, what, "runs", "paused", NEVER, undo)

    def links(self) -> dict[str, str]:
        """Where programs submit."""
        return {} if self.server.http is None else {"http": f"http://{self.server.http.address}"}

    def unready(self) -> str | None:
        """A scheduler whose loop stands still is no good."""
        scheduler = self.jobs.scheduler
        if scheduler is None:
            return "it does not serve"
        if time.monotonic() - scheduler.progressed_at > STILL:
            return "its scheduler stands still"
        return None

    async def refresh(self) -> None:
        """Have what is stored counted."""
        await self.server.api.metrics.refresh()

    def families(self) -> Iterable[Metric]:
        """The jobs' own metrics."""
        return self.server.api.metrics.collect()
