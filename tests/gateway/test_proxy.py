"""The proxy, over real sockets: what passes, what is cut, who is told when somebody leaves."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from fairlead.gateway.client import BadAnswer
from fairlead.gateway.client import pool as pools
from fairlead.gateway.fleet import Fleet
from fairlead.gateway.forwarding import request_headers, response_headers, trust
from fairlead.gateway.proxy import Proxy
from fairlead.gateway.settings import Settings, Tenants
from fairlead.serving.listener import VANISHED
from tests.gateway.proxies import idle, proxied
from tests.gateway.rig import Backend, Client, Cut, connected, fetch, served, until, within
from tests.gateway.rig import run_on_uvloop as run

TCP_REPAIR = 19  # of Linux: to take a connection apart, and so to end it unseen
SOON = 0.25  # seconds within which a backend must learn that its client has left


async def closed_port() -> str:
    """Find a port where nobody listens."""
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return f"http://127.0.0.1:{port}"


def test_a_request_and_its_answer_pass_as_they_are():
    async def main():
        async with Backend() as one, proxied(one) as (url, _), connected(url) as client:
            sent = [("x-a", "1"), ("x-a", "2"), ("accept-encoding", "br"), ("cookie", "a=b")]
            client.request("PATCH", "/a//b/../%7Ec?x=%2F&y=a+b&z", sent, b"\x00\xff" * 9)
            held = await one.arrival()
            assert (held.method, held.target) == ("PATCH", "/a//b/../%7Ec?x=%2F&y=a+b&z")
            assert held.body == b"\x00\xff" * 9
            assert held.head.all("x-a") == ["1", "2"]
            assert held.head.all("host") == [one.url.removeprefix("http://")]
            assert [held.head.get(name) for name in ("cookie", "accept-encoding")] == ["a=b", "br"]
            for name in ("user-agent", "accept", "content-type"):
                assert held.head.all(name) == []  # nothing is added
            held.answer(
                418,
                b"\x1f\x8b not gzip",
                [("set-cookie", "a=1"), ("set-cookie", "b=2"), ("content-encoding", "gzip")],
            )
            head, body = await client.response()
            assert (head.status, body) == (418, b"\x1f\x8b not gzip")
            assert head.all("set-cookie") == ["a=1", "b=2"]
            assert len(head.all("date")) == 1
            assert head.all("content-length") == [str(len(body))]

    run(main())


def test_what_belongs_to_one_connection_stays_there():
    async def main():
        async with Backend() as one, proxied(one) as (url, _), connected(url) as client:
            dropped = {
                "connection": "keep-alive, X-Mine, content-length",
                "keep-alive": "timeout=9",
                "x-mine": "1",
                "proxy-authorization": "basic x",
                "te": "trailers",
                "x-fairlead-decision": "1",
                "x-fairlead-retry-token": "abc",
            }
            kept = {"x-fairlead-priority": "bulk", "priority": "u=1", "authorization": "Bearer k"}
            client.request("POST", "/", [*dropped.items(), *kept.items()], b"hi")
            held = await one.arrival()
            assert {name for name, _ in held.head.headers} & set(dropped) == set()
            assert {name: held.head.get(name) for name in kept} == kept
            assert held.head.get("content-length") == "2"
            held.answer(
                200,
                b"ok",
                [
                    ("connection", "x-its"),
                    ("x-its", "1"),
                    ("keep-alive", "timeout=5"),
                    ("x-b", "2"),
                ],
            )
            head, _ = await client.response()
            names = {name for name, _ in head.headers}
            assert names == {"date", "content-length", "x-b"}

    run(main())


def test_the_client_is_named_to_the_backend():
    async def main():
        forged = [
            ("x-forwarded-for", "1.2.3.4"),
            ("x-forwarded-proto", "https"),
            ("x-t", "acme"),
            ("forwarded", "for=1.2.3.4"),
            ("x-real-ip", "1.2.3.4"),
        ]
        tenants = {"trusted_header": "X-T"}
        for trusted, expected in (
            (["127.0.0.0/8"], ("1.2.3.4, 127.0.0.1", "https", "localhost", "acme")),
            ([], ("127.0.0.1", "http", "localhost", "")),
        ):
            async with (
                Backend() as one,
                proxied(one, tenants={**tenants, "trusted_proxies": trusted}) as (url, _),
                connected(url) as client,
            ):
                client.request("GET", "/", forged)
                held = await one.arrival()
                names = ("x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-t")
                assert tuple(held.head.get(name) for name in names) == expected
                hearsay = [held.head.get(name) for name in ("forwarded", "x-real-ip")]
                assert hearsay == (["for=1.2.3.4", "1.2.3.4"] if trusted else ["", ""])
                held.answer()
                await client.response()

    run(main())


@pytest.mark.parametrize("status", [204, 304])
def test_answers_without_a_body(status):
    async def main():
        async with Backend() as one, proxied(one) as (url, _), connected(url) as client:
            for headers in ([], [("content-length", "5")] if status == 304 else []):
                client.request("GET", "/")
                held = await one.arrival()
                held.start(status, [("etag", "x"), *headers])
                held.done.set()
                head = await client.head()
                assert (head.status, head.get("etag")) == (status, "x")
                assert not head.get("transfer-encoding")
            client.request("GET", "/")
            (await one.arrival()).answer()
            assert (await client.response())[1] == b"done"

    run(main())


def test_head_has_the_length_and_no_body():
    async def main():
        async with Backend() as one, proxied(one) as (url, _), connected(url) as client:
            client.request("HEAD", "/")
            (await one.arrival()).answer(200, b"12345")
            head = await client.head()
            assert (head.status, head.get("content-length")) == (200, "5")
            client.request("GET", "/")
            (await one.arrival()).answer()
            assert (await client.response())[1] == b"done"

    run(main())


def test_events_arrive_one_by_one():
    async def main():
        async with Backend() as one, proxied(one) as (url, _), connected(url) as client:
            client.request("GET", "/")
            held = await one.arrival()
            held.stream()
            head = await client.head()  # before there is any event
            assert head.get("content-type") == "text/event-stream"
            for number in range(5):
                held.event(str(number))
                assert await client.chunk() == f"data: {number}\n\n".encode()
            held.finish()
            assert await client.chunk() == b""

    run(main())


def test_a_body_goes_up_piece_by_piece():
    async def main():
        async with Backend() as one, proxied(one) as (url, _), connected(url) as client:
            client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
            client.send("1\r\n0\r\n")
            held = await one.arrival()
            assert await within(held.pieces.get()) == b"0"
            for number in range(1, 5):
                client.send(f"1\r\n{number}\r\n")
                assert await within(held.pieces.get()) == b"%d" % number
            client.send("0\r\n\r\n")
            assert await within(held.pieces.get()) == b""
            held.answer()
            assert (await client.response())[1] == b"done"

    run(main())


def test_a_large_body_passes_both_ways_without_being_held():
    async def main():
        large = bytes(range(256)) * 16_000  # 4 MB
        async with Backend() as one, proxied(one) as (url, _), connected(url) as client:
            client.request("POST", "/", [("content-type", "x/y")], large)
            held = await one.arrival()
            assert held.head.get("content-length") == str(len(large))
            assert held.body == large
            held.answer(200, large)
            assert (await client.response())[1] == large

    run(main())


def test_an_answer_that_comes_before_the_body_has_gone_up_is_passed_on():
    async def main():
        async with Backend() as one, proxied(one) as (url, _), connected(url) as client:
            client.send(
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"
            )
            held = await one.arrival()
            held.answer(413, b"too much")
            head, body = await client.response()
            assert (head.status, body) == (413, b"too much")
            client.send("1\r\na\r\n0\r\n\r\n")
            client.request("GET", "/next")
            (await one.arrival()).answer()
            assert (await client.response())[1] == b"done"

    run(main())


def test_100_continue_is_honoured():
    async def main():
        async with Backend() as one, proxied(one) as (url, _), connected(url) as client:
            client.send(
                "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
            )
            assert (await client.head()).status == 100
            client.send("hi")
            held = await one.arrival()
            assert held.body == b"hi"
            assert not held.head.get("expect")
            held.answer()
            assert (await client.response())[0].status == 200

    run(main())


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("when", ["before the answer", "while it streams", "while it uploads"])
def test_a_client_that_leaves_ends_the_call(when, how):
    async def main():
        async with Backend() as one, proxied(one) as (url, fleet), connected(url) as client:
            if when == "while it uploads":
                client.send(
                    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"
                )
            else:
                client.request("GET", "/")
            held = await one.arrival()
            if when == "while it streams":
                held.stream()
                held.event("1")
                await client.head()
                await client.chunk()
            client.close() if how == "close" else client.reset()
            if when == "while it uploads":
                await until(lambda: not one.connections, SOON)
            else:
                await within(held.gone.wait(), SOON)
            await until(lambda: idle(fleet), SOON)

    run(main())


def test_a_client_that_vanishes_without_a_word_is_noticed(monkeypatch):
    """No FIN and no RST, as when a machine loses its power: only who asks hears that nobody is there."""
    quickly = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 1}
    assert sum(VANISHED.values()) <= 60
    monkeypatch.setattr("fairlead.serving.listener.VANISHED", quickly)

    async def main():
        async with Backend() as one, proxied(one) as (url, fleet):
            client = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
            client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            held = await one.arrival()
            try:
                client.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
            except OSError:
                client.close()
                pytest.skip("only root may close a connection without a word")
            client.close()
            await within(held.gone.wait())
            await until(lambda: idle(fleet), SOON)

    run(main())


def test_what_goes_wrong_with_receiving_ends_the_call_and_is_raised():
    class TooMuch(Exception): ...

    async def main():
        async with Backend() as one, proxied(one) as (_, fleet):
            proxy = Proxy(fleet, Settings())
            scope: dict[str, Any] = {
                "type": "http",
                "method": "POST",
                "path": "/",
                "headers": [],
                "client": None,
            }
            messages = [{"type": "http.request", "body": b"a", "more_body": True}]

            async def receive() -> Any:
                if messages:
                    return messages.pop()
                await one.arrivals.get()
                raise TooMuch

            async def send(message: Any) -> None: ...

            with pytest.raises(TooMuch):
                await within(proxy(scope, receive, send))
            await until(lambda: not one.connections, SOON)
            await proxy.close()

    run(main())


@pytest.mark.parametrize("leaving", [False, True])
def test_a_cancelled_task_ends_the_call_and_stays_cancelled(leaving):
    async def main():
        async with Backend() as one, proxied(one) as (_, fleet):
            proxy = Proxy(fleet, Settings())
            scope = {
                "type": "http",
                "method": "GET",
                "path": "/",
                "raw_path": b"/",
                "query_string": b"",
                "headers": [],
                "client": ("127.0.0.1", 1),
            }
            messages: asyncio.Queue[Any] = asyncio.Queue()
            messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})

            async def send(message: Any) -> None: ...

            task = asyncio.create_task(proxy(scope, messages.get, send))
            held = await one.arrival()
            if leaving:  # the client's leaving must not swallow what others want
                messages.put_nowait({"type": "http.disconnect"})
                await until(task.cancelling, pause=0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert task.cancelled()
            await within(held.gone.wait(), SOON)
            await proxy.close()

    run(main())


def test_a_backend_that_cannot_be_reached_is_passed_over():
    async def main():
        nobody = await closed_port()
        async with Backend(auto=True) as one, proxied(nobody, one) as (url, fleet):
            for _ in range(4):
                head, _ = await fetch(url, "POST", "/", body=b"x")
                assert head.status == 200
            states = {each["url"]: each["state"] for each in fleet.describe()}
            assert states == {nobody: "unhealthy", one.url: "healthy"}

    run(main())


def test_a_streamed_body_survives_the_move_to_another_backend():
    async def main():
        nobody = await closed_port()
        async with (
            Backend() as one,
            proxied(nobody, one) as (url, _),
            connected(url) as client,
        ):
            client.send(
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n"
            )
            held = await one.arrival()
            client.send("3\r\n you\r\n0\r\n\r\n".replace("3", "4"))
            while await within(held.pieces.get()):
                pass
            assert held.body == b"hi you"
            held.answer()
            assert (await client.response())[0].status == 200

    run(main())


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\nx: a\0b\r\n\r\n", b"what?\r\n\r\n"])
def test_a_bad_answer_takes_one_line_of_the_log_and_shows_no_query(answer, caplog):
    async def main():
        async with Backend() as one, proxied(one) as (url, _), connected(url) as client:
            client.request(target="/x?key=hunter2")
            (await one.arrival()).raw(answer)
            assert (await client.response())[0].status == 502

    run(main())
    (line,) = [record.getMessage() for record in caplog.records if "failed" in record.getMessage()]
    assert line.isprintable()
    assert "hunter2" not in caplog.text


def test_when_nobody_can_be_reached_it_is_503_from_the_first_on():
    async def main():
        nobody = await closed_port()
        async with proxied(nobody) as (url, _):
            head, body = await fetch(url)
            assert (head.status, json.loads(body)["code"]) == (503, "no_healthy_upstream")
            assert head.get("retry-after") == "1"
            head, body = await fetch(url, "GET", "/v1/x")
            assert head.status == 503
            assert head.get("retry-after") == "1"
            assert json.loads(body)["error"]["code"] == "no_healthy_upstream"

    run(main())


@pytest.mark.parametrize("method", ["PATCH", "POST"])
def test_a_backend_that_hangs_up_before_it_answers_is_502_and_not_asked_again(method):
    async def main():
        async with (
            Backend() as one,
            Backend() as two,
            proxied(one, two) as (url, _),
            connected(url) as client,
        ):
            client.request(method, "/")
            waits = [asyncio.create_task(each.arrival()) for each in (one, two)]
            done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result().die()
            head, body = await client.response()
            assert (head.status, json.loads(body)["code"]) == (502, "upstream_failed")
            assert one.seen + two.seen == 1
            for task in pending:
                task.cancel()

    run(main())


@pytest.mark.parametrize("end", ["die", "hang_up"])
@pytest.mark.parametrize("framing", ["chunked", "length"])
def test_a_backend_that_dies_while_it_answers_cuts_the_body(framing, end):
    async def main():
        async with Backend() as one, proxied(one) as (url, _), connected(url) as client:
            client.request("GET", "/")
            held = await one.arrival()
            if framing == "chunked":
                held.stream()
                held.event("1")
            else:
                held.start(200, [("content-length", "100")])
                held.raw(b"only this")
            head = await client.head()
            getattr(held, end)()
            with pytest.raises(Cut):
                if framing == "chunked":
                    while await client.chunk():
                        pass
                else:
                    await client.reader.readexactly(9)
                    await read_rest(client, int(head.get("content-length")) - 9)

    run(main())


SILENT = {"upstream_timeout": 0.4}


def test_a_backend_that_never_answers_is_504_and_its_call_is_ended():
    async def main():
        async with Backend() as one, proxied(one, **SILENT) as (url, _), connected(url) as client:
            for path in ("/x", "/v1/x"):
                client.request("GET", path)
                held = await one.arrival()
                head, body = await client.response()
                assert head.status == 504
                assert head.get("x-fairlead-error-code") == "upstream_timeout"
                assert b"upstream_timeout" in body
                await within(held.gone.wait(), SOON)
            client.request()
            (await one.arrival()).answer()
            assert (await client.response())[0].status == 200, "the connection goes on"

    run(main())


def test_a_backend_that_falls_silent_while_it_answers_cuts_the_body():
    async def main():
        async with Backend() as one, proxied(one, **SILENT) as (url, _), connected(url) as client:
            client.request()
            held = await one.arrival()
            held.stream()
            held.event("1")
            await client.head()
            await client.chunk()
            with pytest.raises(Cut):
                await client.chunk()
            await within(held.gone.wait(), SOON)

    run(main())


def test_a_backend_that_goes_on_slowly_is_not_silent():
    async def main():
        async with Backend() as one, proxied(one, **SILENT) as (url, _), connected(url) as client:
            client.request()
            held = await one.arrival()
            held.stream()
            for number in range(7):
                await asyncio.sleep(0.1)
                held.event(str(number))
            held.finish()
            head = await client.head()
            assert head.status == 200
            assert (await read_chunks(client)).count(b"data") == 7

    run(main())


async def read_chunks(client: Client) -> bytes:
    body = b""
    while chunk := await client.chunk():
        body += chunk
    return body


def test_a_client_that_takes_its_time_is_not_the_backends_silence():
    """With its body, then with taking its answer."""

    async def main():
        async with Backend() as one, proxied(one, **SILENT) as (url, _), connected(url) as client:
            client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
            client.send("1\r\nx\r\n")
            held = await one.arrival()
            for _ in range(7):
                await asyncio.sleep(0.1)
                client.send("1\r\nx\r\n")
            client.send("0\r\n\r\n")
            while await within(held.pieces.get()):
                pass
            large = b"y" * 20_000_000
            held.answer(body=large)
            await asyncio.sleep(0.8)
            head, body = await client.response()
            assert (head.status, body) == (200, large)

    run(main())


def test_a_backend_that_does_not_take_the_body_is_504():
    async def main():
        size = 8_000_000
        async with (
            deaf_backend() as target,
            proxied(target, **SILENT) as (url, _),
            connected(url) as client,
        ):
            client.send(f"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n")
            client.send(b"x" * size)
            head, _ = await client.response()
            assert (head.status, head.get("x-fairlead-error-code")) == (504, "upstream_timeout")
            client.reset()

    run(main())


@asynccontextmanager
async def deaf_backend() -> AsyncIterator[str]:
    """Accept connections and read next to nothing of what is sent; give the URL."""
    over = asyncio.Event()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    server = await asyncio.start_server(deaf, sock=listening)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        over.set()
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_client_that_leaves_an_upload_that_nobody_takes_is_seen_to(how):
    async def main():
        async with (
            deaf_backend() as target,
            proxied(target) as (url, fleet),
            connected(url) as client,
        ):
            client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 8000000\r\n\r\n")
            client.send(b"x" * 7_500_000)
            await client.writer.drain()
            await until(lambda: not idle(fleet))
            await until(lambda: not client.writer.transport.get_write_buffer_size())
            assert not idle(fleet)
            client.close() if how == "close" else client.reset()
            await until(lambda: idle(fleet), SOON)

    run(main())


def test_what_is_held_of_all_uploads_together_is_bounded(monkeypatch):
    monkeypatch.setattr("fairlead.gateway.call.MOST_HELD", 1_000_000)

    async def main():
        async with AsyncExitStack() as backend:
            target = await backend.enter_async_context(deaf_backend())
            settings = Settings(upstreams=[{"url": target, "capacity": 8}])  # type: ignore[list-item]
            fleet = Fleet(settings, lambda: None)
            await fleet.start()
            proxy = Proxy(fleet, settings)
            async with served(proxy) as url, AsyncExitStack() as stack:
                for _ in range(4):
                    client = await stack.enter_async_context(connected(url))
                    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 8000000\r\n\r\n")
                    client.send(b"x" * 7_500_000)
                    stack.callback(client.reset)
                await until(lambda: proxy.uploads.held > 1_000_000)
                held = 0
                while held != proxy.uploads.held:  # until nothing more is read
                    held = proxy.uploads.held
                    await asyncio.sleep(0.2)
                assert held < 12_000_000, "each has eight reads of 256 KiB besides"
                await backend.aclose()
                await until(lambda: idle(fleet))
                assert proxy.uploads.held == 0
            await proxy.close()
            await fleet.stop()

    run(main())


async def read_rest(client: Client, count: int) -> None:
    try:
        await within(client.reader.readexactly(count))
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise Cut(str(error)) from None


BAD_ANSWERS = {
    "no HTTP": b"nonsense\r\n\r\n",
    "NUL in a value": b"HTTP/1.1 200 OK\r\nx: a\0b\r\ncontent-length: 0\r\n\r\n",
    "escape in a value": b"HTTP/1.1 200 OK\r\nx: a\x1bb\r\ncontent-length: 0\r\n\r\n",
    "a bad name": b"HTTP/1.1 200 OK\r\nx y: a\r\ncontent-length: 0\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
    "a switch of protocols": b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    "an odd status": b"HTTP/1.1 999 Odd\r\ncontent-length: 0\r\n\r\n",
}


@pytest.mark.parametrize("raw", BAD_ANSWERS.values(), ids=BAD_ANSWERS)
def test_an_answer_that_no_client_should_parse_is_502(raw):
    async def main():
        async with Backend() as one, proxied(one) as (url, _), connected(url) as client:
            client.request("GET", "/")
            held = await one.arrival()
            held.raw(raw)
            head, body = await client.response()
            assert (head.status, json.loads(body)["code"]) == (502, "upstream_failed")

    run(main())


def test_headers_of_an_answer_are_checked_without_a_parser_too():
    with pytest.raises(BadAnswer):
        response_headers([(b"x", b"a\r\nset-cookie: b")], 200)
    with pytest.raises(BadAnswer):
        response_headers([(b"content-length", b"1"), (b"content-length", b"2")], 200)
    same = [(b"Content-Length", b"1"), (b"content-length", b"1")]
    assert response_headers(same, 200) == [(b"content-length", b"1")]
    both = [(b"transfer-encoding", b"chunked"), (b"content-length", b"1"), (b"x", b"y")]
    assert response_headers(both, 200) == [(b"x", b"y")]


def test_a_client_cannot_unmake_the_length_of_its_body():
    headers = [(b"connection", b"content-length, x"), (b"content-length", b"5"), (b"x", b"1")]
    passed = request_headers({"headers": headers}, Tenants(), trust([]))
    assert passed == [(b"content-length", b"5"), (b"x-forwarded-proto", b"http")]


def test_bytes_of_a_header_pass_unchanged_and_trust_knows_mapped_addresses():
    scope = {"headers": [(b"x", "é".encode()), (b"y", b"\xe9")], "client": ("::ffff:10.0.0.1", 1)}
    trusted = trust(["10.0.0.0/8"])
    assert trusted("::ffff:10.0.0.1")
    assert not trusted("unix socket")
    passed = dict(request_headers(scope, Tenants(), trusted))
    assert (passed[b"x"], passed[b"y"]) == ("é".encode(), b"\xe9")


def test_an_answer_that_ends_with_the_connection_passes():
    async def main():
        async with Backend() as one, proxied(one) as (url, _), connected(url) as client:
            client.request("GET", "/")
            held = await one.arrival()
            held.start(200, [("connection", "close")])
            held.raw(b"until the end")
            held.hang_up()
            assert (await client.response())[1] == b"until the end"

    run(main())


def test_redirects_are_the_client_s_to_follow():
    async def main():
        async with Backend() as one, proxied(one) as (url, _), connected(url) as client:
            client.request("GET", "/")
            (await one.arrival()).answer(302, b"", [("location", "http://10.0.0.1/")])
            head, _ = await client.response()
            assert (head.status, head.get("location")) == (302, "http://10.0.0.1/")

    run(main())


def test_a_large_header_of_an_answer_passes():
    async def main():
        async with Backend() as one, proxied(one) as (url, _), connected(url) as client:
            client.request("GET", "/")
            headers = [("x-large", "a" * 30_000), *(("x-many", str(n)) for n in range(300))]
            (await one.arrival()).answer(200, b"ok", headers)
            head, _ = await client.response()
            assert len(head.get("x-large")) == 30_000
            assert len(head.all("x-many")) == 300

    run(main())


def test_calls_are_spread_and_connections_reused_without_delay(monkeypatch):
    monkeypatch.setattr(pools, "REST", 0.0)

    async def main():
        async with (
            Backend(auto=True) as one,
            Backend(auto=True) as two,
            proxied(one, two) as (url, _),
            connected(url) as client,
        ):
            for _ in range(2):
                await client.ask()
            started = asyncio.get_running_loop().time()
            for _ in range(28):
                assert (await client.ask())[0].status == 200
            # Nagle's delay would cost 40 ms each.
            assert asyncio.get_running_loop().time() - started < 29 * 0.03
            assert (one.seen, two.seen) == (15, 15)
            assert len(one.connections) == len(two.connections) == 1

    run(main())


def test_other_kinds_of_scope():
    async def main():
        fleet = Fleet(Settings(), lambda: None)
        proxy = Proxy(fleet, Settings())
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        def receiving(*kinds: str) -> Any:
            left = [{"type": kind} for kind in kinds]

            async def receive() -> Any:
                return left.pop(0)

            return receive

        await proxy({"type": "websocket"}, receiving("websocket.connect"), send)
        assert sent.pop()["type"] == "websocket.close"
        lifespan = receiving("lifespan.startup", "lifespan.shutdown")
        await proxy({"type": "lifespan"}, lifespan, send)
        kinds = [message["type"] for message in sent]
        assert kinds == ["lifespan.startup.complete", "lifespan.shutdown.complete"]

    run(main())
