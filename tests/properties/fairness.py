"""What fairness is measured with: random mixes, one server on virtual time, two watchers and a fluid reference.

Nothing here looks inside a policy.  A cost is the time its work takes, so that time is work and bounds are exact.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from dataclasses import dataclass, field
from math import inf
from typing import Any

from fairlead.capacities import Slots
from fairlead.core import Change, Gate, Policy, State, Ticket

EXACT = 1 + 1e-9  # tags are floats; nothing else is forgiven


@dataclass(frozen=True)
class Arrival:
    at: float
    flow: Any
    cost: float
    gives_up_at: float = inf


@dataclass
class Mix:
    """Arrivals in order of time, weights, and changes of weights `(at, flow, weight)`."""

    weights: dict[Any, float]
    arrivals: list[Arrival]
    changes: list[tuple[float, Any, float]] = field(default_factory=list)

    def largest(self, flow: Any) -> float:
        return max((one.cost for one in self.arrivals if one.flow == flow), default=0.0)


def random_mix(seed: int, *, flows: int, bursts: int, changing: bool = False) -> Mix:
    """Mix backlogged, on/off and one-shot flows, late joiners and cancellations; weights 1-1000, sizes 1-10⁴."""
    rng = random.Random(seed)
    weights = {
        flow: float(rng.choice((1, 1, 2, 3, 10, rng.randint(1, 1000)))) for flow in range(flows)
    }
    sizes = {flow: rng.choice((1, 1, 10, 100, rng.randint(1, 10_000))) for flow in range(flows)}
    kinds = {flow: rng.choice(("backlogged", "on/off", "one-shot")) for flow in range(flows)}
    patience = rng.choice((inf, inf, 2.0, 10.0))
    scale = sum(sizes.values()) / flows
    arrivals: list[Arrival] = []
    one_shot = flows  # one-shot flows never come back: each burst is a flow of its own
    at = 0.0
    for _ in range(bursts):
        at += rng.choice((0.0, 0.0, 0.3, 1.0, 1.0, 3.0)) * scale * rng.random()
        flow = kind = rng.randrange(flows)
        count = rng.randint(1, 5) if kinds[kind] == "backlogged" else rng.choice((1, 1, 4))
        if kinds[kind] == "one-shot":
            flow, one_shot, count = one_shot, one_shot + 1, 1
            weights[flow] = weights[kind]
        for _ in range(count):
            cost = float(rng.choice((sizes[kind], rng.randint(1, sizes[kind]))))
            gives_up_at = at + patience * scale * rng.random() if rng.random() < 0.2 else inf
            arrivals.append(Arrival(at, flow, cost, gives_up_at))
    changes = [
        (at * rng.random(), rng.randrange(flows), float(rng.randint(1, 1000)))
        for _ in range(rng.randint(1, 6) if changing else 0)
    ]
    return Mix(weights, arrivals, sorted(changes))


class Watch:
    """Told of everything a server does; subclasses say what they looked for in `worst`."""

    worst = 0.0

    def weigh(self, flow: Any, weight: float, now: float) -> None:
        """A flow has this weight from now on."""

    def join(self, flow: Any, cost: float, now: float) -> None:
        """A request is about to wait."""

    def start(self, flow: Any, cost: float, now: float, *, waited: bool) -> None:
        """A request starts."""

    def leave(self, flow: Any, now: float) -> None:
        """A waiting request has started or was withdrawn."""


def serve(policy: Policy, mix: Mix, *watches: Watch) -> list[tuple[float, float]]:
    """Run a mix through a gate with one slot; tell when each arrival started and finished (inf: withdrawn)."""
    gate = Gate(policy, Slots(1))
    tickets = [
        Ticket(number, cost=one.cost, tenant=one.flow) for number, one in enumerate(mix.arrivals)
    ]
    events: list[tuple[float, int, int, int]] = []
    events += [(one.at, 1, number, 0) for number, one in enumerate(mix.arrivals)]
    events += [
        (one.gives_up_at, 2, number, 0)
        for number, one in enumerate(mix.arrivals)
        if one.gives_up_at < inf
    ]
    events += [(at, 0, number, 0) for number, (at, _, _) in enumerate(mix.changes)]
    queue = deque(sorted(events))
    finished: dict[Any, float] = {}
    free_at = inf
    for flow, weight in mix.weights.items():
        for watch in watches:
            watch.weigh(flow, weight, 0.0)

    def started(ticket: Ticket, now: float, *, waited: bool) -> float:
        finished[ticket.key] = now + ticket.cost
        for watch in watches:
            watch.start(ticket.tenant, ticket.cost, now, waited=waited)
            if waited:
                watch.leave(ticket.tenant, now)
        return now + ticket.cost

    while queue or free_at < inf:
        if free_at <= (queue[0][0] if queue else inf):
            now, free_at = free_at, inf
            for ticket in gate.finish(next(iter(gate.holders)), now):
                free_at = started(ticket, now, waited=True)
            continue
        now, kind, number, _ = queue.popleft()
        if kind == 0:
            _, flow, weight = mix.changes[number]
            gate.adjust(Change("fair", "set_weight", (flow, weight)), now)
            for watch in watches:
                watch.weigh(flow, weight, now)
        elif kind == 1:
            ticket = tickets[number]
            if gate.holders:
                for watch in watches:
                    watch.join(ticket.tenant, ticket.cost, now)
            gate.offer(ticket, now)
            if ticket.state is State.RUNNING:
                free_at = started(ticket, now, waited=False)
        elif tickets[number].state is State.WAITING:
            gate.withdraw([tickets[number]], now)
            for watch in watches:
                watch.leave(tickets[number].tenant, now)
    return [(ticket.started_at, finished.get(ticket.key, inf)) for ticket in tickets]


class Backlogs(Watch):
    """Which flows have something waiting, the largest request each has asked for, and its weight."""

    def __init__(self) -> None:
        self.weights: dict[Any, float] = {}
        self.largest: dict[Any, float] = defaultdict(float)
        self.waiting: dict[Any, int] = {}

    def weigh(self, flow: Any, weight: float, now: float) -> None:
        self.weights[flow] = weight

    def join(self, flow: Any, cost: float, now: float) -> None:
        self.largest[flow] = max(self.largest[flow], cost)
        if flow not in self.waiting:
            self.waiting[flow] = 0
            self.backlogged(flow, cost, now)
        self.waiting[flow] += 1

    def start(self, flow: Any, cost: float, now: float, *, waited: bool) -> None:
        self.largest[flow] = max(self.largest[flow], cost)

    def leave(self, flow: Any, now: float) -> None:
        self.waiting[flow] -= 1
        if not self.waiting[flow]:
            del self.waiting[flow]
            self.idle(flow)

    def backlogged(self, flow: Any, cost: float, now: float) -> None:
        raise NotImplementedError

    def idle(self, flow: Any) -> None:
        raise NotImplementedError


class Pairs(Backlogs):
    """|W₁/w₁ − W₂/w₂| / (L₁/w₁ + L₂/w₂), the worst over every interval in which two flows are backlogged.

    The largest difference over all intervals inside one is the range of the running difference.
    """

    def __init__(self) -> None:
        super().__init__()
        self._served: dict[Any, float] = defaultdict(float)  # W/w
        self._ranges: dict[tuple[Any, Any], tuple[float, float]] = {}

    def _difference(self, pair: tuple[Any, Any]) -> float:
        return self._served[pair[0]] - self._served[pair[1]]

    def weigh(self, flow: Any, weight: float, now: float) -> None:
        super().weigh(flow, weight, now)
        if flow in self.waiting:
            self.idle(flow)
            self.backlogged(flow, 0.0, now)

    def backlogged(self, flow: Any, cost: float, now: float) -> None:
        for other in self.waiting:
            if other != flow:
                pair = (min(flow, other), max(flow, other))
                self._ranges[pair] = (self._difference(pair),) * 2

    def idle(self, flow: Any) -> None:
        for pair in [pair for pair in self._ranges if flow in pair]:
            del self._ranges[pair]

    def start(self, flow: Any, cost: float, now: float, *, waited: bool) -> None:
        super().start(flow, cost, now, waited=waited)
        self._served[flow] += cost / self.weights[flow]
        for other in self.waiting:
            if other == flow or not waited:
                continue
            pair = (min(flow, other), max(flow, other))
            low, high = self._ranges[pair]
            difference = self._difference(pair)
            low, high = self._ranges[pair] = (min(low, difference), max(high, difference))
            bound = sum(self.largest[one] / self.weights[one] for one in pair)
            self.worst = max(self.worst, (high - low) / bound)


class Lags(Backlogs):
    """What another flow j got while a request waited, against  wⱼ(x + c₀)/w + Lⱼ  (the derivation is in fair.py)."""

    def __init__(self) -> None:
        super().__init__()
        self._done: dict[Any, float] = defaultdict(float)
        self._last: dict[Any, float] = defaultdict(float)
        self._running: tuple[Any, float] = (0, 0.0)  # flow, and when it ends
        self._joined: dict[Any, tuple[float, dict[Any, float]]] = {}
        self.closest = 0.0  # the sum over all others, against the sum of the bounds

    def weigh(self, flow: Any, weight: float, now: float) -> None:
        super().weigh(flow, weight, now)
        self._joined.clear()  # tags of two weights: measured again from the next joins on

    def backlogged(self, flow: Any, cost: float, now: float) -> None:
        before = dict(self._done)
        running, ends_at = self._running
        before[running] = before.get(running, 0.0) - max(0.0, ends_at - now)
        self._joined[flow] = max(cost, self._last[flow]), before

    def idle(self, flow: Any) -> None:
        if flow in self._joined:
            self._last[flow] = max(self._last[flow], self._joined.pop(flow)[0])

    def start(self, flow: Any, cost: float, now: float, *, waited: bool) -> None:
        super().start(flow, cost, now, waited=waited)
        if flow in self._joined:
            first, before = self._joined[flow]
            own = self._done[flow] - before.get(flow, 0.0)
            got_in_all = bound_in_all = 0.0
            for other, done in self._done.items():
                got = done - before.get(other, 0.0)
                if other == flow or not got:
                    continue
                bound = (
                    self.weights[other] * (own + first) / self.weights[flow] + self.largest[other]
                )
                self.worst = max(self.worst, got / bound)
                got_in_all += got
                bound_in_all += bound
            if bound_in_all:
                self.closest = max(self.closest, got_in_all / bound_in_all)
        self._done[flow] += cost
        self._last[flow] = cost
        self._running = (flow, now + cost)


def fluid_finishes(mix: Mix) -> list[float]:
    """When each request would finish if the server were shared continuously, by weight (GPS)."""
    finishes = [inf] * len(mix.arrivals)
    backlog: dict[Any, deque[list[float]]] = {}
    now, coming = 0.0, 0
    while coming < len(mix.arrivals) or backlog:
        if not backlog:
            now = max(now, mix.arrivals[coming].at)
        while coming < len(mix.arrivals) and mix.arrivals[coming].at <= now:
            one = mix.arrivals[coming]
            backlog.setdefault(one.flow, deque()).append([one.cost, coming])
            coming += 1
        total = sum(mix.weights[flow] for flow in backlog)
        step = min(line[0][0] * total / mix.weights[flow] for flow, line in backlog.items())
        if coming < len(mix.arrivals):
            step = min(step, mix.arrivals[coming].at - now)
        now += step
        for flow, line in list(backlog.items()):
            line[0][0] -= step * mix.weights[flow] / total
            if line[0][0] <= 1e-9 * max(1.0, now):
                finishes[int(line.popleft()[1])] = now
                if not line:
                    del backlog[flow]
    return finishes
