"""Who may ask: one token, or tokens with roles; and which pages in a browser may.

Without a token a service listens on loopback only, and whoever reaches it may ask.  A page in a browser on that machine
reaches it too: one from another site is told by its Origin, and one whose own name was made to mean 127.0.0.1 (DNS
rebinding) by the Host it asked for.  With tokens nothing is ambient, and no other site can send one.
"""

from __future__ import annotations

import hmac
from enum import IntEnum
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from fairlead.documents.addresses import is_here
from fairlead.serving.http import Problem, is_json, values_of

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


# Most ask for the same few hosts, and reading an address costs as much as deciding on a flow.
@lru_cache(maxsize=64)
def _is_asked_for_here(host: bytes) -> bool:
    return is_here(_host_of(b"//" + host))


def authorize(
    scope: Scope, token: str | None, *, realm: str = "fairlead", setting: str = "token"
) -> None:
    """Ask for the token; without one, answer no page that came from another machine."""
    if token is None:
        for name, value in scope["headers"]:
            if name == b"host":
                if value and not _is_asked_for_here(value):
                    raise _foreign_host(f"a {setting}")
            elif name == b"origin" and not is_here(_host_of(value)):
                detail = f"without a {setting} this service does not answer pages from elsewhere"
                raise Problem(403, "foreign_origin", detail)
        return
    secret = bearer(scope)
    if secret is None or not hmac.compare_digest(secret, token.encode()):
        raise _unauthorized(realm, setting)


def _unauthorized(realm: str, setting: str = "token") -> Problem:
    detail = f"this service needs its token: send Authorization: Bearer <{setting}>"
    challenge = ((b"www-authenticate", f'Bearer realm="{realm}"'.encode()),)
    return Problem(401, "unauthorized", detail, headers=challenge)


class Role(IntEnum):
    """What one may do; each may do what those before it may."""

    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3


class Token(NamedTuple):
    """A token by its digest, so that a configuration holds no secret: the hex SHA-256 of what is sent."""

    name: str
    role: Role
    sha256: str


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
        caller = LOCAL if self.open else self._known(scope)
        self._refuse_foreign_pages(scope)
        if caller.role < needed:
            detail = (
                f"{caller.name} is {caller.role.name.lower()}; this needs {needed.name.lower()}"
            )
            raise Problem(403, "forbidden", detail)
        # A form of another site cannot send JSON without being asked for it first, and nobody here says yes.
        if scope["method"] in WITH_BODY and not is_json(scope):
            raise Problem(415, "not_json", "send the body as content-type: application/json")
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
        if self.open and not all(map(_is_asked_for_here, filter(None, values_of(scope, b"host")))):
            raise _foreign_host("tokens")
        host = b"".join(values_of(scope, b"host")[:1])
        origins = values_of(scope, b"origin")
        sites = values_of(scope, b"sec-fetch-site")
        foreign = any(_netloc_of(origin) != host.lower() for origin in origins)
        crossing = scope["method"] not in SAFE and any(site not in SAME_SITE for site in sites)
        if foreign or crossing:
            detail = "this service does not answer pages from elsewhere"
            raise Problem(403, "foreign_origin", detail)


def _foreign_host(lacking: str) -> Problem:
    detail = f"without {lacking} this service answers to localhost and 127.0.0.1 only"
    return Problem(403, "foreign_host", detail)


def _netloc_of(origin: bytes) -> bytes:
    """The host and port of an origin; the scheme is left out, since a proxy may have ended TLS."""
    return origin.partition(b"://")[2].lower()
