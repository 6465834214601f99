"""Crews: endings written, calls contained, and every way in and out."""

import asyncio
import contextvars
import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fairlead.errors import Misuse, StoreError, StoreUnavailable
from fairlead.jobs.context import current_job
from fairlead.jobs.executors.base import Lost
from fairlead.jobs.executors.local import MOST_DRIVERS
from tests.jobs import calls
from tests.jobs.desk import Desk, crew_of, tasks_of
from tests.jobs.executor_contract import gone, seen
from tests.jobs.test_heartbeat import until


async def nothing() -> None:
    """The least a job can do."""


async def nap(seconds: float = 0.0) -> str:
    await asyncio.sleep(seconds)
    return "rested"


TASKS = tasks_of(
    nothing, nap, *[fn for name, fn in vars(calls).items() if name[:6] in ("plain_", "async_")]
)


def leftovers() -> set[Any]:
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


# Writing endings


def test_an_ending_is_written_at_once_and_many_go_together():
    async def scene():
        desk = Desk()
        crew = crew_of(desk, TASKS, 8)
        await crew.start()
        alone = desk.claim(crew.workers["x"], "nothing")
        crew.dispatch([alone])
        await desk.ended(alone)
        assert desk.batches == [1]
        many = [desk.claim(crew.workers["x"], "nothing") for _ in range(3000)]
        crew.dispatch(many)
        await desk.ended(*many)
        assert max(desk.batches) > 20
        assert max(desk.batches) <= 1000
        await crew.stop()

    asyncio.run(scene())


def test_one_write_is_under_way_at_a_time():
    async def scene():
        desk = Desk()
        flying = most = 0

        async def finish(process, endings):
            nonlocal flying, most
            flying += 1
            most = max(most, flying)
            await asyncio.sleep(0.002)
            finished = await Desk.finish(desk, process, endings)
            flying -= 1
            return finished

        desk.finish = finish  # type: ignore[method-assign]
        crew = crew_of(desk, TASKS, 4)
        await crew.start()
        claims = [desk.claim(crew.workers["x"], "nap", 0.001) for _ in range(100)]
        crew.dispatch(claims)
        await desk.ended(*claims)
        await crew.stop()
        assert most == 1

    asyncio.run(scene())


def test_the_next_write_is_under_way_while_the_last_is_heard():
    async def scene():
        desk = Desk()
        told = []
        sent, gate = asyncio.Event(), asyncio.Event()

        async def heard(endings, finished):
            told.append(("heard", len(endings)))

        real = desk.finish

        async def finish(process, endings):
            told.append(("sent", len(endings)))
            sent.set()
            await gate.wait()
            return await real(process, endings)

        desk.finish = finish  # type: ignore[method-assign]
        crew = crew_of(desk, TASKS, 4, heard=heard)
        await crew.start()
        claims = [desk.claim(crew.workers["x"], "nap", 0.0) for _ in range(3)]
        crew.dispatch(claims[:1])
        await sent.wait()
        crew.dispatch(claims[1:])
        await until(lambda: len(crew._flusher) == 3)  # one flies, two wait
        gate.set()
        await desk.ended(*claims)
        await crew.drain(1.0)
        assert told == [("sent", 1), ("sent", 2), ("heard", 1), ("heard", 2)]
        await crew.stop()

    asyncio.run(scene())


def test_an_error_in_hearing_holds_up_no_ending(caplog):
    async def scene():
        desk = Desk()

        async def heard(endings, finished):
            raise RuntimeError("deaf")

        crew = crew_of(desk, TASKS, 4, heard=heard)
        await crew.start()
        claims = [desk.claim(crew.workers["x"], "nap", 0.0) for _ in range(3)]
        for claim in claims:
            crew.dispatch([claim])
            await desk.ended(claim)
        await crew.stop()
        assert len(desk.endings) == 3
        assert not desk.refused

    asyncio.run(scene())
    assert "could not be heard" in caplog.text


def test_endings_wait_for_a_store_that_is_away():
    async def scene():
        desk = Desk()
        failures = 0

        def fail(endings):
            nonlocal failures
            failures += 1
            if failures < 4:
                raise StoreUnavailable("restarting")

        desk.on_finish = fail
        crew = crew_of(desk, TASKS, lease=10.0)
        await crew.start()
        claims = [desk.claim(crew.workers["x"], "plain_give", one) for one in range(5)]
        crew.dispatch(claims)
        ends = await desk.ended(*claims)
        assert {ending.state for ending in ends} == {"completed"}
        assert failures >= 4
        await crew.stop()

    asyncio.run(scene())


