"""A pool of slots that several doors share, for the simulator: `GatePool` and its borrowers are the server's own.

Doors of jobs and streams keep their own gates, made by their own presets, and borrow slots.  Of any other door who is
next inside it is told by arrival.  An arrival says by which door it comes.
"""

from __future__ import annotations

from asyncio import _get_running_loop
from collections import deque
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from pydantic import Field

from fairlead.capacities import Unlimited
from fairlead.config import shown
from fairlead.documents.values import Model
from fairlead.errors import ConfigError
from fairlead.policies import FIFO
from fairlead.runtime import GatePool
from fairlead.runtime.loop import LoopGate
from fairlead.sim.grammar import Weight, Whole
from fairlead.sim.site import SimTicket, Site, Verbs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fairlead.core import Gate
    from fairlead.core.ticket import Ticket
    from fairlead.errors import PolicyError
    from fairlead.runtime import MakeGate
    from fairlead.sim.reading import Draft
    from fairlead.sim.result import Arrival


def _jobs() -> tuple[Any, Any]:
    from fairlead.sim.jobs_site import JobsSettings, JobsSite

    return JobsSettings, JobsSite


def _streams() -> tuple[Any, Any]:
    from fairlead.sim.streams_site import StreamsSettings, StreamsSite

    return StreamsSettings, StreamsSite


BORROWERS = {"jobs": _jobs, "streams": _streams}  # each is loaded only if it is named


class Shared(Model):
    """What the doors share."""

    slots: Whole


class Weights(Model):
    """The doors, and in which proportion they get slots."""

    weights: Annotated[dict[str, Weight], Field(min_length=1)]


class ByDoor(Model):
    """The fair queue by door."""

    fair: Weights


class PoolSettings(Model):
    """Slots, weights, and the presets of the doors that borrow."""

    capacity: Shared
    policy: ByDoor
    doors: dict[str, dict[str, Any]] = Field(default_factory=dict)


class VirtualLoop(LoopGate):
    """The pool's loop, on virtual time; `told` are those whom verbs of other doors have changed."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(gate)
        self.loop = _get_running_loop()  # whoever simulates is on the pool's loop
        self.time = 0.0
        self.told: list[Any] = []
        self._soon: deque[Callable[[], object]] = deque()

    def enter(self, verb: str) -> None:
        """There is nobody else."""

    @property
    def entered(self) -> Any:
        return self

    def now(self) -> float:
        return self.time

    def call_soon(self, deed: Callable[[], object]) -> None:
        """Have something done when the present verb is through."""
        self._soon.append(deed)

    def after(self, changed: Iterable[Ticket]) -> None:
        for ticket in changed:
            ticket.told()  # type: ignore[attr-defined]

    def report(self, error: PolicyError) -> None:
        raise error

    def settled(self) -> list[Any]:
        """Do what was put off, and tell who was changed."""
        while self._soon:
            self._soon.popleft()()
        told, self.told = self.told, []
        return told


class Door(Verbs, Protocol):
    """A gate of a door that borrows."""

    def lent(self, now: float) -> None: ...


class PoolTicket(SimTicket):
    """A ticket in the gate that doors share."""

    __slots__ = ("_loop", "member")

    def __init__(self, number: int, arrival: Arrival, now: float, loop: VirtualLoop) -> None:
        # Of the doors that ask in the pool's own gate, only callers of flows state a cost.
        cost = arrival.cost if arrival.door.partition("/")[0] == "flows" else 1.0
        super().__init__(number, arrival, now, cost)
        self._loop = loop

    def told(self) -> None:
        """Another door's verb has changed this one."""
        self._loop.told.append(self)


