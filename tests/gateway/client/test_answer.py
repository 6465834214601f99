"""One answer from its bytes: the same wherever they are cut, exact about its end, bounded in all that is beside it."""

import random
from collections.abc import Callable

import pytest

from fairlead.gateway.client import Answer, BadAnswer, Lost
from fairlead.gateway.client import answer as limits
from tests.sizes import times

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


NAMES = {b"X-0:", b"X-1:", b"X-2:"}


def read(raw: bytes, *, bodiless: bool = False, piece: int = 1 << 20) -> tuple[Answer, bytes]:
    """Feed an answer in pieces; return it with its body."""
    answer, body = Answer(bodiless=bodiless), b""
    for start in range(0, len(raw), piece):
        answer.feed(raw[start : start + piece])
        body += answer.take()
        while answer.rest:
            answer.feed_rest()
            body += answer.take()
    return answer, body


def drawn(chance: random.Random) -> tuple[bytes, bool, int, bytes, bool]:
    """Draw an answer: its bytes, whether HEAD was asked, its status, its body, and whether the connection goes on."""
    raw = b"".join(
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" for _ in range(chance.choice([0, 0, 1, 3]))
    )
    head = chance.random() < 0.2
    status = chance.choice([200, 200, 201, 204, 304, 404, 500])
    body = chance.randbytes(chance.choice([0, 1, 17, 5000]))
    framing = chance.choice(["length", "chunks", "close"])
    version = chance.choice([b"1.1", b"1.1", b"1.0"])
    bodiless = head or status in (204, 304)
    lines = [b"HTTP/%b %d %b" % (version, status, chance.choice([b"So", b"", b"Is It"]))]
    lines += [b"X-%d: %b" % (n, chance.choice([b"", b"\x80\xff", b"a b"])) for n in range(3)]
    closes = chance.random() < 0.2
    if closes:
        lines.append(b"Connection: x, Close")
    if framing == "length":
        lines.append(b"Content-Length: %d" % len(body))
        rest = body
    elif framing == "chunks":
        lines.append(b"transfer-encoding: Chunked")
        rest, left = b"", body
        while left:
            size = chance.randint(1, len(left))
            rest += b"%x%b\r\n%b\r\n" % (size, chance.choice([b"", b";a=b"]), left[:size])
            left = left[size:]
        rest += b"0\r\n" + chance.choice([b"", b"X-Trailer: 1\r\n"]) + b"\r\n"
    else:
        rest = body
    raw += b"\r\n".join(lines) + b"\r\n\r\n"
    if bodiless:
        body = b""
    else:
        raw += rest
    goes_on = version == b"1.1" and not closes and (bodiless or framing != "close")
    return raw, head, status, body, goes_on


@pytest.mark.parametrize("seed", range(times(500, least=100)))
def test_an_answer_is_the_same_wherever_it_is_cut(seed):
    chance = random.Random(seed)
    raw, head, status, body, goes_on = drawn(chance)
    for piece in (1, chance.randint(1, 200), len(raw)):
        answer, found = read(raw, bodiless=head, piece=piece)
        if not answer.complete:
            answer.end()
        assert (answer.status, found, answer.surplus) == (status, body, False)
        assert answer.reusable is goes_on
        sent = [line.partition(b": ")[2] for line in raw.split(b"\r\n") if line[:4] in NAMES]
        assert [value for name, value in answer.fields if name.upper() + b":" in NAMES] == sent


@pytest.mark.parametrize("seed", range(times(500, least=100)))
def test_a_byte_too_many_is_surplus_and_one_too_few_is_a_cut(seed):
    chance = random.Random(seed)
    raw, head, _, body, goes_on = drawn(chance)
    if not goes_on:
        return
    another = OK + b"Content-Length: 4\r\n\r\nmore"
    more = chance.choice([b"H", another, CHUNKED + b"4\r\nmore\r\n0\r\n\r\n", b"x", b"\0"])
    for piece in (chance.randint(1, 50), len(raw), len(raw) + len(more)):
        answer, found = read(raw + more, bodiless=head, piece=piece)
        assert (found, answer.surplus, answer.reusable) == (body, True, False)
    answer, _ = read(raw[:-1], bodiless=head)
    assert not answer.complete
    with pytest.raises(Lost):
        answer.end()


