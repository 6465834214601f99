"""Several capacities at once: all or none."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from fairlead.core.capacity import FULL, NEVER, STOP, Capacity
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping

    from fairlead.core.part import Part
    from fairlead.core.ticket import Ticket


class Both(Capacity):
    """Admit what every part admits; nothing is taken unless all is.

    Of several refusals the narrowest is told, so that a ticket stopped by its own quota does not stop others.

    >>> from fairlead.capacities import Slots, TokenBucket
    >>> both = Both(Slots(16), TokenBucket(100, burst=200))
    """

    def __init__(self, *parts: Capacity, name: str = "both") -> None:
        if not parts or not all(isinstance(part, Capacity) for part in parts):
            raise ConfigError(f"Both needs at least one capacity, and nothing else; got {parts!r}")
        names = [part.name for part in parts]
        if len(set(names)) == len(names):  # nor may two parts further inside share one
            names = [part.name for part in _innermost(parts) if part.scoped]
        if len(set(names)) < len(names):
            raise ConfigError(
                f"each part needs a name of its own, scopes are told apart by it; got {names}"
            )
        self.name = name
        self.parts = parts
        self.scoped = any(part.scoped for part in parts)
        self.watches = any(part.watches for part in parts)
        self.lasts = type(self) is Both and all(part.lasts for part in parts)
        *self._others, self._last = parts
        self.report_to(self.opened)

    def report_to(self, opened: list[Hashable]) -> None:
        super().report_to(opened)
        for part in self.parts:
            part.report_to(opened)

    def whole(self) -> Iterator[Part]:
        yield self
        for part in self.parts:
            yield from part.whole()

    def scopes(self, ticket: Ticket) -> tuple[Hashable, ...]:
        return tuple(scope for part in self.parts for scope in part.scopes(ticket))

    def refusal(self, ticket: Ticket, now: float, without: Ticket | None = None) -> Hashable | None:
        told: Hashable | None = None
        for part in self.parts:
            refusal = part.refusal(ticket, now, without)
            if refusal is NEVER:
                return refusal
            if refusal is FULL:
                told = refusal  # nobody gets in anyway; to ask on about others would be in vain
            elif refusal is not None and (told is None or told is STOP):
                told = refusal
        return told

    def admit(self, ticket: Ticket, now: float) -> Hashable | None:
        last, others = self._last, self._others
        for part in others:
            if part.refusal(ticket, now) is not None:
                return self.refusal(ticket, now)
        if last.admit(ticket, now) is not None:  # nothing is taken yet
            return self.refusal(ticket, now)
        full = last.full
        for part in others:
            full |= part.take(ticket, now) is True
        self.full = full
        return None

    def take(self, ticket: Ticket, now: float) -> bool:
        full = False
        for part in self.parts:
            full |= part.take(ticket, now) is True
        return full

    def give(self, ticket: Ticket, now: float) -> None:
        for part in self.parts:
            part.give(ticket, now)

    def refund(self, ticket: Ticket, amount: float, now: float) -> None:
        for part in self.parts:
            part.refund(ticket, amount, now)

    def adopt(self, ticket: Ticket, now: float) -> bool:
        full = False
        for part in self.parts:
            full |= part.adopt(ticket, now) is True
        return full

    def ready_at(self, ticket: Ticket, now: float, scope: Hashable) -> float:
        refusing = (part for part in self.parts if part.refusal(ticket, now) == scope)
        return max((part.ready_at(ticket, now, scope) for part in refusing), default=inf)

    def enter(self, ticket: Ticket, now: float) -> None:
        for part in self.parts:
            if part.watches:
                part.enter(ticket, now)

    def leave(self, ticket: Ticket, now: float) -> None:
        for part in self.parts:
            if part.watches:
                part.leave(ticket, now)

    def room(self) -> Mapping[Hashable, float]:
        return {name: room for part in self.parts for name, room in part.room().items()}

    def describe(self, ticket: Ticket, now: float, refusal: Hashable) -> str:
        refusing = [part for part in self.parts if part.refusal(ticket, now) == refusal]
        return " and ".join(part.describe(ticket, now, refusal) for part in refusing)

    def audit(self, holders: Collection[Ticket]) -> str | None:
        faults = (part.audit(holders) for part in self.parts)
        return next((fault for fault in faults if fault is not None), None)

    def part(self, name: str) -> Capacity | None:
        if name == self.name:
            return self
        found = (part.part(name) for part in self.parts)
        return next((part for part in found if part is not None), None)


def _innermost(parts: Iterable[Capacity]) -> Iterator[Capacity]:
    for part in parts:
        if isinstance(part, Both):
            yield from _innermost(part.parts)
        else:
            yield part
