"""SQLite stores for tests, on which every step of a job from one state to another is watched."""

import sqlite3
from pathlib import Path

from fairlead.jobs.states import TRANSITIONS
from fairlead.jobs.stores.base import Store
from fairlead.jobs.stores.opening import open_store

LEGAL = ", ".join(
    f"'{before}>{after}'" for before, follow in TRANSITIONS.items() for after in sorted(follow)
)


def watch(path: Path) -> None:
    """Make any other transition than the legal ones an error: also a second end, also of the same kind."""
    connection = sqlite3.connect(path)
    connection.execute(
        f"CREATE TRIGGER legal BEFORE UPDATE OF state ON jobs WHEN OLD.state || '>' || NEW.state NOT IN ({LEGAL}) "
        "BEGIN SELECT RAISE(ABORT, 'an illegal transition'); END"
    )
    connection.commit()
    connection.close()


async def watched(folder: Path) -> Store:
    path = folder / "jobs.db"
    store = open_store(f"sqlite:///{path}")
    await store.migrate()
    watch(path)
    await store.open()
    return store


def intact(path: Path) -> bool:
    connection = sqlite3.connect(path)
    try:
        found: str = connection.execute("PRAGMA integrity_check").fetchone()[0]
        return found == "ok"
    finally:
        connection.close()
