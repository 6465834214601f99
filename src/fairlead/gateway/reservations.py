"""Do the reservations fit?  The arithmetic of `fairlead.capacities.Reserved`, asked before anything runs.

Those that do not fit into what is declared are scaled into it; `fallback` and `strict` refuse them instead.

    desired[c](n) = min(n, max(floor[c], ⌈share[c] · n⌉))        shares are decimals: 0.07 of 100 is 7
    need(n)       = Σ desired[c](n)                              n slots are enough when need(n) ≤ n

need never falls as n grows, so whatever m ≥ n is enough has m ≥ need(m) ≥ need(n): from n that is not enough the search
may leap to need(n) and misses nothing.  (What is enough may stop being so: two shares of 0.5 fit into 2 slots, not 3.)
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from fairlead.capacities.reserved import scaled
from fairlead.config import shown
from fairlead.gateway.settings import CLASSES
from fairlead.gateway.values import MOST_SLOTS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from fairlead.gateway.settings import ClassName, ClassSettings, Settings, Upstream


class Declares(Protocol):
    """What may be declared to take so many calls at once."""

    @property
    def declared(self) -> int | None: ...


class Serves(Protocol):
    """What runs models; None stands for all of them."""

    @property
    def models(self) -> Collection[str] | None: ...


Member = TypeVar("Member", bound=Serves)

ONLY = ""  # the name of the pool, where there is but one


class Table:
    """The floors and shares of the classes, lowest class first.

    >>> from fairlead.gateway.settings import BUILT_IN
    >>> table = Table(BUILT_IN)
    >>> table.need(177), table.enough(1), table.fitting(100)
    (178, 178, (0, 7, 70, 22))
    """

    def __init__(self, classes: Mapping[ClassName, ClassSettings]) -> None:
        self.floors = tuple(classes[name].reserved_floor for name in CLASSES)
        self.shares = tuple(classes[name].reserved_per_slot for name in CLASSES)
        self._parts = tuple(Fraction(str(share)) for share in self.shares)

    def desired(self, capacity: int) -> tuple[int, ...]:
        """What each class would have reserved, were there room for all of them."""
        return tuple(
            min(capacity, max(floor, -(-part.numerator * capacity // part.denominator)))
            for floor, part in zip(self.floors, self._parts, strict=True)
        )

    def need(self, capacity: int) -> int:
        """How many slots the reservations take; they fit if that is no more than the capacity."""
        return sum(self.desired(capacity))

    def fitting(self, capacity: int) -> tuple[int, ...]:
        """Return what each class gets of so many declared slots: all that it asks for, or its part in proportion."""
        return scaled(self.desired(capacity), capacity)

    def enough(self, least: int) -> int | None:
        """The smallest capacity, `least` or more, into which the reservations fit; None if there is none."""
        capacity = max(1, least)
        while capacity <= MOST_SLOTS:
            if (need := self.need(capacity)) <= capacity:
                return capacity
            capacity = need
        return None


class Pool(NamedTuple):
    """Slots that are counted together, and what they are called in a message."""

    name: str
    capacity: int | None  # None: known at run time only


def pools(settings: Settings) -> list[Pool]:
    """The pools whose capacity a configuration states, or leaves to run time."""
    if settings.capacity is not None and not (settings.pool_by and settings.upstreams):
        least = declared(settings.upstreams) if settings.upstreams else None
        if least is None or settings.capacity <= least:
            return [Pool("the capacity", settings.capacity)]
    if not settings.upstreams:
        return []
    if settings.pool_by is None:
        return [_pool("the capacity of the upstreams", settings.upstreams)]
    found = []
    for members in connected(settings.upstreams):
        models = models_of(members)
        named = [shown(model) for model in models[:3]] + ["..."] * (len(models) > 3)
        name = f"models {', '.join(named)}" if models else "every model"
        found.append(_pool(f"the capacity of the pool for {name}", members))
    return found


def models_of(members: Sequence[Member]) -> list[str]:
    """Name the models of a pool."""
    return sorted({model for upstream in members for model in upstream.models or ()})


def pool_name(models: Sequence[str]) -> str:
    """Join models by commas; one that has a comma itself is written so that no list of others looks like it."""
    return ",".join(model.replace("\\", "\\\\").replace(",", "\\,") for model in models)


def gate_name(pool: str) -> str:
    """Name the gate of a pool, as users and other processes know it."""
    return pool or "default"


def connected(upstreams: Sequence[Member]) -> list[list[Member]]:
    """Group upstreams that share a model, directly or through others; one without models serves them all."""
    if any(upstream.models is None for upstream in upstreams):
        return [list(upstreams)]
    leader = list(range(len(upstreams)))  # of each upstream: another of its group, or itself

    def found(index: int) -> int:
        while leader[index] != index:
            leader[index] = index = leader[leader[index]]
        return index

    serving: dict[str, int] = {}
    for index, upstream in enumerate(upstreams):
        for model in upstream.models or ():
            leader[found(serving.setdefault(model, index))] = index
    groups: dict[int, list[Member]] = {}
    for index, upstream in enumerate(upstreams):
        groups.setdefault(found(index), []).append(upstream)
    return [groups[index] for index in sorted(groups)]


def _pool(name: str, members: Sequence[Upstream]) -> Pool:
    return Pool(name, declared(members))


def declared(members: Iterable[Declares]) -> int | None:
    """Add up what upstreams are declared to take; None if one of them says so at run time only."""
    numbers = [member.declared for member in members]
    known = [number for number in numbers if number is not None]
    return min(sum(known), MOST_SLOTS) if len(known) == len(numbers) else None


def refusals(settings: Settings) -> list[str]:
    """Return a refusal for each pool whose reservations do not fit, where they are not to be scaled."""
    if not (settings.strict or settings.priority_scheduler.reservations_exceed == "fallback"):
        return []
    return [
        f"{asked}; lower reserved_floor or reserved_per_slot{raised}; these would fit: {fitting}"
        for asked, raised, fitting in _exceeding(settings)
    ]


def shortages(settings: Settings) -> list[str]:
    """Return a warning for each pool whose reservations are scaled to fit."""
    return [
        f"{asked}; each is scaled down in proportion: {fitting}; "
        f"to have all of them, lower reserved_floor or reserved_per_slot{raised}"
        for asked, raised, fitting in _exceeding(settings)
    ]


def _exceeding(settings: Settings) -> Iterator[tuple[str, str, str]]:
    """Describe each pool whose reservations ask for more than it has: the numbers, the remedy, what fits."""
    if not settings.priority_scheduler.enabled:
        return
    table = Table(settings.priority_scheduler.classes)
    for name, capacity in pools(settings):
        if capacity is None or (need := table.need(capacity)) <= capacity:
            continue
        enough = table.enough(capacity)
        raised = f", or raise the capacity to {enough}" if enough else " (no capacity is enough)"
        asked = f"reservations need {need} slots but {name} is {capacity}"
        yield asked, raised, by_class(table.fitting(capacity))


def by_class(slots: Sequence[int]) -> str:
    """Write a number for each class, the highest first.

    >>> by_class((0, 4, 39, 19))
    'system 19, interactive 39, default 4, bulk 0'
    """
    return ", ".join(f"{CLASSES[rank]} {slots[rank]}" for rank in reversed(range(len(CLASSES))))