def test_an_ending_that_no_store_takes_holds_up_nobody_and_leaves_no_job_stuck(caplog):
    async def scene():
        desk = Desk()

        def choke(endings):
            if any("poison" in (ending.result or "") for ending in endings):
                raise StoreError("invalid input syntax")

        desk.on_finish = choke
        crew = crew_of(desk, TASKS, lease=10.0)
        await crew.start()
        claims = [desk.claim(crew.workers["x"], "plain_give", one) for one in ("a", "poison", "b")]
        crew.dispatch(claims)
        ends = await desk.ended(*claims)
        assert [ending.state for ending in ends] == ["completed", "failed", "completed"]
        assert "could not be stored" in (ends[1].error or "")
        await crew.stop()

    asyncio.run(scene())
    assert any("cannot be stored" in one for one in caplog.messages)


# Calls on the loop


def test_calls_that_never_wait_make_no_task_each():
    async def scene():
        desk = Desk()
        crew = crew_of(desk, TASKS, 100)
        await crew.start()
        made = 0
        loop = asyncio.get_running_loop()

        def make(loop, coroutine, **more):
            nonlocal made
            made += 1
            return asyncio.Task(coroutine, loop=loop, **more)

        loop.set_task_factory(make)
        claims = [desk.claim(crew.workers["x"], "nothing") for _ in range(1000)]
        crew.dispatch(claims)
        await desk.ended(*claims)
        assert made < 100
        await crew.stop()

    asyncio.run(scene())


def test_calls_that_wait_begin_together():
    async def scene():
        desk = Desk()
        slots = 4 * MOST_DRIVERS
        crew = crew_of(desk, TASKS, slots)
        await crew.start()
        claims = [desk.claim(crew.workers["x"], "nap", 0.2) for _ in range(slots)]
        began = time.monotonic()
        crew.dispatch(claims)
        await desk.ended(*claims)
        assert time.monotonic() - began < 5
        await crew.stop()

    asyncio.run(scene())


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="clean")


async def leaves_a_mark(wait: bool) -> str:
    before = variable.get()
    variable.set("dirty")
    if wait:
        await asyncio.sleep(0)
    job = current_job()
    async with asyncio.timeout(10):  # needs the task it will be cancelled by
        async with asyncio.TaskGroup() as group:
            inner = group.create_task(_asks())
    assert inner.result() == job.id
    return before


async def _asks() -> str:
    return current_job().id


def test_what_a_call_does_to_its_context_stays_there():
    async def scene():
        desk = Desk()
        crew = crew_of(desk, tasks_of(leaves_a_mark), 4)
        await crew.start()
        claims = [
            desk.claim(crew.workers["x"], "leaves_a_mark", wait)
            for wait in (False, True, False, True, True)
        ]
        crew.dispatch(claims)
        ends = await desk.ended(*claims)
        assert [json.loads(ending.result or "null") for ending in ends] == ["clean"] * 5
        with pytest.raises(Misuse, match="outside a job"):
            current_job()
        await crew.stop()

    asyncio.run(scene())


async def own_timeout() -> str:
    try:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)
    except TimeoutError:
        return "in time"
    return "late"


async def awaits_something_cancelled() -> None:
    inner = asyncio.ensure_future(asyncio.sleep(60))
    asyncio.get_running_loop().call_soon(inner.cancel)
    await inner


async def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(1)


def test_a_call_may_cancel_whatever_is_its_own():
    async def scene():
        desk = Desk()
        crew = crew_of(desk, tasks_of(own_timeout, awaits_something_cancelled, cancels_itself, nap))
        await crew.start()
        names = ["own_timeout", "awaits_something_cancelled", "cancels_itself", "nap"]
        claims = [desk.claim(crew.workers["x"], name) for name in names]
        crew.dispatch(claims)
        ends = await desk.ended(*claims)
        assert [ending.state for ending in ends[:2]] == ["completed", "failed"]
        assert ends[3].state == "completed"
        assert (ends[2].state, ends[2].attempts) == ("failed", 1)
        await crew.stop()

    asyncio.run(scene())


async def finishes_all_the_same() -> str:
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        return "finished"
    return "late"


