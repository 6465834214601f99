"""A whole answer in one write: byte for byte what uvicorn writes in two, or nothing."""

import asyncio
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from fairlead.gateway import PriorityMiddleware, exchange
from fairlead.serving import whole
from fairlead.serving.protocol import LimitedProtocol
from fairlead.serving.whole import AT_ONCE, write_whole
from tests.gateway.rig import connected, run, served, within

Write = Callable[[Any, Any, Any], bool]
Pair = tuple[bytes, bytes]


class Server:
    """What notes the end of an answer and keeps what is written: a connection of ours, without one."""

    own_send = staticmethod(LimitedProtocol.own_send)

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False
        self.ends = 0

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.closed = True

    def on_response_complete(self) -> None:
        self.ends += 1


class Cycle(RequestResponseCycle):
    """What uvicorn has for one request."""

    def __init__(self, method: str = "GET", keep_alive: bool = True) -> None:
        self.server = Server()
        super().__init__(
            scope={"method": method, "headers": []},  # type: ignore[typeddict-item]
            transport=self.server,  # type: ignore[arg-type]
            flow=SimpleNamespace(write_paused=False),  # type: ignore[arg-type]
            logger=None,  # type: ignore[arg-type]
            access_logger=None,  # type: ignore[arg-type]
            access_log=False,
            default_headers=[(b"date", b"Thu, 19 Nov 2026 12:00:00 GMT")],
            message_event=asyncio.Event(),
            expect_100_continue=True,
            keep_alive=keep_alive,
            on_response=self.server.on_response_complete,
        )

    def state(self) -> Any:
        server, event = self.server, self.message_event.is_set()
        began = self.response_started, self.response_complete, self.waiting_for_100_continue
        return began, event, server.ends, server.closed, b"".join(server.written)


def messages(headers: Any, content: Any = b"", status: Any = 200) -> tuple[Any, Any]:
    head = {"type": "http.response.start", "status": status, "headers": headers}
    return head, {"type": "http.response.body", "body": content}


def sized(content: bytes, *more: Pair) -> list[Pair]:
    return [*more, (b"content-length", b"%d" % len(content))]


def in_two(cycle: Cycle, head: Any, body: Any) -> None:
    async def send() -> None:
        await cycle.send(head)
        await cycle.send(body)

    asyncio.run(send())


def judge(
    write: Write, headers: list[Pair], content: bytes, status: int, method: str, keep_alive: bool
) -> bool:
    """Hold one answer to uvicorn's; tell whether it was written whole."""
    ours, theirs = Cycle(method, keep_alive), Cycle(method, keep_alive)
    before = ours.state()
    head, body = messages(headers, content, status)
    if not write(ours.send, head, body):
        assert ours.state() == before
        return False
    in_two(theirs, head, body)
    assert ours.state() == theirs.state()
    assert len(ours.server.written) == 1
    return True


NAMES = st.one_of(
    st.sampled_from([b"content-type", b"x-a", b"Connection", b"connection", b"transfer-encoding"]),
    st.sampled_from(
        [b"content-length", b"Content-Length", b"date", b"a b", b"", b"x\r\ny", b"a: b"]
    ),
    st.binary(max_size=6),
)
VALUES = st.one_of(
    st.sampled_from([b"", b"close", b"chunked", b"5", b"a\r\nb: c", b"\t x \xff", b"\x00", b"a\n"]),
    st.binary(max_size=12),
)
PLAIN = st.sampled_from([(b"content-type", b"text/plain"), (b"x-a", b"\xe9 1"), (b"x-b", b"")])

SMUGGLED: list[Pair] = [
    (b"a", b"1\r\nb: 2"),
    (b"a", b"1\nb: 2"),
    (b"a", b"1\rb"),
    (b"a\r\nb", b"2"),
    (b"a b", b"2"),
    (b"a", b"\x00"),
    (b"set-cookie: sid=evil; x", b"1"),
    (b"content-length: 3", b"9"),
]
UNUSUAL: list[Pair] = [
    (b"transfer-encoding", b"chunked"),
    (b"connection", b"close"),
    (b"content-length", b"5"),
    (b"Content-Length", b"5"),
    (b"X-Upper", b"1"),
    (b"", b"2"),
]


