"""A disk that is full while work goes on: submit says so, nothing is lost, and work goes on when there is room."""

import os
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.jobs.chaos.audit import SqliteAudit
from tests.jobs.chaos.ledger import NOTE
from tests.jobs.chaos.storm import Storm, migrate
from tests.sizes import times

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="storms need fork"),
]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 32 MB: some times what a log grows to before it is written back."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("nobody but root can mount a small file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Leave no byte free."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        size = 65536
        while size:
            try:
                file.write(b"x" * size)
            except OSError:
                size //= 2
    return filler


def test_sqlite_on_a_full_disk(tmp_path, small_disk):
    path = small_disk / "jobs.db"
    url = f"sqlite:///{path}"
    migrate(url)
    audit = SqliteAudit(path)
    audit.prepare()
    logs = tmp_path / "logs"
    logs.mkdir()
    roles = {"submitter": 1, "scheduler": 2, "worker": 1}
    storm = Storm(logs, url, audit, roles=roles, nodes=40, lanes=2)
    try:
        storm.start_all()
        storm.start("submitter", prefix="knock", nodes=1, lanes=1, wait=False)
        for _ in range(times(5, 2)):
            time.sleep(0.7)
            filler = fill(small_disk)
            before = refusals(storm)
            storm.wait(partial(refused_since, storm, before), 20, "a submit that is refused")
            time.sleep(0.5)
            storm.watch()
            filler.unlink()
        storm.calm()
        storm.judge()
        print(f"\n{refusals(storm)} refused; {storm.story()}")
    finally:
        storm.close()


def refused_since(storm: Storm, before: int) -> bool:
    return refusals(storm) > before


def refusals(storm: Storm) -> int:
    """Submissions that raised."""
    return sum(
        line.what == NOTE and str(line.more["text"]).startswith("submit:") for line in storm.lines
    )
