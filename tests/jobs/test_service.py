"""The door as its users meet it: submit, wait, retries, cancels, SLAs, keys, planners, two schedulers.

Everything runs on a real database with real executors; `url` is SQLite here, PostgreSQL in test_service_postgres.py.
"""

import asyncio
import gc
import logging
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fairlead.errors import (
    ConfigError,
    FairleadError,
    PayloadError,
    StoreUnavailable,
    UnknownRun,
)
from fairlead.jobs import Dag, Jobs, announcing, current_job, reading
from fairlead.jobs.operating import Operations, schedule_of
from fairlead.jobs.records import Missed

QUICK: dict[str, Any] = {"lease": "2s", "sweep": "200ms", "poll": "100ms", "ack": "1s"}


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/jobs.db"


def go(coroutine, limit=30):
    async def bounded():
        async with asyncio.timeout(limit):
            return await coroutine

    return asyncio.run(bounded())


def small(url, **settings):
    """A Jobs with three tasks."""
    jobs = Jobs(url, **{**QUICK, **settings})

    @jobs.task()
    async def double(number):
        return 2 * number

    @jobs.task()
    def total(numbers):
        return sum(numbers)

    @jobs.task()
    async def fail(text):
        raise ValueError(text)

    return jobs, double, total, fail


def test_the_garbage_collector_of_the_process_is_left_alone(url, monkeypatch):
    def touched(*_: object) -> None:
        raise AssertionError("the garbage collector belongs to the application")

    for verb in ("collect", "disable", "enable", "freeze", "set_threshold", "unfreeze"):
        monkeypatch.setattr(gc, verb, touched)

    async def main():
        jobs, double, total, _ = small(url)
        dags = []
        for number in range(200):
            dag = Dag(f"sum{number}")
            dag.add(total, [dag.add(double, number)])
            dags.append(dag)
        runs = await jobs.submit_all(dags)
        async with jobs:  # reads them all as it takes the lead
            assert {(await jobs.wait(run)).state for run in runs} == {"completed"}

    go(main())


class TestRunning:
    def test_results_flow_along_the_edges(self, url):
        async def main():
            jobs, double, total, _ = small(url)
            async with jobs:
                dag = Dag("sums")
                parts = [dag.add(double, n) for n in range(5)]
                dag.add(total, parts).options(name="sum")
                return await jobs.wait(await jobs.submit(dag))

        outcome = go(main())
        assert outcome.state == "completed"
        assert outcome.results["sum"] == 20

    def test_submitted_before_anybody_serves(self, url):
        async def main():
            jobs, double, *_ = small(url)
            dag = Dag("one")
            node = dag.add(double, 21)
            run = await jobs.submit(dag)
            await jobs.close()
            other, *_ = small(url)
            async with other:
                return node.name, await other.wait(run.id)

        name, outcome = go(main())
        assert outcome.results[name] == 42

    def test_a_thousand_nodes_in_dependency_order(self, url):
        async def main():
            jobs, *_ = small(url, executors={"default": 16})
            seen = []

            @jobs.task()
            async def step(number, *before):
                seen.append(number)
                return number

            async with jobs:
                dag = Dag("big")
                nodes: list[Any] = []
                for n in range(1000):
                    nodes.append(dag.add(step, n, *nodes[max(0, n - 7) : n : 3]))
                outcome = await jobs.wait(await jobs.submit(dag))
            return seen, outcome

        seen, outcome = go(main(), 60)
        assert outcome.state == "completed"
        place = {number: index for index, number in enumerate(seen)}
        assert len(seen) == 1000
        for n in range(1000):
            assert all(place[before] < place[n] for before in range(n)[max(0, n - 7) : n : 3])

    def test_sync_functions_run_at_the_same_time(self, url):
        async def main():
            jobs = Jobs(url, executors={"default": 3}, **QUICK)
            meeting = threading.Barrier(3, timeout=10)

            @jobs.task()
            def meet():
                meeting.wait()
                return True

            async with jobs:
                dag = Dag("meeting")
                for _ in range(3):
                    dag.add(meet)
                return await jobs.wait(await jobs.submit(dag))

        assert go(main()).state == "completed"

    def test_never_more_than_the_slots(self, url):
        async def main():
            jobs = Jobs(url, executors={"default": 3}, **QUICK)
            now, most = 0, 0

            @jobs.task()
            async def work():
                nonlocal now, most
                now += 1
                most = max(most, now)
                await asyncio.sleep(0.005)
                now -= 1

            async with jobs:
                dag = Dag("many")
                for _ in range(40):
                    dag.add(work)
                await jobs.wait(await jobs.submit(dag))
            return most

        assert go(main()) == 3

    def test_delayed_start(self, url):
        async def main():
            jobs, double, *_ = small(url)
            async with jobs:
                dag = Dag("later")
                dag.add(double, 1)
                begun = asyncio.get_running_loop().time()
                await jobs.wait(
                    await jobs.submit(dag, start_at=datetime.now(UTC) + timedelta(seconds=0.7))
                )
                return asyncio.get_running_loop().time() - begun

        assert go(main()) >= 0.65

    def test_current_job_knows_itself(self, url):
        async def main():
            jobs = Jobs(url, **QUICK)

            @jobs.task()
            async def who():
                job = current_job()
                return [job.id, job.run, job.attempt]

            async with jobs:
                dag = Dag("who")
                name = dag.add(who).name
                run = await jobs.submit(dag)
                return run, (await jobs.wait(run)).results[name]

        run, told = go(main())
        assert told == [f"{run.id}.0", run.id, 1]


