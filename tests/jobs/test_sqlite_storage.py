"""SQLite and the world around it: bad places, full disks, other processes, sudden death."""

import asyncio
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.config import hide_password
from fairlead.errors import (
    ConfigError,
    Misuse,
    NoDatabase,
    SchemaMismatch,
    StoreError,
    StoreUnavailable,
)
from fairlead.jobs.records import Claim, Ending, NewRun
from fairlead.jobs.sla import SQL_SCORE, sla_priority
from fairlead.jobs.states import COMPLETED, CREATED, TERMINAL
from fairlead.jobs.stores import migrations, sqlite_file
from fairlead.jobs.stores.opening import open_store
from fairlead.jobs.stores.sqlite import SqliteStore
from tests.jobs.sqlite_process import ROUNDS, Beast
from tests.jobs.sqlite_rig import intact, watch
from tests.jobs.store_contract import CHAIN, LEADER, LEASE, WORKER, Hand, new_run
from tests.sizes import times


def on(path: Path) -> SqliteStore:
    store = open_store(f"sqlite:///{path}")
    assert isinstance(store, SqliteStore)
    return store


def with_store(path: Path, work: Callable[[SqliteStore], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        store = on(path)
        await store.open()
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


# URLs


@pytest.mark.parametrize(
    "url",
    [
        "fairlead.db", "sqlite:fairlead.db", "sqlite:/fairlead.db", "sqlite://fairlead.db", "sqlite:///", "sqlite:////",
        "sqlite:///:memory:", "sqlite:///a/", "sqlite:///a.db?mode=ro", "mysql://h/d", "", "://", 7, None, "sqlite:///a\0b",
        "sqlite:///a\nb", "SQLITE:///a.db", "postgresql://h:port/d",
    ],
)  # fmt: skip
def test_a_bad_url_is_told_with_good_ones(url: Any):
    with pytest.raises(ConfigError, match=r"sqlite:///fairlead\.db"):
        open_store(url)


def test_a_password_is_not_shown():
    with pytest.raises(ConfigError) as told:
        open_store("mysql://me:hunter2@host/db")
    assert "hunter2" not in str(told.value)
    assert "mysql://me:" in str(told.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hunter2/x@h/db", "postgresql://u:hunter2#x@h/db", "postgresql://u:hunter2?x@h/db",
        "postgresql://u:x/hunter2@h/db", "postgresql://u:hunter2@[::1/db", "postgresql:/u:hunter2@h/db",
        "u:hunter2@h/db", "postgresql://u:hunter2@h:port/db\n", "postgresql://u:hunter2@h\ndb", b"x://u:hunter2@h",
        "sqlite://u:hunter2@h/db", "mysql:///db?host=/x&sslpassword=hunter2", "mysql://h/db?passw%6Frd=hunter2",
        "mysql://h/db?user=u;password=hunter2", "host=h password=hunter2 dbname=x", "mysql://h:1/db?password=a@hunter2",
        "mysql://h/db?password=a#hunter2", "mysql://u:hunter2?password=x@h/db", "mysql://h/db?PASSWORD=hunter2",
    ],
)  # fmt: skip
def test_a_password_is_not_shown_however_the_url_is_broken(url: Any):
    with pytest.raises(ConfigError) as told:
        open_store(url)
    assert "hunter2" not in str(told.value)
    assert told.value.__context__ is None  # nor by what a log would show beneath it


def test_what_is_no_password_is_shown():
    for url in (
        "sqlite:////srv/a.db",
        "postgresql://me@db:5432/app?schema=a&x=%20",
        "redis://[::1]:1/0",
    ):
        assert hide_password(url) == url


def test_white_space_around_a_url_is_no_part_of_it(tmp_path: Path):
    assert open_store(f" sqlite:///{tmp_path}/a.db\n").url == f"sqlite:///{tmp_path}/a.db"


def test_paths_are_relative_or_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    async def run() -> None:
        for url in (
            "sqlite:///rel.db",
            f"sqlite:///{tmp_path}/abs.db",
            "sqlite:///with%20space.db",
        ):
            store = open_store(url)
            assert store.url == url
            await store.open()
            await store.submit([new_run()])
            await store.close()

    asyncio.run(run())
    names = {path.name for path in tmp_path.iterdir()}
    assert {"rel.db", "abs.db", "with space.db"} <= names


def test_postgres_without_its_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(ConfigError, match=r'pip install "fairlead\[postgres\]"'):
        open_store("postgresql://localhost/jobs")


# Places


def refused(path: Path) -> str:
    with pytest.raises((ConfigError, StoreError)) as told:
        asyncio.run(on(path).open())
    text = str(told.value)
    assert "\n" not in text
    assert "Traceback" not in text
    return text


def test_a_folder_is_no_database(tmp_path: Path):
    assert "is a folder" in refused(tmp_path)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path):
    assert f"{tmp_path}/none does not exist" in refused(tmp_path / "none" / "a.db")


