"""A pool of slots that several doors share: one gate, and in it a fair queue by door.

Two gates on one capacity starve each other, so doors that share one share the gate.  A door knows nothing of that: what
it is given to make its gate with (`GatePool.member`) gives it a view of the shared gate, in which its own policy orders
its own tickets and its own capacity, if it has one, limits them; the slots of the pool are limited for all, and go to
doors in proportion to their weights.  All doors of a pool live on one event loop.
"""

from __future__ import annotations

from asyncio import _get_running_loop
from math import inf
from typing import TYPE_CHECKING, Any

from fairlead.capacities import Both, Slots
from fairlead.core import FULL, NEVER, Capacity, Change, Gate, Halt, Hold, Outcome, Policy
from fairlead.errors import ConfigError, Misuse
from fairlead.policies import FairQueue
from fairlead.runtime.loop import LoopGate

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

    from fairlead.core import Ticket
    from fairlead.core.explain import Explanation
    from fairlead.runtime.making import MakeGate

APART = "/"  # between the name of a member and that of a part of it


class GatePool:
    """Slots for several doors.

    >>> from fairlead import Scheduler
    >>> pool = GatePool(8)
    >>> api = Scheduler.bounded(gate=pool.member("api", weight=3))
    >>> reports = Scheduler.bounded(gate=pool.member("reports"))
    """

    def __init__(self, slots: int, *, name: str = "pool", gate: MakeGate = Gate) -> None:
        self.name = name
        self.slots = Slots(slots, name=f"slots of {name}")
        self.members: dict[str, MemberGate] = {}
        self._doors = _Doors(self.members)
        self._rooms = _Rooms(self.members)
        self.gate = gate(self._doors, Both(self.slots, self._rooms))
        self.runtime = LoopGate(self.gate)  # keeps time for all

    def member(self, name: str, weight: float = 1.0) -> MakeGate:
        """What a door makes its gate with; under load doors get slots in proportion to their weights."""
        if APART in name or not name:
            raise ConfigError(f"a member of a pool needs a name without {APART!r}; got {name!r}")
        self._doors.set_weight(name, weight)

        def make(policy: Policy, capacity: Capacity) -> Gate:
            former = self.members.get(name)
            if former is not None and (former.holders or former.waiting):
                raise ConfigError(
                    f"{name} has tickets in {self.name}: give each gate a name of its own; "
                    "one that cannot be changed as it stands needs a new start"
                )
            return MemberGate(self, name, policy, capacity)

        return make

    def resize(self, slots: int) -> None:
        """Change the number of slots all doors share."""
        self.runtime.adjust(Change(self.slots.name, "resize", (slots,)))

    def set_weight(self, name: str, weight: float) -> None:
        """Change the weight of a member; it counts from the next start on."""
        self._doors.set_weight(name, weight)


class _Doors(FairQueue):
    """The fair queue by door; inside it is each door's own policy."""

    def __init__(self, members: dict[str, MemberGate]) -> None:
        super().__init__(_name_of, inside=lambda name: members[str(name)].policy, name="doors")
        self._members = members
        self.timed = True  # a door that joins may bring a policy that is

    def part(self, name: str) -> Policy | None:
        door, _, own = name.partition(APART)
        if door in self._members:
            return self._members[door].policy.part(own)
        return self if name == self.name else None


class _Rooms(Capacity):
    """What each door's own capacity says of its own tickets."""

    scoped = True
    watches = True

    def __init__(self, members: dict[str, MemberGate]) -> None:
        self.name = "rooms of doors"
        self._members = members

    def report_to(self, opened: list[Hashable]) -> None:
        super().report_to(opened)
        for member in self._members.values():
            member.capacity.report_to(_Told(member.name, opened))

    def scopes(self, ticket: Ticket) -> tuple[Hashable, ...]:
        name = _name_of(ticket)
        own = self._members[name].capacity.scopes(ticket)
        return ((name, None), *(_outside(name, scope) for scope in own))

    def refusal(self, ticket: Ticket, now: float, without: Ticket | None = None) -> Hashable | None:
        name = _name_of(ticket)
        if without is not None and _name_of(without) != name:
            without = None
        refusal = self._members[name].capacity.refusal(ticket, now, without)
        return _outside(name, refusal)

    def take(self, ticket: Ticket, now: float) -> None:
        self._members[_name_of(ticket)].capacity.take(ticket, now)

    def give(self, ticket: Ticket, now: float) -> None:
        name = _name_of(ticket)
        self._members[name].capacity.give(ticket, now)
        self.opened.append((name, None))

    def refund(self, ticket: Ticket, amount: float, now: float) -> None:
        self._members[_name_of(ticket)].capacity.refund(ticket, amount, now)

    def ready_at(self, ticket: Ticket, now: float, scope: Any) -> float:
        name = _name_of(ticket)
        capacity = self._members[name].capacity
        own = capacity.refusal(ticket, now)
        return inf if _outside(name, own) != scope else capacity.ready_at(ticket, now, own)

    def enter(self, ticket: Ticket, now: float) -> None:
        capacity = self._members[_name_of(ticket)].capacity
        if capacity.watches:
            capacity.enter(ticket, now)

    def leave(self, ticket: Ticket, now: float) -> None:
        capacity = self._members[_name_of(ticket)].capacity
        if capacity.watches:
            capacity.leave(ticket, now)

    def room(self) -> Mapping[Hashable, float]:
        return {
            (name, key): room
            for name, member in self._members.items()
            for key, room in member.capacity.room().items()
        }

    def describe(self, ticket: Ticket, now: float, refusal: Hashable) -> str:
        capacity = self._members[_name_of(ticket)].capacity
        own = capacity.refusal(ticket, now)
        return capacity.describe(ticket, now, own) if own is not None else "there is room by now"

    def audit(self, holders: Collection[Ticket]) -> str | None:
        for name, member in self._members.items():
            fault = member.capacity.audit([one for one in holders if _name_of(one) == name])
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