class TestFailing:
    def test_dependents_are_skipped_and_others_finish(self, url):
        async def main():
            jobs, double, total, fail = small(url)
            async with jobs:
                dag = Dag("mixed")
                bad = dag.add(fail, "no such page").options(name="bad")
                dag.add(total, [bad]).options(name="after")
                dag.add(double, 4).options(name="apart")
                return await jobs.wait(await jobs.submit(dag))

        outcome = go(main())
        assert outcome.state == "failed"
        assert outcome.states == {"bad": "failed", "after": "skipped", "apart": "completed"}
        assert outcome.results == {"apart": 8}
        assert "no such page" in outcome.errors["bad"]
        assert outcome.errors["bad"].type == "ValueError"

    def test_retries_then_success(self, url):
        async def main():
            jobs = Jobs(url, **QUICK)
            tries = []

            @jobs.task(retries=3, retry_delay="10ms")
            async def shaky():
                tries.append(current_job().attempt)
                if len(tries) < 3:
                    raise OSError("again")
                return len(tries)

            async with jobs:
                dag = Dag("shaky")
                name = dag.add(shaky).name
                outcome = await jobs.wait(await jobs.submit(dag))
            return tries, outcome.results[name]

        assert go(main()) == ([1, 2, 3], 3)

    def test_attempts_are_retries_and_one(self, url):
        async def main():
            jobs = Jobs(url, **QUICK)
            tries = []

            @jobs.task(retries=2, retry_delay="1ms")
            async def never():
                tries.append(1)
                raise RuntimeError("never")

            async with jobs:
                dag = Dag("never")
                dag.add(never)
                outcome = await jobs.wait(await jobs.submit(dag))
            return len(tries), outcome.state

        assert go(main()) == (3, "failed")

    def test_timeout_cancels_the_code(self, url):
        async def main():
            jobs = Jobs(url, **QUICK)
            told = []

            @jobs.task(timeout="100ms")
            async def slow():
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    told.append(True)
                    raise

            async with jobs:
                dag = Dag("slow")
                dag.add(slow)
                outcome = await jobs.wait(await jobs.submit(dag))
            return told, outcome

        told, outcome = go(main())
        assert told == [True]
        assert outcome.state == "failed"
        assert set(outcome.states.values()) == {"expired"}

    @pytest.mark.parametrize(
        "result", [object(), float("nan"), "\x00", b"bytes", {1: 2}, "x" * (1 << 20)]
    )
    def test_a_result_that_cannot_be_stored_fails_the_job(self, url, result):
        async def main():
            jobs = Jobs(url, **QUICK)

            @jobs.task()
            async def odd():
                return result

            async with jobs:
                dag = Dag("odd")
                dag.add(odd)
                return await jobs.wait(await jobs.submit(dag))

        assert go(main()).state == "failed"

    def test_retry_of_a_failed_run(self, url):
        async def main():
            jobs, double, total, _ = small(url)
            broken = True

            @jobs.task()
            async def mend():
                if broken:
                    raise OSError("broken")
                return 3

            async with jobs:
                dag = Dag("mend")
                first = dag.add(double, 2)
                dag.add(total, [first, dag.add(mend)]).options(name="sum")
                run = await jobs.submit(dag)
                before = await jobs.wait(run)
                broken = False
                assert await jobs.retry(run)
                return before, await jobs.wait(run)

        before, after = go(main())
        assert (before.state, after.state) == ("failed", "completed")
        assert after.results["sum"] == 7


