"""The HTTP API: each operation, each kind of mistake, and that nothing anybody sends makes it fail."""

import asyncio
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from fairlead.errors import StoreUnavailable
from fairlead.jobs import Jobs
from fairlead.jobs.api import LARGEST_BODY, STILL, JobsApi
from tests.gateway.rig import asked_here
from tests.jobs.operations_rig import HELLO, JSON, PAIR, ask, database, go, small, until


@pytest.fixture(params=["sqlite", "postgres"])
def jobs(request, tmp_path):
    return small(database(request.param, tmp_path))


def asking(jobs: Jobs, test: Any, *, serving: bool = False, **given: Any) -> None:
    """Run a test against the API of jobs."""

    async def main():
        app = JobsApi(jobs, **given)
        try:
            if serving:
                await jobs.start()
            await test(app)
        finally:
            await app.aside.close()
            await app.metrics.close()
            await jobs.close()

    go(main())


async def submit(app: JobsApi, dag: Any = HELLO) -> str:
    said = await ask(app, "POST", "/v1/runs", dag)
    assert said.status == 201, said.body
    return str(said.json["id"])


async def ended(app: JobsApi, run: str) -> Any:
    async def look():
        said = (await ask(app, "GET", f"/v1/runs/{run}")).json
        return said if said["completed_on"] else None

    return await until(look)