def test_what_is_finished_though_it_was_told_to_stop_counts_if_it_was_only_to_be_handed_back():
    async def scene():
        desk = Desk()
        crew = crew_of(desk, tasks_of(finishes_all_the_same), lease=10.0)
        await crew.start()
        worker = crew.workers["x"]
        late = desk.claim(worker, "finishes_all_the_same", timeout=0.05)
        unwanted, kept = (desk.claim(worker, "finishes_all_the_same") for _ in range(2))
        crew.dispatch([late, unwanted, kept])
        await asyncio.sleep(0.01)
        crew._cancel([(unwanted.dag, unwanted.node, unwanted.fence)])
        ends = await desk.ended(late, unwanted)
        assert [ending.state for ending in ends] == ["expired", "cancelled"]
        await crew.drain(0.0)
        (ending,) = await desk.ended(kept)
        assert (ending.state, ending.result) == ("completed", '"finished"')
        await crew.stop()

    asyncio.run(scene())


def test_a_call_that_will_not_be_cancelled_is_left_behind_if_its_task_says_so(tmp_path, caplog):
    async def scene():
        desk = Desk()
        tasks = TASKS | {"async_stubborn": TASKS["async_stubborn"]._replace(abandon=True)}
        crew = crew_of(desk, tasks, 1, patience=0.6, lease=10.0)
        await crew.start()
        claimed = desk.claim(crew.workers["x"], "async_stubborn", str(tmp_path), timeout=0.1)
        crew.dispatch([claimed])
        (ending,) = await desk.ended(claimed)
        assert ending.state == "expired"
        assert crew.abandoned == 1
        following = desk.claim(crew.workers["x"], "nap")
        crew.dispatch([following])
        assert (await desk.ended(following))[0].state == "completed"
        (tmp_path / "enough").touch()
        await seen(tmp_path / "ended")
        await crew.stop()
        assert not leftovers()
        assert desk.ending_of(claimed) == ending

    asyncio.run(scene())
    assert any("left behind" in one for one in caplog.messages)


@pytest.mark.parametrize("kind", ["local", "threads"])
def test_a_thread_that_was_told_to_stop_keeps_its_slot_until_it_has(kind):
    told, tidy = threading.Event(), threading.Event()

    def polite() -> None:
        while not current_job().cancelled:
            time.sleep(0.001)
        told.set()
        tidy.wait(60)

    async def scene():
        desk = Desk()
        value = {"kind": kind, "slots": 1}
        crew = crew_of(desk, tasks_of(polite, calls.plain_give), value, patience=60.0, lease=10.0)
        await crew.start()
        late = desk.claim(crew.workers["x"], "polite", timeout=0.01)
        following = desk.claim(crew.workers["x"], "plain_give", 1)
        crew.dispatch([late, following])
        await until(told.is_set)
        assert len(crew._calls) == 2
        tidy.set()
        ends = await desk.ended(late, following)
        assert [ending.state for ending in ends] == ["expired", "completed"]
        assert crew.abandoned == 0
        await crew.stop()

    asyncio.run(scene())


def test_threads_that_are_abandoned_are_counted_and_do_not_keep_the_crew(tmp_path, caplog):
    hold = threading.Event()

    runs = threading.Event()

    def deaf() -> None:
        runs.set()
        hold.wait(60)

    async def scene():
        desk = Desk()
        tasks = tasks_of(deaf, nap, calls.plain_give)
        tasks["deaf"] = tasks["deaf"]._replace(abandon=True)
        crew = crew_of(desk, tasks, 2, lease=10.0, patience=0.5)
        await crew.start()
        claims = [desk.claim(crew.workers["x"], "deaf", timeout=0.5) for _ in range(4)]
        crew.dispatch(claims)
        ends = await desk.ended(*claims)
        assert {ending.state for ending in ends} == {"expired"}
        runner: Any = crew._lanes["x"].runner
        assert runner.abandoned == crew.abandoned == 4
        hold.set()
        await until(lambda: not runner.abandoned)
        more = [desk.claim(crew.workers["x"], "plain_give", one) for one in range(4)]
        crew.dispatch(more)
        assert {ending.state for ending in await desk.ended(*more)} == {"completed"}
        hold.clear()
        runs.clear()
        crew.dispatch([desk.claim(crew.workers["x"], "deaf")])
        await until(runs.is_set)
        began = time.monotonic()
        await crew.stop()
        assert time.monotonic() - began < 8
        hold.set()

    asyncio.run(scene())
    assert any("threads that still run a job" in one for one in caplog.messages)