class TestCancelling:
    def test_what_runs_in_this_process_hears_of_it_at_once(self, url):
        async def main():
            jobs = Jobs(url, **{**QUICK, "lease": "1h"})  # a heartbeat every 20 minutes
            running = asyncio.Event()

            @jobs.task()
            async def forever():
                running.set()
                await asyncio.Event().wait()

            async with jobs:
                dag = Dag("forever")
                dag.add(forever)
                run = await jobs.submit(dag)
                await running.wait()
                assert await jobs.cancel(run)
                return await jobs.wait(run)

        assert go(main()).state == "cancelled"

    def test_running_code_is_cancelled(self, url):
        async def main():
            jobs = Jobs(url, **QUICK)
            running, told = asyncio.Event(), asyncio.Event()

            @jobs.task()
            async def forever():
                running.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    told.set()

            @jobs.task()
            async def later(_):
                return 1

            async with jobs:
                dag = Dag("forever")
                dag.add(later, dag.add(forever))
                run = await jobs.submit(dag)
                await running.wait()
                assert await jobs.cancel(run)
                outcome = await jobs.wait(run)
                await told.wait()
                assert not await jobs.cancel(run)
                return outcome

        outcome = go(main())
        assert outcome.state == "cancelled"
        assert outcome.states == {"forever": "cancelled", "later": "skipped"}

    def test_threads_are_told(self, url):
        async def main():
            jobs = Jobs(url, **QUICK)
            running, told = threading.Event(), threading.Event()

            @jobs.task()
            def forever():
                running.set()
                while not current_job().cancelled:
                    threading.Event().wait(0.01)
                told.set()

            async with jobs:
                dag = Dag("forever")
                dag.add(forever)
                run = await jobs.submit(dag)
                await asyncio.to_thread(running.wait, 10)
                await jobs.cancel(run)
                outcome = await jobs.wait(run)
                return outcome.state, await asyncio.to_thread(told.wait, 10)

        assert go(main()) == ("cancelled", True)

    def test_what_waits_never_runs(self, url):
        async def main():
            jobs, double, *_ = small(url)
            dag = Dag("never")
            dag.add(double, 1)
            run = await jobs.submit(dag)
            assert await jobs.cancel(run)
            async with jobs:
                return await jobs.wait(run)

        assert go(main()).state == "cancelled"

    def test_pause_and_resume(self, url):
        async def main():
            jobs, double, *_ = small(url)
            dag = Dag("paused")
            dag.add(double, 1)
            run = await jobs.submit(dag)
            assert await jobs.pause(run)
            async with jobs:
                with pytest.raises(TimeoutError):
                    await jobs.wait(run, timeout="400ms")
                assert await jobs.resume(run)
                return await jobs.wait(run)

        assert go(main()).state == "completed"


class TestKeys:
    def test_the_same_key_is_the_same_run(self, url):
        async def main():
            jobs, double, *_ = small(url)
            async with jobs:
                runs = []
                for _ in range(3):
                    dag = Dag("keyed", key="invoice-4711")
                    dag.add(double, 4)
                    runs.append(await jobs.submit(dag))
                    await jobs.wait(runs[-1])
                return runs

        runs = go(main())
        assert len({run.id for run in runs}) == 1
        assert [run.new for run in runs] == [True, False, False]

    def test_tenants_do_not_share_keys(self, url):
        async def main():
            jobs, double, *_ = small(url)
            ids = set()
            for tenant in ("acme", "zeta"):
                dag = Dag("keyed", key="k", tenant=tenant)
                dag.add(double, 1)
                ids.add((await jobs.submit(dag)).id)
            await jobs.close()
            return ids

        assert len(go(main())) == 2


