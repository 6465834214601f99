"""Backends with https URLs: judged by the certificate authorities of the machine, and their connections used again."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.gateway.proxies import proxied
from tests.gateway.rig import connected, run, run_on_uvloop

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
RUNS = pytest.mark.parametrize("run", [run, run_on_uvloop], ids=["asyncio", "uvloop"])


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    pair = folder / "certificate.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=backend"
    names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    files = ["-addext", names, "-out", str(pair[0]), "-keyout", str(pair[1])]
    subprocess.run([*command.split(), *files], check=True, capture_output=True)
    return pair


class Secure:
    """A backend behind TLS that echoes the target and the body."""

    def __init__(self, certificate: tuple[Path, Path], version: ssl.TLSVersion) -> None:
        self.connections = 0
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(*certificate)
        self._tls.minimum_version = self._tls.maximum_version = version

    @asynccontextmanager
    async def served(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        yield server.sockets[0].getsockname()[1]
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
                body = head.split(b" ")[1] + await reader.readexactly(length)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        writer.close()


@RUNS
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_calls_over_tls_are_answered_and_connections_used_again(
    run, version, host, certificate, monkeypatch, caplog
):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))

    async def ask(url: str, number: int) -> None:
        async with connected(url) as client:
            for turn in range(10):
                target, body = f"/{number}-{turn}", b"x" * (turn * 20_000)
                head, answer = await client.ask("POST", target, (), body)
                assert (head.status, answer) == (200, target.encode() + body)

    async def main() -> None:
        backend = Secure(certificate, version)
        async with backend.served() as port, proxied(f"https://{host}:{port}") as (url, _):
            await asyncio.gather(*(ask(url, number) for number in range(4)))
        assert backend.connections <= 12

    run(main())
    assert "upstream" not in caplog.text


@RUNS
def test_a_certificate_of_an_unknown_authority_is_refused(run, certificate, caplog):
    async def main() -> None:
        backend = Secure(certificate, ssl.TLSVersion.TLSv1_3)
        async with (
            backend.served() as port,
            proxied(f"https://127.0.0.1:{port}") as (url, _),
            connected(url) as client,
        ):
            assert (await client.ask("GET", "/"))[0].status == 503
            assert backend.connections == 0

    run(main())
    assert "certificate verify failed" in caplog.text
