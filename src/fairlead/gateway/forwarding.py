"""What passes through a proxy and what does not: the headers of both directions.  Pure.

Each message is written anew from its parsed parts.  What concerns one connection only (RFC 9110 §7.6.1) stops here, as
do the headers by which clients talk to the gateway itself: `x-fairlead-decision` and `x-fairlead-retry-token`.  The
priority headers pass on, for backends that order their own queue by them.  Of an answer no `x-fairlead-*` passes: these
are the gateway's words to its clients.
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fairlead.gateway.client.faults import BadAnswer

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
# What a proxy says of its client and of the URL that the client asked for; from any other sender it is hearsay.  The
# names follow a few habits, and a product's next header will follow them too: rules, with a table for the rest.
_TOLD = re.compile(
    rb"(?:.+-)?forwarded.*"
    # The address of a client, whatever the product: True-Client-IP, CF-Connecting-IP, X-Azure-ClientIP.
    rb"|(?:.+-)?(?:client|peer|proxy|real|remote|socket|source|user)?ip(?:v[46])?"
    rb"|(?:.+-)?(?:client|connecting|external|originating|peer|proxy|real|remote|socket|source|true|viewer)"
    rb"-(?:addr|address|host|port)"
    rb"|x-real-.*|x-envoy-(?:external|internal|original|peer).*"
    # The URL that a client asked for: X-Original-URL, X-Rewrite-URL, X-Host.
    rb"|(?:x-)?(?:original|rewrite)-.*|x-(?:http-)?(?:host(?:-override)?|(?:destination|override)-?ur[il])"
    rb"|x-(?:script-name|scheme|url-scheme|https)|cf-visitor|front-end-.*"
    # The user or the certificate that a proxy has checked: Remote-User, X-Auth-Request-Email, Client-Cert (RFC 9440).
    rb"|(?:x-)?remote-.*|x-auth-request-.*|(?:x-)?(?:ssl-.*|client-cert.*|client-verify|client-dn)"
    rb"|(?:.+-)?authenticated-user.*|x-(?:amzn-oidc|authentik|ms-client-principal|webauth)(?:-.*)?|tailscale-user-.*"
)
# To a server that hands headers on as CGI variables each of these is the same name.
_SEPARATOR = re.compile(rb"[^0-9A-Za-z]")
LONGEST_REMEMBERED = 64
PASSES, UNDERSCORED, TOLD, STAYS = range(4)
# The server in front writes its own date.
NOT_RETURNED = HOP_BY_HOP | {b"date"}
# Here the end of an address is an IPv4 address: that of a client behind NAT64, or of old; ::1 is among them.
WITH_IPV4 = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("::/96"))
BODILESS = frozenset({204, 304})

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")


def request_headers(
    scope: Mapping[str, Any],
    tenants: Tenants,
    trusted: Callable[[str], bool],
    *,
    keep_underscores: bool = False,
) -> list[tuple[bytes, bytes]]:
    """Write the headers of the call to a backend."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    client = scope.get("client")
    peer = client[0] if client else None
    believed = peer is not None and trusted(peer)
    # Backends believe this header too: no client can write it in any spelling.
    own = tenants.trusted_header and tenants.trusted_header.lower().encode()
    own_plain = own and _plain(own)
    named = _named_by_connection(headers)
    passed, trail, seen, host = [], [], set(), b""
    for name, value in headers:
        kind, plain = _kind(name) if len(name) <= LONGEST_REMEMBERED else _look_at(name)
        if plain == own_plain:
            kind = TOLD if name == own else STAYS
        if name == b"host":
            host = value
        # A client cannot take out what its proxy wrote by naming it in Connection.
        passes = believed if kind == TOLD else kind != STAYS and name not in named
        if not passes or (kind == UNDERSCORED and not keep_underscores):
            continue
        if name == b"x-forwarded-for":
            trail.append(value)
        else:
            seen.add(name)
            passed.append((name, value))
    if peer is not None:
        trail.append(peer.encode())
    if trail:
        passed.append((b"x-forwarded-for", b", ".join(trail)))
    if b"x-forwarded-proto" not in seen:
        passed.append((b"x-forwarded-proto", scope.get("scheme", "http").encode()))
    if host and b"x-forwarded-host" not in seen:
        passed.append((b"x-forwarded-host", host))
    return passed


def _plain(name: bytes) -> bytes:
    return _SEPARATOR.sub(b"-", name.lower())


def _look_at(name: bytes) -> tuple[int, bytes]:
    """Find what becomes of a header by its name, and the name that a backend may read it as."""
    plain = _plain(name)
    if name in NOT_FORWARDED:
        return STAYS, plain
    told = _TOLD.fullmatch(plain) is not None
    if plain != name and (told or plain in NOT_FORWARDED or plain == b"content-length"):
        return STAYS, plain
    if told:
        return TOLD, plain
    return UNDERSCORED if b"_" in name else PASSES, plain


_kind = lru_cache(maxsize=1024)(_look_at)


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
    kept = [
        line
        for line in lines
        if line[0] not in dropped and line[0] != b"content-length" and not _is_ours(line[0])
    ]
    if lengths and b"content-length" not in dropped:
        kept.append((b"content-length", lengths.pop()))
    return kept


def _is_ours(name: bytes) -> bool:
    """Return whether a client would take an answer's header for the gateway's own word."""
    return name.startswith(b"x") and _plain(name).startswith(b"x-fairlead-")


def target_of(scope: Mapping[str, Any]) -> bytes:
    """Write the path and the query as the client did."""
    raw = scope.get("raw_path")
    path: bytes = raw or quote(scope["path"], safe="/%:@!$&'()*+,;=~-._").encode()
    query = scope.get("query_string") or b""
    return b"%b?%b" % (path, query) if query else path


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


def network_of(address: str, prefix: int) -> str:
    """Return the network of an IPv6 client: the clients of one network choose their addresses in it.

    >>> network_of("2001:db8:0:1::7", 64), network_of("2001:db8::7", 128), network_of("::1", 64)
    ('2001:db8:0:1::/64', '2001:db8::7', '::1')
    """
    parsed = ipaddress.IPv6Address(address)
    if prefix == 128 or any(parsed in network for network in WITH_IPV4):
        return address
    return str(ipaddress.IPv6Network((parsed, prefix), strict=False))


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