class TestMistakes:
    def test_one_who_gives_up_does_not_keep_others_waiting(self, url):
        async def main():
            jobs = Jobs(url, executors={"default": 1}, poll="20s", sweep="20s", lease="60s")
            begun, end = asyncio.Event(), asyncio.Event()

            @jobs.task()
            async def held():
                begun.set()
                await end.wait()

            async with jobs:
                run = await jobs.submit(_one(held))
                await begun.wait()
                others = [asyncio.create_task(jobs.wait(run)) for _ in range(2)]
                with pytest.raises(TimeoutError):
                    await jobs.wait(run, timeout=0.1)
                end.set()
                async with asyncio.timeout(10):
                    return [each.state for each in await asyncio.gather(*others)]

        assert go(main()) == ["completed"] * 2

    def test_unknown_runs(self, url):
        async def main():
            jobs, *_ = small(url)
            for run in ("99", 99, "x", "-1", "1.0", None):
                with pytest.raises(UnknownRun):
                    await jobs.wait(run, timeout="5s")
                with pytest.raises(UnknownRun):
                    await jobs.cancel(run)
            await jobs.close()

        go(main())

    def test_a_schedule_for_an_executor_that_nobody_declared_is_refused(self, url, caplog):
        """When it is added; and one that came to be so submits nothing, and says why."""

        async def main():
            jobs = Jobs(url, executors={"default": 1}, **QUICK)

            @jobs.task(executor="gpu")
            async def draw():
                pass

            schedule = schedule_of("nightly", "* * * * *", task="draw")
            with pytest.raises(ConfigError, match="'gpu', which nobody has declared"):
                await Operations(jobs).put_schedule(schedule)
            store = await jobs.store()
            assert await store.schedules() == []
            await store.put_schedule(schedule._replace(cursor=store.now() - 120))
            async with jobs:
                while "'nightly' does not fire: task 'draw'" not in caplog.text:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                return await store.runs()

        assert go(main()) == []

    def test_a_task_that_names_no_executor_runs_beside_those_declared(self, url):
        async def main():
            jobs, double, *_ = small(url, executors={"ocr": 1})
            async with jobs:
                return await jobs.wait(await jobs.submit(_one(double, 2)))

        assert go(main()).results == {"double": 4}

    def test_an_unknown_executor_is_refused_and_nothing_stored(self, url):
        async def main():
            jobs = Jobs(url, executors={"ocr": 2}, **QUICK)

            @jobs.task(executor="gpu")
            async def train():
                return 1

            dag = Dag("train")
            dag.add(train)
            with pytest.raises(ConfigError, match="gpu"):
                await jobs.submit(dag)
            store = await jobs.store()
            rows = await store.runs()
            await jobs.close()
            return rows

        assert go(main()) == []

    @pytest.mark.parametrize(
        "argument", [float("nan"), "\ud800", "a\x00b", 2**63, b"x", {1: 2}, {"a": {2, 3}}]
    )
    def test_arguments_that_cannot_be_stored(self, url, argument):
        async def main():
            jobs, double, *_ = small(url)
            with pytest.raises(PayloadError):
                dag = Dag("bad")
                dag.add(double, argument)
                await jobs.submit(dag)
            store = await jobs.store()
            rows = await store.runs()
            await jobs.close()
            return rows

        assert go(main()) == []

    @pytest.mark.parametrize(
        "settings",
        [
            {"lease": "-1s"},
            {"lease": "15"},
            {"poll": 0},
            {"max_crashes": 0},
            {"max_concurrent_dags": 0},
            {"planner": "os:system"},
            {"planner": "no.such.module:Planner"},
            {"planner": 5},
            {"tenants": {"a": {"weight": 0}}},
            {"tenants": {"a": {"wieght": 1}}},
            {"tenants": []},
            {"webhook": "ftp://x"},
            {"webhook": "http://"},
            {"webhook": "https:///path"},
            {"webhook": "http://["},
            {"executors": {"ocr": 0}},
            {"executors": {"ocr": "wroker"}},
            {"leese": "5s"},
        ],
    )
    def test_settings_are_checked_at_once(self, url, settings):
        with pytest.raises(FairleadError):
            Jobs(url, **settings)

    @pytest.mark.parametrize(
        "url", ["", "mysql://x", "sqlite://", "fairlead.db", None, "postgresql"]
    )
    def test_addresses_are_checked_at_once(self, url):
        with pytest.raises(FairleadError):
            Jobs(url)

    @pytest.mark.parametrize(
        ("option", "meant"),
        [("retires", "did you mean 'retries'"), ("foo", "there are name, executor, estimate")],
    )
    def test_an_option_that_a_task_does_not_have(self, url, option, meant):
        options: Any = {option: 1}
        with pytest.raises(ConfigError, match=f"a task has no option '{option}'; {meant}"):
            Jobs(url).task(**options)

    def test_two_tasks_of_one_name(self, url):
        jobs, *_ = small(url)
        with pytest.raises(ConfigError, match="double"):

            @jobs.task(name="double")
            async def other():
                return 0


class Backwards:
    def plan(self, jobs, slots, active_dags, recently_activated_dags=frozenset()):
        return list(reversed(jobs))


