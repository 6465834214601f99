"""The database's file: is it one we may use, how it is opened, and how its schema is brought up to date.

Everything that may be wrong with a path is said in one sentence before SQLite says it in two words.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import re
import sqlite3
import time
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.config import shown
from fairlead.errors import ConfigError, NoDatabase, StoreError, StoreUnavailable
from fairlead.jobs.stores.migrations import missing, steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    T = TypeVar("T")

log = logging.getLogger("fairlead.jobs")

OLDEST_SQLITE = (3, 33, 0)  # UPDATE … FROM
APPLICATION = 0x46524C44  # "FRLD": tells our files from other people's databases
NETWORKS = frozenset({"afs", "cifs", "fuse.sshfs", "ncpfs", "nfs", "nfs4", "smb3", "smbfs"})
ESCAPED = re.compile(r"\\([0-7]{3})")  # a space in the name of a mount
SUFFIXES = (".db", ".sqlite", ".sqlite3")
PATIENCE = 60.0  # for a lock that another process holds

BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
PASSING = BUSY | {
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
}
BROKEN = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def code_of(error: sqlite3.Error) -> int:
    """Tell SQLite's primary result code."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def translated(error: sqlite3.Error, path: Path) -> Exception:
    """Say what SQLite says, in a sentence; what is nobody's fault but ours stays as it is."""
    code = code_of(error)
    if code == sqlite3.SQLITE_FULL:
        said = "its disk is full; nothing was changed; make room and try again"
    elif code in BUSY:
        said = f"another process has held its lock for over {PATIENCE:g} s; nothing was changed; try again"
    elif code == sqlite3.SQLITE_READONLY:
        said = (
            "it cannot be written (read-only file or folder); nothing was changed; make it writable"
        )
    elif code == sqlite3.SQLITE_IOERR:
        said = "its disk reports an error or is full; nothing was changed; see to the disk and try again"
    elif code in PASSING:
        said = f"it cannot be used for now ({error}); nothing was changed; try again"
    elif code == sqlite3.SQLITE_NOTADB:
        return StoreError(f"{path} is not a SQLite database; give jobs a file of their own")
    elif code == sqlite3.SQLITE_CORRUPT:
        return StoreError(f"{path} is damaged ({error}); restore it from a backup")
    else:
        return error
    return StoreUnavailable(f"database {path}: {said}")


def patient(work: Callable[[], T], patience: float = PATIENCE) -> T:
    """Do something again while another process holds the lock, at random short intervals so that nobody starves."""
    deadline = time.monotonic() + patience
    pause = 0.0005
    while True:
        try:
            return work()
        except sqlite3.OperationalError as error:
            if code_of(error) not in BUSY or time.monotonic() >= deadline:
                raise
        time.sleep(pause * random.uniform(0.5, 1.5))
        pause = min(pause * 1.5, 0.01)


def check_place(path: Path) -> None:
    """Refuse places where a database cannot live."""
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name a file in it: sqlite:///{path}/fairlead.db")
    if not path.parent.is_dir():
        raise ConfigError(f"the folder {path.parent} does not exist; make it, or name another file")
    if (kind := mounted(path)) in NETWORKS:
        raise ConfigError(
            f"{path} lies on a network mount ({kind}), where SQLite's locks do not hold; "
            "use a local disk, or PostgreSQL"
        )


def mounted(path: Path) -> str:
    """Tell the kind of file system a path lies on; "" where that is not known."""
    best, kind = "", ""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    here = str(path.resolve())
    for line in lines:
        left, _, right = line.partition(" - ")
        point = ESCAPED.sub(lambda found: chr(int(found[1], 8)), left.split(" ")[4])
        inside = here == point or here.startswith(point.rstrip("/") + "/")
        # A later mount on the same point hides an earlier one.
        if inside and len(point) >= len(best):
            best, kind = point, right.split(" ")[0]
    return kind


