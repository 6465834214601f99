"""Jobs that need a slot of a pool beside one of their executor: what runs keeps it, whoever leads, and no longer."""

import asyncio
import threading

import pytest

from fairlead import Scheduler
from fairlead.errors import StoreUnavailable
from fairlead.jobs import Dag, Jobs, scheduling
from fairlead.runtime import GatePool
from fairlead.testing import CheckedGate
from tests.gateway.rig import until
from tests.jobs.operations_rig import QUICK, database, go


def sharing(pool, url, **settings):
    """A Jobs whose tasks hold until told."""
    jobs = Jobs(url, **{**QUICK, "executors": {"default": 3, "threads": 2}, **settings})

    def wake() -> None:
        if jobs.scheduler is not None:
            jobs.scheduler.wake()

    jobs.make_gate = pool.borrower("jobs", wake=wake, gate=CheckedGate)
    leave = threading.Event()

    @jobs.task(executor="threads")
    def hold():
        leave.wait(20.0)

    @jobs.task
    async def quick(): ...

    return jobs, leave


def many(*tasks):
    dag = Dag("many")
    for task in tasks:
        dag.add(task)
    return dag


def test_a_job_has_a_slot_of_the_pool_and_one_of_its_executor(tmp_path):
    """Where the executor is full the pool's other slots are left alone."""

    async def main():
        pool = GatePool(8, gate=CheckedGate)
        jobs, leave = sharing(pool, database("sqlite", tmp_path))
        async with jobs:
            run = await jobs.submit(many(*["hold"] * 5))
            await until(lambda: jobs.scheduler.frontier and jobs.scheduler.frontier.running == 2)
            await until(lambda: pool.gate.active == 2 and not pool.gate.waiting)
            leave.set()
            assert (await jobs.wait(run)).state == "completed"
            run = await jobs.submit(many(*["quick"] * 200))
            assert (await jobs.wait(run)).state == "completed"
            await until(lambda: not pool.gate.active)

    go(main())


def test_what_runs_keeps_its_slot_while_the_scheduler_begins_anew(tmp_path):
    async def main():
        pool = GatePool(2, gate=CheckedGate)
        jobs, leave = sharing(pool, database("sqlite", tmp_path))
        async with jobs:
            run = await jobs.submit(many("hold"))
            await until(lambda: pool.gate.active == 1 and jobs.crew.running["threads"] == 1)
            scheduler = jobs.scheduler
            least = []
            seen = asyncio.Event()

            def look():
                least.append(pool.gate.active)
                if not seen.is_set():
                    asyncio.get_running_loop().call_soon(look)

            look()
            scheduler._step_down()
            scheduler.wake()
            await until(lambda: scheduler.leading)
            await until(lambda: pool.gate.active == 1)  # no more than what runs
            seen.set()
            assert min(least) == 1
            leave.set()
            assert (await jobs.wait(run)).state == "completed"
            await until(lambda: not pool.gate.active)

    go(main())


def test_when_another_leads_what_runs_is_for_that_one_to_count(tmp_path):
    async def main():
        pool = GatePool(2, gate=CheckedGate)
        jobs, leave = sharing(pool, database("sqlite", tmp_path))
        async with jobs:
            await jobs.submit(many("hold"))
            await until(lambda: pool.gate.active == 1)
            store = await jobs.store()
            await store.resign(jobs.scheduler.process)
            assert await store.lead("another", 60.0)
            await until(lambda: not jobs.scheduler.leading)
            await until(lambda: not pool.gate.active)
            leave.set()

    go(main())


def test_at_the_end_everything_is_given_back_and_not_before(tmp_path):
    async def main():
        pool = GatePool(2, gate=CheckedGate)
        jobs, leave = sharing(pool, database("sqlite", tmp_path))
        await jobs.start()
        await jobs.submit(many("hold", "hold", "hold"))
        await until(lambda: pool.gate.active == 2)
        ending = asyncio.create_task(jobs.close("20s"))
        await until(lambda: not jobs.scheduler.leading)
        assert pool.gate.active == 2  # it still runs
        leave.set()
        await ending
        await until(lambda: not pool.gate.active and not pool.gate.waiting)

    go(main())


@pytest.mark.parametrize("why", ["drain", "database"])
def test_while_nobody_plans_jobs_want_no_slot(tmp_path, monkeypatch, why):
    """They drain, or the database is away: what others give back goes to those who can use it."""

    async def main():
        pool = GatePool(2, gate=CheckedGate)
        api = Scheduler.bounded(8, gate=pool.member("api"))
        jobs, leave = sharing(pool, database("sqlite", tmp_path))
        await jobs.start()
        gone = asyncio.Event()
        request = asyncio.create_task(api.submit(50, gone.wait))
        await until(lambda: pool.gate.active == 1)
        await jobs.submit(many("hold", "hold", "hold"))
        await until(lambda: pool.gate.active == 2 and pool.gate.waiting)
        ending = asyncio.create_task(jobs.close("20s")) if why == "drain" else None
        if ending is None:
            monkeypatch.setattr(await jobs.store(), "lead", away)
            jobs.scheduler._renew_at = 0.0
            jobs.scheduler.wake()
        await until(lambda: not jobs.scheduler.leading)
        gone.set()
        await request
        async with asyncio.timeout(10.0):
            await api.submit(50, asyncio.sleep, 0)
        assert (pool.gate.active, pool.gate.waiting) == (1, 0)
        monkeypatch.undo()
        leave.set()
        await (ending or jobs.close("20s"))
        await until(lambda: not pool.gate.active)
        await api.shutdown()

    go(main())


async def away(*args):
    raise StoreUnavailable("away")


def test_a_job_that_ends_while_others_drain_gives_its_slot_back(tmp_path):
    async def main():
        pool = GatePool(2, gate=CheckedGate)
        jobs, leave = sharing(pool, database("sqlite", tmp_path))
        sooner = threading.Event()

        @jobs.task(executor="threads")
        def brief():
            sooner.wait(20.0)

        await jobs.start()
        await jobs.submit(many("hold", "brief"))
        await until(lambda: jobs.crew.running["threads"] == 2)
        ending = asyncio.create_task(jobs.close("20s"))
        await until(lambda: not jobs.scheduler.leading)
        assert pool.gate.active == 2
        sooner.set()
        await until(lambda: pool.gate.active == 1)
        assert not ending.done()
        leave.set()
        await ending
        await until(lambda: not pool.gate.active)

    go(main())


def test_tries_to_read_everything_do_not_add_up(tmp_path, monkeypatch):
    async def main():
        pool = GatePool(8, gate=CheckedGate)
        jobs, leave = sharing(pool, database("sqlite", tmp_path))
        async with jobs:
            run = await jobs.submit(many("hold"))
            await until(lambda: pool.gate.active == 1 and jobs.crew.running["threads"] == 1)
            held = []

            async def broken(store):
                held.append(pool.gate.active)  # what runs is taken over, and not let go yet
                await away()
                yield []

            monkeypatch.setattr(scheduling, "ready_pages", broken)
            jobs.scheduler._step_down()
            jobs.scheduler.wake()
            await until(lambda: len(held) == 3)
            await until(lambda: pool.gate.active == 1)
            assert held == [2, 2, 2]
            monkeypatch.undo()
            leave.set()
            assert (await jobs.wait(run)).state == "completed"
            await until(lambda: not pool.gate.active)

    go(main())