class TestPlanning:
    def test_a_user_planner_orders(self, url):
        assert go(self._order(url, Backwards())) == [3, 2, 1, 0]

    def test_a_user_planner_is_asked_at_once(self, url):
        async def main():
            jobs, double, *_ = small(url, planner=Backwards, poll="20s", lease="60s", sweep="20s")
            dag = Dag("chain")
            node = dag.add(double, 0)
            for _ in range(20):
                node = dag.add(double, node)
            async with jobs:
                return await jobs.wait(await jobs.submit(dag))

        assert go(main(), limit=15).state == "completed"

    def test_a_raising_planner_is_contained_and_named(self, url, caplog):
        class Broken:
            def plan(self, jobs, slots, active_dags, recently_activated_dags=frozenset()):
                raise LookupError("no idea")

        assert sorted(go(self._order(url, Broken()))) == [0, 1, 2, 3]
        assert "Broken" in caplog.text
        assert "no idea" in caplog.text

    def test_what_a_planner_leaves_out_runs_in_the_end(self, url, caplog):
        class Lazy:
            def plan(self, jobs, slots, active_dags, recently_activated_dags=frozenset()):
                return []

        assert sorted(go(self._order(url, Lazy(), max_withheld="300ms"))) == [0, 1, 2, 3]
        assert "Lazy" in caplog.text

    def test_invented_and_repeated_jobs_do_no_harm(self, url, caplog):
        class Inventive:
            def plan(self, jobs, slots, active_dags, recently_activated_dags=frozenset()):
                return [jobs[0]._replace(id="999.9"), *jobs, *jobs, None, "x"]

        assert sorted(go(self._order(url, Inventive()))) == [0, 1, 2, 3]
        assert "Inventive" in caplog.text

    async def _order(self, url, planner, **settings):
        jobs = Jobs(url, executors={"default": 1}, planner=planner, **{**QUICK, **settings})
        order = []

        @jobs.task()
        async def note(number):
            order.append(number)

        dag = Dag("ordered")
        for n in range(4):
            dag.add(note, n)
        run = await jobs.submit(dag)
        async with jobs:
            await jobs.wait(run)
        return order

    def test_what_an_ending_unblocks_competes_for_the_slot_it_frees(self, url):
        """Deeper first: with one slot each chain is run to its end before the next one begins."""

        async def main():
            jobs = Jobs(url, executors={"default": 1}, **QUICK)
            order, runs = [], []

            @jobs.task()
            async def note(name, *before):
                order.append(name)

            for chain in "abc":
                dag = Dag(chain)
                last: list[Any] = []
                for n in range(4):
                    last = [dag.add(note, f"{chain}{n}", *last)]
                runs.append(await jobs.submit(dag))
            async with jobs:
                for run in runs:
                    await jobs.wait(run)
            return order

        assert go(main()) == [f"{chain}{n}" for chain in "abc" for n in range(4)]

    def test_the_more_urgent_run_goes_first(self, url):
        async def main():
            jobs = Jobs(url, executors={"default": 1}, **QUICK)
            order, runs = [], []

            @jobs.task()
            async def note(name):
                order.append(name)

            now = datetime.now(UTC)
            for name, soft, hard in (
                ("none", None, None),
                ("upcoming", now + timedelta(hours=2), None),
                ("soft overdue", now - timedelta(hours=1), None),
                ("hard overdue", None, now - timedelta(minutes=1)),
                ("soon", now + timedelta(minutes=5), None),
            ):
                dag = Dag("sla", soft_sla=soft, hard_sla=hard)
                dag.add(note, name)
                runs.append(await jobs.submit(dag))
            async with jobs:
                for run in runs:
                    await jobs.wait(run)
            return order

        assert go(main()) == ["hard overdue", "soft overdue", "soon", "upcoming", "none"]

    def test_of_two_slas_one_is_changed_and_the_other_stays(self, url):
        async def main():
            jobs, double, *_ = small(url)
            dag = Dag("x", soft_sla="1h", hard_sla="2h")
            dag.add(double, 1)
            run = await jobs.submit(dag)
            store = await jobs.store()
            before = await store.run(int(run.id))
            assert await jobs.set_sla(run, soft_sla="5m")
            after = await store.run(int(run.id))
            assert after.hard == before.hard
            assert after.soft < before.soft
            assert await jobs.set_sla(run.id, hard_sla=None, node=0)
            (job,) = await store.jobs(int(run.id))
            assert (job.soft, job.hard) == (after.soft, None)
            with pytest.raises(ConfigError, match="soft_sla would be"):
                await jobs.set_sla(run, soft_sla="3h")
            with pytest.raises(ConfigError, match="which SLA"):
                await jobs.set_sla(run)
            with pytest.raises(UnknownRun):
                await jobs.set_sla("77", soft_sla="1h")
            with pytest.raises(UnknownRun, match=f"run {run.id} has no job {run.id}.9"):
                await jobs.set_sla(run, soft_sla="1h", node=9)
            await jobs.close()

        go(main())

    def test_the_slas_of_an_ended_run_are_history(self, url):
        async def main():
            jobs, double, *_ = small(url)
            dag = Dag("x", soft_sla="1h", hard_sla="2h")
            dag.add(double, 1)
            run = await jobs.submit(dag)
            assert await jobs.cancel(run)
            store = await jobs.store()
            before = await store.run(int(run.id)), await store.jobs(int(run.id))
            for node in (None, 0):
                with pytest.raises(ConfigError, match=r"has ended \(cancelled\): its SLAs are"):
                    await jobs.set_sla(run, soft_sla="5m", node=node)
            assert (await store.run(int(run.id)), await store.jobs(int(run.id))) == before
            await jobs.close()

        go(main())


