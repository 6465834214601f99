"""A client that does not read holds its backend back: what the gateway holds of an answer is bounded."""

import asyncio
import socket

import pytest

from tests.gateway.proxies import proxied
from tests.gateway.rig import connected, run_on_uvloop

MOST = 24 << 20  # bytes: the buffers of the kernel on both sides, and what the gateway holds
ANSWERS = {
    "length": (b"content-length: 1000000000\r\n\r\n", b"x" * (1 << 20)),
    "chunks": (b"transfer-encoding: chunked\r\n\r\n", (b"1000\r\n" + b"x" * 4096 + b"\r\n") * 256),
    "small chunks": (b"transfer-encoding: chunked\r\n\r\n", b"2\r\nxx\r\n" * 100_000),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_client_that_does_not_read_holds_its_backend_back(kind):
    framing, more = ANSWERS[kind]

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.setblocking(False)
            backend = f"http://127.0.0.1:{listening.getsockname()[1]}"
            async with proxied(backend) as (url, _), connected(url) as client:
                client.writer.transport.pause_reading()  # type: ignore[attr-defined]
                client.request("GET", "/")
                there, _ = await loop.sock_accept(listening)
                with there:
                    await loop.sock_recv(there, 1000)
                    await loop.sock_sendall(there, b"HTTP/1.1 200 OK\r\n" + framing)
                    sent = 0
                    while sent < 2 * MOST:
                        try:
                            await asyncio.wait_for(loop.sock_sendall(there, more), 1.0)
                        except TimeoutError:
                            break
                        sent += len(more)
                assert sent < MOST

    run_on_uvloop(main())
