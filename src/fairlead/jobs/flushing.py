"""Endings on their way to the store: at once if nothing is under way, in batches if something is.

One write is under way at a time, and what ends meanwhile goes with the next.  That is sent before anybody here hears
what came of the last, so that the store works while we do.  While the store is away endings are kept: their fences
decide later whether they still count, so keeping them can do no harm, and losing them would run jobs again.  An ending
that the store cannot take for another reason must not hold up the others, nor leave its job stuck: it is written alone,
and if that fails `TRIES` times, a plain failure is written in its place.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING

from fairlead.errors import StoreUnavailable
from fairlead.jobs.payload import error_json
from fairlead.jobs.states import COMPLETED, FAILED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fairlead.jobs.records import Ending, Finished

    Heard = Callable[[list[Ending], Finished], Awaitable[None]]

LONGEST_PAUSE = 2.0  # seconds between tries while the store is away
MOST_ENDINGS = 1_000  # in one write
TRIES = 4

log = logging.getLogger("fairlead.jobs")


class Flusher:
    """Writes endings; `add` never waits.  `heard` is told what came of each batch, in the order they were written."""

    def __init__(
        self,
        finish: Callable[[list[Ending]], Awaitable[Finished]],
        heard: Heard | None = None,
    ) -> None:
        self._finish = finish
        self._heard = heard
        self._hearing: set[asyncio.Task[None]] = set()
        self._pending: list[Ending] = []
        self._flying: list[Ending] = []
        self._task: asyncio.Task[None] | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self._stopped = False

    def __len__(self) -> int:
        return len(self._pending) + len(self._flying)

    def add(self, ending: Ending) -> None:
        """Write an ending soon."""
        self._pending.append(ending)
        if self._task is None and not self._stopped:
            self._empty.clear()
            self._task = asyncio.get_running_loop().create_task(
                self._flush(), name="fairlead-endings"
            )

    async def wait_until_empty(self, timeout: float) -> bool:
        """Wait for everything to be written and heard; False if it takes longer."""
        try:
            async with asyncio.timeout(timeout):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Write nothing more; what is left is told to nobody, and its jobs are taken back by the scheduler."""
        self._stopped = True
        tasks = [*self._hearing, *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if len(self):
            log.warning("%d endings could not be written; those jobs will run again", len(self))

    async def _flush(self) -> None:
        try:
            while self._pending and not self._stopped:
                self._flying = self._pending[:MOST_ENDINGS]
                del self._pending[:MOST_ENDINGS]
                await self._write(self._flying)
                self._flying = []
        finally:
            self._task = None
            self._note_empty()

    def _note_empty(self) -> None:
        if not len(self) and not self._hearing:
            self._empty.set()

    async def _write(self, batch: list[Ending]) -> None:
        """Write a batch, however long it takes."""
        pause, tries = 0.05, 0
        while True:
            try:
                finished = await self._finish(batch)
            except StoreUnavailable as error:
                log.warning("%d endings wait for the database: %s", len(self), error)
            except Exception:
                if len(batch) > 1:
                    for ending in batch:
                        await self._write([ending])
                    return
                log.exception(
                    "the ending of job %d.%d cannot be stored", batch[0].dag, batch[0].node
                )
                tries += 1
                if tries >= TRIES:
                    # For this there is no good answer: only one that leaves the job where people see it.
                    batch = [_plain(batch[0])]
            else:
                self._tell(batch, finished)
                return
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)

    def _tell(self, batch: list[Ending], finished: Finished) -> None:
        """Have it heard, in a task of its own: that begins when the next write has been sent."""
        if self._heard is None:
            return
        task = asyncio.get_running_loop().create_task(_hear(self._heard, batch, finished))
        self._hearing.add(task)
        task.add_done_callback(self._was_heard)

    def _was_heard(self, task: asyncio.Task[None]) -> None:
        self._hearing.discard(task)
        self._note_empty()


async def _hear(heard: Heard, batch: list[Ending], finished: Finished) -> None:
    try:
        await heard(batch, finished)
    except Exception:
        log.exception("what came of %d endings could not be heard", len(batch))


def _plain(ending: Ending) -> Ending:
    """An ending that says as little as possible."""
    error = error_json("StoreError", "how the job ended could not be stored; see the worker's log")
    state = FAILED if ending.state == COMPLETED else ending.state
    return ending._replace(state=state, result=None, error=error)