def connect(path: Path, *, reading: bool = False) -> sqlite3.Connection:
    """Open a connection to a file that is there: `prepare` alone makes one."""
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=rw",
            uri=True,
            timeout=0.05,
            isolation_level=None,  # transactions are begun and ended in so many words
            check_same_thread=False,
            cached_statements=512,
        )
    except sqlite3.Error as error:
        raise StoreError(
            f"database {path} cannot be opened ({error}); can this user read and write the file and its folder?"
        ) from error

    def set_up() -> None:
        # Each of these may read the schema, and meet the lock of a process that is making the file.
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA cache_size = -65536")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if reading:
            connection.execute("PRAGMA query_only = 1")
        else:
            connection.execute("PRAGMA journal_size_limit = 67108864")
            connection.execute("PRAGMA wal_autocheckpoint = 4000")

    try:
        patient(set_up)
    except sqlite3.Error as error:
        connection.close()
        raise translated(error, path) from error
    return connection


def prepare(path: Path, *, create: bool = True) -> list[str]:
    """Bring the file to the newest schema, in WAL mode and under the lock; return the steps taken.

    With `create`, make a file that is not there; without, refuse it.
    """
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreError(
            f"Python's SQLite is {sqlite3.sqlite_version}, and Fairlead needs "
            f"{'.'.join(map(str, OLDEST_SQLITE))} or newer; use a newer Python, or PostgreSQL"
        )
    check_place(path)
    if create:
        make_private(path)
    elif not path.exists():
        raise absent(path)
    with contextlib.closing(connect(path)) as connection:
        try:
            if not create and not version_of(connection, path):
                raise NoDatabase(
                    f"{path} is empty: it has no jobs; fairlead db migrate would make it ready"
                )
            return migrated(connection, path)
        except sqlite3.Error as error:
            raise translated(error, path) from error


def make_private(path: Path) -> None:
    """Make a file that only its owner may read, if there is none; SQLite gives those beside it the same mode.

    A file that is there is never opened here: to close it would drop all locks that this process has on it (POSIX), and
    with them what keeps other processes from throwing its write-ahead log away.
    """
    with contextlib.suppress(OSError):  # it is there; or SQLite says why it cannot be
        os.close(os.open(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    with contextlib.suppress(OSError):
        if (mode := path.stat().st_mode) & 0o007 and os.name == "posix":
            log.warning(
                "database %s is open to every user of this machine (mode %o): chmod 600 %s*",
                path,
                mode & 0o777,
                path,
            )


def absent(path: Path) -> NoDatabase:
    """Say that there is no such database, and name the file in its folder that is named most like it."""
    kinds = {path.suffix, *SUFFIXES}
    there = [one.name for one in path.parent.iterdir() if one.suffix in kinds and one.is_file()]
    near = get_close_matches(path.name, there, n=1, cutoff=0.0)
    meant = f"; did you mean {shown(str(path.parent / near[0]))[1:-1]}?" if near else ""
    return NoDatabase(f"there is no database {shown(str(path))[1:-1]}{meant}")


def migrated(connection: sqlite3.Connection, path: Path) -> list[str]:
    """Take the missing steps; many processes may try at once."""
    known = steps("sqlite")
    # A glance without the lock: in nearly every opening there is nothing to do.
    if not missing(version_of(connection, path), known, str(path)):
        return []
    mode = patient(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
    if mode != "wal":
        raise StoreError(f"the place of {path} does not allow SQLite's WAL mode; use a local disk")
    with transaction(connection):
        todo = missing(version_of(connection, path), known, str(path))
        for step in todo:
            for statement in statements(step.sql):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(known)}")
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
    return [step.name for step in todo]


def version_of(connection: sqlite3.Connection, path: Path) -> int:
    """Tell the version of the schema; refuse somebody else's database."""

    def look() -> tuple[int, int, int]:
        found = connection.execute(
            "SELECT (SELECT user_version FROM pragma_user_version),"
            " (SELECT application_id FROM pragma_application_id), (SELECT count(*) FROM sqlite_master)"
        ).fetchone()
        return found[0], found[1], found[2]

    version, application, tables = patient(look)
    if tables and application != APPLICATION:
        raise StoreError(f"{path} is the database of something else; give jobs a file of their own")
    return version if tables else 0


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Hold the write lock; commit at the end, or roll back."""
    patient(lambda: connection.execute("BEGIN IMMEDIATE"))
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # SQLite itself may have rolled back, on a full disk for one.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def statements(script: str) -> Iterator[str]:
    """Cut a script; `executescript` would commit before the first statement."""
    gathered = ""
    for line in script.splitlines(keepends=True):
        gathered += line
        if sqlite3.complete_statement(gathered):
            yield gathered
            gathered = ""
