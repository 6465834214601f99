"""Peers of the jobs door, each as its own documentation starts it: store no-op jobs, then drain them.

Each runs in a process of its own (jobs_run.py), on a database of its own.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.jobs_meter import Figures, Meter, enqueued

AT_ONCE = 16
PGQUEUER_BATCH = 100


async def fresh_schema(url: str) -> None:
    """Forget what the case before left, also what was still to be written to disk."""
    import asyncpg

    connection = await asyncpg.connect(url)
    await connection.execute("DROP SCHEMA IF EXISTS fairlead CASCADE")
    await connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    await connection.execute("CHECKPOINT")
    await connection.close()


async def pgqueuer(url: str, jobs: int, at_once: int | None = 2 * PGQUEUER_BATCH) -> Figures:
    """Batches of 100, and twice as many at once, the fewest it takes with them; None: no limit, its fastest way."""
    import asyncpg
    from pgqueuer import PgQueuer
    from pgqueuer.db import AsyncpgDriver
    from pgqueuer.domain.types import QueueExecutionMode
    from pgqueuer.queries import Queries

    await fresh_schema(url)
    queries = Queries(AsyncpgDriver(await asyncpg.connect(url)))
    await queries.install()
    queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(url)))
    meter = Meter(jobs)

    @queue.entrypoint("noop")
    async def noop(job: object) -> None:
        meter.hit()

    figures = await enqueued(
        lambda n: queries.enqueue(["noop"] * n, [b"{}"] * n, [0] * n),
        jobs,
    )
    meter.start()
    await queue.qm.run(
        mode=QueueExecutionMode.drain, batch_size=PGQUEUER_BATCH, max_concurrent_tasks=at_once
    )
    return figures | meter.figures()


async def procrastinate(url: str, jobs: int) -> Figures:
    """One worker, sixteen at a time."""
    from procrastinate import App, PsycopgConnector

    await fresh_schema(url)
    app = App(connector=PsycopgConnector(conninfo=url, max_size=AT_ONCE + 4))
    meter = Meter(jobs)

    @app.task(name="noop", queue="noop")
    async def noop(number: int) -> None:
        meter.hit()

    defer: Any = noop.batch_defer_async
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        figures = await enqueued(
            lambda n: defer(*({"number": number} for number in range(n))), jobs
        )
        meter.start()
        await app.run_worker_async(
            concurrency=AT_ONCE, wait=False, install_signal_handlers=False, delete_jobs="never"
        )
    return figures | meter.figures()


async def huey(url: str, jobs: int) -> Figures:
    """Its SQLite storage and its consumer with sixteen threads, without stored results."""
    from huey import SqliteHuey
    from huey.consumer import Consumer

    with tempfile.TemporaryDirectory() as folder:
        queue = SqliteHuey(filename=str(Path(folder, "huey.db")), results=False)
        meter = Meter(jobs)

        @queue.task()
        def noop() -> None:
            meter.hit()

        for _ in range(jobs):
            noop()
        consumer = Consumer(
            queue, workers=AT_ONCE, periodic=False, initial_delay=0.01, backoff=1.1, max_delay=0.1
        )
        meter.start()
        consumer.start()
        await asyncio.to_thread(meter.done.wait, 300)
        figures = meter.figures()
        consumer.stop(graceful=True)
        return figures
