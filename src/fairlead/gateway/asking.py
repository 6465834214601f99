"""Who asks, and for what: all that is read of a request before it asks for a slot."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
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
from fairlead.gateway.body import Body, BodyRefused, too_large
from fairlead.gateway.exchange import Wishes
from fairlead.gateway.responses import Failure, openai_form, own_path
from fairlead.gateway.settings import DEFAULT
from fairlead.gateway.tenant_labels import OTHER
from fairlead.gateway.tenants import REMEMBERED

if TYPE_CHECKING:
    from fairlead.gateway.admission import Admission
    from fairlead.gateway.exchange import Exchange
    from fairlead.gateway.priority import Fields
    from fairlead.gateway.tenants import Tenant

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


# The address of a client, then name and value of each field that says who asks, or for which class.
Said = tuple[Any, ...]
MEMORABLE = 512  # bytes of such fields; whoever says more is looked up every time


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks, for which class, and which it gets: that one, or the tenant's ceiling if that is lower."""

    who: Tenant
    tenant: str
    requested: int
    rank: int
    explicit: bool  # its header asks for a class
    unknown: bool  # one that nobody knows
    label: str | None  # None: not counted
    clamped: tuple[str, int, int] | None  # how, as metrics count it

    @classmethod
    def of(cls, who: Tenant, rank: int | None, *, unknown: bool = False, plain: bool) -> Asker:
        """Settle the class; a plain limiter knows one class, and no tenants."""
        if plain:
            return cls(who, "", DEFAULT, DEFAULT, rank is not None, unknown, None, None)
        requested = DEFAULT if rank is None else rank
        given = min(requested, who.ceiling)
        clamped = (who.label, requested, given) if given < requested else None
        return cls(who, who.key, requested, given, rank is not None, unknown, who.label, clamped)


class Peek(msgspec.Struct):
    """What a body may say about its request; everything else in it is skipped."""

    model: Any = None
    service_tier: Any = None


_peek = msgspec.json.Decoder(Peek)


def identify(admission: Admission, scope: Any, exchange: Exchange) -> Failure | None:
    """Read the header: the tenant, the class asked for, and what else the request says of itself."""
    said: Said = (_address(scope),)
    wanted = admission.wanted
    wishes = None
    for name, value in scope["headers"]:
        if name in wanted:
            if name not in OF_ITSELF:
                said += (name, value)
            elif wishes is None:
                wishes = {name: [value]}
            else:
                wishes.setdefault(name, []).append(value)
    asker = exchange.asker = admission.askers.get(said) or _look_up(admission, said)
    if asker.who.refusal is not None:
        exchange.tenant, exchange.rank = asker.who.key, DEFAULT  # for the log
        return asker.who.refusal
    if asker.unknown:
        admission.metrics.unknown[asker.who.label] += 1
    if wishes is None and scope["http_version"] < "2":
        return None
    return _heed(admission, scope, wishes or {}, exchange)


def stranger(admission: Admission, scope: Any) -> Failure | None:
    """Refuse a connection of a tenant that is unknown, where those are refused; None lets it pass."""
    if own_path(scope) in admission.exempt:
        return None
    fields: dict[bytes, list[bytes]] = {}
    for name, value in scope["headers"]:
        fields.setdefault(name, []).append(value)
    return admission.tenants.of(_address(scope), fields).refusal


def _address(scope: Any) -> str | None:
    client = scope.get("client")
    return client[0] if client else None


def _look_up(admission: Admission, said: Said) -> Asker:
    """Read who asks for which class, and remember it: most who ask go on asking."""
    fields: dict[bytes, list[bytes]] = {}
    for name, value in zip(said[1::2], said[2::2], strict=True):
        fields.setdefault(name, []).append(value)
    rank, unknown = priority.explicit_rank(fields)
    if rank is None:
        rank = priority.urgency_rank(fields)
    who = admission.tenants.of(said[0], fields)
    asker = Asker.of(who, rank, unknown=unknown, plain=admission.plain)
    if sum(map(len, said[1:])) <= MEMORABLE:
        if len(admission.askers) >= REMEMBERED:
            admission.askers.clear()
        admission.askers[said] = asker
    return asker


