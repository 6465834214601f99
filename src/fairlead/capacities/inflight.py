"""Tokens in flight, in all or per label value: a ticket weighs its cost.  And slots per named pool."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import TYPE_CHECKING

from fairlead.core.capacity import FULL, STOP, Capacity
from fairlead.core.checks import is_number, read_by
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable

    from fairlead.core.ticket import Ticket


class InFlight(Capacity):
    """At most `limit` tokens in flight; a ticket larger than that goes alone.

    A holder that is never finished is ended by the gate `expire_after` seconds after its start.

    >>> per_user = InFlight(10, by=lambda ticket: ticket.tenant, expire_after=60.0)
    """

    lasts = True

    def __init__(
        self,
        limit: float,
        *,
        by: str | Callable[[Ticket], Hashable] | None = None,
        expire_after: float = inf,
        name: str = "in flight",
    ) -> None:
        self.name = name
        self._by = None if by is None else read_by(by)
        self.scoped = by is not None
        self._used: dict[Hashable, float] = {}
        self.resize(limit)
        self.set_expiry(expire_after)

    def set_expiry(self, expire_after: float) -> None:
        """Change how long a holder may hold, for those that start from now on."""
        if not (is_number(expire_after) and expire_after > 0):
            raise ConfigError(f"expire_after must be above 0 seconds; got {expire_after!r}")
        self.expire_after = expire_after

    def resize(self, limit: float) -> None:
        """Change the limit of every key."""
        if isinstance(limit, bool) or not (is_number(limit, 0) and limit < inf):
            raise ConfigError(f"the limit must be a finite number, 0 or more; got {limit!r}")
        self.limit = limit
        self._most = (
            limit + limit * 1e-12
        )  # sums of fractional costs are off by less, and an exact fit is one
        self.opened.append(FULL)

    def _key(self, ticket: Ticket) -> Hashable:
        return self.name if self._by is None else self._by(ticket)

    def _scope(self, key: Hashable) -> Hashable:
        return STOP if self._by is None else (self.name, key)

    def scopes(self, ticket: Ticket) -> tuple[Hashable, ...]:
        key = self._key(ticket)
        return () if self._by is None or key is None else ((self.name, key),)

    def refusal(self, ticket: Ticket, now: float, without: Ticket | None = None) -> Hashable | None:
        key = self.name if self._by is None else self._by(ticket)
        if key is None:
            return None
        used = self._used.get(key, 0)
        if without is not None and self._key(without) == key:
            used -= without.cost
        if used + ticket.cost <= self._most or (used <= 0 and self.limit > 0):
            return None
        return self._scope(key)

    def admit(self, ticket: Ticket, now: float) -> Hashable | None:
        by, cost = self._by, ticket.cost  # in one step, for benchmarks/flows.py
        key = self.name if by is None else by(ticket)
        if key is None:
            return None
        used, most = self._used.get(key, 0), self._most
        if used + cost > most and (used > 0 or most <= 0):
            return STOP if by is None else (self.name, key)
        self._used[key] = used + cost
        until = now + self.expire_after
        if until < ticket.hold_until:
            ticket.hold_until = until
        return None

    def take(self, ticket: Ticket, now: float) -> None:
        key = self.name if self._by is None else self._by(ticket)
        if key is not None:
            self._used[key] = self._used.get(key, 0) + ticket.cost
            if now + self.expire_after < ticket.hold_until:
                ticket.hold_until = now + self.expire_after

    def give(self, ticket: Ticket, now: float) -> None:
        by = self._by
        key = self.name if by is None else by(ticket)
        if key is not None:
            # Holders that cost nothing leave no trace: the key may be gone, and theirs was no part of it.
            left = self._used.get(key, 0) - ticket.cost
            if left > 1e-9 * self.limit:  # sums of fractional costs do not cancel exactly
                self._used[key] = left
            else:
                self._used.pop(key, None)
            self.opened.append(STOP if by is None else (self.name, key))

    def used(self, key: Hashable = None) -> float:
        """Tell the tokens in flight, in all or of one key."""
        return self._used.get(self.name if self._by is None else key, 0)

    def room(self) -> Mapping[Hashable, float]:
        return {key: max(0, self.limit - used) for key, used in self._used.items()}

    def describe(self, ticket: Ticket, now: float, refusal: Hashable) -> str:
        key = self._key(ticket)
        whose = "" if self._by is None else f" for {key!r}"
        used = self._used.get(key, 0)
        return f"it needs {ticket.cost:g} beside {used:g} of {self.limit:g} {self.name}{whose}"

    def audit(self, holders: Collection[Ticket]) -> str | None:
        expected: dict[Hashable, float] = {}
        for ticket in holders:
            key = self._key(ticket)
            if key is not None:
                expected[key] = expected.get(key, 0) + ticket.cost
        for key in {**expected, **self._used}:
            if abs(expected.get(key, 0) - self._used.get(key, 0)) > 1e-6:
                return f"{self.name}: {key!r} has {self._used.get(key, 0)}, holders say {expected.get(key, 0)}"
        return None


class Pools(Capacity):
    """Slots per named pool, `ticket.pool`; an unknown pool has none until it is resized.

    >>> Pools({"ocr": 4, "gpu": 1}).room()
    {'ocr': 4, 'gpu': 1}
    """

    scoped = True

    def __init__(self, limits: Mapping[str, int], *, name: str = "pools") -> None:
        self.name = name
        self._limits: dict[Hashable, int] = {}
        self._used: dict[Hashable, int] = {}
        if not isinstance(limits, Mapping):
            raise ConfigError(f'Pools needs slots by pool, such as {{"gpu": 2}}; got {limits!r}')
        for pool, limit in limits.items():
            self.resize(pool, limit)

    def resize(self, pool: Hashable, limit: int) -> None:
        """Change the slots of one pool."""
        if type(limit) is not int or limit < 0:
            raise ConfigError(
                f"pool {pool!r} needs a whole number of slots, 0 or more; got {limit!r}"
            )
        self._limits[pool] = limit
        self.opened.append((self.name, pool))

    def scopes(self, ticket: Ticket) -> tuple[Hashable, ...]:
        return ((self.name, ticket.pool),)

    def refusal(self, ticket: Ticket, now: float, without: Ticket | None = None) -> Hashable | None:
        pool = ticket.pool
        used = self._used.get(pool, 0)
        if without is not None and without.pool == pool:
            used -= 1
        return None if used < self._limits.get(pool, 0) else (self.name, pool)

    def take(self, ticket: Ticket, now: float) -> None:
        self._used[ticket.pool] = self._used.get(ticket.pool, 0) + 1

    def give(self, ticket: Ticket, now: float) -> None:
        left = self._used[ticket.pool] - 1
        if left:
            self._used[ticket.pool] = left
        else:
            del self._used[ticket.pool]
        self.opened.append((self.name, ticket.pool))

    def room(self) -> Mapping[Hashable, float]:
        return {
            pool: max(0, limit - self._used.get(pool, 0)) for pool, limit in self._limits.items()
        }

    def describe(self, ticket: Ticket, now: float, refusal: Hashable) -> str:
        limit = self._limits.get(ticket.pool)
        if limit is None:
            return f"there is no pool {ticket.pool!r}"
        return f"all {limit} slots of pool {ticket.pool!r} are in use"

    def audit(self, holders: Collection[Ticket]) -> str | None:
        expected: dict[Hashable, int] = {}
        for ticket in holders:
            expected[ticket.pool] = expected.get(ticket.pool, 0) + 1
        return (
            None if expected == self._used else f"{self.name}: {self._used}, holders say {expected}"
        )