class TestEvents:
    def test_a_missed_sla_is_told_once_and_ends_are_told(self, url):
        async def main():
            jobs = Jobs(url, **QUICK)
            events = []
            done = asyncio.Event()

            @jobs.on_event
            async def note(event):
                events.append(event)
                if event["event"] == "run.completed":
                    done.set()

            @jobs.task()
            async def work():
                await asyncio.sleep(0.6)

            async with jobs:
                dag = Dag("late", soft_sla=datetime.now(UTC) - timedelta(seconds=1), hard_sla="1h")
                dag.add(work)
                run = await jobs.submit(dag)
                await jobs.wait(run)
                await done.wait()
                return run, events

        run, events = go(main())
        assert [event["event"] for event in events] == ["sla.soft_missed", "run.completed"]
        assert {event["run"] for event in events} == {run.id}

    def test_a_hook_that_hangs_stops_nothing_else(self, url, monkeypatch):
        monkeypatch.setattr(announcing, "ANSWER_LIMIT", 1000.0)

        async def main():
            jobs, double, *_ = small(url)
            entered, release = asyncio.Event(), asyncio.Event()

            @jobs.on_event
            async def hang(_):
                entered.set()
                await release.wait()

            async with jobs:
                late = Dag("late", soft_sla=datetime.now(UTC) - timedelta(seconds=1))
                late.add(double, 1)
                await jobs.submit(late)
                await entered.wait()
                outcome = await jobs.wait(await jobs.submit(_one(double, 2)))
                release.set()
                return outcome

        assert go(main()).state == "completed"

    def test_an_end_is_told_without_waiting_for_a_sweep(self, url):
        async def main():
            jobs, double, *_ = small(url, sweep="1h")
            told = asyncio.Event()
            jobs.on_event(lambda _: told.set())
            async with jobs:
                await jobs.submit(_one(double, 1))
                await told.wait()

        go(main())

    def test_ends_are_told_before_the_service_has_stopped(self, url):
        """Even the end of what ran on after it had let another lead."""

        async def main():
            jobs, *_ = small(url, sweep="1h")
            begun, release, events = asyncio.Event(), asyncio.Event(), []
            jobs.on_event(lambda event: events.append(event["event"]))

            @jobs.task()
            async def held():
                begun.set()
                await release.wait()

            await jobs.start()
            await jobs.submit(_one(held))
            await begun.wait()
            stopping = asyncio.create_task(jobs.stop())
            store = await jobs.store()
            while await store.leader() is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            release.set()
            await stopping
            assert await store.leader() is None
            await jobs.close()
            return events

        assert go(main()) == ["run.completed"]

    def test_a_service_stops_though_a_hook_hangs_and_the_next_one_tells(self, url, monkeypatch):
        monkeypatch.setattr(announcing, "LAST_WORDS", 0.1)

        async def main():
            jobs, double, *_ = small(url)
            entered, told = asyncio.Event(), asyncio.Event()

            @jobs.on_event
            async def hang(_):
                entered.set()
                await asyncio.Event().wait()

            async with jobs:
                await jobs.submit(_one(double, 1))
                await entered.wait()
            other, *_ = small(url)
            other.on_event(lambda _: told.set())
            async with other:
                await told.wait()

        monkeypatch.setattr(announcing, "ANSWER_LIMIT", 1000.0)
        go(main())

    @pytest.mark.parametrize("how", ["stop", "close"])
    def test_a_hook_may_end_the_service(self, how, url):
        async def main():
            jobs, double, *_ = small(url)
            over = asyncio.Event()

            @jobs.on_event
            async def end(_):
                await getattr(jobs, how)()
                over.set()

            await jobs.start()
            await jobs.submit(_one(double, 1))
            await over.wait()
            assert jobs.scheduler is None
            await jobs.close()

        go(main())

    def test_a_run_that_ends_again_while_its_end_is_told_is_told_again(self, url):
        async def main():
            jobs, *_ = small(url)
            entered, release, events = asyncio.Event(), asyncio.Event(), []
            heard, tries = asyncio.Event(), 0

            @jobs.on_event
            async def hear(event):
                events.append(event["event"])
                entered.set()
                await release.wait()
                if len(events) == 2:
                    heard.set()

            @jobs.task()
            async def flaky():
                nonlocal tries
                tries += 1
                if tries == 1:
                    raise ValueError("not yet")

            async with jobs:
                run = await jobs.submit(_one(flaky))
                await entered.wait()
                assert await jobs.retry(run)
                assert (await jobs.wait(run)).state == "completed"
                release.set()
                await heard.wait()
            return events

        assert go(main()) == ["run.failed", "run.completed"]

    @pytest.mark.parametrize("most", [1, 1000])
    def test_a_webhook_that_is_down_keeps_no_end_from_hooks(self, most, url, monkeypatch):
        """Each hears of each end once; with more than are kept in mind, the rest when the webhook is back."""
        monkeypatch.setattr(announcing, "AT_ONCE", 1)
        monkeypatch.setattr(announcing, "MOST_HEARD", most)
        up, tried, posted, heard = asyncio.Event(), asyncio.Semaphore(0), [], []
        all_posted, all_heard = asyncio.Event(), asyncio.Event()

        async def post(announcer, event):
            if up.is_set():
                posted.append(event["run"])
                if len(posted) == 3:
                    all_posted.set()
            tried.release()
            announcer._complained = not up.is_set()
            return up.is_set()

        def hear(event):
            heard.append(event["run"])
            if len(heard) == 3:
                all_heard.set()

        async def main():
            jobs, double, *_ = small(url, webhook="http://127.0.0.1:1/")
            jobs.on_event(hear)
            async with jobs:
                runs = [await jobs.submit(_one(double, n)) for n in range(3)]
                for run in runs:
                    await jobs.wait(run)
                if most > 3:
                    await all_heard.wait()
                for _ in range(5):
                    await tried.acquire()
                up.set()
                await all_posted.wait()
                await all_heard.wait()
            return [run.id for run in runs]

        monkeypatch.setattr(announcing.Announcer, "_post", post)
        runs = go(main())
        assert sorted(heard, key=int) == sorted(posted, key=int) == runs

    def test_of_two_services_one_tells(self, url):
        async def main():
            told: list[str] = []
            first, double, *_ = small(url, executors={"default": 1}, lease="30s")
            second, *_ = small(url, executors={"default": 1}, lease="30s")
            for jobs in (first, second):
                jobs.on_event(lambda event: told.append(event["run"]))
            async with first, second:
                runs = [await first.submit(_one(double, n)) for n in range(20)]
                for run in runs:
                    await second.wait(run)
            return sorted(told, key=int), [run.id for run in runs]

        told, runs = go(main())
        assert told == runs

    def test_more_missed_slas_than_are_kept_are_not_told(self, caplog):
        async def main():
            announcer = announcing.Announcer(None)
            events: list[Any] = []
            announcer.hooks.append(lambda event: events.append(event["run"]))
            many = range(announcing.MOST_MISSED + 2)
            announcer.missed([Missed(dag, None, "soft", 0.0) for dag in many])
            await announcer.tell_misses()
            return events

        events = go(main())
        assert events == [str(dag) for dag in range(announcing.MOST_MISSED)]
        assert "2 missed SLAs are told to nobody" in caplog.text

    @pytest.mark.parametrize(
        "webhook", ["http://me:s3cr3t@127.0.0.1:1/T00/s3cr3t", "http://me:s3cr3t/x@127.0.0.1:1/"]
    )
    def test_the_address_of_a_webhook_is_a_secret(self, webhook, caplog):
        async def main():
            announcer = announcing.Announcer(webhook)
            try:
                return await announcer.tell({"event": "run.ended"})
            finally:
                await announcer.close()

        assert not go(main())
        assert "the webhook is tried again" in caplog.text
        assert "s3cr3t" not in caplog.text


