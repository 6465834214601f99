"""The parts of doors that share a gate: their policies in a fair queue by door, their capacities side by side.

To the shared gate a scope of a door is one with the door's name, and a door that is full is one scope of many: nobody
else is kept out by it.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from fairlead.core import FULL, NEVER, Capacity, Halt, Hold, Later, Policy
from fairlead.policies import FairQueue

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Mapping

    from fairlead.core import Ticket

APART = "/"  # between the name of a member and that of a part of it


class Member(Protocol):
    """What a door brings."""

    name: str
    policy: Policy
    capacity: Capacity


class Doors(FairQueue):
    """The fair queue by door; inside it is each door's own policy."""

    def __init__(self, members: dict[str, Member]) -> None:
        super().__init__(name_of, inside=lambda name: members[str(name)].policy, name="doors")
        self._members = members
        self.timed = True  # a door that joins may bring a policy that is

    def part(self, name: str) -> Policy | None:
        door, _, own = name.partition(APART)
        if door in self._members:
            return self._members[door].policy.part(own)
        return self if name == self.name else None


class Rooms(Capacity):
    """What each door's own capacity says of its own tickets."""

    scoped = True
    watches = True

    def __init__(self, members: dict[str, Member]) -> None:
        self.name = "rooms of doors"
        self._members = members

    def report_to(self, opened: list[Hashable]) -> None:
        super().report_to(opened)
        for member in self._members.values():
            member.capacity.report_to(Told(member.name, opened))

    def scopes(self, ticket: Ticket) -> tuple[Hashable, ...]:
        name = name_of(ticket)
        own = self._members[name].capacity.scopes(ticket)
        return ((name, None), *(_outside(name, scope) for scope in own))

    def refusal(self, ticket: Ticket, now: float, without: Ticket | None = None) -> Hashable | None:
        name = name_of(ticket)
        if without is not None and name_of(without) != name:
            without = None
        refusal = self._members[name].capacity.refusal(ticket, now, without)
        return _outside(name, refusal)

    def take(self, ticket: Ticket, now: float) -> None:
        self._members[name_of(ticket)].capacity.take(ticket, now)

    def give(self, ticket: Ticket, now: float) -> None:
        name = name_of(ticket)
        self._members[name].capacity.give(ticket, now)
        self.opened.append((name, None))

    def refund(self, ticket: Ticket, amount: float, now: float) -> None:
        self._members[name_of(ticket)].capacity.refund(ticket, amount, now)

    def ready_at(self, ticket: Ticket, now: float, scope: Any) -> float:
        name = name_of(ticket)
        capacity = self._members[name].capacity
        own = capacity.refusal(ticket, now)
        return inf if _outside(name, own) != scope else capacity.ready_at(ticket, now, own)

    def enter(self, ticket: Ticket, now: float) -> None:
        capacity = self._members[name_of(ticket)].capacity
        if capacity.watches:
            capacity.enter(ticket, now)

    def leave(self, ticket: Ticket, now: float) -> None:
        capacity = self._members[name_of(ticket)].capacity
        if capacity.watches:
            capacity.leave(ticket, now)

    def room(self) -> Mapping[Hashable, float]:
        return {
            (name, key): room
            for name, member in self._members.items()
            for key, room in member.capacity.room().items()
        }

    def describe(self, ticket: Ticket, now: float, refusal: Hashable) -> str:
        capacity = self._members[name_of(ticket)].capacity
        own = capacity.refusal(ticket, now)
        return capacity.describe(ticket, now, own) if own is not None else "there is room by now"

    def audit(self, holders: Collection[Ticket]) -> str | None:
        for name, member in self._members.items():
            fault = member.capacity.audit([one for one in holders if name_of(one) == name])
            if fault is not None:
                return f"{name}: {fault}"
        return None

    def part(self, name: str) -> Any:
        door, _, own = name.partition(APART)
        if door not in self._members:
            return self if name == self.name else None
        part = self._members[door].capacity.part(own)
        return None if part is None else _Adjusted(part, door, self.opened)


class _Adjusted:
    """A part of a door's capacity while it is changed: afterwards all of that door may be asked again."""

    def __init__(self, part: Capacity, door: str, opened: list[Hashable]) -> None:
        self._part, self._door, self._opened = part, door, opened

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._part, verb)

        def change(*args: Any) -> None:
            found(*args)
            self._opened.append((self._door, None))

        return change if callable(found) else found


class Told(list[Any]):
    """What a door's capacity has opened, told to the pool as that door's."""

    def __init__(self, door: str, opened: list[Hashable]) -> None:
        super().__init__()
        self._door, self._opened = door, opened

    def append(self, scope: Any) -> None:
        if type(scope) is Later:
            self._opened.append(scope._replace(scope=_outside(self._door, scope.scope)))
            return
        self._opened.append(_outside(self._door, scope))
        if isinstance(scope, Halt):  # whoever of this door was refused may be asked again
            self._opened.append(FULL)

    def extend(self, scopes: Iterable[Any]) -> None:
        for scope in scopes:
            self.append(scope)


def name_of(ticket: Ticket) -> str:
    name: str = ticket.member  # type: ignore[attr-defined]
    return name


def _outside(name: str, refusal: Hashable | None) -> Hashable | None:
    """What a refusal of a door's own capacity means to the pool: it concerns that door alone."""
    if refusal is None or refusal is NEVER:
        return refusal
    if isinstance(refusal, Halt):
        return (name, None)
    if isinstance(refusal, Hold):
        return refusal._replace(whose=name)
    return (name, refusal)
