"""The gateway's HTTP/1.1, over raw sockets: what is ambiguous, too large or too slow is refused in full."""

import asyncio
import json
import re
import tracemalloc
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

import fairlead.serving.protocol
from fairlead.gateway.protocol import GatewayProtocol
from fairlead.serving.limits import Limits
from tests.gateway.rig import Client, connected, listening, served, within
from tests.gateway.rig import run_on_uvloop as run

HOST = "Host: a\r\n"
CHUNKED = f"POST / HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n"


def post(*headers: str, body: str = "hello") -> str:
    return "\r\n".join(["POST / HTTP/1.1", "Host: a", *headers, "", body])


def get(*headers: str, target: str = "/") -> str:
    return "\r\n".join([f"GET {target} HTTP/1.1", *headers, "", ""])


AMBIGUOUS = {
    "length and chunked": post("Content-Length: 5", "Transfer-Encoding: chunked"),
    "chunked and length": post("Transfer-Encoding: chunked", "Content-Length: 5"),
    "two lengths": post("Content-Length: 5", "Content-Length: 6"),
    "the same length twice": post("Content-Length: 5", "Content-Length: 5"),
    "a list of lengths": post("Content-Length: 5, 5"),
    "a plus": post("Content-Length: +5"),
    "a minus": post("Content-Length: -5"),
    "hexadecimal": post("Content-Length: 0x5"),
    "no digits": post("Content-Length:"),
    "other digits": post("Content-Length: \xb2"),
    "an overflow": post("Content-Length: 99999999999999999999999"),
    "xchunked": post("Transfer-Encoding: xchunked"),
    "identity": post("Transfer-Encoding: identity"),
    "gzip below chunked": post("Transfer-Encoding: gzip, chunked"),
    "identity over chunked": post("Transfer-Encoding: chunked, identity"),
    "chunked twice": post("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
    "a vertical tab": post("Transfer-Encoding: \x0bchunked"),
    "chunked in HTTP/1.0": f"POST / HTTP/1.0\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a folded line": get("Host: a", "X: 1", " 2"),
    "a folded coding": post("Transfer-Encoding:", " chunked"),
    "bare line feeds": "GET / HTTP/1.1\nHost: a\n\n",
    "a bare line feed": "GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n",
    "a bare line feed at the end": "GET / HTTP/1.1\r\nHost: a\r\n\n",
    "a bare carriage return": get("Host: a", "X: a\rb"),
    "a space before the colon": get("Host : a"),
    "a space before the name": get(" Host: a"),
    "no colon": get("Host: a", "nonsense"),
    "no name": get("Host: a", ": x"),
    "NUL": get("Host: a", "X: a\0b"),
    "DEL": get("Host: a", "X: a\x7fb"),
    "escape": get("Host: a", "X: a\x1bb"),
    "no host": get("X: a"),
    "two hosts": get("Host: a", "Host: a"),
    "a host with a path": get("Host: a/b@c"),
    "an absolute target": get("Host: a", target="http://a/"),
    "another host's target": get("Host: a", target="http://b/"),
    "an asterisk": f"OPTIONS * HTTP/1.1\r\n{HOST}\r\n",
    "a fragment": get("Host: a", target="/a#b"),
    "a target that is not ASCII": get("Host: a", target="/\xe9"),
    "a space in the target": get("Host: a", target="/a b"),
    "an unknown method": f"FROB / HTTP/1.1\r\n{HOST}\r\n",
    "a method in lower case": f"get / HTTP/1.1\r\n{HOST}\r\n",
    "HTTP/1.2": f"GET / HTTP/1.2\r\n{HOST}\r\n",
    "HTTP/2's preface": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a chunk size that is none": CHUNKED + "zz\r\nhi\r\n0\r\n\r\n",
    "a negative chunk size": CHUNKED + "-2\r\nhi\r\n0\r\n\r\n",
    "a chunk size that overflows": CHUNKED + "fffffffffffffffff\r\nhi\r\n0\r\n\r\n",
    "a chunk size and a space": CHUNKED + "2 \r\nhi\r\n0\r\n\r\n",
    "a chunk size and a bare line feed": CHUNKED + "2\nhi\r\n0\r\n\r\n",
    "a chunk longer than it says": CHUNKED + "2\r\nhixx0\r\n\r\n",
    "a chunk extension of 1 MiB": CHUNKED + f"2;a={'b' * 1_048_576}\r\nhi\r\n0\r\n\r\n",
    "many chunk extensions": CHUNKED + f"1;a={'b' * 90}\r\nx\r\n" * 1000 + "0\r\n\r\n",
    "a flood of trailers": CHUNKED + "2\r\nhi\r\n0\r\n" + "X-Evil: 1\r\n" * 5000 + "\r\n",
}
OTHERWISE = {
    "an expectation": (417, post("Expect: the-unexpected", "Content-Length: 5")),
    "CONNECT": (405, f"CONNECT a:80 HTTP/1.1\r\n{HOST}\r\n"),
    "TRACE": (405, f"TRACE / HTTP/1.1\r\n{HOST}\r\n"),
    "HTTP/2.0": (505, f"GET / HTTP/2.0\r\n{HOST}\r\n"),
    "websocket": (426, get("Host: a", "Connection: Upgrade", "Upgrade: websocket")),
    "101 fields": (431, get("Host: a", *["X: 1"] * 100)),
    "64 KiB of a field": (431, get("Host: a", "X: " + "1" * 65_600)),
    "1 MB of a field, unfinished": (431, "GET / HTTP/1.1\r\nX: " + "1" * 1_000_000),
    "1 MB of a target": (431, get("Host: a", target="/" + "1" * 1_000_000)),
    "a length over the limit": (413, post("Content-Length: 8388609")),
}
REFUSED = {name: (400, raw) for name, raw in AMBIGUOUS.items()} | OTHERWISE
SERVED = {
    "HTTP/1.0 without a host": ("GET / HTTP/1.0\r\n\r\n", b""),
    "100 fields": (get("Host: a", *["X: 1"] * 99), b""),
    "60 kB of a field": (get("Host: a", "X: " + "1" * 60_000), b""),
    "a port": (get("Host: [::1]:80"), b""),
    "blanks after a length": (post("Content-Length: 5 \t"), b"hello"),
    "chunks": (CHUNKED + "2\r\nhi\r\n1;a=b\r\n!\r\n0\r\n\r\n", b"hi!"),
    "a trailer": (CHUNKED + "2\r\nhi\r\n0\r\nX-Evil: 1\r\n\r\n", b"hi"),
    "an offer of h2c": (get("Host: a", "Connection: Upgrade", "Upgrade: h2c"), b""),
    "an offer of h2c and a body": (
        post("Connection: Upgrade", "Upgrade: h2c", "Content-Length: 5"),
        b"hello",
    ),
    "an offer of h2c and chunks": (
        CHUNKED.replace("Host", "Connection: Upgrade\r\nUpgrade: h2c\r\nHost")
        + "2\r\nhi\r\n0\r\n\r\n",
        b"hi",
    ),
}


class App:
    """Echo the body; count the calls; park those for /held until released."""

    def __init__(self) -> None:
        self.calls = 0
        self.fields: list[int] = []
        self.arrived = asyncio.Event()
        self.release = asyncio.Event()
        self.gone = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls += 1
        self.arrived.set()
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.gone.set()
                return
            body += message["body"]
            if not message["more_body"]:
                break
        if scope["path"] == "/held":
            await self.wait(receive)
        self.fields.append(len(scope["headers"]))
        length = (b"content-length", b"%d" % len(body))
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})

    async def wait(self, receive: Any) -> None:
        leaving = asyncio.create_task(receive())
        released = asyncio.create_task(self.release.wait())
        await asyncio.wait({leaving, released}, return_when=asyncio.FIRST_COMPLETED)
        if leaving.done():
            self.gone.set()
        for task in (leaving, released):
            task.cancel()


