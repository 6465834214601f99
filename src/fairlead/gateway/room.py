"""What a request of a pool takes: a slot, a place at a backend and, where these are bounded, room for its tenant.

The bound of a tenant is one more capacity beside the slots, and no part of it is asked while nothing is bounded.  What
waits is put in line by class and tenant all the same, so that a reload can set a bound for it.  A tenant at its bound
closes its own scope only: it keeps out its own requests, and of these none that ranks before the one it refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlead.capacities import Both
from fairlead.capacities.quotas import Quotas
from fairlead.config import shown
from fairlead.gateway.places import Places

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

    from fairlead.capacities import Reserved
    from fairlead.core import Capacity, Ticket
    from fairlead.core.part import Part
    from fairlead.gateway.fleet import Fleet
    from fairlead.gateway.settings import PrioritySettings
    from fairlead.gateway.values import MaxSlots

REMEMBERED = 10_000  # classes and tenants whose scopes are kept


class Bounds(NamedTuple):
    """How many slots a tenant may hold: those named, and all others; None for any number.

    >>> from fairlead.gateway.values import Share
    >>> Bounds({"auth:acme": 4}, Share("50%")).of(9)
    ({'auth:acme': 4}, 4)
    """

    named: Mapping[str, MaxSlots]
    default: MaxSlots | None

    @classmethod
    def said_in(cls, said: PrioritySettings) -> Bounds:
        """Read settings."""
        policies = said.tenant_policies.items()
        named = {key: each.max_slots for key, each in policies if each.max_slots is not None}
        return cls(named, said.default_max_slots)

    def of(self, slots: int) -> tuple[dict[Hashable, int], int | None]:
        """Return the bounds as numbers, where there are so many slots."""
        named: dict[Hashable, int] = {
            key: _number(bound, slots) for key, bound in self.named.items()
        }
        return named, None if self.default is None else _number(self.default, slots)


def _number(bound: MaxSlots, slots: int) -> int:
    if isinstance(bound, int):
        return bound
    return max(1, int(bound.of(slots)))


class TenantSlots(Quotas):
    """Slots that each tenant holds, and may hold."""

    def __init__(self) -> None:
        super().__init__("tenant", name="tenants")

    @property
    def bounded(self) -> bool:
        """Whether any tenant has a bound."""
        return self._default is not None or bool(self._limits)

    def count_again(self, running: Mapping[Hashable, int]) -> None:
        """Start to count, with what runs already."""
        self._used = dict(running)

    def held(self) -> Mapping[Hashable, int]:
        """Return how many slots each tenant holds that holds any."""
        return self._used

    def room(self) -> Mapping[Hashable, float]:
        return {}

    def describe(self, ticket: Ticket, now: float, refusal: Hashable) -> str:
        key = ticket.tenant
        return f"tenant {shown(key)} holds its {self.used(key)} of {self.limit(key)} slots"


class Room(Both):
    """Slots, what bounds a tenant, places at backends, and whatever else a request needs."""

    def __init__(self, slots: Reserved, *more: Capacity) -> None:
        self.tenants = TenantSlots()
        self.places = Places()
        super().__init__(slots, self.tenants, self.places, *more, name="room")
        self._every = self.parts
        self._scopes: dict[Hashable, tuple[Hashable, ...]] = {}
        self._arrange()

    def _arrange(self) -> None:
        """Ask only the parts that may refuse."""
        unused = (
            None if self.tenants.bounded else self.tenants,
            None if self.places.fleet is not None else self.places,
        )
        self.parts = tuple(part for part in self._every if part not in unused)
        *self._others, self._last = self.parts

    def bound(
        self,
        named: Mapping[Hashable, int],
        default: int | None,
        running: Mapping[Hashable, int],
    ) -> None:
        """Bound the slots of tenants; `running` is how many each holds now."""
        if not self.tenants.bounded:
            self.tenants.count_again(running)
        self.tenants.replace(named, default)
        self._arrange()

    def follow(self, fleet: Fleet) -> None:
        """Take a place at a backend of a fleet for each request from now on."""
        self.places.fleet = fleet
        self._scopes.clear()
        self._arrange()

    def scopes(self, ticket: Ticket) -> tuple[Hashable, ...]:
        key: Hashable = ticket.rank, ticket.tenant
        if self.places.fleet is not None:
            key = key, self.places.key_of(ticket)
        found = self._scopes.get(key)
        if found is None:
            if len(self._scopes) >= REMEMBERED:
                self._scopes.clear()
            found = tuple(scope for part in self._every for scope in part.scopes(ticket))
            self._scopes[key] = found
        return found

    def whole(self) -> Iterator[Part]:
        yield self
        for part in self._every:
            yield from part.whole()
