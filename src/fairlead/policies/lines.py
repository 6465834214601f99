"""Lines that do not compete: each has room of its own, and in turn they take what they share."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from fairlead.core.capacity import STOP
from fairlead.core.checks import read_by
from fairlead.core.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from fairlead.core.policy import Admit
    from fairlead.core.ticket import QueueLimit, Ticket


class Line:
    """One queue, and the scopes that part of it is parked under."""

    __slots__ = ("key", "queue", "waits")

    def __init__(self, key: Hashable, queue: Policy) -> None:
        self.key = key
        self.queue = queue
        self.waits: dict[Hashable, None] = {}


class Lines(Policy):
    """One queue per value of `by`, asked in turn; a line that has nothing to offer is not asked until it may have.

    Lines are kept when they are empty: they are meant to be few, such as the pools of a `Pools` capacity.

    >>> by_pool = Lines("pool", inside=lambda pool: Policy())
    """

    charges = True
    nests = True

    def __init__(
        self,
        by: str | Callable[[Ticket], Hashable],
        inside: Callable[[Hashable], Policy],
        *,
        settle: Callable[[float], None] | None = None,
        name: str = "",
        limit: int | None = None,
    ) -> None:
        self._key = read_by(by)
        self._inside = inside
        self._settle = settle  # called before each choice, for what the queues share
        self.name = name
        self.limit = limit
        self.limited = limit is not None
        self._by_key: dict[Hashable, Line] = {}
        self._awake: dict[Line, None] = {}  # in turn
        self._sleepers: dict[Hashable, dict[Line, None]] = {}  # by what refused them
        self._timed: dict[Line, None] = {}
        self._refused: list[Hashable] = []
        self._stopped = False
        self._admit: Admit | None = None
        self._asker = self._ask

    def line(self, key: Hashable) -> Policy:
        """Find the queue of a key; it is made if need be."""
        return self._line(key).queue

    def names(self) -> list[Hashable]:
        """Tell the lines there are."""
        return list(self._by_key)

    def _line(self, key: Hashable) -> Line:
        line = self._by_key.get(key)
        if line is None:
            line = self._by_key[key] = Line(key, self._inside(key))
            self._note(line)
        return line

    def _note(self, line: Line) -> None:
        line.queue.rouse = lambda: self._awake.__setitem__(line, None)
        self._timed.pop(line, None)
        if line.queue.timed:
            self._timed[line] = None
        self.timed = bool(self._timed)
        self.limited = self.limited or line.queue.limited

    def replace(self, key: Hashable, queue: Policy, now: float) -> None:
        """Let another queue order a line from now on; whoever waits there moves to it, oldest first."""
        line = self._line(key)
        tickets = sorted(line.queue, key=lambda ticket: ticket.seq)
        for ticket in tickets:
            line.queue.remove(ticket, now)
        for scope in line.waits:
            del self._sleepers[scope][line]
        line.waits.clear()
        line.queue = queue
        self._note(line)
        for ticket in tickets:
            queue.push(ticket, now)
        self._awake[line] = None

    def skips(self, ticket: Ticket) -> bool:
        return self._line(self._key(ticket)).queue.skips(ticket)

    def push(self, ticket: Ticket, now: float) -> None:
        line = self._line(self._key(ticket))
        line.queue.push(ticket, now)
        self._size += 1
        self._awake[line] = None

    def _ask(self, ticket: Ticket) -> Hashable | None:
        refusal = self._admit(ticket)  # type: ignore[misc]
        if refusal is STOP:
            self._stopped = True
        elif refusal is not None:
            self._refused.append(refusal)
        return refusal

    def pick(self, admit: Admit, now: float) -> Ticket | None:
        self._admit = admit
        self._stopped = False
        awake = self._awake
        if self._settle is not None:
            self._settle(now)
        for line in self._timed:
            awake[line] = None  # they may have something to offer without being roused
        while awake:
            line = next(iter(awake))
            ticket = line.queue.pick(self._asker, now) if line.queue else None
            if self._refused:
                self._note_refusals(line)
            if ticket is not None:
                self._size -= 1
                if len(awake) > 1:
                    del awake[line]  # to the end: it is the others' turn
                    awake[line] = None
                return ticket
            if self._stopped:
                return None
            del awake[line]
        return None

    def _note_refusals(self, line: Line) -> None:
        for scope in self._refused:
            if scope not in line.waits:
                line.waits[scope] = None
                self._sleepers.setdefault(scope, {})[line] = None
        self._refused.clear()

    def open(self, scope: Hashable, now: float) -> None:
        for line in self._sleepers.pop(scope, ()):
            del line.waits[scope]
            line.queue.open(scope, now)
            self._awake[line] = None

    def remove(self, ticket: Ticket, now: float) -> None:
        self._line(self._key(ticket)).queue.remove(ticket, now)
        self._size -= 1

    def charge(self, ticket: Ticket, amount: float, now: float) -> None:
        queue = self._line(self._key(ticket)).queue
        if queue.charges:
            queue.charge(ticket, amount, now)

    def head(self, now: float) -> Ticket | None:
        heads = (line.queue.head(now) for line in self._by_key.values() if line.queue)
        return next((head for head in heads if head is not None), None)

    def wakes_at(self, now: float) -> float:
        return min((line.queue.wakes_at(now) for line in self._timed), default=inf)

    def overflow(self, ticket: Ticket) -> QueueLimit | None:
        return super().overflow(ticket) or self._line(self._key(ticket)).queue.overflow(ticket)

    def explain(self, ticket: Ticket, now: float) -> str | None:
        return self._line(self._key(ticket)).queue.explain(ticket, now)

    def part(self, name: str) -> Policy | None:
        if name == self.name:
            return self
        parts = (line.queue.part(name) for line in self._by_key.values())
        return next((part for part in parts if part is not None), None)

    def __iter__(self) -> Iterator[Ticket]:
        for line in self._by_key.values():
            yield from line.queue
