"""Whoever has waited too long goes next, whatever the order says, but only so often.

An *elder* is a ticket that has waited for `max_wait`.  One in `budget` dispatches is for the oldest elder that has
room; the rest follow the order inside.  The cure is bounded, or in an overload, when everybody is an elder, it would
turn the order into one of arrival.  A ticket kept out by a scope of its own is no elder: it waits for its own quota.
Nor does an elder pass one for whom a scope is closed: where there is room for it, nobody grows old, so nothing here
is due by itself."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING

from fairlead.core.capacity import STOP
from fairlead.core.part import claim
from fairlead.core.policy import Policy
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from fairlead.core.policy import Admit
    from fairlead.core.ticket import QueueLimit, Ticket

TRIES = 8  # elders asked in one pick; if scopes keep them all out, more are asked in the next


class Elders(Policy):
    """Serve as `inside` does; one in `budget` dispatches goes to the oldest that has waited for `max_wait`.

    Where groups come into play (`fairlead.capacities.groups`), `group` tells a ticket's, and `began` is to be called.

    >>> patient = Elders(Policy(), max_wait=3600.0)
    """

    charges = True
    nests = True

    def __init__(
        self,
        inside: Policy,
        max_wait: float,
        *,
        budget: int = 4,
        group: Callable[[Ticket], Hashable] | None = None,
        name: str = "",
        limit: int | None = None,
    ) -> None:
        if not max_wait > 0:
            raise ConfigError(f"max_wait must be above 0 seconds; got {max_wait!r}")
        if budget < 1:
            raise ConfigError(f"budget must be 1 or more dispatches per promotion; got {budget!r}")
        self.inside = inside
        self.max_wait = max_wait
        self.budget = budget
        self.name = name
        self.limit = limit
        self.limited = limit is not None or inside.limited
        self.promotions = 0
        self._since = budget  # dispatches since the last promotion
        # By arrival: most come in that order, and cost a place in the line; the others are in a heap.
        self._line: deque[Ticket] = deque()
        self._out_of_line: list[tuple[float, int, Ticket]] = []
        self._last = -inf
        self._kept = 0  # entries in all of these
        self._group = group
        self._kin: dict[Hashable, list[tuple[float, int, Ticket]]] = {}  # those aside, by group
        self._aside: dict[Hashable, list[tuple[float, int, Ticket]]] = {}  # by what refused them
        self._woken: dict[Ticket, Hashable] = {}  # to be asked again, because a scope has opened
        claim(inside)
        inside.rouse = self._rouse

    def _rouse(self) -> None:
        if self.rouse is not None:
            self.rouse()

    @property
    def timed(self) -> bool:  # type: ignore[override]
        """Whether something inside is due by itself."""
        return self.inside.timed

    def skips(self, ticket: Ticket) -> bool:
        return self.inside.skips(ticket)

    def push(self, ticket: Ticket, now: float) -> None:
        self.inside.push(ticket, now)
        self._kept += 1
        if ticket.arrived_at >= self._last:
            self._last = ticket.arrived_at
            self._line.append(ticket)
        else:
            heappush(self._out_of_line, (ticket.arrived_at, ticket.seq, ticket))

    def _compact(self) -> None:
        """Those who left by another way are dropped once they outnumber the others."""
        if self._kept <= 2 * len(self.inside) + 64:
            return
        self._line = deque(ticket for ticket in self._line if ticket.place is not None)
        out_of_line, aside, woken = self._out_of_line, self._aside, self._woken
        # Nobody is asked in vain if all are asked again.
        entries = [entry for group in (out_of_line, *aside.values()) for entry in group]
        self._out_of_line = sorted(entry for entry in entries if entry[2].place is not None)
        aside.clear()
        woken.clear()
        self._kin.clear()
        self._kept = len(self._line) + len(self._out_of_line)
        if not self._line:
            self._last = -inf

    def _oldest(self) -> Ticket | None:
        line, heap = self._line, self._out_of_line
        while line and line[0].place is None:
            line.popleft()
            self._kept -= 1
        while heap and heap[0][2].place is None:
            self._kept -= 1
            self._let_next(heappop(heap)[2])
        if not line:
            self._last = -inf
            return heap[0][2] if heap else None
        first = line[0]
        if heap and heap[0] < (first.arrived_at, first.seq):
            return heap[0][2]
        return first

    def _step_out(self, ticket: Ticket) -> None:
        """Take the oldest out of the line."""
        self._kept -= 1
        if self._line and self._line[0] is ticket:
            self._line.popleft()
        else:
            heappop(self._out_of_line)

    def pick(self, admit: Admit, now: float) -> Ticket | None:
        if self._since >= self.budget:
            tries = TRIES
            while (
                tries
                and (oldest := self._oldest()) is not None
                and now - oldest.arrived_at >= self.max_wait
            ):
                tries -= 1
                refusal = admit(oldest)
                if refusal is STOP:
                    return None
                self._step_out(oldest)
                if refusal is None:
                    self._let_next(oldest)
                    self.inside.remove(oldest, now)
                    if self.inside.charges:
                        self.inside.charge(oldest, oldest.cost, now)
                    self._since = 1  # the promotion itself counts
                    self.promotions += 1
                    return oldest
                self._set_aside(oldest, refusal)
        ticket = self.inside.pick(admit, now)
        if ticket is not None:
            self._since += 1
            self._compact()
        return ticket

    def _set_aside(self, ticket: Ticket, refusal: Hashable) -> None:
        entry = (ticket.arrived_at, ticket.seq, ticket)
        heappush(self._aside.setdefault(refusal, []), entry)
        self._kept += 1
        if self._group is not None:
            self._kin.setdefault(self._group(ticket), []).append(entry)
        if self._woken.get(ticket, refusal) != refusal:
            self._let_next(ticket)
        self._woken.pop(ticket, None)

    def _let_next(self, ticket: Ticket) -> None:
        """It was asked again for a scope that has opened, and that scope did not refuse it: let the next be asked."""
        scope = self._woken.pop(ticket, None)
        if scope is not None:
            self._wake_one(scope)

    def _wake_one(self, scope: Hashable) -> None:
        aside = self._aside.get(scope)
        while aside:
            entry = heappop(aside)
            if entry[2].place is not None:
                heappush(self._out_of_line, entry)
                self._woken[entry[2]] = scope
                break
            self._kept -= 1
        if not aside:
            self._aside.pop(scope, None)

    def began(self, group: Hashable) -> None:
        """A group has come into play: what refused those aside may refuse them no longer."""
        for entry in self._kin.pop(group, ()):
            if entry[2].place is not None:
                heappush(self._out_of_line, entry)
                self._kept += 1

    def open(self, scope: Hashable, now: float) -> None:
        self._wake_one(scope)
        self.inside.open(scope, now)

    def remove(self, ticket: Ticket, now: float) -> None:
        self.inside.remove(ticket, now)
        self._compact()

    def charge(self, ticket: Ticket, amount: float, now: float) -> None:
        if amount > 0 and ticket.started_at == inf:
            self._since += 1
        if self.inside.charges:
            self.inside.charge(ticket, amount, now)

    def head(self, now: float) -> Ticket | None:
        return self.inside.head(now)

    def wakes_at(self, now: float) -> float:
        return self.inside.wakes_at(now)

    def overflow(self, ticket: Ticket) -> QueueLimit | None:
        return super().overflow(ticket) or self.inside.overflow(ticket)

    def explain(self, ticket: Ticket, now: float) -> str | None:
        inner = self.inside.explain(ticket, now)
        text = f"after {self.max_wait:g} s of waiting it goes before others, in turn"
        if now - ticket.arrived_at < self.max_wait:
            return inner
        return f"{text}; {inner}" if inner else text

    def part(self, name: str) -> Policy | None:
        return self if name == self.name else self.inside.part(name)

    def __len__(self) -> int:
        return len(self.inside)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self.inside)