def test_what_is_ambiguous_or_too_large_is_refused_with_json_and_a_closed_connection():
    async def main():
        app = App()
        found = {}
        async with served(app) as url:
            for name, (_, raw) in REFUSED.items():
                async with connected(url) as client:
                    client.send(raw)
                    head, body = await client.response()
                    assert head.get("connection") == "close", name
                    assert await client.ended() == b"", name
                    document = json.loads(body)
                    assert document["status"] == head.status, name
                    assert document["code"] == head.get("x-fairlead-error-code"), name
                    assert document["detail"], name
                    found[name] = head.status
        assert found == {name: status for name, (status, _) in REFUSED.items()}
        assert not app.fields  # nothing was answered by the app

    run(main())


def test_what_is_plain_is_served_and_the_connection_goes_on():
    async def main():
        app = App()
        async with served(app) as url:
            for name, (raw, expected) in SERVED.items():
                async with connected(url) as client:
                    client.send(raw)
                    head, body = await client.response()
                    assert (head.status, body) == (200, expected), name
                    if "HTTP/1.0" not in name:
                        assert (await client.ask("POST", "/", body=b"again"))[1] == b"again", name

    run(main())


class TestOldClients:
    """HTTP/1.0 knows no chunks: what has no length ends with the connection."""

    RAW = "GET /v HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"

    @staticmethod
    async def pieces(scope, receive, send):
        headers = [(b"x-said", b"1"), (b"Transfer-Encoding", b"chunked")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"one,", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        await send({"type": "http.response.body", "body": b"two"})

    def test_an_answer_without_a_length_is_written_as_it_is(self):
        async def main():
            async with served(self.pieces) as url, connected(url) as client:
                client.send(self.RAW)
                head = await client.head()
                assert head.status == 200
                assert head.get("x-said") == "1"
                assert head.get("connection") == "close"
                assert not head.get("transfer-encoding") + head.get("content-length")
                assert await client.ended() == b"one,two"

        run(main())

    def test_one_with_a_length_keeps_it(self):
        async def main():
            async with served(App()) as url, connected(url) as client:
                client.send("POST / HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello")
                head, body = await client.response()
                assert (head.get("content-length"), body) == ("5", b"hello")
                assert await client.ended() == b""

        run(main())

    def test_one_that_breaks_off_is_a_reset_and_no_end(self):
        async def broken(scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"one,", "more_body": True})
            await arrived.wait()
            raise RuntimeError("it broke")

        arrived = asyncio.Event()

        async def main():
            async with served(broken) as url, connected(url) as client:
                client.send(self.RAW)
                await client.head()
                assert await within(client.reader.readexactly(4)) == b"one,"
                arrived.set()
                with pytest.raises(ConnectionResetError):
                    await within(client.reader.read())

        run(main())


