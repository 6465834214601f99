"""A process's end of a shared limit, as small as can be: a gate, a ledger, and callers that wait."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import inf
from typing import Any

from fairlead.capacities import LeasedSlots, LeasedTokens
from fairlead.core import Capacity, Gate, Policy, State, Ticket
from fairlead.ledger.ledger import Ledger
from fairlead.policies import FairQueue
from fairlead.runtime import LoopGate


class Asker(Ticket):
    """A ticket that sets a future."""

    waiter: asyncio.Future[None] | None = None

    def told(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


def flow_of(ticket: Ticket) -> tuple[Any, float, Any]:
    """The workload is (name, weight), as in the door."""
    weight = ticket.workload[1] if isinstance(ticket.workload, tuple) else 1.0
    return ticket.workload, weight, ticket.tenant


def weight_of(workload: Any) -> float:
    return workload[1] if isinstance(workload, tuple) else 1.0


class Node:
    """One process: one gate on one limit."""

    def __init__(self, capacity: Capacity, policy: Policy | None = None) -> None:
        self.capacity = capacity
        self.policy = policy or FairQueue("workload", weights=weight_of)
        self.runtime = LoopGate(Gate(self.policy, capacity))
        self.runtime.enter("node")
        self.admitted = 0.0
        self.by_workload: dict[Any, float] = {}

    async def ask(self, timeout: float = inf, cost: float = 1, **fields: Any) -> Asker | None:
        """Wait for a turn; None if it did not come in time."""
        now = self.runtime.clock()
        ticket = Asker(cost=cost, wait_until=now + timeout, **fields)
        self.runtime.offer(ticket)
        if ticket.state is State.WAITING:
            ticket.waiter = self.runtime.entered.create_future()
            await ticket.waiter
        if ticket.state is not State.RUNNING:
            return None
        self.admitted += cost
        self.by_workload[ticket.workload] = self.by_workload.get(ticket.workload, 0) + cost
        return ticket

    async def use(self, timeout: float = inf, cost: float = 1, **fields: Any) -> bool:
        """Have a turn that is over at once."""
        ticket = await self.ask(timeout, cost, **fields)
        if ticket is not None:
            self.runtime.finish(ticket)
        return ticket is not None

    async def press(self, callers: int, until: float, timeout: float = inf, **fields: Any) -> None:
        """Have many callers ask again and again."""

        async def one() -> None:
            while self.runtime.clock() < until:
                await self.use(min(timeout, max(0.0, until - self.runtime.clock())), **fields)
                await asyncio.sleep(0)

        await asyncio.gather(*(one() for _ in range(callers)))


@asynccontextmanager
async def quota_node(
    url: str, name: str, capacity: float, fill: float, interval: float = 1.0, **settings: Any
) -> AsyncIterator[tuple[Node, Ledger]]:
    """A process with a quota."""
    by: Callable[[Ticket], Any] | None = settings.pop("by", None)
    node = Node(LeasedTokens(capacity, by=by, flow=flow_of))
    ledger = Ledger(url)
    lease = ledger.quota(
        name,
        node.capacity,  # type: ignore[arg-type]
        capacity,
        fill,
        interval,
        adjust=node.runtime.adjust,
        **settings,
    )
    node.lease = lease  # type: ignore[attr-defined]
    await ledger.start()
    try:
        yield node, ledger
    finally:
        await ledger.stop()


@asynccontextmanager
async def slots_node(
    url: str, name: str, limit: float, longest: float = 60.0, **settings: Any
) -> AsyncIterator[tuple[Node, Ledger]]:
    """A process with a limit of what is in flight."""
    node = Node(LeasedSlots(limit, flow=flow_of, expire_after=longest))
    ledger = Ledger(url)
    ledger.concurrency(
        name,
        node.capacity,  # type: ignore[arg-type]
        limit,
        longest,
        adjust=node.runtime.adjust,
        **settings,
    )
    await ledger.start()
    try:
        yield node, ledger
    finally:
        await ledger.stop()


async def until(condition: Callable[[], bool], within: float = 5.0) -> float:
    """Wait for something outside this process; tell how long it took."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > within:
            raise AssertionError(f"it did not happen within {within} s")
        await asyncio.sleep(0.005)
    return time.monotonic() - started
