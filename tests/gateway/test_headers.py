"""The priority header over raw sockets: door C's row of the bad-input catalogue (promises.md §3)."""

import json

import pytest

from tests.gateway.rig import Backend, connected, fetch, run
from tests.gateway.sockets import code, fine, site

ASKS = ("x-fairlead-decision", "1")


def decided(*values: bytes, name: bytes = b"x-fairlead-priority") -> tuple[str, float]:
    """Send a request with these values; tell the class it was given, and how many unknown values were counted."""

    async def main() -> tuple[str, float]:
        async with site(4, backend=Backend(auto=True)) as here, connected(here.url) as client:
            lines = b"".join(name + b": " + value + b"\r\n" for value in values)
            client.send(
                b"GET /x HTTP/1.1\r\nhost: x\r\nx-fairlead-decision: 1\r\n" + lines + b"\r\n"
            )
            head, _ = await client.response()
            assert head.status == 200
            told = head.get("x-fairlead-decision")
            return told.partition(";")[0], here.gauge("unknown_priorities_total")

    found: tuple[str, float] = run(main())
    return found


@pytest.mark.parametrize(
    ("values", "expected", "unknown"),
    [
        ([], "default", 0),
        ([b"interactive"], "interactive", 0),
        ([b"InterActive"], "interactive", 0),
        ([b"\t bulk \t"], "bulk", 0),
        ([b""], "default", 0),
        ([b"urgent"], "default", 1),
        ([b"bulk", b"bulk"], "default", 1),
        ([b"bulk, interactive"], "default", 1),
        ([b"i" * 8192], "default", 1),
        ([b"\xff\xfe"], "default", 0),
        ([b"system"], "interactive", 0),
    ],
    ids=lambda value: str(value)[:30],
)
def test_no_value_fails_a_request(values, expected, unknown):
    assert decided(*values) == (f"class={expected}", unknown)


@pytest.mark.parametrize("value", [b"bulk\x00", b"bulk\rsystem", b"\x00", b"bulk\nx: y\x00"])
def test_control_characters_are_400_and_the_connection_is_closed(value):
    async def main() -> None:
        async with site(4, backend=Backend(auto=True)) as here, connected(here.url) as client:
            client.send(
                b"GET /x HTTP/1.1\r\nhost: x\r\nx-fairlead-priority: " + value + b"\r\n\r\n"
            )
            head, _ = await client.response()
            assert head.status == 400
            assert await client.ended() == b""
            assert here.backend.seen == 0
            await here.quiet()

    run(main())


def test_a_line_break_cannot_smuggle_a_second_value():
    """What follows CR LF is another field, and two values are default."""
    assert decided(b"bulk\r\nx-smg-priority: system")[0] == "class=default"


@pytest.mark.parametrize("path", ["/v1/x", "/x"])
def test_a_body_beyond_the_limit_is_413_in_the_form_of_its_path(path):
    async def main() -> None:
        async with site(1, limits={"body_bytes": 1000}, backend=Backend(auto=True)) as here:
            head, body = await fetch(here.url, "POST", path, [ASKS], b"x" * 1001)
            assert (head.status, code(head, body)) == (413, "body_too_large")
            assert ("error" in json.loads(body)) == path.startswith("/v1/")
            async with connected(here.url) as client:
                client.request("POST", path, [("transfer-encoding", "chunked")])
                client.send(b"3e9\r\n" + b"x" * 1001 + b"\r\n0\r\n\r\n")
                head, body = await client.response()
                assert (head.status, code(head, body)) == (413, "body_too_large")
            assert here.gauge("admissions_total", outcome="rejected_queue_full") == 0
            await here.quiet()

    run(main())


def test_a_refused_head_request_has_no_body_and_keeps_the_connection_in_step():
    async def main() -> None:
        async with site(1, classes={"default": {"queue_size": 0}}) as here:
            holder, held = await here.running_one()
            async with connected(here.url) as client:
                client.request("HEAD", "/v1/x")
                head, body = await client.response(bodiless=True)
                assert (head.status, body) == (429, b"")
                assert int(head.get("content-length")) > 0
                held.answer()
                await fine(holder)
                client.request("GET", "/next")
                (await here.backend.arrival()).answer(body=b"in step")
                assert await fine(client) == b"in step"
            await here.quiet()

    run(main())
