"""The gateway as middleware: any ASGI application behind priority admission.

A pure ASGI callable.  A request that finds a slot runs in the server's own task with the server's own `receive`; only
one that waits costs a task, to read ahead and notice that its client has left.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any

from fairlead.config import shown
from fairlead.core.ticket import (
    DONE,
    EVICTED,
    EXPIRED,
    NEW,
    REFUSED,
    RUNNING,
    WAITING,
    WITHDRAWN,
    QueueLimit,
)
from fairlead.documents.watching import Watch
from fairlead.errors import ConfigError
from fairlead.gateway import access, asking
from fairlead.gateway import metrics as count
from fairlead.gateway.admission import RETRY_TOKEN, Admission
from fairlead.gateway.body import BODY, Body, BodyRefused
from fairlead.gateway.exchange import Exchange
from fairlead.gateway.loading import load_content
from fairlead.gateway.responses import Failure, own_path, send_failure
from fairlead.gateway.settings import CLASSES
from fairlead.serving.http import CLOSING

if TYPE_CHECKING:
    from fairlead.gateway.loading import Loaded

NO_BACKEND = "no backend of its pool is up"
PREEMPTED_HEADERS = ((b"x-fairlead-preempted", b"true"), (b"x-smg-preempted", b"true"))


class PriorityMiddleware:
    """Put an application behind priority admission.

    `config` is a path to a YAML file, which is then watched for changes, or a mapping, or `Settings`; or an `Admission`
    made from one, to share it.

    >>> async def app(scope, receive, send): ...
    >>> guarded = PriorityMiddleware(app, {"capacity": 64, "priority_scheduler": {"enabled": True}})
    """

    def __init__(self, app: Any, config: Any = None) -> None:
        self.app = app
        self.admission = config if isinstance(config, Admission) else Admission(config)
        loaded = self.admission.loaded
        if loaded.fatal or (loaded.settings.strict and loaded.problems):
            raise ConfigError("\n".join(loaded.lines))
        self._begun = False
        self._watch: Watch[Loaded] | None = None
        if isinstance(config, str | os.PathLike):
            self._watch = Watch(
                config,
                load_content,
                self.admission.retune,
                losses=self.admission.losses,
                since=self.admission.loaded,
                refused=self.admission.metrics.count_refused_reload,
            )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one connection: an HTTP request in its turn, anything else at once."""
        admission = self.admission
        if scope["type"] != "http":
            if scope["type"] == "websocket" and (failure := asking.stranger(admission, scope)):
                admission.metrics.refuse_unread(failure.code)
                await receive()
                await send({"type": "websocket.close", "code": 1008, "reason": failure.detail})
            else:
                await self.app(scope, receive, send)
            return
        path = own_path(scope) if scope.get("root_path") else scope["path"]
        if path in admission.exempt:
            await self.app(scope, receive, send)
            return
        if not self._begun:
            self._begin()
        exchange = Exchange(admission.metrics, receive, send)
        try:
            failure = asking.identify(admission, scope, exchange)
            if exchange.body is not None and failure is None:
                failure = await asking.read_body(admission, exchange, exchange.body)
            if failure is None and exchange.outcome is None:
                asking.settle(admission, exchange)
                if (pool := admission.everyones) is not None:
                    exchange.offer(pool)
                else:
                    failure = self._ask(exchange)
            try:
                if exchange.state is WAITING:
                    failure = await self._wait(exchange)
                if exchange.state is RUNNING and failure is None:
                    places = exchange.pool_of_slots.room.places
                    if places.fleet is not None:
                        scope["fairlead.place"] = places.place_of(exchange)
                    if exchange.body is not None:
                        exchange.body.admit()
                        receive = exchange.body.receive
                        scope[BODY] = exchange.body
                        if exchange.model is not None:
                            scope["fairlead.model"] = exchange.model
                    await self.app(scope, receive, exchange.send)
            except BaseException as error:
                if not self._absorb(error, exchange):
                    raise
            if exchange.state is not DONE:
                failure = self._conclude(exchange, failure)
                if failure is not None and not exchange.answering:
                    if exchange.unanswerable:
                        failure = _last_of_connection(failure, scope)
                    await self._answer(failure, exchange, path)
        finally:
            if exchange.evictions and exchange.outcome != count.COMPLETED and exchange.wishes.token:
                admission.keep_token(exchange.wishes.token, exchange.evictions)
            if exchange.body is not None:
                exchange.body.close()
            if admission.logs and access.logger.isEnabledFor(logging.INFO):
                access.write(scope, exchange)

    def _begin(self) -> None:
        """Start what needs a running loop: the first request has one."""
        self._begun = True
        if self._watch is not None:
            self._watch.start(asyncio.get_running_loop())
        if self.admission.sharing is not None:
            self.admission.sharing.begin()

    # Its turn

    def _ask(self, exchange: Exchange) -> Failure | None:
        """Ask for a slot; the answer is the exchange's state, or a failure if there is nobody to ask."""
        pool = self.admission.pool(exchange.model)
        if pool is None:
            return _nobody_serves(exchange.model)
        exchange.pool_of_slots = pool
        if self.admission.runs(exchange):
            exchange.offer(pool)
        return None

    async def _wait(self, exchange: Exchange) -> Failure | None:
        """Wait for a slot; the answer is the exchange's state, or a failure if there is nobody to ask any more."""
        while exchange.state is WAITING:
            if exchange.body is None:
                exchange.body = Body(self.admission, exchange, self.admission.limits.body_bytes)
            body = exchange.body
            await exchange.wait(body)
            if body.failure is not None:
                return body.failure
            if exchange.state is WITHDRAWN and not exchange.gone:  # its pool is no more, or is down
                exchange.renew()
                failure = await self._ask_again(exchange, body)
                if failure is not None:
                    return failure
        if (
            exchange.state is RUNNING
            and exchange.wishes.model_unread
            and self.admission.reads_model
        ):
            body = exchange.body  # type: ignore[assignment]
            body.admit()
            return await self._read_model(exchange, body)
        return None

    async def _read_model(self, exchange: Exchange, body: Body) -> Failure | None:
        try:
            await asking.read_model(self.admission, exchange, body)
        except BodyRefused as refused:
            return refused.failure
        return None

    async def _ask_again(self, exchange: Exchange, body: Body) -> Failure | None:
        """Ask elsewhere; by now that may depend on the model."""
        if exchange.wishes.model_unread and self.admission.reads_model:
            failure = await self._read_model(exchange, body)
            if exchange.gone:
                exchange.leave()
            if failure is not None or exchange.gone:
                return failure
        return self._ask(exchange)

    def _absorb(self, error: BaseException, exchange: Exchange) -> bool:
        """Say whether what ended the wait or the application is of our own making; else it is passed on."""
        if isinstance(error, asyncio.CancelledError):
            if exchange.state is EVICTED and exchange.cancellations <= 1:
                return True
            exchange.leave()  # somebody else wants this task to end
        elif isinstance(error, Exception):
            if exchange.state is EVICTED or exchange.unanswerable:
                return True
            exchange.status = exchange.status if exchange.answering else 500
            exchange.end(count.FAILED)
        else:
            exchange.leave()  # the process or the loop is about to end
        return False

    def _conclude(self, exchange: Exchange, failure: Failure | None) -> Failure | None:
        """Bring what has not come to its end to one; tell the failure to answer with, if any."""
        if exchange.state is EVICTED:
            exchange.take_back_cancellation()
            exchange.end(count.PREEMPTED)
            return self._preempted(exchange)
        if exchange.state is RUNNING:
            failure = None if exchange.body is None else exchange.body.failure
            if failure is not None and not exchange.answering:
                exchange.status = failure.status
                exchange.end(count.FAILED)
                return failure
            exchange.leave()
        elif failure is None and exchange.outcome is None:
            return self._refused(exchange)
        return failure

    # Saying no

    async def _answer(self, failure: Failure, exchange: Exchange, path: str) -> None:
        exchange.status = failure.status
        if exchange.outcome is None:  # it never asked for a slot
            self.admission.metrics.refuse(exchange, failure.code, failure.detail)
        headers = []
        if exchange.wishes.decision:
            headers.append(exchange.decision_line(failure.code, exchange.waited()))
        await send_failure(exchange.raw_send, failure, path, headers)

    def _refused(self, exchange: Exchange) -> Failure | None:
        pool = exchange.pool_of_slots
        rank = exchange.rank
        name = CLASSES[rank]
        now = pool.runtime.clock()
        retry = pool.retry_after(rank, now)
        if exchange.state is NEW:
            outcome = count.NO_CAPACITY
            text = f"no healthy upstream can take this request now; retry in {retry} s"
            failure = Failure(503, "no_healthy_upstream", text, retry)
        elif exchange.state is REFUSED:
            outcome = count.QUEUE_FULL
            limit = exchange.reason.limit if isinstance(exchange.reason, QueueLimit) else 0
            text = f"the queue of class {name} is full ({limit} waiting); retry in {retry} s"
            failure = Failure(429, "scheduler_queue_full", text, retry)
        elif exchange.state is EXPIRED:
            outcome = count.QUEUE_TIMEOUT
            waited = now - exchange.arrived_at
            text = f"no slot came free in {waited:.3g} s of waiting in class {name}; retry in {retry} s"
            tenants = pool.room.tenants
            if (bound := tenants.limit(exchange.tenant)) is not None:
                held = tenants.used(exchange.tenant)
                if held >= bound:
                    text += f": requests of the same tenant hold its {held} of {bound} slots"
            failure = Failure(408, "scheduler_queue_timeout", text, retry)
        else:
            exchange.leave()
            return None
        self.admission.metrics.turn_away(exchange, outcome, NO_BACKEND)
        return failure._replace(headers=self._token(exchange, exchange.evictions))

    def _preempted(self, exchange: Exchange) -> Failure:
        text = (
            "a request of a higher class needed the slot before this one had sent a byte; retry, "
            "with the x-fairlead-retry-token header of this response"
        )
        headers = (*PREEMPTED_HEADERS, *self._token(exchange, exchange.evictions + 1))
        return Failure(503, "scheduler_preempted", text, 1, headers)

    def _token(self, exchange: Exchange, evictions: int) -> tuple[tuple[bytes, bytes], ...]:
        if not evictions:
            return ()
        if exchange.wishes.token is not None:
            exchange.wishes.token = None  # the new one stands for it
        return ((RETRY_TOKEN, self.admission.issue_token(evictions)),)


def _last_of_connection(failure: Failure, scope: Any) -> Failure:
    """Have the server close the connection after this answer: the rest of the body is not read."""
    if CLOSING in scope:
        scope[CLOSING] = True
        return failure
    return failure._replace(headers=(*failure.headers, (b"connection", b"close")))


def _nobody_serves(model: str | None) -> Failure:
    if model is None:
        text = 'the pool depends on the model: name it in a JSON body, as in {"model": ...}'
        return Failure(400, "model_required", text)
    return Failure(404, "model_not_found", f"no upstream serves the model {shown(model)}")
