"""One answer, read from the bytes of its connection: bounded, and exact about its last byte.  Pure.

httptools parses heads and chunks.  Where the body ends is decided here (RFC 9112 §6.3), since httptools knows neither
the method of the request nor where a message began: a byte beyond the end is `surplus`, and the connection is not
clean any more.  What a backend may send beside the body has bounds: interim answers, header fields, extensions of
chunks, trailers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import httptools

from fairlead.gateway.client.faults import BadAnswer, Lost

if TYPE_CHECKING:
    from collections.abc import Callable

LARGEST_HEAD = 128 * 1024  # bytes, interim answers included
MOST_FIELDS = 1000
MOST_INTERIM = 100  # 1xx answers before the answer
LARGEST_OVERHEAD = 64 * 1024  # bytes of extensions and trailers ...
PER_CHUNK = 256  # ... beside so many for each chunk
# Chunks of one byte cost as much as others: beyond so many the rest of what came is left for the next pass of the loop.
MOST_CHUNKS = 500
SLICE = 16 * 1024  # bytes of chunks parsed before they are counted

HEAD_END = b"\r\n\r\n"
SWITCHING_PROTOCOLS = 101
BROKEN_LINE = "it is not valid HTTP/1.1 (its head has lines that do not end in CR LF)"
BODILESS = frozenset({204, 304})
_LENGTH = re.compile(rb"[0-9]{1,18}")
_BROKEN_LINE = re.compile(rb"(?<!\r)\n|\r[^\n]")
_REASON = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")


class Parsed:
    """What httptools finds in a head, and then in chunks."""

    __slots__ = ("complete", "fields", "on_body", "over", "reason")

    def __init__(self, on_body: Callable[[bytes], None]) -> None:
        self.fields: list[tuple[bytes, bytes]] = []
        self.on_body = on_body
        self.reason = b""
        self.complete = False  # the head
        self.over = False  # the body

    def on_message_begin(self) -> None:
        """Stop at a second message: it has not been asked for, and its body is not part of this one's."""
        if self.over:
            raise BadAnswer("it is followed by another")

    def on_status(self, reason: bytes) -> None:
        """Note a part of the reason phrase."""
        self.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a field of the head; trailers are dropped."""
        if not self.complete:
            self.fields.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """Note the end of the head."""
        self.complete = True

    def on_message_complete(self) -> None:
        """Note the end of the body."""
        self.over = True


class Answer:
    """One answer as its bytes come: `feed` and `end` take them in, `take` returns the body so far.

    >>> answer = Answer(bodiless=False)
    >>> answer.feed(b"HTTP/1.1 200 OK\\r\\nContent-Length: 5\\r\\n\\r\\nhel")
    >>> answer.status, answer.fields, answer.take(), answer.complete
    (200, [(b'content-length', b'5')], b'hel', False)
    >>> answer.feed(b"lo")
    >>> answer.take(), answer.complete, answer.reusable
    (b'lo', True, True)
    """

    __slots__ = (
        "_bodiless",
        "_chunks",
        "_head_bytes",
        "_held",
        "_interim",
        "_left",
        "_overhead",
        "_parsed",
        "complete",
        "fields",
        "parts",
        "rest",
        "reusable",
        "status",
        "surplus",
    )

    def __init__(self, *, bodiless: bool) -> None:
        self.status = 0  # until the head is there
        self.fields: list[tuple[bytes, bytes]] = []  # names in lower case
        self.parts: list[bytes] = []  # of the body, not taken yet
        self.complete = False
        self.reusable = False  # the connection, once the answer is complete
        self.surplus = False  # bytes came that belong to no answer
        self._bodiless = bodiless  # as the answer to HEAD is, whatever its head says
        self._held = bytearray()  # of a head
        self._head_bytes = self._interim = 0
        self._left = -1  # bytes of the body; -1: it ends with the connection
        self.rest = memoryview(b"")  # of what came, to be fed once the body so far has been taken
        self._chunks: httptools.HttpResponseParser | None = None
        self._parsed: Parsed | None = None  # of a body in chunks
        self._overhead = 0

    def feed(self, data: bytes) -> None:
        """Take bytes in; raise `BadAnswer` for what is no answer, or has no bounds."""
        if not self.status:
            rest = self._feed_head(data)
            if not rest:
                return
            data = rest
        if self.complete:
            self.surplus = True
            self.reusable = False
        elif self._chunks is not None:
            self._feed_chunks(data)
        elif self._left < 0:
            self.parts.append(data)
        elif len(data) < self._left:
            self._left -= len(data)
            self.parts.append(data)
        else:
            self.surplus = len(data) > self._left
            self.reusable = self.reusable and not self.surplus
            self.parts.append(data[: self._left] if self.surplus else data)
            self.complete = True

    def end(self) -> None:
        """Take in the end of the connection; raise `Lost` if the answer is not complete."""
        if self.complete:
            return
        if not self.status:
            raise Lost("the connection was closed before the answer")
        if self._left >= 0 or self._chunks is not None:
            raise Lost("the connection was closed in the middle of the answer")
        self.complete = True

    def feed_rest(self) -> None:
        """Take in what was left of the bytes that came."""
        rest, self.rest = self.rest, memoryview(b"")
        self._feed_chunks(rest)

    def take(self) -> bytes:
        """Return what has come of the body since the last time."""
        parts = self.parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        return body

    def _feed_head(self, data: bytes) -> bytes:
        """Read heads until one is final; return what comes after it."""
        held = self._held
        if held:
            searched = max(0, len(held) - 3)
            held += data
            end = held.find(HEAD_END, searched)
            data = bytes(held) if end >= 0 else b""
        else:
            searched = 0
            end = data.find(HEAD_END)
            if end < 0:
                held += data
        while end >= 0:
            held.clear()
            end += len(HEAD_END)
            self._count_head(end)
            self._read_head(data[:end])
            data = data[end:]
            if self.status or not data:
                return data
            searched = 0
            end = data.find(HEAD_END)
            if end < 0:
                held += data
        self._count_head(0)
        # A backend that ends its lines in LF would be waited for in vain.
        if _BROKEN_LINE.search(held, searched):
            raise BadAnswer(BROKEN_LINE)
        return b""

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes + len(self._held) > LARGEST_HEAD:
            raise BadAnswer(f"its head is over {LARGEST_HEAD} bytes")

    def _read_head(self, head: bytes) -> None:
        parsed = Parsed(self.parts.append)
        parser = httptools.HttpResponseParser(parsed)
        try:
            parser.feed_data(head)
        except httptools.HttpParserUpgrade:
            raise BadAnswer("it switches to another protocol") from None
        except httptools.HttpParserError as error:
            raise BadAnswer(f"it is not valid HTTP/1.1 ({error})") from None
        lines = head.count(b"\r\n")
        # Each line ends in CR LF, and neither stands anywhere else.
        if not parsed.complete or head.count(b"\n") != lines or head.count(b"\r") != lines:
            raise BadAnswer(
                "it is not valid HTTP/1.1 (its head has lines that do not end in CR LF)"
            )
        if not head.startswith((b"HTTP/1.1 ", b"HTTP/1.0 ")):
            raise BadAnswer("it is not valid HTTP/1.1 (it is in another version)")
        if not _REASON.fullmatch(parsed.reason):
            raise BadAnswer("its status line holds characters that it may not hold")
        if len(parsed.fields) > MOST_FIELDS:
            raise BadAnswer(f"its head has over {MOST_FIELDS} fields")
        status = parser.get_status_code()
        if not 100 <= status <= 599:
            raise BadAnswer(f"its status is {status}")
        if status == SWITCHING_PROTOCOLS:
            raise BadAnswer("it switches to another protocol")
        if status < 200:
            self._interim += 1
            if self._interim > MOST_INTERIM:
                raise BadAnswer(f"it has over {MOST_INTERIM} interim answers")
            return
        self.fields = parsed.fields
        self._read_framing(parser, parsed, status, head.startswith(b"HTTP/1.1"))
        self.status = status

    def _read_framing(
        self, parser: httptools.HttpResponseParser, parsed: Parsed, status: int, current: bool
    ) -> None:
        """Find out where the body ends, and whether another answer may follow it."""
        length: bytes | None = None
        chunked = closes = False
        for name, value in parsed.fields:
            if name == b"content-length":
                if length is not None and length != value:
                    raise BadAnswer("its content-length is not one number")
                length = value
            elif name == b"transfer-encoding":
                if chunked or value.lower() != b"chunked":
                    raise BadAnswer("its transfer-encoding is not chunked")
                chunked = True
            elif name == b"connection":
                closes = closes or b"close" in value.lower()
        if length is not None and (chunked or not _LENGTH.fullmatch(length)):
            raise BadAnswer("its content-length is not one number, or not the only framing")
        self.reusable = current and not closes
        if self._bodiless or status in BODILESS:
            self.complete = True
        elif chunked:
            self._chunks, self._parsed = parser, parsed
        elif length is not None:
            self._left = int(length)
            self.complete = not self._left
        else:
            self.reusable = False

    def _feed_chunks(self, data: bytes | memoryview) -> None:
        if len(data) <= SLICE:
            self._feed_slice(data)
            return
        view = memoryview(data)
        while view and not self.complete and len(self.parts) <= MOST_CHUNKS:
            self._feed_slice(view[:SLICE])
            view = view[SLICE:]
        if self.complete and view:
            self.surplus = True
            self.reusable = False
        else:
            self.rest = view

    def _feed_slice(self, data: bytes | memoryview) -> None:
        parser, parsed, parts = self._chunks, self._parsed, self.parts
        if parser is None or parsed is None:
            return
        before = len(parts)
        try:
            parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not parsed.over:
                raise BadAnswer(f"its chunks are not valid ({error})") from None
            self.surplus = True
        if parsed.over:
            self.complete = True
            self.reusable = self.reusable and not self.surplus
            return
        came = sum(map(len, parts[before:] if before else parts))
        spent = len(data) - came - PER_CHUNK * (len(parts) - before)
        self._overhead = max(0, self._overhead + spent)
        if self._overhead > LARGEST_OVERHEAD:
            raise BadAnswer(f"its chunks have over {LARGEST_OVERHEAD} bytes beside the body")
