"""`jobs.sync`: the verbs of a client without an event loop, from threads, in the caller's own transaction."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy import orm

from fairlead.errors import ConfigError, KeyConflict, Misuse, StoreUnavailable, UnknownRun
from fairlead.jobs import Dag, Jobs
from fairlead.jobs.stores.at_once import at_once
from tests.engines_postgres import free_port, plain
from tests.jobs.operations_rig import database, go, small

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, tmp_path):
    return database(request.param, tmp_path)


@pytest.fixture
def postgres(tmp_path):
    return database("postgres", tmp_path)


@pytest.fixture
def make():
    """Make Jobs that are closed at the end."""
    made: list[Jobs] = []

    def one(url, **settings):
        made.append(small(url, **settings))
        return made[-1]

    yield one
    for jobs in made:
        jobs.sync.close()


def dag(number=21, **given):
    one = Dag("hello", **given)
    one.add("double", number).options(name="a")
    return one


def at_the_same_time(count, work):
    """Run work in so many threads, all let go at once; return what each returned or raised."""
    gate = threading.Barrier(count)
    found: list[Any] = [None] * count

    def run(place):
        gate.wait(30)
        try:
            found[place] = work(place)
        except BaseException as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def stored(jobs):
    async def look():
        store = await jobs.store()
        try:
            return {run.name: run for run in await store.runs(limit=1000)}
        finally:
            await jobs.close()

    return go(look())


class TestThreads:
    def test_64_threads_at_once_all_submit(self, url, make):
        jobs = make(url)
        runs = at_the_same_time(64, lambda place: jobs.sync.submit(dag(place)))
        assert len({run.id for run in runs}) == 64
        assert all(run.new for run in runs)

    def test_one_key_from_64_threads_is_one_run(self, url, make):
        jobs = make(url)
        runs = at_the_same_time(64, lambda place: jobs.sync.submit(dag(key="k")))
        assert sorted(run.new for run in runs) == [False] * 63 + [True]
        assert len({run.id for run in runs}) == 1

    def test_threads_beside_an_event_loop_that_serves_the_same_jobs(self, url, make):
        jobs = make(url)

        def work(place):
            run = jobs.sync.submit(dag(place))
            return jobs.sync.wait(run, timeout="30s").results["a"]

        async def main():
            async with jobs:
                own = asyncio.create_task(jobs.wait(await jobs.submit(dag(100)), timeout="30s"))
                found = await asyncio.to_thread(at_the_same_time, 12, work)
                assert (await own).results == {"a": 200}
                return found

        assert go(main()) == [2 * place for place in range(12)]

    def test_a_fork_leaves_the_parents_connections_alone(self, url, tmp_path):
        script = tmp_path / "forking.py"
        script.write_text(
            "import os, sys, warnings\nwarnings.simplefilter('ignore')\n"
            "from fairlead.jobs import Dag\nfrom tests.jobs.operations_rig import small\n"
            "def dag():\n    one = Dag('hello'); one.add('double', 1); return one\n"
            "jobs = small(sys.argv[1])\nids = {jobs.sync.submit(dag()).id}\n"
            "children = []\n"
            "for _ in range(3):\n"
            "    child = os.fork()\n"
            "    if not child:\n"
            "        jobs.sync.submit(dag()); sys.exit(0)\n"
            "    children.append(child)\n"
            "codes = [os.waitpid(child, 0)[1] for child in children]\n"
            "ids.add(jobs.sync.submit(dag()).id)\n"
            "print(codes, len(ids), flush=True)\n"
        )
        told = subprocess.run(
            [sys.executable, str(script), url],
            cwd=ROOT,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert told.stdout.strip() == "[0, 0, 0] 2", told.stderr


class TestVerbs:
    def test_cancel_retry_and_outcome(self, url, make):
        jobs = make(url)
        run = jobs.sync.submit(dag(), start_at="1h")
        assert jobs.sync.outcome(run) is None
        assert jobs.sync.pause(run)
        assert jobs.sync.resume(run)
        assert jobs.sync.cancel(run)
        assert not jobs.sync.cancel(run)
        outcome = jobs.sync.outcome(run)
        assert outcome is not None
        assert outcome.state == "cancelled"
        assert jobs.sync.wait(run) == outcome
        assert jobs.sync.retry(run)
        assert jobs.sync.outcome(run) is None
        with pytest.raises(UnknownRun):
            jobs.sync.wait(99)
        with pytest.raises(TimeoutError, match=r"run 1 has not ended after 0\.05 s"):
            jobs.sync.wait(run, timeout="50ms")

    def test_many_at_once_and_keys(self, url, make):
        jobs = make(url)
        runs = jobs.sync.submit_all([dag(1), dag(2, key="k"), dag(2, key="k")])
        assert [run.new for run in runs] == [True, True, False]
        with pytest.raises(KeyConflict, match=f"run {runs[1].id}"):
            jobs.sync.submit_all([dag(3), dag(4, key="k")])
        assert jobs.sync.submit(dag(4, key="k"), on_conflict="existing") == (runs[1].id, False)
        assert len(jobs.sync.submit_all([dag(n) for n in range(50)])) == 50
        assert jobs.sync.submit_all([]) == []

    def test_it_opens_again_after_close(self, url, make):
        jobs = make(url)
        jobs.sync.submit(dag())
        jobs.sync.close()
        jobs.sync.close()
        assert jobs.sync.submit(dag()).id == "2"

    def test_wait_is_refused_where_it_would_block_a_loop(self, url, make):
        jobs = make(url)

        async def main():
            run = jobs.sync.submit(dag())
            with pytest.raises(Misuse, match=r"await jobs\.wait"):
                jobs.sync.wait(run)

        go(main())

    def test_ctrl_c_ends_a_wait(self, url, tmp_path):
        script = tmp_path / "waiting.py"
        script.write_text(
            "import sys\nfrom fairlead.jobs import Dag\nfrom tests.jobs.operations_rig import small\n"
            "one = Dag('hello'); one.add('double', 1)\n"
            "jobs = small(sys.argv[1])\nrun = jobs.sync.submit(one)\n"
            "try:\n    print('waits', flush=True)\n    jobs.sync.wait(run)\n"
            "except KeyboardInterrupt:\n    print('stopped', flush=True)\n"
            "print(jobs.sync.cancel(run), flush=True)\njobs.sync.close()\n"
        )
        process = subprocess.Popen(
            [sys.executable, str(script), url],
            cwd=ROOT,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "waits\n"
            process.send_signal(signal.SIGINT)
            assert process.stdout.read().split() == ["stopped", "True"]
        finally:
            process.kill()
            process.wait(10)
            process.stdout.close()

    def test_a_coroutine_that_waits_for_a_loop_is_found_out(self):
        with pytest.raises(AssertionError, match="waits for an event loop"):
            at_once(asyncio.sleep(0))


class TestTransactions:
    """Nothing is stored if the caller's transaction rolls back; the run is there with its commit."""

    def both(self, postgres, make, commit, roll_back):
        jobs = make(postgres)
        (first,) = jobs.sync.submit_all([dag(1, key="k")])
        names = []
        for way, end in (("kept", commit), ("gone", roll_back)):

            def work(connection, way=way):
                run = jobs.sync.submit(named(way), connection=connection)
                with pytest.raises(KeyConflict):
                    jobs.sync.submit_all([dag(9), dag(2, key="k")], connection=connection)
                names.append(run.id)
                assert way not in stored(jobs)

            end(work)
        assert set(stored(jobs)) == {"hello", "kept"}
        assert first.new

    def test_psycopg(self, postgres, make):
        def commit(work):
            with psycopg.connect(plain(postgres)) as connection:
                work(connection)

        def roll_back(work):
            with psycopg.connect(plain(postgres)) as connection:
                work(connection)
                connection.rollback()

        self.both(postgres, make, commit, roll_back)

    @pytest.mark.parametrize("begun", [False, True])
    def test_a_connection_of_sqlalchemy(self, postgres, make, begun):
        engine = sqlalchemy.create_engine(driver_url(postgres))

        def commit(work):
            with engine.connect() as connection:
                if begun:
                    connection.execute(sqlalchemy.text("SELECT 1"))
                work(connection)
                connection.commit()

        def roll_back(work):
            with engine.connect() as connection:
                if begun:
                    connection.execute(sqlalchemy.text("SELECT 1"))
                work(connection)

        self.both(postgres, make, commit, roll_back)
        engine.dispose()

    @pytest.mark.parametrize("scoped", [False, True])
    def test_a_session_of_sqlalchemy(self, postgres, make, scoped):
        engine = sqlalchemy.create_engine(driver_url(postgres))
        maker: Any = orm.sessionmaker(engine)
        if scoped:
            maker = orm.scoped_session(maker)

        def session():
            return maker if scoped else maker()

        def commit(work):
            one = session()
            work(one)
            one.commit()
            one.close()

        def roll_back(work):
            one = session()
            work(one)
            one.rollback()
            one.close()

        self.both(postgres, make, commit, roll_back)
        engine.dispose()

    def test_a_connection_of_sqlalchemy_on_another_driver_is_refused(
        self, postgres, make, tmp_path
    ):
        jobs = make(postgres)
        engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/x.db")
        with engine.connect() as connection, pytest.raises(ConfigError, match="psycopg 3"):
            jobs.sync.submit(dag(), connection=connection)
        engine.dispose()

    def test_an_autocommit_connection_is_refused(self, postgres, make):
        jobs = make(postgres)
        engine = sqlalchemy.create_engine(driver_url(postgres), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection, pytest.raises(Misuse, match="no open transaction"):
            jobs.sync.submit(dag(), connection=connection)
        engine.dispose()
        with (
            psycopg.connect(plain(postgres), autocommit=True) as connection,
            pytest.raises(Misuse, match="no open transaction"),
        ):
            jobs.sync.submit(dag(), connection=connection)

    def test_an_async_connection_is_refused(self, postgres, make):
        jobs = make(postgres)

        async def main():
            connection = await asyncpg.connect(plain(postgres))
            async with connection.transaction():
                with pytest.raises(ConfigError, match=r"await jobs\.submit"):
                    jobs.sync.submit(dag(), connection=connection)
            await connection.close()

        go(main())
        with pytest.raises(ConfigError, match="connection= must be a psycopg connection"):
            jobs.sync.submit(dag(), connection=object())

    def test_django(self, postgres, tmp_path):
        """Django is set up once per process: in one of its own."""
        told = subprocess.run(
            [sys.executable, str(Path(__file__).parent / "django_site.py"), postgres],
            cwd=ROOT,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert told.stdout.splitlines() == ["kept", "refused", "usable"], told.stderr

    def test_the_hint_goes_with_the_callers_commit(self, postgres, make):
        jobs = make(postgres)

        async def main():
            store: Any = await jobs.store()
            await asyncio.wait_for(store._hints.listening.wait(), 10)
            while await store.wait_for_news(0.05):
                pass
            with psycopg.connect(plain(postgres)) as connection:
                jobs.sync.submit(dag(), connection=connection)
                assert not await store.wait_for_news(0.2)
                connection.commit()
                assert await store.wait_for_news(10)
            jobs.sync.submit(dag())
            assert await store.wait_for_news(10)
            await jobs.close()

        go(main())


class TestFaults:
    def test_psycopg_is_missing(self, postgres, make, monkeypatch):
        monkeypatch.setitem(sys.modules, "psycopg", None)
        with pytest.raises(ConfigError, match=r'pip install "psycopg\[binary\]"'):
            make(postgres).sync.submit(dag())

    def test_a_database_that_is_not_there(self, make):
        jobs = make(f"postgresql://postgres@127.0.0.1:{free_port()}/x")
        began = time.monotonic()
        found = at_the_same_time(8, lambda _: jobs.sync.submit(dag()))
        assert all(isinstance(one, StoreUnavailable) for one in found)
        assert time.monotonic() - began < 30

    def test_connections_that_the_server_has_ended_are_made_anew(self, postgres, make):
        jobs = make(postgres)
        at_the_same_time(8, lambda _: jobs.sync.submit(dag()))
        with psycopg.connect(plain(postgres), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE application_name = 'fairlead' AND pid <> pg_backend_pid()"
            )
        assert jobs.sync.submit(dag()).new

    def test_few_connections_are_made(self, postgres, make):
        jobs = make(postgres)
        at_the_same_time(40, lambda _: jobs.sync.submit(dag()))
        store: Any = jobs.sync._store
        assert 1 <= len(store._connections._idle) <= 8
        del store

    def test_a_jobs_that_is_forgotten_closes_its_connections(self, postgres):
        jobs = small(postgres)
        jobs.sync.submit(dag())
        store: Any = jobs.sync._store
        (connection,) = store._connections._idle
        del jobs, store
        gc.collect()
        assert connection.closed


def named(name):
    one = Dag(name)
    one.add("double", 1)
    return one


def driver_url(url):
    return plain(url).replace("postgresql://", "postgresql+psycopg://", 1)