def test_a_trailer_is_never_a_header():
    async def main():
        app = App()
        async with served(app) as url, connected(url) as client:
            client.send(CHUNKED + "2\r\nhi\r\n0\r\nX-Evil: 1\r\n\r\n")
            await client.response()
        assert app.fields == [2]

    run(main())


def test_errors_on_v1_paths_have_the_form_of_openai():
    async def main():
        async with served(App()) as url, connected(url) as client:
            client.send("GET /v1/models HTTP/1.1\r\n\r\n")
            _, body = await client.response()
            assert json.loads(body)["error"]["code"] == "bad_request"

    run(main())


def test_each_split_of_a_request_is_read_alike():
    raw = b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"

    async def main():
        async with served(App()) as url:
            for at in range(1, len(raw)):
                async with connected(url) as client:
                    client.send(raw[:at])
                    await client.writer.drain()
                    await asyncio.sleep(0)
                    client.send(raw[at:])
                    assert (await client.response())[1] == b"hi"

    run(main())


def test_a_chunked_body_over_the_limit_is_413():
    async def main():
        app = App()
        async with served(app, Limits(body_bytes=1000)) as url, connected(url) as client:
            client.send(CHUNKED + f"258\r\n{'a' * 600}\r\n")
            await within(app.arrived.wait())
            client.send(f"258\r\n{'a' * 600}\r\n")
            head, _ = await client.response()
            assert head.status == 413
            assert await client.ended() == b""
            await within(app.gone.wait())

    run(main())


