"""HTTP/1.1 as every port reads it: uvicorn's protocol, with limits, and nothing ambiguous let through.

Where two readers of the same bytes could disagree about where a message ends, or whom it is for, the answer is 400 and
the connection is closed.  Every refusal is complete JSON.  What a client may take its time for is bounded: its headers,
and each 1 kB/s of its body, but not while it is us who will not read on; likewise for reading the answer.

Requests sent ahead (pipelining) are kept as bytes until it is their turn; parsed they would weigh a hundred times as
much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from fairlead.serving.framing import (
    Refusal,
    bad_request,
    body_too_large,
    check_head,
    headers_too_large,
    problem_of,
    too_many_connections,
    wire,
)
from fairlead.serving.http import ANSWERED, CLOSING, Problem
from fairlead.serving.intake import Flow, Intake
from fairlead.serving.reader import SLOWEST, Reader
from fairlead.serving.unread import Unread, not_sent
from fairlead.serving.unsized import unsized

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from fairlead.serving.connections import Connections
    from fairlead.serving.limits import Limits

PIECE = 4096  # bytes parsed at a time: bounds how many requests are parsed before their turn
HELD = 64 * 1024  # bytes of requests sent ahead, beyond which the connection is not read
LINGER = 2.0  # seconds for a client to stop sending and read why
CHUNK_OVERHEAD = 4096  # bytes of a chunked body that are neither data nor plain framing ...
PER_CHUNK = 32  # ... of which each chunk has so many


class LimitedProtocol(HttpToolsProtocol):
    """One connection of a client."""

    own_send = staticmethod(RequestResponseCycle.send)  # what `write_whole` may stand in for

    def __init__(
        self,
        *,
        limits: Callable[[], Limits],
        connections: Connections | None = None,
        intake: Intake | None = None,
        refused: Callable[[Refusal], object] = lambda refusal: None,
        **given: Any,
    ) -> None:
        super().__init__(**given)
        self._limits = limits()
        self._connections = connections
        self._intake = intake or Intake()
        self._address = ""
        self._refused = refused
        self._in_head = False
        self._in_body = False
        self._head_began_here = False
        self._head_bytes = 0
        self._body_bytes = self._overhead = 0
        self._window_bytes, self._window_paused = 0, False
        self._running: RequestResponseCycle | None = None
        self._held = bytearray()
        self._unread = Unread()
        self._muted = False
        self._deaf = False  # nothing that arrives matters any more
        self._last_words: Problem | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._body_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None

    @property
    def _busy(self) -> bool:
        return self._running is not None and not self._running.response_complete

    @property
    def idle(self) -> bool:
        """Whether no request is being received or answered."""
        return not (self._busy or self._in_body or self.pipeline)

    @property
    def served(self) -> bool:
        """Whether a request has come on it."""
        return self.cycle is not None

    @property
    def receives_sized_body(self) -> bool:
        """Whether a body is being received whose length is known."""
        return self._in_body and any(name == b"content-length" for name, _ in self.headers)

    def give_way(self) -> None:
        """Close, for a new connection to have the place."""
        self._deaf = True
        self._stop_timers()
        self.transport.close()

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow: Flow = Flow(transport, self._intake)
        self._reader = Reader(transport, self.loop, self._limits.body_timeout)
        self._address = self.client[0] if self.client else ""
        book = self._connections
        if book is None or book.admit(self, self._address, self.loop.time()):
            self._await_head()
        elif book.may_answer(self):
            self._refuse(too_many_connections())
        else:
            self._deaf = True
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connections is not None:
            self._connections.leave(self, self._address)
        self._stop_timers(self._linger_timer)
        self._reader.end()
        # uvicorn tells only the newest request, which need not be the one that runs.
        for cycle in (self._running, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
                not_sent(cycle.scope)  # type: ignore[arg-type]
        self._unread.lost(exc, self.loop.time())
        self.pipeline.clear()
        self._held.clear()
        self._unset_keepalive_if_required()
        self.flow.taken()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close the connection as soon as what runs on it has been answered."""
        if self._deaf and not self._busy:
            self.transport.close()
        else:
            super().shutdown()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        if self._held or self.pipeline:
            self._hold(data)
        else:
            self._feed(data)

    def _hold(self, data: bytes) -> None:
        self._held += data
        if len(self._held) > HELD:
            self.flow.pause_reading()

    def _feed(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        start = 0
        while start < len(data):
            piece = data[start : start + PIECE] if len(data) > PIECE else data[start:]
            start += len(piece)
            in_body, body_bytes = self._in_body, self._body_bytes
            self._head_began_here = False
            try:
                self.parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                start += upgrade.args[0] - len(piece)
                self._decline_upgrade()
                continue
            except httptools.HttpParserError as error:
                self._refuse(problem_of(error))
                return
            late = self._too_much(piece, in_body, body_bytes)
            if late is not None:
                self._refuse(late)
                return
            if self.pipeline and start < len(data):
                self._hold(data[start:])
                break
        if self._in_head or not (self._busy or self._in_body or self.timeout_keep_alive_task):
            self._await_head()
        elif self._in_body and self._body_timer is None:
            self._await_body()

    def _decline_upgrade(self) -> None:
        """Go on in HTTP/1.1 after a request that offered another protocol.

        The parser thinks that the connection is the other protocol's now, body and all; a new one takes its place, told
        of the body that is to come.
        """
        framing = b"".join(
            name + b": " + value + b"\r\n"
            for name, value in self.headers
            if name in (b"content-length", b"transfer-encoding")
        )
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        if self._in_body:
            self._muted = True
            self.parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n")
            self._muted = False

    def _too_much(self, piece: bytes, in_body: bool, body_bytes: int) -> Problem | None:
        """Bound what has no end yet: a head, which is checked exactly once it has one, and chunk extensions."""
        limits = self._limits
        if self._head_began_here:  # a piece is no larger than what may be read at once
            many = self._in_head and len(self.headers) > limits.header_fields
            return headers_too_large(limits) if many else None
        if self._in_head:
            self._head_bytes += len(piece)
            if self._head_bytes > limits.header_bytes or len(self.headers) > limits.header_fields:
                return headers_too_large(limits)
        if in_body and self._in_body:
            self._overhead += len(piece) - (self._body_bytes - body_bytes)
            if self._overhead > CHUNK_OVERHEAD:
                return bad_request(
                    f"the chunks of the body carry over {CHUNK_OVERHEAD} bytes of extensions"
                )
        return None

    # The parser

    def on_message_begin(self) -> None:
        if self._muted:
            return
        super().on_message_begin()
        self._in_head = self._head_began_here = True
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        if not self._muted:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        # What comes later is a trailer; uvicorn would add it to the headers the app has seen.
        if self._in_head:
            super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        if self._muted:
            return
        self._in_head = False
        self._stop_timers()
        check_head(
            self.parser.get_method(),
            self.parser.get_http_version(),
            self.url,
            self.headers,
            self._limits,
        )
        self.scope[CLOSING] = False  # type: ignore[literal-required]
        super().on_headers_complete()
        self._in_body = True
        self._body_bytes = self._overhead = 0
        if self.pipeline:
            self.flow.resume_reading()  # go on listening for the client to leave; `_hold` bounds the rest

    def on_chunk_header(self) -> None:
        """Allow for the framing of one chunk."""
        self._overhead -= PER_CHUNK

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._window_bytes += len(body)
        limit = self._limits.body_limit(self.scope["path"])
        if self._body_bytes > limit:
            raise body_too_large(limit)
        super().on_body(body)
        if not self.cycle.response_complete:
            self.flow.came(len(body))
        self._window_paused |= self.flow.read_paused

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade() and any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
            for name, value in self.headers
        ):
            return  # its body is still to come, see `_decline_upgrade`
        self._in_body = False
        self._stop_timers()
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        if cycle.scope["http_version"] == "1.0":
            app = unsized(app, cycle)
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self._unread.sent(self._running.scope, self.loop.time())  # type: ignore[union-attr,arg-type]
        super().on_response_complete()
        if self.pipeline or self.transport.is_closing():
            return
        if self._in_body and self.cycle.scope.get(CLOSING):
            self._deaf = True
            self.cycle.body.clear()
            self._stop_timers()
            self._unset_keepalive_if_required()
            self._close_softly()
            return
        if self._last_words is not None:
            if not self._busy:  # else the last of those before it has just begun
                self._unset_keepalive_if_required()
                self._say(self._last_words)
        elif self._held:
            held = bytes(self._held)
            self._held.clear()
            self._feed(held)

    # Time

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._limits.header_timeout, self._head_late)

    def _head_late(self) -> None:
        self._head_timer = None
        if self.transport.is_closing() or self._deaf:
            return
        if self._busy:
            self._await_head()  # an earlier request is being answered; this one has time until then
        elif self._in_head:
            detail = f"the headers took longer than {self._limits.header_timeout:g} s"
            self._refuse(Problem(408, "headers_too_slow", detail))
        else:
            self.transport.close()

    def _await_body(self) -> None:
        self._window_bytes, self._window_paused = 0, self.flow.read_paused
        self._body_timer = self.loop.call_later(self._limits.body_timeout, self._body_late)

    def _body_late(self) -> None:
        self._body_timer = None
        if self.transport.is_closing() or self._deaf:
            return
        ours = self._window_paused or self.cycle.waiting_for_100_continue
        if ours or self._window_bytes >= SLOWEST * self._limits.body_timeout:
            self._await_body()
            return
        detail = f"the body came slower than {SLOWEST} bytes/s for {self._limits.body_timeout:g} s"
        self._refuse(Problem(408, "body_too_slow", detail))

    def _stop_timers(self, *more: asyncio.TimerHandle | None) -> None:
        for timer in (self._head_timer, self._body_timer, *more):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._body_timer = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reader.begin()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._reader.end()

    # Refusing

    def _refuse(self, problem: Problem) -> None:
        """Answer what cannot be served, after what came before it, and close the connection."""
        self._deaf = True
        self._stop_timers()
        if self.transport.is_closing():
            return
        begun = self._in_body
        if self._in_body and self.pipeline and self.pipeline[0][0] is self.cycle:
            self.pipeline.popleft()  # it has not begun
            begun = False
        self._refused(self._refusal(problem, begun=begun))
        if begun and self._running is self.cycle:
            if self.cycle.response_started:
                self._forsake(self.cycle)
                self.transport.close()
                return
            self.cycle.scope[ANSWERED] = problem.answer.status  # type: ignore[literal-required]
            self._forsake(self.cycle)
            self._say(problem)
            return
        if self._busy:
            self._last_words = problem
        else:
            self._say(problem)

    def _refusal(self, problem: Problem, *, begun: bool) -> Refusal:
        method = target = None
        if getattr(self, "url", b""):
            method = self.parser.get_method().decode("latin-1")
            target = self.url.decode("latin-1")
        return Refusal(problem.code, problem.answer.status, method, target, begun)

    def _forsake(self, cycle: RequestResponseCycle) -> None:
        """Let the app see that its client is gone: this connection answers for it."""
        cycle.disconnected = True
        cycle.message_event.set()

    def _say(self, problem: Problem) -> None:
        """Write the last answer of this connection."""
        path = getattr(self, "url", b"/").decode("latin-1")
        media, body = self._written(problem, path.partition("?")[0])
        self.transport.write(wire(problem, media, body, self.server_state.default_headers))
        self._close_softly()

    def _close_softly(self) -> None:
        """Close the connection once the client has read: closing with bytes unread would take the answer with it."""
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._linger_timer = self.loop.call_later(LINGER, self.transport.close)

    def _written(self, problem: Problem, path: str) -> tuple[bytes, bytes]:
        """Write the content type and the body of a refusal."""
        return problem.answer.media, problem.answer.body
