"""Fetching a recording from a running server: one request, told in sentences if it fails, a whole file or none.

No proxy is asked and no redirect followed: the token goes to the server that was named, and nowhere else.
"""

from __future__ import annotations

import http.client
import json
import ssl
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlsplit

from fairlead.cli.out_files import see_writable, write_whole
from fairlead.config import shown
from fairlead.errors import ConfigError, FairleadError

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 30.0  # seconds without a byte
LONGEST_LINE = 1 << 20
MOST_SAID = 64 << 10  # of an answer that is no recording


class NotRecorded(FairleadError):
    """There is no recording, and why."""


class Place(NamedTuple):
    """A server, taken from a URL."""

    url: str
    secure: bool
    host: str
    port: int
    path: str


def place_of(url: str) -> Place:
    """Read where a server is.

    >>> place_of("http://127.0.0.1:8080/")
    Place(url='http://127.0.0.1:8080', secure=False, host='127.0.0.1', port=8080, path='')
    >>> place_of("127.0.0.1:8080").url
    'http://127.0.0.1:8080'
    """
    example = "write one such as http://127.0.0.1:8080"
    whole = url if "//" in url else f"http://{url}"
    try:
        parts = urlsplit(whole)
        port = parts.port
    except ValueError:
        raise ConfigError(f"{shown(url)} is not a URL; {example}") from None
    if parts.username or parts.password:
        raise ConfigError(
            "a URL with a password shows it to everybody; use --token or FAIRLEAD_TOKEN"
        )
    # A single word is more likely a slip than a host.
    word = whole != url and port is None
    if parts.scheme not in {"http", "https"} or not parts.hostname or word:
        raise ConfigError(f"{shown(url)} is not the URL of a server; {example}")
    secure = parts.scheme == "https"
    path = parts.path.rstrip("/")
    return Place(
        whole.rstrip("/"),
        secure,
        parts.hostname,
        port or (443 if secure else 80),
        quote(path, safe="/%"),
    )


def fetch(url: str, gate: str, minutes: float, out: str, token: str | None) -> int:
    """Write a gate's recording into a file; return how many tickets are in it."""
    place = place_of(url)
    target = see_writable(out)
    connection = _connection(place)
    try:
        answer = _ask(
            connection, place, f"/gates/{quote(gate, safe='')}/recording?minutes={minutes:g}", token
        )
        if answer.status != 200:
            raise NotRecorded(_refusal(answer, place, gate, token))
        return write_whole(target, _lines(answer, place))
    except (OSError, http.client.HTTPException) as error:
        raise NotRecorded(_unreachable(error, place)) from None
    finally:
        connection.close()


def _connection(place: Place) -> http.client.HTTPConnection:
    if place.secure:
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(
            place.host, place.port, timeout=PATIENCE, context=context
        )
    return http.client.HTTPConnection(place.host, place.port, timeout=PATIENCE)


def _ask(
    connection: http.client.HTTPConnection, place: Place, path: str, token: str | None
) -> http.client.HTTPResponse:
    headers = {"Accept": "application/x-ndjson, application/json"}
    if token:
        if not token.isascii() or not token.isprintable():
            raise ConfigError("the token has characters that no header may have; check --token")
        headers["Authorization"] = f"Bearer {token}"
    connection.request("GET", f"{place.path}/api/v1{path}", headers=headers)
    return connection.getresponse()


def _lines(answer: http.client.HTTPResponse, place: Place) -> Iterator[bytes]:
    """Yield the lines of a recording; each must be a JSON object."""
    for number, line in enumerate(_split(answer), 1):
        if not line.strip():
            continue
        try:
            whole = len(line) <= LONGEST_LINE and isinstance(json.loads(line), dict)
        except (ValueError, RecursionError):
            whole = False
        if not whole:
            raise NotRecorded(
                f"line {number} of what {place.url} sent is no recorded ticket; is it a Fairlead server?"
            )
        yield line.rstrip(b"\r") + b"\n"


def _split(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    # Not by readline, which takes the end of a connection within chunks for the end of the answer.
    rest = b""
    while part := answer.read(1 << 16):
        *lines, rest = (rest + part).split(b"\n")
        yield from lines
        if len(rest) > LONGEST_LINE:
            break
    if rest:
        yield rest
    if answer.length:  # what was promised and did not come; without a promise nobody can tell
        raise http.client.IncompleteRead(b"", answer.length)


def _refusal(answer: http.client.HTTPResponse, place: Place, gate: str, token: str | None) -> str:
    detail = _detail(answer.read(MOST_SAID))
    if answer.status in {401, 403}:
        if token:
            return f"{place.url} does not take this token{detail}; it needs one with the role viewer or more"
        return f"{place.url} wants a token{detail}; give one with --token or FAIRLEAD_TOKEN"
    if answer.status == 404:
        return f"{place.url} knows no gate {shown(gate)}{_known_gates(place, token)}"
    if 300 <= answer.status < 400:
        return f"{place.url} sends elsewhere; give the URL it leads to: {shown(answer.getheader('Location', ''))}"
    return f"{place.url} answered {answer.status}{detail}; look at its log"


def _detail(body: bytes) -> str:
    """Find what a problem document says."""
    try:
        told: Any = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    said = told.get("detail") or told.get("title") if isinstance(told, dict) else None
    return f" ({' '.join(said.split())[:200]})" if isinstance(said, str) else ""


def _known_gates(place: Place, token: str | None) -> str:
    """Name the gates there are, if the server tells; that it does not is no new mistake."""
    connection = _connection(place)
    try:
        answer = _ask(connection, place, "/overview", token)
        told: Any = json.loads(answer.read(LONGEST_LINE)) if answer.status == 200 else {}
        gates = [str(gate) for door in told["doors"] for gate in door["gates"]]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, RecursionError):
        return "; is it a Fairlead server (fairlead serve)?"
    finally:
        connection.close()
    return f"; it has {', '.join(gates[:20])}" if gates else "; it has none at all"


def _unreachable(error: Exception, place: Place) -> str:
    if isinstance(error, ConnectionRefusedError):
        return f"nothing listens at {place.url}; start a server there with fairlead serve"
    if isinstance(error, TimeoutError):
        return f"{place.url} did not answer within {PATIENCE:g} s; is it overloaded, or behind a firewall?"
    if isinstance(error, ssl.SSLError):
        return f"{place.url} cannot be trusted ({error.reason or error}); is it https at all?"
    if isinstance(error, http.client.HTTPException):
        return f"{place.url} broke off or does not speak HTTP ({type(error).__name__}); nothing was written"
    reason = getattr(error, "strerror", None) or str(error)
    return f"{place.url} cannot be reached or written down ({reason})"
