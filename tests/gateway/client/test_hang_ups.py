"""A backend that hangs up after every 20th answer without a word: Fairlead beside nginx, in one run."""

import asyncio
import shutil
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.proxies import proxied
from tests.gateway.rig import connected, fetch, run_on_uvloop
from tests.sizes import times

NGINX = shutil.which("nginx")
CLIENTS, EACH = 16, times(300, least=60)
CONFIGURATION = """
daemon off; master_process off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
    access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    upstream backend {{ server 127.0.0.1:{backend}; keepalive 64; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass http://backend; proxy_http_version 1.1; proxy_set_header Connection ""; }}
    }}
}}
"""


class Closer(asyncio.Protocol):
    """Closes its connection half a millisecond after the 20th answer."""

    def connection_made(self, transport: Any) -> None:
        self._transport, self._data, self._answered = transport, b"", 0

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = self._data[:end].lower()
            end += 4 + int(head.partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
            if len(self._data) < end:
                return
            self._data = self._data[end:]
            self._answered += 1
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
            if self._answered == 20:
                asyncio.get_running_loop().call_later(0.0005, self._transport.close)
                return


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


@asynccontextmanager
async def nginx(folder: Path, backend: int) -> AsyncIterator[str]:
    """Run nginx before a backend."""
    port = free_port()
    written = folder / "nginx.conf"
    written.write_text(CONFIGURATION.format(folder=folder, backend=backend, port=port))
    process = await asyncio.create_subprocess_exec(
        str(NGINX), "-p", str(folder), "-c", str(written), stderr=asyncio.subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}"
    try:
        async with asyncio.timeout(10):
            while True:
                try:
                    await fetch(url)
                    break
                except OSError:
                    await asyncio.sleep(0.02)
        yield url
    finally:
        process.terminate()
        await process.wait()


async def load(url: str, path: str) -> int:
    """Send requests from clients side by side; return how many were not answered with 200."""
    found: Counter[int] = Counter()

    async def client() -> None:
        async with connected(url) as connection:
            for _ in range(EACH):
                head, _ = await connection.ask("POST", path, (), b"{}")
                found[head.status] += 1

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return found.total() - found[200]


@pytest.mark.skipif(
    NGINX is None, reason="nginx is not installed: there is nothing to compare with"
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/not/safe/to/repeat"])
def test_where_backends_hang_up_it_fails_no_more_often_than_nginx(path, tmp_path):
    async def main() -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Closer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with nginx(tmp_path, port) as peer, proxied(f"http://127.0.0.1:{port}") as (url, _):
            theirs, ours = await load(peer, path), await load(url, path)
        server.close()
        return ours, theirs

    ours, theirs = run_on_uvloop(main(), 120)
    print(f"of {CLIENTS * EACH}: Fairlead {ours}, nginx {theirs}")
    assert ours <= max(theirs, 2)  # nginx may be lucky in a short run
