"""Requests and messages that no client of ours would send, to the APIs of jobs and of flows.

Tried: requests with SQL, zero bytes, surrogates, cycles, names of functions, cron lines and time zones; absurd JSON;
random and mutated messages over gRPC with metadata and sizes beyond the limits.  What schemathesis generates from the
descriptions of the APIs is in tests/server/test_conformance.py, tests/jobs/test_http.py and tests/flows/test_http.py.
"""

import json
import random
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import grpc
import pytest

from fairlead.flows import messages as wire
from fairlead.jobs.api import JobsApi
from fairlead.server.looking import MOST_FOLLOWERS
from tests.flows.service_rig import active, serving
from tests.gateway.rig import connected, run, until
from tests.jobs.operations_rig import ask, go, small
from tests.server.rig import configured, served
from tests.server.rig import run as run_server
from tests.sizes import times


class Case(NamedTuple):
    """One request, and the statuses that it may get."""

    method: str
    path: str
    body: bytes
    statuses: tuple[int, ...]


CASES: list[Case] = []
KNOWN = {"name": "a", "task": "add"}


def runs(*bodies: bytes | dict[str, Any], statuses: tuple[int, ...] = (400, 422)) -> None:
    for body in bodies:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        CASES.append(Case("POST", "/v1/runs", raw, statuses))


def of(*jobs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "d", "jobs": list(jobs), **more}


def one(args: bytes) -> bytes:
    return b'{"name":"d","jobs":[{"name":"a","task":"add","args":' + args + b"}]}"


# Graphs that are none.
B = {"name": "b", "task": "add", "after": ["a"]}
runs(
    of(KNOWN | {"after": ["b"]}, B),
    of(KNOWN | {"after": ["a"]}),
    of(KNOWN | {"args": [{"$result": "b"}]}, {"name": "b", "task": "add", "args": [{"$result": "a"}]}),
    of(KNOWN, KNOWN),
    of(KNOWN | {"after": ["nobody"]}),
)  # fmt: skip
# Names: what no name may hold, and what is a name like any other.
for name in ("\0", "a\0b", "\ud800", "a" * 300, "", "  ", "\n", "\x1b[31m"):
    runs(of(KNOWN | {"name": name}))
for name in ("\u202e evil", "'; DROP TABLE jobs;--", "../../etc", "💥", "%s%n", "{0}", "<b>"):
    runs(of(KNOWN | {"name": name}), statuses=(201,))
TASKS = (
    "add'; --|os.system|builtins:eval|__class__|add.__globals__|app_tasks:add|\0|subprocess:Popen"
)
runs(*(of(KNOWN | {"task": task}) for task in TASKS.split("|")))
# JSON that few parsers agree on.
runs(
    *(one(args) for args in (b"[NaN]", b"[Infinity]", b"[1e999999999]", b"[" * 100_000)),
    *(one(args) for args in (b"[" * 100_000 + b"]" * 100_000, b"[" + b"9" * 100_000 + b"]")),
    *(b"[" * 1_000_000, b'{"name":"d","name":"e","jobs":[]}', b"\x1f\x8b", b"\xff", b" ", b"null"),
    *(b'"a"', b"{}", b'{"name":1,"jobs":[]}', b'{"name":"d","jobs":{}}', b'{"jobs":[{}]}'),
    of(KNOWN | {"args": {}}),
    of(KNOWN | {"kwargs": []}),
    of(KNOWN | {"__proto__": {}}),
    of(KNOWN, database="sqlite:///other.db"),
)
WHEN: tuple[Any, ...] = (
    "99999999999999999999d",
    "-1s",
    "1e308",
    "0001-01-01T00:00:00Z",
    "PT1H",
    True,
    [],
    {},
)
runs(*(of(KNOWN, soft_sla=when) for when in (*WHEN, "٣m", "1h" * 1000)))
# Queries and paths.
QUERIES = "state=' OR 1=1--|before=' OR 1|limit=99999999|limit=-1|limit=1e9|tenant=\0|order=evil"
for query in (*QUERIES.split("|"), "before=" + "9" * 26):
    key, value = query.split("=", 1)
    CASES.append(Case("GET", f"/v1/runs?{key}={quote(value)}", b"", (422,)))
CASES.append(Case("GET", "/v1/runs?tenant=%ff", b"", (422,)))
CASES.append(Case("GET", "/v1/runs?tenant=" + quote("' OR 1=1--"), b"", (200,)))
for run_id in (
    "1'%20OR%201=1",
    "9" * 26,
    "-1",
    "%00",
    "1%2F..%2F2",
    "0x1",
    "1e1",
    "%ED%A0%80",
    "%D9%A1",
):
    CASES.append(Case("GET", f"/v1/runs/{run_id}", b"", (404,)))  # fmt: skip
    CASES.append(Case("POST", f"/v1/runs/{run_id}/cancel", b"", (404,)))


def schedules(statuses: tuple[int, ...], **given: Any) -> None:
    body = {"cron": "0 0 1 1 *", "task": "add", "paused": True, **given}
    CASES.append(Case("PUT", "/v1/schedules/s", json.dumps(body).encode(), statuses))


