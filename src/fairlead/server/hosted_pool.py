"""A pool of slots that gates of several doors share, to look at like a door."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import TYPE_CHECKING, Any

from fairlead.runtime import GatePool
from fairlead.server.hosting import Hosted, View, resize_to
from fairlead.server.overrides import AT_A_RELOAD
from fairlead.server.recording import in_turn, line_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from fairlead.core import Ticket
    from fairlead.observe import Feed
    from fairlead.observe.passed import Passed
    from fairlead.runtime import MakeGate, MakeGates
    from fairlead.server.loading import Loaded
    from fairlead.server.settings import Pool

KIND = "pool"
# Seconds within which a slot that was lent is known to be back, when its work has ended.
LATER = 1.0


class HostedPool(Hosted):
    """One gate for several doors; a ticket's class is told with the gate it came by."""

    kind = KIND

    def __init__(self, name: str, settings: Pool, feed: Feed) -> None:
        self.name = f"{KIND}/{name}"
        self.state = "running"
        self._follow(settings)
        self._feed = feed
        self._gates: dict[str, str] = {}  # by the names they have as members
        self._channel = feed.channel(self.name, self._class_of)
        self._namers: dict[str, Callable[[Ticket], str]] = {}
        self._borrowers: dict[str, Hosted] = {}  # by their gates
        self.pool = GatePool(settings.slots, name=name, gate=feed.gate(self.name, self._class_of))

    def _follow(self, settings: Pool) -> None:
        self._settings = settings
        self.detail = f"{settings.slots} slots shared by {', '.join(settings.doors)}"

    @property
    def members(self) -> Collection[str]:
        """The gates that share it."""
        return self._settings.doors

    def _class_of(self, ticket: Ticket) -> str:
        member: str = ticket.member  # type: ignore[attr-defined]
        gate = self._gates[member]
        namer = self._namers.get(member)  # none of a door that borrows: its own gate tells classes
        return gate if namer is None else f"{gate} {namer(ticket)}"

    def _member(self, gate: str) -> str:
        member = gate.replace("/", ":")  # a slash parts a member from what is inside it
        while self._gates.setdefault(member, gate) != gate:
            member += "'"  # a model may have a colon where another has a slash
        return member

    def factory(self, gate: str, class_of: Callable[[Ticket], str]) -> MakeGate | None:
        """What the door of a gate makes it with; None if that gate is no member."""
        weight = self._settings.doors.get(gate)
        if weight is None:
            return None
        member = self._member(gate)
        self._namers[member] = class_of
        return self.pool.member(member, weight)

    def lender(
        self, door: Hosted, gate: str, make: MakeGate, wake: Callable[[], None] | None = None
    ) -> MakeGate | None:
        """What a door with a thread or a clock of its own makes a gate with; None if that gate is no member."""
        weight = self._settings.doors.get(gate)
        if weight is None:
            return None
        self._borrowers[gate] = door
        return self.pool.borrower(self._member(gate), weight, wake=wake, gate=make)

    async def start(self) -> None:
        """Be on this loop; there is nothing else to begin: the doors do."""
        self.pool.runtime.enter(self.name)

    async def stop(self, grace: float) -> None:
        """There is nothing to end: the doors do."""
        self.state = "stopped"

    def retune(self, loaded: Loaded) -> list[str]:
        """Follow the slots, also where an operator has changed them, and the weights of the members there are."""
        said = loaded.settings.pools.get(self.name.partition("/")[2])
        members = self._settings.doors
        notes = []
        if said is None or said.doors.keys() != members.keys():
            notes.append(f"{self.name}: its members change only at the next start")
        if said is None:
            return notes
        if said.slots != self.pool.slots.total:
            self.pool.resize(said.slots)
        doors = {gate: said.doors.get(gate, weight) for gate, weight in members.items()}
        for gate, weight in doors.items():
            self.pool.set_weight(self._member(gate), weight)
        self._follow(said.model_copy(update={"doors": doors}))
        return notes

    def views(self) -> list[View]:
        """Its one gate."""
        slots = self.pool.slots
        view = View(
            self.name,
            self.name,
            self._channel,
            now=self.pool.runtime.now,
            total=lambda: slots.total,
            adjust=self.pool.runtime.adjust,
            adjustable={(slots.name, "resize"): resize_to},
            values=lambda part, verb, args: slots.total,
            overrides=lambda: view.resized(slots.name, self._settings.slots, AT_A_RELOAD),
        )
        return [view]

    def policy(self, gate: str) -> dict[str, Any] | None:
        """Slots that go to doors by weight; those that borrow order their own, in others it is told by arrival.

        One that borrows and tells no order does not work here now, and has no slots: what came by it before is told by
        arrival too.
        """
        told = {gate: door.policy(gate) for gate, door in self._borrowers.items()}
        doors = {gate: said for gate, said in told.items() if said is not None}
        return {
            "preset": "pool",
            "capacity": {"slots": self.pool.slots.total},
            "policy": {"fair": {"weights": dict(self._settings.doors)}},
            "doors": doors,
        }

    @property
    def planners(self) -> Mapping[str, Any]:
        return {
            name: one for door in self._borrowers.values() for name, one in door.planners.items()
        }

    async def recorded(self, rows: Sequence[Passed]) -> Iterable[dict[str, Any]]:
        """A line for each ticket, with the gate it came by; what used a slot that was lent, its own door tells."""
        if not rows:
            return ()  # a slot goes back with each that ends: doors that borrow have nothing to tell either
        since = rows[0].ended - LATER
        borrowed = []
        for gate, door in self._borrowers.items():
            own = await asyncio.to_thread(self._feed.rows, gate, since)
            borrowed.append(_by(gate, await door.recorded(own)))
        # Written as they are read: there may be very many.
        return chain(self._own_lines(rows), *borrowed)

    def _own_lines(self, rows: Sequence[Passed]) -> Iterator[dict[str, Any]]:
        for row in in_turn(rows):
            gate = row.cls.partition(" ")[0]
            if gate not in self._borrowers:
                yield line_of(row) | {"door": gate, "pool": gate}


def _by(gate: str, lines: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Tell by which gate tickets came; of classes of the same name at several doors, too."""
    for line in lines:
        yield line | {"door": gate, "class": f"{gate} {line['class']}"}


def shared(
    pools: Iterable[HostedPool], door: str, class_of: Callable[[Ticket], str], otherwise: MakeGates
) -> MakeGates:
    """Make a door's gates: those that are members of a pool in it, the others as before."""
    members = list(pools)

    def make(name: str) -> MakeGate:
        for pool in members:
            factory = pool.factory(f"{door}/{name}", class_of)
            if factory is not None:
                return factory
        return otherwise(name)

    return make


def borrowing(
    pools: Iterable[HostedPool],
    door: Hosted,
    gate: str,
    otherwise: MakeGate,
    wake: Callable[[], None] | None = None,
) -> MakeGate | None:
    """What a door with a thread or a clock of its own makes a gate with; None if that gate is in no pool."""
    found = (pool.lender(door, gate, otherwise, wake) for pool in pools)
    return next((make for make in found if make is not None), None)
