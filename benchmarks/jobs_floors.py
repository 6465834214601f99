"""What the database itself can do: the least that claiming and completing, or walking a DAG, costs."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Any

from benchmarks.jobs_meter import BATCH, Figures, Meter, enqueued
from benchmarks.jobs_peers import fresh_schema

CLAIMED = 100
NODE = "node"  # µs per node of a DAG

SCHEMA = """
CREATE TABLE floor (
  id bigserial PRIMARY KEY, state text NOT NULL DEFAULT 'created', priority int NOT NULL DEFAULT 0,
  run_at timestamptz NOT NULL DEFAULT now(), started timestamptz, completed timestamptz,
  payload jsonb NOT NULL DEFAULT '{}');
CREATE INDEX ON floor (priority DESC, id) WHERE state = 'created';
"""
INSERT = (
    "INSERT INTO floor (priority, payload) SELECT * FROM unnest($1::int[], $2::text[]::jsonb[])"
)
CLAIM = """
WITH chosen AS (
  SELECT id FROM floor WHERE state = 'created' AND run_at <= now()
  ORDER BY priority DESC, id LIMIT $1 FOR UPDATE SKIP LOCKED)
UPDATE floor f SET state = 'active', started = now() FROM chosen WHERE f.id = chosen.id
RETURNING f.id, f.payload
"""
COMPLETE = "UPDATE floor SET state = 'completed', completed = now() WHERE id = ANY($1)"


async def claim_and_complete(url: str, jobs: int) -> Figures:
    """Claim a hundred, complete a hundred: two statements and two commits, nothing else."""
    import asyncpg

    await fresh_schema(url)
    connection = await asyncpg.connect(url)
    await connection.execute(SCHEMA)
    figures = await enqueued(
        lambda n: connection.execute(INSERT, [5] * n, ["{}"] * n, timeout=60), jobs
    )
    await connection.execute("ANALYZE floor")
    meter = Meter(jobs)
    meter.start()
    while rows := await connection.fetch(CLAIM, CLAIMED):
        for _ in rows:
            meter.hit()
        await connection.execute(COMPLETE, [row[0] for row in rows])
    meter.stop()
    await connection.close()
    return figures | meter.figures()


# The least that a queue can store: what it is, in which state, and one index to find it by.
SMALLEST = "CREATE TABLE job (id bigint PRIMARY KEY, state text NOT NULL, payload text NOT NULL)"
# The same for runs of one job: a row for each of both, found by its number, and the runs that are open by an index.
PAIR = f"""
{SMALLEST};
CREATE TABLE run (id bigint PRIMARY KEY, name text NOT NULL, completed_on double precision);
CREATE INDEX ON run (id) WHERE completed_on IS NULL;
"""
INSERT_PAIR = """
WITH run AS (INSERT INTO run (id, name) SELECT id, 'noop' FROM unnest($1::bigint[]) AS id)
INSERT INTO job SELECT id, 'created', '{}' FROM unnest($1::bigint[]) AS id
"""


async def copy(url: str, jobs: int) -> Figures:
    """Store the smallest rows the fastest way there is."""
    numbers = iter(range(jobs))

    async def batch(connection: Any, size: int) -> None:
        rows = [(number, "created", "{}") for number in islice(numbers, size)]
        await connection.copy_records_to_table("job", records=rows)

    return await _stored(url, SMALLEST, batch, jobs)


async def insert_pairs(url: str, jobs: int) -> Figures:
    """Store the smallest rows of runs of one job, by one statement."""
    numbers = iter(range(jobs))

    async def batch(connection: Any, size: int) -> None:
        await connection.execute(INSERT_PAIR, list(islice(numbers, size)))

    return await _stored(url, PAIR, batch, jobs)


async def _stored(
    url: str, schema: str, batch: Callable[[Any, int], Awaitable[None]], jobs: int
) -> Figures:
    import asyncpg

    await fresh_schema(url)
    connection = await asyncpg.connect(url)
    await connection.execute(schema)
    figures = await enqueued(lambda size: batch(connection, size), jobs)
    await connection.close()
    return figures


GRAPH = """
CREATE TABLE node (id int PRIMARY KEY, waits int NOT NULL, state text NOT NULL);
CREATE TABLE edge (source int NOT NULL, target int NOT NULL);
CREATE INDEX ON edge (source);
CREATE INDEX ON node (id) WHERE state = 'created' AND waits = 0;
"""
COUNT_DOWN = """
UPDATE node n SET waits = waits - k.n
FROM (SELECT target, count(*) AS n FROM edge WHERE source = ANY($1) GROUP BY target) k
WHERE n.id = k.target
"""
CLAIM_NODES = """
WITH chosen AS (
  SELECT id FROM node WHERE state = 'created' AND waits = 0 ORDER BY id LIMIT $1
  FOR UPDATE SKIP LOCKED)
UPDATE node n SET state = 'active' FROM chosen WHERE n.id = chosen.id RETURNING n.id
"""


async def walk(url: str, graph: list[list[int]]) -> Figures:
    """Walk a DAG in batches: one transaction completes, counts down and claims."""
    import asyncpg

    await fresh_schema(url)
    connection = await asyncpg.connect(url)
    await connection.execute(GRAPH)
    began = time.perf_counter()
    async with connection.transaction():
        nodes = [(node, len(needs), "created") for node, needs in enumerate(graph)]
        await connection.copy_records_to_table("node", records=nodes)
        edges = [(need, node) for node, needs in enumerate(graph) for need in needs]
        await connection.copy_records_to_table("edge", records=edges)
    done: list[int] = []
    walked = 0
    while True:
        async with connection.transaction():
            if done:
                await connection.execute(
                    "UPDATE node SET state = 'completed' WHERE id = ANY($1)", done
                )
                await connection.execute(COUNT_DOWN, done)
            rows = await connection.fetch(CLAIM_NODES, BATCH)
        walked += len(done)
        done = [row[0] for row in rows]
        if not done:
            break
    took = time.perf_counter() - began
    await connection.close()
    if walked != len(graph):
        raise RuntimeError(f"{walked} of {len(graph)} nodes were walked")
    return {NODE: took / len(graph) * 1e6}