class _Told(list[Any]):
    """What a door's capacity has opened, told to the pool as that door's."""

    def __init__(self, door: str, opened: list[Hashable]) -> None:
        super().__init__()
        self._door, self._opened = door, opened

    def append(self, scope: Any) -> None:
        self._opened.append(_outside(self._door, scope))
        if isinstance(scope, Halt):  # whoever of this door was refused may be asked again
            self._opened.append(FULL)

    def extend(self, scopes: Iterable[Any]) -> None:
        for scope in scopes:
            self.append(scope)


class MemberGate(Gate):
    """A door's view of the gate it shares: verbs go there, and of what they change this door is told its own."""

    def __init__(self, pool: GatePool, name: str, policy: Policy, capacity: Capacity) -> None:
        for part in (policy, capacity):
            if part.gated:
                raise ConfigError(f"{type(part).__name__} has a gate already; make a new one")
            part.gated = True
        self.pool = pool
        self.name = name
        self.policy = policy
        self.capacity = capacity
        self._core = pool.gate
        capacity.report_to(_Told(name, pool.gate.capacity.opened))
        pool.members[name] = self

    # What doors read.  The pool keeps time for all, so to a door nothing is ever due.

    due = inf

    @property
    def now(self) -> float:  # type: ignore[override]
        return self._core.now

    @property
    def late(self) -> int:  # type: ignore[override]
        return self._core.late

    @property
    def waiting(self) -> int:  # type: ignore[override]
        return len(self.waiters())

    @property
    def holders(self) -> dict[Ticket, bool]:  # type: ignore[override]
        return {one: watched for one, watched in self._core.holders.items() if self._is_mine(one)}

    def waiters(self) -> list[Ticket]:
        return [one for one in self._core.waiters() if self._is_mine(one)]

    def next_wakeup(self, now: float) -> float:
        return inf

    def closed_to(self, ticket: Ticket) -> Hashable | None:
        return self._core.closed_to(ticket)

    def closed_by(self, scope: Hashable) -> Ticket | None:
        return self._core.closed_by(scope)

    def claimed(self, ticket: Ticket) -> bool:
        return self._core.claimed(ticket)

    def explain(self, ticket: Ticket, now: float) -> Explanation:
        return self._core.explain(ticket, now)

    def commit(self, ticket: Ticket) -> bool:
        return self._core.commit(ticket)

    # The verbs

    def offer(self, ticket: Ticket, now: float) -> Sequence[Ticket]:
        ticket.member = self.name  # type: ignore[attr-defined]
        return self._tell_others(self._core.offer(ticket, now))

    def enlist(self, tickets: Iterable[Ticket], now: float) -> Sequence[Ticket]:
        tickets = list(tickets)
        for ticket in tickets:
            ticket.member = self.name  # type: ignore[attr-defined]
        return self._tell_others(self._core.enlist(tickets, now))

    def finish(
        self,
        ticket: Ticket,
        now: float,
        outcome: Outcome = Outcome.OK,
        spent: float | None = None,
    ) -> Sequence[Ticket]:
        return self._tell_others(self._core.finish(ticket, now, outcome, spent))

    def finish_all(
        self, tickets: Iterable[Ticket], now: float, outcome: Outcome = Outcome.OK
    ) -> Sequence[Ticket]:
        return self._tell_others(self._core.finish_all(tickets, now, outcome))

    def withdraw(self, tickets: Iterable[Ticket], now: float) -> Sequence[Ticket]:
        return self._tell_others(self._core.withdraw(tickets, now))

    def adjust(self, change: Change, now: float) -> Sequence[Ticket]:
        own = change._replace(part=f"{self.name}{APART}{change.part}")
        return self._tell_others(self._core.adjust(own, now))

    def advance(self, now: float) -> Sequence[Ticket]:
        return self._tell_others(self._core.advance(now))

    def surrender(self) -> list[Ticket]:
        raise Misuse(
            f"what {self.name} runs belongs to {self.pool.name}, which it shares: such a change needs a new start"
        )

    def adopt(self, tickets: Iterable[Ticket], now: float) -> None:
        tickets = list(tickets)
        for ticket in tickets:
            ticket.member = self.name  # type: ignore[attr-defined]
        self._core.adopt(tickets, now)

    def _is_mine(self, ticket: Ticket) -> bool:
        return _name_of(ticket) == self.name

    def _tell_others(self, changed: Sequence[Ticket]) -> Sequence[Ticket]:
        """Tell the tickets of other doors what became of them, and set the clock that all share."""
        mine = [ticket for ticket in changed if self._is_mine(ticket)]
        runtime = self.pool.runtime
        running = _get_running_loop()
        if running is not None and running is not runtime.loop:
            runtime.enter(self.name)
        runtime.after([ticket for ticket in changed if not self._is_mine(ticket)])
        return mine


def _name_of(ticket: Ticket) -> str:
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
