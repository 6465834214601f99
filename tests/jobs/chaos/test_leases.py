"""Leases: a dead owner is replaced quickly, a frozen one is refused when it wakes, a healthy one is never robbed."""

import os
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.engines_postgres import postgres
from tests.jobs.chaos.conftest import QUICK
from tests.jobs.chaos.ledger import END, FROZEN, START, STOPPED, Line
from tests.jobs.chaos.nursery import Child
from tests.jobs.chaos.storm import LEASE, SLACK, SWEEP, Storm, on_postgres, on_sqlite
from tests.sizes import FULL, times

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="storms need fork"),
]

QUIET = {"waits": 1.0}


@pytest.fixture(params=["postgres", "sqlite"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def storm_on(kind, tmp_path, request, **options):
    if kind == "sqlite":
        return on_sqlite(tmp_path, **options)
    return on_postgres(tmp_path, request.getfixturevalue("database"), **options)


def victim(storm: Storm, role: str, least: int) -> Child:
    """A process of a role that runs at least so many bodies."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        running = storm.running
        for child in storm.of(role):
            if len(running.get(child.pid, ())) >= least:
                return child
        time.sleep(0.02)
    raise AssertionError(f"no {role} runs {least} jobs; {storm.story()}")


def test_what_a_killed_process_ran_is_started_again_within_lease_and_sweep_and_a_second(
    tmp_path, request, kind
):
    """There is room elsewhere all the time, so the time is that of noticing."""
    options = {"nodes": 40, "lanes": 1, "longest": 600, "kinds": QUIET}
    with storm_on(kind, tmp_path, request, **options) as storm:
        storm.start_all()
        kills = times(8, 4)
        for number in range(kills):
            role = ("worker", "scheduler")[number % 2]
            child = victim(storm, role, 1)
            if number % 4 == 1:  # every other time the one that leads
                leader = storm.audit.leader()
                child = next((c for c in storm.of(role) if c.pid == leader), child)
            orphans = storm.inside(child)
            storm.kill(child)
            storm.start(role)
            storm.wait(lambda orphans=orphans: not orphans & waiting(storm.lines), 20, "orphans")
        storm.calm()
        storm.judge()
        took = [rescue.seconds for rescue in storm.rescued()]
        print(f"\n{len(took)} rescued, the last within {max(took):.2f} s; {storm.story()}")
        assert len(took) >= kills
        assert max(took) <= LEASE + SWEEP + SLACK


def waiting(lines: list[Line]) -> set[tuple[str, str]]:
    """Jobs whose last body died with its process."""
    last: dict[tuple[str, str], Line] = {}
    for line in lines:
        if line.what in {START, END, STOPPED}:
            last[line.run, line.node] = line
    dead = {line.more["victim"] for line in lines if line.what == "killed"}
    return {name for name, line in last.items() if line.what == START and line.pid in dead}


def test_the_result_of_a_zombie_is_refused_by_its_fence(tmp_path, request, kind):
    """Frozen past its lease, a worker wakes and ends what another has completed meanwhile."""
    options: dict[str, Any] = {
        "nodes": 60,
        "lanes": 2,
        "longest": 300,
        "kinds": {"waits": 2.0, "thread": 1.0},
    }
    options |= {"places": ("far",), "lease": 0.6, "sweep": 0.2}
    refused = 0
    with storm_on(kind, tmp_path, request, **options) as storm:
        storm.start_all()
        while refused < times(20, 20):  # fewer may all see in time that they are to stop
            child = victim(storm, "worker", 3)
            storm.freeze(child)
            frozen = storm.inside(child)
            if not storm.audit.writable():
                # It was in the middle of a transaction, and has the only lock there is.
                storm.thaw(child)
                continue
            storm.wait(
                lambda frozen=frozen, child=child: done_by_others(storm, frozen, child.pid),
                20,
                "rescue",
            )
            storm.thaw(child)
            storm.wait(
                lambda child=child, frozen=frozen: not storm.inside(child) & frozen,
                20,
                "zombies to end",
            )
            refused += len(frozen)
            storm.watch()
        storm.calm()
        lines = storm.judge()
        assert zombie_ends(lines) > 0  # others saw in time that they are to stop
        print(
            f"\n{refused} zombies, {zombie_ends(lines)} ended what others had completed; {storm.story()}"
        )


def done_by_others(storm: Storm, jobs: set[tuple[str, str]], pid: int) -> bool:
    ended = {(line.run, line.node) for line in storm.lines if line.what == END and line.pid != pid}
    return jobs <= ended


def zombie_ends(lines: list[Line]) -> int:
    """Bodies that ended after another had ended the same job."""
    ended: set[tuple[str, str]] = set()
    found = 0
    zombies: set[int] = set()
    for line in lines:
        if line.what == FROZEN:
            zombies.add(line.more["victim"])
        elif line.what == END:
            found += (line.run, line.node) in ended and line.pid in zombies
            ended.add((line.run, line.node))
    return found


def test_a_healthy_owner_is_not_robbed_though_its_loop_is_blocked_for_many_leases(
    tmp_path, database
):
    """A worker's loop, and that of the scheduler itself; another stands by and could take over."""
    lease = 0.8
    blocked = (20 if FULL else 6) * lease
    options: dict[str, Any] = {"nodes": 1, "lanes": 1, "runs": 1, "longest": int(blocked * 1000)}
    options |= {"kinds": {"blocks": 1.0}, "lease": lease, "sweep": 0.1}
    folders = [tmp_path / "postgres", tmp_path / "sqlite"]
    for folder in folders:
        folder.mkdir()
    with (
        on_postgres(folders[0], database, **options) as one,
        on_sqlite(folders[1], **options) as other,
    ):
        for storm in (one, other):
            for role in ("scheduler", "scheduler", "worker", "worker"):
                storm.start(role)
            for place in ("near", "far"):
                storm.start("submitter", prefix=place, places=(place,))
        for storm in (one, other):
            storm.calm(stop=False)
            done = [line.what for line in storm.judge() if line.what in {START, END, STOPPED}]
            assert sorted(done) == [END, END, START, START]


def test_a_database_that_hangs_longer_than_a_lease_lets_nobody_run_twice(tmp_path):
    """Workers that cannot reach it stop what they run before anybody else can begin it."""
    with (
        postgres(**QUICK) as server,
        on_postgres(tmp_path, server.url, nodes=30, lanes=2, longest=1500, kinds=QUIET) as storm,
    ):
        storm.start_all()
        for _ in range(times(2, 2)):
            victim(storm, "worker", 1)
            time.sleep(0.3)
            server.freeze()
            time.sleep(2.5 * LEASE)
            server.thaw()
        storm.calm()
        lines = storm.judge()
        assert any(line.what == STOPPED for line in lines)


def test_work_goes_on_by_itself_within_5_seconds_after_a_restart_of_postgres(tmp_path):
    with postgres(**QUICK) as server, on_postgres(tmp_path, server.url, lanes=2) as storm:
        storm.start_all()
        pauses = []
        for mode in ("fast", "immediate"):
            time.sleep(1.0)
            server.stop(mode)
            time.sleep(2.0)  # long enough for every back-off to have grown
            server.start()
            back = time.monotonic()
            storm.wait(partial(goes_on, storm, back), 10, "a start")
            pauses.append(next(started_since(storm.lines, back)) - back)
        storm.calm()
        storm.judge()
        print(f"\nwork went on after {', '.join(f'{pause:.2f}' for pause in pauses)} s")
        assert max(pauses) <= 5.0


def goes_on(storm: Storm, moment: float) -> bool:
    return any(started_since(storm.lines, moment))


def started_since(lines: list[Line], moment: float) -> Iterator[float]:
    return (line.at for line in lines if line.what == START and line.at > moment)
