"""A reverse proxy as an ASGI app: one call to a backend for each request, streamed both ways as it comes.

A connection that fails is tried on another backend, as long as not a byte of the request was sent.  A client that
leaves, or a task that is cancelled, closes the connection to the backend, which tells it to stop.  So does a backend
that for `upstream_timeout` neither takes nor sends a byte.  One that dies or falls silent while it answers is passed on
as what it is: the client's body is cut, never ended.  Who may call at all is decided before.
"""

from __future__ import annotations

import asyncio
import logging
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.errors import FairleadError, Misuse
from fairlead.gateway.call import LOOKS, Call, Uploads
from fairlead.gateway.client import Answer, BadAnswer, Client, Lost, Unconnected
from fairlead.gateway.forwarding import (
    request_headers,
    response_headers,
    target_of,
    trust,
)
from fairlead.gateway.responses import Failure, own_path, send_failure
from fairlead.gateway.retries import Budget, is_safe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from fairlead.gateway.client import Connection, Origin, Pool
    from fairlead.gateway.fleet import Fleet, Outcome
    from fairlead.gateway.settings import RetriedOn, Settings
    from fairlead.gateway.upstream import Upstream

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

EXHAUSTED_LOG_INTERVAL = 10.0  # seconds between lines of the log that say so
HUNG_UP = "the backend hung up before it answered; try again"
HUNG_UP_UNSAFE = "the backend hung up before it answered; try again if the request may run twice"

log = logging.getLogger("fairlead.gateway")


class CutShort(FairleadError):
    """The backend stopped in the middle of its answer; the client's connection has to be dropped."""