def test_a_413_reaches_a_client_that_goes_on_sending():
    async def main():
        async with served(App(), Limits(body_bytes=1000)) as url, connected(url) as client:
            client.send(post("Content-Length: 4000000", body="a" * 4_000_000))
            head, body = await client.response()
            assert head.status == 413
            assert json.loads(body)["code"] == "body_too_large"

    run(main())


def test_headers_that_come_too_slowly_are_cut():
    async def main():
        limits = Limits(header_timeout=0.1)
        app = App()
        async with served(app, limits) as url:
            async with connected(url) as silent:
                assert await silent.ended() == b""
            async with connected(url) as slow:
                slow.send("GET / HTTP/1.1\r\nHost")
                head, body = await slow.response()
                assert (head.status, json.loads(body)["code"]) == (408, "headers_too_slow")
                assert await slow.ended() == b""
            async with connected(url) as blank:
                await blank.ask("GET", "/")
                blank.send("\r\n")  # a byte that begins no request
                assert await blank.ended() == b""
        assert app.calls == 1

    run(main())


def test_headers_in_drips_are_cut_all_the_same():
    async def main():
        async with (
            served(App(), Limits(header_timeout=0.2)) as url,
            connected(url) as client,
        ):
            client.send("GET / HTTP/1.1\r\nHost: a\r\n")
            ended = asyncio.create_task(client.head())
            while not ended.done():
                client.send("X: 1\r\n")
                await asyncio.wait({ended}, timeout=0.02)
            assert (await ended).status == 408

    run(main())


def test_a_body_that_comes_too_slowly_is_408():
    async def main():
        app = App()
        limits = Limits(body_timeout=0.2)
        async with served(app, limits) as url, connected(url) as client:
            client.send(post("Content-Length: 1000", body="a"))
            head, body = await client.response()
            assert (head.status, json.loads(body)["code"]) == (408, "body_too_slow")
            assert await client.ended() == b""
            await within(app.gone.wait())

    run(main())


def test_a_body_that_we_do_not_read_on_is_not_too_slow():
    async def main():
        go = asyncio.Event()
        fed = asyncio.Event()

        async def reluctant(scope: Any, receive: Any, send: Any) -> None:
            fed.set()
            await go.wait()
            await App()(scope, receive, send)

        limits = Limits(body_timeout=0.1)
        async with served(reluctant, limits) as url, connected(url) as client:
            body = b"a" * 4_000_000
            client.request("POST", "/", body=body)
            await within(fed.wait())
            await asyncio.sleep(0.5)  # five times as long as a slow client would have
            go.set()
            assert (await client.response())[1] == body

    run(main())


def test_a_client_that_waits_for_100_continue_is_not_too_slow():
    async def main():
        go = asyncio.Event()

        async def reluctant(scope: Any, receive: Any, send: Any) -> None:
            await go.wait()
            await App()(scope, receive, send)

        limits = Limits(body_timeout=1.0)
        async with served(reluctant, limits) as url, connected(url) as client:
            client.send(post("Expect: 100-continue", "Content-Length: 5", body=""))
            await asyncio.sleep(1.3)  # longer than a body may take
            go.set()
            assert (await client.head()).status == 100
            client.send("hello")
            assert (await client.response())[1] == b"hello"

    run(main())


