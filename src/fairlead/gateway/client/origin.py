"""Where a backend is: its address, whether it speaks TLS, how it is called, and how to connect to it."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fairlead.gateway.client.connection import Connection
from fairlead.gateway.client.faults import Unconnected, is_exhausted

if TYPE_CHECKING:
    from collections.abc import Callable

CONNECT_TIMEOUT = 5.0  # seconds, names and TLS included


class Origin:
    """A backend by its URL.

    >>> origin = Origin("http://localhost:9001/base")
    >>> origin.host, origin.port, origin.authority, origin.prefix
    ('localhost', 9001, b'localhost:9001', b'/base')
    """

    __slots__ = ("_tls", "authority", "host", "port", "prefix", "tls")

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.tls = parts.scheme == "https"
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if self.tls else 80)
        self.authority = parts.netloc.encode("ascii" if parts.netloc.isascii() else "idna")
        self.prefix = parts.path.encode()
        self._tls: ssl.SSLContext | None = None

    async def connect(self, made: Callable[[socket.socket, bool], Connection]) -> Connection:
        """Connect; raise `Unconnected` if that fails."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                return await self._connect(loop, made)
        except TimeoutError:
            raise Unconnected(f"no connection within {CONNECT_TIMEOUT:g} s") from None
        except (OSError, UnicodeError) as error:
            reason = str(error) or type(error).__name__
            raise Unconnected(reason, exhausted=is_exhausted(error)) from None

    async def _connect(
        self, loop: asyncio.AbstractEventLoop, made: Callable[[socket.socket, bool], Connection]
    ) -> Connection:
        failure: OSError | None = None
        for family, address in await self._addresses(loop):
            try:
                sock = socket.socket(family, socket.SOCK_STREAM)
                try:
                    sock.setblocking(False)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    await loop.sock_connect(sock, address)
                    return await self._open(loop, sock, made)
                except BaseException:
                    sock.close()
                    raise
            except OSError as error:
                failure = error
                if is_exhausted(error):
                    break
        raise failure or OSError(f"{self.host} has no address")

    async def _addresses(
        self, loop: asyncio.AbstractEventLoop
    ) -> list[tuple[socket.AddressFamily, Any]]:
        try:
            literal = ipaddress.ip_address(self.host)
        except ValueError:
            found = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            return [(family, address) for family, _, _, _, address in found]
        family = socket.AF_INET if literal.version == 4 else socket.AF_INET6
        return [(family, (self.host, self.port))]

    async def _open(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        made: Callable[[socket.socket, bool], Connection],
    ) -> Connection:
        tls = self._context() if self.tls else None
        name = self.host if self.tls else None
        _, connection = await loop.create_connection(
            lambda: made(sock, self.tls), sock=sock, ssl=tls, server_hostname=name
        )
        return connection

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls
