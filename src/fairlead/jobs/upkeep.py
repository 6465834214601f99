"""What the leader does now and then: missed SLAs, schedules, announcements, the archive, learned estimates."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from fairlead.errors import FairleadError, StoreError
from fairlead.jobs.cron import due
from fairlead.jobs.executors.base import check_declared
from fairlead.jobs.files import run_of_file
from fairlead.jobs.records import NewRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fairlead.jobs.announcing import Announcer
    from fairlead.jobs.records import Schedule
    from fairlead.jobs.registry import Task
    from fairlead.jobs.scheduling import Scheduler
    from fairlead.jobs.stores.base import Store

ARCHIVED_AT_ONCE = 500
ARCHIVE_EVERY = 60.0  # seconds

log = logging.getLogger("fairlead.jobs")


class Upkeep:
    """Call it with the scheduler that leads, every sweep."""

    def __init__(
        self,
        store: Store,
        tasks: Mapping[str, Task],
        announcer: Announcer,
        executors: Callable[[], Iterable[str]],
    ) -> None:
        self._store = store
        self._tasks = tasks
        self._announcer = announcer
        self._executors = executors
        self._archive_at = 0.0
        self._complaints: dict[str, str] = {}

    async def __call__(self, scheduler: Scheduler) -> None:
        missed = await self._store.missed()
        for one in missed:
            scheduler.counts.missed[one.kind] += 1
        self._announcer.missed(missed)
        self._announcer.wake()
        await scheduler.estimates.share(self._store)
        if await self._fire():
            scheduler.look_soon()
        await self._store.forget_deaths(scheduler.settings.crash_window)
        if time.monotonic() >= self._archive_at:
            before = self._store.now() - scheduler.settings.retention
            moved = await self._store.archive(before, ARCHIVED_AT_ONCE)
            again = 0.0 if moved >= ARCHIVED_AT_ONCE else ARCHIVE_EVERY
            self._archive_at = time.monotonic() + again

    async def _fire(self) -> bool:
        now = self._store.now()
        fired = False
        for schedule in await self._store.schedules():
            try:
                ticks, passed = due(schedule, now)
                if passed is not None:
                    await self._store.fire(schedule.name, passed, None)
                for tick in ticks:
                    run = self._run_of(schedule, tick, now)
                    await check_declared(self._store, self._executors(), [run])
                    fired |= await self._store.fire(schedule.name, tick, run) is not None
                self._complaints.pop(schedule.name, None)
            except StoreError:
                raise
            except FairleadError as error:
                if self._complaints.get(schedule.name) != str(error):
                    self._complaints[schedule.name] = str(error)
                    log.error("schedule %r does not fire: %s", schedule.name, error)
        return fired

    def _run_of(self, schedule: Schedule, tick: float, now: float) -> NewRun:
        run = run_of_file(schedule.run, self._tasks, now=now)
        return run._replace(key=f"schedule:{schedule.name}:{tick:.0f}")
