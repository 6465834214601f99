"""What people and upkeep ask of the store in PostgreSQL: runs, jobs, SLAs, settings, schedules, the archive."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fairlead.jobs.records import JobRow, Missed, RunRow, Schedule, Submitted
from fairlead.jobs.states import TRANSITIONS
from fairlead.jobs.stores.postgres_connections import Connections, read_url
from fairlead.jobs.stores.postgres_hints import Hints
from fairlead.jobs.stores.postgres_submitting import call_of, submitted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fairlead.jobs.records import NewRun

MISSES_AT_ONCE = 10_000

# A run is active from its first claim on; to a run of one job nothing is written before that has ended.
BEGUN = "(d.started_at IS NOT NULL OR f.claimed_at IS NOT NULL)"
STATE = (
    "CASE WHEN d.completed_on IS NOT NULL THEN d.state WHEN d.paused THEN 'suspended' "
    f"WHEN {BEGUN} THEN 'active' ELSE 'created' END"
)
RUN = f"""
SELECT d.dag, d.name, d.tenant, d.key, {STATE}, d.soft, d.hard, d.created_at, d.start_at,
    coalesce(d.started_at, f.claimed_at), d.completed_on, d.remaining, d.jobs, d.cancelling,
    d.failed
FROM {{0}} d LEFT JOIN fairlead.jobs f
    ON f.dag = d.dag AND f.node = 0 AND d.started_at IS NULL AND d.jobs = 1 WHERE """
JOBS = """
SELECT j.dag, j.node, j.name, j.task, j.executor, j.state, j.needs, j.waits, j.level, j.estimate, j.soft, j.hard,
    j.attempts, j.crashes, j.retries, j.start_at, j.ready_at, j.claimed_at, j.started_at, j.completed_on, j.worker,
    j.state = 'active' AND d.cancelling, j.result, j.error
FROM fairlead.{0}jobs j JOIN fairlead.{0}dags d ON d.dag = j.dag WHERE j.dag = $1"""
# Each state has its own way to the runs that are in it.
IN_STATE = {
    "created": f"d.completed_on IS NULL AND NOT d.paused AND NOT {BEGUN}",
    "active": f"d.completed_on IS NULL AND NOT d.paused AND {BEGUN}",
    "suspended": "d.completed_on IS NULL AND d.paused",
}
# Where all active runs are, without a walk past those that have not begun.  A run of one job does not say that it has
# begun before an ending of that, be it to try again; until then the claim is there, for the job is active.
MAYBE_ACTIVE = """
(SELECT d.dag FROM fairlead.dags d WHERE d.completed_on IS NULL AND d.started_at IS NOT NULL AND NOT d.paused AND {0}
    ORDER BY d.dag DESC LIMIT $1)
