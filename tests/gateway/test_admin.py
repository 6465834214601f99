"""The admin port: what it shows, what it changes, and that nothing anybody sends makes it fail."""

import asyncio
import json
from typing import Any

import pytest
import schemathesis
from hypothesis import settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from fairlead.gateway.admin import Admin
from fairlead.gateway.admission import Admission
from fairlead.gateway.fleet import Fleet
from fairlead.gateway.settings import Settings
from tests.gateway.rig import (
    HEALTHY,
    Backend,
    asked_here,
    connected,
    fetch,
    gateway,
    run,
    served,
    until,
)

JSON = [("content-type", "application/json")]


def admin(token: str | None = None, config: Any = None) -> Admin:
    """Make an admin app over a fleet that nobody looks at."""
    given: dict[str, Any] = {"upstreams": [{"url": "http://10.0.0.1:9001", "capacity": 256}]}
    fleet = Fleet(Settings.model_validate(given), lambda: None)
    return Admin(fleet, Admission(config or given), token)


def ask(app: Admin, *args: Any, **given: Any) -> tuple[int, Any, Any]:
    """Ask once over a socket; give status, head and the document."""

    async def main() -> tuple[int, Any, Any]:
        async with served(app) as url:
            head, body = await fetch(url, *args, **given)
            document = json.loads(body) if "json" in head.get("content-type") else body
            return head.status, head, document

    answer: tuple[int, Any, Any] = run(main())
    return answer


def add(app: Admin, worker: Any, headers: Any = JSON) -> tuple[int, Any]:
    body = worker if isinstance(worker, bytes) else json.dumps(worker).encode()
    status, _, document = ask(app, "POST", "/workers", headers, body)
    return status, document


def test_liveness_and_readiness():
    app = admin()
    assert ask(app, "GET", "/livez")[::2] == (200, {"status": "ok"})
    assert ask(app, "GET", "/readyz")[::2] == (200, {"status": "ok"})
    app.draining = True
    assert ask(app, "GET", "/readyz")[::2] == (503, {"status": "draining"})
    assert ask(app, "GET", "/livez")[0] == 200


def test_a_wrong_configuration_is_degraded_not_down():
    wrong = {"priority_scheduler": {"enabled": True, "classes": {"bulk": {"queue_size": -1}}}}
    status, _, document = ask(admin(config=wrong), "GET", "/readyz")
    assert (status, document["status"]) == (200, "degraded")
    assert "queue_size" in document["problems"][0]


