"""Requests that ask two servers to disagree, as bytes, with the answers that they must get.

Each case is a first line and headers as an attacker writes them.  What follows a case on its connection is a request
that no backend may run unless the framing before it is beyond doubt.
"""

import random
from typing import NamedTuple

HOST = b"Host: x\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: evil\r\nX-Tenant-Id: admin\r\n\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(SMUGGLED)
# The last of a connection: answered only where the connection is still in step.
LAST = b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


class Case(NamedTuple):
    """Bytes on a connection, and the statuses of the answers; `closes` where the server hangs up after them."""

    name: str
    raw: bytes
    statuses: tuple[int, ...]
    closes: bool


CASES: list[Case] = []
UNFINISHED: list[Case] = []  # they wait for the rest of a head or a body, until a limit cuts them


def refused(name: str, *raws: bytes, status: int = 400) -> None:
    """Add cases of which no backend hears."""
    for raw in raws:
        CASES.append(Case(f"{name} {len(CASES)} {raw[:40]!r}", raw, (status,), True))


def served(name: str, *raws: bytes, answers: int = 1, closes: bool = False) -> None:
    """Add cases that are requests like any other."""
    for raw in raws:
        CASES.append(Case(f"{name} {len(CASES)} {raw[:40]!r}", raw, (200,) * answers, closes))


def post(headers: bytes, body: bytes) -> bytes:
    return b"POST /a HTTP/1.1\r\n" + HOST + headers + b"\r\n" + body


def get(headers: bytes, target: bytes = b"/a", version: bytes = b"HTTP/1.1") -> bytes:
    return b"GET " + target + b" " + version + b"\r\n" + headers + b"\r\n"


def chunked(body: bytes) -> bytes:
    return post(b"Transfer-Encoding: chunked\r\n", body + SMUGGLED)


def lengths(*values: bytes) -> list[bytes]:
    return [post(b"Content-Length: " + value + b"\r\n", b"HELLO" + SMUGGLED) for value in values]


