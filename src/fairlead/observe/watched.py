"""Gates that can be watched while they work: who came, what became of them, who stands in line now.

    feed = Feed()
    gate = feed.gate("tasks/reports")(policy, capacity)      # where a door would make Gate(policy, capacity)
    feed.rows("tasks/reports", since=time.time() - 900)

A WatchedGate decides nothing: it looks at the tickets that a verb was given and those it returned.  A plain Gate knows
nothing of this and costs what it did.  A Feed may be read from any thread.
"""

from __future__ import annotations

import time
from functools import partial
from heapq import merge
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from fairlead.core.gate import Gate
from fairlead.core.ticket import WAITING, WITHDRAWN, Outcome, Ticket
from fairlead.observe.channel import Channel
from fairlead.observe.passed import MOST_ROWS, REMEMBERED, Decision, Passed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fairlead.core.capacity import Capacity
    from fairlead.core.gate import Change
    from fairlead.core.policy import Policy


class Feed:
    """What the gates of a process tell: rows, decisions, totals, and who stands in line."""

    def __init__(
        self,
        *,
        seconds: float = REMEMBERED,
        most: int = MOST_ROWS,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.channels: dict[str, Channel] = {}
        self._seconds, self._most, self._wall = seconds, most, wall
        self._numbers = count(1)

    def channel(self, gate: str, class_of: Callable[[Ticket], str] | None = None) -> Channel:
        """The channel of a gate, made when first asked for."""
        found = self.channels.get(gate)
        if found is None:
            ring = (self._seconds, self._most, self._wall, self._numbers)
            found = self.channels[gate] = Channel(gate, *ring)
        if class_of is not None:
            found.class_of = class_of
        return found

    def gate(
        self, gate: str, class_of: Callable[[Ticket], str] | None = None
    ) -> Callable[[Policy, Capacity], WatchedGate]:
        """What a door makes its gate with.  `class_of` names the class of a ticket."""
        return partial(WatchedGate, channel=self.channel(gate, class_of))

    def gates(
        self, door: str, class_of: Callable[[Ticket], str] | None = None
    ) -> Callable[[str], Callable[[Policy, Capacity], WatchedGate]]:
        """The same for a door with several gates, each with a name: `gates("flows")("checkout")` is flows/checkout."""

        def named(name: str) -> Callable[[Policy, Capacity], WatchedGate]:
            return self.gate(f"{door}/{name}", class_of)

        return named

    def rows(self, gate: str, since: float = 0.0) -> list[Passed]:
        """The tickets of a gate that ended since then, as far as they are remembered, in the order of their ends."""
        return self.channels[gate].rows(since)

    def decisions(self, after: int = 0, most: int = 200) -> list[Decision]:
        """The latest decisions of all gates with a number above `after`, oldest first; at most `most` of them."""
        told = [channel.decided(after, most) for channel in list(self.channels.values())]
        return list(merge(*told, key=attrgetter("number")))[-most:] if most > 0 else []


class WatchedGate(Gate):
    """A gate that tells a feed what it does; it decides like any other.

    >>> from fairlead.policies import FIFO
    >>> from fairlead.capacities import Slots
    >>> feed = Feed()
    >>> gate, ticket = feed.gate("tasks/demo")(FIFO(), Slots(1)), Ticket("a")
    >>> _ = gate.offer(ticket, now=0.0), gate.finish(ticket, now=2.0)
    >>> [(row.key, row.state, row.ended - row.arrived) for row in feed.rows("tasks/demo")]
    [('a', 'done', 2.0)]
    """

    def __init__(self, *args: Any, channel: Channel, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.channel = channel
        channel.gate = self

    def offer(self, ticket: Ticket, now: float) -> Sequence[Ticket]:
        changed = super().offer(ticket, now)
        self.channel.note((ticket, *changed), self.now)
        return changed

    def enlist(self, tickets: Iterable[Ticket], now: float) -> Sequence[Ticket]:
        tickets = list(tickets)
        changed = super().enlist(tickets, now)
        self.channel.note(dict.fromkeys((*tickets, *changed)), self.now)
        return changed

    def finish(
        self,
        ticket: Ticket,
        now: float,
        outcome: Outcome = Outcome.OK,
        spent: float | None = None,
    ) -> Sequence[Ticket]:
        try:
            changed = super().finish(ticket, now, outcome, spent)
        finally:
            self._ended((ticket,), outcome)
        if changed:
            self.channel.note(changed, self.now)
        return changed

    def finish_all(
        self, tickets: Iterable[Ticket], now: float, outcome: Outcome = Outcome.OK
    ) -> Sequence[Ticket]:
        tickets = list(tickets)
        try:
            changed = super().finish_all(tickets, now, outcome)
        finally:
            self._ended(tickets, outcome)
        if changed:
            self.channel.note(changed, self.now)
        return changed

    def _ended(self, tickets: Iterable[Ticket], outcome: Outcome) -> None:
        """Note the ends of those that hold room no longer: a verb that was refused has ended nothing."""
        for ticket in tickets:
            if ticket not in self.holders and ticket.state is not WAITING:
                self.channel.end(ticket, self.now, outcome)

    def withdraw(self, tickets: Iterable[Ticket], now: float) -> Sequence[Ticket]:
        tickets = list(tickets)
        waited = dict.fromkeys(ticket for ticket in tickets if ticket.state is WAITING)
        try:
            changed = super().withdraw(tickets, now)
        finally:
            self.channel.note([one for one in waited if one.state is WITHDRAWN], self.now)
        if changed:
            self.channel.note(changed, self.now)
        return changed

    def adjust(self, change: Change, now: float) -> Sequence[Ticket]:
        changed = super().adjust(change, now)
        if changed:
            self.channel.note(changed, self.now)
        return changed

    def commit(self, ticket: Ticket) -> bool:
        committed = super().commit(ticket)
        if committed:
            self.channel.commit(ticket)
        return committed

    def advance(self, now: float) -> Sequence[Ticket]:
        changed = super().advance(now)
        if changed:
            self.channel.note(changed, self.now)
        return changed

    def turn_away(self, ticket: Ticket, now: float) -> None:
        """Note a ticket that its door refused, or saw leave, without offering it here."""
        self.channel.turn_away(ticket, now)

    def surrender(self) -> list[Ticket]:
        tickets = super().surrender()
        self.channel.forget(tickets)
        return tickets

    def adopt(self, tickets: Iterable[Ticket], now: float) -> None:
        tickets = list(tickets)
        super().adopt(tickets, now)
        self.channel.adopt(tickets, now)
