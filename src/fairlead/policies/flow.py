"""The sharers of a fair queue, and the reading of what its settings say."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from heapq import heappop, heappush
from itertools import islice
from math import inf
from typing import TYPE_CHECKING

from fairlead.core.capacity import STOP
from fairlead.core.checks import is_number, read_by
from fairlead.core.policy import Policy
from fairlead.errors import ConfigError
from fairlead.policies.aging import Aging
from fairlead.policies.fifo import FIFO

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from fairlead.core.policy import Admit
    from fairlead.core.ticket import QueueLimit, Ticket

    Inside = Callable[[Hashable], Policy]

FRESH = -(1 << 62)  # among equal tags those never served come first, in order of joining
FEW = 100  # plain flows; so many idle ones are kept for when they come back, and so many dropped ones for others


class Flow:
    """One sharer: its own queue, its weight and its start tag."""

    __slots__ = ("counted", "entry", "key", "number", "queue", "start", "waits", "weight", "woken")

    def __init__(self, key: Hashable, number: int, queue: Policy, weight: float) -> None:
        self.key = key
        self.number = number
        self.queue = queue
        self.weight = weight
        self.start = 0.0
        # Its one valid entry among the competing: it has something to offer, as far as is known.
        self.entry: tuple[float, int, Flow] | None = None
        self.counted = False  # its weight is part of the clock's
        # Scopes that part of its queue is parked under, each with its valid entry among those who wait for it.
        self.waits: dict[Hashable, tuple[float, int, Flow]] = {}
        self.woken: list[Hashable] = []  # scopes whose wake it was given and has not passed on


def checked_weight(key: Hashable, weight: float) -> float:
    """Read a weight."""
    if not (is_number(weight) and 0 < weight < inf):
        raise ConfigError(f"the weight of {key!r} must be a finite number above 0; got {weight!r}")
    return float(weight)


class Weights:
    """The weight of each key: given one by one, or by a function asked when a key appears."""

    def __init__(
        self,
        given: Mapping[Hashable, float] | Callable[[Hashable], float] | None,
        default: float,
    ) -> None:
        self.default = checked_weight("default_weight", default)
        self._ask = given if callable(given) else None
        self._given: dict[Hashable, float] = {}
        if given is not None and not callable(given):
            self.replace(given)
        self.changed = False  # since they were made

    def of(self, key: Hashable) -> float:
        """Tell a key's weight."""
        if self._ask is not None and key not in self._given:
            weight = self._ask(key)
            return weight if 0.0 < weight < inf else checked_weight(key, weight)
        return self._given.get(key, self.default)

    @property
    def given(self) -> Mapping[Hashable, float]:
        """The weights that were given one by one."""
        return self._given

    def set(self, key: Hashable, weight: float) -> float:
        """Change one."""
        self.changed = True
        self._given[key] = weight = checked_weight(key, weight)
        return weight

    def replace(self, weights: Mapping[Hashable, float]) -> None:
        """Change all; none if one of them cannot be."""
        if not isinstance(weights, Mapping):
            raise ConfigError(
                f'weights= needs weights by key, such as {{"acme": 3}}; got {weights!r}'
            )
        self._given = {key: checked_weight(key, weight) for key, weight in weights.items()}
        self.changed = True


def queue_factory(inside: Inside | type[Policy]) -> Inside:
    """Read what makes the queue of each flow: a class, or a function of the flow's key."""
    if isinstance(inside, type):
        policy = inside
        return lambda key: policy()
    if not callable(inside):
        raise ConfigError(
            f"inside= needs a class or a function, one queue per flow; got {inside!r}"
        )
    return inside


