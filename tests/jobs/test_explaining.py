"""`explain`: one sentence for each thing that can hold a job, the same from the leader and from elsewhere."""

import asyncio
import re

import pytest

from fairlead.errors import UnknownRun
from fairlead.jobs import Dag, Jobs, explaining
from fairlead.jobs.operating import Operations
from fairlead.jobs.planners import GlobalPriorityExecutionPlanner, SJFSExecutionPlanner
from fairlead.jobs.wording import LONGEST, roughly
from tests.jobs.operations_rig import QUICK, database, go, until


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, tmp_path):
    return database(request.param, tmp_path)


def make(url, **settings):
    """A Jobs whose tasks hold until told."""
    jobs = Jobs(
        url, **{**QUICK, "executors": {"default": 4, "ocr": 1, "gpu": "worker"}, **settings}
    )

    @jobs.task
    async def hold():
        await asyncio.Event().wait()

    @jobs.task(executor="ocr", estimate="30s")
    async def read():
        await asyncio.Event().wait()

    @jobs.task(executor="gpu")
    async def train(): ...

    @jobs.task(retries=2, retry_delay="1h")
    async def fail():
        raise ValueError("no paper\nin the tray")

    @jobs.task
    async def give_up():
        raise ValueError("at once")

    return jobs


async def said(jobs, job):
    """Explain a job here and, if this is the leader, from a client that has only the database."""
    here = await Operations(jobs).explain(job)
    assert len(here.sentence) <= LONGEST
    assert here.sentence.count("\n") == 0
    client = Jobs(jobs.url)
    there = await Operations(client).explain(job)
    await client.close()

    def plain(text):  # the time has passed meanwhile
        return re.sub(r"[0-9.]+ s\b", "… s", text)

    assert (here.reason, plain(here.sentence)) == (there.reason, plain(there.sentence))
    assert here.document()["explanation"] == here.sentence
    return here.reason, here.sentence


async def in_state(jobs, job, state):
    dag, node = job.split(".")

    async def look():
        run = await Operations(jobs).run(dag)
        return run["jobs"][int(node)]["state"] == state

    await until(look)


def served(jobs, test):
    async def main():
        await jobs.start()
        try:
            await test()
        finally:
            await jobs.close(0)

    go(main())


class TestNobodyServes:
    def test_no_scheduler_is_running(self, url):
        async def main():
            jobs = make(url)
            dag = Dag("x")
            dag.add("read")
            await jobs.submit(dag)
            reason, text = await said(jobs, "1.0")
            assert reason == "no_scheduler"
            assert "no scheduler is running" in text
            assert "'ocr'" in text
            assert "no worker" in text
            assert "fairlead worker --executor ocr" in text
            await jobs.close()

        go(main())

    def test_what_is_paused_delayed_or_waits_for_another(self, url):
        async def main():
            jobs = make(url)
            dag = Dag("x")
            first = dag.add("hold").options(name="first")
            second = dag.add("hold").options(name="second", after=[first])
            dag.add("hold").options(name="third", after=[second])
            await jobs.submit(dag, start_at="2h")
            reason, text = await said(jobs, "1.2")
            assert reason == "upstream"
            assert "waits for upstream job 1.1 (second), which waits for job 1.0 (first)" in text
            assert "was asked to start at" in text
            reason, text = await said(jobs, "1.0")
            assert reason == "start_at"
            await jobs.pause("1")
            for job in ("1.0", "1.2"):
                reason, text = await said(jobs, job)
                assert reason == "paused"
                assert "fairlead jobs resume 1" in text
            await jobs.cancel("1")
            assert (await said(jobs, "1.0"))[0] == "cancelled"
            await jobs.close()

        go(main())

    @pytest.mark.parametrize("job", ["7.0", "1.9"])
    def test_what_is_not_there(self, url, job):
        async def main():
            jobs = make(url)
            dag = Dag("x")
            dag.add("hold")
            await jobs.submit(dag)
            with pytest.raises(UnknownRun):
                await Operations(jobs).explain(job)
            await jobs.close()

        go(main())