BAD = {
    "bare LF in a field": OK + b"X: a\nSet-Cookie: evil=1\r\nContent-Length: 0\r\n\r\n",
    "bare LF after the status": b"HTTP/1.1 200 OK\nX: a\r\nContent-Length: 0\r\n\r\n",
    "nothing but LF": b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
    "bare CR": OK + b"X: a\rSet-Cookie: evil=1\r\nContent-Length: 0\r\n\r\n",
    "NUL in a value": OK + b"X: a\0b\r\nContent-Length: 0\r\n\r\n",
    "NUL in a name": OK + b"X\0: a\r\nContent-Length: 0\r\n\r\n",
    "NUL in the reason": b"HTTP/1.1 200 O\0K\r\nContent-Length: 0\r\n\r\n",
    "NUL in an interim answer": b"HTTP/1.1 103 E\r\nLink: a\0\r\n\r\n" + OK + b"\r\n",
    "bare LF in an interim answer": b"HTTP/1.1 103 E\r\nLink: a\nX: b\r\n\r\n" + OK + b"\r\n",
    "a folded line": OK + b"X: a\r\n b\r\nContent-Length: 0\r\n\r\n",
    "two lengths": OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a signed length": OK + b"Content-Length: +2\r\n\r\nab",
    "a list of lengths": OK + b"Content-Length: 2, 2\r\n\r\nab",
    "length and chunks": OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
    "another coding": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
    "an unknown coding": OK + b"Transfer-Encoding: xchunked\r\n\r\n",
    "a bad chunk": CHUNKED + b"ZZ\r\n",
    "a chunk that is too large": CHUNKED + b"F" * 17 + b"\r\n",
    "a chunk that does not end": CHUNKED + b"2\r\nabcd",
    "NUL in a trailer": CHUNKED + b"0\r\nX: a\0\r\n\r\n",
    "another protocol": b"HTTP/1.1 101 S\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
    "101 without an upgrade": b"HTTP/1.1 101 S\r\n\r\n",
    "another version": b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    "no version": b"<html>hello</html>\r\n\r\n",
    "status 0": b"HTTP/1.1 000 X\r\nContent-Length: 0\r\n\r\n",
    "status 600": b"HTTP/1.1 600 X\r\nContent-Length: 0\r\n\r\n",
    "an empty line first": b"\r\n" + OK + b"Content-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("raw", BAD.values(), ids=BAD)
def test_what_is_no_answer_is_refused(raw):
    for piece in (1, 7, len(raw)):
        with pytest.raises(BadAnswer):
            read(raw, piece=piece)


def endless(beginning: bytes, piece: bytes) -> Callable[[int], bytes]:
    return lambda size: beginning + piece * (size // len(piece) + 1)


# What is sent beside the body without an end, and by how many bytes it is refused at the latest.
ENDLESS = {
    "interim answers": (endless(b"", b"HTTP/1.1 103 E\r\n\r\n"), 4096),
    "large interim answers": (
        endless(b"", b"HTTP/1.1 103 E\r\nX: " + b"x" * 5000 + b"\r\n\r\n"),
        limits.LARGEST_HEAD,
    ),
    "fields": (endless(OK, b"X: a\r\n"), limits.LARGEST_HEAD),
    "a field": (endless(OK + b"X: ", b"a"), limits.LARGEST_HEAD),
    "a status line": (endless(b"HTTP/1.1 200 ", b"a"), limits.LARGEST_HEAD),
    "empty lines": (endless(b"", b"\r\n"), 16),
    "an extension": (endless(CHUNKED + b"5;", b"a"), limits.LARGEST_OVERHEAD),
    "extensions": (
        endless(CHUNKED, b"1;" + b"a" * 2000 + b"\r\nx\r\n"),
        2 * limits.LARGEST_OVERHEAD,
    ),
    "trailers": (endless(CHUNKED + b"2\r\nok\r\n0\r\n", b"X: a\r\n"), limits.LARGEST_OVERHEAD),
    "a trailer": (endless(CHUNKED + b"0\r\nX: ", b"a"), limits.LARGEST_OVERHEAD),
}


@pytest.mark.parametrize(("raw", "most"), ENDLESS.values(), ids=ENDLESS)
@pytest.mark.parametrize("piece", [1000, 256_000])
def test_what_is_sent_beside_the_body_has_bounds(raw, most, piece):
    answer, fed = Answer(bodiless=False), 0
    flood = raw(most + 3 * piece)
    with pytest.raises(BadAnswer):
        while fed < len(flood):
            answer.feed(flood[fed : fed + piece])
            fed += piece
            answer.take()
            while answer.rest:
                answer.feed_rest()
                answer.take()
    assert fed <= most + 3 * piece


def test_more_fields_than_allowed_are_refused_and_so_many_pass():
    fields = b"".join(b"X: %d\r\n" % n for n in range(limits.MOST_FIELDS - 1))
    answer, _ = read(OK + fields + b"Content-Length: 0\r\n\r\n")
    assert len(answer.fields) == limits.MOST_FIELDS
    with pytest.raises(BadAnswer, match="fields"):
        read(OK + fields + b"X: a\r\nContent-Length: 0\r\n\r\n")


def test_small_chunks_are_left_for_later_and_none_is_lost():
    body = b"".join(b"%d" % (n % 10) for n in range(20_000))
    raw = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    answer = Answer(bodiless=False)
    answer.feed(CHUNKED)
    answer.feed(raw)
    found, turns = answer.take(), 1
    assert answer.rest
    while answer.rest:
        answer.feed_rest()
        assert len(answer.parts) <= limits.SLICE
        found += answer.take()
        turns += 1
    assert (found, answer.complete, answer.reusable) == (body, True, True)
    assert turns > 5


def test_signed_chunks_pass_for_as_long_as_they_come():
    """An extension of each chunk is no flood."""
    chunk = b"10;signature=" + b"a" * 90 + b"\r\n" + b"x" * 16 + b"\r\n"
    answer = Answer(bodiless=False)
    answer.feed(CHUNKED)
    for _ in range(5000):
        answer.feed(chunk)
        assert answer.take() == b"x" * 16
    answer.feed(b"0\r\n\r\n")
    assert answer.complete
