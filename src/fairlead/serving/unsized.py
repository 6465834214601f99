"""Answers of unknown length to clients of HTTP/1.0, which know no chunks: such an answer ends with the connection.

There a client cannot tell a cut from an end, unless the connection is reset.
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

LENGTH, CODING = b"content-length", b"transfer-encoding"
AT_ONCE = struct.pack("ii", 1, 0)


def unsized(app: Any, cycle: RequestResponseCycle) -> Any:
    """Write what an application answers as it is, where uvicorn would write chunks."""
    ends_with_connection = False

    async def send(message: Any) -> None:
        nonlocal ends_with_connection
        kind = message["type"]
        if kind == "http.response.start":
            headers = [pair for pair in message.get("headers", ()) if pair[0].lower() != CODING]
            if all(name.lower() != LENGTH for name, _ in headers):
                ends_with_connection = True
                cycle.chunked_encoding = False
            message = {**message, "headers": headers}
        elif kind == "http.response.body" and ends_with_connection:
            cycle.expected_content_length = len(message.get("body", b""))  # of this piece
        await cycle.send(message)

    async def answer(scope: Any, receive: Any, _: Any) -> None:
        try:
            await app(scope, receive, send)
        finally:
            if ends_with_connection and not (cycle.response_complete or cycle.disconnected):
                _reset(cycle)

    return answer


def _reset(cycle: RequestResponseCycle) -> None:
    sock = cycle.transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
    cycle.transport.abort()