class PoolVerbs:
    """The verbs of a gate, each carried out by the door its ticket came by."""

    def __init__(self, slots: int) -> None:
        self.pool = GatePool(slots, runtime=VirtualLoop)
        self.loop: Any = self.pool.runtime
        self.borrowers: list[Door] = []
        self.door_of: dict[int, Verbs] = {}  # by the number of the arrival

    @property
    def due(self) -> float:
        """When something may happen by itself, at any door."""
        return min([self.pool.gate.due, *(door.due for door in self.borrowers)])

    def next_wakeup(self, now: float) -> float:
        """Tell when to call `advance`."""
        self.pool.gate.next_wakeup(now)
        for door in self.borrowers:
            door.next_wakeup(now)
        return self.due

    def offer(self, ticket: Any, now: float) -> Sequence[Any]:
        """Ask at the ticket's door."""
        self.loop.time = now
        changed = self.door_of[ticket.work].offer(ticket, now)
        return [*changed, *self.loop.settled()]

    def finish(self, ticket: Any, now: float) -> Sequence[Any]:
        """End work; the slot goes to whichever door is next."""
        self.loop.time = now
        changed = self.door_of.pop(ticket.work).finish(ticket, now)
        return [*changed, *self.loop.settled()]

    def withdraw(self, tickets: Iterable[Any], now: float) -> Sequence[Any]:
        """Stop waiting."""
        self.loop.time = now
        changed = [
            other
            for ticket in tickets
            for other in self.door_of[ticket.work].withdraw([ticket], now)
        ]
        return [*changed, *self.loop.settled()]

    def advance(self, now: float) -> Sequence[Any]:
        """Let time pass at every door where something is due."""
        self.loop.time = now
        if self.pool.gate.due <= now:
            self.loop.after(self.pool.gate.advance(now))
        changed: list[Any] = []
        for door in self.borrowers:
            if door.due <= now:
                changed += door.advance(now)
        return [*changed, *self.loop.settled()]

    def commit(self, ticket: Any) -> bool:
        """Nobody preempts between doors."""
        return True


class PoolSite(Site):
    """Several doors, and one pool of slots."""

    def __init__(self, said: PoolSettings, borrowers: dict[str, tuple[Any, Any]]) -> None:
        self._verbs = PoolVerbs(said.capacity.slots)
        super().__init__(self._verbs)
        self.slots = said.capacity.slots
        self._sites: dict[str, Site] = {}
        self._members: dict[str, Verbs] = {}
        for door, weight in said.policy.fair.weights.items():
            if door in borrowers:
                self._sites[door] = self._borrower(door, weight, *borrowers[door])
            else:
                make = self._verbs.pool.member(_member(door), weight)
                self._members[door] = make(FIFO(), Unlimited())

    def _borrower(self, door: str, weight: float, site: Any, said: Any) -> Site:
        def wake() -> None:
            own.lent(self._verbs.loop.time)

        make: MakeGate = self._verbs.pool.borrower(_member(door), weight, wake=wake)
        made: Site = site(said, make)
        own: Any = made.gate
        self._verbs.borrowers.append(own)
        return made

    def ticket(self, number: int, arrival: Arrival, now: float) -> Any:
        site = self._sites.get(arrival.door)
        if site is None:
            self._verbs.door_of[number] = self._members[arrival.door]
            return PoolTicket(number, arrival, now, self._verbs.loop)
        self._verbs.door_of[number] = site.gate
        return site.ticket(number, arrival, now)

    def check(self, arrivals: Iterable[Arrival], numbers: Sequence[int] | None = None) -> None:
        by_door: dict[str, list[int]] = {}
        everyone = list(arrivals)
        for number, arrival in enumerate(everyone):
            by_door.setdefault(arrival.door, []).append(number)
        for door, mine in by_door.items():
            if door not in self._sites:
                super().check([everyone[mine[0]]])
                continue
            places = {number: place for place, number in enumerate(mine)}
            own = [everyone[number] for number in mine]
            if any(dep not in places for one in own for dep in one.deps):
                raise ConfigError(f"an arrival at {door} depends on one at another door")
            counted = [one._replace(deps=tuple(places[dep] for dep in one.deps)) for one in own]
            self._sites[door].check(counted, mine)

    def refuses(self, arrival: Arrival) -> str | None:
        site = self._sites.get(arrival.door)
        if site is not None:
            return site.refuses(arrival)
        if arrival.door in self._members:
            return None
        doors = ", ".join([*self._members, *self._sites])
        return f"the pool has no door {shown(arrival.door)}; its doors are {doors}"


def _member(door: str) -> str:
    return door.replace("/", ":")  # a slash parts a member from what is inside it


def read(draft: Draft, own: Iterable[str]) -> Callable[[], Site] | None:
    """Read slots, weights and the presets of doors that borrow."""
    said = draft.read(PoolSettings, without=own)
    if said is None:
        return None
    borrowers: dict[str, tuple[Any, Any]] = {}
    for door, document in said.doors.items():
        preset = document.get("preset")
        known = BORROWERS.get(preset) if isinstance(preset, str) else None
        if door not in said.policy.fair.weights:
            draft.wrong(("doors", door), "has no weight; give it one in policy.fair.weights")
        elif known is None:
            draft.wrong(
                ("doors", door, "preset"),
                f"must be one of {', '.join(BORROWERS)}, which borrow; got {shown(preset)}",
            )
        else:
            settings, site = known()
            borrowers[door] = (site, draft.read(settings, ("doors", door), without=own))
    return lambda: PoolSite(said, borrowers)
