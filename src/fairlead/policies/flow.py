"""The sharers of a fair queue, and the reading of what its settings say."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from fairlead.core.checks import is_number, read_by
from fairlead.core.policy import Policy
from fairlead.errors import ConfigError
from fairlead.policies.aging import Aging
from fairlead.policies.fifo import FIFO

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from fairlead.core.ticket import QueueLimit, Ticket

    Inside = Callable[[Hashable], Policy]

FRESH = -(1 << 62)  # among equal tags those never served come first, in order of joining
MOST_SPARE = 64  # empty queues kept for flows to come


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
        self.waits: dict[Hashable, None] = {}  # scopes that part of its queue is parked under
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

    def of(self, key: Hashable) -> float:
        """Tell a key's weight."""
        if self._ask is not None and key not in self._given:
            weight = self._ask(key)
            return weight if 0.0 < weight < inf else checked_weight(key, weight)
        return self._given.get(key, self.default)

    def set(self, key: Hashable, weight: float) -> float:
        """Change one."""
        self._given[key] = weight = checked_weight(key, weight)
        return weight

    def replace(self, weights: Mapping[Hashable, float]) -> None:
        """Change all; none if one of them cannot be."""
        if not isinstance(weights, Mapping):
            raise ConfigError(
                f'weights= needs weights by key, such as {{"acme": 3}}; got {weights!r}'
            )
        self._given = {key: checked_weight(key, weight) for key, weight in weights.items()}


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
        self.nests = not plain
        self._flows: dict[Hashable, Flow] = {}
        self._fresh = FRESH
        self._timed: dict[Flow, float] = {}  # when to ask, though no scope has opened
        self._spare: list[Policy] = []
        self._spares = MOST_SPARE if plain else 0

    def _flow(self, key: Hashable) -> Flow:
        flow = self._flows.get(key)
        if flow is None:
            self._fresh += 1
            weight = self._weights.of(key)
            queue = self._spare.pop() if self._spare else self._inside(key)
            flow = self._flows[key] = Flow(key, self._fresh, queue, weight)
            if self.nests:  # else there is nothing of the kind inside
                if queue.timed:
                    self._timed[flow] = inf
                    self.timed = True
                if queue.rouses:
                    queue.rouse = partial(self._rouse, flow)
        return flow

    def _part_with(self, flow: Flow) -> None:
        """Drop an empty flow; one that comes may have its queue."""
        del self._flows[flow.key]
        if self._timed:
            self._timed.pop(flow, None)
        if len(self._spare) < self._spares:
            self._spare.append(flow.queue)
            flow.queue = GONE

    def _rouse(self, flow: Flow) -> None:
        """The flow's queue has something to offer, though no scope has opened."""
        raise NotImplementedError

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


GONE = FIFO()  # always empty: the queue of a flow that was dropped
