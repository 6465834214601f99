"""What the database itself says of a storm: triggers that note every change of a job, and plain SQL that reads the end.

The triggers fire in the transaction they note, so what was rolled back is not noted, and what was committed is.
"""

import json
import sqlite3
from pathlib import Path
from typing import Any, Protocol

import psycopg

from tests.jobs.chaos.checker import Change, Counted, Database, Job


class Audit(Protocol):
    """Set up once the schema is there; read when all is quiet."""

    def prepare(self) -> None: ...

    def read(self) -> Database: ...

    def open_runs(self) -> int:
        """How many runs have not ended."""

    def leader(self) -> int | None:
        """The process that leads, or led last."""

    def writable(self) -> bool:
        """Whether anybody can write."""


def process_of(name: str | None) -> int | None:
    """A process is called host:pid:token."""
    return None if name is None else int(name.split(":")[-2])


POSTGRES = """
CREATE SCHEMA chaos;
CREATE TABLE chaos.changes (number bigserial, dag bigint, node int, before text, after text, wall float8, fence bigint);
CREATE TABLE chaos.counted (number bigserial, dag bigint, node int, before int, after int);
CREATE FUNCTION chaos.changed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO chaos.changes (dag, node, before, after, wall, fence)
  VALUES (NEW.dag, NEW.node, OLD.state, NEW.state, extract(epoch FROM clock_timestamp()),
    coalesce(NEW.fence, OLD.fence));
  RETURN NULL;
END $$;
CREATE FUNCTION chaos.counts() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO chaos.counted (dag, node, before, after) VALUES (NEW.dag, NEW.node, OLD.waits, NEW.waits);
  RETURN NULL;
END $$;
CREATE TRIGGER chaos_changed AFTER UPDATE ON fairlead.jobs FOR EACH ROW
  WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION chaos.changed();
CREATE TRIGGER chaos_counts AFTER UPDATE ON fairlead.jobs FOR EACH ROW
  WHEN (OLD.waits IS DISTINCT FROM NEW.waits) EXECUTE FUNCTION chaos.counts();
"""


class PostgresAudit:
    """Of a PostgreSQL."""

    def __init__(self, url: str) -> None:
        self.url = url

    def _ask(self, sql: str) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True, connect_timeout=10) as connection:
            cursor = connection.execute(sql)
            return [] if cursor.description is None else cursor.fetchall()

    def prepare(self) -> None:
        self._ask(POSTGRES)

    def open_runs(self) -> int:
        return int(self._ask("SELECT count(*) FROM fairlead.dags WHERE completed_on IS NULL")[0][0])

    def leader(self) -> int | None:
        rows = self._ask("SELECT process FROM fairlead.leader")
        return process_of(rows[0][0]) if rows else None

    def writable(self) -> bool:
        return True  # who sleeps in a transaction holds some rows at most

    def read(self) -> Database:
        runs = self._ask(
            "SELECT dag, key, state, completed_on IS NOT NULL FROM fairlead.dags ORDER BY dag"
        )
        jobs = self._ask("SELECT dag, node, name, state, result FROM fairlead.jobs")
        changes = self._ask(
            "SELECT dag, node, before, after, wall, fence FROM chaos.changes ORDER BY number"
        )
        counted = self._ask("SELECT dag, node, before, after FROM chaos.counted ORDER BY number")
        runs = [
            (dag, key, state if ended else f"open ({state})") for dag, key, state, ended in runs
        ]
        return told(runs, jobs, changes, counted)


SQLITE = """
CREATE TABLE chaos_changes (number INTEGER PRIMARY KEY, job INTEGER, before TEXT, after TEXT, wall REAL, fence INTEGER);
CREATE TABLE chaos_counted (number INTEGER PRIMARY KEY, job INTEGER, before INTEGER, after INTEGER);
CREATE TRIGGER chaos_changed AFTER UPDATE ON jobs WHEN OLD.state <> NEW.state BEGIN
  INSERT INTO chaos_changes (job, before, after, wall, fence)
  VALUES (NEW.id, OLD.state, NEW.state, (julianday('now') - 2440587.5) * 86400, coalesce(NEW.fence, OLD.fence));
END;
CREATE TRIGGER chaos_counts AFTER UPDATE ON jobs WHEN OLD.waits <> NEW.waits BEGIN
  INSERT INTO chaos_counted (job, before, after) VALUES (NEW.id, OLD.waits, NEW.waits);
END;
"""
JOB = "{0} >> 20, {0} & 1048575"


class SqliteAudit:
    """Of a SQLite file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _ask(self, sql: str) -> list[Any]:
        connection = sqlite3.connect(self.path, timeout=10, isolation_level=None)
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()

    def prepare(self) -> None:
        connection = sqlite3.connect(self.path, timeout=10, isolation_level=None)
        connection.executescript(SQLITE)
        connection.close()

    def open_runs(self) -> int:
        return int(self._ask("SELECT count(*) FROM dags WHERE completed_on IS NULL")[0][0])

    def leader(self) -> int | None:
        rows = self._ask("SELECT process FROM leader")
        return process_of(rows[0][0]) if rows else None

    def writable(self) -> bool:
        connection = sqlite3.connect(self.path, timeout=0.5, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return False
        finally:
            connection.close()
        return True

    def read(self) -> Database:
        integrity = self._ask("PRAGMA integrity_check")
        assert integrity == [("ok",)], integrity
        runs = self._ask("SELECT id, key, state FROM dags ORDER BY id")
        jobs = self._ask(f"SELECT {JOB.format('id')}, name, state, result FROM jobs")
        changes = self._ask(
            f"SELECT {JOB.format('job')}, before, after, wall, fence FROM chaos_changes ORDER BY number"
        )
        counted = self._ask(
            f"SELECT {JOB.format('job')}, before, after FROM chaos_counted ORDER BY number"
        )
        return told(runs, jobs, changes, counted)


def told(runs: list[Any], jobs: list[Any], changes: list[Any], counted: list[Any]) -> Database:
    """Name runs by their keys and jobs by their names, as the ledger does."""
    keys = {dag: key for dag, key, _ in runs}
    assert len(set(keys.values())) == len(keys), "a key has two runs"
    names = {(dag, node): (keys[dag], name) for dag, node, name, _, _ in jobs}
    return Database(
        {key: state for _, key, state in runs},
        [
            Job(*names[dag, node], state, None if result is None else json.loads(result))
            for dag, node, _, state, result in jobs
        ],
        [Change(*names[dag, node], *rest) for dag, node, *rest in changes],
        [Counted(*names[dag, node], *rest) for dag, node, *rest in counted],
    )
