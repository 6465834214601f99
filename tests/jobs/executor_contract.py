"""What every kind of executor keeps, whatever runs the calls.

A module of tests takes the names of this one and offers a fixture `rig`.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from fairlead.jobs.records import Claimed, Ending
from fairlead.jobs.worker import Crew
from tests.jobs import calls
from tests.jobs.desk import Desk, crew_of, tasks_of

FUNCTIONS = [
    fn for name, fn in vars(calls).items() if name.startswith(("plain_", "async_")) and callable(fn)
]
PATIENCE = 15.0  # seconds that a loaded machine may take


class Rig:
    """A crew with one executor, and the functions of `calls.py` in one of their two manners."""

    def __init__(self, value: Any, manner: str, *, kills: bool, **options: Any) -> None:
        self.desk = Desk()
        self.value = value
        self.manner = manner
        self.kills = kills  # can it kill what it runs?
        self.options: dict[str, Any] = {"lease": 4.5, **options}
        self.crew: Crew

    async def __aenter__(self) -> "Rig":
        self.crew = crew_of(self.desk, tasks_of(*FUNCTIONS), self.value, **self.options)
        await self.crew.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.crew.stop()

    def claim(self, what: str, *args: Any, **fields: Any) -> Claimed:
        known = {fn.__name__ for fn in FUNCTIONS}
        task = f"{self.manner}_{what}"
        if task not in known and what != "nothing":
            task = f"plain_{what}" if f"plain_{what}" in known else f"async_{what}"
        return self.desk.claim(self.crew.workers["x"], task, *args, **fields)

    def begin(self, what: str, *args: Any, **fields: Any) -> Claimed:
        claimed = self.claim(what, *args, **fields)
        self.crew.dispatch([claimed])
        return claimed

    def cancel(self, claimed: Claimed) -> None:
        """Do what the heartbeat does when it hears of a cancel."""
        self.crew._cancel([(claimed.dag, claimed.node, claimed.fence)])

    async def run(self, what: str, *args: Any, **fields: Any) -> Ending:
        return (await self.desk.ended(self.begin(what, *args, **fields), timeout=30))[0]


async def seen(path: Path) -> None:
    async with asyncio.timeout(PATIENCE):
        while not _written(path):  # noqa: ASYNC110 - by another process
            await asyncio.sleep(0.005)


def _written(path: Path) -> bool:
    return path.exists() and (path.name != "runs" or bool(path.read_text()))


async def gone(pid: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while _lives(pid):  # noqa: ASYNC110 - it is not our child
            await asyncio.sleep(0.01)


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def run(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


def test_a_call_gets_its_arguments_and_the_results_of_others(rig: Rig):
    async def scene():
        async with rig:
            payload = '{"args":[1,[{"$result":3}],"ü"],"kwargs":{"k":{"deep":{"$result":4}}}}'
            ending = await rig.run("give", payload=payload, inputs={3: '{"a":1}', 4: "[null]"})
            assert ending.state == "completed"
            assert json.loads(ending.result or "") == [
                [1, [{"a": 1}], "ü"],
                {"k": {"deep": [None]}},
            ]
            assert ending.ran is not None
            assert 0 <= ending.ran < 60

    run(scene())


def test_a_call_knows_which_job_it_is(rig: Rig):
    async def scene():
        async with rig:
            claimed = rig.begin("about", dag=1042, node=3, name="third", attempts=2, retries=5)
            (ending,) = await rig.desk.ended(claimed)
            assert json.loads(ending.result or "") == [
                "1042.3",
                "1042",
                "third",
                3,
                False,
                claimed.fence,
            ]

    run(scene())


def test_what_a_call_raises_ends_that_call_alone(rig: Rig):
    async def scene():
        async with rig:
            claims = [rig.begin("fail", kind) for kind in calls.ERRORS]
            ends = await rig.desk.ended(*claims, timeout=30)
            for kind, ending in zip(calls.ERRORS, ends, strict=True):
                assert ending.state == "failed", kind
                error = json.loads(ending.error or "")
                if kind[0].isupper() and kind not in ("StopIteration", "GeneratorExit"):
                    assert error["type"] == kind
                assert len(ending.error or "") < 100_000
                assert "\0" not in (ending.error or "")
                (ending.error or "").encode()
            assert (await rig.run("give", 1)).state == "completed"

    run(scene())


def test_an_error_tells_where_it_was_raised(rig: Rig):
    async def scene():
        async with rig:
            error = json.loads((await rig.run("fail", "ValueError")).error or "")
            assert error["type"] == "ValueError"
            assert error["message"] == "bad value"
            assert "plain_fail" in error["traceback"]

    run(scene())


def test_a_result_that_cannot_be_stored_fails_the_job(rig: Rig):
    async def scene():
        async with rig:
            claims = [rig.begin("return", kind) for kind in calls.UNSTORABLE]
            ends = await rig.desk.ended(*claims, timeout=30)
            for kind, ending in zip(calls.UNSTORABLE, ends, strict=True):
                assert ending.state == "failed", kind
                assert ending.result is None
                told = json.loads(ending.error or "")
                assert told["type"] in ("PayloadError", "RuntimeError"), (kind, told)
            assert (await rig.run("give", 1)).state == "completed"

    run(scene())


def test_a_failure_with_attempts_left_is_retried_later(rig: Rig):
    async def scene():
        async with rig:
            ending = await rig.run(
                "fail", "ValueError", attempts=1, retries=2, retry_delay=1.0, crashes=1
            )
            assert ending.state == "retry"
            assert 2.0 <= ending.delay <= 4.0
            assert (ending.attempts, ending.crashes) == (2, 1)
            ending = await rig.run("fail", "ValueError", attempts=2, retries=2)
            assert (ending.state, ending.attempts) == ("failed", 3)

    run(scene())


def test_arguments_that_do_not_fit_fail_the_job(rig: Rig):
    async def scene():
        async with rig:
            ending = await rig.run("span")
            assert ending.state == "failed"
            assert "seconds" in json.loads(ending.error or "")["message"]

    run(scene())


def test_a_job_of_an_unknown_task_is_handed_back_and_burns_no_attempt(rig: Rig):
    async def scene():
        async with rig:
            ending = await rig.run("nothing", retries=0)
            assert (ending.state, ending.attempts, ending.crashes) == ("retry", 0, 0)
            assert ending.error is None
            assert ending.delay > 0  # or the two would play ping-pong

    run(scene())


def test_as_many_as_there_are_slots_run_at_once_and_never_more(rig: Rig, tmp_path: Path):
    async def scene():
        async with rig:
            slots = rig.crew.slots["x"]
            folder = tmp_path / "meet"
            folder.mkdir()
            meeting = [rig.begin("meet", str(folder), str(one), slots) for one in range(slots)]
            assert {one.state for one in await rig.desk.ended(*meeting, timeout=60)} == {
                "completed"
            }
            claims = [rig.claim("span", 0.02) for _ in range(5 * slots)]
            rig.crew.dispatch(claims)
            spans = [
                json.loads(ending.result or "")
                for ending in await rig.desk.ended(*claims, timeout=60)
            ]
            marks = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
            most = now = 0
            for _, step in marks:
                now += step
                most = max(most, now)
            assert most <= slots
            assert rig.crew.running == {"x": 0}

    run(scene())


def test_a_call_that_takes_too_long_is_stopped(rig: Rig, tmp_path: Path):
    async def scene():
        async with rig:
            await rig.run("give", 1)  # a process may take its time to start
            claimed = rig.begin("hang", str(tmp_path), timeout=1.0)
            await seen(tmp_path / "runs")
            (ending,) = await rig.desk.ended(claimed)
            assert ending.state == "expired"
            assert "1 s" in json.loads(ending.error or "")["message"]
            assert rig.crew.running == {"x": 0}
            await stopped(rig, tmp_path)
            folder = tmp_path / "again"
            folder.mkdir()
            ending = await rig.run("hang", str(folder), timeout=0.5, retries=1, retry_delay=5)
            assert (ending.state, ending.attempts) == ("retry", 1)
            assert ending.delay >= 5

    run(scene())


async def stopped(rig: Rig, folder: Path) -> None:
    """The call is no more: it was told, or what ran it is dead."""
    if rig.kills:
        await gone(int((folder / "runs").read_text()))
    else:
        await seen(folder / "told")


def test_a_cancel_reaches_a_call_with_the_next_beat(rig: Rig, tmp_path: Path):
    async def scene():
        async with rig:
            claimed = rig.begin("hang", str(tmp_path), retries=3)
            await seen(tmp_path / "runs")
            rig.desk.cancel(claimed)
            (ending,) = await rig.desk.ended(claimed)
            assert (ending.state, ending.attempts) == ("cancelled", 0)
            await stopped(rig, tmp_path)
            assert (await rig.run("give", 1)).state == "completed"

    run(scene())


def test_a_call_that_waits_for_a_slot_is_cancelled_without_having_begun(rig: Rig, tmp_path: Path):
    async def scene():
        async with rig:
            slots = rig.crew.slots["x"]
            folders = [tmp_path / str(one) for one in range(slots + 1)]
            for folder in folders:
                folder.mkdir()
            claims = [rig.begin("hang", str(folder)) for folder in folders]
            await asyncio.gather(*(seen(folder / "runs") for folder in folders[:-1]))
            rig.cancel(claims[-1])
            (ending,) = await rig.desk.ended(claims[-1])
            assert ending.state == "cancelled"
            assert ending.ran is None
            for claimed in claims[:-1]:
                rig.cancel(claimed)
            await rig.desk.ended(*claims)
            assert not list(folders[-1].iterdir())

    run(scene())


def test_cancels_that_meet_results_end_each_call_once(rig: Rig):
    async def scene():
        async with rig:
            slots = rig.crew.slots["x"]
            claims = [rig.claim("span", 0.002 * (one % 5)) for one in range(6 * slots)]
            rig.crew.dispatch(claims)
            for claimed in claims:
                rig.cancel(claimed)
                rig.cancel(claimed)
                await asyncio.sleep(0.002)
            ends = await rig.desk.ended(*claims, timeout=60)  # checks that each ended once
            assert {ending.state for ending in ends} <= {"completed", "cancelled"}
            assert not rig.desk.refused
            assert (await rig.run("give", 1)).state == "completed"

    run(scene())


def test_a_drain_waits_for_what_runs_and_hands_back_the_rest(rig: Rig, tmp_path: Path):
    async def scene():
        async with rig:
            await rig.run("give", 1)
            slots = rig.crew.slots["x"]
            go = tmp_path / "go"
            short = [rig.begin("wait", str(go)) for _ in range(slots - 1)]
            hanging = rig.begin("hang", str(tmp_path), attempts=1, retries=1, crashes=1)
            waiting = rig.begin("give", 1)
            await seen(tmp_path / "runs")
            draining = asyncio.ensure_future(rig.crew.drain(1.0))
            (ending,) = await rig.desk.ended(waiting)
            assert ending.state == "retry"
            go.touch()
            await draining
            assert rig.desk.drained == list(rig.crew.workers.values())
            for ending in await rig.desk.ended(*short):
                assert ending.state == "completed"
            for ending in await rig.desk.ended(hanging, waiting):
                assert (ending.state, ending.delay) == ("retry", 0)
                assert ending.error is None
            ending = (await rig.desk.ended(hanging))[0]
            assert (ending.attempts, ending.crashes) == (1, 1)
            late = rig.begin("give", 1)
            assert (await rig.desk.ended(late))[0].state == "retry"
            await stopped(rig, tmp_path)
        assert not rig.desk.workers

    run(scene())


def test_a_call_whose_process_dies_has_crashed_and_the_others_go_on(rig: Rig, tmp_path: Path):
    if not rig.kills:
        pytest.skip("it would be this process")

    async def scene():
        async with rig:
            other = rig.begin("span", 1.0)
            ends = await asyncio.gather(
                rig.run("die", "exit", attempts=1, retries=1), rig.run("die", "kill", crashes=2)
            )
            assert (ends[0].state, ends[0].attempts, ends[0].crashes) == ("retry", 1, 1)
            assert (ends[1].state, ends[1].crashes) == ("failed", 3)
            assert "quarantined" in (ends[1].error or "")
            assert (await rig.desk.ended(other))[0].state == "completed"
            path = str(tmp_path / "died")
            assert (await rig.run("die_once", path)).state == "retry"
            ending = await rig.run("die_once", path)
            assert json.loads(ending.result or "") == "alive"

    run(scene())


def test_nothing_is_left_when_it_has_stopped(rig: Rig, tmp_path: Path):
    async def scene():
        async with rig:
            claimed = rig.begin("hang", str(tmp_path))
            await seen(tmp_path / "runs")
        (ending,) = await rig.desk.ended(claimed)
        assert ending.state == "retry"
        await stopped(rig, tmp_path)
        pid = int((tmp_path / "runs").read_text())
        assert (pid != os.getpid()) == rig.kills
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        assert not rest

    run(scene())