def examples(write: Write) -> None:
    """Answers that are all right, but for one thing; and those with nothing unusual about them."""
    right = sized(b"hello", (b"content-type", b"text/plain"))
    assert judge(write, right, b"hello", 200, "GET", True)
    assert judge(write, sized(b""), b"", 204, "POST", True)
    assert judge(write, right, b"hello", 529, "GET", True)  # no status of the standard's
    for field in (*SMUGGLED, *UNUSUAL):
        for headers in ([field, *right], [*right, field]):
            assert not judge(write, headers, b"hello", 200, "GET", True)
    assert not judge(write, right, b"hell", 200, "GET", True)
    assert not judge(write, right, b"hello", 200, "HEAD", True)
    assert not judge(write, right, b"hello", 200, "GET", False)
    assert not judge(write, right[:1], b"hello", 200, "GET", True)


class TestTheBytes:
    @given(
        st.lists(st.tuples(NAMES, VALUES), max_size=3),
        st.lists(PLAIN, max_size=2),
        st.binary(max_size=40),
        st.integers(-1, 1),
        st.sampled_from([200, 204, 304, 404, 500, 529]),
        st.sampled_from(["GET", "POST", "HEAD"]),
        st.booleans(),
    )
    def test_are_uvicorns_or_none_at_all(
        self, odd, plain, content, off, status, method, keep_alive
    ):
        length = (b"content-length", b"%d" % (len(content) + off))
        judge(write_whole, [*odd, length, *plain], content, status, method, keep_alive)

    @given(st.lists(PLAIN), st.binary(max_size=40), st.sampled_from([200, 404, 500, 529]))
    def test_of_plain_answers_are_written(self, headers, content, status):
        assert judge(write_whole, sized(content, *headers), content, status, "GET", True)

    def test_of_what_is_unusual_are_left_to_uvicorn(self):
        examples(write_whole)

    @pytest.mark.parametrize("field", SMUGGLED)
    def test_uvicorn_refuses_what_a_field_would_smuggle_in(self, field):
        cycle = Cycle()
        with pytest.raises(RuntimeError, match="Invalid HTTP header"):
            in_two(cycle, *messages(sized(b"", field)))
        assert cycle.server.written == []


# Each a condition that is left out; the examples must miss it.
VARIANTS = {
    "lines within a value": (" or fields.count(END) != len(pieces) // 4", ""),
    "what no header may hold": ("FIELDS.fullmatch(fields) is None or", ""),
    "a colon in a name": ('if b":" in name:', "if False:"),
    "two lengths": ("if length is not None:", "if False:"),
    "another length": ('length != b"%d" % len(content) or', ""),
    "chunks": ("|transfer-encoding:", ""),
    "an end of the connection": ("connection:|", ""),
    "a connection that ends": ("or not cycle.keep_alive", ""),
    "no body at all": ('or cycle.scope["method"] == "HEAD"', ""),
}


@pytest.mark.parametrize("lost", VARIANTS)
def test_a_condition_that_is_left_out_is_noticed(lost):
    source = inspect.getsource(whole)
    assert source.count(VARIANTS[lost][0]) == 1
    wrong: dict[str, Any] = {"__name__": "wrong"}
    exec(compile(source.replace(*VARIANTS[lost]), "wrong", "exec"), wrong)
    with pytest.raises((AssertionError, RuntimeError)):
        examples(wrong["write_whole"])


