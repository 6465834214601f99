"""Flows over HTTP: decisions, ends, signals, and that nothing anybody sends makes the service fail."""

import asyncio
import json
from typing import Any

import pytest
import schemathesis
from hypothesis import settings

from fairlead.flows.flow import Flow
from fairlead.flows.scheduler import FlowScheduler
from fairlead.flows.service import FlowService
from fairlead.flows.table import FlowTable
from fairlead.flows.workloads import canonical
from fairlead.serving.http import LARGEST_BODY
from fairlead.testing import run_virtual
from tests.flows.service_rig import (
    JSON,
    active,
    body_of,
    check,
    end,
    post,
    serving,
    until_waiting,
    url,
    waiting,
)
from tests.gateway.rig import asked_here, connected, fetch, run, until

LABELED = {
    "control_points": {
        "checkout": {
            "quota": {"bucket_capacity": 10, "fill_amount": 1, "interval": "1h"},
            "scheduler": {
                "workloads": [{"name": "paid", "match_labels": {"tier": "paid"}, "priority": 3}],
                "tokens_label_key": "tokens",
                "denied_response_status_code": 429,
            },
        }
    }
}
POSTED = {"control_points": {"one": {"load": {"signal": "pressure", "setpoint": 1}}}}


def test_a_flow_is_let_in_and_ended_once():
    async def main():
        async with serving() as server:
            head, said = await check(server, labels={"user": "u1"}, timeout=1)
            assert head.status == 200
            assert said["decision"] == "accepted"
            assert (said["workload"], said["priority"], said["tokens"]) == ("default", 1, 1)
            assert (said["wait"], active(server)) == (0, 1)
            assert await end(server, said["flow_id"], status="error")
            assert active(server) == 0
            head, again = await end(server, said["flow_id"])
            assert (head.status, again["ended"]) == (200, False)

    run(main())


def test_an_end_nobody_knows_is_no_error():
    async def main():
        async with serving() as server:
            head, said = await end(server, "never-was")
            assert (head.status, said["ended"]) == (200, False)

    run(main())


def test_a_flow_waits_its_turn():
    async def main():
        async with serving() as server:
            _, first = await check(server)
            second = asyncio.create_task(check(server))
            await until_waiting(server)
            assert not second.done()
            assert (await end(server, first["flow_id"]))[1] == {"ended": True}
            head, said = await second
            assert (head.status, said["decision"]) == (200, "accepted")
            assert said["wait"] > 0
            assert said["flow_id"] != first["flow_id"]

    run(main())


def test_flows_of_a_quota_alone_have_not_waited():
    async def main():
        quota = {"bucket_capacity": 10, "fill_amount": 10, "interval": "1d"}
        async with serving({"control_points": {"one": {"quota": quota}}}) as server:
            point = server.flows.points["one"]
            ids = []
            for number in range(3):
                head, said = await check(server)
                assert (head.status, said["decision"], said["wait"]) == (200, "accepted", 0)
                assert point.in_flight == number + 1
                ids.append(said["flow_id"])
            assert (await end(server, ids[0], tokens=5))[1] == {"ended": True}
            assert (await end(server, ids[1], status="error"))[1] == {"ended": True}
            assert (await end(server, ids[1]))[1]["ended"] is False
            assert (point.in_flight, point.counts.ended_flows, point.counts.failed_flows) == (
                1,
                2,
                1,
            )
            head, _ = await check(server, labels={}, timeout=0)
            bucket: Any = point.capacity
            assert (head.status, round(bucket.level(point.runtime.now()))) == (200, 2)

    run(main())


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_a_refusal_tells_why_and_when_to_come_back(timeout):
    async def main():
        async with serving() as server:
            await check(server)
            head, said = await check(server, timeout=timeout)
            assert head.status == 503
            assert (said["decision"], said["reason"]) == ("rejected", "timeout")
            assert said["retry_after"] > 0
            assert int(head.get("retry-after")) >= max(1, said["retry_after"])
            assert "one: no tokens came free" in said["message"]

    run(main())