class TestRuns:
    def test_a_run_is_submitted_runs_and_is_shown(self, jobs):
        async def test(app):
            said = await ask(app, "POST", "/v1/runs", PAIR)
            assert (said.status, said.json["new"]) == (201, True)
            assert said.headers[b"location"] == f"/v1/runs/{said.json['id']}".encode()
            run = await ended(app, said.json["id"])
            assert (run["state"], run["name"], run["tenant"]) == ("completed", "pair", "acme")
            assert [job["result"] for job in run["jobs"]] == [2, 4]
            assert [job["priority"] for job in run["jobs"]] == [499, 499]
            assert run["jobs"][1]["needs"] == ["first"]
            (listed,) = (await ask(app, "GET", "/v1/runs")).json["runs"]
            assert (listed["id"], listed["state"], listed["jobs_left"]) == (
                run["id"],
                "completed",
                0,
            )

        asking(jobs, test, serving=True)

    def test_a_key_that_was_used_is_no_new_run(self, jobs):
        async def test(app):
            first = await submit(app, {**HELLO, "key": "k"})
            again = await ask(app, "POST", "/v1/runs", {**HELLO, "key": "k"})
            assert (again.status, again.json) == (200, {"id": first, "new": False})

        asking(jobs, test)

    def test_runs_are_listed_in_pages_and_by_state(self, jobs):
        async def test(app):
            ids = [await submit(app) for _ in range(3)]
            await ask(app, "POST", f"/v1/runs/{ids[0]}/cancel")

            async def listed(query):
                said = (await ask(app, "GET", "/v1/runs", query=query)).json
                return [run["id"] for run in said["runs"]]

            assert await listed(b"") == ids[::-1]
            assert await listed(b"limit=1") == [ids[2]]
            assert await listed(f"before={ids[2]}&limit=1".encode()) == [ids[1]]
            assert await listed(b"state=cancelled") == [ids[0]]
            assert await listed(b"tenant=nobody") == []

        asking(jobs, test)

    def test_a_run_is_paused_resumed_cancelled_and_tried_again(self, jobs):
        async def test(app):
            run = await submit(app)

            async def do(deed):
                said = (await ask(app, "POST", f"/v1/runs/{run}/{deed}")).json
                return said["state"], said["changed"], said.get("message", "")

            assert await do("resume") == ("created", False, f"run {run} is not paused (created)")
            assert (await do("retry"))[1:] == (
                False,
                f"run {run} has not ended (created): wait for its end, or cancel it first",
            )
            assert (await do("pause"))[:2] == ("suspended", True)
            assert await do("pause") == ("suspended", False, f"run {run} is paused already")
            assert (await do("resume"))[:2] == ("created", True)
            assert (await do("cancel"))[:2] == ("cancelled", True)
            assert await do("cancel") == (
                "cancelled",
                False,
                f"run {run} has ended already (cancelled)",
            )
            assert (await do("retry"))[:2] == ("created", True)

        asking(jobs, test)

    def test_what_cannot_be_done_is_said_as_it_is(self, jobs):
        release = asyncio.Event()

        @jobs.task()
        async def stubborn():
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    pass
            raise ValueError("late")

        async def test(app):
            run = await submit(app, {"name": "x", "jobs": [{"name": "a", "task": "stubborn"}]})

            async def do(deed):
                said = (await ask(app, "POST", f"/v1/runs/{run}/{deed}")).json
                return said["state"], said["changed"], said.get("message", "")

            async def runs():
                return (await ask(app, "GET", f"/v1/runs/{run}")).json["state"] == "active"

            await until(runs)
            assert (await do("pause"))[:2] == ("suspended", True)
            assert (await do("cancel"))[:2] == ("active", True)
            already = f"run {run} is being cancelled already"
            assert await do("cancel") == ("active", False, already)
            for deed in ("pause", "resume"):
                assert await do(deed) == ("active", False, f"run {run} is being cancelled")
            wait = f"run {run} has not ended (active): wait for its end"
            assert await do("retry") == ("active", False, wait)
            release.set()
            assert (await ended(app, run))["state"] == "cancelled"
            assert (await do("retry"))[1]
            assert (await ended(app, run))["state"] == "failed"
            store = await jobs.store()
            explained = (await ask(app, "GET", f"/v1/jobs/{run}.0/explain")).json["explanation"]
            assert f"; fairlead jobs retry {run} gives it fresh attempts" in explained
            assert await store.archive(store.now() + 60, 10) == 1
            archived = f"run {run} has ended (failed) and is archived: submit its DAG anew"
            assert await do("retry") == ("failed", False, archived)
            explained = (await ask(app, "GET", f"/v1/jobs/{run}.0/explain")).json["explanation"]
            assert explained.endswith("; its run is archived, and is not retried")

        asking(jobs, test, serving=True)

    def test_an_sla_is_changed_and_what_is_not_named_stays(self, jobs):
        async def test(app):
            run = await submit(app, PAIR)
            before = (await ask(app, "GET", f"/v1/runs/{run}")).json
            after = await ask(app, "POST", f"/v1/runs/{run}/sla", {"hard_sla": "1h"})
            assert after.json["soft_sla"] == before["soft_sla"]
            assert after.json["hard_sla"] > before["soft_sla"]
            late = {"soft_sla": "2020-01-01T00:00:00Z", "hard_sla": "2020-01-02T00:00:00Z"}
            after = await ask(app, "POST", f"/v1/runs/{run}/sla", late)
            assert {job["priority"] for job in after.json["jobs"]} == {1999}
            one = {"soft_sla": None, "hard_sla": None, "job": f"{run}.1"}
            after = await ask(app, "POST", f"/v1/runs/{run}/sla", one)
            assert [job["priority"] for job in after.json["jobs"]] == [1999, 0]
            for wrong in (
                {},
                {"soft_sla": "5"},
                {"soft_sla": "2h", "hard_sla": "1h"},
                {"soft_sla": "-5m"},
                {"soft_sla": "2026-01-01T00:00:00"},
            ):
                said = await ask(app, "POST", f"/v1/runs/{run}/sla", wrong)
                assert said.status == 422, wrong
            missing = {"soft_sla": "5m", "job": f"{run}.9"}
            assert (await ask(app, "POST", f"/v1/runs/{run}/sla", missing)).status == 404

        asking(jobs, test)

    @pytest.mark.parametrize("method", ["GET", "POST"])
    @pytest.mark.parametrize("run", ["17", "0", "x", "1.0", "-1", "9" * 30, "1\x00", "%20"])
    def test_a_run_that_is_not_there(self, jobs, run, method):
        async def test(app):
            path = f"/v1/runs/{run}" + ("/cancel" if method == "POST" else "")
            said = await ask(app, method, path)
            assert (said.status, said.json["code"]) == (404, "not_found")
            assert said.headers[b"content-type"] == b"application/problem+json"

        asking(jobs, test)


