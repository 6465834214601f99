"""A whole answer in one write: byte for byte what uvicorn writes in two, or nothing."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from fairlead.gateway import PriorityMiddleware
from fairlead.gateway.exchange import AT_ONCE
from fairlead.serving import whole
from fairlead.serving.protocol import LimitedProtocol
from fairlead.serving.whole import write_whole
from tests.gateway.rig import connected, run, served, within

DATE = (b"date", b"Thu, 19 Nov 2026 12:00:00 GMT")


class Transport:
    """Note what is written, piece by piece, and whether the connection was closed."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.closed = True


class Cycle(RequestResponseCycle):
    """What uvicorn has for one request, on a transport that keeps what it is given."""

    def __init__(self, method: str = "GET", *, keep_alive: bool = True, paused: bool = False):
        self.kept = Transport()
        self.ends = 0
        super().__init__(
            scope={"method": method},  # type: ignore[typeddict-item]
            transport=self.kept,  # type: ignore[arg-type]
            flow=SimpleNamespace(write_paused=paused),  # type: ignore[arg-type]
            logger=None,  # type: ignore[arg-type]
            access_logger=None,  # type: ignore[arg-type]
            access_log=False,
            default_headers=[DATE],
            message_event=asyncio.Event(),
            expect_100_continue=True,
            keep_alive=keep_alive,
            on_response=self._end,
        )

    def _end(self) -> None:
        self.ends += 1

    def state(self) -> Any:
        started, complete = self.response_started, self.response_complete
        waiting, event = self.waiting_for_100_continue, self.message_event.is_set()
        return started, complete, waiting, event, self.ends, self.kept.closed


def two_writes(cycle: Cycle, head: Any, body: Any) -> None:
    async def send() -> None:
        await cycle.send(head)
        await cycle.send(body)

    asyncio.run(send())


def messages(headers: Any, content: bytes = b"", status: int = 200) -> tuple[Any, Any]:
    head = {"type": "http.response.start", "status": status, "headers": headers}
    return head, {"type": "http.response.body", "body": content}


def sized(content: bytes, *more: tuple[bytes, bytes]) -> Any:
    return [*more, (b"content-length", b"%d" % len(content))]


NAMES = st.one_of(
    st.sampled_from([b"content-type", b"x-a", b"Connection", b"connection", b"transfer-encoding"]),
    st.sampled_from([b"content-length", b"Content-Length", b"date", b"bad name", b"", b"x\r\ny"]),
    st.binary(max_size=6),
)
VALUES = st.one_of(
    st.sampled_from([b"", b"close", b"chunked", b"5", b"a\r\nb: c", b"\t x \xff", b"\x00", b"a\n"]),
    st.binary(max_size=12),
)
BODIES = st.binary(max_size=40)


class TestTheBytes:
    @given(
        st.lists(st.tuples(NAMES, VALUES), max_size=4),
        BODIES,
        st.integers(-1, 2),
        st.sampled_from([200, 204, 304, 404, 500]),
        st.sampled_from(["GET", "POST", "HEAD"]),
        st.booleans(),
    )
    @example([], b"hello", 0, 200, "GET", True)
    @example([(b"a", b"1\r\nb: 2")], b"hello", 0, 200, "GET", True)
    @example([(b"content-length", b"5")], b"hello", 0, 200, "GET", True)
    def test_are_uvicorns_or_none_at_all(self, headers, content, off, status, method, keep_alive):
        length = (b"content-length", b"%d" % (len(content) + off))
        head, body = messages([*headers, length], content, status)
        ours, theirs = Cycle(method, keep_alive=keep_alive), Cycle(method, keep_alive=keep_alive)
        before = ours.state()
        if not write_whole(ours, head, body):
            assert ours.state() == before
            assert ours.kept.written == []
            return
        two_writes(theirs, head, body)
        assert len(ours.kept.written) == 1
        assert ours.kept.written[0] == b"".join(theirs.kept.written)
        assert ours.state() == theirs.state()

    @given(
        st.lists(st.sampled_from([(b"content-type", b"text/plain"), (b"x-a", b"\xe9 1")])), BODIES
    )
    def test_of_plain_answers_are_written(self, headers, content):
        cycle = Cycle()
        assert write_whole(cycle, *messages(sized(content, *headers), content))
        assert cycle.kept.written[0].endswith(b"\r\n\r\n" + content)

    @pytest.mark.parametrize(
        "field",
        [
            (b"a", b"1\r\nb: 2"),
            (b"a", b"1\nb: 2"),
            (b"a\r\nb", b"2"),
            (b"a b", b"2"),
            (b"a", b"\x00"),
        ],
    )
    def test_never_hold_a_line_that_a_value_smuggled_in(self, field):
        cycle = Cycle()
        assert not write_whole(cycle, *messages(sized(b"", field)))
        with pytest.raises(RuntimeError, match="Invalid HTTP header"):
            two_writes(cycle, *messages(sized(b"", field)))
        assert cycle.kept.written == []

    def test_are_left_to_uvicorn_where_the_client_reads_too_slowly_or_has_left(self):
        slow, left, begun = Cycle(paused=True), Cycle(), Cycle()
        left.disconnected = begun.response_started = True
        for cycle in (slow, left, begun):
            assert not write_whole(cycle, *messages(sized(b"")))
            assert cycle.kept.written == []

    def test_a_status_that_is_none_leaves_the_answer_to_be_made(self):
        cycle = Cycle()
        before = cycle.state()
        with pytest.raises(KeyError):
            write_whole(cycle, *messages(sized(b""), status=1000))
        assert cycle.state() == before


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (lambda fields, number: fields.count(b"\r\n") == number, (b"a", b"\x00")),
        (lambda fields, number: whole.FIELDS.fullmatch(fields), (b"a", b"1\r\nb: 2")),
    ],
)
def test_a_check_that_lets_a_line_in_is_caught(monkeypatch, wrong, field):
    monkeypatch.setattr(whole, "_sound", wrong)
    with pytest.raises(AssertionError):
        TestTheBytes().test_never_hold_a_line_that_a_value_smuggled_in(field)


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
    """What our server was asked to write whole, and whether it did."""
    answers: list[bool] = []
    write = LimitedProtocol.write_whole

    def noted(*given: Any) -> bool:
        answers.append(write(*given))
        return answers[-1]

    monkeypatch.setattr(LimitedProtocol, "write_whole", staticmethod(noted))
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
            assert wrote == []
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
            assert wrote == []

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
