"""So many at once per key, each key with a limit of its own or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.core.capacity import Capacity
from fairlead.core.checks import read_by
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Mapping

    from fairlead.core.ticket import Ticket


class Quotas(Capacity):
    """At most `limits[key]` tickets at once of each key; who is not named has `default`, None for no limit.

    Everybody is counted, limit or not, so that a limit that is set later knows what runs.

    >>> per_tenant = Quotas("tenant", {"acme": 10})
    """

    scoped = True

    def __init__(
        self,
        by: str | Callable[[Ticket], Hashable],
        limits: Mapping[Hashable, int] | None = None,
        *,
        default: int | None = None,
        name: str = "quotas",
        of: str = "running",
    ) -> None:
        self.name = name
        self._of = of  # as people call what is counted
        self._key = read_by(by)
        self._used: dict[Hashable, int] = {}
        self._limits: dict[Hashable, int] = {}
        self._default = default
        self.replace(limits or {}, default)

    def replace(self, limits: Mapping[Hashable, int], default: int | None = None) -> None:
        """Change all limits at once; a smaller one ends nobody, it lets the number fall."""
        for key, limit in (*limits.items(), ("default", default)):
            if limit is not None and (type(limit) is not int or limit < 0):
                raise ConfigError(
                    f"the limit of {key!r} must be a whole number, 0 or more; got {limit!r}"
                )
        before = {key: self.limit(key) for key in {**self._limits, **self._used}}
        self._limits = dict(limits)
        self._default = default
        for key, limit in before.items():
            now = self.limit(key)
            if limit is not None and (now is None or now > limit):
                self.opened.append((self.name, key))

    def limit(self, key: Hashable) -> int | None:
        """Tell the limit of a key."""
        return self._limits.get(key, self._default)

    def used(self, key: Hashable) -> int:
        """Tell how many of a key run."""
        return self._used.get(key, 0)

    def scopes(self, ticket: Ticket) -> tuple[Hashable, ...]:
        return ((self.name, self._key(ticket)),)

    def refusal(self, ticket: Ticket, now: float, without: Ticket | None = None) -> Hashable | None:
        key = self._key(ticket)
        limit = self._limits.get(key, self._default)
        if limit is None:
            return None
        used = self._used.get(key, 0)
        if without is not None and self._key(without) == key:
            used -= 1
        return None if used < limit else (self.name, key)

    def take(self, ticket: Ticket, now: float) -> None:
        key = self._key(ticket)
        self._used[key] = self._used.get(key, 0) + 1

    def give(self, ticket: Ticket, now: float) -> None:
        key = self._key(ticket)
        left = self._used[key] - 1
        if left:
            self._used[key] = left
        else:
            del self._used[key]
        if self._limits.get(key, self._default) is not None:
            self.opened.append((self.name, key))

    def room(self) -> Mapping[Hashable, float]:
        return {key: max(0, limit - self.used(key)) for key, limit in self._limits.items()}

    def describe(self, ticket: Ticket, now: float, refusal: Hashable) -> str:
        key = self._key(ticket)
        return f"{self.used(key)} of at most {self.limit(key)} {self._of} of {self.name} {key!r}"

    def audit(self, holders: Collection[Ticket]) -> str | None:
        expected: dict[Hashable, int] = {}
        for ticket in holders:
            key = self._key(ticket)
            expected[key] = expected.get(key, 0) + 1
        if expected != self._used:
            return f"{self.name}: {self._used}, holders say {expected}"
        return None