class Proxy:
    """Pass requests on to a fleet."""

    def __init__(self, fleet: Fleet, settings: Settings) -> None:
        self._fleet = fleet
        self._client = Client()
        fleet.on_leave = self._client.drop
        self._budget = Budget(settings.retries.budget)
        self._exhausted_until = float("-inf")  # the log has said so
        self._calls: set[Call] = set()
        self.uploads = Uploads()
        self._looking: asyncio.TimerHandle | None = None
        self.retune(settings)

    def retune(self, settings: Settings) -> None:
        """Follow a changed configuration."""
        self._tenants = settings.tenants
        self._trusted = trust(settings.tenants.trusted_proxies)
        self._patience = settings.upstream_timeout
        self._retries = settings.retries
        self._budget.share = settings.retries.budget
        self._keeps_underscores = settings.underscore_headers == "keep"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http":
            await self._exchange(scope, receive, send)
        elif kind == "lifespan":
            await self._live(receive, send)
        elif kind == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1003, "reason": "no websockets here"})
        else:
            raise Misuse(
                f"the proxy speaks http, websocket (to decline) and lifespan, not {kind!r}"
            )

    async def close(self) -> None:
        """Close every connection to a backend."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        self._client.close()

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self.close()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return

    async def _exchange(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        task = asyncio.current_task()
        if task is None:
            raise Misuse("the proxy runs inside a task")
        before = task.cancelling()
        call = Call(scope, message, task, self.uploads)
        self._calls.add(call)
        if self._looking is None:
            self._look_later()
        watch = asyncio.create_task(call.watch(receive))
        try:
            failure = await self._attempt(call, send)
            if failure is not None:
                call.ending = True
                await send_failure(send, failure, scope["path"])
        except asyncio.CancelledError:
            # What the call itself cancelled is taken back, anybody else's cancellation goes on.
            if not (call.gone or call.silent) or task.uncancel() > before:
                raise
            if call.silent:
                await self._give_up(call, send)
            elif call.error is not None:
                raise call.error from None
        finally:
            self._calls.discard(call)
            watch.cancel()
            call.close()

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._looking = loop.call_later(self._patience / LOOKS, self._look)

    def _look(self) -> None:
        """See which backends are silent: one timer for all calls, and none that each byte would have to set anew."""
        self._looking = None
        for call in self._calls:
            call.look()
        if self._calls:
            self._look_later()

    async def _give_up(self, call: Call, send: Send) -> None:
        """Answer for a backend that fell silent, as far as its own answer has not begun."""
        log.warning("upstream %s was silent for %g s", call.upstream, self._patience)
        detail = f"the backend was silent for {self._patience:g} s"
        failure = Failure(504, "upstream_timeout", detail)
        if call.sent or not await _answered(send, failure, call.scope["path"]):
            raise CutShort(f"{call.upstream} fell silent while it answered")

    async def _attempt(self, call: Call, send: Send) -> Failure | None:
        """Call backends until one answers; relay its answer, or return why there is none."""
        scope = call.scope
        model = scope.get("fairlead.model")
        request = self._request(call)
        place = scope.get("fairlead.place")
        self._budget.count(perf_counter())
        tried: list[Upstream] = []
        upstream = self._fleet.next(place, model, tried)
        while upstream is not None:
            another: Upstream | None = None
            tried.append(upstream)
            call.upstream, call.number = upstream.url, upstream.used
            upstream.in_flight += 1
            outcome: Outcome | None = "failed"
            try:
                pool = self._client.pool(upstream.url)
                connection = await self._ask(upstream, pool, call, request)
                if isinstance(connection, Failed):
                    if connection.ours:
                        outcome = None
                    another = self._another(connection.why, call, tried, unsent=connection.unsent)
                    if another is None:
                        return connection.failure
                    continue
                answer = connection.answer
                outcome = _outcome(answer.status, answer.fields)
                if outcome != "ok":
                    another = self._another(answer.status, call, tried)
                    if another is not None:
                        connection.abort()
                        continue
                outcome = "failed"
                failure = await self._relay(upstream, pool, connection, call, send)
                if answer.complete and failure is None:
                    outcome = _outcome(answer.status, answer.fields)
                return failure
            except asyncio.CancelledError:
                if not call.silent:
                    outcome = None
                raise
            finally:
                if outcome is not None:
                    self._fleet.tried(upstream, outcome, perf_counter(), call.number)
                self._fleet.finished(upstream, call.number)
                upstream = another
        return _unreachable(tried)

    def _another(
        self, why: int | str | None, call: Call, tried: list[Upstream], *, unsent: bool = False
    ) -> Upstream | None:
        """Return the backend for another try; None if there is to be none.

        A try of which no byte was sent cost its backend nothing: it is no attempt, and needs no budget.
        """
        retries, scope, now = self._retries, call.scope, perf_counter()
        if why not in retries.on:
            return None
        if not unsent:
            call.attempts += 1
            safe = call.whole and is_safe(retries, scope["method"], own_path(scope))
            if call.attempts >= retries.attempts or not safe or not self._budget.allows(now):
                return None
        place, model = scope.get("fairlead.place"), scope.get("fairlead.model")
        found = self._fleet.next(place, model, tried)
        if found is None and why == "reset" and tried.count(tried[-1]) == 1:
            found = tried[-1]  # a new connection may do
        if found is not None and not unsent:
            self._budget.spend(now)
        return found

    def _request(self, call: Call) -> Request:
        """Write the request, except for what depends on the backend."""
        scope = call.scope
        headers = request_headers(
            scope, self._tenants, self._trusted, keep_underscores=self._keeps_underscores
        )
        lines = [b""]
        length: int | None = None
        for name, value in headers:
            if name == b"content-length":
                length = int(value)
            else:
                lines.append(b"%b: %b" % (name, value))
        framing = call.framing(length)
        if framing is not None:
            lines.append(b"%b: %b" % framing)
        method, target = scope["method"].encode(), target_of(scope)
        fields = b"\r\n".join(lines)
        if fields.count(b"\n") >= len(lines) or len((method + target).split()) != 1:
            raise Misuse("the server in front passed on a request that no client may send")
        return Request(method, target, fields)

    async def _ask(
        self, upstream: Upstream, pool: Pool, call: Call, request: Request
    ) -> Connection | Failed:
        """Send the request and wait for the head of the answer."""
        head = request.head(pool.origin)
        while True:
            connection = pool.take()
            kept = connection is not None
            try:
                if connection is None:
                    connection = await pool.connect()
                answer = Answer(bodiless=request.method == b"HEAD")
                connection.begin(answer)
                call.started_at = perf_counter()  # the loop's clock is too coarse for fast backends
                call.ask(connection, head)
                while not answer.status:
                    await connection.more()
            except Unconnected as error:
                if error.exhausted:
                    return self._exhausted(upstream, error)
                self._fleet.unreachable(upstream, str(error))
                return Failed(_unreachable([upstream]), unsent=True, why="connect")
            except (BadAnswer, Lost) as error:
                if connection is not None:
                    connection.abort()
                unsent = isinstance(error, Lost) and error.unsent
                if unsent and kept:
                    continue  # it was closed while it was idle
                log.warning("upstream %s failed: %s", upstream.url, error)
                return Failed(
                    _failed(error), unsent=unsent, why="reset" if isinstance(error, Lost) else None
                )
            except BaseException:
                if connection is not None:
                    connection.abort()
                raise
            return connection

    def _exhausted(self, upstream: Upstream, error: Unconnected) -> Failed:
        now = perf_counter()
        if now >= self._exhausted_until:
            self._exhausted_until = now + EXHAUSTED_LOG_INTERVAL
            log.error(
                "cannot connect to upstream %s, which is not its fault: %s; raise the limit of open files "
                "or lower the number of connections",
                upstream.url,
                error,
            )
        detail = "the gateway has run out of file descriptors or buffers; try again"
        return Failed(Failure(503, "gateway_exhausted", detail, retry_after=1), ours=True)

    async def _relay(
        self, upstream: Upstream, pool: Pool, connection: Connection, call: Call, send: Send
    ) -> Failure | None:
        answer = connection.answer
        done = False
        try:
            status = answer.status
            try:
                headers = response_headers(answer.fields, status)
            except BadAnswer as error:
                log.warning("upstream %s failed: %s", upstream.url, error)
                return _failed(error)
            call.waits = False
            await send({"type": "http.response.start", "status": status, "headers": headers})
            while True:
                if not (answer.parts or answer.complete):
                    call.moved()
                    try:
                        await connection.more()
                    except (BadAnswer, Lost) as error:
                        log.warning("upstream %s died while it answered: %s", upstream.url, error)
                        failure = Failure(502, "upstream_failed", HUNG_UP)
                        if not call.sent and await _answered(send, failure, call.scope["path"]):
                            return None
                        raise CutShort(f"{upstream.url} died while it answered") from None
                    continue
                call.waits = False
                chunk, last = answer.take(), answer.complete
                if not call.sent and status < 500 and status != 429:
                    now = perf_counter()
                    self._fleet.answered(upstream, now - call.started_at, now, call.number)
                call.sent = True
                call.ending = last
                if last:
                    done = True
                    pool.give(connection)
                await send({"type": "http.response.body", "body": chunk, "more_body": not last})
                if last:
                    return None
        finally:
            if not done:
                connection.abort()


class Request(NamedTuple):
    """A request as it is written to any backend."""

    method: bytes
    target: bytes
    fields: bytes

    def head(self, origin: Origin) -> bytes:
        """Write the head for one backend."""
        return b"%b %b%b HTTP/1.1\r\nhost: %b%b\r\n\r\n" % (
            self.method,
            origin.prefix,
            self.target,
            origin.authority,
            self.fields,
        )


class Failed(NamedTuple):
    """Why a backend gave no answer."""

    failure: Failure
    unsent: bool = False  # not a byte of the request
    ours: bool = False  # not the backend's fault
    why: RetriedOn | None = None  # it may be repeated


async def _answered(send: Send, failure: Failure, path: str) -> bool:
    """Answer with a failure, if need be in place of a head that admission still keeps back."""
    try:
        await send_failure(send, failure, path)
    except RuntimeError:  # the server's word for a second head
        return False
    return True


def _failed(error: BadAnswer | Lost) -> Failure:
    if isinstance(error, BadAnswer):
        return Failure(502, "upstream_failed", f"the backend gave a bad answer: {error}")
    return Failure(502, "upstream_failed", HUNG_UP_UNSAFE)


def _outcome(status: int, fields: list[tuple[bytes, bytes]]) -> Outcome:
    if status < 500:
        return "ok"
    full = status == 503 and any(name == b"retry-after" for name, _ in fields)
    return "full" if full else "error"


def _unreachable(tried: list[Upstream]) -> Failure:
    # Those that were tried are down since then; who comes next hears the same from admission.
    detail = "no backend could be reached" if tried else "no backend is healthy at the moment"
    return Failure(503, "no_healthy_upstream", f"{detail}; try again", retry_after=1)
