"""The metrics of jobs: that they are told, that they are right, that labels are bounded and that scrapes are cheap."""

import asyncio
import os
import signal
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fairlead.errors import StoreUnavailable
from fairlead.jobs import Dag
from fairlead.jobs import metrics as module
from fairlead.jobs.metrics import Metrics
from fairlead.jobs.timing import BOUNDS, MOST, OTHERS, Timings
from tests.jobs.operations_rig import database, go, small, until


@pytest.fixture(params=["sqlite", "postgres"])
def jobs(request, tmp_path):
    return small(database(request.param, tmp_path))


async def scrape(metrics):
    body, media = await metrics.render()
    assert media.startswith("text/plain")
    found = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[f"{sample.name.removeprefix('fairlead_jobs_')}{{{labels}}}"] = sample.value
    return found


def test_what_a_serving_process_tells(jobs):
    async def main():
        metrics = Metrics(jobs)
        async with jobs:
            dag = Dag("x", hard_sla="2020-01-01T00:00:00Z")
            for number in range(3):
                dag.add("double", number)
            dag.add("give_up", "now")
            await jobs.wait(await jobs.submit(dag))

            async def told():
                return jobs.scheduler.counts.missed["hard"]

            await until(told)
            found = await scrape(metrics)
        await metrics.close()
        return found

    found = go(main())
    labels = "{executor=default,task=double}"
    assert found["stored{state=completed}"] == 3
    assert found["stored{state=failed}"] == 1
    assert found["stored{state=active}"] == 0
    assert found["claimed_total{}"] == 4
    assert found["ended_total{state=completed}"] == 3
    assert found["runs_ended_total{state=failed}"] == 1
    assert found["sla_missed_total{sla=hard}"] == 1
    assert (found["leader{}"], found["takeovers_total{}"]) == (1, 1)
    assert (found["slots{executor=default}"], found["busy{executor=default}"]) == (8, 0)
    assert found["local_slots{executor=default}"] == 8
    assert found[f"wait_seconds_count{labels}"] == 3
    assert found[f"run_seconds_count{labels}"] == 3
    assert found["run_seconds_count{executor=default,task=give_up}"] == 1
    assert found["oldest_ready_seconds{}"] == 0
    assert found["planner_rounds_total{}"] > 0
    assert found["planner_seconds_total{}"] > 0
    assert found["database_reachable{}"] == 1
    for name in ("rescued", "quarantined", "claims_lost", "leases_lost", "abandoned"):
        assert found[f"{name}_total{{}}"] == 0


def test_an_executor_that_nobody_serves_has_no_slots(tmp_path):
    jobs = small(database("sqlite", tmp_path), executors={"default": 3, "gpu": "worker"})

    async def main():
        metrics = Metrics(jobs)
        async with jobs:
            await until(leading)
            found = await scrape(metrics)
        await metrics.close()
        return found

    async def leading():
        scheduler: Any = jobs.scheduler
        return scheduler.leading and scheduler.roster.slots()

    found = go(main())
    assert (found["slots{executor=default}"], found["slots{executor=gpu}"]) == (3, 0)


def kill_itself():
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_is_quarantined_is_counted_whoever_saw_it_die(tmp_path):
    processes = {"kind": "processes", "slots": 1}
    jobs = small(database("sqlite", tmp_path), executors={"own": processes}, max_crashes=2)
    jobs.task(executor="own")(kill_itself)

    async def main():
        metrics = Metrics(jobs)
        dag = Dag("deadly")
        dag.add(kill_itself)
        async with jobs:
            outcome = await jobs.wait(await jobs.submit(dag))
            found = await scrape(metrics)
        await metrics.close()
        return outcome, found

    outcome, found = go(main())
    assert outcome.state == "failed"
    assert found["quarantined_total{}"] == 1


def test_what_waits_gets_older(jobs):
    async def main():
        metrics = Metrics(jobs)
        dag = Dag("x")
        dag.add("double", 1)
        await jobs.submit(dag)
        found = await scrape(metrics)
        await metrics.close()
        await jobs.close()
        assert found["stored{state=created}"] == 1
        assert 0 <= found["oldest_ready_seconds{}"] < 5
        assert "leader{}" not in found  # nobody serves here

    go(main())


def test_each_scrape_counts_the_database_anew(jobs):
    async def main():
        metrics = Metrics(jobs)
        async with jobs:
            for number in range(1, 8):
                dag = Dag("x")
                dag.add("double", number)
                await jobs.wait(await jobs.submit(dag))
                found = await scrape(metrics)
                assert found["stored{state=completed}"] == number
                assert found["ended_total{state=completed}"] == number
        await metrics.close()

    go(main())


def test_a_count_that_hangs_keeps_one_scrape_waiting_and_a_slow_one_is_used_for_a_while(
    jobs, monkeypatch
):
    async def main():
        store = await jobs.store()
        metrics = Metrics(jobs)
        counted = 0
        gate = asyncio.Event()
        gate.set()

        async def states():
            nonlocal counted
            counted += 1
            await gate.wait()
            return {"created": counted}

        monkeypatch.setattr(store, "states", states)
        assert (await scrape(metrics))["stored{state=created}"] == 1
        monkeypatch.setattr(module, "QUICK", -1.0)  # any count is slow now
        monkeypatch.setattr(module, "SHARE", 1e9)
        for _ in range(5):
            assert (await scrape(metrics))["stored{state=created}"] == 2
        monkeypatch.setattr(module, "PATIENCE", 0.05)
        gate.clear()  # from now on counting takes for ever
        metrics._count_at = 0.0
        waited = 0
        wait = asyncio.wait

        async def noted(*args, **options):
            nonlocal waited
            waited += 1
            return await wait(*args, **options)

        monkeypatch.setattr(asyncio, "wait", noted)
        for _ in range(5):
            assert (await scrape(metrics))["stored{state=created}"] == 2
        assert (counted, waited) == (3, 1)
        await metrics.close()
        await jobs.close()

    go(main())


def test_a_first_scrape_waits_no_longer_than_its_patience(jobs, monkeypatch):
    async def main():
        store = await jobs.store()
        monkeypatch.setattr(store, "states", asyncio.Event().wait)
        monkeypatch.setattr(module, "PATIENCE", 0.05)
        metrics = Metrics(jobs)
        found = await scrape(metrics)
        assert found["database_reachable{}"] == 0
        assert not any(name.startswith("stored") for name in found)
        await metrics.close()
        await jobs.close()

    go(main())


def test_a_database_that_is_away_is_told(jobs, monkeypatch):
    async def main():
        store = await jobs.store()
        metrics = Metrics(jobs)

        async def away():
            raise StoreUnavailable("gone")

        monkeypatch.setattr(store, "states", away)
        found = await scrape(metrics)
        assert found["database_reachable{}"] == 0
        await metrics.close()
        await jobs.close()

    go(main())


def test_labels_are_bounded_whatever_tasks_there_are():
    timings = Timings()
    for number in range(MOST + 50):
        timings.saw(f"task-{number}", "default", 1.0)
    assert len(timings.histograms) == MOST + 1
    assert sum(timings.histograms[OTHERS].counts) == 50


@pytest.mark.parametrize(("seconds", "place"), [(0.0, 0), (0.01, 0), (0.02, 1), (1e9, len(BOUNDS))])
def test_a_time_falls_into_its_bucket(seconds, place):
    timings = Timings()
    timings.saw("a", "b", seconds)
    assert timings.histograms["a", "b"].counts[place] == 1