class TestTheRest:
    def test_a_job_is_explained(self, jobs):
        async def test(app):
            run = await submit(app, PAIR)
            said = (await ask(app, "GET", f"/v1/jobs/{run}.1/explain")).json
            assert said["reason"] == "upstream"
            assert "first" in said["explanation"]
            for job in (f"{run}.7", run, "x"):
                assert (await ask(app, "GET", f"/v1/jobs/{job}/explain")).status == 404

        asking(jobs, test)

    def test_planners_are_set_and_shown(self, jobs):
        async def test(app):
            assert (await ask(app, "GET", "/v1/planner")).json == {
                "planner": "GlobalPriorityExecutionPlanner",
                "executors": {},
            }
            await ask(app, "PUT", "/v1/planner", {"planner": "SJFSExecutionPlanner"})
            own = {"planner": "HRRNExecutionPlanner", "executor": "default"}
            said = await ask(app, "PUT", "/v1/planner", own)
            assert said.json == {
                "planner": "SJFSExecutionPlanner",
                "executors": {"default": "HRRNExecutionPlanner"},
            }
            said = await ask(app, "PUT", "/v1/planner", {"planner": None, "executor": "default"})
            assert said.json["executors"] == {}
            for wrong in ("Nonsense", "no.such:Planner", "json:dumps", "a:b:c", "\0"):
                said = await ask(app, "PUT", "/v1/planner", {"planner": wrong})
                assert said.status == 422, wrong
            nowhere = {"planner": "HRRNExecutionPlanner", "executor": "nowhere"}
            assert (await ask(app, "PUT", "/v1/planner", nowhere)).status == 422

        asking(jobs, test)

    def test_schedules_come_rest_and_go(self, jobs):
        async def test(app):
            body = {"cron": "*/5 * * * *", "timezone": "Europe/Berlin", "task": "double"}
            said = await ask(app, "PUT", "/v1/schedules/often", {**body, "args": [2]})
            assert (said.status, len(said.json["next"])) == (201, 5)
            said = await ask(app, "PUT", "/v1/schedules/often", {**body, "args": [3]})
            assert (said.status, said.json["run"]["jobs"][0]["args"]) == (200, [3])
            assert (await ask(app, "POST", "/v1/schedules/often/pause")).json["paused"] is True
            assert (await ask(app, "GET", "/v1/schedules/often")).json["next"] == []
            said = await ask(app, "PUT", "/v1/schedules/often", {**body, "args": [4]})
            assert (said.json["paused"], said.json["next"]) == (True, []), "a change wakes nothing"
            assert (await ask(app, "GET", "/v1/schedules/often")).json["paused"] is True
            assert (await ask(app, "POST", "/v1/schedules/often/resume")).json["paused"] is False
            (one,) = (await ask(app, "GET", "/v1/schedules")).json["schedules"]
            assert one["name"] == "often"
            assert (await ask(app, "DELETE", "/v1/schedules/often")).json == {"removed": "often"}
            for method in ("GET", "DELETE"):
                assert (await ask(app, method, "/v1/schedules/often")).status == 404

        asking(jobs, test)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"cron": "* * 31 2 *"},
            {"cron": "60 * * * *"},
            {"cron": "@reboot"},
            {"cron": "* * * * * *"},
            {"timezone": "Mars/Olympus"},
            {"task": "nonsense"},
            {"task": None},
            {"run": HELLO},
            {"misfire": "perhaps"},
            {"args": ["\ud800"]},
        ],
    )
    def test_a_schedule_that_cannot_be_is_refused(self, jobs, wrong):
        async def test(app):
            body = {"cron": "* * * * *", "task": "double", "args": [1], **wrong}
            said = await ask(app, "PUT", "/v1/schedules/one", body)
            assert said.status in (400, 422), said.body
            assert (await ask(app, "GET", "/v1/schedules")).json == {"schedules": []}

        asking(jobs, test)

    def test_workers_are_listed(self, jobs):
        async def test(app):
            (worker,) = (await ask(app, "GET", "/v1/workers")).json["workers"]
            assert (worker["executor"], worker["silent"]) == ("default", False)

        asking(jobs, test, serving=True)