BAD = "*/0 * * * *|0-99999999 * * * *|0 0 30 2 *|0 0 31 2 *|@reboot|* * * * * * *|*/1/1 * * * *"
BAD += "|60 * * * *|* * * * 8|-1 * * * *|𝟙 * * * *|* * * * MON#6||\0"
for cron in (*BAD.split("|"), "1," * 5000 + "1 * * * *", " ".join(["*"] * 50)):
    schedules((422,), cron=cron)
for cron in ("* * * * *", "0 0 29 2 *", "*/99999999999 * * * *"):
    schedules((200, 201), cron=cron)
ZONES = "../../../etc/passwd|/etc/passwd|UTC\0|Europe/Berlin/../../../../etc/passwd|posixrules|localtime||."
for zone in (*ZONES.split("|"), "a" * 190):
    schedules((422,), timezone=zone)
PLANNERS = (
    "this:x|os:system|subprocess:Popen|sys:exit|http.server:main|__main__:x|evil:Planner|io:BytesIO"
)
CASES += [
    Case("PUT", "/v1/planner", json.dumps({"planner": planner}).encode(), (422,))
    for planner in (*PLANNERS.split("|"), "a" * 200)
]

TRIED = {
    "requests to the jobs API": len(CASES),
    "gRPC messages": 2500,
    "gRPC metadata and sizes beyond the limits": 6,
    "streams of events": 260,
}


def test_each_request_has_its_answer(tmp_path: Path) -> None:
    async def main() -> None:
        jobs = small(f"sqlite:///{tmp_path}/jobs.db")

        @jobs.task
        def add(a: int = 1, b: int = 2) -> int:
            return a + b

        app = JobsApi(jobs)
        wrong = []
        try:
            for case in CASES:
                path, _, query = case.path.partition("?")
                said = await ask(
                    app, case.method, unquote(path), case.body or None, query=query.encode()
                )
                if said.status not in case.statuses:
                    wrong.append((case.path, case.body[:80], said.status, said.body[:200]))
                assert b"Traceback" not in said.body
            assert (await ask(app, "GET", "/v1/runs")).status == 200
        finally:
            await app.aside.close()
            await app.metrics.close()
            await jobs.close()
        assert not wrong

    go(main(), 60)


# gRPC

POINTS = {
    "control_points": {
        "checkout": {"concurrency": {"max_concurrency": 10}},
        "open": {"concurrency": {"max_concurrency": 100_000}},
    }
}
METHODS = ("Check", "FlowEnd", "CacheLookup", "CacheUpsert", "CacheDelete", "Nope")
MAY = {"OK", "INVALID_ARGUMENT", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}


def message(chance: random.Random) -> bytes:
    """Draw bytes, or a check with some of its bytes changed."""
    if chance.random() < 0.5:
        return chance.randbytes(chance.randrange(300))
    labels = {f"k{chance.randrange(10**9)}": "v" * chance.randrange(100)}
    point = chance.choice(["checkout", "open", "x" * 5000, ""])
    raw = bytearray(
        wire.message("CheckRequest")(control_point=point, labels=labels).SerializeToString()
    )
    for _ in range(chance.randrange(4) if raw else 0):
        raw[chance.randrange(len(raw))] = chance.randrange(256)
    return bytes(raw)


async def code(call: Any) -> str:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return "OK"


def test_no_message_over_grpc_is_more_than_refused(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        chance, codes = random.Random(18), Counter[str]()
        async with serving(POINTS, grpc=True) as server:
            assert server.grpc is not None
            options = [("grpc.max_metadata_size", 1 << 22)]
            async with grpc.aio.insecure_channel(server.grpc.address, options=options) as channel:
                raw: dict[str, Any] = {
                    method: channel.unary_unary(f"/{wire.SERVICE}/{method}") for method in METHODS
                }
                for _ in range(times(TRIED["gRPC messages"])):
                    call = raw[chance.choice(METHODS)]
                    codes[await code(call(message(chance), timeout=10))] += 1
                assert set(codes) <= MAY
                check = wire.message("CheckRequest")(control_point="open").SerializeToString()
                for metadata in (
                    [("x-big", "a" * 100_000)],
                    [("x-api-key", "a")] * 500,
                    [(f"k{number}", "v") for number in range(2000)],
                ):
                    found = await code(raw["Check"](check, timeout=10, metadata=metadata))
                    assert found == "RESOURCE_EXHAUSTED"
                for size in (3_900_000, 4_300_000, 50_000_000):
                    found = await code(raw["Check"](b"\x0a" + b"x" * size, timeout=20))
                    assert found in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED")
                before = active(server, "open")
                assert await code(raw["Check"](check, timeout=10)) == "OK"
                assert active(server, "open") in (before, before + 1)
        assert not [line for line in caplog.messages if "Traceback" in line]

    run(main(), 60)


# Events


def test_streams_of_events_are_bounded_and_leave_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(configured(tmp_path)) as client, AsyncExitStack() as stack:
            statuses = Counter[int]()
            for _ in range(TRIED["streams of events"]):
                one = await stack.enter_async_context(connected(client.server.listener.url))
                one.request("GET", "/api/v1/events")
                statuses[(await one.head()).status] += 1
            beyond = TRIED["streams of events"] - MOST_FOLLOWERS
            assert statuses == {200: MOST_FOLLOWERS, 503: beyond}
            await stack.aclose()
            await until(lambda: client.server.history.followers == 0)
            assert await client.get("/api/v1/overview")

    run_server(main)
