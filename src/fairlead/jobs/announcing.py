"""Telling the world: that a run has ended, that an SLA was missed.

The end of a run is told to hooks and to the webhook at least once: it is marked as told only afterwards, and a webhook
that does not answer is tried again.  Meanwhile hooks go on: what they have heard is kept in mind until it is marked.  A
missed SLA is one event, marked in the store before it is told.

Whoever listens may be slow, or hang: events are told one at a time by a task of its own, which nobody waits for.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from fairlead.errors import StoreUnavailable
from fairlead.jobs.times import written

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import aiohttp

    from fairlead.jobs.records import Missed, RunRow
    from fairlead.jobs.stores.base import Store

ANSWER_LIMIT = 10.0  # seconds for a webhook
AT_ONCE = 100
LAST_WORDS = 5.0  # seconds for what is left to tell when a service stops
MOST_HEARD = 10_000  # ends that hooks have heard of and the webhook has not
MOST_MISSED = 1_000  # that wait to be told

log = logging.getLogger("fairlead.jobs")
telling: ContextVar[Announcer | None] = ContextVar("telling", default=None)  # who calls a hook


def end_of(run: RunRow) -> dict[str, Any]:
    """Describe the end of a run."""
    return {
        "event": f"run.{run.state}",
        "run": str(run.dag),
        "name": run.name,
        "tenant": run.tenant or None,
        "key": run.key,
        "state": run.state,
        "completed_on": written(run.completed_on),
    }


def miss_of(missed: Missed) -> dict[str, Any]:
    """Describe a missed SLA."""
    return {
        "event": f"sla.{missed.kind}_missed",
        "run": str(missed.dag),
        "job": None if missed.node is None else f"{missed.dag}.{missed.node}",
        "sla": missed.kind,
        "at": written(missed.at),
    }


def _end(run: RunRow) -> tuple[int, float | None]:
    return run.dag, run.completed_on


class Announcer:
    """Hooks and one webhook."""

    def __init__(self, webhook: str | None) -> None:
        self.webhook = webhook
        self.hooks: list[Callable[[dict[str, Any]], Any]] = []
        self._missed: deque[Missed] = deque()
        self._heard: set[tuple[int, float | None]] = set()  # ends that hooks know
        self._leads: Callable[[], bool] = bool
        self._wake = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self._session: aiohttp.ClientSession | None = None
        self._complained = False

    @property
    def wanted(self) -> bool:
        """Whether anybody listens."""
        return bool(self.hooks) or self.webhook is not None

    # What others tell it: none of this waits

    def wake(self) -> None:
        """Tell what there is to tell."""
        self._wake.set()

    def ended(self) -> None:
        """A run has ended.  A webhook that did not answer is left alone until `wake`."""
        if not self._complained:
            self._wake.set()

    def missed(self, missed: Sequence[Missed]) -> None:
        """SLAs were missed: log them, and keep them to be told."""
        for one in missed:
            log.warning(
                "%s missed its %s SLA of %s",
                f"run {one.dag}" if one.node is None else f"job {one.dag}.{one.node}",
                one.kind,
                written(one.at),
            )
        if not self.wanted:
            return
        room = MOST_MISSED - len(self._missed)
        self._missed.extend(missed[:room])
        if len(missed) > room:
            log.error(
                "%d missed SLAs are told to nobody: %d wait already for hooks or the webhook",
                len(missed) - room,
                MOST_MISSED,
            )

    # Its own life

    def start(self, store: Store, leads: Callable[[], bool]) -> None:
        """Tell from now on; ends only while this process leads."""
        self._leads, self._wake, self._stopping = leads, asyncio.Event(), False
        self._task = asyncio.create_task(self._run(store), name="fairlead jobs announcer")

    async def stop(self, *, leads: bool) -> None:
        """Tell what is left, for a limited time; then nothing more."""
        if self._task is not None:
            self._leads, self._stopping = (lambda: leads), True
            self._wake.set()
            if telling.get() is not self:
                await asyncio.wait({self._task}, timeout=LAST_WORDS)
            await self._end_task()

    async def close(self) -> None:
        """Let go of the connection."""
        await self._end_task()
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _end_task(self) -> None:
        task, self._task = self._task, None
        # A hook that ends the service is let finish.
        if task is not None and telling.get() is not self:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self, store: Store) -> None:
        telling.set(self)
        last = False
        while not last:
            await self._wake.wait()
            self._wake.clear()
            last = self._stopping  # when told to stop amid a round, there is one more
            try:
                await self.tell_misses()
                await self._tell_ends(store)
            except StoreUnavailable:
                pass  # the scheduler says so, and wakes this one again
            except Exception:
                log.exception("announcing failed, and is tried again")
            if self._complained and not self._stopping:
                self._wake.clear()

    # Telling

    async def tell_misses(self) -> None:
        """Tell missed SLAs."""
        while self._missed:
            await self.tell(miss_of(self._missed.popleft()))

    async def _tell_ends(self, store: Store) -> None:
        """Tell the ends of runs that were not told yet; those after one that the webhook did not take to hooks only."""
        answers = True
        while self.wanted and self._leads():
            limit = AT_ONCE + len(self._heard)
            runs = await store.unannounced(limit)
            if len(runs) < limit:  # that is all: forget those told by others, or started again
                self._heard.intersection_update(map(_end, runs))
            told = []
            try:
                for run in runs:
                    if not (self._leads() and (answers or self._keeps())):
                        break
                    event = end_of(run)
                    if _end(run) not in self._heard:
                        await self._call(event)
                        self._heard.add(_end(run))
                    answers = answers and await self._posted(event)
                    if answers:
                        told.append(run)
            finally:  # also when it is told to end while somebody hangs
                if told:
                    await store.announced(told)
                    self._heard.difference_update(map(_end, told))
            if len(runs) < limit or not (answers or self._keeps()):
                return

    def _keeps(self) -> bool:
        return bool(self.hooks) and len(self._heard) < MOST_HEARD

    async def tell(self, event: dict[str, Any]) -> bool:
        """Tell an event to everybody; False if the webhook did not take it."""
        await self._call(event)
        return await self._posted(event)

    async def _call(self, event: dict[str, Any]) -> None:
        """Call every hook; one that fails is only named."""
        for hook in self.hooks:
            try:
                answer = hook(dict(event))
                if inspect.isawaitable(answer):
                    await asyncio.wait_for(answer, ANSWER_LIMIT)
            except Exception as error:
                log.error("hook %r failed on %s: %r", hook, event["event"], error)

    async def _posted(self, event: dict[str, Any]) -> bool:
        return self.webhook is None or await self._post(event)

    async def _post(self, event: dict[str, Any]) -> bool:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_LIMIT))
        try:
            async with self._session.post(
                str(self.webhook), json=event, allow_redirects=False
            ) as answer:
                good = answer.status < 300
                reason = f"it answered {answer.status}"
        except aiohttp.InvalidURL:
            good, reason = False, "its address cannot be read"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            good, reason = False, repr(error)
        if not good and not self._complained:
            # Without its address, any part of which may be the secret that lets one post there.
            log.error("the webhook is tried again: %s", reason)
        self._complained = not good
        return good
