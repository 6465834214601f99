"""Flows over gRPC, as Aperture's `FlowControlService`: its clients need only another address.

- The deadline of a Check is how long its flow may wait, less the control point's `decision_deadline_margin`: a refusal
  is a REJECTED reply that beats the deadline, since these clients run whatever was not answered.
- A limit is told as a limiter decision whose `component_id` is quota, concurrency or load.  A concurrency decision
  carries the `request_id` that FlowEnd gives back.
- With `expect_end` false nobody will say when the work ends, so it counts as ended at once and holds no concurrency:
  a slot that nobody can return would only keep others out until it expires.  The same without a concurrency limit, for
  then FlowEnd has no id to give back; how long such work takes is not known here, so no latency is learned from it.
- A result found in the cache is accepted without asking any limit: the work need not be done.
- `wait_time` is in whole seconds, rounded up: the clients cut the rest off, and would try again at once.
- There are no ramps: `ramp_mode` changes nothing here.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError

from fairlead.capacities import TokenBucket
from fairlead.core.ticket import Outcome
from fairlead.flows import messages as wire
from fairlead.flows.cache import ResultCache
from fairlead.flows.table import FlowTable
from fairlead.flows.workloads import canonical
from fairlead.serving.http import whole_seconds
from fairlead.serving.locality import is_local_peer, passed_on

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fairlead.flows.flow import Flow
    from fairlead.flows.point import Point
    from fairlead.flows.scheduler import AsyncFlow, FlowScheduler

    Context = grpc.aio.ServicerContext[Any, Any]

MOST_AT_ONCE = 5_000  # labels, some 5 ms of the event loop
LARGEST_MESSAGE = 4 * 1024 * 1024
# Two servers on one port would share its connections without a word.
OPTIONS = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", LARGEST_MESSAGE)]
NO_SUCH_FLOW = "no such flow runs: it was ended before, expired, or never was"
LATE = "it ran longer than it may: its tokens had been given to others"
INFO = {
    "concurrency": "concurrency_scheduler_info",
    "quota": "quota_scheduler_info",
    "load": "load_scheduler_info",
}


class GrpcFlows:
    """The service over one scheduler; share `table` with the HTTP service, so that either may end a flow."""

    def __init__(
        self,
        flows: FlowScheduler,
        *,
        token: str | None = None,
        table: FlowTable | None = None,
        cache: ResultCache | None = None,
    ) -> None:
        self.flows = flows
        self.table = FlowTable() if table is None else table
        self.cache = ResultCache() if cache is None else cache
        self.token = token

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve on a server."""
        deeds: dict[str, Callable[[Any, Context], Awaitable[Any]]] = {
            "Check": self.check,
            "FlowEnd": self.flow_end,
            "CacheLookup": self.cache_lookup,
            "CacheUpsert": self.cache_upsert,
            "CacheDelete": self.cache_delete,
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                self._guarded(deed),
                request_deserializer=_reader(wire.message(f"{name}Request")),
                response_serializer=wire.message(f"{name}Response").SerializeToString,
            )
            for name, deed in deeds.items()
        }
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(wire.SERVICE, handlers),)
        )

    def _guarded(
        self, deed: Callable[[Any, Context], Awaitable[Any]]
    ) -> Callable[[Any, Context], Awaitable[Any]]:
        async def guarded(request: Any, context: Context) -> Any:
            if self.token is None:
                if (said := _stranger(context)) is not None:
                    await context.abort(grpc.StatusCode.PERMISSION_DENIED, said)
            elif not self._knows(context):
                said = "this service needs its token, in the metadata as x-api-key"
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, said)
            if request is None:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the message is broken")
            return await deed(request, context)

        return guarded

    def _knows(self, context: Context) -> bool:
        given = [value for key, value in context.invocation_metadata() or () if key == "x-api-key"]
        token = (self.token or "").strip()
        if not token or len(given) != 1:
            return False
        sent = given[0].encode() if isinstance(given[0], str) else given[0]
        return hmac.compare_digest(sent, token.encode())

    # Flows

    async def check(self, request: Any, context: Context) -> Any:
        """Let a flow in, when its turn comes, or refuse it before its deadline."""
        began = time.time_ns()
        labels, names = await _labels_of(request)
        reply = wire.CheckResponse(
            control_point=request.control_point,
            expect_end=request.expect_end,
        )
        for start in range(0, len(names), MOST_AT_ONCE):
            reply.flow_label_keys.extend(names[start : start + MOST_AT_ONCE])
            if len(names) > MOST_AT_ONCE:
                await asyncio.sleep(0)
        hit = False
        if request.HasField("cache_lookup_request"):
            asked = request.cache_lookup_request
            scope = asked.control_point or request.control_point
            hit = self._lookup(scope, asked, reply.cache_lookup_response)
        if not hit:
            flow = self.flows.flow(request.control_point, labels, context.time_remaining())
            await self._enter(flow)
            self._decide(flow, reply, expect_end=request.expect_end)
        _stamp(reply.start, began)
        _stamp(reply.end, time.time_ns())
        return reply

    async def _enter(self, flow: AsyncFlow) -> None:
        """Enter a flow; a call whose cancellation has arrived by then holds nothing."""
        await flow.__aenter__()
        if flow.accepted and flow.point is not None:
            try:
                await asyncio.sleep(
                    0
                )  # a cancellation that has arrived is heard of here, or not at all
            except asyncio.CancelledError:
                flow.point.end(flow, Outcome.IGNORED, None)
                raise

    def _decide(self, flow: Flow, reply: Any, *, expect_end: bool) -> None:
        point = flow.point
        if point is None:  # nothing limits it, and nothing is to be ended
            return
        wait = None if flow.retry_after is None else whole_seconds(flow.retry_after)
        denied = point.settings.scheduler.denied_response_status_code
        if not flow.accepted:
            reply.decision_type = wire.REJECTED
            reply.reject_reason = wire.NO_TOKENS
            reply.denied_response_status_code = denied
            if wait is not None:
                reply.wait_time.seconds = wait
        parts = [name for name in INFO if getattr(point.parts, name) is not None]
        short = () if flow.accepted else _short(point, flow, parts)
        for name in parts:
            decision = reply.limiter_decisions.add(
                policy_name=point.name, component_id=name, dropped=name in short
            )
            if decision.dropped:
                decision.denied_response_status_code = denied
                if wait is not None:
                    decision.wait_time.seconds = wait
            info = getattr(decision, INFO[name])
            info.workload_index, info.priority = flow.workload
            info.tokens_info.consumed = flow.tokens if flow.accepted else 0.0
            if name == "load":
                continue
            key = getattr(point.settings, name).limit_by_label_key
            value = None if key is None else (flow.labels or {}).get(key)
            if key is not None and value is None:
                decision.reason = wire.KEY_NOT_FOUND  # this limit let it pass
            if value is not None:
                info.label = f"{key}:{value}"
            _fill(info.tokens_info, point, name, None if value is None else canonical(value))
        if not flow.accepted:
            return
        if expect_end and "concurrency" in parts:
            info = reply.limiter_decisions[parts.index("concurrency")].concurrency_scheduler_info
            info.request_id = self.table.add(flow)
        else:
            point.end(flow, Outcome.IGNORED, None)

    async def flow_end(self, request: Any, context: Context) -> Any:
        """End flows; one that cannot be ended is told so, and fails nothing else."""
        reply = wire.FlowEndResponse()
        for ref in request.inflight_requests:
            status = reply.token_return_statuses.add(inflight_request_ref=ref)
            flow = self.table.get(ref.request_id)
            if flow is None or flow.control_point != request.control_point:
                status.error = NO_SUCH_FLOW
                continue
            self.table.take(ref.request_id)
            status.returned = flow.end("ok")
            if not status.returned:
                status.error = LATE
        return reply

    # The cache

    def _lookup(self, scope: str, asked: Any, reply: Any) -> bool:
        """Look up what was asked for; tell whether the result was found."""
        self._look((scope, asked.result_cache_key), reply.result_cache_response)
        for key in asked.global_cache_keys:
            self._look((None, key), reply.global_cache_responses[key])
        return bool(reply.result_cache_response.lookup_status == wire.HIT)

    def _look(self, key: tuple[str | None, str], reply: Any) -> None:
        reply.lookup_status = wire.MISS
        try:
            value = self.cache.get(key)
        except ValueError as error:
            reply.operation_status, reply.error = wire.ERROR, str(error)
            return
        if value is not None:
            reply.value, reply.lookup_status = value, wire.HIT

    async def cache_lookup(self, request: Any, context: Context) -> Any:
        """Look up a result and any number of global values."""
        reply = wire.CacheLookupResponse()
        self._lookup(request.control_point, request, reply)
        return reply

    async def cache_upsert(self, request: Any, context: Context) -> Any:
        """Keep a result and any number of global values."""
        reply = wire.CacheUpsertResponse()
        if request.HasField("result_cache_entry"):
            entry = request.result_cache_entry
            self._keep((request.control_point, entry.key), entry, reply.result_cache_response)
        for key, entry in request.global_cache_entries.items():
            self._keep((None, key), entry, reply.global_cache_responses[key])
        return reply

    def _keep(self, key: tuple[str | None, str], entry: Any, reply: Any) -> None:
        reply.operation_status = wire.SUCCESS
        try:
            self.cache.put(key, entry.value, entry.ttl.seconds + entry.ttl.nanos / 1e9)
        except ValueError as error:
            reply.operation_status, reply.error = wire.ERROR, str(error)

    async def cache_delete(self, request: Any, context: Context) -> Any:
        """Forget a result and any number of global values; what is not there is no error."""
        reply = wire.CacheDeleteResponse()
        if request.result_cache_key or not request.global_cache_keys:
            key = (request.control_point, request.result_cache_key)
            self._forget(key, reply.result_cache_response)
        for name in request.global_cache_keys:
            self._forget((None, name), reply.global_cache_responses[name])
        return reply

    def _forget(self, key: tuple[str | None, str], reply: Any) -> None:
        reply.operation_status = wire.SUCCESS
        try:
            self.cache.delete(key)
        except ValueError as error:
            reply.operation_status, reply.error = wire.ERROR, str(error)