def test_a_file_of_something_else_is_left_alone(tmp_path: Path):
    path = tmp_path / "letter.txt"
    path.write_text("Dear Sir, " * 1000)
    assert "is not a SQLite database" in refused(path)
    assert path.read_text() == "Dear Sir, " * 1000


def test_a_database_of_something_else_is_left_alone(tmp_path: Path):
    path = tmp_path / "other.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE jobs (id)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    assert "something else" in refused(path)
    assert path.read_bytes() == before


def test_an_empty_file_will_do(tmp_path: Path):
    path = tmp_path / "new.db"
    path.touch()
    assert with_store(path, lambda store: store.states())[CREATED] == 0


def test_a_network_mount_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert sqlite_file.mounted(tmp_path) not in sqlite_file.NETWORKS
    monkeypatch.setattr(sqlite_file, "mounted", lambda _: "nfs4")
    assert "network mount (nfs4)" in refused(tmp_path / "a.db")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become nobody")
def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path):
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o755)
    for above in [tmp_path, *tmp_path.parents[:-1]]:
        if above.is_relative_to("/tmp") and above != Path("/tmp"):
            above.chmod(0o755)
    code = (
        "import os, sys, asyncio, concurrent.futures.thread; "
        "from fairlead.jobs.stores.opening import open_store; "
        "import fairlead.jobs.stores.sqlite; os.setgid(65534); os.setuid(65534)\n"
        "from fairlead.errors import StoreError\n"
        "try: asyncio.run(open_store(sys.argv[1]).open())\n"
        "except StoreError as error: print(error)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, f"sqlite:///{folder}/a.db"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "cannot be opened" in told.stdout
    assert len(told.stdout.splitlines()) == 1


def test_a_store_is_opened_once_and_used_open(tmp_path: Path):
    async def run() -> None:
        store = on(tmp_path / "a.db")
        with pytest.raises(Misuse, match="not open"):
            await store.submit([new_run()])
        await store.open()
        with pytest.raises(Misuse, match="open already"):
            await store.open()
        with pytest.raises(Misuse, match="PostgreSQL"):
            await store.submit([new_run()], connection=object())
        await store.close()
        await store.open()
        assert await store.runs() == []
        await store.close()

    asyncio.run(run())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_after_opening_is_told(tmp_path: Path):
    async def run() -> int:
        store = on(tmp_path / "a.db")
        await store.open()
        child = os.fork()
        if not child:
            try:
                await store.states()
            except Misuse as error:
                os._exit(0 if "fork" in str(error) else 2)
            finally:
                os._exit(3)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        await store.submit([new_run()])
        await store.close()
        return os.waitstatus_to_exitcode(status)

    assert asyncio.run(run()) == 0


# Schema


def test_versions_are_asked_of_a_file_that_is_there_and_make_none(tmp_path: Path):
    store = on(tmp_path / "a.db")
    needed = len(migrations.steps("sqlite"))
    with pytest.raises(NoDatabase, match="there is no database"):
        asyncio.run(store.versions())
    assert not (tmp_path / "a.db").exists()
    assert asyncio.run(store.migrate()) == [step.name for step in migrations.steps("sqlite")]
    assert asyncio.run(store.versions()) == (needed, needed)
    assert asyncio.run(store.migrate()) == []


def test_a_newer_schema_is_refused_and_says_what_to_do(tmp_path: Path):
    path = tmp_path / "a.db"
    asyncio.run(on(path).migrate())
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.commit()
    connection.close()
    with pytest.raises(SchemaMismatch, match="pip install --upgrade fairlead"):
        asyncio.run(on(path).open())


def test_an_older_schema_that_nobody_migrates_by_itself_names_the_command():
    known = migrations.steps("sqlite")
    migrations.check(len(known), known, "database x", "fairlead db migrate --db x")
    with pytest.raises(SchemaMismatch, match=r"no Fairlead schema yet.*fairlead db migrate --db x"):
        migrations.check(0, known, "database x", "fairlead db migrate --db x")
    with pytest.raises(SchemaMismatch, match="newer Fairlead"):
        migrations.check(len(known) + 1, known, "database x", "fairlead db migrate --db x")


def test_a_failed_migration_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    known = migrations.steps("sqlite")
    bad = [
        *known,
        migrations.Step(len(known) + 1, "0002_bad", "CREATE TABLE x (a);\nSELECT nonsense;"),
    ]
    monkeypatch.setattr(sqlite_file, "steps", lambda _: bad)
    path = tmp_path / "a.db"
    with pytest.raises(sqlite3.OperationalError):
        asyncio.run(on(path).migrate())
    monkeypatch.undo()
    assert asyncio.run(on(path).versions())[0] == 0
    assert len(asyncio.run(on(path).migrate())) == len(known)


# Time


def test_leases_do_not_care_what_the_wall_clock_says(tmp_path: Path):
    wall, steady = [1_000_000.0], [50.0]

    async def run() -> None:
        path = tmp_path / "a.db"
        store = SqliteStore(
            path, f"sqlite:///{path}", clock=lambda: wall[0], monotonic=lambda: steady[0]
        )
        await store.open()
        hand = await Hand(store).begin()
        await store.beat([hand.worker], 15.0)
        assert await store.lead(LEADER, 15.0) == hand.epoch
        for jump in (86_400, -172_800, 3):
            wall[0] += jump
            assert not (await store.workers())[0].expired
            assert await store.bury([hand.worker]) == []
            assert await store.lead("other", 15.0) is None
        steady[0] += 14.9
        assert not (await store.workers())[0].expired
        steady[0] += 0.2
        assert (await store.workers())[0].expired
        assert await store.lead("other", 15.0) == hand.epoch + 1
        # A boot: the clock begins anew, and no lease of before it counts.
        steady[0] = 3.0
        assert (await store.workers())[0].expired
        assert await store.lead("third", 15.0) == hand.epoch + 2
        assert await store.bury([hand.worker]) == [hand.worker]
        await store.close()

    asyncio.run(run())


def test_a_claim_from_the_future_is_taken_back(tmp_path: Path):
    wall = [1_000_000.0]

    async def run() -> None:
        path = tmp_path / "a.db"
        store = SqliteStore(path, f"sqlite:///{path}", clock=lambda: wall[0])
        await store.open()
        hand = await Hand(store).begin()
        dag = await hand.submit()
        await hand.claim(dag, 0, acked=False)
        assert await store.orphans(5.0) == []
        wall[0] -= 86_400
        assert len(await store.orphans(5.0)) == 1
        await store.close()

    asyncio.run(run())


def test_the_score_in_sql_is_the_score_in_python(tmp_path: Path):
    connection = sqlite3.connect(":memory:")
    said = SQL_SCORE.format(now=":now", soft=":soft", hard=":hard", least="min", greatest="max")
    now = 1_700_000_000.0
    edges = [
        None,
        now,
        *(now + sign * 900.0 * n for n in (1, 498, 499, 500, 999, 1000, 3000) for sign in (1, -1)),
    ]
    edges += [now + 0.5, now - 0.5, now + 899.999, now - 899.999]
    pairs = [(soft, hard) for soft in edges for hard in edges]
    draw = random.Random(5)
    pairs += [(now + draw.uniform(-1e6, 1e6), now + draw.uniform(-1e6, 1e6)) for _ in range(2000)]
    for soft, hard in pairs:
        bound = {"now": now, "soft": soft, "hard": hard}
        (score,) = connection.execute(f"SELECT {said}", bound).fetchone()
        assert score == sla_priority(now, soft, hard), bound
    connection.close()


# Speed


class Recording:
    """A connection that keeps the plans of what it was asked."""

    def __init__(self, connection: Any, plans: dict[str, list[str]]) -> None:
        self.connection = connection
        self.plans = plans

    def execute(self, sql: str, bound: Any = ()) -> Any:
        if sql.startswith(("SELECT", "UPDATE", "DELETE", "INSERT")):
            rows = self.connection.execute(f"EXPLAIN QUERY PLAN {sql}", bound).fetchall()
            self.plans[sql] = [row[3] for row in rows]
        return self.connection.execute(sql, bound)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)


