"""One sharer of a fair queue, and the reading of what its settings say."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from fairlead.core.policy import Policy
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    Inside = Callable[[Hashable], Policy]

FRESH = -(1 << 62)  # among equal tags those never served come first, in order of joining


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
    if not (isfinite(weight) and weight > 0):
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
            return checked_weight(key, self._ask(key))
        return self._given.get(key, self.default)

    def set(self, key: Hashable, weight: float) -> float:
        """Change one."""
        self._given[key] = weight = checked_weight(key, weight)
        return weight

    def replace(self, weights: Mapping[Hashable, float]) -> None:
        """Change all; none if one of them cannot be."""
        self._given = {key: checked_weight(key, weight) for key, weight in weights.items()}


def queue_factory(inside: Inside | type[Policy]) -> Inside:
    """Read what makes the queue of each flow: a class, or a function of the flow's key."""
    if isinstance(inside, type):
        policy = inside
        return lambda key: policy()
    if isinstance(inside, Policy):
        raise ConfigError(
            f"inside= needs a class or a function, one queue per flow; got {inside!r}"
        )
    return inside