class TestServing:
    def test_an_executor_that_is_full(self, url):
        jobs = make(url)

        async def test():
            for _ in range(3):
                dag = Dag("x")
                dag.add("read")
                await jobs.submit(dag)
            await in_state(jobs, "1.0", "active")
            reason, text = await said(jobs, "1.0")
            assert reason == "running"
            assert re.search(r"runs on worker \d+ .* of executor 'ocr'.* ends in \d+ s", text)
            reason, text = await said(jobs, "2.0")
            assert reason == "executor_full"
            assert "the only slot of executor 'ocr' is in use; it is the next" in text
            assert "at 30 s each it likely starts within 30 s" in text
            reason, text = await said(jobs, "3.0")
            assert reason == "executor_full"
            assert "1 job goes first; at 30 s each it likely starts within 60 s" in text

        served(jobs, test)

    @pytest.mark.parametrize(
        ("settings", "tenant", "named"),
        [
            ({"max_running_per_dag": 1}, None, "max_running_per_dag 1"),
            ({"tenants": {"acme": {"max_running": 1}}}, "acme", "tenant 'acme'"),
            ({"max_concurrent_dags": 1}, None, "max_concurrent_dags 1"),
        ],
    )
    def test_a_cap_is_named(self, url, settings, tenant, named):
        jobs = make(url, **settings)

        async def test():
            per_dag = "max_running_per_dag" in settings
            for _ in range(2):
                dag = Dag("x", tenant=tenant)
                dag.add("hold")
                if per_dag:
                    dag.add("hold")
                await jobs.submit(dag)
            await in_state(jobs, "1.0", "active")
            reason, text = await said(jobs, "1.1" if per_dag else "2.0")
            assert reason == "held"
            assert named in text

        served(jobs, test)

    def test_an_executor_without_a_worker(self, url):
        jobs = make(url)

        async def test():
            dag = Dag("x")
            dag.add("train")
            await jobs.submit(dag)
            await until(lambda: leads(jobs))
            reason, text = await said(jobs, "1.0")
            assert reason == "no_worker"
            assert "fairlead worker --executor gpu" in text

        served(jobs, test)

    def test_retries_failures_and_what_they_skip(self, url):
        jobs = make(url)

        async def test():
            dag = Dag("x")
            dag.add("fail")
            bad = dag.add("give_up").options(name="bad")
            more = dag.add("hold").options(name="more", after=[bad])
            dag.add("hold").options(name="most", after=[more])
            await jobs.submit(dag)
            await in_state(jobs, "1.0", "retry")
            reason, text = await said(jobs, "1.0")
            assert reason == "retry"
            assert "(attempt 2 of 3): ValueError: no paper in the tray" in text
            await in_state(jobs, "1.3", "skipped")
            reason, text = await said(jobs, "1.1")
            assert reason == "failed"
            assert "ValueError: at once" in text
            assert "once its run has ended, fairlead jobs retry 1" in text
            for job in ("1.2", "1.3"):
                reason, text = await said(jobs, job)
                assert reason == "skipped"
                assert "because job 1.1 (bad), which it needs, failed" in text

        served(jobs, test)


def test_of_very_many_ready_jobs_only_so_many_are_read(url, monkeypatch):
    monkeypatch.setattr(explaining, "MOST_READ", 4)
    jobs = make(url)

    async def test():
        for _ in range(12):
            dag = Dag("x")
            dag.add("read")
            await jobs.submit(dag)
        await in_state(jobs, "1.0", "active")
        client = Jobs(jobs.url)
        found = await Operations(client).explain("12.0")
        await client.close()
        assert found.reason == "executor_full"
        assert found.sentence.endswith("; at least 4 jobs go first")
        assert found.expected_at is None

    served(jobs, test)


class Idle:
    """A planner that never plans."""

    level = object()  # nobody else's affair

    def plan(self, jobs, slots, active_dags, recently_activated_dags=frozenset()):
        return []


