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
from typing import TYPE_CHECKING, Any

import aiohttp
import yarl

from fairlead.errors import FairleadError, Misuse
from fairlead.gateway.call import LOOKS, Call, Uploads
from fairlead.gateway.forwarding import (
    BadAnswer,
    request_headers,
    response_headers,
    target_of,
    trust,
)
from fairlead.gateway.responses import Failure, send_failure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from fairlead.gateway.fleet import Fleet, Outcome
    from fairlead.gateway.settings import Settings
    from fairlead.gateway.upstream import Upstream

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

CONNECT_TIMEOUT = 5.0
KEEPALIVE = 4.0  # less than uvicorn's 5 s, so that the backend is seldom the first to hang up
LARGEST_HEADER = 64 * 1024
MOST_HEADERS = 1000
HUNG_UP = "the backend hung up before it answered; try again"
# aiohttp would add them.
OUR_OWN_HEADERS = ("accept", "accept-encoding", "content-type", "user-agent")

log = logging.getLogger("fairlead.gateway")


class CutShort(FairleadError):
    """The backend stopped in the middle of its answer; the client's connection has to be dropped."""


class Proxy:
    """Pass requests on to a fleet."""

    def __init__(self, fleet: Fleet, settings: Settings) -> None:
        self._fleet = fleet
        self._session: aiohttp.ClientSession | None = None
        self._calls: set[Call] = set()
        self.uploads = Uploads()
        self._looking: asyncio.TimerHandle | None = None
        self.retune(settings)

    def retune(self, settings: Settings) -> None:
        """Follow a changed configuration."""
        self._tenants = settings.tenants
        self._trusted = trust(settings.tenants.trusted_proxies)
        self._patience = settings.upstream_timeout
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
        if self._session is not None:
            await self._session.close()
            self._session = None

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
        """Call backends until one answers; relay its answer, or tell why there is none."""
        scope = call.scope
        model = scope.get("fairlead.model")
        headers = request_headers(
            scope, self._tenants, self._trusted, keep_underscores=self._keeps_underscores
        )
        target = target_of(scope)
        tried: list[Upstream] = []
        while True:
            upstream = self._fleet.next(scope.get("fairlead.place"), model, tried)
            if upstream is None:
                return _unreachable(tried)
            tried.append(upstream)
            call.upstream, call.number = upstream.url, upstream.used
            upstream.in_flight += 1
            outcome: Outcome | None = "failed"
            try:
                response = await self._connect(upstream, call, target, headers)
                if not isinstance(response, aiohttp.ClientResponse):
                    if response is not None:
                        return response
                    continue
                try:
                    failure = await self._relay(upstream, response, call, send)
                finally:
                    response.close()  # without effect on a connection whose answer was read to its end
                if failure is None and call.sent:
                    outcome = _outcome(response)
                return failure
            except asyncio.CancelledError:
                if not call.silent:
                    outcome = None
                raise
            finally:
                if outcome is not None:
                    self._fleet.tried(upstream, outcome, perf_counter(), call.number)
                self._fleet.finished(upstream, call.number)

    async def _connect(
        self, upstream: Upstream, call: Call, target: str, headers: list[tuple[str, str]]
    ) -> aiohttp.ClientResponse | Failure | None:
        """Send the request and wait for the answer's headers; None means that another backend may be tried."""
        call.started_at = perf_counter()  # the loop's clock is too coarse for fast backends
        try:
            return await self._client.request(
                call.scope["method"],
                yarl.URL(upstream.url + target, encoded=True),
                headers=headers,
                data=call.data(),
                skip_auto_headers=OUR_OWN_HEADERS,
                allow_redirects=False,
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            self._fleet.unreachable(upstream, str(error) or type(error).__name__)
            return None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            log.warning("upstream %s failed: %s", upstream.url, _reason(error))
            detail = (
                "the backend hung up before it answered; try again if the request may run twice"
            )
            return Failure(502, "upstream_failed", detail)

    async def _relay(
        self, upstream: Upstream, response: aiohttp.ClientResponse, call: Call, send: Send
    ) -> Failure | None:
        status = response.status
        try:
            if not 200 <= status <= 599:
                raise BadAnswer(f"its status is {status}")
            headers = response_headers(response.raw_headers, status)
        except BadAnswer as error:
            log.warning("upstream %s gave a bad answer: %s", upstream.url, error)
            return Failure(502, "upstream_failed", f"the backend gave a bad answer: {error}")
        call.backends_turn = False
        await send({"type": "http.response.start", "status": status, "headers": headers})
        content = response.content
        while True:
            call.moved()
            try:
                chunk = await content.readany()
            except (aiohttp.ClientError, OSError, ValueError) as error:
                log.warning("upstream %s died while it answered: %s", upstream.url, _reason(error))
                failure = Failure(502, "upstream_failed", HUNG_UP)
                if not call.sent and await _answered(send, failure, call.scope["path"]):
                    return None
                raise CutShort(f"{upstream.url} died while it answered") from None
            call.backends_turn = False
            if not call.sent and status < 500 and status != 429:
                now = perf_counter()
                self._fleet.answered(upstream, now - call.started_at, now, call.number)
            call.sent = True
            call.ending = last = not chunk or content.at_eof()
            await send({"type": "http.response.body", "body": chunk, "more_body": not last})
            if last:
                return None

    @property
    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # Admission decides how many calls there are, not the connector.
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                max_line_size=LARGEST_HEADER,
                max_field_size=LARGEST_HEADER,
                max_headers=MOST_HEADERS,
                # How long an answer takes is between the client and the model.
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
            )
            # It would send a GET again after the backend has seen it.
            self._session._retry_connection = False
        return self._session


async def _answered(send: Send, failure: Failure, path: str) -> bool:
    """Answer with a failure, if need be in place of a head that admission still keeps back."""
    try:
        await send_failure(send, failure, path)
    except RuntimeError:  # the server's word for a second head
        return False
    return True


def _reason(error: Exception) -> str:
    """Write an error for the log, on one line and without the URL, whose query may hold a secret."""
    if isinstance(error, aiohttp.ClientResponseError):
        return repr(error.message)
    return str(error) or type(error).__name__


def _outcome(response: aiohttp.ClientResponse) -> Outcome:
    if response.status < 500:
        return "ok"
    return "full" if response.status == 503 and "retry-after" in response.headers else "error"


def _unreachable(tried: list[Upstream]) -> Failure:
    # Those that were tried are down since then; who comes next hears the same from admission.
    detail = "no backend could be reached" if tried else "no backend is healthy at the moment"
    return Failure(503, "no_healthy_upstream", f"{detail}; try again", retry_after=1)