class Sharers(Policy):
    """A queue for each value of a ticket's; the order among them is another's."""

    nests = True

    def __init__(
        self,
        by: str | Callable[[Ticket], Hashable],
        weights: Mapping[Hashable, float] | Callable[[Hashable], float] | None,
        default_weight: float,
        inside: Inside | type[Policy],
    ) -> None:
        self._key = read_by(by)
        self._weights = Weights(weights, default_weight)
        self._inside = queue_factory(inside)
        plain = inside in (FIFO, Aging)
        # Where nothing inside ever withholds, nobody need be asked while nobody waits.
        self.withholds = not plain and getattr(inside, "withholds", True)
        self.steady = inside is FIFO or getattr(inside, "steady", False)
        self.nests = not plain and getattr(inside, "limited", True)
        self._flows: dict[Hashable, Flow] = {}
        self._fresh = FRESH
        self._timed: dict[Flow, float] = {}  # when to ask, though no scope has opened
        self._spare: list[Flow] = []
        self._alike = plain or getattr(inside, "alike", False)
        self._few = FEW if plain else 0  # so many are not dropped when they are idle
        # Flows by the scope that part of their queue is parked under, those first that were first in line.
        self._groups: dict[Hashable, list[tuple[float, int, Flow]]] = {}
        # What the pick under way was told.
        self._admit: Admit | None = None
        self._refused: list[Hashable] = []
        self._stopped = False

    def _flow(self, key: Hashable) -> Flow:
        flow = self._flows.get(key)
        if flow is None:
            return self._new_flow(key)
        if self._few and self._is_void(flow):
            self._renew(flow)
        return flow

    def _is_void(self, flow: Flow) -> bool:
        """Say whether a flow is idle, and would start no later as a new one."""
        raise NotImplementedError

    def _renew(self, flow: Flow) -> None:
        """Let a flow that was kept begin as a new one."""
        flow.weight = self._weights.of(flow.key)
        self._fresh = flow.number = self._fresh + 1

    def _new_flow(self, key: Hashable) -> Flow:
        weight = self._weights.of(key)
        self._fresh = number = self._fresh + 1
        if self._spare:
            flow = self._spare.pop()
            flow.key, flow.number, flow.weight, flow.start = key, number, weight, 0.0
            flow.counted = False
        else:
            flow = Flow(key, number, self._inside(key), weight)
        self._flows[key] = flow
        if not self._few:  # plain queues are nothing of the kind
            queue = flow.queue
            if queue.timed:
                self._timed[flow] = inf
                self.timed = True
            if queue.rouses:
                queue.rouse = partial(self._rouse, flow)
        return flow

    def _part_with(self, flow: Flow) -> None:
        """Drop an empty flow; one that comes may have its place."""
        del self._flows[flow.key]
        if self._timed:
            self._timed.pop(flow, None)
        if self._alike and len(self._spare) < FEW and (self._few or flow.queue.renew()):
            self._spare.append(flow)

    def _drop_all(self) -> None:
        """Drop all flows; nobody waits in any."""
        if self._few:
            self._spare += islice(self._flows.values(), FEW - len(self._spare))
        self._flows.clear()
        self._timed.clear()

    def _join(self, flow: Flow, cost: float) -> None:
        """The flow has something to offer."""
        raise NotImplementedError

    def _rouse(self, flow: Flow) -> None:
        """Its queue has, though no scope has opened."""
        raise NotImplementedError

    def _ask(self, ticket: Ticket) -> Hashable | None:
        refusal = self._admit(ticket)  # type: ignore[misc]
        if refusal is STOP:
            self._stopped = True
        elif refusal is not None:
            self._refused.append(refusal)
        return refusal

    def _note_refusals(self, flow: Flow, now: float) -> None:
        refused = self._refused
        for scope in refused:
            if scope not in flow.waits:
                flow.waits[scope] = entry = (flow.start, flow.number, flow)
                heappush(self._groups.setdefault(scope, []), entry)
        woken, flow.woken = flow.woken, []
        for scope in woken:
            if scope in refused:
                continue
            if self._stopped:  # nobody was asked after all: the wake stays with the flow it was for
                flow.woken.append(scope)
            else:
                self.open(scope, now)
        refused.clear()

    def open(self, scope: Hashable, now: float) -> None:
        group = self._groups.get(scope, [])
        while group:
            entry = heappop(group)
            flow = entry[2]
            if flow.waits.get(scope) is entry:  # else it has waited no more since
                del flow.waits[scope]
                flow.woken.append(scope)
                flow.queue.open(scope, now)
                if flow.entry is None:
                    head = flow.queue.head(now)
                    self._join(flow, 0 if head is None else head.cost)
                break
        if not group:
            self._groups.pop(scope, None)

    def _wait_no_more(self, flow: Flow, now: float) -> None:
        for scope in flow.waits:
            flow.queue.open(scope, now)
        flow.waits.clear()

    def skips(self, ticket: Ticket) -> bool:
        return not self.withholds or self._flow(self._key(ticket)).queue.skips(ticket)

    def wakes_at(self, now: float) -> float:
        return min((flow.queue.wakes_at(now) for flow in self._timed), default=inf)

    def overflow(self, ticket: Ticket) -> QueueLimit | None:
        return super().overflow(ticket) or self._flows[self._key(ticket)].queue.overflow(ticket)

    def part(self, name: str) -> Policy | None:
        if name == self.name:
            return self
        parts = (flow.queue.part(name) for flow in self._flows.values())
        return next((part for part in parts if part is not None), None)

    def __iter__(self) -> Iterator[Ticket]:
        for flow in self._flows.values():
            yield from flow.queue