def _heed(admission: Admission, scope: Any, fields: Fields, exchange: Exchange) -> Failure | None:
    """Read what a request says of its body and its wishes."""
    asker, wishes = exchange.asker, Wishes()
    exchange.wishes = wishes
    exchange.tenant, exchange.rank = asker.who.key, DEFAULT  # for the log, if it is refused
    if CONTENT_TYPE in fields and _is_json(fields):
        asks = not (asker.explicit or admission.plain) and scope["method"] == "POST"
        wishes.reads_tier = asks and openai_form(own_path(scope))
        wishes.reads_body = wishes.reads_tier or admission.reads_model
        wishes.model_unread = not wishes.reads_body
    if priority.REQUEST_TIMEOUT in fields or priority.GRPC_TIMEOUT in fields:
        wishes.limit = priority.own_wait_limit(fields)
    if DECISION in fields:
        wishes.decision = True
    if RETRY_TOKEN in fields:
        wishes.token = fields[RETRY_TOKEN][0]
        exchange.evictions = admission.redeem_token(wishes.token)
    length = fields.get(CONTENT_LENGTH)
    if length is not None and length[0].isdigit():
        size = length[0].lstrip(b"0")
        limit = _body_limit(admission, scope, wishes)
        if len(size) > 18 or int(size or b"0") > limit:
            return too_large(limit)
        has_body = bool(size)
    else:  # in HTTP/2 a body needs no field
        has_body = TRANSFER_ENCODING in fields or scope["http_version"] >= "2"
    if has_body or wishes.reads_body:
        exchange.body = Body(admission, exchange, _body_limit(admission, scope, wishes))
    return None


def _body_limit(admission: Admission, scope: Any, wishes: Wishes) -> int:
    """Return how long the body of a request may be; what is read whole has to fit into memory beside others."""
    limit = admission.limits.body_limit(own_path(scope))
    return min(limit, admission.held.share) if wishes.reads_body else limit


async def read_body(admission: Admission, exchange: Exchange, body: Body) -> Failure | None:
    """Read the body before the request asks for a slot: all of it where class or pool depend on it, or its start."""
    try:
        if exchange.wishes.reads_body:
            await read_model(admission, exchange, body)
        else:
            await body.read(admission.limits.body_before_slot)
    except BodyRefused as refused:
        return refused.failure
    if body.gone:
        settle(admission, exchange)
        exchange.leave()
    return None


async def read_model(admission: Admission, exchange: Exchange, body: Body) -> None:
    """Read all of the body for what it says of the request."""
    wishes = exchange.wishes
    wishes.model_unread = False
    await body.read(inf)
    if body.gone:
        return
    try:
        said = _peek.decode(body.content())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return  # not ours to complain of: the application will
    if wishes.reads_tier:
        rank = priority.tier_rank(said.service_tier)
        exchange.asker = Asker.of(exchange.asker.who, rank, plain=admission.plain)
    wishes.model = said.model if isinstance(said.model, str) else None


def settle(admission: Admission, exchange: Exchange) -> None:
    """Note the class and the tenant it asks for a slot with."""
    asker = exchange.asker
    exchange.tenant, exchange.rank = asker.tenant, asker.rank
    label = asker.label
    if label is not None:
        metrics = admission.metrics
        metrics.tenants[label] += 1
        if asker.clamped is not None:
            metrics.clamps[asker.clamped] += 1
        if label is OTHER and metrics.labels.notice(asker.tenant):
            admission.forget()


def _is_json(fields: Fields) -> bool:
    kinds = fields.get(CONTENT_TYPE)
    if not kinds:
        return False
    media = kinds[0].split(b";")[0].strip().lower()
    return media == b"application/json" or (
        media.startswith(b"application/") and media.endswith(b"+json")
    )