def test_nothing_walks_through_all_jobs(tmp_path: Path):
    """With a million jobs stored, only what a verb is about is read."""
    plans: dict[str, list[str]] = {}

    async def check(store: SqliteStore) -> None:
        lanes: list[Any] = [store._writer, store._reader]
        for lane in lanes:
            lane._connection = Recording(lane._connection, plans)
        hand = await Hand(store).begin()
        dag = await hand.submit(CHAIN, key="k", soft=store.now() - 1)
        await store.set_sla(dag, 1.0, 2.0)
        await store.set_sla(dag, 1.0, 2.0, node=0)
        await store.pause(dag)
        await store.resume(dag)
        await hand.claim(dag, 0, acked=False)
        await store.fetch([hand.worker])
        await store.cancel(dag)
        await store.beat([hand.worker], 0.0)
        await store.bury([hand.worker])
        for orphan in await store.orphans(0.0):
            await store.finish(WORKER, [Ending(orphan.dag, orphan.node, orphan.fence, "retry")])
        await store.retry(dag)
        await hand.do(dag, 0)
        await hand.do(dag, 1, "failed")
        await hand.submit(CHAIN)
        await hand.news()
        for verb in (store.oldest_ready, store.missed, store.running, store.states, store.runs):
            await verb()
        await store.ready((1, 0), 10)
        await store.reread(dag)
        await store.announced(await store.unannounced(10))
        await store.archive(store.now() + 60, 100)
        await store.find("", "k")
        await store.jobs(dag)

    with_store(tmp_path / "a.db", check)
    assert len(plans) > 50
    walks = {
        sql: step
        for sql, steps in plans.items()
        for step in steps
        if step.startswith("SCAN") and ("jobs" in step or "dags" in step) and "INDEX" not in step
    }
    # Newest first, by the key: it stops at the limit.
    assert [sql for sql in walks if "FROM dags WHERE 1 ORDER BY id DESC LIMIT" not in sql] == []