class TestMistakes:
    @pytest.mark.parametrize(
        ("body", "status"),
        [
            (b"", 400),
            (b"{", 400),
            (b"nonsense", 400),
            (b'{"name": NaN}', 400),
            (b'"\xff"', 400),
            (b"[" * 100_000, 400),
            (b"[]", 422),
            (b"{}", 422),
            (b'{"name": "x", "jobs": []}', 422),
            (b'{"name": "x", "jobs": [{"name": "a", "task": "nope"}]}', 422),
            (b'{"name": "x", "jobs": [{"name": "a", "task": "double", "args": [{"$result": "b"}]}]}', 422),
            (b'{"name": "\\u0000", "jobs": [{"name": "a", "task": "double"}]}', 422),
            (b'{"name": "x", "jobs": [{"name": "a", "task": "double", "args": [9223372036854775808]}]}', 422),
            (b'{"name": "x", "soft_sla": "5", "jobs": [{"name": "a", "task": "double"}]}', 422),
            (b'{"name": "x", "name": "y", "jobs": [{"name": "a", "task": "double", "args": [1]}]}', 422),
            (b'{"name": "x", "jobs": [{"name": "a", "task": "double", "kwargs": {"number": 1, "number": 2}}]}', 422),
        ],
    )  # fmt: skip
    def test_a_body_that_is_no_dag(self, jobs, body, status):
        async def test(app):
            said = await ask(app, "POST", "/v1/runs", body)
            assert said.status == status
            assert said.json["status"] == status
            assert said.json["detail"]
            assert (await ask(app, "GET", "/v1/runs")).json == {"runs": []}

        asking(jobs, test)

    def test_a_body_that_is_too_large_or_no_json(self, jobs):
        async def test(app):
            said = await ask(app, "POST", "/v1/runs", b"x" * (LARGEST_BODY + 1))
            assert said.status == 413
            for headers in ([], [(b"content-type", b"text/plain")], JSON * 2):
                said = await ask(app, "POST", "/v1/runs", b"{}", headers=headers)
                assert said.status == 415

        asking(jobs, test)

    @pytest.mark.parametrize(
        "query",
        [
            b"limit=0", b"limit=-1", b"limit=x", b"limit=10001", b"limit=1e3", b"state=nonsense",
            b"state=skipped", b"before=x", b"tenant=%00", b"tenant=%ff", b"\xff", b"what=1", b"limit=1&limit=2",
        ],
    )  # fmt: skip
    def test_a_query_that_cannot_be_read(self, jobs, query):
        async def test(app):
            assert (await ask(app, "GET", "/v1/runs", query=query)).status == 422

        asking(jobs, test)

    def test_what_is_not_served(self, jobs):
        async def test(app):
            for path in ("/", "/v1", "/v1/runs/", "/v1/runs/1/nonsense", "/v1/jobs/1.0", "/\x00"):
                assert (await ask(app, "GET", path)).status == 404, path
            said = await ask(app, "DELETE", "/v1/runs")
            assert (said.status, said.headers[b"allow"]) == (405, b"GET, HEAD, POST")

        asking(jobs, test)

    def test_a_database_that_is_away(self, jobs, monkeypatch):
        async def test(app):
            store = await jobs.store()

            async def away(*_: Any, **__: Any) -> Any:
                raise StoreUnavailable("the database cannot be reached")

            for verb in ("submit", "runs", "run", "settings"):
                monkeypatch.setattr(store, verb, away)
            for method, path, body in (
                ("POST", "/v1/runs", HELLO),
                ("GET", "/v1/runs", None),
                ("POST", "/v1/runs/1/cancel", None),
                ("GET", "/v1/planner", None),
            ):
                said = await ask(app, method, path, body)
                assert (said.status, said.json["code"]) == (503, "unavailable"), path
                assert int(said.headers[b"retry-after"]) >= 1
            monkeypatch.undo()

        asking(jobs, test)