# Taking


def test_what_is_claimed_elsewhere_is_fetched_at_a_hint_or_by_and_by():
    async def scene():
        desk = Desk()
        crew = crew_of(desk, TASKS, poll=0.1)
        await crew.start()
        first, second = (desk.claim(crew.workers["x"], "nap") for _ in range(2))
        desk.waiting.append(first)
        await desk.ended(first)
        desk.waiting.append(second)
        crew.hint()
        await desk.ended(second)
        await crew.stop()

        slow = crew_of(desk, TASKS, poll=60.0)
        await slow.start()
        await asyncio.sleep(0.01)
        third = desk.claim(slow.workers["x"], "nap")
        desk.waiting.append(third)
        slow.hint()
        await desk.ended(third, timeout=10)
        await slow.stop()

    asyncio.run(scene())


def test_a_store_that_is_away_is_asked_again():
    async def scene():
        desk = Desk()
        crew = crew_of(desk, TASKS, poll=0.02, lease=20.0)
        await crew.start()
        desk.away = True
        await asyncio.sleep(0.1)
        claimed = desk.claim(crew.workers["x"], "nap")
        desk.waiting.append(claimed)
        desk.away = False
        await desk.ended(claimed)
        await crew.stop()

    asyncio.run(scene())


def test_a_claim_runs_once_and_a_strangers_not_at_all():
    async def scene():
        desk = Desk()
        runs = 0

        async def count() -> None:
            nonlocal runs
            runs += 1
            await asyncio.sleep(0.01)

        crew = crew_of(desk, tasks_of(count))
        await crew.start()
        claimed = desk.claim(crew.workers["x"], "count")
        strange = desk.claim(crew.workers["x"] + 1, "count")
        crew.dispatch([claimed, claimed, strange])
        crew.dispatch([claimed])
        await desk.ended(claimed)
        await crew.stop()
        assert desk.ending_of(claimed) is not None
        assert sum(desk.batches) == runs == 1
        assert desk.ending_of(strange) is None

    asyncio.run(scene())


def test_an_executor_that_is_served_elsewhere_has_no_worker_here():
    async def scene():
        desk = Desk()
        crew = crew_of(desk, TASKS, "worker")
        await crew.start()
        assert crew.workers == {}
        assert not desk.workers
        await crew.stop()

    asyncio.run(scene())


# In and out


def test_a_crew_starts_once_and_stops_as_often_as_one_likes():
    async def scene():
        unstarted = crew_of(Desk(), TASKS)
        await unstarted.stop()
        desk = Desk()
        crew = crew_of(desk, TASKS)
        await crew.start()
        with pytest.raises(Misuse):
            await crew.start()
        await asyncio.gather(crew.stop(), crew.stop())
        await crew.stop()
        assert not desk.workers
        assert not leftovers()

    asyncio.run(scene())


def test_a_start_that_fails_leaves_nothing():
    async def scene():
        before = set(threading.enumerate())
        desk = Desk()
        desk.away = True
        crew = crew_of(desk, TASKS)
        with pytest.raises(StoreUnavailable):
            await crew.start()
        assert not leftovers()
        assert set(threading.enumerate()) <= before

    asyncio.run(scene())


@pytest.mark.parametrize("verb", ["start", "drain", "stop"])
def test_a_crew_may_be_cancelled_at_every_await(verb, tmp_path):
    """And then be stopped: nothing is left, and every claim has one ending at most."""

    async def once(step: int) -> bool:
        before = set(threading.enumerate())
        desk = Desk()
        crew = crew_of(desk, TASKS, {"kind": "local", "slots": 2}, lease=10.0)
        claims = []
        if verb != "start":
            await crew.start()
            claims = [desk.claim(crew.workers["x"], "nap", 60.0) for _ in range(3)]
            crew.dispatch(claims)
        work: Any = {"start": crew.start, "drain": lambda: crew.drain(0.0), "stop": crew.stop}[verb]
        task = asyncio.ensure_future(work())
        for _ in range(step):
            await asyncio.sleep(0)
        finished = bool(task.done())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await crew.stop()
        for claimed in claims:
            ending = desk.ending_of(claimed)
            assert ending is not None
            assert ending.state == "retry"
        assert not desk.workers
        assert not leftovers()
        assert set(threading.enumerate()) <= before
        return finished

    async def scene():
        step = 0
        while not await once(step) and step < 60:
            step += 1
        assert step >= 2

    asyncio.run(scene())


