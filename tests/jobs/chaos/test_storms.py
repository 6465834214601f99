"""Kill storms: nothing acknowledged is lost, completed twice or stuck, whoever is killed and whenever.

FAIRLEAD_STORM=1 makes them as large as the issue wants: 200 kills on PostgreSQL and 50 of itself, 100 on SQLite.
"""

import os
import signal
import time
from pathlib import Path
from random import Random

import pytest

from tests.engines_postgres import Postgres, postgres
from tests.jobs.chaos.conftest import QUICK
from tests.jobs.chaos.ledger import KILLED, START
from tests.jobs.chaos.storm import Storm, on_postgres, on_sqlite
from tests.sizes import times

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="storms need fork"),
]


def survived(storm: Storm, kills: int) -> None:
    """The calm after a storm, and the verdict."""
    storm.calm()
    lines = storm.judge()
    assert sum(line.what == KILLED for line in lines) >= kills
    assert sum(line.what == START for line in lines) > kills, "there was hardly anything to kill"
    waits = sorted(rescue.seconds for rescue in storm.rescued())
    told = (
        f"half within {waits[len(waits) // 2]:.2f} s, the last within {waits[-1]:.2f} s"
        if waits
        else ""
    )
    print(f"\n{storm.story()}\n{len(waits)} jobs rescued {told}")


def test_postgres_kills_of_submitter_scheduler_and_workers(tmp_path, database):
    with on_postgres(
        tmp_path, database, roles={"submitter": 1, "scheduler": 2, "worker": 3}
    ) as storm:
        storm.start_all()
        storm.rage(times(200), 0.02, 0.28)
        survived(storm, times(200))


def test_sqlite_kills(tmp_path):
    with on_sqlite(tmp_path) as storm:
        storm.start_all()
        storm.rage(times(100), 0.02, 0.3)
        survived(storm, times(100))


def kill_a_session(server: Postgres, random: Random) -> None:
    """Kill one session; the postmaster then ends all others and recovers."""
    postmaster = int((server.data / "postmaster.pid").read_text().split()[0])
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    sessions = []
    for child in children:
        try:
            if b" 127.0.0.1" in Path(f"/proc/{child}/cmdline").read_bytes():
                sessions.append(int(child))
        except OSError:
            pass  # it has gone
    if sessions:
        os.kill(random.choice(sessions), signal.SIGKILL)


def strike(server: Postgres, random: Random) -> None:
    """End PostgreSQL in one of the ways it can end, and start it again."""
    how = random.choice(("kill", "immediate", "fast", "session"))
    if how == "session":
        kill_a_session(server, random)
        return
    if how == "kill":
        server.kill()
    else:
        server.stop(how)
    time.sleep(random.choice((0, 0, 0.3)))
    server.start()


def test_postgres_itself_is_killed(tmp_path):
    strikes = times(50)
    with postgres(**QUICK) as server, on_postgres(tmp_path, server.url) as storm:
        storm.start_all()
        for number in range(strikes):
            time.sleep(storm.random.uniform(0.1, 0.7))
            strike(server, storm.random)
            if number % 3 == 2:  # and somebody dies while it recovers
                storm.rage(1, 0.0, 0.1)
        survived(storm, strikes // 3)


def test_every_notification_is_dropped(tmp_path, database):
    with on_postgres(tmp_path, database, "?listen=off") as storm:
        storm.start_all()
        storm.rage(times(20, 8), 0.1, 0.4)
        survived(storm, times(20, 8))


def test_the_leader_dies_while_it_dispatches(tmp_path, database):
    """Two schedulers on one database: at each death of one the other goes on, and no job is leased twice."""
    with on_postgres(tmp_path, database) as storm:
        storm.start_all()
        for _ in range(times(15, 8)):
            time.sleep(storm.random.uniform(0.2, 0.6))
            storm.watch()
            leader = storm.audit.leader()
            for child in storm.of("scheduler"):
                if child.pid == leader:
                    storm.kill(child)
                    storm.start("scheduler")
        survived(storm, times(5, 2))


def test_wall_clocks_that_are_wrong_and_jump(tmp_path, database):
    """A day there and half a day back, every two seconds, in every process: nothing is lost, robbed or run twice."""
    with on_postgres(tmp_path, database) as storm:
        for number, role in enumerate(["submitter", "scheduler", "scheduler", "worker", "worker"]):
            storm.start(role, skew=86_400.0 * (-1) ** number)
        time.sleep(4.0)
        storm.rage(times(10, 6), 0.2, 0.6)
        survived(storm, times(10, 6))


def test_wall_clocks_that_jump_on_sqlite(tmp_path):
    """Without delayed retries: a delay that was set by a clock a day ahead lasts a day by the others."""
    with on_sqlite(tmp_path, kinds={"waits": 3.0, "thread": 1.0}) as storm:
        for number, role in enumerate(["submitter", "scheduler", "scheduler", "worker"]):
            storm.start(role, skew=86_400.0 * (-1) ** number)
        time.sleep(4.0)
        storm.rage(times(10, 6), 0.2, 0.6)
        survived(storm, times(10, 6))
