"""Which requests come from this machine: the only ones that a service without a token answers.

Three things must hold, for each of them alone can be had from elsewhere.  The peer is loopback, or a Unix socket.  The
Host is this machine: a page whose own name was made to mean 127.0.0.1 (DNS rebinding) asks for that name.  No proxy
passed the request on: a proxy on this machine is a local peer and often writes a local Host, whoever asked it.  A proxy
that leaves no trace cannot be told from a local client, so behind a proxy a token is needed.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from fairlead.documents.addresses import is_here

if TYPE_CHECKING:
    from collections.abc import Iterable

# A name or an address that is written in full, and a port; nothing that two readers could understand differently.
_HOST = re.compile(
    rb"(?:(localhost|[0-9.]+)|\[([0-9a-f]*:[0-9a-f:.]+)\])(?::[0-9]{1,5})?", re.IGNORECASE
)
_OF_PROXIES = frozenset({b"forwarded", b"via", b"x-envoy-external-address", b"x-original-host"})


class Stranger(NamedTuple):
    """Why a request is not of this machine alone: a code for programs, a sentence for people."""

    code: str
    detail: str


def stranger(
    peer: str | None, fields: Iterable[tuple[bytes, bytes]], lacking: str = "a token"
) -> Stranger | None:
    """Say why a request is not of this machine alone; None if it is.

    `peer` is the address of the connection, None for a Unix socket; names of header fields are in lower case.

    >>> stranger("127.0.0.1", [(b"host", b"localhost:8080")])
    >>> stranger("127.0.0.1", [(b"host", b"evil.example")]).code
    'foreign_host'
    """
    if not is_local_peer(peer):
        detail = f"without {lacking} this service answers requests from its own machine only"
        return Stranger("foreign_peer", detail)
    hosts = 0
    for name, value in fields:
        if name == b"host":
            hosts += 1
            if not _is_local_host(value):
                hosts = 2
        elif _is_of_proxies(name):
            return behind_proxy(name, lacking)
    if hosts != 1:
        detail = f"without {lacking} this service answers to localhost and 127.0.0.1 only"
        return Stranger("foreign_host", detail)
    return None


def behind_proxy(name: bytes, lacking: str) -> Stranger:
    """Refuse what a proxy passed on."""
    detail = (
        f"a proxy passed this request on ({name.decode('latin-1')}), and behind a proxy {lacking} is needed: "
        "without, whoever asks the proxy would be taken for this machine"
    )
    return Stranger("behind_proxy", detail)


def passed_on(names: Iterable[bytes], lacking: str = "a token") -> Stranger | None:
    """Refuse what a proxy passed on, where the peer has been looked at and there is no Host to see."""
    return next((behind_proxy(name, lacking) for name in names if _is_of_proxies(name)), None)


def notice(*ports: str, setting: str) -> str:
    """Say what ports without a token do, for the banner of a service.

    >>> notice("http", setting="--token")
    '  without a token http answers this machine only; behind a proxy it needs --token'
    """
    where = ", ".join(ports)
    verbs = ("answer", "they need") if len(ports) > 1 else ("answers", "it needs")
    return f"  without a token {where} {verbs[0]} this machine only; behind a proxy {verbs[1]} {setting}"


# Most ask from the same few addresses for the same few hosts, and reading an address costs as much as a decision.
@lru_cache(maxsize=64)
def is_local_peer(peer: str | None) -> bool:
    """Tell whether a connection comes from this machine."""
    return peer is None or (peer != "localhost" and is_here(peer))


@lru_cache(maxsize=64)
def _is_local_host(host: bytes) -> bool:
    found = _HOST.fullmatch(host)
    return found is not None and is_here((found[1] or found[2]).decode().lower())


@lru_cache(maxsize=256)
def _is_of_proxies(name: bytes) -> bool:
    name = name.replace(b"_", b"-")
    return name in _OF_PROXIES or name.startswith(b"x-forwarded-") or name.endswith(b"-ip")