class TestOutages:
    """What waits for a run waits through a database that is away for a while."""

    @pytest.mark.parametrize(
        ("serving", "lost"),
        [(True, "run"), (True, "jobs"), (False, "run"), (False, "jobs"), (False, "wait_for_news")],
    )
    def test_waiting_goes_on(self, url, monkeypatch, serving, lost):
        async def main():
            jobs, *_ = small(url)
            waiter = jobs if serving else small(url)[0]
            begun, looked, release = asyncio.Event(), asyncio.Event(), asyncio.Event()
            failures = 1

            @jobs.task()
            async def held():
                begun.set()
                await release.wait()

            async with jobs:
                run = await jobs.submit(_one(held))
                await begun.wait()
                store = await waiter.store()
                look, real = store.run, getattr(store, lost)

                async def see(dag):
                    found = await look(dag)
                    looked.set()
                    return found

                async def away(*args):
                    nonlocal failures
                    if looked.is_set() and failures:
                        failures -= 1
                        raise StoreUnavailable("away")
                    return await (see if lost == "run" else real)(*args)

                monkeypatch.setattr(store, "run", see)
                monkeypatch.setattr(store, lost, away)
                waiting = asyncio.create_task(waiter.wait(run))
                await looked.wait()
                release.set()
                outcome = await waiting
            await waiter.close()
            return outcome.state, failures

        assert go(main()) == ("completed", 0)

    def test_the_first_look_says_what_is_wrong(self, url, monkeypatch):
        async def main():
            jobs, double, *_ = small(url)
            run = await jobs.submit(_one(double, 1))

            async def away(_):
                raise StoreUnavailable("away")

            monkeypatch.setattr(await jobs.store(), "run", away)
            with pytest.raises(StoreUnavailable, match="away"):
                await jobs.wait(run)
            await jobs.close()

        go(main())


class TestTwoSchedulers:
    def test_both_work_and_one_takes_over(self, url):
        """Two serving processes' worth of Jobs on one database; when the leader closes, the other goes on."""

        async def main():
            first, double, *_ = small(url, executors={"default": 2})
            second, *_ = small(url, executors={"default": 2})
            async with second:
                async with first:
                    runs = [await first.submit(_one(double, n)) for n in range(10)]
                    for run in runs:
                        await first.wait(run)
                last = [await second.submit(_one(double, n)) for n in range(10)]
                return [(await second.wait(run)).state for run in last]

        assert go(main()) == ["completed"] * 10


def _one(task, *args):
    dag = Dag("one")
    dag.add(task, *args)
    return dag


