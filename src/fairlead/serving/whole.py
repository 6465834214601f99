"""A whole answer in one write, where head and body are there together.

An app sends the one and then the other, and uvicorn writes each as it comes: twice a coroutine and a system call.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

# Names as we write them, no line within a value, and nothing that changes how the connection goes on.
FIELDS = re.compile(
    rb"(?:(?!connection:|transfer-encoding:)[!#$%&'*+\-.^_`|~0-9a-z]+: [\t\x20-\x7e\x80-\xff]*\r\n)+"
)
LENGTH = b"content-length"
END = b"\r\n"


def write_whole(cycle: RequestResponseCycle, head: Any, body: Any) -> bool:
    """Write what uvicorn would for two messages; False: nothing is written, for something about them is unusual."""
    if (
        cycle.response_started
        or cycle.disconnected
        or cycle.flow.write_paused
        or not cycle.keep_alive
        or cycle.scope["method"] == "HEAD"
    ):
        return False
    headers = [*cycle.default_headers, *head.get("headers", ())]
    pieces: list[bytes] = []
    length = None
    for name, value in headers:
        if name == LENGTH:
            if length is not None:
                return False
            length = value
        pieces += (name, b": ", value, END)
    content: bytes = body.get("body", b"")
    if length != b"%d" % len(content):
        return False
    fields = b"".join(pieces)
    if not _sound(fields, len(headers)):
        return False
    answer = b"".join((STATUS_LINE[head["status"]], fields, END, content))
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    cycle.transport.write(answer)
    cycle.message_event.set()
    cycle.on_response()
    return True


def _sound(fields: bytes, number: int) -> bool:
    """Whether each is one line: whoever could end one within a value would write fields of his own."""
    return FIELDS.fullmatch(fields) is not None and fields.count(END) == number
