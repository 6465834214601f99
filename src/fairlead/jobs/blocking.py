"""`jobs.sync`: the verbs of a client for code without an event loop, from any number of threads.

They are the verbs of `Jobs`, over a store whose connections block the calling thread.  A fork leaves the parent's
connections alone: the child opens its own with its first call.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from fairlead.config import seconds
from fairlead.errors import Misuse, StoreUnavailable
from fairlead.jobs import verbs
from fairlead.jobs.outcome import find_run, outcome_of_rows, run_number
from fairlead.jobs.states import TERMINAL
from fairlead.jobs.stores.at_once import at_once
from fairlead.jobs.stores.callers import driver_of
from fairlead.jobs.stores.opening import open_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from os import PathLike

    from fairlead.jobs.graph import Dag
    from fairlead.jobs.outcome import Outcome, Run
    from fairlead.jobs.service import Jobs
    from fairlead.jobs.stores.base import Store

SHORTEST_PAUSE = 0.02  # seconds between two looks of `wait`
PATIENCE = 0.1  # of the time waited so far, for the next look


class BlockingJobs:
    """Submit, wait, cancel and retry without an event loop."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._url = ""
        self._process = os.getpid()
        self._inherited: Store | None = (
            None  # of the parent: kept, for its end would end the parent's
        )
        self._failed: tuple[float, str] | None = None  # when an opening failed, and why

    def submit(
        self,
        dag: Dag | Mapping[str, Any] | str | PathLike[str],
        *,
        start_at: Any = None,
        connection: Any = None,
        on_conflict: str = "error",
    ) -> Run:
        """Store a DAG, or a DAG file, as a run: durable when it returns, as by `Jobs.submit`.

        With `connection` (of psycopg, SQLAlchemy or Django) it is part of the caller's own transaction.
        """
        runs = self.submit_all(
            [dag], start_at=start_at, connection=connection, on_conflict=on_conflict
        )
        return runs[0]

    def submit_all(
        self,
        dags: Iterable[Any],
        *,
        start_at: Any = None,
        connection: Any = None,
        on_conflict: str = "error",
    ) -> list[Run]:
        """Store many DAGs in one transaction."""
        store = self._opened()
        return at_once(
            verbs.submit_all(
                store,
                self._jobs.tasks,
                self._jobs.executors,
                dags,
                start_at=start_at,
                connection=None if connection is None else driver_of(connection),
                on_conflict=on_conflict,
            )
        )

    def wait(self, run: Any, timeout: Any = None) -> Outcome:
        """Block until a run ends, well or not; `TimeoutError` if it takes longer than `timeout`.

        It looks at the run after each tenth of the time waited so far, from 20 ms up to `poll`.
        """
        if _in_loop():
            raise Misuse(
                "jobs.sync.wait would block this thread's event loop; await jobs.wait(run) there"
            )
        dag = run_number(run)
        limit = None if timeout is None else seconds(timeout, "timeout", zero=True)
        begun, known = time.monotonic(), False
        while True:
            try:
                outcome = at_once(_outcome(self._opened(), dag))
                known = True
            except StoreUnavailable:
                if not known:  # at the first look, the address may be wrong
                    raise
                outcome = None
            if outcome is not None:
                return outcome
            waited = time.monotonic() - begun
            pause = min(max(SHORTEST_PAUSE, waited * PATIENCE), self._jobs.settings.poll)
            if limit is not None:
                if waited >= limit:
                    raise TimeoutError(f"run {dag} has not ended after {limit:g} s")
                pause = min(pause, limit - waited)
            time.sleep(pause)

    def outcome(self, run: Any) -> Outcome | None:
        """Return how a run ended; None if it has not ended."""
        return at_once(_outcome(self._opened(), run_number(run)))

    def cancel(self, run: Any) -> bool:
        """Cancel a run: what waits never runs, what runs is stopped.  False if it has ended or is being cancelled."""
        return at_once(verbs.change(self._opened(), run, "cancel"))

    def pause(self, run: Any) -> bool:
        """Start nothing more of a run; False if it has ended or is paused."""
        return at_once(verbs.change(self._opened(), run, "pause"))

    def resume(self, run: Any) -> bool:
        """Go on with a paused run; False if it is not paused."""
        return at_once(verbs.change(self._opened(), run, "resume"))

    def retry(self, run: Any) -> bool:
        """Give the jobs of an ended run that did not complete fresh attempts; False if there are none."""
        return at_once(verbs.change(self._opened(), run, "retry"))

    def close(self) -> None:
        """Close the connections; the next call opens them again."""
        with self._lock:
            store, self._store = self._store, None
        if store is not None and self._process == os.getpid():
            at_once(store.close())

    def _opened(self) -> Store:
        if self._process != os.getpid():  # the connections are the parent's, and so is a held lock
            self._inherited, self._store = self._store, None
            self._lock, self._process = threading.Lock(), os.getpid()
        asked_at = time.monotonic()
        with self._lock:
            if self._store is not None and self._url == self._jobs.url:
                return self._store
            if self._failed is not None and self._failed[0] > asked_at:
                # This thread waited while another found that there is no way: the line does not try one by one.
                raise StoreUnavailable(self._failed[1])
            store = open_store(self._jobs.url, blocking=True)
            try:
                at_once(store.open(create=self._jobs.creates))
            except StoreUnavailable as error:
                self._failed = (time.monotonic(), str(error))
                raise
            self._store, self._url, self._failed = store, self._jobs.url, None
            return store


async def _outcome(store: Store, dag: int) -> Outcome | None:
    row = await find_run(store, dag)
    return outcome_of_rows(row, await store.jobs(dag)) if row.state in TERMINAL else None


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
