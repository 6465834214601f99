"""Jobs in a SQLite file: for one host, any number of its processes, and no server.

A store has one thread that writes and one that reads (`sqlite_lanes`); readers never wait for a writer.  The verbs
themselves are plain functions of a connection (`sqlite_submitting`, `…_claiming`, `…_finishing`, `…_runs`, …).

**What is flushed to the disk before a call returns** (`synchronous=FULL`): submissions, endings, and whatever people
change.  Claims, heartbeats and leases are not: they are in order and survive the death of any process; a power cut may
lose the last of them, and with them every process that they were about, so that the job is ready again.

**Time** is the host's wall clock; leases run on its monotonic clock, which nobody can set.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from fairlead.errors import Misuse
from fairlead.jobs.conflicts import check_call
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
from fairlead.jobs.stores import (
    sqlite_archive,
    sqlite_claiming,
    sqlite_deaths,
    sqlite_finishing,
    sqlite_leading,
    sqlite_runs,
    sqlite_submitting,
)
from fairlead.jobs.stores.migrations import steps
from fairlead.jobs.stores.sqlite_file import absent, check_place, connect, prepare, version_of
from fairlead.jobs.stores.sqlite_lanes import Lane
from fairlead.jobs.stores.sqlite_rows import instant

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

T = TypeVar("T")
GLANCE = 0.02  # how often a waiting store looks whether another process wrote


class SqliteStore:
    """The store in a SQLite file."""

    def __init__(
        self,
        path: Path,
        url: str,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = url
        self._path = path
        self._clock = clock
        self._monotonic = monotonic
        self._writer: Lane | None = None
        self._reader: Lane | None = None
        self._seen = 0  # SQLite's number of other connections' commits
        self._hints = 0
        self._told = 0  # of them, when somebody last went away with an answer
        self._waiters: set[asyncio.Future[None]] = set()
        self._heard: WeakKeyDictionary[asyncio.Task[Any], int] = WeakKeyDictionary()

    async def open(self, *, create: bool = True) -> None:
        if self._writer is not None:
            raise Misuse(f"the store of {self._path} is open already")
        await asyncio.to_thread(prepare, self._path, create=create)
        self._writer = await asyncio.to_thread(Lane, self._path, reading=False)
        self._reader = await asyncio.to_thread(Lane, self._path, reading=True)
        self._seen = await self._writer.call(data_version)

    async def close(self) -> None:
        lanes = [lane for lane in (self._reader, self._writer) if lane is not None]
        self._reader = self._writer = None
        for lane in lanes:
            await lane.close()
        self._wake()

    def twin(self) -> SqliteStore:
        return SqliteStore(self._path, self.url, clock=self._clock, monotonic=self._monotonic)

    def now(self) -> float:
        return self._clock()

    def _time(self) -> float:
        return instant(self._clock())

    async def migrate(self) -> list[str]:
        return await asyncio.to_thread(prepare, self._path)

    async def versions(self) -> tuple[int, int]:
        return await asyncio.to_thread(versions, self._path)

    # Ways to the two threads

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._reader is None:
            raise Misuse(f"the store of {self._path} is not open; await store.open() first")
        return await self._reader.call(work)

    async def _write(self, work: Callable[[sqlite3.Connection], T], *, durable: bool = False) -> T:
        if self._writer is None:
            raise Misuse(f"the store of {self._path} is not open; await store.open() first")
        return await self._writer.call(work, durable=durable)

    async def _change(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Write durably something that the scheduler, perhaps of this very process, should hear of."""
        answer = await self._write(work, durable=True)
        self._hint()
        return answer

    # Hints

    async def wait_for_news(self, timeout: float) -> bool:
        """See `Store`.  A task that asks again and again misses nothing in between."""
        task = asyncio.current_task()
        heard = self._heard.get(task, self._told) if task else self._told
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while heard == self._hints:
            await self._glance()
            left = deadline - loop.time()
            if heard != self._hints or left <= 0:
                break
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.add(waiter)
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left, GLANCE)):
                        await waiter
            finally:
                self._waiters.discard(waiter)
        hinted = heard != self._hints
        self._told = self._hints
        if task:
            self._heard[task] = self._hints
        return hinted

    async def _glance(self) -> None:
        """Look whether another connection has committed; our own commits do not count."""
        if self._writer is None:
            raise Misuse(f"the store of {self._path} is not open; await store.open() first")
        version = await self._writer.call(data_version)
        if version != self._seen:
            self._seen = version
            self._hint()

    def _hint(self) -> None:
        self._hints += 1
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    # Submitting

    async def submit(
        self, runs: Sequence[NewRun], connection: Any = None, *, compare: bool = False
    ) -> list[Submitted]:
        if connection is not None:
            raise Misuse(
                "only PostgreSQL can submit in your own transaction; leave out connection="
            )
        runs = list(runs)
        if compare and len(runs) > 1:
            check_call(runs)
        now = self._time()
        return await self._change(
            lambda db: sqlite_submitting.submit(db, runs, now, compare=compare)
        )

    # The scheduler

    async def lead(self, process: str, lease: float) -> int | None:
        return await self._write(
            lambda db: sqlite_leading.lead(db, process, lease, self._monotonic())
        )

    async def resign(self, process: str) -> None:
        await self._write(lambda db: sqlite_leading.resign(db, process))

    async def leader(self) -> str | None:
        return await self._read(lambda db: sqlite_leading.leader(db, self._monotonic()))

    async def ready(self, after: Id | None, limit: int) -> list[ReadyJob]:
        return await self._read(lambda db: sqlite_leading.ready(db, after, limit))

    async def running(self) -> list[RunningJob]:
        return await self._read(sqlite_leading.running)

    async def reread(self, dag: int) -> tuple[list[ReadyJob], list[RunningJob]]:
        return await self._read(lambda db: sqlite_leading.reread(db, dag))

    async def take_news(self, process: str) -> News:
        # Endings of the process that leads are not written to the news at all.
        if not await self._read(sqlite_leading.has_news):
            return News([], [], [], False, False, [])
        return await self._write(sqlite_leading.take_news)

    async def claim(
        self, process: str, epoch: int, claims: Sequence[Claim], *, acked: bool
    ) -> list[Claimed]:
        now = self._time()
        return await self._write(
            lambda db: sqlite_claiming.claim(db, process, epoch, claims, acked, now)
        )

    async def finish(self, process: str, endings: Sequence[Ending]) -> Finished:
        now = self._time()
        return await self._write(
            lambda db: sqlite_finishing.finish(db, process, endings, now), durable=True
        )

    async def orphans(self, ack: float) -> list[RunningJob]:
        now = self._time()
        found = await self._read(lambda db: sqlite_leading.orphans(db, ack, now))
        late = [job for job in found if not job.acked]
        if late:
            taken = await self._write(lambda db: sqlite_leading.take_away(db, late))
            found = [job for job in found if job.acked or (job.dag, job.node) in taken]
        return found

    async def workers(self) -> list[WorkerRow]:
        return await self._read(lambda db: sqlite_leading.workers(db, self._monotonic()))

    async def bury(self, workers: Sequence[int]) -> list[int]:
        now = self._time()
        return await self._write(
            lambda db: sqlite_leading.bury(db, workers, self._monotonic(), now)
        )

    async def graves(self, workers: Collection[int]) -> dict[int, str]:
        return await self._read(lambda db: sqlite_deaths.graves(db, workers))

    async def deaths(self, jobs: Sequence[Id], window: float) -> dict[Id, tuple[int, int]]:
        since = self._time() - window
        return await self._read(lambda db: sqlite_deaths.deaths(db, jobs, since))

    async def forget_deaths(self, window: float) -> None:
        before = self._time() - window
        if await self._read(lambda db: sqlite_deaths.any_old(db, before)):
            await self._write(lambda db: sqlite_deaths.forget(db, before))

    async def executors(self) -> set[str]:
        return await self._read(sqlite_archive.executors)

    # Workers

    async def register(
        self,
        name: str,
        process: str,
        executors: Mapping[str, int],
        lease: float,
        tasks: Collection[str] | None = None,
    ) -> dict[str, int]:
        return await self._change(
            lambda db: sqlite_leading.register(
                db, name, process, executors, tasks, lease, self._monotonic()
            )
        )

    async def know(self, workers: Sequence[int], tasks: Collection[str]) -> None:
        await self._change(lambda db: sqlite_leading.know(db, workers, tasks))

    async def beat(self, workers: Sequence[int], lease: float) -> Beat:
        return await self._write(
            lambda db: sqlite_leading.beat(db, workers, lease, self._monotonic())
        )

    async def fetch(self, workers: Sequence[int]) -> list[Claimed]:
        if not await self._read(lambda db: sqlite_claiming.waiting_for(db, workers)):
            return []
        now = self._time()
        return await self._write(lambda db: sqlite_claiming.fetch(db, workers, now))

    async def drain(self, workers: Sequence[int]) -> None:
        await self._change(lambda db: sqlite_leading.drain(db, workers))

    async def retire(self, workers: Sequence[int]) -> None:
        await self._change(lambda db: sqlite_leading.retire(db, workers))

    # Operations

    async def run(self, dag: int) -> RunRow | None:
        return await self._read(lambda db: sqlite_runs.run(db, dag))

    async def find(self, tenant: str, key: str) -> int | None:
        return await self._read(lambda db: sqlite_runs.find(db, tenant, key))

    async def runs(
        self,
        *,
        state: str | None = None,
        tenant: str | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> list[RunRow]:
        return await self._read(lambda db: sqlite_runs.runs(db, state, tenant, before, limit))

    async def jobs(self, dag: int, limit: int | None = None) -> list[JobRow]:
        return await self._read(lambda db: sqlite_runs.jobs(db, dag, limit))

    async def some_jobs(self, dag: int, nodes: Sequence[int]) -> list[JobRow]:
        return await self._read(lambda db: sqlite_runs.some_jobs(db, dag, nodes))

    async def cancel(self, dag: int) -> bool:
        now = self._time()
        return await self._change(lambda db: sqlite_runs.cancel(db, dag, now))

    async def pause(self, dag: int) -> bool:
        return await self._change(lambda db: sqlite_runs.pause(db, dag))

    async def resume(self, dag: int) -> bool:
        return await self._change(lambda db: sqlite_runs.resume(db, dag))

    async def retry(self, dag: int) -> bool:
        now = self._time()
        return await self._change(lambda db: sqlite_runs.retry(db, dag, now))

    async def set_sla(
        self, dag: int, soft: float | None, hard: float | None, node: int | None = None
    ) -> bool:
        return await self._change(lambda db: sqlite_runs.set_sla(db, dag, soft, hard, node))

    async def states(self) -> dict[str, int]:
        return await self._read(sqlite_archive.states)

    async def oldest_ready(self) -> float | None:
        return await self._read(sqlite_archive.oldest_ready)

    # Upkeep

    async def missed(self) -> list[Missed]:
        now = self._time()
        if not await self._read(lambda db: sqlite_archive.any_missed(db, now)):
            return []
        return await self._write(lambda db: sqlite_archive.missed(db, now), durable=True)

    async def unannounced(self, limit: int) -> list[RunRow]:
        return await self._read(lambda db: sqlite_archive.unannounced(db, limit))

    async def announced(self, runs: Sequence[RunRow]) -> None:
        await self._write(lambda db: sqlite_archive.announced(db, runs), durable=True)

    async def archive(self, before: float, limit: int) -> int:
        return await self._write(lambda db: sqlite_archive.archive(db, before, limit), durable=True)

    async def estimates(self) -> dict[str, tuple[float, int]]:
        return await self._read(sqlite_archive.estimates)

    async def learn(self, estimates: Mapping[str, tuple[float, int]]) -> None:
        await self._write(lambda db: sqlite_archive.learn(db, estimates))

    async def settings(self) -> dict[str, str]:
        return await self._read(sqlite_archive.settings)

    async def set_setting(self, name: str, value: str | None) -> None:
        await self._change(lambda db: sqlite_archive.set_setting(db, name, value))

    async def schedules(self) -> list[Schedule]:
        return await self._read(sqlite_submitting.schedules)

    async def put_schedule(self, schedule: Schedule) -> None:
        await self._change(lambda db: sqlite_submitting.put_schedule(db, schedule))

    async def drop_schedule(self, name: str) -> bool:
        return await self._change(lambda db: sqlite_submitting.drop_schedule(db, name))

    async def fire(self, name: str, tick: float, run: NewRun | None) -> Submitted | None:
        now = self._time()
        return await self._change(lambda db: sqlite_submitting.fire(db, name, tick, run, now))


def data_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


def versions(path: Path) -> tuple[int, int]:
    """Return the schema's version and ours; a file that is not there is refused, not made."""
    needed = len(steps("sqlite"))
    check_place(path)
    if not path.exists():
        raise absent(path)
    with contextlib.closing(connect(path, reading=True)) as connection:
        return version_of(connection, path), needed