def test_a_client_that_does_not_read_its_answer_is_dropped():
    async def main():
        dropped = asyncio.Event()

        async def endless(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            leaving = asyncio.create_task(receive_until_gone(receive))
            while not leaving.done():
                body = b"x" * 65_536
                await send({"type": "http.response.body", "body": body, "more_body": True})
                await asyncio.sleep(0)
            dropped.set()

        async def receive_until_gone(receive: Any) -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        async with served(endless, Limits(body_timeout=0.2)) as url, connected(url) as client:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            client.request("GET", "/")
            await within(dropped.wait())

    run(main())


@pytest.mark.parametrize("together", [True, False])
def test_requests_sent_ahead_are_answered_in_order_and_cost_little_memory(together: bool):
    requests = [
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n%05d" % number
        for number in range(10_000)
    ]

    async def main():
        app = App()
        async with served(app) as url, connected(url) as client:
            client.request("GET", "/held")
            await within(app.arrived.wait())
            tracemalloc.start()
            pieces = [b"".join(requests)] if together else requests
            sending = asyncio.create_task(send_all(client, pieces))
            # The sender stalls once nothing more is read; all it could do by then counts.
            await asyncio.wait({sending}, timeout=1.0)
            grown = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
            assert app.calls == 1
            assert grown < 4_000_000
            app.release.set()
            assert (await client.response())[0].status == 200
            for number in range(len(requests)):
                assert (await client.response())[1] == b"%05d" % number
            await sending

    run(main(), 60)


def test_a_body_sent_ahead_arrives_when_its_turn_comes():
    async def main():
        app = App()
        async with served(app) as url, connected(url) as client:
            client.request("GET", "/held")
            large = b"x" * 300_000
            for _ in range(2):
                client.request("POST", "/", body=large)
            await within(app.arrived.wait())
            app.release.set()
            assert (await client.response())[1] == b""
            assert (await client.response())[1] == large
            assert (await client.response())[1] == large

    run(main())


async def send_all(client: Client, pieces: list[bytes]) -> None:
    for piece in pieces:
        client.send(piece)
        await client.writer.drain()


def test_a_client_that_sent_ahead_and_left_ends_the_request_that_runs():
    async def main():
        app = App()
        async with served(app) as url, connected(url) as client:
            client.request("GET", "/held")
            client.request("GET", "/")
            client.request("GET", "/")
            await within(app.arrived.wait())
            client.reset()
            await within(app.gone.wait(), 1.0)
            assert app.calls == 1

    run(main())


def test_garbage_sent_ahead_is_refused_after_the_answer_it_must_not_spoil():
    async def main():
        app = App()
        async with served(app) as url, connected(url) as client:
            client.request("GET", "/held")
            client.send("GARBAGE\r\n\r\n")
            await within(app.arrived.wait())
            app.release.set()
            assert (await client.response())[0].status == 200
            head, _ = await client.response()
            assert (head.status, head.get("connection")) == (400, "close")
            assert await client.ended() == b""

    run(main())


def test_a_bad_chunk_after_the_answer_began_cuts_it():
    async def main():
        async def early(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"so far", "more_body": True})
            while (await receive())["type"] != "http.disconnect":
                pass

        async with served(early) as url, connected(url) as client:
            client.send(CHUNKED)
            assert (await client.head()).status == 200
            assert await client.chunk() == b"so far"
            client.send("zz\r\n")
            assert await client.ended() == b""

    run(main())


def test_an_early_answer_leaves_the_connection_usable():
    async def main():
        async def hasty(scope: Any, receive: Any, send: Any) -> None:
            headers = [(b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 204, "headers": headers})
            await send({"type": "http.response.body", "body": b""})

        async with served(hasty) as url, connected(url) as client:
            client.send(post("Content-Length: 1000000", body="a"))
            assert (await client.response())[0].status == 204
            client.send("a" * 999_999)
            client.request("GET", "/")
            assert (await client.response())[0].status == 204

    run(main())


