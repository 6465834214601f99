"""The store in PostgreSQL: any number of processes, on any number of hosts.

What a verb does is written in SQL functions (migrations/postgres): one call, one round trip, one transaction.  This
file turns records into columns and rows into records.
"""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from functools import partial
from operator import itemgetter
from secrets import randbits
from typing import TYPE_CHECKING, Any

import asyncpg

from fairlead.errors import Misuse, StoreError, StoreUnavailable
from fairlead.jobs.conflicts import check_call
from fairlead.jobs.records import (
    NOBODY,
    Beat,
    Claimed,
    Finished,
    News,
    ReadyJob,
    RunningJob,
    Submitted,
    WorkerRow,
)
from fairlead.jobs.states import ACTIVE, TRANSITIONS
from fairlead.jobs.stores import migrations, postgres_schema
from fairlead.jobs.stores.postgres_connections import MOST, migrate_command
from fairlead.jobs.stores.postgres_operations import Operations
from fairlead.jobs.stores.postgres_rows import (
    claimed_of,
    columns,
    finished_of,
    numbers,
    ready_page,
    storable,
)
from fairlead.jobs.stores.postgres_submitting import (
    has_key,
    needs_undo,
    store_runs,
    submit_on,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping, Sequence

    from fairlead.jobs.records import Claim, Ending, Id, NewRun

RUNNING = """
SELECT j.dag, j.node, j.task, j.executor, d.tenant, j.worker, j.fence, j.acked IS NOT NULL, j.claimed_at, j.attempts,
    j.crashes, j.retries, j.retry_delay, d.cancelling, j.name, j.timeout
FROM {} j JOIN fairlead.dags d ON d.dag = j.dag WHERE j.state = 'active'"""
# From the claims to each of their jobs by its key: OFFSET leaves no other way, such as walking through all jobs.
ALL_RUNNING = RUNNING.format("""(
    SELECT DISTINCT a.dag, a.node FROM fairlead.claims c, unnest(c.dags, c.nodes) AS a(dag, node)
) a CROSS JOIN LATERAL (
    SELECT * FROM fairlead.jobs j WHERE j.dag = a.dag AND j.node = a.node OFFSET 0
)""")
RUNNING_OF_RUN = RUNNING.format("fairlead.jobs") + " AND j.dag = $1 ORDER BY j.node"
READY_PAGE = "SELECT * FROM fairlead.ready_page($1, $2, $3)"
LEAD = """
INSERT INTO fairlead.leader AS l (process, epoch, until) VALUES ($1, 1, fairlead.clock() + $2)
ON CONFLICT (one) DO UPDATE SET process = $1, until = fairlead.clock() + $2,
    epoch = l.epoch + CASE WHEN l.process = $1 THEN 0 ELSE 1 END
WHERE l.process = $1 OR l.until < fairlead.clock() RETURNING epoch, fairlead.clock()"""
LEADER = "SELECT process FROM fairlead.leader WHERE process <> '' AND until >= fairlead.clock()"
SUSPECT = (
    "EXISTS (SELECT FROM fairlead.deaths d WHERE d.dag = c.dag AND d.node = c.node AND NOT d.alone)"
)
CLAIM = f"""
SELECT c.*, {SUSPECT} FROM fairlead.claim($1, $2, $3, $4::text::bigint[], $5::text::int[], $6::text::bigint[],
    $7::text::bigint[]) c"""
FINISH = """
SELECT * FROM fairlead.finish($1, $2::text::bigint[], $3::text::int[], $4::text::bigint[], $5, $6, $7, $8,
    $9::text::int[], $10::text::int[], $11)"""
# Told with the endings, in one statement; what that does not find active, with the fence, has not died so.
FINISH_DEATHS = f"""
WITH died AS (
    INSERT INTO fairlead.deaths (dag, node, at, alone, beside)
    SELECT j.dag, j.node, fairlead.clock(), a.alone, a.beside
    FROM unnest($12::bigint[], $13::int[], $14::bigint[], $15::boolean[], $16::text[])
        AS a(dag, node, fence, alone, beside)
    JOIN fairlead.jobs j ON j.dag = a.dag AND j.node = a.node AND j.fence = a.fence WHERE j.state = 'active'
){FINISH}"""
DEATHS = """
SELECT dag, node, count(*) FILTER (WHERE alone), count(*) FILTER (WHERE NOT alone) FROM fairlead.deaths
WHERE (dag, node) IN (SELECT * FROM unnest($1::bigint[], $2::int[])) AND at > fairlead.clock() - $3::float8
GROUP BY dag, node"""
FORGET_DEATHS = """
WITH deaths AS (DELETE FROM fairlead.deaths WHERE at <= fairlead.clock() - $1::float8)
DELETE FROM fairlead.graves WHERE at <= fairlead.clock() - $1::float8"""
REREAD = """
SELECT node FROM fairlead.jobs WHERE dag = $1 AND waits = 0 AND state IN ('created', 'retry') ORDER BY node"""
TAKE_AWAY = f"""
UPDATE fairlead.jobs j SET worker = {NOBODY} FROM unnest($1::bigint[], $2::int[], $3::bigint[]) AS o(dag, node, fence)
WHERE j.dag = o.dag AND j.node = o.node AND j.fence = o.fence AND j.state = 'active' AND j.acked IS NULL
RETURNING j.dag, j.node"""
FETCH = f"SELECT c.*, {SUSPECT} FROM fairlead.acknowledge($1, $2, $3) c"
REGISTER = """
WITH known AS (
    INSERT INTO fairlead.executors SELECT name FROM unnest($3::text[]) AS name ORDER BY name ON CONFLICT DO NOTHING
), told AS (
    INSERT INTO fairlead.news (workers) VALUES (true)
)
INSERT INTO fairlead.workers (name, process, executor, slots, until, tasks)
SELECT $1, $2, e.name, e.slots, fairlead.clock() + $5, $6::text[] FROM unnest($3::text[], $4::int[]) AS e(name, slots)
RETURNING executor, id"""
KNOW = """
WITH told AS (INSERT INTO fairlead.news (workers) VALUES (true))
UPDATE fairlead.workers SET tasks = $2::text[] WHERE id = ANY ($1::bigint[])"""
BEAT = """
WITH alive AS (
    UPDATE fairlead.workers SET beats = beats + 1, until = fairlead.clock() + $2 WHERE id = ANY ($1::bigint[])
    RETURNING id
)
SELECT fairlead.clock(), (SELECT array_agg(id) FROM alive) AS alive,
    (SELECT array_agg(j.dag || ' ' || j.node || ' ' || j.fence)
     FROM fairlead.dags d JOIN fairlead.jobs j ON j.dag = d.dag
     WHERE d.cancelling AND d.completed_on IS NULL AND j.state = 'active' AND j.worker = ANY ($1::bigint[]))"""
WORKERS = """
SELECT id, name, executor, slots, process, beats, until < fairlead.clock(), draining, tasks
FROM fairlead.workers ORDER BY id"""
BURY = """
WITH buried AS (
    DELETE FROM fairlead.workers WHERE id = ANY ($1::bigint[]) AND until < fairlead.clock() RETURNING id, process
), told AS (
    INSERT INTO fairlead.news (workers) SELECT true WHERE EXISTS (SELECT FROM buried)
), graves AS (
    INSERT INTO fairlead.graves SELECT id, process, fairlead.clock() FROM buried
)
SELECT id FROM buried"""
DRAIN = """
WITH told AS (INSERT INTO fairlead.news (workers) VALUES (true))
UPDATE fairlead.workers SET draining = true WHERE id = ANY ($1::bigint[])"""
RETIRE = """
WITH told AS (INSERT INTO fairlead.news (workers) VALUES (true))
DELETE FROM fairlead.workers WHERE id = ANY ($1::bigint[])"""

PLACE = itemgetter(0, 1)  # of a job: its run, and where it is in it
NEWS_AT_ONCE = 5_000  # rows; each is of one call
# What the driver and the server say of text that cannot be stored.
NO_TEXT = (asyncpg.exceptions.DataError, asyncpg.CharacterNotInRepertoireError)


class PostgresStore(Operations):
    """A store in PostgreSQL; `postgresql://…?schema=fairlead&listen=on|off&pgbouncer=on|off&timeout=10`.

    It holds at most three connections and one that listens; its twin holds one.
    """

    def __init__(
        self, url: str, *, most: int = MOST, listen: bool = True, answer: float | None = None
    ) -> None:
        super().__init__(url, most=most, listen=listen, answer=answer)
        self._offset: float | None = None  # the store's clock minus our monotonic one
        self._leads = False
        self._epoch: int | None = None  # with which it led last
        self._doubtful_fetches: list[int] = []

    # Life

    async def open(self, *, create: bool = True) -> None:
        await self._connections.open()
        try:
            await self._check()
            await self.measure()
        except BaseException:
            await self._connections.close()
            raise
        self._hints.start()

    async def _check(self) -> None:
        address = self._connections.address
        if (await self._connections.fetch("SELECT pg_is_in_recovery()"))[0][0]:
            raise StoreError(
                f"{address.shown} is a read replica, in which nothing can be stored; "
                "give the URL of the primary"
            )
        known = migrations.steps("postgres")
        taken, _ = await postgres_schema.versions(self._connections)
        migrations.check(taken, known, address.shown, migrate_command(address))

    async def close(self) -> None:
        await self._hints.stop()
        await self._connections.close()

    def twin(self) -> PostgresStore:
        # A heartbeat that is not answered is given up in time for the next.
        return PostgresStore(self.url, most=1, listen=False, answer=min(4.0, self._address.answer))

    async def measure(self) -> None:
        """Ask for the store's time."""
        begun = time.monotonic()
        rows = await self._fetch("SELECT fairlead.clock()", again=True)
        self._set_clock(rows[0][0], begun)

    def _set_clock(self, told: float, begun: float) -> None:
        ended = time.monotonic()
        if self._offset is None or ended - begun < 0.25:
            self._offset = told - (begun + ended) / 2

    def now(self) -> float:
        if self._offset is None:
            raise Misuse(f"the store {self._address.shown} is closed; open it first")
        return time.monotonic() + self._offset

    async def wait_for_news(self, timeout: float) -> bool:
        return await self._hints.wait(timeout)

    async def migrate(self) -> list[str]:
        async with self._reached():
            return await postgres_schema.migrate(self._connections)

    async def versions(self) -> tuple[int, int]:
        async with self._reached():
            return await postgres_schema.versions(self._connections)

    @asynccontextmanager
    async def _reached(self) -> AsyncIterator[None]:
        """Connect, if the store is not open: the schema can be looked at before it can be used."""
        if self._connections.is_open:
            yield
            return
        await self._connections.open()
        try:
            yield
        finally:
            await self._connections.close()

    # Submitting

    async def submit(
        self, runs: Sequence[NewRun], connection: Any = None, *, compare: bool = False
    ) -> list[Submitted]:
        if not runs:
            return []
        if compare and len(runs) > 1 and has_key(runs):
            check_call(runs)
        if connection is not None:
            return await self._submit_on(connection, runs, compare)
        # With keys a repetition finds what the first try stored.
        safe = all(run.key is not None for run in runs)
        if needs_undo(runs, compare):
            answers = await self._submit_together(runs, safe)
        else:
            answers = await store_runs(partial(self._fetch, again=safe), runs, compare)
        self._hints.send()
        return answers

    async def _submit_on(
        self, connection: Any, runs: Sequence[NewRun], compare: bool
    ) -> list[Submitted]:
        return await submit_on(connection, self._address, self._hints.channel, runs, compare)

    async def _submit_together(self, runs: Sequence[NewRun], safe: bool) -> list[Submitted]:
        """Store runs and compare those whose keys are taken, in one transaction."""
        for last in (not safe, True):
            try:
                async with self._connections.transaction() as connection:

                    async def fetch(sql: str, *args: Any, on: Any = connection) -> Any:
                        return await on.fetch(self._sql(sql), *args)

                    return await store_runs(fetch, runs, True)
            except StoreUnavailable as error:
                if last or isinstance(error.__cause__, TimeoutError):
                    raise
        raise AssertionError("unreachable")

    # The scheduler

    async def lead(self, process: str, lease: float) -> int | None:
        begun = time.monotonic()
        self._leads = False
        rows = await self._fetch(LEAD, process, lease, again=True)
        if not rows:
            return None
        epoch, clock = rows[0]
        if epoch != self._epoch:
            # Whoever has just become the scheduler reads everything; what was news before it did is none to it.
            await self._fetch("DELETE FROM fairlead.news", again=True)
            self._epoch = epoch
        self._leads = True
        self._set_clock(clock, begun)
        return int(epoch)

    async def resign(self, process: str) -> None:
        self._leads = False
        sql = "UPDATE fairlead.leader SET process = '', until = 0 WHERE process = $1"
        await self._fetch(sql, process, again=True)
        self._hints.send()

    async def leader(self) -> str | None:
        rows = await self._fetch(LEADER, again=True)
        return str(rows[0][0]) if rows else None

    async def ready(self, after: Id | None, limit: int) -> list[ReadyJob]:
        dag, node = after or (-1, -1)
        rows = await self._fetch(READY_PAGE, dag, node, limit, again=True)
        return ready_page(rows[0])

    async def running(self) -> list[RunningJob]:
        rows = await self._fetch(ALL_RUNNING + " ORDER BY j.dag, j.node", again=True)
        return [RunningJob(*row) for row in rows]

    async def reread(self, dag: int) -> tuple[list[ReadyJob], list[RunningJob]]:
        async with self._connections.transaction("repeatable_read") as connection:
            nodes = [row[0] for row in await connection.fetch(self._sql(REREAD), dag)]
            ready = await connection.fetch(
                self._sql("SELECT * FROM fairlead.ready_of($1, $2)"), [dag] * len(nodes), nodes
            )
            running = await connection.fetch(self._sql(RUNNING_OF_RUN), dag)
        return [ReadyJob(*row[1:]) for row in map(tuple, ready)], [
            RunningJob(*row) for row in running
        ]

    async def take_news(self, process: str) -> News:
        sql = "SELECT * FROM fairlead.take_news($1, $2)"
        rows = await self._fetch(sql, process, NEWS_AT_ONCE)
        news = News([], [], [], False, False, [])
        for row in map(tuple, rows):
            kind, dag, node = row[:3]
            if kind == "ready":
                news.ready.append(ReadyJob(*row[1:]))
            elif kind == "ended":
                news.ended.append((dag, node))
            elif kind == "run":
                news.runs_ended.append(dag)
            elif kind == "refreshed":
                news.refreshed.append(dag)
            else:
                news = news._replace(settings=bool(node), workers=bool(row[7]))
                if dag:
                    self._hints.hear()  # there is more: come again
        return news

    async def claim(
        self, process: str, epoch: int, claims: Sequence[Claim], *, acked: bool
    ) -> list[Claimed]:
        if not claims:
            return []
        call = 0 if acked else None
        told = map(numbers, columns(claims, 4))
        rows = await self._fetch(CLAIM, process, epoch, call, *told, again=True)
        if rows and not acked:
            self._hints.send()
        return claimed_of(rows)

    async def finish(self, process: str, endings: Sequence[Ending]) -> Finished:
        if not endings:
            return Finished([], [], [], [])
        endings = sorted(
            endings, key=PLACE
        )  # as runs are locked: `finish` finds those of one job where they are
        told: list[Any] = columns(endings, 9)
        states = set(told[3])
        if wrong := states - TRANSITIONS[ACTIVE]:
            raise ValueError(f"an active job cannot become {', '.join(sorted(wrong))}")
        if len(states) == 1:
            told[3] = list(states)
        if not any(told[6]):
            told[6] = None
        # If the connection breaks the same call is made again, and knows by its number what it did already.
        for place in (4, 5, 7, 8):
            if told[place].count(None) == len(endings):
                told[place] = None
        ids = list(zip(told[0], told[1], strict=True))
        for place in (0, 1, 2, 7, 8):
            told[place] = numbers(told[place])
        died = [
            (one.dag, one.node, one.fence, one.death.alone, storable(one.death.beside))
            for one in endings
            if one.death is not None
        ]
        sql, call = (FINISH_DEATHS if died else FINISH), randbits(62)
        try:
            rows = await self._fetch(
                sql, process, *told, call, *(columns(died, 5) if died else ()), again=True
            )
        except NO_TEXT:  # nothing that a job returns or says may keep it from ending
            for place in (4, 5):
                told[place] = told[place] and [storable(one) for one in told[place]]
            rows = await self._fetch(
                sql, process, *told, call, *(columns(died, 5) if died else ()), again=True
            )
        finished = finished_of(rows, ids)
        if not self._leads:
            self._hints.send()
        return finished

    async def orphans(self, ack: float) -> list[RunningJob]:
        await self._fetch("SELECT fairlead.sweep_claims()", again=True)
        sql = (
            ALL_RUNNING + " AND (j.acked IS NULL AND j.claimed_at < fairlead.clock() - $1::float8"
            " OR NOT EXISTS (SELECT FROM fairlead.workers w WHERE w.id = j.worker))"
        )
        found = [RunningJob(*row) for row in await self._fetch(sql, ack, again=True)]
        late = [job for job in found if not job.acked]
        if late:
            columns = zip(*((job.dag, job.node, job.fence) for job in late), strict=True)
            taken = {tuple(row) for row in await self._fetch(TAKE_AWAY, *columns, again=True)}
            found = [job for job in found if job.acked or (job.dag, job.node) in taken]
        return found

    async def graves(self, workers: Collection[int]) -> dict[int, str]:
        sql = "SELECT worker, process FROM fairlead.graves WHERE worker = ANY ($1::bigint[])"
        return dict(map(tuple, await self._fetch(sql, list(workers), again=True)))

    async def deaths(self, jobs: Sequence[Id], window: float) -> dict[Id, tuple[int, int]]:
        rows = await self._fetch(DEATHS, *columns(jobs, 2), window, again=True)
        return {(dag, node): (alone, company) for dag, node, alone, company in rows}

    async def forget_deaths(self, window: float) -> None:
        await self._fetch(FORGET_DEATHS, window, again=True)

    async def workers(self) -> list[WorkerRow]:
        rows = await self._fetch(WORKERS, again=True)
        return [
            WorkerRow._make([*told, None if tasks is None else frozenset(tasks)])
            for *told, tasks in rows
        ]

    async def bury(self, workers: Sequence[int]) -> list[int]:
        return [row[0] for row in await self._fetch(BURY, workers, again=True)]

    async def executors(self) -> set[str]:
        return {
            row[0] for row in await self._fetch("SELECT name FROM fairlead.executors", again=True)
        }

    # Workers

    async def register(
        self,
        name: str,
        process: str,
        executors: Mapping[str, int],
        lease: float,
        tasks: Collection[str] | None = None,
    ) -> dict[str, int]:
        known = None if tasks is None else sorted(tasks)
        rows = await self._fetch(
            REGISTER, name, process, list(executors), list(executors.values()), lease, known
        )
        self._hints.send()
        return {row[0]: row[1] for row in rows}

    async def know(self, workers: Sequence[int], tasks: Collection[str]) -> None:
        await self._fetch(KNOW, workers, sorted(tasks), again=True)
        self._hints.send()

    async def beat(self, workers: Sequence[int], lease: float) -> Beat:
        begun = time.monotonic()
        ((clock, alive, cancel),) = await self._fetch(BEAT, workers, lease, again=True)
        self._set_clock(clock, begun)
        told = [tuple(map(int, one.split())) for one in cancel or ()]
        return Beat(list(alive or ()), [(dag, node, fence) for dag, node, fence in told])

    async def fetch(self, workers: Sequence[int]) -> list[Claimed]:
        # What a call acknowledged whose answer was lost is told by the next.
        call, doubtful = randbits(62), self._doubtful_fetches
        self._doubtful_fetches = []
        try:
            rows = await self._fetch(FETCH, workers, call, doubtful or None)
        except BaseException:
            self._doubtful_fetches += [*doubtful, call]
            raise
        return claimed_of(rows)

    async def drain(self, workers: Sequence[int]) -> None:
        await self._fetch(DRAIN, workers, again=True)
        self._hints.send()

    async def retire(self, workers: Sequence[int]) -> None:
        await self._fetch(RETIRE, workers, again=True)
        self._hints.send()
