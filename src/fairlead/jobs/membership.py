"""Being a worker: registered, alive, and registered anew after a lease was lost.

When the heartbeat cannot renew in time, or hears that a worker is not known any more, everything that worker runs is
stopped, and it is registered anew, under a new number, as soon as the store answers.  Endings that were not written yet
are written before that: the fence refuses those whose jobs somebody else has been given.
"""

from __future__ import annotations

import asyncio
import logging
import random
from time import monotonic
from typing import TYPE_CHECKING

from fairlead.errors import Misuse, StoreUnavailable
from fairlead.jobs.heartbeat import Heartbeat

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from fairlead.jobs.lanes import Lane
    from fairlead.jobs.stores.base import Store

LONGEST_PAUSE = 5.0  # seconds between tries while the store is away

log = logging.getLogger("fairlead.jobs")


class Membership:
    """The registration of all workers of a process, kept alive by one heartbeat."""

    def __init__(
        self,
        store: Store,
        lanes: Sequence[Lane],
        *,
        tasks: Collection[str],
        name: str,
        process: str,
        lease: float,
        flushed: Callable[[float], Awaitable[bool]],
        cancel: Callable[[Sequence[tuple[int, int, int]]], None],
        lost: Callable[[Sequence[Lane]], None],
        sever: Callable[[Sequence[Lane]], None],
    ) -> None:
        self.workers: dict[str, int] = {}  # executor -> the number of its worker, while it has one
        self.lane_of: dict[int, Lane] = {}  # by that number
        self.leases_lost = 0
        self._store = store
        self._lanes = lanes
        self._tasks = tasks
        self._name = name
        self._process = process
        self._lease = lease
        self._flushed = flushed
        self._on_lost = lost
        self._on_sever = sever
        self._heartbeat = Heartbeat(store, lease, cancel=cancel, lost=self._lost, sever=self._sever)
        self._gone: list[int] = []  # numbers that have lost their leases, until they are retired
        self._rejoining: asyncio.Task[None] | None = None
        self._leaving = False

    async def join(self) -> None:
        """Register every worker, and keep its lease from now on."""
        if not self._heartbeat.alive:
            await self._heartbeat.start()
        await self._register(self._lanes)

    async def know(self) -> None:
        """Write which tasks the workers know now."""
        await self._store.know(list(self.lane_of), list(self._tasks))

    def beat_soon(self) -> None:
        """Hear now of cancels that were asked for."""
        self._heartbeat.beat_soon()

    def stay_away(self) -> None:
        """Do not register anew what loses its lease from now on."""
        self._leaving = True

    async def leave(self) -> list[int]:
        """Stop the heartbeat; tell which workers are still registered."""
        self._leaving = True
        if self._rejoining is not None:
            self._rejoining.cancel()
            await asyncio.gather(self._rejoining, return_exceptions=True)
        await self._heartbeat.stop()
        left = [*self.lane_of, *self._gone]
        self.lane_of, self.workers = {}, {}
        return left

    async def _register(self, lanes: Sequence[Lane]) -> None:
        slots = {lane.executor: lane.runner.slots for lane in lanes}
        if not slots:
            return
        if not self._heartbeat.alive:
            raise Misuse("the heartbeat of this process has ended; start the process anew")
        begun = monotonic()
        known = list(self._tasks)
        numbers = await self._store.register(self._name, self._process, slots, self._lease, known)
        for lane in lanes:
            lane.worker = numbers[lane.executor]
            self.lane_of[lane.worker] = lane
        self._tell_workers()
        self._heartbeat.watch(list(numbers.values()), begun)

    def _tell_workers(self) -> None:
        self.workers = {lane.executor: number for number, lane in self.lane_of.items()}

    def _sever(self, workers: Sequence[int]) -> None:
        """Stop what lost its lease; on the heartbeat's thread, for the loop may stand still."""
        lanes = [lane for lane in self._lanes if lane.worker in workers]
        self._on_sever(lanes)
        for lane in lanes:
            lane.sever()

    def _lost(self, workers: Sequence[int], why: str) -> None:
        """Stop what lost its lease, and begin again."""
        lanes = [self.lane_of.pop(worker) for worker in workers if worker in self.lane_of]
        if not lanes:
            return
        self.leases_lost += len(lanes)
        for lane in lanes:
            log.error(
                "worker %s of executor %s has lost its lease: %s; what it runs is stopped, and will be run again",
                lane.worker,
                lane.executor,
                why,
            )
            lane.worker = None
        self._gone += workers
        self._tell_workers()
        self._on_lost(lanes)
        if not self._leaving and self._rejoining is None:
            self._rejoining = asyncio.get_running_loop().create_task(
                self._rejoin(), name="fairlead-rejoin"
            )

    async def _rejoin(self) -> None:
        """Register anew what lost its lease, when what ran has stopped and the store is back."""
        pause = 0.05
        try:
            while lanes := [lane for lane in self._lanes if lane.worker is None]:
                try:
                    # Endings first: jobs that nobody else was given yet need not be run again.
                    if not any(lane.running for lane in lanes) and await self._flushed(pause):
                        await self._anew(lanes)
                        continue
                except StoreUnavailable as error:
                    log.warning("this worker waits for the database: %s", error)
                except Exception:
                    log.exception("this worker cannot be registered anew")
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, self._lease / 3, LONGEST_PAUSE)
        finally:
            self._rejoining = None

    async def _anew(self, lanes: Sequence[Lane]) -> None:
        if gone := list(self._gone):
            await self._store.retire(gone)
            self._gone = [worker for worker in self._gone if worker not in gone]
        await self._register(lanes)
        for lane in lanes:
            log.warning("executor %s is served again, by worker %s", lane.executor, lane.worker)