def test_a_drain_takes_no_longer_than_its_grace_and_less_in_a_hurry():
    async def scene():
        desk = Desk()
        crew = crew_of(desk, TASKS, lease=10.0)
        await crew.start()
        claimed = desk.claim(crew.workers["x"], "nap", 60.0)
        crew.dispatch([claimed])
        draining = asyncio.ensure_future(crew.drain(60.0))
        await until(lambda: desk.drained)
        assert desk.ending_of(claimed) is None
        crew.hurry()
        await draining
        assert (await desk.ended(claimed))[0].state == "retry"
        await crew.stop()

    asyncio.run(scene())


def test_a_crew_stops_though_the_store_is_away(caplog):
    async def scene():
        desk = Desk()
        crew = crew_of(desk, TASKS, lease=1.0)
        await crew.start()
        crew.dispatch([desk.claim(crew.workers["x"], "nap", 60.0)])
        await asyncio.sleep(0.01)
        desk.away = True
        began = time.monotonic()
        await crew.stop()
        assert time.monotonic() - began < 10
        assert not leftovers()

    asyncio.run(scene())
    assert any("could not be written" in one for one in caplog.messages)


def test_a_loop_that_is_closed_under_a_crew_takes_its_calls_with_it(tmp_path):
    """As when a program ends without stopping: nothing hangs, nothing is said to have completed."""
    desk = Desk()
    claims = []

    async def scene():
        crew = crew_of(desk, TASKS, lease=2.0)
        await crew.start()
        claims.append(desk.claim(crew.workers["x"], "async_hang", str(tmp_path)))
        crew.dispatch(claims)
        await seen(tmp_path / "runs")

    before = set(threading.enumerate())
    asyncio.run(scene())
    assert (tmp_path / "told").exists()
    ending = desk.ending_of(claims[0])
    assert ending is None or ending.state == "retry"
    # What has no loop gives no sign of life: the lease must run out.
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()


# Processes


def test_a_stubborn_process_goes_with_all_it_started(tmp_path):
    async def scene():
        desk = Desk()
        crew = crew_of(desk, TASKS, {"kind": "processes", "slots": 1}, lease=10.0)
        await crew.start()
        claimed = desk.claim(crew.workers["x"], "plain_stubborn_family", str(tmp_path))
        crew.dispatch([claimed])
        await seen(tmp_path / "runs")
        crew._cancel([(claimed.dag, claimed.node, claimed.fence)])
        (ending,) = await desk.ended(claimed)
        assert ending.state == "cancelled"
        await gone(int((tmp_path / "runs").read_text()))
        await gone(int((tmp_path / "inner").read_text()))
        await crew.stop()

    asyncio.run(scene())


def test_a_process_that_dies_while_its_child_holds_the_line_has_crashed(tmp_path):
    async def scene():
        desk = Desk()
        crew = crew_of(desk, TASKS, {"kind": "processes", "slots": 1}, lease=10.0)
        await crew.start()
        claimed = desk.claim(crew.workers["x"], "plain_leave_child", str(tmp_path))
        crew.dispatch([claimed])
        (ending,) = await desk.ended(claimed, timeout=30)
        assert (ending.state, ending.crashes) == ("retry", 1)
        await gone(int((tmp_path / "inner").read_text()))
        await crew.stop()

    asyncio.run(scene())


def test_processes_are_used_again_and_leave_no_files_open():
    async def scene():
        desk = Desk()
        crew = crew_of(desk, tasks_of(whoami, calls.plain_die), {"kind": "processes", "slots": 2})
        await crew.start()
        before = _files()
        claims = [desk.claim(crew.workers["x"], "whoami") for _ in range(10)]
        crew.dispatch(claims)
        pids = {ending.result for ending in await desk.ended(*claims)}
        assert 1 <= len(pids) <= 2
        for _ in range(3):
            claimed = desk.claim(crew.workers["x"], "plain_die", "exit")
            crew.dispatch([claimed])
            await desk.ended(claimed)
        await crew.stop()
        await asyncio.sleep(0)
        assert _files() <= before
        for pid in pids:
            await gone(int(pid or "0"))

    asyncio.run(scene())


def _files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def whoami() -> int:
    return os.getpid()


