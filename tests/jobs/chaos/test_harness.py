"""The tools of the storms, without Fairlead: the ledger keeps every line whole, the nursery's children die for real."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.jobs.chaos.graphs import made
from tests.jobs.chaos.ledger import NOTE, Ledger, read
from tests.jobs.chaos.nursery import Nursery

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="storms need fork")


@pytest.fixture
def nursery(tmp_path):
    one = Nursery(tmp_path, "tests.jobs.chaos.rehearsal")
    yield one
    one.close()


def wait_for(path: Path, count: int) -> None:
    deadline = time.monotonic() + 20
    while not path.exists() or len(read(path)) < count:
        assert time.monotonic() < deadline, "nothing was written"
        time.sleep(0.005)


def test_a_ledger_tells_its_lines_in_the_order_they_were_written(tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    for number in range(3):
        ledger.write(NOTE, number=number)
    ledger.close()
    lines = read(tmp_path / "ledger")
    assert [line.more["number"] for line in lines] == [0, 1, 2]
    assert [line.pid for line in lines] == [os.getpid()] * 3
    assert lines[0].at <= lines[1].at <= lines[2].at


def test_lines_of_many_processes_stay_whole_though_their_writers_are_killed(tmp_path, nursery):
    ledger = tmp_path / "ledger"
    for _ in range(10):
        writers = [
            nursery.start("writes", {"ledger": str(ledger), "length": length})
            for length in (5, 3_000, 20_000)
        ]
        have = ledger.stat().st_size if ledger.exists() else 0
        while not ledger.exists() or ledger.stat().st_size < have + 200_000:
            time.sleep(0.001)
        for writer in writers:
            nursery.kill(writer)
    assert {len(line.more["text"]) for line in read(ledger)} == {5, 3_000, 20_000}


def test_a_killed_child_is_dead_when_kill_returns(tmp_path, nursery):
    child = nursery.start("sleeps", {"ledger": str(tmp_path / "ledger")})
    wait_for(tmp_path / "ledger", 1)
    assert nursery.gone(child) is None
    nursery.kill(child)
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)
    assert nursery.children == {}


def test_children_tell_how_they_ended(tmp_path, nursery):
    settings = {"ledger": str(tmp_path / "ledger"), "code": 7}
    assert nursery.bury(nursery.start("leaves", settings)) == 7
    broken = nursery.start("breaks", settings)
    assert nursery.bury(broken) == 70
    assert "RuntimeError: as it should" in broken.log.read_text()
    sleeper = nursery.start("sleeps", settings)
    nursery.signal(sleeper, signal.SIGTERM)
    assert nursery.bury(sleeper) == -signal.SIGTERM


def test_children_die_with_the_nursery(tmp_path):
    one = Nursery(tmp_path, "tests.jobs.chaos.rehearsal")
    child = one.start("sleeps", {"ledger": str(tmp_path / "ledger")})
    wait_for(tmp_path / "ledger", 1)
    one._process.kill()
    one._process.wait()
    deadline = time.monotonic() + 10
    while running(child.pid):
        assert time.monotonic() < deadline, "it lives on"
        time.sleep(0.01)
    assert one._process.stdin is not None
    assert one._process.stdout is not None
    one._process.stdin.close()
    one._process.stdout.close()


def running(pid: int) -> bool:
    """Whether a process runs; one that is dead and not buried does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_dag_is_made_from_its_key_alone():
    one, again, other = (made(key, 200, ("near", "far"), 20) for key in ("a", "a", "b"))
    assert one == again
    assert one.needs != other.needs
    assert len(one.needs) == 200
    for number, needs in enumerate(one.needs.values()):
        assert all(int(need[1:]) < number for need in needs)
    failing = [made(f"k{number}", 200, ("near",), 20) for number in range(40)]
    assert 2 < sum("failed" in dag.ends.values() for dag in failing) < 25
    assert any("skipped" in dag.ends.values() for dag in failing)