def test_flows_of_a_quota_alone_are_answered_and_ended_one_after_another():
    async def main():
        quota = {"bucket_capacity": 3, "fill_amount": 1, "interval": "1h"}
        async with serving({"control_points": {"one": {"quota": quota}}}) as server:
            for _ in range(3):  # all but the first are drawn
                head, said = await check(server)
                assert (head.status, said["wait"], said["tokens"]) == (200, 0, 1)
                assert (await end(server, said["flow_id"]))[1]["ended"]
                assert not (await end(server, said["flow_id"]))[1]["ended"]
            assert (await check(server, timeout=0))[0].status == 503

    run(main())


def test_the_denied_status_is_the_control_points_and_long_waits_are_told():
    async def main():
        async with serving(LABELED) as server:
            head, said = await check(server, "checkout", labels={"tier": "paid", "tokens": "10"})
            assert (said["workload"], said["priority"], said["tokens"]) == ("paid", 3, 10)
            head, said = await check(server, "checkout", labels={"tokens": "1"}, timeout=0)
            assert head.status == 429
            assert 3500 < said["retry_after"] <= 3600
            assert int(head.get("retry-after")) == -int(-said["retry_after"] // 1)

    run(main())


def test_what_can_never_be_admitted_is_not_asked_to_come_back():
    async def main():
        async with serving(LABELED) as server:
            head, said = await check(server, "checkout", labels={"tokens": "11"})
            assert head.status == 429
            assert (said["reason"], said["retry_after"]) == ("never_fits", None)
            assert not head.get("retry-after")

    run(main())


@pytest.mark.parametrize("tokens", ["0", "-1", "nan", "inf", "many", "1e300", ""])
def test_a_label_that_cannot_be_used_is_said(tokens):
    async def main():
        async with serving(LABELED) as server:
            _, said = await check(server, "checkout", labels={"tokens": tokens})
            assert said["tokens"] == 1
            assert said["ignored_labels"] == ["tokens"]

    run(main())


def test_an_unknown_control_point_is_accepted_counted_and_ended():
    async def main():
        async with serving() as server:
            head, said = await check(server, "elsewhere")
            assert (head.status, said["unknown_control_point"]) == (200, True)
            assert server.flows.unknown["elsewhere"] == 1
            assert (await end(server, said["flow_id"]))[1]["ended"] is True
            assert (await end(server, said["flow_id"]))[1]["ended"] is False

    run(main())


@pytest.mark.parametrize("leave", ["close", "reset"])
def test_a_client_that_leaves_frees_its_place(leave):
    async def main():
        async with serving() as server:
            _, first = await check(server)
            async with connected(url(server)) as client:
                client.request("POST", "/v1/flows/check", JSON, body_of({"control_point": "one"}))
                await until_waiting(server)
                getattr(client, leave)()
                await until_waiting(server, 0)
            assert (await end(server, first["flow_id"]))[1] == {"ended": True}
            assert active(server) == 0
            assert len(server.table) == 0

    run(main())


def test_many_leave_and_the_last_gets_its_turn():
    async def main():
        async with serving() as server:
            _, first = await check(server)
            asked = body_of({"control_point": "one"})
            async with connected(url(server)) as last:
                for number in range(20):
                    async with connected(url(server)) as client:
                        client.request("POST", "/v1/flows/check", JSON, asked)
                        await until_waiting(server, 1 + (number > 0))
                        if not number:
                            last.request("POST", "/v1/flows/check", JSON, asked)
                            await until_waiting(server, 2)
                        client.reset()
                        await until_waiting(server, 1)
                await end(server, first["flow_id"])
                assert (await last.response())[0].status == 200
            assert (waiting(server), active(server)) == (0, 1)

    run(main())


def test_one_connection_serves_many():
    async def main():
        async with serving() as server, connected(url(server)) as client:
            for _ in range(5):
                _, said = await post(client, "/v1/flows/check", {"control_point": "one"})
                _, over = await post(client, "/v1/flows/end", {"flow_id": said["flow_id"]})
                assert over == {"ended": True}

    run(main())


def test_a_late_end_frees_nothing_and_is_counted_whoever_asked_meanwhile():
    limit = {"max_concurrency": 1, "max_inflight_duration": "50ms"}

    async def main():
        async with serving({"control_points": {"one": {"concurrency": limit}}}) as server:
            _, first = await check(server)
            _, second = await check(server)  # it gets in when the first has expired
            _, late = await end(server, first["flow_id"])
            assert late["ended"] is False
            assert active(server) == 1
            await until(lambda: active(server) == 0)
            for _ in range(3):
                _, said = await check(server)
                await end(server, said["flow_id"])
            _, late = await end(server, second["flow_id"])
            assert late["message"].startswith("it ran longer than it may")
            assert server.flows.points["one"].counts.late_ends == 2
            assert len(server.table) == 0

    run(main())


def test_the_tokens_a_flow_really_took_are_settled():
    async def main():
        async with serving(LABELED) as server:
            _, said = await check(server, "checkout", labels={"tokens": "9"})
            await end(server, said["flow_id"], tokens=2)
            head, _ = await check(server, "checkout", labels={"tokens": "8"}, timeout=0)
            assert head.status == 200

    run(main())


def test_a_signal_is_posted_to_whoever_listens():
    async def main():
        async with serving(POSTED) as server, connected(url(server)) as client:
            head, said = await post(client, "/v1/signals/pressure", {"value": 0.5})
            assert (head.status, said) == (200, {"signal": "pressure", "value": 0.5})
            head, said = await post(client, "/v1/signals/nothing", {"value": 0.5})
            assert (head.status, said["code"]) == (404, "unknown_signal")

    run(main())


GOOD = {"control_point": "one"}
BAD: list[tuple[Any, str]] = [
    ({}, "control_point"),
    ([], "body"),
    ("text", "body"),
    (GOOD | {"more": 1}, "more"),
    ({"control_point": ""}, "control_point"),
    ({"control_point": 1}, "control_point"),
    ({"control_point": "x" * 201}, "control_point"),
    ({"control_point": "a\nb"}, "control_point"),
    (GOOD | {"timeout": -1}, "timeout"),
    (GOOD | {"timeout": float("nan")}, "timeout"),
    (GOOD | {"timeout": float("inf")}, "timeout"),
    (GOOD | {"timeout": "1"}, "timeout"),
    (GOOD | {"timeout": True}, "timeout"),
    (GOOD | {"timeout": 1e300}, "timeout"),
    (GOOD | {"labels": []}, "labels"),
    (GOOD | {"labels": None}, "labels"),
    (GOOD | {"labels": {"a": 1}}, "labels.a"),
    (GOOD | {"labels": {str(number): "" for number in range(257)}}, "labels"),
]


@pytest.mark.parametrize(("content", "field"), BAD)
def test_a_bad_question_is_answered_with_what_is_wrong(content, field):
    async def main():
        async with serving() as server, connected(url(server)) as client:
            head, said = await post(client, "/v1/flows/check", content)
            assert head.status == 422
            assert head.get("content-type") == "application/problem+json"
            assert field in {problem["field"] for problem in said["problems"]}
            assert (active(server), waiting(server), len(server.table)) == (0, 0, 0)

    run(main())


def test_every_problem_is_told_at_once():
    async def main():
        async with serving() as server, connected(url(server)) as client:
            content = {"timeout": -1, "labels": {"a": 1}, "unknown": 0}
            _, said = await post(client, "/v1/flows/check", content)
            fields = {problem["field"] for problem in said["problems"]}
            assert fields == {"control_point", "timeout", "labels.a", "unknown"}
            assert said["detail"].count(";") >= 3

    run(main())


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/v1/flows/end", {"flow_id": ""}),
        ("/v1/flows/end", {"flow_id": "a", "status": "fine"}),
        ("/v1/flows/end", {"flow_id": "a", "tokens": -1}),
        ("/v1/flows/end", {"flow_id": "a", "tokens": float("nan")}),
        ("/v1/signals/x", {"value": "1"}),
        ("/v1/signals/x", {"value": float("inf")}),
        ("/v1/signals/pressure", {"value": 1e305}),
        ("/v1/signals/pressure", {"value": -1e305}),
        ("/v1/signals/x", {}),
    ],
)
def test_other_bad_bodies(path, content):
    async def main():
        async with serving(POSTED) as server, connected(url(server)) as client:
            head, _ = await post(client, path, content)
            assert (head.status, head.get("content-type")) == (422, "application/problem+json")

    run(main())


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b"[" * 60_000, b'{"control_point": "\\ud800"}', b"NaN,"]
)
def test_what_is_no_json_is_said_to_be_none(body):
    async def main():
        async with serving() as server, connected(url(server)) as client:
            head, said = await post(client, "/v1/flows/check", body)
            assert (head.status, said["code"]) == (400, "bad_json")

    run(main())


