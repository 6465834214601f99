"""Databases by their path: who makes one, who may read it, and what is said of a path that is not there."""

import asyncio
import os
import shutil
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli import main
from fairlead.jobs import Jobs
from fairlead.jobs.stores.opening import open_store
from tests.jobs.operations_rig import HELLO, go, small

# Each command that takes a database and puts nothing into it.
READING = [
    ["jobs", "list"],
    ["jobs", "show", "1"],
    ["jobs", "show", "1", "--watch", "--timeout", "1s"],
    ["jobs", "explain", "1.0"],
    ["jobs", "cancel", "1"],
    ["jobs", "pause", "1"],
    ["jobs", "resume", "1"],
    ["jobs", "retry", "1"],
    ["jobs", "sla", "1", "--soft", "5m"],
    ["jobs", "planner", "show"],
    ["jobs", "planner", "set", "SJFSExecutionPlanner"],
    ["jobs", "planner", "reset"],
    ["jobs", "schedule", "list"],
    ["jobs", "schedule", "pause", "a"],
    ["jobs", "schedule", "resume", "a"],
    ["jobs", "schedule", "remove", "a"],
    ["db", "status"],
]
WRITING = [
    ["db", "migrate"],
    ["jobs", "schedule", "add", "a", "--cron", "* * * * *", "--task", "double"],
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for variable in ("FAIRLEAD_APP", "FAIRLEAD_DB"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


def made(path: Path) -> None:
    """Make a database with one run."""

    async def main() -> None:
        jobs = small(f"sqlite:///{path}")
        await jobs.submit(HELLO)
        await jobs.close()

    go(main())


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_a_command_that_puts_nothing_in_makes_no_database(
    command: list[str], folder: Path, capsys: Any
):
    made(folder / "fairlead.db")
    (folder / "notes.txt").touch()
    before = sorted(folder.iterdir())
    assert main([*command, "--db", "sqlite:///failread.db"]) == 1
    said = capsys.readouterr().err
    assert said == "fairlead: there is no database failread.db; did you mean fairlead.db?\n"
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("command", READING[:-1], ids=" ".join)
def test_nor_of_an_empty_file(command: list[str], folder: Path, capsys: Any):
    (folder / "empty.db").touch()
    assert main([*command, "--db", "sqlite:///empty.db"]) == 1
    assert "empty.db is empty" in capsys.readouterr().err
    assert (folder / "empty.db").stat().st_size == 0


@pytest.mark.parametrize("command", WRITING, ids=" ".join)
def test_a_command_that_puts_something_in_makes_one(command: list[str], folder: Path):
    assert main([*command, "--db", "sqlite:///new.db"]) == 0
    assert main(["jobs", "list", "--db", "sqlite:///new.db"]) == 0


@pytest.mark.parametrize(
    ("there", "asked", "meant"),
    [
        ((), "typo.db", None),
        (("notes.txt",), "typo.db", None),
        (("shop.db",), "typo.db", "shop.db"),  # the only one there is
        (("shop.db", "shops.sqlite", "jobs.db"), "shosp.db", "shop.db"),
        (("a.data", "b.db"), "b.data", "a.data"),
    ],
)
def test_the_nearest_file_is_named(
    there: tuple[str, ...], asked: str, meant: str | None, folder: Path, capsys: Any
):
    for name in there:
        (folder / name).touch()
    assert main(["jobs", "list", "--db", f"sqlite:///{asked}"]) == 1
    said = capsys.readouterr().err
    assert (f"did you mean {meant}?" in said) if meant else ("did you mean" not in said)


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_a_database_is_its_owners_alone(folder: Path, caplog: pytest.LogCaptureFixture):
    def modes() -> dict[str, int]:
        return {one.name: one.stat().st_mode & 0o777 for one in folder.iterdir()}

    before = os.umask(0)
    try:

        async def test() -> None:
            jobs = small(f"sqlite:///{folder}/jobs.db")
            await jobs.submit(HELLO)
            assert modes() == {"jobs.db": 0o600, "jobs.db-wal": 0o600, "jobs.db-shm": 0o600}
            await jobs.close()

        go(test())
    finally:
        os.umask(before)
    assert not caplog.records


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_the_mode_of_a_file_that_is_there_stays_and_is_told(
    folder: Path, caplog: pytest.LogCaptureFixture
):
    made(folder / "jobs.db")
    (folder / "jobs.db").chmod(0o644)
    caplog.clear()

    async def test() -> None:
        jobs = Jobs(f"sqlite:///{folder}/jobs.db")
        await jobs.store()
        await jobs.close()

    go(test())
    assert (folder / "jobs.db").stat().st_mode & 0o777 == 0o644
    assert "open to every user of this machine (mode 644)" in caplog.text


def test_a_file_that_is_taken_away_is_not_made_anew_by_the_way(folder: Path):
    """Only the step that makes a database may: a connection to a file that is gone fails."""
    made(folder / "jobs.db")

    async def test() -> None:
        store = open_store(f"sqlite:///{folder}/jobs.db")
        shutil.move(folder / "jobs.db", folder / "moved.db")
        with pytest.raises(Exception, match="there is no database"):
            await store.open(create=False)

    go(test())
    with pytest.raises(sqlite3.OperationalError):
        sqlite3.connect(f"file:{folder}/jobs.db?mode=rw", uri=True).execute("SELECT 1")


OTHER = """
import asyncio, sys
from fairlead.jobs.stores.opening import open_store
async def main():
    store = open_store(sys.argv[1])
    await store.open()
    print(len(await store.runs()))
    await store.close()
asyncio.run(main())
"""


def test_a_second_store_in_a_process_takes_no_locks_away(folder: Path):
    """Else the last of another process' connections throws the log away that this process still writes to."""
    url = f"sqlite:///{folder}/jobs.db"

    async def test() -> None:
        async def runs_elsewhere() -> int:
            other = await asyncio.create_subprocess_exec(
                sys.executable, "-c", OTHER, url, stdout=asyncio.subprocess.PIPE
            )
            return int((await other.communicate())[0])

        first, second = small(url), small(url)
        await first.submit(HELLO)
        await second.store()
        for count in range(1, 4):
            assert await runs_elsewhere() == count
            await first.submit(HELLO)
        await first.close()
        await second.close()

    go(test())


def test_a_link_to_a_file_that_is_not_there_yet_is_followed(folder: Path):
    (folder / "link.db").symlink_to(folder / "real.db")
    made(folder / "link.db")
    assert (folder / "real.db").stat().st_mode & 0o777 == 0o600
