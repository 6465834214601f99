"""Limits shared by any number of processes through a Redis or Valkey.

The books are kept there, by scripts that run atomically and by the server's clock.  A process borrows in blocks, ahead
of need, and its gates decide with what they were lent, so a decision seldom waits for a round trip and never for the
network to come back.  One background task asks for all limits in one round trip:

- at once when somebody starts to wait or a block is half used up, but not more often than every `GAP`;
- when the server said that there would be more;
- every `SWEEP` seconds for all keys in use, to give back what is not used;
- every `BEAT` seconds in any case, to be counted as alive and to notice a loss.

A round trip that fails, or takes longer than half a second, is a loss: every limit goes on by its own policy, and the
way back is tried every `RETRY` seconds.  Limits that would rather go on alone than wait (`local`, `open`) do so after
0.15 s already, until the answer comes, so that no decision waits longer than that.  A fault of one limit alone (a
foreign value at its key) loses that limit only.  What was used meanwhile is reported when the ledger is back.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from fairlead.errors import FairleadError, Misuse
from fairlead.ledger.link import Call, Fault, Link, Script, used_once
from fairlead.ledger.quota_lease import QuotaLease
from fairlead.ledger.slots_lease import SlotsLease

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from fairlead.capacities import LeasedSlots, LeasedTokens
    from fairlead.ledger.leases import Adjust, Asked, Lease, LossPolicy

GAP = 0.001  # seconds between two round trips, at least
PACE = 0.01  # seconds between two asks for what was scarce, for up to ten processes
SWEEP = 0.05
BEAT = 0.25
ALIVE_FOR = 1.5  # seconds a process counts as alive after a beat
RETRY = 0.5
MOST_CALLS = 500  # in one round trip

log = logging.getLogger("fairlead.ledger")
AnyLease = TypeVar("AnyLease", bound="Lease")


class Ledger:
    """Keep limits in common with other processes.

    `quota` and `concurrency` tie a capacity of a gate to its books; `adjust` brings a change into that gate, on its
    loop.  Where gates run in other threads, `lock` is what guards the gate, and `adjust` may be called from here.

    >>> ledger = Ledger("redis://127.0.0.1:6379/0")
    >>> ledger.describe()["state"]
    'stopped'
    """

    def __init__(
        self,
        url: str,
        node: str | None = None,
        clock: Callable[[], float] | None = None,
        *,
        prefix: str = "fairlead",
    ) -> None:
        self.node = used_once(node)
        self.prefix = prefix
        self.leases: list[Lease] = []
        self.live, self.rank = 1, 0
        self.lost, self.losses = False, 0
        self.lost_for = 0.0  # seconds, all losses together
        self.fault = ""
        self._clock, self._url = clock, url
        self._link = Link(url, self.now)
        self._nodes = Script("nodes")
        self._seq = 0
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._woken = asyncio.Event()
        self._stopping = False
        self._last_at = self._sweep_at = self._beat_at = -inf
        self._lost_at = 0.0
        self._rounds = 0  # exchanges begun
        self._answered: list[tuple[int, asyncio.Future[bool]]] = []

    def now(self) -> float:
        """Read the clock that the gates go by."""
        if self._clock is not None:
            return self._clock()
        return 0.0 if self._loop is None else self._loop.time()

    # Limits

    def quota(
        self,
        name: str,
        capacity: LeasedTokens,
        bucket_capacity: float,
        fill_amount: float,
        interval: float = 1.0,
        continuous_fill: bool = True,
        delay_initial_fill: bool = False,
        on_loss: LossPolicy = "local",
        *,
        max_idle_time: float = inf,
        adjust: Adjust,
        lock: AbstractContextManager[Any] | None = None,
    ) -> QuotaLease:
        """Keep a token bucket (one per key of the capacity) in common under this name."""
        bucket = (bucket_capacity, fill_amount, interval, continuous_fill, delay_initial_fill)
        return self._add(QuotaLease(name, capacity, *bucket, max_idle_time, on_loss, adjust, lock))

    def concurrency(
        self,
        name: str,
        capacity: LeasedSlots,
        max_concurrency: float,
        max_inflight_duration: float,
        on_loss: LossPolicy = "local",
        *,
        adjust: Adjust,
        lock: AbstractContextManager[Any] | None = None,
    ) -> SlotsLease:
        """Keep tokens in flight (per key of the capacity) in common under this name."""
        limit = (max_concurrency, max_inflight_duration)
        return self._add(SlotsLease(name, capacity, *limit, on_loss, adjust, lock))

    def _add(self, lease: AnyLease) -> AnyLease:
        lease.capacity.stir = self.wake
        self.leases.append(lease)
        if self.lost:
            lease.lose(self.live, self.rank, self.now())
        self.wake()
        return lease

    async def remove(self, lease: Lease) -> None:
        """Stop keeping a limit: what it was lent and has not used is given back."""
        self.leases.remove(lease)
        lease.capacity.stir = lambda: None  # nobody is to be told
        if not (self.lost or lease.lost) and self._task is not None:
            await self._give_back([lease])

    # Life

    async def start(self) -> None:
        """Start the exchange, and wait for its first answer, or for the lack of it."""
        self.begin()
        await self.answered()

    def begin(self) -> None:
        """Start the exchange."""
        if self._task is not None and self._loop is not None and self._loop.is_closed():
            self._task, self._answered = None, []  # it ended with that loop
            self._link, self._woken = Link(self._url, self.now), asyncio.Event()
        if self._task is not None:
            raise Misuse("this ledger has been started already")
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._stopping = False
        self._task = self._loop.create_task(self._run(), name="fairlead ledger")

    async def stop(self) -> None:
        """Give back what is not used, and end; may be called twice, or without a start."""
        task, self._task = self._task, None
        if task is None:
            return
        self._stopping = True
        task.cancel()
        await asyncio.wait({task})
        self._tell(False)
        if not self.lost:
            await self._give_back(self.leases, leave=True)
        await self._link.drop()
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def _give_back(self, leases: Sequence[Lease], *, leave: bool = False) -> None:
        calls = [
            lease.call(self.prefix, self.node, self._next_seq(), want)
            for lease in leases
            if not lease.lost
            for want in lease.let_go(self.now())
        ]
        if leave:
            calls.append(Call(self._nodes, f"{self.prefix}:{{nodes}}", (self.node, "0")))
        try:
            if calls:
                await self._link.run(calls)
        except Fault as fault:
            log.info("ledger: what was lent could not be given back: %s", fault)

    def answered(self) -> asyncio.Future[bool]:
        """Await it: all that waits now has been asked for and answered; False if it could not be asked.

        For callers that would not wait: what is lent here may be used up while the ledger has more.
        """
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if self._task is None:
            future.set_result(False)
            return future
        self._answered.append((self._rounds + 1, future))
        self.wake()
        return future

    def wake(self) -> None:
        """Have the exchange look at once; from any thread."""
        if threading.get_ident() == self._thread:
            self._woken.set()
        elif self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._woken.set)

    def describe(self) -> dict[str, Any]:
        """Tell how it stands, for people and metrics."""
        state = "stopped" if self._task is None else "lost" if self.lost else "connected"
        lost_for = self.lost_for + (self.now() - self._lost_at if self.lost else 0.0)
        return {
            "state": state,
            "node": self.node,
            "live_nodes": self.live,
            "losses": self.losses,
            "lost_seconds": lost_for,
            "fault": self.fault,
            "round_trips": self._link.round_trips,
            "script_reloads": self._link.reloads,
            "warnings": list(self._link.warnings),
            "limits": [lease.describe() for lease in self.leases],
        }

    # The exchange

    async def _run(self) -> None:
        try:
            await self._keep_asking()
        finally:
            if not self._stopping:  # its loop ends before it was stopped
                await self._link.drop()

    async def _keep_asking(self) -> None:
        while not self._stopping:
            self._woken.clear()
            self._rounds += 1
            self._last_at = self.now()
            try:
                await self._exchange(self._last_at)
                self._found()
            except Fault as fault:
                self._lose(str(fault))
            except Exception as error:  # a gate that failed must not end it for all others
                log.exception("ledger: the exchange failed")
                self._lose(f"{type(error).__name__}: {error}")
            self._tell(not self.lost)
            await self._pause()

    async def _pause(self) -> None:
        now = self.now()
        if self.lost:
            await asyncio.sleep(max(0.0, self._last_at + RETRY - now))
            return
        due = max(0.0, self._next_at() - now)
        timer = asyncio.get_running_loop().call_later(due, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            timer.cancel()
        early = self._last_at + GAP - self.now()
        if early > 0:
            await asyncio.sleep(early)

    def _next_at(self) -> float:
        at = self._beat_at + BEAT
        for lease in self.leases:
            if lease.lost:
                at = min(at, lease.retry_at)
            else:
                at = min(at, lease.poll_at())
                if lease.capacity.keys:
                    at = min(at, self._sweep_at)
        return at

    async def _exchange(self, now: float) -> None:
        if self.lost:
            await self._beat(now)
            return
        sweep = now >= self._sweep_at
        asked: list[Asked] = []
        looked_at = self.now()
        for lease in self.leases:
            seq = self._next_seq()
            if not lease.lost:
                asked += lease.calls(self.prefix, self.node, seq, now, sweep)
            elif now >= lease.retry_at:
                want = lease.probe()
                asked.append((lease, want, lease.call(self.prefix, self.node, seq, want)))
        if sweep:  # less often where there is much to look at
            self._sweep_at = now + max(SWEEP, 20 * (self.now() - looked_at))
        if now >= self._beat_at + BEAT:
            await self._beat(now, asked[:MOST_CALLS])
            asked = asked[MOST_CALLS:]
        for start in range(0, len(asked), MOST_CALLS):
            await self._ask(asked[start : start + MOST_CALLS])

    async def _beat(self, now: float, asked: Sequence[Asked] = ()) -> None:
        """Say that this process lives, beside what is asked anyway."""
        self._beat_at = now
        beat = Call(self._nodes, f"{self.prefix}:{{nodes}}", (self.node, str(ALIVE_FOR)))
        answer = (await self._ask(asked, beat))[-1]
        if isinstance(answer, Fault):
            raise answer
        if len(answer) != 3 or not (answer[1].isdigit() and answer[2].isdigit()):
            raise Fault(f"a reply that is not ours: {answer!r:.200}")
        self.live = max(1, int(answer[1]))
        self.rank = min(int(answer[2]), self.live - 1)

    async def _ask(self, asked: Sequence[Asked], *more: Call) -> list[list[str] | Fault]:
        sent_at = self.now()
        try:
            calls = [*(call for _, _, call in asked), *more]
            answers = await self._link.run(calls, self._suspend)
        except Fault:
            for lease, want, _ in asked:
                lease.unsent(want)
            raise
        now = self.now()
        pace = PACE * max(1.0, self.live / 10)
        for (lease, want, _), answer in zip(asked, answers, strict=False):
            try:
                if isinstance(answer, Fault):
                    raise answer
                if lease.lost:
                    if not lease.suspended:
                        log.warning("ledger: %s is back", lease.name)
                    lease.regain()
                lease.answer(want, answer, sent_at, now, pace)
            except Fault as fault:
                lease.unsent(want)
                self._lose_one(lease, fault, want.key)
        return answers

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq

    # Loss and return

    def _lose_one(self, lease: Lease, fault: Fault, key: Any) -> None:
        lease.note_fault(fault, key)
        lease.retry_at = self.now() + RETRY
        if not lease.lost:
            log.warning("ledger: %s goes on %s: %s", lease.name, lease.on_loss, fault)
            lease.lose(self.live, self.rank, self.now())

    def _suspend(self) -> None:
        """It takes long: who would rather go on alone than wait does so at once."""
        for lease in self.leases:
            if lease.on_loss != "closed" and not lease.lost:
                lease.suspended = True
                lease.lose(self.live, self.rank, self.now())

    def _lose(self, why: str) -> None:
        self.fault = why
        for lease in self.leases:
            lease.note_fault(Fault(why))
        if self.lost:
            return
        self.lost = True
        self.losses += 1
        self._lost_at = self.now()
        log.warning("ledger: lost (%s); every limit goes on by its own policy", why)
        for lease in self.leases:
            try:
                lease.lose(self.live, self.rank, self._lost_at)
            except FairleadError:
                log.exception("ledger: the gate of %s failed", lease.name)

    def _found(self) -> None:
        for lease in self.leases:
            if lease.suspended:
                lease.regain()
        if not self.lost:
            return
        self.lost = False
        self.lost_for += self.now() - self._lost_at
        log.warning("ledger: back after %.1f s", self.now() - self._lost_at)
        for lease in self.leases:
            if lease.lost:
                lease.regain()
        self._woken.set()

    def _tell(self, answered: bool) -> None:
        """Tell those who wait for a round that began after they came."""
        rounds = self._rounds if self._task is not None else inf
        for needed, future in self._answered:
            if needed <= rounds and not future.done():
                future.set_result(answered)
        self._answered = [(n, future) for n, future in self._answered if not future.done()]
