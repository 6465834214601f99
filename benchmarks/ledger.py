"""Decisions per second on a quota that processes share through Redis or Valkey, beside `limits.aio` on the same server.

    python -m benchmarks.ledger [URL]

Both sides decide one after the other on one event loop, on a quota that is large enough never to refuse; ours lets the
loop turn every hundred decisions, since it never waits by itself.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import ExitStack

from fairlead.capacities import LeasedTokens
from fairlead.core import Gate, State, Ticket
from fairlead.ledger.ledger import Ledger
from fairlead.policies import FIFO, FairQueue
from fairlead.runtime import LoopGate

SECONDS = 2.0
PLENTY = 1e9


class Asker(Ticket):
    """A ticket that sets a future."""

    waiter: asyncio.Future[None] | None = None

    def told(self) -> None:
        """Wake its caller."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


async def ours(url: str, policy: FIFO | FairQueue) -> tuple[float, float]:
    """Tell decisions per second through a gate, and round trips per second."""
    capacity = LeasedTokens(PLENTY)
    runtime = LoopGate(Gate(policy, capacity))
    runtime.enter("bench")
    ledger = Ledger(url)
    ledger.quota(f"bench {time.time()}", capacity, PLENTY, PLENTY, adjust=runtime.adjust)
    await ledger.start()
    decisions = 0
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < SECONDS:
        for _ in range(100):
            ticket = Asker(workload="a")
            runtime.offer(ticket)
            if ticket.state is State.WAITING:
                ticket.waiter = runtime.entered.create_future()
                await ticket.waiter
            runtime.finish(ticket)
        decisions += 100
        await asyncio.sleep(0)
    trips = ledger.describe()["round_trips"]
    await ledger.stop()
    return decisions / elapsed, trips / elapsed


async def theirs(url: str) -> float:
    """Tell decisions per second of `limits`, with the strategy nearest to a bucket, sixteen callers at once."""
    from limits import RateLimitItemPerSecond
    from limits.aio.storage import RedisStorage
    from limits.aio.strategies import SlidingWindowCounterRateLimiter

    address = (
        url.replace("unix://", "async+redis+unix://") if url.startswith("unix") else f"async+{url}"
    )
    storage = RedisStorage(address, implementation="redispy")
    limiter = SlidingWindowCounterRateLimiter(storage)
    item = RateLimitItemPerSecond(int(PLENTY))
    decisions = 0
    started = time.perf_counter()

    async def caller() -> None:
        nonlocal decisions
        while time.perf_counter() - started < SECONDS:
            assert await limiter.hit(item, "bench")
            decisions += 1

    await asyncio.gather(*(caller() for _ in range(16)))
    return decisions / (time.perf_counter() - started)


def main() -> None:
    with ExitStack() as stack:
        if len(sys.argv) > 1:
            url = sys.argv[1]
        else:
            from tests.engines import valkey

            url = stack.enter_context(valkey()).url
        rate = 0.0
        for name, policy in (("FIFO", FIFO()), ("fair queue", FairQueue("workload"))):
            rate, trips = asyncio.run(ours(url, policy))
            print(f"fairlead, {name:10} {rate:10,.0f} decisions/s, {trips:.0f} round trips/s")
        other = asyncio.run(theirs(url))
        print(f"limits.aio           {other:10,.0f} decisions/s; ratio {rate / other:.1f}")


if __name__ == "__main__":
    main()