# Full disks


def check_full_and_free(path: Path, fill: Callable[[], None], free: Callable[[], None]) -> None:
    """Fill the disk while a store works, then free it: what was acknowledged is there, and work goes on."""

    async def run() -> None:
        store = on(path)
        await store.open()
        hand = await Hand(store).begin()
        stored = [await hand.submit(CHAIN) for _ in range(3)]
        await hand.claim(stored[0], 0)
        big = new_run([f"n{n}" for n in range(300)], of_jobs={"payload": '"' + "x" * 4000 + '"'})
        for _ in range(2):
            fill()
            with pytest.raises(StoreUnavailable, match=r"nothing was changed") as told:
                for _ in range(200):
                    (submitted,) = await store.submit([big])
                    stored.append(submitted.dag)
            assert str(path) in str(told.value)
            assert {row.dag for row in await store.runs(limit=10_000)} == set(stored)
            free()
            stored.append(await hand.submit(CHAIN))
        assert (await hand.end(stored[0], 0, COMPLETED, result="1")).applied == [(stored[0], 0)]
        assert {row.dag for row in await store.runs(limit=10_000)} == set(stored)
        assert (await store.states())[COMPLETED] == 1
        await store.close()

    asyncio.run(run())
    assert intact(path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("cannot mount a small disk here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_refuses_and_nothing_is_lost(small_disk: Path):
    ballast = small_disk / "ballast"

    def fill() -> None:
        ballast.write_bytes(b"x" * 2_000_000)

    # What is freed is the ballast and what the log takes: the database itself has grown for good.
    check_full_and_free(small_disk / "a.db", fill, lambda: ballast.unlink())


@pytest.mark.parametrize(
    "code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY]
)
def test_a_commit_that_fails_has_changed_nothing(
    tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch
):
    """Fail at each statement of a finish in turn; each time all of it is undone, and then it works."""

    async def run() -> None:
        store = on(tmp_path / "a.db")
        await store.open()
        hand = await Hand(store).begin()
        dag = await hand.submit(CHAIN)
        await hand.claim(dag, 0)
        before = await store.jobs(dag), await store.run(dag), await store.states()
        failing = Failing(code)
        lane: Any = store._writer
        for statement in range(1, 50):
            lane._connection = failing.wrap(lane._connected(), statement)
            try:
                await hand.end(dag, 0, COMPLETED, result="1")
            except StoreUnavailable as error:
                said = str(error)
            else:
                assert statement > 4
                break
            finally:
                if isinstance(lane._connection, Failing):
                    lane._connection = lane._connection.connection
            assert "nothing was changed" in said
            assert (await store.jobs(dag), await store.run(dag), await store.states()) == before
        assert await hand.ready() == [(dag, 1)]
        await store.close()

    asyncio.run(run())


class Failing:
    """A connection whose n-th statement fails."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.connection: Any = None
        self.left = 0

    def wrap(self, connection: Any, left: int) -> "Failing":
        self.connection, self.left = connection, left
        return self

    def execute(self, sql: str, *bound: Any) -> Any:
        if sql != "ROLLBACK":
            self.left -= 1
            if self.left == 0:
                error = sqlite3.OperationalError("made to fail")
                error.sqlite_errorcode = self.code
                raise error
        return self.connection.execute(sql, *bound)

    def close(self) -> None:
        self.connection.close()

    @property
    def in_transaction(self) -> bool:
        return bool(self.connection.in_transaction)


def test_a_file_that_went_away_is_told_and_may_come_back(tmp_path: Path):
    async def run() -> None:
        store = on(tmp_path / "a.db")
        await store.open()
        lane: Any = store._writer
        lane._disconnect()
        shutil.move(tmp_path / "a.db", tmp_path / "b.db")
        with pytest.raises(StoreUnavailable, match="is gone"):
            await store.submit([new_run()])
        shutil.move(tmp_path / "b.db", tmp_path / "a.db")
        await store.submit([new_run()])
        await store.close()

    asyncio.run(run())


# Other processes


def test_sixteen_processes_never_meet_a_locked_database(tmp_path: Path):
    """They even make the database at the same time."""
    path = tmp_path / "a.db"
    many = [Beast(path, "hammer", f"p{n}") for n in range(16)]
    try:
        told = [beast.wait() for beast in many]
        assert [beast.process.exitcode for beast in many] == [0] * 16
    finally:
        for beast in many:
            beast.kill()
    assert all(lines[-1][0] == "done" for lines in told)
    assert intact(path)
    runs = with_store(path, lambda store: store.runs(limit=10_000))
    assert len(runs) == (16 + 1) * ROUNDS, "a run for each round of each, and one for each key"


def test_readers_do_not_wait_for_a_writer(tmp_path: Path):
    async def run() -> None:
        store = on(tmp_path / "a.db")
        await store.open()
        (submitted,) = await store.submit([new_run()])
        other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(store.submit([new_run()]))
        async with asyncio.timeout(10):
            assert await store.run(submitted.dag) is not None
            assert len(await store.ready(None, 10)) == 1
        assert not waiting.done()
        other.execute("COMMIT")
        other.close()
        async with asyncio.timeout(30):
            assert (await waiting)[0].new
        await store.close()

    asyncio.run(run())


def test_a_lock_that_is_never_given_back_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    patient = sqlite_file.patient
    monkeypatch.setattr(sqlite_file, "patient", lambda work: patient(work, 0.1))

    async def run() -> None:
        store = on(tmp_path / "a.db")
        await store.open()
        other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="another process has held its lock"):
            await store.submit([new_run()])
        other.execute("ROLLBACK")
        other.close()
        await store.submit([new_run()])
        await store.close()

    asyncio.run(run())


def test_a_file_that_another_process_is_making_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Before WAL is set a lock keeps readers out too, already from what sets a connection up."""
    path = tmp_path / "a.db"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    waits = []

    def give_back(seconds: float) -> None:
        waits.append(seconds)
        if other.in_transaction:
            other.execute("ROLLBACK")

    monkeypatch.setattr("fairlead.jobs.stores.sqlite_file.time.sleep", give_back)
    assert sqlite_file.prepare(path)
    assert waits
    other.close()


def test_a_hint_crosses_processes_quickly(tmp_path: Path):
    path = tmp_path / "a.db"
    beast = Beast(path, "submit", "s")

    async def hear(store: SqliteStore) -> list[float]:
        loop = asyncio.get_running_loop()
        took = []
        for _ in range(5):
            begun = loop.time()
            assert await store.wait_for_news(30)
            took.append(loop.time() - begun)
        return took

    try:
        beast.wait_open()
        assert sorted(with_store(path, hear))[2] < 1
    finally:
        beast.kill()


def test_a_task_that_asks_again_misses_no_hint(tmp_path: Path):
    async def run() -> None:
        store, other = on(tmp_path / "a.db"), on(tmp_path / "a.db")
        await store.open()
        await other.open()
        await store.wait_for_news(0)
        for place in (store, other):
            await place.submit([new_run()])  # while nobody waits
            async with asyncio.timeout(30):
                assert await store.wait_for_news(60)
        told = asyncio.gather(*(asyncio.create_task(store.wait_for_news(60)) for _ in range(3)))
        await asyncio.sleep(0)
        await other.submit([new_run()])
        async with asyncio.timeout(30):
            assert await told == [True, True, True]
        await store.close()
        await other.close()

    asyncio.run(run())


def test_a_call_that_nobody_waits_for_any_more_is_not_made(tmp_path: Path):
    async def run() -> None:
        store = on(tmp_path / "a.db")
        await store.open()
        other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        first = asyncio.create_task(store.submit([new_run(name="first")]))
        await asyncio.sleep(0.05)  # the writer has it, and waits for the lock
        second = asyncio.create_task(store.submit([new_run(name="second")]))
        await asyncio.sleep(0)
        second.cancel()
        other.execute("COMMIT")
        other.close()
        await first
        assert [row.name for row in await store.runs()] == ["first"]
        await store.close()

    asyncio.run(run())


# Sudden death


@pytest.mark.slow
def test_killed_writers_lose_nothing_that_they_told(tmp_path: Path):
    """A submitter and a scheduler are killed at random moments; a ledger outside tells what they had said."""
    path = tmp_path / "a.db"
    asyncio.run(on(path).migrate())
    watch(path)
    draw = random.Random(11)
    stored: dict[str, int] = {}
    ended: dict[tuple[int, int], str] = {}
    lives = times(30, 10)
    for life in range(lives):
        pair = [Beast(path, "submit", f"s{life}"), Beast(path, "drain", f"d{life}")]
        try:
            for beast in pair:
                beast.wait_open()
            time.sleep(draw.uniform(0.0, 0.15))  # death comes at any moment
            draw.shuffle(pair)
        finally:
            said = [line for beast in pair for line in beast.kill()]
        for line in said:
            if line[0] == "stored":
                assert line[2] not in stored
                stored[line[2]] = int(line[1])
            elif line[0] == "ended":
                job = int(line[1]), int(line[2])
                assert job not in ended, f"{job} ended twice"
                ended[job] = line[3]
        assert intact(path)

    async def check(store: SqliteStore) -> None:
        for key, dag in stored.items():
            assert await store.find("", key) == dag
        for dag in {dag for dag, _ in ended}:
            states = [job.state for job in await store.jobs(dag)]
            for (owner, node), state in ended.items():
                if owner == dag:
                    assert states[node] == state
        await finish_all(store)

    with_store(path, check)
    assert len(stored) >= lives
    assert len(ended) >= lives


async def finish_all(store: SqliteStore) -> None:
    """Whatever the dead left behind can be brought to its end."""
    await store.beat([row.id for row in await store.workers()], 0.0)
    await store.bury([row.id for row in await store.workers()])
    epoch = await store.lead(LEADER, LEASE) or 0
    worker = (await store.register("w", WORKER, {"ocr": 4}, LEASE))["ocr"]
    for orphan in await store.orphans(0.0):
        await store.finish(LEADER, [Ending(orphan.dag, orphan.node, orphan.fence, "retry")])
    while ready := await store.ready(None, 500):
        claims = [Claim(job.dag, job.node, worker, random.getrandbits(62)) for job in ready]
        claimed = await store.claim(LEADER, epoch, claims, acked=True)
        assert len(claimed) == len(ready)
        await store.finish(
            LEADER, [Ending(job.dag, job.node, job.fence, COMPLETED, "1") for job in claimed]
        )
    left = await store.states()
    assert not [state for state, jobs in left.items() if jobs and state not in TERMINAL], left
    assert all(row.completed_on is not None for row in await store.runs(limit=100_000))


def test_a_big_run_goes_in_whole(tmp_path: Path):
    async def check(store: SqliteStore) -> None:
        one = new_run().jobs[0]
        jobs = [one, *(one._replace(needs=(n - 1,), level=n) for n in range(1, 20_000))]
        (submitted,) = await store.submit([NewRun("deep", tuple(jobs))])
        assert (await store.states())[CREATED] == 20_000
        assert await store.cancel(submitted.dag)

    with_store(tmp_path / "a.db", check)
