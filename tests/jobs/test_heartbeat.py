"""Leases: kept though the loop stands still, given up in time when they cannot be kept, and taken anew."""

import asyncio
import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fairlead.jobs.heartbeat import MARGIN
from fairlead.jobs.records import Beat
from tests.jobs import calls
from tests.jobs.desk import Desk, crew_of, tasks_of
from tests.jobs.executor_contract import gone, seen
from tests.sizes import FULL


async def until(said: Any, timeout: float = 20.0) -> None:
    async with asyncio.timeout(timeout):
        while not said():  # noqa: ASYNC110 - what is waited for happens on another thread
            await asyncio.sleep(0.005)


async def block(seconds: float) -> str:
    time.sleep(seconds)  # noqa: ASYNC251 - that is the point
    return "done"


@pytest.mark.parametrize("leases", [20] if FULL else [4], ids=lambda leases: f"{leases} leases")
def test_a_job_that_blocks_the_loop_does_not_cost_the_lease(leases, caplog):
    async def scene():
        desk, lease = Desk(), 1.0
        crew = crew_of(desk, tasks_of(block), lease=lease)
        await crew.start()
        claimed = desk.claim(crew.workers["x"], "block", leases * lease)
        before = len(desk.beats)
        crew.dispatch([claimed])
        (ending,) = await desk.ended(claimed, timeout=20 + leases * lease)
        assert ending.state == "completed"
        assert len(desk.beats) - before >= leases  # three in each, on a machine that has time
        gaps = [late - early for early, late in zip(desk.beats, desk.beats[1:], strict=False)]
        assert max(gaps) < lease
        assert crew.leases_lost == 0
        await crew.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scene())
    (first, *_) = [one for one in caplog.messages if "blocked" in one]
    assert f"{Path(__file__).name}:" in first
    assert "(block)" in first


def test_a_loop_that_runs_is_not_said_to_be_blocked(caplog):
    async def scene():
        desk = Desk()
        crew = crew_of(desk, tasks_of(block), lease=0.6)
        await crew.start()
        await until(lambda: len(desk.beats) > 4)
        await crew.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scene())
    assert not [one for one in caplog.messages if "blocked" in one]


@pytest.mark.parametrize(
    ("kind", "task"),
    [
        ("local", "async_hang"),
        ("local", "plain_hang"),
        ("threads", "async_hang"),
        ("processes", "plain_hang"),
    ],
)
def test_without_the_store_everything_is_stopped_before_the_lease_can_be_given_away(
    kind, task, tmp_path
):
    async def scene():
        desk, lease = Desk(), 1.5
        tasks = tasks_of(calls.async_hang, calls.plain_hang, calls.plain_give)
        crew = crew_of(desk, tasks, {"kind": kind, "slots": 2}, lease=lease)
        await crew.start()
        old = crew.workers["x"]
        claimed = desk.claim(old, task, str(tmp_path), attempts=1, retries=1, crashes=1)
        crew.dispatch([claimed])
        await seen(tmp_path / "runs")
        desk.away = True
        last = desk.beats[-1]
        await until(lambda: not crew.running["x"])
        stopped_at = time.monotonic()
        assert stopped_at - last < lease
        assert stopped_at - last > lease * (1 - MARGIN) - lease / 3 - 0.1, "not before its time"
        if kind == "processes":
            await gone(int((tmp_path / "runs").read_text()))
        else:
            await seen(tmp_path / "told")
        assert crew.workers == {}
        assert crew.leases_lost == 1
        desk.away = False
        await until(lambda: crew.workers)
        new = crew.workers["x"]
        assert new != old
        assert desk.retired == [old]
        # What has really stopped is handed back, if nobody else was given it yet: no attempt burnt, no crash.
        (ending,) = await desk.ended(claimed)
        assert (ending.state, ending.attempts, ending.crashes) == ("retry", 1, 1)
        again = desk.claim(new, "plain_give", 1)
        crew.dispatch([again])
        assert (await desk.ended(again))[0].state == "completed"
        await crew.stop()

    asyncio.run(scene())


def test_a_thread_that_runs_on_without_a_lease_is_the_schedulers_to_take_back(tmp_path):
    async def scene():
        desk = Desk()
        crew = crew_of(desk, tasks_of(calls.plain_wait), 1, lease=1.5, patience=0.1)
        await crew.start()
        claimed = desk.claim(crew.workers["x"], "plain_wait", str(tmp_path / "go"))
        crew.dispatch([claimed])
        desk.away = True
        await until(lambda: crew.abandoned)
        desk.away = False
        await until(lambda: crew.workers)
        (tmp_path / "go").touch()
        await crew.stop()
        assert desk.ending_of(claimed) is None

    asyncio.run(scene())