UNION SELECT unnest(c.dags) FROM fairlead.claims c"""
PUT_SCHEDULE = """
WITH told AS (INSERT INTO fairlead.news (settings) VALUES (true))
INSERT INTO fairlead.schedules AS s (name, cron, timezone, run, misfire, cursor, paused)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (name) DO UPDATE SET cron = $2, timezone = $3, run = $4, misfire = $5, paused = $7, cursor =
    CASE WHEN (s.cron, s.timezone) = (excluded.cron, excluded.timezone) THEN s.cursor
    ELSE greatest(s.cursor, excluded.cursor) END"""


def _job_rows(rows: Iterable[Any]) -> list[JobRow]:
    return [JobRow._make((*row[:6], tuple(row[6] or ()), *row[7:])) for row in rows]


class Operations:
    """Part of `PostgresStore`."""

    def __init__(self, url: str, *, most: int, listen: bool, answer: float | None) -> None:
        self.url = url
        address = read_url(url)
        self._address = address if answer is None else address._replace(answer=answer)
        self._connections = Connections(self._address, most)
        self._hints = Hints(self._connections, listen=listen and address.listen)

    def _sql(self, sql: str) -> str:
        return self._address.with_schema(sql)

    async def _fetch(self, sql: str, *args: Any, again: bool = False) -> Sequence[Any]:
        return await self._connections.fetch(self._address.with_schema(sql), *args, again=again)

    async def _did(self, verb: str, *args: Any) -> bool:
        places = ", ".join(f"${place}" for place in range(1, len(args) + 1))
        rows = await self._fetch(f"SELECT fairlead.{verb}({places})", *args)
        if rows[0][0]:
            self._hints.send()
        return bool(rows[0][0])

    async def run(self, dag: int) -> RunRow | None:
        sql = (
            f"{RUN.format('fairlead.dags')} d.dag = $1 UNION ALL "
            f"{RUN.format('fairlead.archived_dags')} d.dag = $1 LIMIT 1"
        )
        rows = await self._fetch(sql, dag, again=True)
        return RunRow(*rows[0]) if rows else None

    async def find(self, tenant: str, key: str) -> int | None:
        sql = "SELECT dag FROM fairlead.keys WHERE tenant = $1 AND key = $2"
        rows = await self._fetch(sql, tenant, key, again=True)
        return rows[0][0] if rows else None

    async def runs(
        self,
        *,
        state: str | None = None,
        tenant: str | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> list[RunRow]:
        terms: list[str] = ["true"]
        args: list[Any] = [limit]
        if tenant is not None:
            args.append(tenant)
            terms.append(f"d.tenant = ${len(args)}" + " AND d.tenant <> ''" * bool(tenant))
        if before is not None:
            args.append(before)
            terms.append(f"d.dag < ${len(args)}")
        whose = " AND ".join(terms)
        if state == "active":
            # As an array: the planner, which knows little of claims, would rather walk than join.
            terms.append(f"d.dag = ANY (ARRAY({MAYBE_ACTIVE.format(whose)}))")
        if state is not None:
            if state not in IN_STATE:
                args.append(state)
                terms.append("d.state <> 'completed'" if state != "completed" else "true")
            terms.append(
                IN_STATE.get(state, f"d.completed_on IS NOT NULL AND d.state = ${len(args)}")
            )
        sql = f"{RUN.format('fairlead.dags')} {' AND '.join(terms)} ORDER BY d.dag DESC LIMIT $1"
        return [RunRow(*row) for row in await self._fetch(sql, *args, again=True)]

    async def jobs(self, dag: int, limit: int | None = None) -> list[JobRow]:
        sql = f"{JOBS.format('')} UNION ALL {JOBS.format('archived_')} ORDER BY 2 LIMIT $2"
        return _job_rows(await self._fetch(sql, dag, limit, again=True))

    async def some_jobs(self, dag: int, nodes: Sequence[int]) -> list[JobRow]:
        some = " AND j.node = ANY ($2::int[])"
        sql = f"{JOBS.format('')}{some} UNION ALL {JOBS.format('archived_')}{some} ORDER BY 2"
        return _job_rows(await self._fetch(sql, dag, nodes, again=True))

    async def cancel(self, dag: int) -> bool:
        return await self._did("cancel", dag)

    async def pause(self, dag: int) -> bool:
        return await self._did("pause", dag)

    async def resume(self, dag: int) -> bool:
        return await self._did("resume", dag)

    async def retry(self, dag: int) -> bool:
        sql = """
WITH retried AS MATERIALIZED (SELECT fairlead.retry($1) AS done),
    forgotten AS (DELETE FROM fairlead.deaths WHERE dag = $1 AND (SELECT done FROM retried))