def test_large_bodies_wrong_types_and_wrong_methods():
    async def main():
        async with serving() as server:
            check, large = "/v1/flows/check", b" " * (LARGEST_BODY + 1)
            head, _ = await fetch(url(server), "POST", check, JSON, large)
            assert head.status == 413
            for headers in ([], [("content-type", "text/plain")], [*JSON, *JSON]):
                head, _ = await fetch(url(server), "POST", check, headers, body_of(GOOD))
                assert head.status == 415
            head, _ = await fetch(url(server), "GET", check)
            assert (head.status, head.get("allow")) == (405, "POST")
            head, _ = await fetch(url(server), "DELETE", "/metrics")
            assert (head.status, head.get("allow")) == (405, "GET, HEAD")
            for path in ("/", "/v1/flows", "/v1/signals/"):
                assert (await fetch(url(server), "POST", path, JSON, b"{}"))[0].status == 404

    run(main())


def test_operators_are_told_how_it_is():
    async def main():
        async with serving() as server:
            for path in ("/livez", "/readyz"):
                head, body = await fetch(url(server), "GET", path)
                assert (head.status, json.loads(body)) == (200, {"status": "ok"})
            head, body = await fetch(url(server), "GET", "/metrics")
            assert head.status == 200
            assert b"# TYPE" in body
            server.service.draining = True
            assert (await fetch(url(server), "GET", "/readyz"))[0].status == 503

    run(main())