def test_a_planner_that_leaves_it_out_is_named(url):
    jobs = make(url, planner=Idle())
    idle = f"{__name__}:Idle"

    async def test():
        dag = Dag("x")
        dag.add("hold")
        await jobs.submit(dag)
        await until(lambda: leads(jobs))

        async def left_out():
            found = await Operations(jobs).explain("1.0")
            return "the planner leaves it out" in found.sentence

        await until(left_out)
        elsewhere = Jobs(url)
        found = await Operations(elsewhere).explain("1.0")
        assert (found.reason, idle in found.sentence) == ("planner", True)
        assert (await Operations(elsewhere).planners())["planner"] == idle
        await elsewhere.close()

    served(jobs, test)


@pytest.mark.parametrize(
    "planner",
    [SJFSExecutionPlanner(), GlobalPriorityExecutionPlanner(level="critical_path")],
)
def test_the_planner_that_the_app_names_is_known_elsewhere(url, planner):
    jobs = make(url, planner=planner)

    @jobs.task(executor="ocr", estimate="1h")
    async def study():
        await asyncio.Event().wait()

    async def test():
        first = Dag("x")
        first.add("read")
        await jobs.submit(first)
        await in_state(jobs, "1.0", "active")
        # By urgency and length: 2, 3, 4; by length: 3, 2, 4; by what is left to do: 2, 4, 3.
        for task, sla in (("study", "1h"), ("read", None), ("study", None)):
            dag = Dag("x", hard_sla=sla)
            dag.add(task)
            await jobs.submit(dag)
        for job in ("2.0", "3.0", "4.0"):
            await until(lambda job=job: known(jobs, job))
        for job in ("2.0", "3.0", "4.0"):
            await said(jobs, job)
        client = Jobs(jobs.url)
        shown = await Operations(client).planners()
        await client.close()
        assert shown == await Operations(jobs).planners()
        assert shown["planner"] == type(planner).__name__

    served(jobs, test)


def test_a_planner_of_an_app_that_is_not_here_is_named(url):
    jobs = make(url, planner=Idle())

    async def test():
        dag = Dag("x")
        dag.add("hold")
        await jobs.submit(dag)
        await until(lambda: leads(jobs))
        await (await jobs.store()).set_setting("planner.default", "mine")
        client = Jobs(jobs.url)
        found = await Operations(client).explain("1.0")
        await client.close()
        assert found.reason == "planner"
        said = "planner mine orders what runs there; it is the app's and not known here; what it"
        assert said in found.sentence
        with_app = Jobs(jobs.url, planners={"mine": Idle})
        found = await Operations(with_app).explain("1.0")
        await with_app.close()
        assert "planner mine orders what runs there; what it leaves out" in found.sentence

    served(jobs, test)


async def known(jobs, job):
    """Tell whether the leader has heard of a job that waits for its executor."""
    return (await Operations(jobs).explain(job)).reason == "executor_full"


async def leads(jobs):
    return jobs.scheduler is not None and jobs.scheduler.leading


def test_a_name_or_an_error_of_any_length_fits(url):
    jobs = make(url)

    @jobs.task(name="long")
    async def long_one():
        raise ValueError("x" * 5000)

    async def test():
        dag = Dag("x")
        node = dag.add("long").options(name="y" * 250)
        dag.add("hold").options(name="z" * 250, after=[node])
        await jobs.submit(dag)
        await in_state(jobs, "1.0", "failed")
        assert (await said(jobs, "1.0"))[0] == "failed"
        assert (await said(jobs, "1.1"))[0] == "skipped"

    served(jobs, test)


def test_durations_are_written_roughly():
    assert [roughly(one) for one in (-1, 0.25, 12.3, 150, 7300, 200_000)] == [
        "0.0 s",
        "0.2 s",
        "12 s",
        "2 min",
        "2.0 h",
        "2.3 d",
    ]