SELECT done FROM retried"""
        rows = await self._fetch(sql, dag)
        if rows[0][0]:
            self._hints.send()
        return bool(rows[0][0])

    async def set_sla(
        self, dag: int, soft: float | None, hard: float | None, node: int | None = None
    ) -> bool:
        return await self._did("set_sla", dag, node, soft, hard)

    async def states(self) -> dict[str, int]:
        sql = "SELECT state, count(*) FROM fairlead.jobs GROUP BY state"
        return {
            **dict.fromkeys(TRANSITIONS, 0),
            **dict(map(tuple, await self._fetch(sql, again=True))),
        }

    async def oldest_ready(self) -> float | None:
        sql = (
            "SELECT min(j.ready_at) FROM fairlead.dags d JOIN fairlead.jobs j ON j.dag = d.dag "
            "WHERE d.completed_on IS NULL AND j.waits = 0 AND j.state IN ('created', 'retry')"
        )
        rows = await self._fetch(sql, again=True)
        found: float | None = rows[0][0]
        return found

    # Upkeep

    async def missed(self) -> list[Missed]:
        rows = await self._fetch("SELECT * FROM fairlead.missed_slas($1)", MISSES_AT_ONCE)
        return [Missed(*row) for row in rows]

    async def unannounced(self, limit: int) -> list[RunRow]:
        sql = (
            f"{RUN.format('fairlead.dags')} NOT d.announced AND d.completed_on IS NOT NULL "
            "ORDER BY d.announced, d.completed_on LIMIT $1"
        )
        return [RunRow(*row) for row in await self._fetch(sql, limit, again=True)]

    async def announced(self, runs: Sequence[RunRow]) -> None:
        # In order, and not those that have been started again since: they have ended at no such time.
        sql = (
            "UPDATE fairlead.dags d SET announced = true FROM (SELECT dag FROM fairlead.dags "
            "WHERE dag = ANY ($1::bigint[]) AND completed_on = ANY ($2::float8[]) ORDER BY dag FOR NO KEY UPDATE) l "
            "WHERE d.dag = l.dag"
        )
        dags, ends = [run.dag for run in runs], [run.completed_on for run in runs]
        await self._fetch(sql, dags, ends, again=True)

    async def archive(self, before: float, limit: int) -> int:
        rows = await self._fetch("SELECT fairlead.archive($1, $2)", before, limit)
        return int(rows[0][0])

    async def estimates(self) -> dict[str, tuple[float, int]]:
        rows = await self._fetch("SELECT task, mean, runs FROM fairlead.estimates", again=True)
        return {task: (mean, runs) for task, mean, runs in rows}

    async def learn(self, estimates: Mapping[str, tuple[float, int]]) -> None:
        tasks = sorted(estimates)
        sql = (
            "INSERT INTO fairlead.estimates SELECT * FROM unnest($1::text[], $2::float8[], $3::bigint[]) "
            "ON CONFLICT (task) DO UPDATE SET mean = excluded.mean, runs = excluded.runs"
        )
        means, runs = [estimates[task][0] for task in tasks], [estimates[task][1] for task in tasks]
        await self._fetch(sql, tasks, means, runs, again=True)

    async def settings(self) -> dict[str, str]:
        return dict(
            map(tuple, await self._fetch("SELECT name, value FROM fairlead.settings", again=True))
        )

    async def set_setting(self, name: str, value: str | None) -> None:
        told = "WITH told AS (INSERT INTO fairlead.news (settings) VALUES (true))"
        if value is None:
            await self._fetch(
                f"{told} DELETE FROM fairlead.settings WHERE name = $1", name, again=True
            )
        else:
            sql = f"{told} INSERT INTO fairlead.settings VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = $2"
            await self._fetch(sql, name, value, again=True)
        self._hints.send()

    async def schedules(self) -> list[Schedule]:
        sql = (
            "SELECT name, cron, timezone, run, misfire, cursor, paused FROM fairlead.schedules "
            'ORDER BY name COLLATE "C"'
        )
        rows = await self._fetch(sql, again=True)
        return [Schedule(*row)._replace(run=json.loads(row[3])) for row in rows]

    async def put_schedule(self, schedule: Schedule) -> None:
        values = schedule._replace(run=json.dumps(schedule.run))  # type: ignore[arg-type]
        await self._fetch(PUT_SCHEDULE, *values, again=True)
        self._hints.send()

    async def drop_schedule(self, name: str) -> bool:
        sql = (
            "WITH told AS (INSERT INTO fairlead.news (settings) VALUES (true)) "
            "DELETE FROM fairlead.schedules WHERE name = $1 RETURNING name"
        )
        rows = await self._fetch(sql, name)
        self._hints.send()
        return bool(rows)

    async def fire(self, name: str, tick: float, run: NewRun | None) -> Submitted | None:
        sql = "UPDATE fairlead.schedules SET cursor = $2 WHERE name = $1 AND cursor < $2 RETURNING name"
        async with self._connections.transaction() as connection:
            if not await connection.fetch(self._sql(sql), name, tick):
                return None
            if run is None:
                return None
            sql, *told = call_of([run])
            rows = await connection.fetch(self._sql(sql), *told)
        self._hints.send()
        return submitted(rows)[0]