class TestAccess:
    def test_with_a_token_everything_but_livez_asks_for_it(self, jobs):
        async def test(app):
            for given in ([], [(b"authorization", b"Bearer wrong")], [(b"authorization", b"s3")]):
                said = await ask(app, "GET", "/v1/runs", headers=given)
                assert said.status == 401
                assert said.headers[b"www-authenticate"].startswith(b"Bearer")
            right = [(b"authorization", b"bearer s3cret")]
            for path in ("/v1/runs", "/metrics", "/openapi.json"):
                assert (await ask(app, "GET", path, headers=right)).status == 200
            assert (await ask(app, "GET", "/livez")).status == 200

        asking(jobs, test, token="s3cret")

    def test_without_one_no_page_from_elsewhere_is_answered(self, jobs):
        async def test(app):
            for origin, status in ((b"http://evil.example", 403), (b"http://127.0.0.1:8089", 200)):
                said = await ask(app, "GET", "/v1/runs", headers=[(b"origin", origin)])
                assert said.status == status

        asking(jobs, test)


class TestHealth:
    def test_ready_means_that_the_scheduler_moves(self, jobs):
        async def test(app):
            async def leads():
                return (await ask(app, "GET", "/readyz")).json.get("role") == "leader"

            await until(leads)
            jobs.scheduler.progressed_at -= 10 * STILL
            jobs.scheduler.run = None  # no more turns count
            said = await ask(app, "GET", "/readyz")
            assert (said.status, said.json) == (503, {"status": "stuck"})
            app.draining = True
            said = await ask(app, "GET", "/readyz")
            assert (said.status, said.json) == (503, {"status": "draining"})
            assert (await ask(app, "HEAD", "/livez")).body == b""

        asking(jobs, test, serving=True)

    def test_who_does_not_serve_is_not_ready(self, jobs):
        async def test(app):
            assert (await ask(app, "GET", "/readyz")).json == {"status": "not serving"}

        asking(jobs, test)


class Bridge:
    """The API on a loop of its own: schemathesis makes a new loop for each request."""

    def __init__(self, url: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.jobs = small(url)
        self.app = JobsApi(self.jobs)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] == "/openapi.json":
            await self.app(scope, receive, send)  # what needs no database needs no loop
            return
        if not self.thread.is_alive():
            self.thread.start()
            starting = asyncio.run_coroutine_threadsafe(self.jobs.start(), self.loop)
            await asyncio.wrap_future(starting)
        first = await receive()
        messages = [first]
        while messages[-1].get("more_body"):
            messages.append(await receive())
        sent: list[Any] = []

        async def heard() -> Any:
            return messages.pop(0)

        async def told(message: Any) -> None:
            sent.append(message)

        work = asyncio.run_coroutine_threadsafe(self.app(scope, heard, told), self.loop)
        await asyncio.wrap_future(work)
        for message in sent:
            await send(message)

    def close(self) -> None:
        if self.thread.is_alive():
            asyncio.run_coroutine_threadsafe(self.app.aside.close(), self.loop).result(10)
            asyncio.run_coroutine_threadsafe(self.jobs.close(0), self.loop).result(10)
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(10)
        self.loop.close()


FOLDER = tempfile.TemporaryDirectory()
BRIDGE = Bridge(f"sqlite:///{FOLDER.name}/jobs.db")
API = schemathesis.openapi.from_asgi("/openapi.json", asked_here(BRIDGE))


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Iterator[None]:
    yield
    BRIDGE.close()
    FOLDER.cleanup()


@API.parametrize()
@settings(max_examples=25, suppress_health_check=list(HealthCheck), deadline=None)
def test_nothing_that_is_sent_makes_it_fail_or_is_answered_otherwise_than_documented(case):
    # No schema says which tasks, runs and zones there are; what it lets through may still be refused.
    case.call_and_validate(excluded_checks=[positive_data_acceptance])