def test_with_a_token_nothing_but_liveness_is_free():
    async def main():
        async with serving(token="secret") as server:
            for path in ("/readyz", "/metrics", "/openapi.json"):
                head, _ = await fetch(url(server), "GET", path)
                assert head.status == 401
                assert "Bearer" in head.get("www-authenticate")
            assert (await check(server))[0].status == 401
            for value in ("Bearer wrong", "secret", "Basic secret", "Bearer sécret"):
                headers = [("authorization", value)]
                assert (await fetch(url(server), "GET", "/readyz", headers))[0].status == 401
            given = [("authorization", "Bearer secret")]
            assert (await fetch(url(server), "GET", "/readyz", given))[0].status == 200
            assert (await fetch(url(server), "GET", "/livez"))[0].status == 200

    run(main())


@pytest.mark.parametrize(
    "headers",
    [
        [("origin", "http://evil.example:8188"), ("host", "evil.example:8188")],
        [("origin", "http://evil.example")],
        [("host", "evil.example")],
    ],
)
def test_without_a_token_no_page_from_elsewhere_is_answered(headers):
    async def main():
        async with serving() as server, connected(url(server)) as client:
            body = body_of({"control_point": "one"})
            head, _ = await client.ask("POST", "/v1/flows/check", [*JSON, *headers], body)
            assert head.status == 403
            assert active(server) == 0
            for path, status in (("/metrics", 403), ("/readyz", 403), ("/livez", 200)):
                assert (await client.ask("GET", path, headers))[0].status == status

    run(main())


