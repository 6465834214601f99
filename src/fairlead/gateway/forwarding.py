"""What passes through a proxy and what does not: the headers of both directions.  Pure.

Each message is written anew from its parsed parts.  What concerns one connection only (RFC 9110 §7.6.1) stops here, as
do the headers by which clients talk to the gateway itself: `x-fairlead-decision` and `x-fairlead-retry-token`.  The
priority headers pass on, for backends that order their own queue by them.
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fairlead.gateway.settings import Tenants

    RawHeaders = Iterable[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# Host is the backend's own; an expectation has been met by whoever reads the body here.
NOT_FORWARDED = HOP_BY_HOP | {
    b"expect",
    b"host",
    b"http2-settings",
    b"x-fairlead-decision",
    b"x-fairlead-retry-token",
}
# What a proxy says of its client; from anybody else it is hearsay.
FORWARDED = frozenset(
    {
        b"forwarded",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-port",
        b"x-forwarded-prefix",
        b"x-forwarded-proto",
        b"x-real-ip",
    }
)
# The server in front writes its own date.
NOT_RETURNED = HOP_BY_HOP | {b"date"}
BODILESS = frozenset({204, 304})

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")


class BadAnswer(ValueError):
    """A backend's answer that must not reach a client."""


def request_headers(
    scope: Mapping[str, Any], tenants: Tenants, trusted: Callable[[str], bool]
) -> list[tuple[str, str]]:
    """Write the headers of the call to a backend."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    client = scope.get("client")
    peer = client[0] if client else None
    believed = peer is not None and trusted(peer)
    # What backends believe: a client can neither write it, nor have what a proxy wrote taken out.
    told = FORWARDED
    if tenants.trusted_header is not None:
        told = told | {tenants.trusted_header.lower().encode()}
    dropped = NOT_FORWARDED | (_named_by_connection(headers) - told)
    if not believed:
        dropped = dropped | told
    passed, trail, seen, host = [], [], set(), b""
    for name, value in headers:
        if name == b"host":
            host = value
        elif name in dropped or (b"_" in name and name.replace(b"_", b"-") in told):
            continue  # to CGI and WSGI x_real_ip is x-real-ip
        elif name == b"x-forwarded-for":
            trail.append(value)
        else:
            seen.add(name)
            passed.append((name.decode("latin-1"), text_of(value)))
    if peer is not None:
        trail.append(peer.encode())
    if trail:
        passed.append(("x-forwarded-for", text_of(b", ".join(trail))))
    if b"x-forwarded-proto" not in seen:
        passed.append(("x-forwarded-proto", scope.get("scheme", "http")))
    if host and b"x-forwarded-host" not in seen:
        passed.append(("x-forwarded-host", text_of(host)))
    return passed


def response_headers(raw: RawHeaders, status: int) -> list[tuple[bytes, bytes]]:
    """Write the headers of the answer to the client; raise `BadAnswer` for what no client should parse."""
    lines = [(name.lower(), value) for name, value in raw]
    dropped = NOT_RETURNED | _named_by_connection(lines)
    lengths = set()
    chunked = False
    for name, value in lines:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise BadAnswer(f"its header {name!r} holds characters that no header may hold")
        if name == b"content-length":
            lengths.add(value)
        elif name == b"transfer-encoding":
            chunked = True
    if len(lengths) > 1 or any(not (value.isascii() and value.isdigit()) for value in lengths):
        raise BadAnswer("its content-length is not one number")
    if chunked or status in BODILESS:
        dropped = dropped | {b"content-length"}
    kept = [line for line in lines if line[0] not in dropped and line[0] != b"content-length"]
    if lengths and b"content-length" not in dropped:
        kept.append((b"content-length", lengths.pop()))
    return kept


def target_of(scope: Mapping[str, Any]) -> str:
    """Write the path and the query as the client did."""
    raw = scope.get("raw_path")
    path = raw.decode("ascii") if raw else quote(scope["path"], safe="/%:@!$&'()*+,;=~-._")
    query = scope.get("query_string") or b""
    return f"{path}?{query.decode('ascii')}" if query else path


def trust(networks: Iterable[str]) -> Callable[[str], bool]:
    """Make a function that tells whether an address is a trusted proxy's."""
    trusted = [ipaddress.ip_network(network, strict=False) for network in networks]

    @lru_cache(maxsize=4096)
    def is_trusted(address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(plain_address(address))
        except ValueError:
            return False  # a name or the path of a socket
        return any(parsed in network for network in trusted)

    return is_trusted


def plain_address(text: str) -> str:
    """Write an address in its one form: a listener on [::] sees IPv4 clients as ::ffff:10.0.0.7.

    >>> plain_address("::ffff:10.0.0.7"), plain_address("2001:DB8::1")
    ('10.0.0.7', '2001:db8::1')
    """
    parsed = ipaddress.ip_address(text.partition("%")[0])
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)


def _named_by_connection(headers: RawHeaders) -> frozenset[bytes]:
    named = [value for name, value in headers if name == b"connection"]
    if not named:
        return frozenset()
    return frozenset(token.strip().lower() for token in b",".join(named).split(b",")) - {
        b"content-length",  # naming these would let a client unmake the message
        b"host",
    }


def text_of(value: bytes) -> str:
    """Make a header's bytes text that is written as the same bytes; only bytes that are no UTF-8 change."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