class TestWhatIsLeftAlone:
    """Nothing is written, changed or used up, and nothing raised: uvicorn does what it always did."""

    @pytest.mark.parametrize(
        "change",
        [
            {"disconnected": True},
            {"response_started": True},
            {"access_log": True},
            {"flow": SimpleNamespace(write_paused=True)},
            {"on_response": lambda: None},  # uvicorn's, once the app has returned
        ],
    )
    def test_where_the_connection_is_not_as_usual(self, change):
        cycle = Cycle()
        assert write_whole(Cycle().send, *messages(sized(b"")))
        for name, value in change.items():
            setattr(cycle, name, value)
        assert not write_whole(cycle.send, *messages(sized(b"")))
        assert cycle.server.written == []

    @pytest.mark.parametrize(
        "told",
        [
            messages(sized(b""), status=1000),
            messages(sized(b""), status="200"),
            messages(sized(b""), status=[]),
            messages(sized(b""), None),
            messages(sized(b"12"), bytearray(b"12")),
            messages([(b"a",), *sized(b"")]),
            messages([("a", "b"), *sized(b"")]),
            messages(None),
            ({"type": "http.response.start"}, {"type": "http.response.body"}),
            ({**messages(sized(b""))[0]}, {"type": "http.response.pathsend", "path": "/a"}),
        ],
    )
    def test_what_is_no_usual_answer(self, told):
        cycle = Cycle()
        before = cycle.state()
        assert not write_whole(cycle.send, *told)
        assert cycle.state() == before

    def test_headers_that_can_be_read_only_once(self):
        headers = iter(sized(b""))
        assert not write_whole(Cycle().send, *messages(headers))
        assert list(headers) == sized(b"")

    @pytest.mark.parametrize("spare", [0, -1])
    def test_what_a_server_should_not_hold_for_a_slow_client(self, spare):
        cycle = Cycle()
        name, date = cycle.default_headers[0]
        lines = [name, date, b"content-length", b"0", b"x-a"]
        room = AT_ONCE - sum(map(len, lines)) - 3 * len(b": \r\n")
        headers = sized(b"", (b"x-a", b"a" * (room - spare)))
        assert write_whole(cycle.send, *messages(headers)) == (spare == 0)

    def test_one_who_stands_between(self):
        class Delegating:
            """Passes for what it wraps, but for its own `send`."""

            def __init__(self, wrapped: Any) -> None:
                self.wrapped = wrapped

            def __getattr__(self, name: str) -> Any:
                return getattr(self.wrapped, name)

            async def send(self, message: Any) -> None:
                raise AssertionError("it was passed by")

            def __call__(self, message: Any) -> Any:
                raise AssertionError("it was passed by")

        class Own(Cycle):
            async def send(self, message: Any) -> None:
                raise AssertionError("it was passed by")

        cycle = Cycle()
        for send in (
            Delegating(cycle).send,
            Delegating(cycle.send),
            Own().send,
            lambda message: cycle.send(message),
        ):
            assert not write_whole(send, *messages(sized(b"")))
        assert cycle.server.written == []


# May be preempted: its head is kept back until there is a byte.
BULK = [("x-fairlead-priority", "bulk")]
ENABLED = {"capacity": 256, "priority_scheduler": {"enabled": True}}


def replying(content: bytes, *, pieces: int = 1) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = sized(content * pieces, (b"content-type", b"text/plain"))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for left in reversed(range(pieces)):
            await send({"type": "http.response.body", "body": content, "more_body": left > 0})

    return app


@pytest.fixture
def wrote(monkeypatch):
    """Whether each answer that might have been written whole was."""
    answers: list[bool] = []

    def noted(*given: Any) -> bool:
        answers.append(write_whole(*given))
        return answers[-1]

    monkeypatch.setattr(exchange, "write_whole", noted)
    return answers