# Two ways to tell where the body ends, in one message.
refused(
    "both framings",
    post(b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\nG" + SMUGGLED),
    post(
        b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        b"5c\r\n" + SMUGGLED + b"\r\n0\r\n\r\n",
    ),
)
# Spellings of the coding, with a length beside them and alone.
SPELLINGS = (
    b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding : chunked",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
    b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding: identity, chunked",
    b"Transfer-Encoding:\x0bchunked",
    b'Transfer-Encoding: "chunked"',
    b"X: a\nTransfer-Encoding: chunked",
    b"X: a\rTransfer-Encoding: chunked",
    b"Transfer-Encoding\x00: chunked",
    b"Transfer-Encoding:\r\n chunked",
    b" Transfer-Encoding: chunked",
    b"Transfer-Encoding: chunked\x00",
    b"Transfer-Encoding: ,chunked",
    b"Transfer-Encoding: chunked;q=1",
    b"Transfer-Encoding: \xa0chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: chunked\r\n , identity",
    b"Transfer-Encoding:",
    b"Content-Encoding: x\r\nTransfer-Encoding: chunk\xe9d",
)
PLAIN = (b"Transfer-Encoding:\tchunked", b"TRANSFER-ENCODING: CHUNKED")
END = b"0\r\n\r\n"
refused(
    "coding and length",
    *(post(line + b"\r\n" + LENGTH, END + SMUGGLED[:-5] + b"XX") for line in SPELLINGS + PLAIN),
)
refused("coding", *(post(line + b"\r\n", END + SMUGGLED) for line in SPELLINGS))
served("coding", *(post(line + b"\r\n", END + SMUGGLED) for line in PLAIN), answers=2)
# A name with an underscore is no framing here, and does not reach a backend that might take it for framing.
UNDERSCORED = b"Transfer_Encoding: chunked\r\n"
for headers, rest in ((UNDERSCORED, END + SMUGGLED), (UNDERSCORED + LENGTH, END + SMUGGLED)):
    CASES.append(Case(f"underscore {headers!r}", post(headers, rest), (200, 400), True))
served(
    "underscored length",
    post(b"Content-Length: 5\r\nContent_Length: %d\r\n" % (5 + len(SMUGGLED)), b"HELLO"),
)
# Lengths.
NUMBERS = b"+5|-5|5,5|5, 6|0x5|5 5|5\x0b|5.0|1e1||5\xb2|\xd9\xa5|5;a|_5|5_0".split(b"|")
HUGE = (b"0" * 30 + b"5", b"9" * 23, b"18446744073709551621")
refused("length", *lengths(*NUMBERS, *HUGE))
refused("length", *lengths(b"9007199254740993"), status=413)
served("length", *lengths(b" 5 ", b"05", b"5\t"), answers=2)
refused(
    "length's field",
    post(b"Content-Length: 5\r\nContent-Length: 5\r\n", b"HELLO" + SMUGGLED),
    post(b"Content-Length: 5\r\nContent-Length: 66\r\n", b"HELLO" + SMUGGLED),
    post(b"Content-Length : 5\r\n", b"HELLO" + SMUGGLED),
    post(b"Content-Length:\r\n 5\r\n", b"HELLO" + SMUGGLED),
    post(b"X: y\r\n Content-Length: 5\r\n", b"HELLO" + SMUGGLED),
    post(b"Content-Length: 5\x00\r\n", b"HELLO" + SMUGGLED),
)
refused(
    "line ends",
    b"POST /a HTTP/1.1\nHost: x\nContent-Length: 5\n\nHELLO" + SMUGGLED,
    post(b"X: y\nContent-Length: 5\r\n", b"HELLO" + SMUGGLED),
    post(b"X: y\rContent-Length: 5\r\n", b""),
    post(b"X: y\r\rContent-Length: 5\r\n", b""),
    b"GET /a HTTP/1.1\r\nHost: x\n\n" + SMUGGLED,
    b"GET /a HTTP/1.1\r\nHost: x\r\n\n" + SMUGGLED,
)
# Chunks.
TAIL = b"\r\nHELLO\r\n0\r\n\r\n"
refused(
    "chunk",
    *(chunked(size + TAIL) for size in (b" 5", b"5 ", b"+5", b"-5", b"0x5", b"5_0", b"5\x00")),
    *(chunked(size + TAIL) for size in (b"1" + b"0" * 15 + b"5", b'5;ext="a\r\nb"', b"5\r")),
    chunked(b"5\nHELLO\r\n0\r\n\r\n"),
    chunked(b"5\r\nHELLO\n0\r\n\r\n"),
    chunked(b"5\r\nHELLO\r\n0\n\n"),
    chunked(b"5\r\nHELLOXX0\r\n\r\n"),
    chunked(b"5;ext=a\nHELLO\r\n0\r\n\r\n"),
    chunked(b"5\r\nHELLO\r\n0\r\nX-Trailer: a\r\nContent-Length: 99\r\n\r\n"),
    chunked(b"5\r\nHELLO\r\n0\r\nTransfer-Encoding: chunked\r\nHost: evil\r\n\r\n"),
    chunked(b"\r\n0\r\n\r\n"),
    chunked(b"5\r\nHELLO\r0\r\n\r\n"),
    chunked(b"g\r\n"),
    chunked(b"5\r\nHELLO\r\n0\r\nX: a\nY: b\r\n\r\n"),
    chunked(b"5\r\nHELLO\r\n0\r\nX: " + b"a" * 70_000 + b"\r\n\r\n"),
    chunked(b"5\r\nHELLO\r\n0\r\n" + b"X: a\r\n" * 3000 + b"\r\n"),
)
served(
    "chunk",
    *(chunked(size + TAIL) for size in (b"5;ext", b"05", b"0" * 19 + b"5", b"5;" + b"a" * 5000)),
    chunked(b"5\r\nHELLO\r\n00\r\n\r\n"),
    chunked(b"5\r\nHELLO\r\n0;a\r\n\r\n"),
    answers=2,
)
UNFINISHED += [
    Case("chunk of 2^64", chunked(b"FFFFFFFFFFFFFFFF" + TAIL), (), True),
    Case("chunk of 2^63", chunked(b"7fffffffffffffff\r\nHELLO\r\n"), (), True),
    Case("HTTP/0.9", b"GET /\r\n", (), True),
]
# Targets.
refused(
    "target",
    *(get(HOST, target) for target in (b"http://evil/a", b"http://evil:80/a", b"https://evil/a")),
    *(get(HOST, target) for target in (b"/a?b#c", b"/a#b", b"*", b"evil:443", b"", b"a", b"?a")),
    *(get(HOST, target) for target in (b"/a\x00b", b"/a\x7fb", b"/a\xffb", b"/\xc3\xa9?\xc3\xa9")),
    *(get(HOST, target) for target in (b"/a b", b"/a\tb", b"/a?\xff", b"/a?x HTTP/1.1%20HTTP/1.1")),
)
refused("target", get(HOST, b"/" + b"a" * 70_000), status=431)
served(
    "target",
    *(get(HOST, target) for target in (b"//evil/a", b"/\\evil", b"/../../etc", b"/%2e%2e/%2f")),
    *(get(HOST, target) for target in (b"/%00", b"/%zz", b"/a%0d%0aX:y", b"/a?x=%0d%0aY:z")),
    *(get(HOST, target) for target in (b"/@evil.com/", b"/:80@evil/", b"/a?http://x", b"/a;b=c")),
    *(get(HOST, target) for target in (b'/a|b^c`d{e}"<>', b"/" + b"a" * 60_000)),
)
# Hosts.
refused(
    "host",
    *(get(b"Host: " + host + b"\r\n") for host in (b"x, y", b"x y", b"x/y", b"x@y", b"x\r\n y")),
    *(get(b"Host: " + host + b"\r\n") for host in (b"[::1", b"\xc3\xa9", b"x#y", b"x\x00y")),
    *(get(b"Host: " + host + b"\r\n") for host in (b"<script>", b"user:pw@x")),
    get(b"Host: x\r\nHost: y\r\n"),
    get(b"Host : x\r\n"),
    get(b"X: y\r\n"),
)
served("host", get(b"Host:\r\n"), get(b"Host: x:99999999\r\n"))
# Headers that make a backend believe, and headers that no parser should pass.
HI = b"Content-Length: 2\r\n"
served(
    "headers",
    *(
        post(lines + b"\r\n" + HI, b"hi")
        for lines in (
            b"Connection: x-forwarded-for",
            b"Connection: x-tenant-id\r\nX-Tenant-Id: admin",
            b"Connection: content-length",
            b"Connection: transfer-encoding",
            b"Connection: host",
            b"Connection: authorization\r\nAuthorization: Bearer k",
            b"Connection: cookie\r\nCookie: a=b",
            b"Connection: x-forwarded-host\r\nX-Forwarded-Host: evil",
            b"Keep-Alive: timeout=99\r\nProxy-Connection: keep-alive\r\nTE: trailers\r\nTrailer: X",
            b"Proxy-Authorization: Basic x",
            b"X-Forwarded-For: 1.2.3.4\r\nForwarded: for=1.2.3.4\r\nX-Real-IP: 1.2.3.4",
            b"X-Tenant-Id: admin\r\nX_Tenant_Id: admin\r\nX_Forwarded_For: 9.9.9.9\r\nX-Tenant_Id: a",
            b"X.Tenant.Id: admin\r\nX~Tenant~Id: admin",
            b"X-Fairlead-Retry-Token: x\r\nX-Fairlead-Priority: system",
            b"X: \x80\xff",
            b"X: a\tb",
            b"X-Client-Ip: 1.2.3.4\r\nTrue-Client-Ip: 1.2.3.4\r\nX-Original-Url: /admin\r\nVia: 1.1 x",
            b"X-Rewrite-Url: /admin\r\nX-Forwarded-User: root\r\nX-Forwarded-Ssl: on",
        )
    ),
)
served(
    "closing", post(b"Connection: close, x-real-ip\r\nX-Real-Ip: 1\r\n" + HI, b"hi"), closes=True
)
refused(
    "headers",
    *(post(line + b"\r\n" + HI, b"hi") for line in (b"X-Tenant-Id : admin", b"x-tenant-id\t: a")),
    *(post(line + b"\r\n" + HI, b"hi") for line in (b"Bad Name: x", b"Bad(Name): x", b": x")),
    *(post(line + b"\r\n" + HI, b"hi") for line in (b"NoColon", b"X\x80: y", b"X: a\x00b")),
    *(post(line + b"\r\n" + HI, b"hi") for line in (b"X: a\x01b", b"X: a\x1bb")),
)
# Methods and versions.
TO_A = b" HTTP/1.1\r\n" + HOST + b"\r\n"
refused("method", *(m + TO_A for m in (b"CONNECT x:80", b"CONNECT /a", b"TRACE /a")), status=405)
refused(
    "method", *(m + TO_A for m in (b"PRI *", b"get /a", b"G\x00ET /a", b"FOO /a", b"OPTIONS *"))
)
served("method", *(m + TO_A for m in (b"M-SEARCH /a", b"PROPFIND /a", b"QUERY /a", b"OPTIONS /a")))
refused("version", *(get(HOST, version=v) for v in (b"HTTP/0.9", b"HTTP/2.0")), status=505)
refused(
    "version",
    *(get(HOST, version=v) for v in (b"HTTP/1.2", b"HTTP/11.1", b"HTTP/1.", b"http/1.1", b"")),
    *(get(HOST, version=v) for v in (b"HTTP/1.01", b"HTTP 1.1", b"HTTP/1.1 ")),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    random.Random(18).randbytes(4000),
)
served(
    "version",
    get(HOST, version=b"HTTP/1.0"),
    b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /b HTTP/1.0\r\nHost: x\r\n\r\n",
    closes=True,
)
ONE_ZERO = b"POST /a HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
refused(
    "chunks in HTTP/1.0",
    ONE_ZERO + b"Connection: keep-alive\r\n\r\n" + END + SMUGGLED,
    ONE_ZERO + b"Content-Length: 5\r\n\r\n" + END + SMUGGLED,
)
# Upgrades.
H2C = HOST + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
refused(
    "upgrade",
    get(HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n") + SMUGGLED,
    post(UPGRADE + b"Upgrade: h2c\r\nContent-Length: 5\r\n", b"HELLO" + SMUGGLED),
    get(HOST + b"Connection: Upgrade\r\nUpgrade: h2c, websocket\r\n") + SMUGGLED,
    status=426,
)
served(
    "upgrade",
    get(H2C) + SMUGGLED,
    post(UPGRADE + b"Content-Length: 5\r\n", b"HELLO" + SMUGGLED),
    post(UPGRADE + b"Transfer-Encoding: chunked\r\n", b"5" + TAIL + SMUGGLED),
    get(HOST + b"Upgrade: websocket\r\n") + SMUGGLED,
    answers=2,
)
# Bodies where few expect them, pipelines, and too much of everything.
served("pipeline", b"".join(get(HOST, b"/p%d" % number) for number in range(5)), answers=5)
served("pipeline", b"\r\n\r\n\r\n" + get(HOST))
served("expectation", post(b"Expect: 100-continue\r\nContent-Length: 5\r\n", b"HELLO"))
refused("expectation", post(b"Expect: foo\r\nContent-Length: 5\r\n", b"HELLO"), status=417)
served(
    "body",
    *(m + b" /a HTTP/1.1\r\n" + HOST + LENGTH + b"\r\n" + SMUGGLED for m in (b"GET", b"OPTIONS")),
    b"DELETE /a HTTP/1.1\r\n" + HOST + LENGTH + b"\r\n" + SMUGGLED,
    get(HOST + b"Transfer-Encoding: chunked\r\n")
    + b"%x\r\n%s\r\n" % (len(SMUGGLED), SMUGGLED)
    + END,
)
CASES += [
    Case("HEAD", b"HEAD /a HTTP/1.1\r\n" + HOST + b"\r\n", (200,), False),
    Case(
        "HEAD with a body",
        b"HEAD /a HTTP/1.1\r\n" + HOST + LENGTH + b"\r\n" + SMUGGLED,
        (200,),
        False,
    ),
]
served("many headers", get(HOST + b"".join(b"X%d: a\r\n" % number for number in range(90))))
refused(
    "many headers",
    get(HOST + b"".join(b"X%d: a\r\n" % number for number in range(500))),
    get(HOST + b"a:\r\n" * 100_000),
    get(HOST + b"X: " + b"a" * 2_000_000 + b"\r\n"),
    get(HOST + b"a" * 2_000_000 + b": x\r\n"),
    status=431,
)
served(
    "closing",
    get(HOST + b"Connection: close\r\n") + SMUGGLED,
    get(HOST + b"Connection: keep-alive\r\nConnection: close\r\n") + SMUGGLED,
    closes=True,
)


def mutated(seed: int) -> bytes:
    """Write a case with random bytes changed, cut out, put in or doubled."""
    chance = random.Random(seed)
    raw = bytearray(chance.choice(CASES).raw[:2000])
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(raw) + 1)
        deed = chance.randrange(4)
        if deed == 0:
            raw[at : at + 1] = bytes([chance.randrange(256)])
        elif deed == 1:
            del raw[at : at + chance.randint(1, 4)]
        elif deed == 2:
            raw[at:at] = chance.choice(FRAGMENTS)
        else:
            raw[at:at] = raw[max(0, at - chance.randint(1, 30)) : at]
    return bytes(raw)


FRAGMENTS = (
    *(b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b",", b"0", b"0\r\n\r\n", b"\r\n\r\n", b"_"),
    *(b"Transfer-Encoding: chunked\r\n", b"Content-Length: 5\r\n", b"X-Tenant-Id: admin\r\n"),
    *(b"Connection: close\r\n", b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\n", SMUGGLED),
)
