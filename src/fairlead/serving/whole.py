"""A whole answer in one write, where head and body are there together.

An app sends the one and then the other, and uvicorn writes each as it comes: twice a coroutine and a system call.  What
is written here is what uvicorn (0.53 and later) would write, byte for byte; whatever is unusual is left to it.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from types import MethodType
from typing import Any

AT_ONCE = 64 << 10  # bytes that a server may hold for a client that has yet to read them

# Names as they are written, no line's end within a value, and nothing by which the connection would go on otherwise.
FIELDS = re.compile(
    rb"(?:(?!connection:|transfer-encoding:)[!#$%&'*+\-.^_`|~0-9a-z]+: [\t\x20-\x7e\x80-\xff]*\r\n)+"
)
LENGTH = b"content-length"
END = b"\r\n"
PHRASES = {int(status): status.phrase for status in HTTPStatus}
STATUS_LINES = {
    status: f"HTTP/1.1 {status} {PHRASES.get(status, '')}\r\n".encode()
    for status in range(200, 600)
}


def write_whole(send: Any, head: Any, body: Any) -> bool:
    """Write an answer on a connection of ours; False: nothing is written or changed, send the two messages."""
    cycle = cycle_of(send)
    if (
        cycle is None
        or cycle.response_started
        or cycle.disconnected
        or cycle.flow.write_paused
        or cycle.access_log
        or not cycle.keep_alive
        or cycle.scope["method"] == "HEAD"
        or body["type"] != "http.response.body"
    ):
        return False
    answer = wire(cycle.default_headers, head, body.get("body", b""))
    if answer is None:
        return False
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    cycle.transport.write(answer)
    cycle.message_event.set()
    cycle.on_response()
    return True


def cycle_of(send: Any) -> Any:
    """Find the request that this is uvicorn's own `send` of, if our protocol serves it and nobody stands between."""
    if type(send) is not MethodType:  # not isinstance: it would believe who says so
        return None
    cycle = send.__self__
    server = getattr(getattr(cycle, "on_response", None), "__self__", None)
    return cycle if send.__func__ is getattr(server, "own_send", None) else None


def wire(defaults: list[tuple[bytes, bytes]], head: Any, content: bytes) -> bytes | None:
    """Put an answer together that says how long it is, and nothing of its connection; None of any other."""
    headers = head.get("headers", ())
    if type(headers) is not list or type(content) is not bytes:
        return None  # another iterable may be read only once
    pieces: list[bytes] = []
    length = None
    try:
        start = STATUS_LINES[head["status"]]
        for name, value in defaults + headers:
            if b":" in name:
                return None
            if name == LENGTH:
                if length is not None:
                    return None
                length = value
            pieces += (name, b": ", value, END)
        fields = b"".join(pieces)
    except (KeyError, TypeError, ValueError):  # no status, or no header
        return None
    if length != b"%d" % len(content) or len(fields) + len(content) > AT_ONCE:
        return None
    # Whoever could end a line within a value would write fields of his own.
    if FIELDS.fullmatch(fields) is None or fields.count(END) != len(pieces) // 4:
        return None
    return b"".join((start, fields, END, content))
