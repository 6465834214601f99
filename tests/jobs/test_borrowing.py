"""Jobs that need a slot of a pool beside one of their executor: what runs keeps it, whoever leads, and no longer."""

import asyncio
import threading

from fairlead.jobs import Dag, Jobs
from fairlead.runtime import GatePool
from fairlead.testing import CheckedGate
from tests.gateway.rig import until
from tests.jobs.operations_rig import QUICK, database, go


def sharing(pool, url, **settings):
    """A Jobs whose tasks hold until told."""
    jobs = Jobs(url, **{**QUICK, "executors": {"default": 3, "threads": 2}, **settings})
    jobs.make_gate = pool.borrower(
        "jobs", wake=lambda: jobs.scheduler and jobs.scheduler.wake(), gate=CheckedGate
    )
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
