"""Answers of backends that are broken or hostile, as bytes, with what a client of the gateway must get for each."""

from typing import Any, NamedTuple

OK = b"HTTP/1.1 200 OK\r\n"
TWO = b"Content-Length: 2\r\n\r\nok"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
# An answer that belongs to no request; no client may ever read one in place of its own.
POISON = OK + b"Content-Length: 8\r\n\r\nPOISONED"


class Behavior(NamedTuple):
    """What a backend writes when it is asked, what it goes on with, and what comes of it at the client.

    A body of None is an answer whose end never comes: the client sees it cut short, or 502 in its place.
    """

    name: str
    said: bytes
    status: int
    body: bytes | None = b"ok"
    then: str = ""  # close, late, endless, each second; the connection stays open otherwise
    more: bytes = b""
    method: str = "GET"


BEHAVIORS: list[Behavior] = []


def passes(name: str, said: bytes, body: bytes = b"ok", status: int = 200, **more: Any) -> None:
    """Add an answer that reaches the client."""
    BEHAVIORS.append(Behavior(name, said, status, body, **more))


def refused(name: str, *saids: bytes, then: str = "", more: bytes = b"", status: int = 502) -> None:
    """Add answers in place of which the client gets the gateway's own."""
    for number, said in enumerate(saids):
        called = f"{name} {number}" if number else name
        BEHAVIORS.append(Behavior(called, said, status, b"", then, more))


def cut(name: str, said: bytes, then: str = "", more: bytes = b"") -> None:
    """Add an answer that is fine at its head and has no end."""
    BEHAVIORS.append(Behavior(name, said, 200, None, then, more))


passes("fine", OK + TWO)
passes("fine to HEAD", OK + b"Content-Length: 2\r\n\r\n", b"", method="HEAD")
# Bytes that belong to no request.
passes("a surplus answer", OK + TWO + POISON)
passes("a surplus answer to HEAD", OK + TWO + POISON, b"", method="HEAD")
BEHAVIORS.append(Behavior("a late surplus answer", OK + TWO, 200, b"ok", "late", POISON))
TIMED_OUT = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"
BEHAVIORS.append(Behavior("408 while idle", OK + TWO, 200, b"ok", "late", TIMED_OUT))
passes("an answer as a body", OK + b"Content-Length: 46\r\n\r\n" + POISON, POISON)
passes("a body to HEAD", OK + b"Content-Length: 46\r\n\r\n" + POISON, b"", method="HEAD")
passes("a body with 204", b"HTTP/1.1 204 No Content\r\n\r\n" + POISON, b"", 204)
UNCHANGED = b"HTTP/1.1 304 Not Modified\r\nContent-Length: 46\r\n\r\n" + POISON
passes("a body with 304", UNCHANGED, b"", 304)
passes("a body with 304 to HEAD", UNCHANGED, b"", 304, method="HEAD")
# Where the body ends, told twice, wrongly or never.
END = b"2\r\nok\r\n0\r\n\r\n"
refused(
    "framing",
    OK + b"Content-Length: 2\r\nContent-Length: 60\r\n\r\nok" + POISON,
    OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n" + END,
    OK + b"Transfer-Encoding: identity, chunked\r\n\r\n" + END,
    OK + b"Transfer-Encoding: xchunked\r\n" + TWO,
    OK + b"Content-Length: +2\r\n\r\nok",
    OK + b"Content-Length: -2\r\n\r\nok",
    OK + b"Content-Length: 2, 2\r\n\r\nok",
)
cut("a bad chunk", CHUNKED + b"5\r\nhello\r\nZZ\r\nxx")
cut("a chunk of 2^68", CHUNKED + b"FFFFFFFFFFFFFFFFF\r\nok")
cut("a cut chunk", CHUNKED + b"5\r\nhel", "close")
cut("a cut body", OK + b"Content-Length: 100\r\n\r\nhel", "close")
# Heads.
refused(
    "head",
    b"HTTP/1.1 200 OK\nContent-Length: 2\nX-Evil: 1\n\nok",
    OK + b"X: a\nSet-Cookie: evil=1\r\n" + TWO,
    OK + b"X: a\rSet-Cookie: evil=1\r\n" + TWO,
    OK + b"X: a\x00b\r\n" + TWO,
    OK + b"X: a\r\n Set-Cookie: evil=1\r\n" + TWO,
    OK + b"X Y: a\r\n" + TWO,
    OK + b"X: a\x01b\x1b[31m\r\n" + TWO,
    b"HTTP/1.1 000 X\r\n" + TWO,
    b"HTTP/1.1 999 X\r\n" + TWO,
    b"HTTP/1.1 600 X\r\n" + TWO,
    b"HTTP/1.1 200 O\x00K\rX: y\r\n" + TWO,
    b"HTTP/2.0 200 OK\r\n" + TWO,
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nrawrawraw",
    b"\x00\xff\xfe garbage\r\n\r\n",
    OK + b"".join(b"X%d: a\r\n" % number for number in range(2000)) + TWO,
)
refused("no head", b"<html>just html</html>", b"", then="close")
passes("interim answers", b"HTTP/1.1 100 Continue\r\n\r\n" * 3 + HINTS + OK + TWO)
passes("until it closes", b"HTTP/1.0 200 OK\r\n\r\nuntil-close", b"until-close", then="close")
passes("a trailer", CHUNKED + b"2\r\nok\r\n0\r\nSet-Cookie: a=b\r\n\r\n")
passes("a named hop", OK + b"Connection: x-secret, content-length\r\nX-Secret: 1\r\n" + TWO)
passes("a coding", OK + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nABCD", b"ABCD")
passes(
    "our own headers",
    OK + b"X-Fairlead-Retry-Token: forged\r\nX-Fairlead-Decision: class=system\r\n"
    b"X-Fairlead-Error-Code: none\r\nX-Fairlead-Preempted: true\r\nServer: evil\r\n" + TWO,
)
# Without an end.
refused("endless interim answers", b"", then="endless", more=HINTS * 1000)
refused("endless headers", OK, then="endless", more=b"X: a\r\n" * 1000)
refused("an endless header", OK + b"X: ", then="endless", more=b"a" * 10_000)
refused("an endless status", b"HTTP/1.1 200 ", then="endless", more=b"a" * 10_000)
cut("an endless extension", CHUNKED + b"5;", "endless", b"a" * 10_000)
cut("endless trailers", CHUNKED + b"2\r\nok\r\n0\r\n", "endless", b"X: a\r\n" * 1000)
refused("interim answers, slowly", b"", then="each moment", more=HINTS, status=504)
refused("silence", b"", then="silence", status=504)
