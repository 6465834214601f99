"""Clients with think and work times at a real gate, on virtual time; and the max-min fair shares they should get.

After Kubernetes' fair queueing tests: the expected result is computed, not written down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from fairlead.core import Capacity, Gate, Policy, State, Ticket


@dataclass(frozen=True)
class Client:
    """`threads` callers that each ask for a turn, work, and think; having waited, they think the less."""

    name: Hashable
    threads: int
    work: float
    think: float = 0.0
    rank: int = 0
    workload: Hashable = None
    from_: float = 0.0
    until: float = inf

    @property
    def demand(self) -> float:
        """The slots it would use on average if it never had to wait."""
        return self.threads * self.work / (self.work + self.think)


def run(
    policy: Policy, capacity: Capacity, clients: list[Client], *, until: float, since: float = 0.0
) -> dict[Hashable, float]:
    """Tell the slots each client held on average between `since` and `until`."""
    gate = Gate(policy, capacity)
    held: Counter[Hashable] = Counter()
    events: list[tuple[float, int, str, Client, Ticket | None]] = []
    count = 0

    def later(at: float, what: str, client: Client, ticket: Ticket | None = None) -> None:
        nonlocal count
        count += 1
        heappush(events, (at, count, what, client, ticket))

    def start(tickets: list[Ticket], now: float) -> None:
        for ticket in tickets:
            if ticket.state is State.RUNNING:
                later(now + ticket.work.work, "finish", ticket.work, ticket)
                held[ticket.work.name] += max(
                    0.0, min(until, now + ticket.work.work) - max(since, now)
                )

    for client in clients:
        for thread in range(client.threads):
            # Threads come one after another, so that nobody's work ends in step with the others' for ever.
            later(client.from_ + thread * client.work / client.threads, "ask", client)
    now = 0.0
    while events:
        wakeup = gate.next_wakeup(now)
        if wakeup < events[0][0]:
            now = wakeup
            start(list(gate.advance(now)), now)
            continue
        now, _, what, client, ticket = heappop(events)
        if now >= until:
            break
        if what == "ask" and now < client.until:
            ticket = Ticket(
                tenant=client.name, workload=client.workload, rank=client.rank, work=client
            )
            ticket.cost = client.work
            changed = list(gate.offer(ticket, now))
            start([ticket, *changed], now)
        elif ticket is not None:
            start(list(gate.finish(ticket, now)), now)
            later(max(now, ticket.arrived_at + client.work + client.think), "ask", client)
    return {client.name: held[client.name] / (until - since) for client in clients}


def max_min_shares(
    demands: Mapping[Hashable, float], weights: Mapping[Hashable, float], capacity: float
) -> dict[Hashable, float]:
    """Share a capacity by weight; nobody gets more than it asks for, and what it leaves the others share."""
    shares: dict[Hashable, float] = {}
    left = capacity
    for key in sorted(demands, key=lambda key: demands[key] / weights[key]):
        rest = sum(weights[other] for other in demands if other not in shares)
        shares[key] = min(demands[key], left * weights[key] / rest)
        left -= shares[key]
    return shares