class TestEstimates:
    def test_how_long_a_task_takes_is_learned(self, url):
        async def main():
            jobs, double, *_ = small(url)
            async with jobs:
                await jobs.wait(await jobs.submit(_one(double, 1)))
                store = await jobs.store()
                async with asyncio.timeout(10):
                    while "double" not in (learned := await store.estimates()):  # noqa: ASYNC110
                        await asyncio.sleep(0.05)  # the next sweep writes it down
                return learned["double"]

        mean, count = go(main())
        assert 0 < mean < 5
        assert count == 1

    def test_what_was_just_seen_counts_at_once(self, url):
        order = []

        async def main():
            jobs = Jobs(url, executors={"default": 1}, planner="SJFSExecutionPlanner", sweep="1h")

            @jobs.task()
            async def long():
                order.append("long")
                await asyncio.sleep(0.1)

            @jobs.task()
            async def short():
                order.append("short")

            async with jobs:
                for _ in range(2):
                    dag = Dag("both")
                    dag.add(long)
                    dag.add(short)
                    await jobs.wait(await jobs.submit(dag))

        go(main())
        assert order == ["long", "short", "short", "long"]

    def test_a_standby_tells_what_it_learned(self, url):
        async def main():
            leader: Any = Jobs(url, executors={"a": 1}, **QUICK)
            standby: Any = Jobs(url, executors={"b": 1}, **QUICK)

            async def tell(number):
                return number

            for jobs in (leader, standby):
                jobs.task(executor="b")(tell)
            async with leader:
                while not leader.scheduler.leading:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                async with standby:
                    await standby.wait(await standby.submit(_one(tell, 1)))
                    store = await leader.store()
                    async with asyncio.timeout(10):
                        while "tell" not in await store.estimates():  # noqa: ASYNC110
                            await asyncio.sleep(0.05)
                    assert leader.scheduler.leading
                    assert not standby.scheduler.estimates.fresh

        go(main())


class TestTakingOver:
    def test_a_job_that_ends_while_everything_is_read_anew_holds_no_slot(self, url):
        """The database was away; what ends while the leader reads everything is not believed to run for ever."""

        async def main():
            jobs = Jobs(url, executors={"default": 1}, **QUICK)
            running, release = asyncio.Event(), asyncio.Event()

            @jobs.task()
            async def first():
                running.set()
                await release.wait()

            @jobs.task()
            async def second(_):
                return "ran"

            async with jobs:
                store: Any = await jobs.store()
                dag = Dag("pair")
                dag.add(second, dag.add(first)).options(name="second")
                run = await jobs.submit(dag)
                await running.wait()
                written = asyncio.Event()
                plain_ready, plain_finish, plain_workers = store.ready, store.finish, store.workers

                async def ready(after, limit):
                    release.set()
                    await written.wait()
                    return await plain_ready(after, limit)

                async def finish(process, endings):
                    finished = await plain_finish(process, endings)
                    written.set()
                    return finished

                async def workers():
                    store.workers = plain_workers
                    raise StoreUnavailable("it went away for a moment")

                store.ready, store.finish, store.workers = ready, finish, workers
                return (await jobs.wait(run)).results["second"]

        assert go(main()) == "ran"

    def test_what_cannot_be_heard_of_an_ending_is_read_anew(self, url, monkeypatch, caplog):
        """The store has the ending: who did not hear of it must not believe for ever that the job runs."""

        async def main():
            jobs, double, *_ = small(url, executors={"default": 1})
            async with jobs:
                await jobs.wait(await jobs.submit(one(double, 0)))
                monkeypatch.setattr(jobs.scheduler, "_hear", deaf)
                await jobs.submit(one(double, 1))
                await heard.wait()
                monkeypatch.undo()
                return await jobs.wait(await jobs.submit(one(double, 2)))

        heard = asyncio.Event()

        def deaf(frontier, finished):
            heard.set()
            raise RuntimeError("deaf")

        def one(task, number):
            dag = Dag("one")
            dag.add(task, number)
            return dag

        assert go(main()).state == "completed"
        assert "begins anew" in caplog.text

    def test_every_page_of_what_is_ready_is_read(self, url, monkeypatch):
        monkeypatch.setattr(reading, "PAGE", 3)

        async def main(many):
            jobs, double, *_ = small(url)
            dag = Dag("wide")
            for number in range(many):
                dag.add(double, number)
            run = await jobs.submit(dag)
            async with jobs:
                return len((await jobs.wait(run)).results)

        assert [go(main(many)) for many in (2, 3, 7, 9)] == [2, 3, 7, 9]

    def test_who_loses_the_lead_while_reading_stands_by(self, url, monkeypatch, caplog):
        """Reading took so long that another process leads: what was read is thrown away, and nothing failed."""
        monkeypatch.setattr(reading, "PAGE", 1)

        async def main():
            jobs, double, *_ = small(url)
            store: Any = await jobs.store()
            run = await jobs.submit(_one(double, 1))
            plain_lead, plain_ready = store.lead, store.ready
            led: list[int | None] = []

            async def ready(after, limit):
                if not led:
                    store.lead = lead
                    jobs.scheduler._renew_at = 0.0  # it is time to renew the lease
                return await plain_ready(after, limit)

            async def lead(process, lease):
                led.append(None)
                store.lead = plain_lead
                return

            store.ready = ready
            async with jobs:
                outcome = await jobs.wait(run)
                return outcome.state, len(led), jobs.scheduler.counts.takeovers

        with caplog.at_level(logging.WARNING, "fairlead.jobs"):
            assert go(main()) == ("completed", 1, 2)
        assert "another process leads now" in caplog.text
        assert "the scheduler failed" not in caplog.text
