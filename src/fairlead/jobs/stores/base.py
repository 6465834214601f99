"""What every store can do: the memory of runs and jobs, and the only judge of time.

**One transaction, one truth.**  A submission, a batch of claims and a batch of endings are one transaction each.  With
an ending go the counting down of what waits for it, the skipping of what never will run, the run's own state, and a
line of *news* for the scheduler of another process.  Nothing is deleted before it has ended and retention has passed.

**Locks.**  Rows of runs are locked before rows of jobs, runs in order of their numbers; rows of jobs are touched under
their run's lock, or by a claim that skips what is locked.  So nothing deadlocks.

**Fences.**  An active job belongs to whoever claimed it with that fence.  A worker lives by its heartbeat; `bury`
removes the silent ones, and their jobs are then nobody's (`orphans`).  A claim needs the scheduler's lease (`epoch`).

**Errors.**  `StoreUnavailable` if the database cannot be reached or refuses for reasons that pass (also a full disk:
nothing was changed); calls may then be repeated.  Anything else is a bug.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from fairlead.jobs.records import (
        Beat,
        Claim,
        Claimed,
        Ending,
        Finished,
        Id,
        JobRow,
        Missed,
        NewRun,
        News,
        ReadyJob,
        RunningJob,
        RunRow,
        Schedule,
        Submitted,
        WorkerRow,
    )


class Store(Protocol):
    """The contract; `tests/jobs/store_contract.py` holds every store to it."""

    url: str

    # Life

    async def open(self, *, create: bool = True) -> None:
        """Connect, and check the schema's version; SQLite migrates itself, PostgreSQL says which command does.

        A database that is not there is an error; SQLite makes one with `create`.
        """

    async def close(self) -> None:
        """Let go of every connection; may be called twice."""

    def twin(self) -> Store:
        """Make another store of the same URL, for another thread and its loop; it is not open yet."""

    def now(self) -> float:
        """Tell the store's time, as well as it is known without asking: offset measured at open and at each beat."""

    async def wait_for_news(self, timeout: float) -> bool:
        """Sleep until a hint that another process wrote something, or until `timeout`; say whether there was one.

        A hint may be lost, or come for nothing.
        """

    async def migrate(self) -> list[str]:
        """Bring the schema up to date under a lock; tell the names of the steps taken."""

    async def versions(self) -> tuple[int, int]:
        """Tell the version of the schema in the database (0: none), and the one this Fairlead needs."""

    # Submitting

    async def submit(
        self, runs: Sequence[NewRun], connection: Any = None, *, compare: bool = False
    ) -> list[Submitted]:
        """Store runs, durably; with a `connection`, in its transaction (PostgreSQL: asyncpg or psycopg).

        A key that is taken gives back the run that has it, and stores nothing.  With `compare`, a key that belongs to
        a run of another DAG is a KeyConflict, and nothing of the call is stored.
        """

    # The scheduler

    async def lead(self, process: str, lease: float) -> int | None:
        """Become or stay the one scheduler; None if another is.  The number (epoch) grows with each change of hands."""

    async def resign(self, process: str) -> None:
        """Let another process lead at once."""

    async def leader(self) -> str | None:
        """Tell which process leads; None if nobody does."""

    async def ready(self, after: Id | None, limit: int) -> list[ReadyJob]:
        """Page through all that is ready, in order of (dag, node)."""

    async def running(self) -> list[RunningJob]:
        """Tell all that is active."""

    async def reread(self, dag: int) -> tuple[list[ReadyJob], list[RunningJob]]:
        """Tell what of one run is ready and what is active, at one instant."""

    async def take_news(self, process: str) -> News:
        """Take what was written for the scheduler by other processes; what `process` wrote itself is dropped."""

    async def claim(
        self, process: str, epoch: int, claims: Sequence[Claim], *, acked: bool
    ) -> list[Claimed]:
        """Make ready jobs active, in one conditional statement; what somebody else has, or is locked, is left out.

        `acked`: the worker is in this process and starts it at once.  The run becomes active with its first job.
        Results come in the order of `claims`.
        """

    async def finish(self, process: str, endings: Sequence[Ending]) -> Finished:
        """Apply endings whose fence still holds; unblock, skip, end runs and note deaths, in one transaction."""

    async def orphans(self, ack: float) -> list[RunningJob]:
        """Tell active jobs whose worker is not known any more, or that were not acknowledged within `ack` seconds.

        What nobody acknowledged is taken from its worker: it cannot be acknowledged any more, and is nobody's until
        it has been ended.  What was acknowledged at the last moment is not told.
        """

    async def graves(self, workers: Collection[int]) -> dict[int, str]:
        """Return the processes of those of these workers that were buried; a worker that left has no grave."""

    async def deaths(self, jobs: Sequence[Id], window: float) -> dict[Id, tuple[int, int]]:
        """Count the deaths of jobs, alone and in company, in the last `window` seconds; a job without is left out."""

    async def forget_deaths(self, window: float) -> None:
        """Forget deaths, and graves, that are older than `window` seconds."""

    async def workers(self) -> list[WorkerRow]:
        """Tell all workers."""

    async def bury(self, workers: Sequence[int]) -> list[int]:
        """Forget those of these workers whose lease has run out; tell which."""

    async def executors(self) -> set[str]:
        """Tell every executor that was ever registered."""

    # Workers

    async def register(
        self,
        name: str,
        process: str,
        executors: Mapping[str, int],
        lease: float,
        tasks: Collection[str] | None = None,
    ) -> dict[str, int]:
        """Make one worker per executor, and return their numbers; `tasks` are those that the process knows."""

    async def know(self, workers: Sequence[int], tasks: Collection[str]) -> None:
        """Replace the tasks that these workers know."""

    async def beat(self, workers: Sequence[int], lease: float) -> Beat:
        """Renew the leases of workers of one process, and hear what to cancel."""

    async def fetch(self, workers: Sequence[int]) -> list[Claimed]:
        """Take over (acknowledge) what was claimed for these workers and not acknowledged yet."""

    async def drain(self, workers: Sequence[int]) -> None:
        """Ask that nothing more be claimed for these workers."""

    async def retire(self, workers: Sequence[int]) -> None:
        """Forget these workers at once; what they still run is orphaned."""

    # Operations

    async def run(self, dag: int) -> RunRow | None:
        """Find a run, also in the archive."""

    async def find(self, tenant: str, key: str) -> int | None:
        """Find a run by its key, also in the archive."""

    async def runs(
        self,
        *,
        state: str | None = None,
        tenant: str | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> list[RunRow]:
        """List runs, newest first."""

    async def jobs(self, dag: int, limit: int | None = None) -> list[JobRow]:
        """List a run's jobs in order, also of an archived one; with a limit the first of them."""

    async def some_jobs(self, dag: int, nodes: Sequence[int]) -> list[JobRow]:
        """List these jobs of a run, in order; also of an archived one."""

    async def cancel(self, dag: int) -> bool:
        """Cancel what could start, skip what waits for others, ask what runs to stop; False if the run has ended."""

    async def pause(self, dag: int) -> bool:
        """Suspend what has not started; False if the run has ended."""

    async def resume(self, dag: int) -> bool:
        """Undo a pause; False if it was not paused."""

    async def retry(self, dag: int) -> bool:
        """Give every job of an ended run that did not complete fresh attempts; False if there is none or it runs."""

    async def set_sla(
        self, dag: int, soft: float | None, hard: float | None, node: int | None = None
    ) -> bool:
        """Change the SLAs of a run and of its jobs without their own, or of one job; False if there is none."""

    async def states(self) -> dict[str, int]:
        """Count jobs by state."""

    async def oldest_ready(self) -> float | None:
        """Tell since when the oldest ready job has been ready."""

    # Upkeep

    async def missed(self) -> list[Missed]:
        """Mark SLAs that have been missed since the last look, each once, and tell them."""

    async def unannounced(self, limit: int) -> list[RunRow]:
        """Tell ended runs whose end was not announced yet."""

    async def announced(self, runs: Sequence[RunRow]) -> None:
        """Note that these ends of runs were announced; not the end of one that was started again since."""

    async def archive(self, before: float, limit: int) -> int:
        """Move runs that ended before a time to the archive; tell how many."""

    async def estimates(self) -> dict[str, tuple[float, int]]:
        """Tell what was learned of tasks: mean seconds and how many runs it is from."""

    async def learn(self, estimates: Mapping[str, tuple[float, int]]) -> None:
        """Store what was learned."""

    async def settings(self) -> dict[str, str]:
        """Tell what was set at run time, such as "planner" or "planner.ocr"."""

    async def set_setting(self, name: str, value: str | None) -> None:
        """Set something at run time, or with None unset it."""

    async def schedules(self) -> list[Schedule]:
        """List schedules by name."""

    async def put_schedule(self, schedule: Schedule) -> None:
        """Add or replace a schedule.  Its cursor is kept if it was there; with another cron or zone it may move on."""

    async def drop_schedule(self, name: str) -> bool:
        """Remove a schedule; False if there is none."""

    async def fire(self, name: str, tick: float, run: NewRun | None) -> Submitted | None:
        """Submit a schedule's run for a tick and move its cursor, in one transaction; None if that tick was dealt with.

        Without a run the tick is only passed over.
        """