def test_processes_are_killed_in_time_though_the_loop_stands_still(tmp_path):
    async def scene():
        desk, lease = Desk(), 1.5
        tasks = tasks_of(calls.plain_hang, block)
        crew = crew_of(desk, tasks, {"kind": "processes", "slots": 2}, lease=lease)
        await crew.start()
        crew.dispatch([desk.claim(crew.workers["x"], "plain_hang", str(tmp_path))])
        await seen(tmp_path / "runs")
        pid = int((tmp_path / "runs").read_text())
        died: list[float] = []

        def look() -> None:
            while Path(f"/proc/{pid}").exists() and "Z" not in _state(pid):
                time.sleep(0.005)
            died.append(time.monotonic())

        desk.away = True
        last = desk.beats[-1]
        watcher = threading.Thread(target=look)
        watcher.start()
        time.sleep(2 * lease)  # noqa: ASYNC251 - that is the point
        watcher.join()
        assert died[0] - last < lease
        desk.away = False
        await until(lambda: crew.workers.get("x", 1) > 1)
        await crew.stop()

    asyncio.run(scene())


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def test_a_worker_that_was_buried_stops_and_begins_again(tmp_path, caplog):
    async def scene():
        desk = Desk()
        crew = crew_of(desk, tasks_of(calls.async_hang), lease=0.9)
        await crew.start()
        old = crew.workers["x"]
        claimed = desk.claim(old, "async_hang", str(tmp_path))
        crew.dispatch([claimed])
        await seen(tmp_path / "runs")
        with desk.lock:  # somebody else has it now
            desk.active[claimed.dag, claimed.node] = 7
        desk.bury(old)
        await seen(tmp_path / "told")
        await until(lambda: crew.workers.get("x", old) != old)
        assert not desk.endings
        assert [ending.state for ending in desk.refused] == ["retry"]
        await crew.stop()

    asyncio.run(scene())
    assert any("no longer knows this worker" in one for one in caplog.messages)


def test_a_result_that_waits_for_the_store_survives_a_lost_lease_if_its_fence_does():
    async def scene():
        desk = Desk()
        crew = crew_of(desk, tasks_of(calls.plain_give, calls.plain_span), lease=0.9)
        await crew.start()
        kept, taken = (desk.claim(crew.workers["x"], "plain_give", one) for one in (1, 2))
        desk.away = True
        crew.dispatch([kept, taken])
        await until(lambda: crew.leases_lost)
        with desk.lock:
            desk.active[taken.dag, taken.node] = 7
        desk.away = False
        ends = await desk.ended(kept, taken)
        assert [ending.state for ending in ends] == ["completed", "completed"]
        assert [ending.fence for ending in desk.endings] == [kept.fence]
        assert [ending.fence for ending in desk.refused] == [taken.fence]
        await until(lambda: crew.workers)
        assert desk.ended_before_retiring == 2
        await crew.stop()

    asyncio.run(scene())


class Hanging(Desk):
    """A store whose heartbeats never return, from some moment on."""

    hanging = False
    broken = False

    async def beat(self, workers: list[int], lease: float) -> Beat:
        if self.broken:
            raise ValueError("a bug")
        while self.hanging:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if not self.hanging:
                    raise
                # a driver that does not let itself be cancelled
        return await super().beat(workers, lease)


@pytest.mark.parametrize("fault", ["hanging", "broken"])
def test_a_heartbeat_that_hangs_or_breaks_is_no_heartbeat(fault, tmp_path):
    async def scene():
        desk, lease = Hanging(), 1.2
        crew = crew_of(desk, tasks_of(calls.async_hang), lease=lease)
        await crew.start()
        crew.dispatch([desk.claim(crew.workers["x"], "async_hang", str(tmp_path))])
        await seen(tmp_path / "runs")
        await until(lambda: desk.beats)
        setattr(desk, fault, True)
        last = desk.beats[-1]
        await until(lambda: crew.leases_lost, timeout=10)
        assert time.monotonic() - last < lease + lease / 3 + 2  # or never; a busy machine is late
        await seen(tmp_path / "told")
        setattr(desk, fault, False)
        await crew.stop()

    asyncio.run(scene())


def test_threads_end_with_the_crew():
    async def scene():
        before = set(threading.enumerate())
        for _ in range(3):
            desk = Desk()
            crew = crew_of(desk, tasks_of(calls.plain_give), lease=1.0)
            await crew.start()
            claims = [desk.claim(crew.workers["x"], "plain_give", one) for one in range(9)]
            crew.dispatch(claims)
            ends = await desk.ended(*claims)
            assert [json.loads(ending.result or "")[0][0] for ending in ends] == list(range(9))
            await crew.stop()
        assert set(threading.enumerate()) <= before

    asyncio.run(scene())


def test_what_the_heartbeat_killed_before_the_loop_heard_of_it_has_not_crashed(tmp_path):
    async def scene():
        desk = Desk()
        tasks = tasks_of(calls.plain_hang)
        crew = crew_of(desk, tasks, {"kind": "processes", "slots": 1}, lease=10.0)
        await crew.start()
        claimed = desk.claim(crew.workers["x"], "plain_hang", str(tmp_path), crashes=2)
        crew.dispatch([claimed])
        await seen(tmp_path / "runs")
        # As the thread does; `lost` comes later, or never.
        crew._membership._sever([crew.workers["x"]])
        (ending,) = await desk.ended(claimed)
        assert (ending.state, ending.crashes) == ("retry", 2)
        await crew.stop()

    asyncio.run(scene())


class Slow(Desk):
    """A store that renews at once and answers late."""

    delay = 0.0

    async def beat(self, workers: list[int], lease: float) -> Beat:
        heard = await super().beat(workers, lease)
        await asyncio.sleep(self.delay)
        return heard


def test_the_deadline_counts_from_the_start_of_a_beat(tmp_path):
    async def scene():
        desk, lease = Slow(), 2.0
        desk.delay = 0.3 * lease
        crew = crew_of(desk, tasks_of(calls.async_hang), lease=lease)
        await crew.start()
        worker = crew.workers["x"]
        crew.dispatch([desk.claim(worker, "async_hang", str(tmp_path))])
        await seen(tmp_path / "runs")
        beats = len(desk.beats)
        await until(lambda: len(desk.beats) > beats)  # it was renewed, and the answer is on its way
        desk.away = True
        await until(lambda: not crew.running["x"])
        assert time.monotonic() < desk.workers[worker][2], "its lease had run out"
        await crew.stop()

    asyncio.run(scene())