def test_ids_cannot_be_guessed_and_the_table_is_bounded():
    async def main():
        flows = FlowScheduler.from_config({"control_points": {"free": {}}})
        table = FlowTable(most=10, most_unlimited=5)
        kept = [await flows.start_flow("free") for _ in range(20)]
        keys = [table.add(flow) for flow in kept]
        assert len(set(keys)) == 20
        assert all(len(key) >= 22 for key in keys)
        assert (len(table), table.dropped) == (10, 10)
        assert table.take(keys[0]) is None
        assert table.take(keys[-1]) is kept[-1]
        for _ in range(20):
            table.add(Flow("unknown"))
        assert len(table) == 9 + 5

    run(main())


def test_of_labels_only_what_a_limit_needs_is_kept():
    limits = {
        "quota": {
            "bucket_capacity": 2,
            "fill_amount": 1,
            "interval": "1h",
            "limit_by_label_key": "q",
        },
        "concurrency": {"max_concurrency": 1, "limit_by_label_key": "user"},
    }

    async def main():
        async with serving({"control_points": {"one": limits}}) as server:
            labels = {"q": "short", "user": "u" * 5_000, "other": "x" * 50_000}
            _, said = await check(server, labels=labels)
            flow = server.table.get(said["flow_id"])
            assert flow is not None
            assert flow.labels == {"q": "short", "user": canonical(labels["user"])}
            assert (await check(server, labels=labels, timeout=0))[0].status == 503
            await end(server, said["flow_id"], tokens=0)  # given back to whom it was taken from
            for _ in range(2):
                _, said = await check(server, labels=labels, timeout=0)
                await end(server, said["flow_id"])
            assert (await check(server, labels=labels, timeout=0))[0].status == 503
            _, said = await check(server, "unknown", labels=labels)
            flow = server.table.get(said["flow_id"])
            assert flow is not None
            assert not flow.labels

    run(main())


def test_what_the_gate_has_ended_leaves_the_table():
    async def main():
        flows = FlowScheduler.from_config({"control_points": {"free": {}}})
        table = FlowTable()
        kept = []
        for _ in range(1000):
            flow = await flows.start_flow("free")
            kept.append(table.add(flow))
            flow.end()  # not by the table
        assert len(table) <= 2

    run(main())


def test_what_the_gate_has_ended_leaves_the_table_from_among_what_runs():
    async def main():
        flows = FlowScheduler.from_config({"control_points": {"free": {}}})
        table = FlowTable()
        crowd = [await flows.start_flow("free") for _ in range(1000)]
        for flow in crowd:
            table.add(flow)
        for flow in crowd[::2]:
            flow.end()  # not by the table
        for _ in range(1000):
            table.add(await flows.start_flow("free"))
        assert len(table) == 500 + 1000

    run(main())


def test_what_expired_is_found_for_an_hour():
    """A late end is counted and settles a quota; those who never end are forgotten, in time and in number."""
    limit = {"max_concurrency": 100, "max_inflight_duration": "1s"}

    async def main():
        flows = FlowScheduler.from_config({"control_points": {"one": {"concurrency": limit}}})
        table = FlowTable(most_expired=10)

        async def add() -> str:
            return table.add(await flows.start_flow("one", timeout=0))

        first = last = newest = await add()
        for _ in range(30):
            await asyncio.sleep(2)
            last = await add()
        assert table.get(first) is None
        assert len(table) <= 10 + 2
        await asyncio.sleep(3500)
        await add()
        assert table.get(last) is not None
        await asyncio.sleep(200)
        for _ in range(10):
            newest = await add()
        assert table.get(last) is None
        assert table.take(newest) is not None
        assert len(table) == 9 + 1  # that still run, and that came 200 seconds before them
        assert table.dropped == 0  # of those who ran

    run_virtual(main())


SERVICE = FlowService(
    FlowScheduler.from_config({"control_points": {"one": {}, **POSTED["control_points"]}})
)
API = schemathesis.openapi.from_asgi("/openapi.json", asked_here(SERVICE))


@API.parametrize()
@settings(max_examples=60)
def test_nothing_that_is_sent_makes_it_fail_or_is_answered_otherwise_than_documented(case):
    case.call_and_validate()
