"""No door of a server stalls another: large bodies on one port, while the loop that all ports share is watched.

What is measured is the time of processor that the loop's thread used between two turns: on a machine that is busy with
other things it is the same as on a quiet one.
"""

import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fairlead.jobs import Jobs
from fairlead.server.loading import load_mapping
from fairlead.server.service import Server
from fairlead.serving import aside
from tests.gateway.rig import until
from tests.server.rig import GATEWAY, HERE, run

MOST = 0.05  # seconds of processor that one turn of the loop may take
SLACK = 2.0  # the processors of machines that run the tests differ
TURN = 0.002

APP = """
from fairlead.jobs import Jobs

jobs = Jobs("sqlite:///jobs.db")


@jobs.task
def add(a=1, b=2):
    return a + b
"""


class Watched:
    """A server on this loop, asked from a thread, and the longest turn of the loop."""

    def __init__(self, server: Server, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.longest = 0.0
        jobs: Any = next(door for door in server.doors if door.kind == "jobs")
        self.jobs: Jobs = jobs.server.jobs
        self.urls = {"control": server.listener.url, "jobs": jobs.server.http.url}

    async def watch(self) -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(TURN)
            now = time.thread_time()
            self.longest = max(self.longest, now - before)
            before = now

    async def ask(self, method: str, door: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Send a body from another thread; the time of this one is the server's alone."""
        await asyncio.sleep(3 * TURN)
        self.longest = 0.0
        return await asyncio.to_thread(_asked, method, self.urls[door] + path, body)


def _asked(method: str, url: str, body: bytes) -> tuple[int, bytes]:
    import urllib.error
    import urllib.request

    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@asynccontextmanager
async def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    (tmp_path / "stalls_app.py").write_text(APP)
    (tmp_path / "fairlead.yaml").write_text("server: {}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    said = {
        "server": {"listen": HERE},
        "gateway": GATEWAY,
        "jobs": {"app": "stalls_app:jobs", "http": HERE},
    }
    loaded = load_mapping(said)
    assert not loaded.problems, loaded.lines
    gc.collect()
    gc.freeze()  # what the test suite has left is not the server's
    try:
        async with (
            Server(loaded, path="fairlead.yaml") as server,
            aiohttp.ClientSession() as session,
        ):
            one = Watched(server, session)
            watching = asyncio.create_task(one.watch())
            yield one
            watching.cancel()
    finally:
        gc.unfreeze()


def dag(jobs: list[dict[str, Any]]) -> bytes:
    return json.dumps({"name": "d", "jobs": jobs}).encode()


def keys(count: int) -> bytes:
    return b",".join(b'"k%d":1' % index for index in range(count))


UNKNOWN = json.dumps({"text": "\n".join(f"k{index}: v" for index in range(20_000))}).encode()
REFUSED = {
    "arguments": (
        ("POST", "jobs", "/v1/runs"),
        b'{"name":"d","jobs":[{"name":"a","task":"add","kwargs":{' + keys(200_000) + b"}}]}",
    ),
    "a ring": (
        ("POST", "jobs", "/v1/runs"),
        dag(
            [
                {"name": f"n{index}", "task": "add", "after": [f"n{(index - 1) % 5000}"]}
                for index in range(5000)
            ]
        ),
    ),
    "no JSON": (("POST", "jobs", "/v1/runs"), b'{"name":' + b"[" * 1_000_000),
    "a schedule": (
        ("PUT", "jobs", "/v1/schedules/s"),
        b'{"cron":"0 0 1 1 *","run":{' + keys(200_000) + b"}}",
    ),
    "keys to validate": (
        ("POST", "control", "/api/v1/config/validate"),
        b'{"text":"x",' + keys(100_000) + b"}",
    ),
    "a configuration": (("PUT", "control", "/api/v1/config"), UNKNOWN),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_body_that_is_refused_holds_no_other_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    async def test() -> None:
        async with watched(tmp_path, monkeypatch) as one:
            (method, door, path), body = REFUSED[kind]
            status, answer = await one.ask(method, door, path, body)
            assert status in {400, 422}, answer[:300]
            assert one.longest < SLACK * MOST

    run(test)


def test_a_run_of_many_jobs_is_accepted_and_holds_no_other_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def test() -> None:
        async with watched(tmp_path, monkeypatch) as one:
            body = dag([{"name": f"n{index}", "task": "add"} for index in range(10_000)])
            status, answer = await one.ask("POST", "jobs", "/v1/runs", body)
            assert status == 201, answer
            frontier: Any = None
            while frontier is None or len(frontier._tickets) < 5_000:  # it is on its way in
                scheduler = one.jobs.scheduler
                frontier = None if scheduler is None else scheduler.frontier
                await asyncio.sleep(TURN)
            assert one.longest < SLACK * MOST
            assert await one.jobs.cancel(json.loads(answer)["id"])

    run(test)


def test_a_large_run_is_shown_and_cancelled_and_holds_no_other_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def test() -> None:
        async with watched(tmp_path, monkeypatch) as one:
            body = dag([{"name": f"n{index}", "task": "add"} for index in range(10_000)])
            run = json.loads((await one.ask("POST", "jobs", "/v1/runs", body))[1])["id"]
            frontier: Any = None
            while frontier is None or len(frontier._tickets) < 5_000:  # it is on its way in
                scheduler = one.jobs.scheduler
                frontier = None if scheduler is None else scheduler.frontier
                await asyncio.sleep(TURN)
            status, shown = await one.ask("GET", "jobs", f"/v1/runs/{run}", b"")
            assert status == 200
            assert [job["id"] for job in json.loads(shown)["jobs"]] == [
                f"{run}.{node}" for node in range(10_000)
            ]
            assert one.longest < SLACK * MOST
            status, _ = await one.ask("POST", "jobs", f"/v1/runs/{run}/cancel", b"")
            assert status == 200
            await until(lambda: not frontier.waiting)
            assert one.longest < SLACK * MOST

    run(test)


def test_a_large_body_is_judged_as_a_small_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """White space makes it large; what is stored, and what is refused with which words, is the same."""

    async def test() -> None:
        async with watched(tmp_path, monkeypatch) as one:
            blank = b" " * aside.LARGE
            for path, bodies in {
                "/v1/runs": [
                    dag([{"name": "a", "task": "add", "args": [1, 2]}]),
                    dag([{"name": "a", "task": "ad"}]),
                    dag([{"name": "a", "task": "add", "after": ["a"]}]),
                    b'{"name": "d", "name": "d", "jobs": []}',
                    b"[1]",
                    b"nonsense",
                ],
                "/v1/runs?start_at=never": [dag([{"name": "a", "task": "add"}])],
            }.items():
                for body in bodies:
                    small = await one.ask("POST", "jobs", path, body)
                    large = await one.ask("POST", "jobs", path, body[:1] + blank + body[1:])
                    assert small[0] == large[0], (small, large)
                    if small[0] == 201:
                        outcome = await one.jobs.wait(json.loads(large[1])["id"], timeout=20)
                        assert outcome.state == "completed"
                    elif small[0] == 422:
                        assert small[1] == large[1]
            schedule = b'{"cron": "0 0 1 1 *", "task": "add"}'
            assert (await one.ask("PUT", "jobs", "/v1/schedules/s", schedule))[0] == 201
            status, answer = await one.ask("PUT", "jobs", "/v1/schedules/s", blank + schedule)
            assert (status, json.loads(answer)["name"]) == (200, "s")

    run(test)


def test_a_process_that_dies_or_is_not_waited_for_is_replaced():
    async def test() -> None:
        from fairlead.serving.http import Problem

        one = aside.Aside()
        await one.run(asyncio.sleep, 0)
        dying = asyncio.create_task(one.run(asyncio.sleep, 60))
        await asyncio.sleep(0)
        child = one._child
        assert child is not None
        child.process.kill()
        with pytest.raises(Problem, match="try again"):
            await dying
        slow = asyncio.create_task(one.run(asyncio.sleep, 60))
        await asyncio.sleep(0.1)
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        again: str = await one.run(asyncio.sleep, 0, "done")
        assert again == "done"
        await one.close()

    run(test)


def test_what_waits_to_be_judged_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(aside, "MOST_WAITING", 2)

    async def test() -> None:
        from fairlead.serving.http import Problem

        one = aside.Aside()
        tasks = [asyncio.create_task(one.run(asyncio.sleep, 0, number)) for number in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Problem, match="try again"):
            await one.run(asyncio.sleep, 0)
        assert await asyncio.gather(*tasks) == [0, 1]
        await one.close()

    run(test)


def test_a_check_with_many_labels_holds_no_other_port():
    async def test() -> None:
        import grpc

        from fairlead.flows import messages as wire
        from fairlead.flows.loading import load
        from fairlead.flows.serving import FlowServer

        names = [f"k{index}" for index in range(60_000)]
        request = wire.message("CheckRequest")(
            control_point="a", labels=dict.fromkeys(names, "v")
        ).SerializeToString()

        def checked(address: str) -> Any:
            with grpc.insecure_channel(address) as channel:
                call: Any = channel.unary_unary(f"/{wire.SERVICE}/Check")
                return wire.CheckResponse.FromString(call(request, timeout=20))

        settings = load({"control_points": {"a": {"concurrency": {"max_concurrency": 1}}}})
        async with FlowServer(settings, http=None, grpc=HERE) as server:
            assert server.grpc is not None
            longest, before = 0.0, time.thread_time()
            asking = asyncio.create_task(asyncio.to_thread(checked, server.grpc.address))
            while not asking.done():
                await asyncio.sleep(TURN)
                now = time.thread_time()
                longest, before = max(longest, now - before), now
            reply = await asking
            assert reply.decision_type == wire.ACCEPTED
            assert list(reply.flow_label_keys) == sorted(names)
            assert longest < SLACK * MOST

    run(test)