class TestBehindAdmission:
    def test_one_request_after_another_on_one_connection(self, wrote):
        async def main() -> None:
            app = PriorityMiddleware(replying(b"hello"), ENABLED)
            async with served(app) as url, connected(url) as client:
                for _ in range(3):
                    head, body = await within(client.ask(headers=BULK))
                    assert (head.status, head.get("content-length"), body) == (200, "5", b"hello")
            assert wrote == [True] * 3
            assert app.admission.metrics.completed[0] == 3
            assert app.admission.pools[""].gate.active == 0

        run(main())

    @pytest.mark.parametrize(
        ("app", "length"),
        [
            (replying(b"a", pieces=3), 3),
            (replying(b"a" * (AT_ONCE + 1)), AT_ONCE + 1),
        ],
    )
    def test_what_comes_in_pieces_or_is_large_is_sent_as_ever(self, wrote, app, length):
        async def main() -> None:
            guarded = PriorityMiddleware(app, ENABLED)
            async with served(guarded) as url, connected(url) as client:
                _, body = await within(client.ask(headers=BULK))
            assert body == b"a" * length
            assert True not in wrote
            assert guarded.admission.metrics.completed[0] == 1

        run(main())

    def test_who_stands_between_sees_both_messages(self, wrote):
        """Middleware outside ours may add a field to each head: it must not be passed by."""
        seen: list[str] = []
        guarded = PriorityMiddleware(replying(b"hello"), ENABLED)

        async def outside(scope: Any, receive: Any, send: Any) -> None:
            async def noting(message: Any) -> None:
                seen.append(message["type"])
                if message["type"] == "http.response.start":
                    message = {**message, "headers": [*message["headers"], (b"x-outside", b"1")]}
                await send(message)

            await guarded(scope, receive, noting)

        async def main() -> None:
            async with served(outside) as url, connected(url) as client:
                head, body = await within(client.ask(headers=BULK))
                assert (head.get("x-outside"), body) == ("1", b"hello")
            assert seen == ["http.response.start", "http.response.body"]
            assert wrote == [False]

        run(main())

    @pytest.mark.parametrize("version", ["1.0", "1.1"])
    def test_whoever_closes_is_answered_and_let_go(self, wrote, version):
        async def main() -> None:
            app = PriorityMiddleware(replying(b"hello"), ENABLED)
            async with served(app) as url:
                host, port = url.removeprefix("http://").split(":")
                reader, writer = await asyncio.open_connection(host, int(port))
                wire = f"GET / HTTP/{version}\r\nhost: a\r\nconnection: close\r\n"
                writer.write(wire.encode() + b"x-fairlead-priority: bulk\r\n\r\n")
                answer = await within(reader.read())
                writer.close()
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            assert b"connection: close" in head.lower()
            assert body == b"hello"
            assert True not in wrote

        run(main())

    def test_pipelined_requests_are_answered_in_turn(self, wrote):
        async def main() -> None:
            async def app(scope: Any, receive: Any, send: Any) -> None:
                await replying(scope["path"].encode())(scope, receive, send)

            guarded = PriorityMiddleware(app, ENABLED)
            async with served(guarded) as url, connected(url) as client:
                for path in ("/one", "/two", "/three"):
                    client.request(target=path, headers=BULK)
                answers = [(await within(client.response()))[1] for _ in range(3)]
            assert answers == [b"/one", b"/two", b"/three"]
            assert wrote == [True] * 3

        run(main())

    def test_what_is_no_success_counts_as_failed(self, wrote):
        async def app(scope: Any, receive: Any, send: Any) -> None:
            for message in messages(sized(b"down"), b"down", 503):
                await send(message)

        async def main() -> None:
            guarded = PriorityMiddleware(app, ENABLED)
            async with served(guarded) as url, connected(url) as client:
                head, body = await within(client.ask(headers=BULK))
            assert (head.status, body, wrote) == (503, b"down", [True])
            metrics = guarded.admission.metrics
            assert (metrics.ended[0, "failed"], metrics.completed[0]) == (1, 0)
            assert metrics.first_byte[0].buckets()[-1][1] == 1

        run(main())

    def test_the_decision_goes_with_it(self, wrote):
        async def main() -> None:
            guarded = PriorityMiddleware(replying(b"hello"), ENABLED)
            async with served(guarded) as url, connected(url) as client:
                head, _ = await within(client.ask(headers=[*BULK, ("x-fairlead-decision", "1")]))
            assert head.get("x-fairlead-decision").startswith("class=bulk; wait=0.000")
            assert wrote == [True]

        run(main())

    def test_fields_that_can_be_read_only_once_arrive(self, wrote):
        async def app(scope: Any, receive: Any, send: Any) -> None:
            for message in messages(iter([(b"set-cookie", b"a=b")]), b"hello"):
                await send(message)

        async def main() -> None:
            guarded = PriorityMiddleware(app, ENABLED)
            async with served(guarded) as url, connected(url) as client:
                head, body = await within(client.ask(headers=BULK))
            assert (head.get("set-cookie"), body, wrote) == ("a=b", b"hello", [False])

        run(main())

    def test_nothing_happens_before_it_is_awaited(self, wrote):
        """An app may give `send(…)` to a task, and cancel that before it begins."""

        async def app(scope: Any, receive: Any, send: Any) -> None:
            head, wrong = messages(sized(b"hello"), b"wrong")
            await send(head)
            asyncio.ensure_future(send(wrong)).cancel()
            await asyncio.create_task(send({**wrong, "body": b"hello"}))

        async def main() -> None:
            guarded = PriorityMiddleware(app, ENABLED)
            async with served(guarded) as url, connected(url) as client:
                _, body = await within(client.ask(headers=BULK))
            assert (body, wrote) == (b"hello", [True])

        run(main())