def test_a_shutdown_closes_idle_connections_and_finishes_what_runs():
    async def main():
        app = App()
        async with (
            listening(app) as listener,
            connected(listener.url) as idle,
            connected(listener.url) as busy,
        ):
            await idle.ask("GET", "/")
            app.arrived.clear()
            busy.request("GET", "/held")
            await within(app.arrived.wait())
            ending = asyncio.create_task(listener.end(5))
            assert await idle.ended() == b""
            assert not ending.done()
            app.release.set()
            head, _ = await busy.response()
            assert (head.status, head.get("connection")) == (200, "close")
            assert await busy.ended() == b""
            await within(ending)

    run(main())


def test_what_does_not_end_in_time_is_cut():
    async def main():
        app = App()
        async with listening(app) as listener, connected(listener.url) as client:
            client.request("GET", "/held")
            await within(app.arrived.wait())
            await within(listener.end(0.05))
            await client.ended()

    run(main())


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: Any) -> None:
        if not self.closed:
            self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


async def spoken(pieces: list[bytes]) -> tuple[list[Any], bytes]:
    """Feed pieces to a connection without a socket; tell what the app saw whole, and what was written."""
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            if not message["more_body"]:
                break
        seen.append((scope["method"], scope["raw_path"], list(scope["headers"]), body))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, ws="none")
    limits = Limits(body_bytes=100_000)
    protocol = GatewayProtocol(
        limits=lambda: limits, config=config, server_state=ServerState(), app_state={}
    )
    wire = Wire()
    protocol.connection_made(wire)
    for piece in pieces:
        protocol.data_received(piece)
        await asyncio.sleep(0)
    for _ in range(60):
        await asyncio.sleep(0)
    protocol.connection_lost(None)
    for _ in range(3):
        await asyncio.sleep(0)
    return seen, wire.written


SHORT = [raw.encode("latin-1") for _, raw in REFUSED.values() if len(raw) < 5000]
SHORT += [raw.encode("latin-1") for raw, _ in SERVED.values() if len(raw) < 5000]
EDITS = st.tuples(
    st.integers(0, 400), st.integers(0, 6), st.binary(max_size=4) | st.sampled_from(SHORT)
)


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from(SHORT), min_size=1, max_size=3),
    st.lists(EDITS, max_size=3),
    st.lists(st.integers(1, 600), max_size=6),
    st.sampled_from([3, 50, 4096]),
)
def test_however_it_is_mangled_and_split_it_is_read_alike_and_answered_in_full(
    parts, edits, cuts, piece
):
    raw = b"".join(parts)
    for at, length, new in edits:
        raw = raw[:at] + new + raw[at + length :]
    bounds = [0, *sorted(cut for cut in set(cuts) if cut < len(raw)), len(raw)]
    pieces = [raw[start:end] for start, end in pairwise(bounds)]
    seen, written = asyncio.run(spoken([raw]))
    with mock.patch.object(fairlead.serving.protocol, "PIECE", piece):
        assert asyncio.run(spoken(pieces))[0] == seen
    for _, path, headers, body in seen:
        names = [name for name, _ in headers]
        assert names.count(b"host") <= 1
        assert names.count(b"content-length") + names.count(b"transfer-encoding") <= 1
        assert path.startswith(b"/")
        if b"content-length" in names:
            assert int(dict(headers)[b"content-length"]) == len(body)
        elif b"transfer-encoding" not in names:
            assert body == b""
    answers = re.split(rb"HTTP/1\.1 (?=[1-5][0-9][0-9] [A-Z])", written)
    assert answers.pop(0) == b""
    statuses = [int(answer[:3]) for answer in answers]
    finals = [status for status in statuses if status != 100]
    assert finals[: len(seen)] == [204] * len(seen)
    assert len(finals) <= len(seen) + 1
    if len(finals) > len(seen):
        assert finals[-1] in {400, 405, 413, 417, 426, 431, 505}
        head, _, body = answers[-1].partition(b"\r\n\r\n")
        assert b"connection: close" in head
        json.loads(body)
