"""`Jobs`: the one object people hold.  As it is, a client of the database; inside `async with`, also a server of it.

jobs = Jobs("sqlite:///fairlead.db")
await jobs.submit(dag)          anywhere: durable when it returns
async with jobs: ...            plans (or stands by), and runs what its local executors can
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from fairlead.config import seconds, shown
from fairlead.core import Gate
from fairlead.errors import ConfigError, Misuse, ShuttingDown, StoreUnavailable, UnknownRun
from fairlead.jobs import verbs
from fairlead.jobs.announcing import Announcer
from fairlead.jobs.blocking import BlockingJobs
from fairlead.jobs.estimates import Estimates
from fairlead.jobs.executors.base import specs_of
from fairlead.jobs.outcome import Outcome, find_run, outcome_of_rows, run_number
from fairlead.jobs.registry import DEFAULT_EXECUTOR, Task, check_options, same, task_of
from fairlead.jobs.scheduling import Scheduler
from fairlead.jobs.settings import settings_of
from fairlead.jobs.sla import KEEP, changed_sla
from fairlead.jobs.states import TERMINAL
from fairlead.jobs.stores.opening import open_store
from fairlead.jobs.upkeep import Upkeep
from fairlead.jobs.worker import Crew

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from os import PathLike

    from fairlead.jobs.executors.base import ExecutorSpec
    from fairlead.jobs.graph import Dag
    from fairlead.jobs.outcome import Run
    from fairlead.jobs.records import Ending, Finished, JobRow, RunRow
    from fairlead.jobs.stores.base import Store
    from fairlead.runtime import MakeGate

F = TypeVar("F", bound="Callable[..., Any]")
LOCAL_SLOTS = 8  # of an executor that nobody declared
GRACE = 30.0  # seconds for what runs when the end is near


class Jobs:
    """Durable DAGs of jobs, planned onto executors.

    >>> jobs = Jobs("sqlite:///fairlead.db")
    >>> @jobs.task(retries=2)
    ... async def greet(name: str) -> str:
    ...     return f"hello {name}"
    """

    def __init__(
        self,
        url: str = "sqlite:///fairlead.db",
        *,
        executors: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        try:
            self.settings = settings_of(**settings)
        except TypeError:
            known = settings_of.__kwdefaults__ or {}
            unknown = next(name for name in settings if name not in known)
            raise ConfigError(
                f"Jobs has no setting {unknown!r}; there are {', '.join(('executors', *known))}"
            ) from None
        self.url = url
        self.creates = True  # a database that is not there, where that is a file
        self.make_gate: MakeGate = Gate  # of the leader; another one watches it
        self.tasks: dict[str, Task] = {}
        self.scheduler: Scheduler | None = None
        self.crew: Crew | None = None
        self._declared = None if executors is None else specs_of(executors)
        self._store = open_store(url)  # refuses a bad address at once; nothing is opened yet
        self.sync = BlockingJobs(self)  # the verbs of a client for threads without an event loop
        self._opened_on: asyncio.AbstractEventLoop | None = None
        self._is_open = False
        self._opening = asyncio.Lock()
        self._announcer = Announcer(self.settings.webhook)
        self._loop_task: asyncio.Task[None] | None = None
        self._ends: dict[int, set[asyncio.Event]] = {}  # of those who wait for a run
        self._closing = False

    # Declaring

    @overload
    def task(self, fn: F, /) -> F: ...

    @overload
    def task(
        self,
        fn: None = None,
        /,
        *,
        name: str | None = None,
        executor: str = DEFAULT_EXECUTOR,
        estimate: Any = None,
        retries: int = 0,
        retry_delay: Any = "1s",
        timeout: Any = None,
        abandon: bool = False,
    ) -> Callable[[F], F]: ...

    def task(self, fn: Any = None, /, **options: Any) -> Any:
        """Register a function that jobs may call, by its name."""
        check_options(options)

        def register(fn: Any) -> Any:
            task = task_of(fn, **options)
            other = self.tasks.get(task.name)
            if other is not None and not same(other.fn, fn):
                raise ConfigError(
                    f"there is a task {task.name!r} already; give one of them another name"
                )
            self.tasks[task.name] = task
            if self.crew is not None:
                self.crew.learn()
            return fn

        return register if fn is None else register(fn)

    def on_event(self, hook: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
        """Call a function with each event: run.completed, .failed, .cancelled, sla.soft_missed, sla.hard_missed."""
        if not callable(hook):
            raise ConfigError(f"a hook must be a function of one event; got {shown(hook)}")
        self._announcer.hooks.append(hook)
        return hook

    @property
    def executors(self) -> dict[str, ExecutorSpec]:
        """The executors declared; if none were, every one that a task names is local.

        That of tasks which name none is local too, unless it is declared otherwise.
        """
        named = [task.executor for task in self.tasks.values()]
        if self._declared is None:
            return specs_of(dict.fromkeys([DEFAULT_EXECUTOR, *named], LOCAL_SLOTS))
        if DEFAULT_EXECUTOR in self._declared or DEFAULT_EXECUTOR not in named:
            return self._declared
        return self._declared | specs_of({DEFAULT_EXECUTOR: LOCAL_SLOTS})

    # The database

    def move_to(self, url: str) -> None:
        """Use another database than the one the code names; before anything was asked of it."""
        if self._opened_on is not None:
            raise Misuse("this Jobs has been used with its database; move it before")
        self._store = open_store(url)
        self.url = url

    async def store(self) -> Store:
        """The store, open."""
        if self._closing:
            raise ShuttingDown("this Jobs is being closed; make another one")
        loop = asyncio.get_running_loop()
        if self._opened_on is not loop:
            if self._opened_on is None or self._opened_on.is_closed():
                if self._opened_on is not None:
                    self._store = open_store(self.url)  # the old one's loop is gone, and it with it
                self._opening, self._opened_on = asyncio.Lock(), loop
                self._is_open = False
            else:
                raise Misuse(
                    "this Jobs belongs to another event loop; make one for each, "
                    "or call jobs.sync, which needs no loop"
                )
        async with self._opening:
            if not self._is_open:
                await self._store.open(create=self.creates)
                self._is_open = True
        return self._store

    # Using

    async def submit(
        self,
        dag: Dag | Mapping[str, Any] | str | PathLike[str],
        *,
        start_at: Any = None,
        connection: Any = None,
        on_conflict: str = "error",
    ) -> Run:
        """Store a DAG, or a DAG file, as a run: durable when it returns.  The same key gives the same run.

        With `connection` (asyncpg or psycopg) it is part of the caller's own transaction.  A key that belongs to a
        run of another DAG is a KeyConflict; with `on_conflict="existing"` it gives that run.
        """
        runs = await self.submit_all(
            [dag], start_at=start_at, connection=connection, on_conflict=on_conflict
        )
        return runs[0]

    async def submit_all(
        self,
        dags: Iterable[Any],
        *,
        start_at: Any = None,
        connection: Any = None,
        on_conflict: str = "error",
    ) -> list[Run]:
        """Store many DAGs in one transaction."""
        store = await self.store()
        runs = await verbs.submit_all(
            store,
            self.tasks,
            self.executors,
            dags,
            start_at=start_at,
            connection=connection,
            on_conflict=on_conflict,
            estimates=None if self.scheduler is None else self.scheduler.estimates.means(),
        )
        if self.scheduler is not None:
            self.scheduler.look_soon()
        return runs

    async def wait(self, run: Any, timeout: Any = None) -> Outcome:
        """Wait for a run to end, well or not; `TimeoutError` if it takes longer than `timeout`."""
        dag = run_number(run)
        limit = None if timeout is None else seconds(timeout, "timeout", zero=True)
        async with asyncio.timeout(limit):
            return await self._wait(dag)

    async def _wait(self, dag: int) -> Outcome:
        store = await self.store()
        pause, found = 0.02, None
        while True:
            event = asyncio.Event()
            self._ends.setdefault(dag, set()).add(event)
            try:
                found = await find_run(store, dag)
                if found.state in TERMINAL:
                    return outcome_of_rows(found, await store.jobs(dag))
                if self.scheduler is not None:  # its end here is told; elsewhere, it is seen
                    await _until(event.wait(), self.settings.poll)
                else:
                    await store.wait_for_news(pause)
                    pause = min(2 * pause, self.settings.poll)
            except StoreUnavailable:
                if found is None:  # at the first look, the address may be wrong
                    raise
                await asyncio.sleep(pause)
                pause = min(2 * pause, self.settings.poll)
            finally:
                self._ends[dag].discard(event)
                if not self._ends[dag]:
                    del self._ends[dag]

    async def cancel(self, run: Any) -> bool:
        """Cancel a run: what waits never runs, what runs is stopped.  False if it has ended or is being cancelled."""
        return await self._change(run, "cancel")

    async def pause(self, run: Any) -> bool:
        """Start nothing more of a run; False if it has ended or is paused."""
        return await self._change(run, "pause")

    async def resume(self, run: Any) -> bool:
        """Go on with a paused run; False if it is not paused."""
        return await self._change(run, "resume")

    async def retry(self, run: Any) -> bool:
        """Give the jobs of an ended run that did not complete fresh attempts; False if there are none."""
        return await self._change(run, "retry")

    async def set_sla(
        self, run: Any, *, soft_sla: Any = KEEP, hard_sla: Any = KEEP, node: int | None = None
    ) -> bool:
        """Change the SLAs of a run, or of one job; what is left out stays, None removes, durations count from now."""
        store = await self.store()
        row = await find_run(store, run_number(run))
        found: RunRow | JobRow | None = row
        if node is not None:
            found = next((job for job in await store.jobs(row.dag) if job.node == node), None)
        if found is None:
            raise UnknownRun(f"run {row.dag} has no job {row.dag}.{node}")
        soft, hard = changed_sla((found.soft, found.hard), soft_sla, hard_sla, store.now())
        if row.state in TERMINAL:
            raise ConfigError(f"run {row.dag} has ended ({row.state}): its SLAs are history")
        return await self._change(run, "set_sla", soft, hard, node)

    async def _change(self, run: Any, verb: str, *args: Any) -> bool:
        changed = await verbs.change(await self.store(), run, verb, *args)
        if self.scheduler is not None:
            self.scheduler.look_soon()
            self.scheduler.crew.hear_soon()
        return changed

    # Serving

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(
        self,
        *,
        name: str | None = None,
        app: str | None = None,
        view: bool = False,
        on_stuck: Callable[[str], None] | None = None,
    ) -> None:
        """Plan, or stand by; and run what local executors can, if there are tasks.

        `app` is "module:jobs", for other processes to find; a `view` plans nothing while it has no tasks.  `on_stuck`
        is called with a sentence when all slots of an executor have been stuck for `stuck_after`; without it that is
        only logged.
        """
        if self.scheduler is not None:
            raise Misuse("this Jobs is serving already")
        store = await self.store()
        estimates = Estimates()
        scheduler: Scheduler

        async def heard(endings: list[Ending], finished: Finished) -> None:
            await scheduler.hear(endings, finished)
            estimates.note(endings)
            saw, tasks = scheduler.counts.runs.saw, self.tasks
            for ending in endings:
                task = tasks.get(ending.task or "")
                if task is not None and ending.ran is not None:
                    saw(task.name, task.executor, ending.ran)

        crew = Crew(
            store,
            self.tasks,
            self.executors,
            name=name,
            lease=self.settings.lease,
            poll=self.settings.poll,
            heard=heard,
            crashes=self.settings.crashes,
            stuck_after=self.settings.stuck_after,
            on_stuck=on_stuck,
            app=app,
        )
        scheduler = Scheduler(
            store,
            self.settings,
            crew,
            estimates,
            upkeep=Upkeep(store, self.tasks, self._announcer, lambda: self.executors),
            on_ended=self._ended,
            gate=self.make_gate,
            may_lead=lambda: bool(self.tasks) or not view,
        )
        await crew.start()
        self.crew, self.scheduler = crew, scheduler
        self._announcer.start(store, lambda: scheduler.leading)
        self._loop_task = asyncio.create_task(scheduler.run(), name="fairlead jobs scheduler")

    def _ended(self, dags: Sequence[int]) -> None:
        for dag in dags:
            for event in self._ends.get(dag, ()):
                event.set()
        if dags:
            self._announcer.ended()

    async def close(self, grace: Any = GRACE) -> None:
        """Stop claiming, let what runs finish or hand it back, let another lead, and let go of the database."""
        if self._closing:
            return
        try:
            await self.stop(grace)
        finally:
            self._closing = True
            await self._announcer.close()
            if self._is_open:
                self._is_open = False
                await self._store.close()
            self._closing = False
            self._opened_on = None

    async def stop(self, grace: Any = GRACE) -> None:
        """Serve no more, but stay a client: claim nothing, let what runs finish or hand it back, let another lead."""
        limit = seconds(grace, "grace", zero=True)
        scheduler, crew, task = self.scheduler, self.crew, self._loop_task
        if scheduler is None or crew is None or task is None:
            return
        scheduler.stop()
        deadline, resigned = time.monotonic() + limit, False
        try:
            await asyncio.wait({task}, timeout=1.0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            resigned = await scheduler.resign()  # what runs here may take its time; others go on
            await crew.drain(max(0.0, deadline - time.monotonic()))
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await crew.stop()
            try:
                # Of ends that nobody leads to tell, tell them; whoever leads by now heard of them as news.
                leads = resigned and self._announcer.wanted and await scheduler.lead_once_more()
                await self._announcer.stop(leads=leads)
                if leads:
                    await scheduler.resign()
            finally:
                scheduler.let_go()
                self.scheduler = self.crew = self._loop_task = None


async def _until(awaitable: Any, limit: float) -> None:
    try:
        await asyncio.wait_for(awaitable, limit)
    except TimeoutError:
        pass
