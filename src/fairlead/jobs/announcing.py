"""Telling the world: that a run has ended, that an SLA was missed.

The end of a run is told to hooks and to the webhook at least once: it is marked as told only afterwards, and a webhook
that does not answer is tried again.  A missed SLA is one event, marked in the store before it is told.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import TYPE_CHECKING, Any

from fairlead.jobs.times import written

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import aiohttp

    from fairlead.jobs.records import Missed, RunRow
    from fairlead.jobs.stores.base import Store

ANSWER_LIMIT = 10.0  # seconds for a webhook
AT_ONCE = 100

log = logging.getLogger("fairlead.jobs")


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


class Announcer:
    """Hooks and one webhook."""

    def __init__(self, webhook: str | None) -> None:
        self.webhook = webhook
        self.hooks: list[Callable[[dict[str, Any]], Any]] = []
        self._session: aiohttp.ClientSession | None = None
        self._complained = False

    @property
    def wanted(self) -> bool:
        """Whether anybody listens."""
        return bool(self.hooks) or self.webhook is not None

    async def ends(self, store: Store) -> None:
        """Tell the ends of runs that were not told yet."""
        while self.wanted and (runs := await store.unannounced(AT_ONCE)):
            told = []
            for run in runs:
                if not await self.tell(end_of(run)):
                    break
                told.append(run.dag)
            if told:
                await store.announced(told)
            if len(told) < len(runs):
                return

    async def misses(self, missed: Sequence[Missed]) -> None:
        """Tell missed SLAs."""
        for one in missed:
            event = miss_of(one)
            log.warning(
                "%s missed its %s SLA of %s",
                f"run {one.dag}" if one.node is None else f"job {one.dag}.{one.node}",
                one.kind,
                event["at"],
            )
            if self.wanted:
                await self.tell(event)

    async def tell(self, event: dict[str, Any]) -> bool:
        """Tell an event to everybody; False if the webhook did not take it.  A hook that fails is only named."""
        for hook in self.hooks:
            try:
                answer = hook(dict(event))
                if inspect.isawaitable(answer):
                    await asyncio.wait_for(answer, ANSWER_LIMIT)
            except Exception as error:
                log.error("hook %r failed on %s: %r", hook, event["event"], error)
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
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            good, reason = False, repr(error)
        if not good and not self._complained:
            log.error("the webhook %s is tried again: %s", self.webhook, reason)
        self._complained = not good
        return good

    async def close(self) -> None:
        """Let go of the connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None
