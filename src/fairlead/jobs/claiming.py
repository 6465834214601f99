"""From proposals to claims: which worker gets which job, and what becomes of a claim nobody has answered.

A claim whose answer was lost may have happened.  Its fence is ours alone, so it is handed back until the store has
answered: if it never happened, that is refused and does nothing.
"""

from __future__ import annotations

from random import Random
from secrets import randbits
from typing import TYPE_CHECKING

from fairlead.jobs.records import Claim, Ending
from fairlead.jobs.states import RETRY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from fairlead.jobs.records import Claimed, ReadyJob
    from fairlead.jobs.roster import Roster
    from fairlead.jobs.stores.base import Store
    from fairlead.jobs.worker import Crew


class Claimer:
    """Claims for workers of this process, which get their jobs at once, and for others, which fetch them."""

    def __init__(self, store: Store, crew: Crew) -> None:
        self._store = store
        self._crew = crew
        self._doubtful: list[Claim] = []
        self._fences = Random(randbits(256))  # they need not be secret, only never the same again

    async def claim(
        self, jobs: Sequence[ReadyJob], roster: Roster, epoch: int
    ) -> tuple[list[Claimed], list[ReadyJob]]:
        """Claim jobs, each for a worker; tell what was claimed, and for what there is no worker."""
        own = set(self._crew.workers.values())
        here: list[Claim] = []
        there: list[Claim] = []
        homeless: list[ReadyJob] = []
        make = tuple.__new__  # what the record's own maker does, in a third of the time
        for job in jobs:
            dag, node = one = job[:2]
            worker = roster.place(job.executor, job.task, one, own)
            if worker is None:
                homeless.append(job)
                continue
            claim = make(Claim, (dag, node, worker, self._fences.getrandbits(62)))
            (here if worker in own else there).append(claim)
        claimed = await self._claim(here, epoch, acked=True) if here else []
        self._crew.dispatch(claimed)
        if there:
            claimed = claimed + await self._claim(there, epoch, acked=False)
        return claimed, homeless

    async def _claim(self, claims: list[Claim], epoch: int, *, acked: bool) -> list[Claimed]:
        try:
            return await self._store.claim(self._crew.process, epoch, claims, acked=acked)
        except BaseException:
            self._doubtful += claims
            raise

    async def hand_back(self, finish: Callable[[list[Ending]], Awaitable[None]]) -> None:
        """Hand back what may have been claimed."""
        if self._doubtful:
            claims, self._doubtful = self._doubtful, []
            try:
                await finish([Ending(one.dag, one.node, one.fence, RETRY) for one in claims])
            except BaseException:
                self._doubtful += claims
                raise
