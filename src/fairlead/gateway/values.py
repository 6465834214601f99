"""The single values of a gateway's configuration: URLs, numbers of slots, names.

Each refuses with a sentence that begins with "must" or "may not" and never shows what may be a secret.
"""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress
from fractions import Fraction
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    StringConstraints,
    WithJsonSchema,
)

from fairlead.config import is_readable, shown
from fairlead.gateway.forwarding import plain_address

MOST_SLOTS = 65_535
SHARE = r"[0-9]{1,3}(\.[0-9]{1,6})?%"


def _upstream_url(text: str) -> str:
    # What was given is never shown: it may hold a password.
    if not is_readable(text):
        raise ValueError(
            "must be a URL whose host and port can be read, such as http://10.0.0.7:9001"
        )
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or not text.isprintable():
        raise ValueError("must be an http or https URL, such as http://10.0.0.7:9001")
    if "@" in parts.netloc or parts.query or parts.fragment or " " in text:
        raise ValueError("may not carry credentials, a query, a fragment or spaces")
    try:
        parts.hostname.encode("idna")  # as it is looked up: what cannot be would fail every request
    except UnicodeError:
        raise ValueError("must name a host whose parts have 1 to 63 characters each") from None
    return text.rstrip("/")


def _capacity(value: Any) -> Any:
    if value in ("reported", "adaptive") or (type(value) is int and 0 <= value <= MOST_SLOTS):
        return value
    raise ValueError(
        f"must be a whole number of slots from 0 to {MOST_SLOTS}, reported or adaptive; got {shown(value)}"
    )


def _network(text: str) -> str:
    ipaddress.ip_network(text, strict=False)
    return text


def _tenant_key(key: str) -> str:
    kind, colon, name = key.partition(":")
    if kind == "ip" and "/" in name:
        with suppress(ValueError):
            return f"ip:{ipaddress.IPv6Network(name, strict=False)}"
        raise ValueError(
            "may not be a network: a policy is for one address, such as ip:10.0.0.7, or for an IPv6 "
            "network, such as ip:2001:db8:0:1::/64"
        )
    if kind == "ip":
        with suppress(ValueError):  # a server may call its clients otherwise
            return "ip:" + plain_address(name)
    if key == "anonymous" or (kind in {"auth", "header", "ip"} and colon and name):
        return key
    raise ValueError(
        "names no tenant: write auth:<tenant>, header:<value>, ip:<address> or anonymous"
    )


def _path(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError("must begin with /, such as /health")
    return text


def _path_prefix(text: str) -> str:
    if not text.startswith("/") or "*" in text[:-1]:
        raise ValueError("must be a path, such as /metrics, or the begin of paths, such as /api/*")
    return text


class Share(str):
    """A share of something, as it is written: `50%`.

    >>> Share("12.5%").of(16)
    Fraction(2, 1)
    """

    __slots__ = ()

    def of(self, whole: int) -> Fraction:
        """Return that share of so many; decimals are exact."""
        return Fraction(self[:-1]) * whole / 100


def _max_slots(value: Any) -> Any:
    if type(value) is int and 1 <= value <= MOST_SLOTS:
        return value
    if isinstance(value, str) and re.fullmatch(SHARE, value) and 0 < Fraction(value[:-1]) <= 100:
        return Share(value)
    raise ValueError(
        f"must be a whole number of slots from 1 to {MOST_SLOTS}, or a share of them from above 0% "
        f"to 100%, such as 50%; got {shown(value)}"
    )


UpstreamUrl = Annotated[str, AfterValidator(_upstream_url)]
Network = Annotated[str, AfterValidator(_network)]
TenantKey = Annotated[str, AfterValidator(_tenant_key)]
Path = Annotated[str, AfterValidator(_path), WithJsonSchema({"type": "string", "pattern": "^/"})]
PathPrefix = Annotated[
    str, AfterValidator(_path_prefix), WithJsonSchema({"type": "string", "pattern": r"^/[^*]*\*?$"})
]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$")]
Slots = Annotated[int, Field(strict=True, ge=0, le=MOST_SLOTS)]
MaxSlots = Annotated[
    int | Share,
    PlainValidator(_max_slots),
    PlainSerializer(lambda bound: bound if isinstance(bound, int) else str(bound)),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": MOST_SLOTS},
                {"type": "string", "pattern": f"^{SHARE}$"},
            ]
        }
    ),
]
UpstreamCapacity = Annotated[Slots | Literal["reported", "adaptive"], BeforeValidator(_capacity)]