def test_a_function_that_no_other_process_can_find_fails_its_jobs():
    def inner() -> None: ...

    async def scene():
        desk = Desk()
        tasks = tasks_of(inner, gone_from_its_module)
        crew = crew_of(desk, tasks, {"kind": "processes", "slots": 1}, lease=10.0)
        await crew.start()
        claims = [desk.claim(crew.workers["x"], name) for name in tasks]
        crew.dispatch(claims)
        for ending in await desk.ended(*claims, timeout=30):
            assert ending.state == "failed"
            assert "cannot be found" in (ending.error or "")
        await crew.stop()

    def gone_from_its_module() -> None: ...

    gone_from_its_module.__module__ = "no.such.module"
    gone_from_its_module.__qualname__ = "gone_from_its_module"
    asyncio.run(scene())


def test_tasks_are_found_by_the_name_of_their_jobs_object():
    def not_by_path() -> None: ...

    async def scene():
        desk = Desk()
        tasks = tasks_of(not_by_path)
        value = {"kind": "processes", "slots": 1}
        crew = crew_of(desk, tasks, value, lease=10.0, app="tests.jobs.test_worker:Registry")
        await crew.start()
        claimed = desk.claim(crew.workers["x"], "not_by_path")
        crew.dispatch([claimed])
        (ending,) = await desk.ended(claimed, timeout=30)
        assert json.loads(ending.result or "") == "by name"
        await crew.stop()

    asyncio.run(scene())


def _by_name() -> str:
    return "by name"


class Registry:
    """Stands for a Jobs object."""

    tasks = {"not_by_path": tasks_of(_by_name)["_by_name"]}  # noqa: RUF012


def test_processes_end_with_their_parent(tmp_path):
    """Also if that is killed: a job must not go on where nobody hears of it."""
    import subprocess
    import sys

    script = tmp_path / "parent.py"
    script.write_text(
        "import asyncio, sys\n"
        f"sys.path[:] = {sys.path!r}\n"
        "from tests.jobs.test_worker import orphan\n"
        f"asyncio.run(orphan({str(tmp_path)!r}))\n"
    )
    parent = subprocess.Popen([sys.executable, str(script)])
    try:

        async def scene():
            await seen(tmp_path / "runs")
            parent.kill()
            await gone(int((tmp_path / "runs").read_text()))

        asyncio.run(scene())
    finally:
        parent.kill()
        parent.wait()


async def orphan(folder: str) -> None:
    desk = Desk()
    crew = crew_of(desk, TASKS, {"kind": "processes", "slots": 1}, lease=10.0)
    await crew.start()
    crew.dispatch([desk.claim(crew.workers["x"], "plain_hang", folder)])
    await asyncio.sleep(60)


# Speed


def test_a_job_that_does_nothing_costs_little(caplog):
    async def scene() -> float:
        desk = Desk()
        crew = crew_of(desk, TASKS, 100, lease=30.0)
        await crew.start()
        best = 1.0
        for _ in range(3):
            claims = [desk.claim(crew.workers["x"], "nothing") for _ in range(3000)]
            done = len(desk.endings)
            began = time.thread_time()
            crew.dispatch(claims)
            await until(lambda done=done: len(desk.endings) == done + 3000)
            best = min(best, (time.thread_time() - began) / 3000)
        await crew.stop()
        return best

    with caplog.at_level(logging.ERROR):
        cost = asyncio.run(scene())
    assert cost < 100e-6, f"{cost * 1e6:.1f} µs"  # 10 on a quiet machine


def test_a_call_that_is_lost_with_its_node_is_handed_back_with_the_reason_and_at_no_cost():
    async def scene():
        desk = Desk()
        crew = crew_of(desk, TASKS, {"kind": "threads", "slots": 1})
        # What a cluster's runner does when the cluster says that the node is gone.
        runner = crew._lanes["x"].runner
        runner.run = lambda call: call.end(Lost("node 7 of the cluster is gone"))  # type: ignore[method-assign]
        await crew.start()
        claimed = desk.claim(crew.workers["x"], "nothing", attempts=1, retries=1, crashes=2)
        crew.dispatch([claimed])
        (ending,) = await desk.ended(claimed)
        assert (ending.state, ending.attempts, ending.crashes) == ("retry", 1, 2)
        assert ending.delay == 0.05  # of `poll`: what is gone may not be back yet
        assert json.loads(ending.error or "{}")["message"] == "node 7 of the cluster is gone"
        await crew.stop()

    asyncio.run(scene())