def test_metrics_are_prometheus_text():
    status, head, body = ask(admin(), "GET", "/metrics")
    assert status == 200
    assert head.get("content-type").startswith("text/plain")
    assert b"# TYPE" in body


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:8081", 404),
        ("http://localhost:8081", 404),
        ("http://[::1]:8081", 404),
        ("http://evil.example", 403),
        ("http://evil.example:8081", 403),
        ("http://127.0.0.1.evil.example", 403),
        ("http://localhost.evil.example:8081", 403),
        ("http://203.0.113.9", 403),
        ("http://[", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_without_a_token_a_page_from_elsewhere_changes_nothing(origin, status):
    headers = [("origin", origin)]
    path = "/workers?url=http://10.0.0.9:1"
    assert ask(admin(), "DELETE", path, headers)[0] == status
    assert ask(admin(), "POST", "/workers", headers)[0] == (403 if status == 403 else 415)
    token = ("authorization", "Bearer secret")
    assert ask(admin("secret"), "DELETE", path, [token, *headers])[0] == 404


def test_the_fleet_is_shown():
    status, _, document = ask(admin(), "GET", "/workers")
    assert status == 200
    assert document["capacities"] == {"": 256}
    (worker,) = document["workers"]
    assert (worker["url"], worker["state"]) == ("http://10.0.0.1:9001", "healthy")


def test_workers_are_added_used_and_removed():
    async def main():
        async with Backend(auto=True) as one, gateway() as running:
            url = running.admin_listener.url
            head, _ = await fetch(running.data_listener.url)
            assert (head.status, head.get("retry-after")) == (503, "1")
            worker = json.dumps({"url": one.url + "/", "capacity": 4, **HEALTHY}).encode()
            head, body = await fetch(url, "POST", "/workers", JSON, worker)
            assert head.status == 201
            assert json.loads(body)["url"] == one.url
            await until(lambda: running.fleet.capacities() == {"": 4})
            assert (await fetch(running.data_listener.url))[0].status == 200
            assert (await fetch(url, "POST", "/workers", JSON, worker))[0].status == 409
            head, body = await fetch(url, "DELETE", f"/workers?url={one.url}")
            assert (head.status, json.loads(body)) == (200, {"removed": one.url})
            assert running.fleet.capacities() == {"": 0}
            assert (await fetch(running.data_listener.url))[0].status == 503
            assert (await fetch(url, "DELETE", f"/workers?url={one.url}"))[0].status == 404

    run(main())


def test_a_removed_worker_finishes_what_it_runs():
    async def main():
        async with Backend() as one, gateway({"url": one.url, "capacity": 2}) as running:
            url = running.admin_listener.url
            answer = asyncio.create_task(fetch(running.data_listener.url))
            held = await one.arrival()
            await fetch(url, "DELETE", f"/workers?url={one.url}")
            _, body = await fetch(url, "GET", "/workers")
            (worker,) = json.loads(body)["workers"]
            assert (worker["state"], worker["in_flight"]) == ("draining", 1)
            held.answer()
            assert (await answer)[1] == b"done"
            await until(lambda: not running.fleet.describe())

    run(main())


@pytest.mark.parametrize(
    ("worker", "fields"),
    [
        ({}, {"url"}),
        ({"url": "ftp://x"}, {"url"}),
        ({"url": "http://user:secret@x"}, {"url"}),
        ({"url": "http://x:99999"}, {"url"}),
        ({"url": "http://x", "capacity": -1, "color": "red"}, {"capacity", "color"}),
        ({"url": "http://x", "capacity": True}, {"capacity"}),
        ({"url": "http://x", "health": "health", "models": [""]}, {"health", "models"}),
        ([], {"body"}),
        (b"{", {"body"}),
        (b"\xff", {"body"}),
        (b"", {"body"}),
        (b"[" * 30_000, {"body"}),
    ],
)
def test_a_worker_that_is_none_is_refused_with_every_problem(worker, fields):
    app = admin()
    status, document = add(app, worker)
    assert status == 422
    assert document["code"] == "bad_worker"
    assert {found["field"].split(".")[0] for found in document["problems"]} == fields
    assert "secret" not in json.dumps(document)
    assert len(ask(app, "GET", "/workers")[2]["workers"]) == 1  # nothing has changed


def test_a_health_path_that_is_none_is_told_what_it_must_be():
    _, document = add(admin(), {"url": "http://x", "health": "x"})
    assert document["problems"] == [
        {"field": "health", "problem": "must begin with /, such as /health"}
    ]


def test_what_is_not_json_or_too_large():
    app = admin()
    worker = {"url": "http://x"}
    assert add(app, worker, [("content-type", "text/plain")])[0] == 415
    assert add(app, worker, [])[0] == 415
    assert add(app, worker, JSON * 2)[0] == 415
    assert add(app, b" " * 70_000 + b"{}")[0] == 413
    assert add(app, worker, [("content-type", "Application/JSON; charset=utf-8")])[0] == 201


@pytest.mark.parametrize("query", ["", "?url=", "?url=a&url=b", "?url=http://10.0.0.1:9001&x=1"])
def test_a_query_that_names_no_worker(query):
    app = admin()
    assert ask(app, "DELETE", f"/workers{query}")[0] in (404, 422)
    assert len(ask(app, "GET", "/workers")[2]["workers"]) == 1


def test_what_is_not_there_and_what_is_not_allowed():
    app = admin()
    status, head, document = ask(app, "GET", "/nothing")
    assert (status, document["code"]) == (404, "not_found")
    assert head.get("content-type") == "application/problem+json"
    status, head, _ = ask(app, "PUT", "/workers")
    assert (status, head.get("allow")) == (405, "GET, HEAD, POST, DELETE")
    assert ask(app, "POST", "/metrics", JSON, b"{}")[0] == 405


def test_head_works():
    async def main():
        async with served(admin()) as url:
            for path in ("/livez", "/metrics", "/workers", "/openapi.json"):
                head, body = await fetch_head(url, path)
                assert head.status == 200
                assert int(head.get("content-length")) > 0
                assert body == b""

    run(main())


async def fetch_head(url: str, path: str) -> Any:
    async with connected(url) as client:
        client.request("HEAD", path, [("connection", "close")])
        return await client.head(), await client.ended()


def test_without_the_token_only_livez_answers():
    wrong = [
        None,
        "wrong",
        "Bearer",
        "Basic s3cret",
        "Bearer s3cre",
        "Bearer s3cret1",
        "Bearer \xe9",
    ]

    async def main():
        async with served(admin(token="s3cret")) as url, connected(url) as client:
            for header in wrong:
                headers = [] if header is None else [("authorization", header)]
                for path in ("/metrics", "/readyz", "/workers", "/openapi.json", "/nothing"):
                    head, body = await client.ask("GET", path, headers)
                    assert head.status == 401
                    assert head.get("www-authenticate").startswith("Bearer")
                    assert b"s3cret" not in body
                assert (await client.ask("GET", "/livez", headers))[0].status == 200

    run(main())


def test_with_the_token_everything_answers():
    app = admin(token="s3cret")
    token = [("authorization", "bearer s3cret")]
    for path in ("/metrics", "/readyz", "/workers", "/openapi.json"):
        assert ask(app, "GET", path, token)[0] == 200


API = schemathesis.openapi.from_asgi("/openapi.json", asked_here(admin()))


@API.parametrize()
@settings(max_examples=60)
def test_nothing_that_is_sent_makes_it_fail_or_is_answered_otherwise_than_documented(case):
    # No schema says all that makes a URL; what the schema lets through may still be refused.
    case.call_and_validate(excluded_checks=[positive_data_acceptance])