def _stranger(context: Context) -> str | None:
    """Say why a call is not of this machine alone; None if it is.

    The library shows no `:authority`; a page in a browser, which could have one made to mean this machine, speaks no
    gRPC without a proxy.
    """
    if not is_local_peer(_peer_of(context.peer())):
        return "without a token this service answers requests from its own machine only"
    names = (key.encode() for key, _ in context.invocation_metadata() or ())
    found = passed_on(names)
    return None if found is None else found.detail


def _peer_of(written: str) -> str | None:
    """Read the peer as gRPC writes it: ipv4:127.0.0.1:5000, ipv6:%5B::1%5D:5000 or unix:/path."""
    family, _, rest = unquote(written).partition(":")
    if family.startswith("unix"):
        return None
    return rest.rpartition(":")[0].strip("[]") if family in ("ipv4", "ipv6") else ""


async def _labels_of(request: Any) -> tuple[dict[str, str], list[str]]:
    """Read the labels of a check, and their names in order; of many by parts, so that other work goes on."""
    if len(request.labels) <= MOST_AT_ONCE:
        labels = dict(request.labels)
        return labels, sorted(labels)
    labels, parts = {}, []
    given = iter(request.labels.items())
    while part := dict(islice(given, MOST_AT_ONCE)):
        labels |= part
        parts.append(sorted(part))
        await asyncio.sleep(0)
    names: list[str] = []
    merged = merge(*parts)
    while some := list(islice(merged, MOST_AT_ONCE)):
        names += some
        await asyncio.sleep(0)
    return labels, names


def _reader(kind: Any) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            return kind.FromString(data)
        except DecodeError:
            return None

    return read


def _short(point: Point, flow: Flow, parts: list[str]) -> set[str]:
    """Tell which limits have no room for a flow that was refused; all of them, if it was the queue that was full."""
    now = point.runtime.now()
    short = {name for name in parts if _part(point, name).refusal(flow, now) is not None}
    return short or set(parts)


def _part(point: Point, name: str) -> Any:
    part = getattr(point.parts, name)
    return part.bucket if name == "load" else part


def _fill(info: Any, point: Point, name: str, key: str | None) -> None:
    """Tell what a limit holds now, where this process knows."""
    part = getattr(point.parts, name)
    if name == "concurrency":
        info.current = part.used(key)
        info.remaining = max(0.0, part.limit - info.current)
    else:
        bucket = isinstance(part, TokenBucket)  # else leased from a ledger, which fills it
        level = part.level(point.runtime.now(), key) if bucket else part.level(key)
        info.current = info.remaining = max(0.0, level)


def _stamp(field: Any, at: int) -> None:
    field.seconds, field.nanos = divmod(at, 1_000_000_000)
