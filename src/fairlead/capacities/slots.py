"""A number of slots, each held by one ticket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.core.capacity import FULL, Capacity
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping

    from fairlead.core.ticket import Ticket


class Slots(Capacity):
    """At most `total` tickets at once; a smaller total evicts nobody, it lets the number fall.

    >>> Slots(16).room()
    {'slots': 16}
    """

    counts = True

    def __init__(self, total: int, *, name: str = "slots") -> None:
        self.name = name
        self.used = 0
        self.resize(total)

    def resize(self, total: int) -> None:
        """Change the number of slots."""
        if type(total) is not int or total < 0:
            raise ConfigError(
                f"the number of slots must be a whole number, 0 or more; got {total!r}"
            )
        self.total = total

    def admit(self, ticket: Ticket, now: float) -> Hashable | None:
        used, total = self.used + 1, self.total  # in one step, for benchmarks/gate.py
        if used > total:
            return FULL
        self.used = used
        self.full = used == total
        return None

    def refusal(self, ticket: Ticket, now: float, without: Ticket | None = None) -> Hashable | None:
        used = self.used if without is None else self.used - 1
        return None if used < self.total else FULL

    def take(self, ticket: Ticket, now: float) -> bool:
        self.used += 1
        return self.used >= self.total

    def give(self, ticket: Ticket, now: float) -> None:
        self.used -= 1

    def room(self) -> Mapping[Hashable, float]:
        return {self.name: max(0, self.total - self.used)}

    def describe(self, ticket: Ticket, now: float, refusal: Hashable) -> str:
        return f"all {self.total} {self.name} are in use"

    def audit(self, holders: Collection[Ticket]) -> str | None:
        if self.used != len(holders):
            return f"{self.name}: {self.used} in use, {len(holders)} holders"
        return None
