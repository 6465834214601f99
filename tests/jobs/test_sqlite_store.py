"""SQLite held to the contract of stores, and to the model of jobs; and what the two must be able to catch."""

import asyncio
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from fairlead.jobs.stores import sqlite_claiming, sqlite_finishing, sqlite_leading, sqlite_runs
from fairlead.jobs.stores.base import Store
from tests.jobs.sqlite_rig import watched
from tests.jobs.store_contract import Hand, StoreContract
from tests.jobs.store_machine import StoreMachine
from tests.sizes import REPEATS


class TestSqlite(StoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[Store]:
        store = await watched(tmp_path)
        yield store
        await store.close()


class SqliteMachine(StoreMachine):
    async def opened(self) -> Store:
        self.folder = tempfile.TemporaryDirectory(prefix="fairlead-jobs-")
        return await watched(Path(self.folder.name))

    async def thrown_away(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()


def machine(examples: int, phases: Sequence[Phase] = tuple(Phase)) -> None:
    chosen = settings(max_examples=examples, stateful_step_count=40, phases=phases, database=None)
    run_state_machine_as_test(SqliteMachine, settings=chosen)


def test_random_verbs_do_as_the_model():
    machine(30 * REPEATS)


# Broken on purpose, each as somebody might break it; the model must see it.


def no_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Endings are applied whatever fence they show."""
    finish = sqlite_finishing.finish

    def careless(connection: Any, process: str, endings: Any, now: float) -> Any:
        rows = connection.execute("SELECT id, fence FROM jobs WHERE state = 'active'").fetchall()
        held = dict(rows)
        shown = [
            ending._replace(fence=held.get(ending.dag << 20 | ending.node, ending.fence))
            for ending in endings
        ]
        return finish(connection, process, shown, now)

    monkeypatch.setattr(sqlite_finishing, "finish", careless)


def counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dependency that completed is counted down twice."""
    unblock = sqlite_finishing.unblock

    def twice(connection: Any, counted: dict[int, int], now: float) -> Any:
        return unblock(connection, {key: 2 * number for key, number in counted.items()}, now)

    monkeypatch.setattr(sqlite_finishing, "unblock", twice)


def skipped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dependents are skipped, but not theirs."""
    skip = sqlite_finishing.skip

    def shallow(connection: Any, keys: Any, tally: Any, now: float) -> Any:
        connection.execute("CREATE TEMP TABLE IF NOT EXISTS kept (id, dependents)")
        connection.execute("INSERT INTO kept SELECT id, dependents FROM jobs")
        connection.execute("UPDATE jobs SET dependents = NULL")
        told = skip(connection, keys, tally, now)
        connection.execute(
            "UPDATE jobs SET dependents = kept.dependents FROM kept WHERE kept.id = jobs.id"
        )
        connection.execute("DROP TABLE kept")
        return told

    monkeypatch.setattr(sqlite_finishing, "skip", shallow)


def blocked_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim does not ask whether dependencies are done."""
    careless = "jobs.state IN ('created', 'retry')"
    monkeypatch.setattr(sqlite_claiming, "IS_READY", careless)


def cancel_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry or a failure after a cancel stays what it is."""
    monkeypatch.setattr(
        sqlite_finishing, "ACTIVE_JOB", sqlite_finishing.ACTIVE_JOB.replace("jobs.cancelling", "0")
    )


def silent_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    """Endings elsewhere are not told to the scheduler."""
    monkeypatch.setattr(sqlite_finishing, "is_leader", lambda *_: True)


def paused_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes for a retry while its run is paused is ready."""
    monkeypatch.setattr(sqlite_finishing, "suspend", lambda *_: None)


def stale_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry of a run forgets what has completed."""
    monkeypatch.setattr(sqlite_runs, "COMPLETED", "nothing")


def undead(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lease ever runs out."""
    monkeypatch.setattr(sqlite_leading, "EXPIRED", "(?1 < 0)")


def told_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody acknowledged in time is told to be taken back, and left with its worker."""
    monkeypatch.setattr(
        sqlite_leading, "take_away", lambda db, jobs: {(job.dag, job.node) for job in jobs}
    )


CAUGHT = [
    (no_fence, "an_old_fence_is_refused_after_another_claim"),
    (counted_twice, "a_batch_counts_each_dependency_once"),
    (skipped_once, "a_deep_chain_and_a_wide_fan_are_skipped_whole"),
    (blocked_claimed, "what_is_blocked_or_unknown_is_not_claimed"),
    (cancel_forgotten, "a_cancelled_job_is_never_tried_again"),
    (silent_finish, "endings_elsewhere_are_news_and_ones_own_are_not"),
    (paused_retry, "a_retry_in_a_paused_run_waits_for_the_resume"),
    (stale_waits, "a_retry_gives_fresh_attempts_to_what_did_not_complete"),
    (undead, "orphans_are_what_the_dead_ran_and_what_nobody_took"),
    (told_only, "orphans_are_what_the_dead_ran_and_what_nobody_took"),
]


@pytest.mark.parametrize(("mutant", "test"), CAUGHT, ids=lambda one: getattr(one, "__name__", ""))
def test_the_contract_catches_what_is_broken(
    mutant: Any, test: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    async def held_to_it(folder: Path) -> None:
        store = await watched(folder)
        try:
            await getattr(TestSqlite(), f"test_{test}")(await Hand(store).begin())
        finally:
            await store.close()

    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
    asyncio.run(held_to_it(tmp_path / "whole"))
    mutant(monkeypatch)
    with pytest.raises((AssertionError, sqlite3.Error)):
        asyncio.run(held_to_it(tmp_path / "broken"))


@pytest.mark.parametrize("mutant", [counted_twice], ids=lambda one: one.__name__)
def test_random_verbs_find_what_is_broken(mutant: Any, monkeypatch: pytest.MonkeyPatch):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, ExceptionGroup, sqlite3.Error)):
        machine(100, [Phase.generate])  # found is enough: it need not be made small
