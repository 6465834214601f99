"""Who may ask: one token, or tokens with roles; and which pages in a browser may.

Without a token a service listens on loopback only, and answers what comes from its own machine (`locality`).  A page in
a browser on that machine is there too: one from another site is known by its Origin.  With tokens nothing is ambient,
and no other site can send one.
"""

from __future__ import annotations

import hmac
from enum import IntEnum
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from fairlead.documents.addresses import is_here
from fairlead.serving.http import Problem, is_json, values_of
from fairlead.serving.locality import stranger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlead.serving.http import Scope

SAFE = frozenset({"GET", "HEAD"})
WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
SAME_SITE = (b"same-origin", b"none")  # of Sec-Fetch-Site; "none" is a person who typed an address


def bearer(scope: Scope) -> bytes | None:
    """The token a request shows, if it shows exactly one; an empty one is none."""
    given = values_of(scope, b"authorization")
    scheme, _, secret = (given[0] if len(given) == 1 else b"").partition(b" ")
    return (secret.strip() or None) if scheme.lower() == b"bearer" else None


def _host_of(origin: bytes) -> str | None:
    try:
        return urlsplit(origin.decode("latin-1")).hostname
    except ValueError:
        return None


def authorize(
    scope: Scope, token: str | None, *, realm: str = "fairlead", setting: str = "token"
) -> None:
    """Ask for the token; without one, answer this machine, and no page that came from another one."""
    if token is None:
        refuse_strangers(scope, f"a {setting}")
        for name, value in scope["headers"]:
            if name == b"origin" and not is_here(_host_of(value)):
                detail = f"without a {setting} this service does not answer pages from elsewhere"
                raise Problem(403, "foreign_origin", detail)
        return
    secret = bearer(scope)
    if secret is None or not hmac.compare_digest(secret, token.encode()):
        raise _unauthorized(realm, setting)


def refuse_strangers(scope: Scope, lacking: str = "tokens") -> None:
    """Raise a Problem for a request that is not of this machine alone."""
    found = stranger(_peer_of(scope), scope["headers"], lacking)
    if found is not None:
        raise Problem(403, found.code, found.detail)


def _peer_of(scope: Scope) -> str | None:
    client = scope.get("client")
    if client:
        return str(client[0])
    # A Unix socket has no port.  Of a TCP connection that is gone already the peer is not known: nobody's, not ours.
    server = scope.get("server")
    return None if not server or server[1] is None else ""


def _unauthorized(realm: str, setting: str = "token") -> Problem:
    detail = f"this service needs its token: send Authorization: Bearer <{setting}>"
    challenge = ((b"www-authenticate", f'Bearer realm="{realm}"'.encode()),)
    return Problem(401, "unauthorized", detail, headers=challenge)


class Role(IntEnum):
    """What one may do; each may do what those before it may."""

    VIEWER = 1
    SUBMITTER = 2
    OPERATOR = 3
    ADMIN = 4


class Token(NamedTuple):
    """A token by its digest, so that a configuration holds no secret: the hex SHA-256 of what is sent."""

    name: str
    role: Role
    sha256: str


def digest_of(token: str) -> str:
    """Write the digest of a token that was given in the clear."""
    return sha256(token.encode()).hexdigest()


class Caller(NamedTuple):
    """Who asks."""

    name: str
    role: Role


LOCAL = Caller("local", Role.ADMIN)


class Access:
    """Tokens with roles; without any, whoever is on this machine may do everything.

    >>> access = Access([Token("ann", Role.VIEWER, sha256(b"secret").hexdigest())])
    >>> asking = {"method": "GET", "headers": [(b"authorization", b"Bearer secret")]}
    >>> access.allow(asking, Role.VIEWER).name
    'ann'
    """

    def __init__(self, tokens: Iterable[Token] = (), *, realm: str = "fairlead") -> None:
        self.tokens = tuple(tokens)
        self._realm = realm

    @property
    def open(self) -> bool:
        """Whether nobody is asked for a token: the service may listen on loopback only."""
        return not self.tokens

    def allow(self, scope: Scope, needed: Role) -> Caller:
        """Tell who asks, or raise a Problem: 401 unknown, 403 not enough of a role or a foreign page, 415 no JSON."""
        if self.open:
            refuse_strangers(scope)
        caller = LOCAL if self.open else self._known(scope)
        self._refuse_foreign_pages(scope)
        _refuse_lower(caller, needed)
        # A form of another site cannot send JSON without being asked for it first, and nobody here says yes.
        if scope["method"] in WITH_BODY and not is_json(scope):
            raise Problem(415, "not_json", "send the body as content-type: application/json")
        return caller

    def require(self, scope: Scope, needed: Role) -> Caller:
        """Return the caller, as `allow` does, for a service that is no dashboard's: pages of this machine may ask."""
        if self.open:
            authorize(scope, None)
            return LOCAL
        caller = self._known(scope)
        _refuse_lower(caller, needed)
        return caller

    def _known(self, scope: Scope) -> Caller:
        secret = bearer(scope)
        digest = sha256(secret or b"").hexdigest()
        found = None
        for token in self.tokens:  # all of them, so that the time tells nothing
            if hmac.compare_digest(digest.encode(), token.sha256.lower().encode()):
                found = token
        if secret is None or found is None:
            raise _unauthorized(self._realm)
        return Caller(found.name, found.role)

    def _refuse_foreign_pages(self, scope: Scope) -> None:
        host = b"".join(values_of(scope, b"host")[:1])
        origins = values_of(scope, b"origin")
        sites = values_of(scope, b"sec-fetch-site")
        foreign = any(_netloc_of(origin) != host.lower() for origin in origins)
        crossing = scope["method"] not in SAFE and any(site not in SAME_SITE for site in sites)
        if foreign or crossing:
            detail = "this service does not answer pages from elsewhere"
            raise Problem(403, "foreign_origin", detail)


def _refuse_lower(caller: Caller, needed: Role) -> None:
    if caller.role < needed:
        detail = f"{caller.name} is {caller.role.name.lower()}; this needs {needed.name.lower()}"
        raise Problem(403, "forbidden", detail)


def _netloc_of(origin: bytes) -> bytes:
    """The host and port of an origin; the scheme is left out, since a proxy may have ended TLS."""
    return origin.partition(b"://")[2].lower()
