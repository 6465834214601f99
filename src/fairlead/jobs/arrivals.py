"""What became ready is taken into the frontier before what ended gives its room back, many jobs in parts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairlead.jobs.estimates import Estimates
    from fairlead.jobs.frontier import Frontier
    from fairlead.jobs.records import Id, ReadyJob
    from fairlead.jobs.roster import Roster

MOST_AT_ONCE = 250  # jobs, some 5 ms of the event loop


class Arrivals:
    """The way of ready and ended jobs into a frontier; `frontier` returns the one in charge, if there is any."""

    def __init__(
        self,
        estimates: Estimates,
        now: Callable[[], float],
        frontier: Callable[[], Frontier | None],
    ) -> None:
        self._estimates = estimates
        self._now = now
        self._frontier = frontier

    async def follow(
        self, frontier: Frontier, roster: Roster, ready: Sequence[ReadyJob], ended: Sequence[Id]
    ) -> bool:
        """Take in what became ready, so that room goes to the best of all, then what ended; False if we lead no more.

        Many jobs, as of a run of 100,000, are taken in by parts, so that other work goes on.  What has changed
        meanwhile is like any late news: a claim that the store refuses is lost.
        """
        gone = set(ended)
        many = len(ready) > MOST_AT_ONCE
        for start in range(0, len(ready), MOST_AT_ONCE):
            part = self._estimates.fill(ready[start : start + MOST_AT_ONCE])
            fresh = [job for job in part if (job.dag, job.node) not in gone] if gone else part
            frontier.add(fresh, self._now())
            if many:
                await asyncio.sleep(0)
                if self._frontier() is not frontier:
                    return False
        self.ended(frontier, roster, ended)
        if gone:  # what ended and is ready is to be tried again
            again = [job for job in ready if (job.dag, job.node) in gone]
            frontier.add(self._estimates.fill(again), self._now())
        return True

    async def drop(self, frontier: Frontier, dag: int) -> bool:
        """Let a run wait no longer, a large one in parts; return False if we lead no more."""
        waiting = frontier.waiting_of(dag)
        for start in range(MOST_AT_ONCE, len(waiting), MOST_AT_ONCE):
            frontier.withdraw(waiting[start : start + MOST_AT_ONCE], self._now())
            await asyncio.sleep(0)
            if self._frontier() is not frontier:
                return False
        frontier.drop(dag, self._now())  # the first part, and everything that is not in line
        return True

    def ended(self, frontier: Frontier, roster: Roster, ids: Sequence[Id]) -> None:
        """Give back what ended jobs held."""
        roster.release(ids)
        frontier.ended(ids, self._now())
