"""Who asks, and for what: all that is read of a request before it asks for a slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.gateway import priority
from fairlead.gateway.admission import (
    CONTENT_LENGTH,
    CONTENT_TYPE,
    DECISION,
    RETRY_TOKEN,
    TRANSFER_ENCODING,
)
from fairlead.gateway.body import Body, BodyTooLarge
from fairlead.gateway.responses import Failure, openai_form, own_path
from fairlead.gateway.settings import DEFAULT
from fairlead.gateway.tenant_labels import OTHER

if TYPE_CHECKING:
    from fairlead.gateway.admission import Admission
    from fairlead.gateway.exchange import Exchange
    from fairlead.gateway.priority import Fields

# The fields by which a request speaks of its body, and of how it wants to be treated.
OF_ITSELF = frozenset(
    {
        CONTENT_LENGTH,
        CONTENT_TYPE,
        DECISION,
        RETRY_TOKEN,
        TRANSFER_ENCODING,
        priority.GRPC_TIMEOUT,
        priority.REQUEST_TIMEOUT,
    }
)


class Peek(msgspec.Struct):
    """What a body may say about its request; everything else in it is skipped."""

    model: Any = None
    service_tier: Any = None


_peek = msgspec.json.Decoder(Peek)


def identify(admission: Admission, scope: Any, exchange: Exchange) -> Failure | None:
    """Read the header: the tenant, the class asked for, and what else the request says of itself."""
    wanted = admission.wanted
    fields: dict[bytes, list[bytes]] = {}
    for name, value in scope["headers"]:
        if name in wanted:
            if name in fields:
                fields[name].append(value)
            else:
                fields[name] = [value]
    client = scope.get("client")
    exchange.who = who = admission.tenants.of(client[0] if client else None, fields)
    exchange.tenant = who.key
    rank = None
    if fields:
        rank, unknown = priority.explicit_rank(fields)
        if unknown:
            admission.metrics.unknown[who.label] += 1
        if rank is None:
            rank = priority.urgency_rank(fields)
        if rank is not None:
            exchange.requested = rank
    if OF_ITSELF.isdisjoint(fields) and scope["http_version"] < "2":
        return None
    return _heed(admission, scope, fields, rank, exchange)


def _heed(
    admission: Admission, scope: Any, fields: Fields, rank: int | None, exchange: Exchange
) -> Failure | None:
    """Read what a request says of its body and its wishes."""
    limit = admission.body_limit
    if CONTENT_TYPE in fields and _is_json(fields):
        asks = rank is None and not admission.plain and scope["method"] == "POST"
        exchange.reads_tier = asks and openai_form(own_path(scope))
        exchange.reads_body = exchange.reads_tier or admission.reads_model
        exchange.model_unread = not exchange.reads_body
    if priority.REQUEST_TIMEOUT in fields or priority.GRPC_TIMEOUT in fields:
        exchange.own_limit = priority.own_wait_limit(fields)
    if DECISION in fields:
        exchange.decision = True
    if RETRY_TOKEN in fields:
        exchange.token = fields[RETRY_TOKEN][0]
        exchange.evictions = admission.redeem_token(exchange.token)
    length = fields.get(CONTENT_LENGTH)
    if length is None:
        if TRANSFER_ENCODING in fields or scope["http_version"] >= "2":
            exchange.body = Body(exchange.raw_receive, limit)  # in HTTP/2 a body needs no field
    elif length[0].isdigit() and (len(length[0]) > 18 or int(length[0]) > limit):
        return too_large(limit)
    return None


async def read_body(admission: Admission, exchange: Exchange) -> Failure | None:
    """Read the body before admission, for what it says of the request."""
    failure = await read_model(admission, exchange)
    if exchange.gone:
        clamp(admission, exchange)
        exchange.leave()
    return failure


async def read_model(admission: Admission, exchange: Exchange) -> Failure | None:
    """Read the body for what it says of the request, also of one that came when nobody wanted to know."""
    exchange.model_unread = False
    if exchange.body is None:
        exchange.body = Body(exchange.raw_receive, admission.body_limit)
    try:
        body = await exchange.body.read()
    except BodyTooLarge:
        return too_large(admission.body_limit)
    if body is None:
        return None  # the client has left
    try:
        said = _peek.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # not ours to complain of: the application will
    if exchange.reads_tier:
        exchange.requested = priority.tier_rank(said.service_tier)
    exchange.model = said.model if isinstance(said.model, str) else None
    return None


def clamp(admission: Admission, exchange: Exchange) -> None:
    """Settle the class: what was asked for, or the tenant's ceiling if that is lower."""
    if admission.plain:
        exchange.rank, exchange.tenant = DEFAULT, ""
        exchange.requested = DEFAULT
        return
    metrics, who = admission.metrics, exchange.who
    exchange.rank = requested = exchange.requested
    if requested > who.ceiling:
        exchange.rank = who.ceiling
        metrics.clamps[who.label, requested, who.ceiling] += 1
    metrics.tenants[who.label] += 1
    if who.label is OTHER and metrics.labels.notice(who.key):
        admission.tenants.forget()


def too_large(limit: int) -> Failure:
    """Say that a body is longer than allowed."""
    text = f"the request's body is longer than {limit} bytes, the most this gateway takes"
    return Failure(413, "body_too_large", text)


def _is_json(fields: Fields) -> bool:
    kinds = fields.get(CONTENT_TYPE)
    if not kinds:
        return False
    media = kinds[0].split(b";")[0].strip().lower()
    return media == b"application/json" or (
        media.startswith(b"application/") and media.endswith(b"+json")
    )
