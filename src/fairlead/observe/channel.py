"""What one gate tells: its rows, its decisions, its totals, and who stands in its line now.

It follows each ticket from the line to its end, once, whatever a verb did with it in between.
"""

from __future__ import annotations

from collections import deque
from heapq import nlargest, nsmallest
from itertools import islice
from math import inf
from operator import attrgetter
from threading import Lock
from typing import TYPE_CHECKING, Any

from fairlead.core.ticket import EVICTED, MOVED, RUNNING, UNSET, WAITING, Outcome, Ticket
from fairlead.observe.passed import (
    MOST_DECISIONS,
    MOST_TENANTS,
    Decision,
    Passed,
    Rates,
    Reading,
    Share,
    Standing,
    Window,
    or_none,
    reason_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from fairlead.observe.watched import WatchedGate

# Each ticket that arrives is admitted, refused, expired, withdrawn or moved, once; each that was admitted is running,
# or completed, failed, disconnected, evicted or lost, once.  `promoted` counts some of those admitted once more.
TOTALS = (
    "admitted",
    "refused",
    "expired",
    "evicted",
    "promoted",
    "withdrawn",
    "moved",
    "completed",
    "failed",
    "disconnected",
    "lost",
)
ENDS = {Outcome.FAILED: "failed", Outcome.IGNORED: "disconnected", Outcome.OK: "done"}


def by_rank(ticket: Ticket) -> str:
    """Name the class of a ticket where its door gives no names."""
    return str(ticket.rank)


class Channel:
    """What one gate tells.  Written by the gate's thread, read by any."""

    def __init__(
        self,
        name: str,
        seconds: float,
        most: int,
        wall: Callable[[], float],
        numbers: Iterator[int],
    ) -> None:
        self.name = name
        self.gate: WatchedGate | None = None  # the latest of that name
        self.class_of: Callable[[Ticket], str] = by_rank
        self.tenant_of: Callable[[Ticket], Hashable] = attrgetter("tenant")
        self.more_of: Callable[[Ticket], Any] | None = None
        self._seconds, self._wall, self._numbers = seconds, wall, numbers
        self._lock = Lock()
        self._rows: deque[Passed] = deque(maxlen=most)
        self._decisions: deque[tuple[Any, ...]] = deque(maxlen=MOST_DECISIONS)
        self._window = Window()
        self._totals = dict.fromkeys(TOTALS, 0)
        self._row = 0
        self._offset: float | None = None  # from the gate's clock to the wall's
        self._places: dict[Ticket, _Line] = {}  # of all that wait or run
        self._committed: dict[Ticket, float] = {}  # when, of those that run and were
        self._lines: dict[str, _Line] = {}
        self._tenants: dict[Hashable, list[int]] = {}  # waiting, running

    # Reading

    def rows(self, since: float = 0.0) -> list[Passed]:
        """The tickets that ended since then, as far as they are remembered."""
        oldest = max(since, self._wall() - self._seconds)
        with self._lock:
            rows = list(self._rows)
        return [row for row in rows if row.ended >= oldest]

    def decided(self, after: int = 0, most: int = 200) -> list[Decision]:
        """The latest decisions with a number above `after`, oldest first."""
        with self._lock:
            found = list(self._decisions)
        return [Decision._make(one) for one in found[-most:] if one[0] > after] if most > 0 else []

    def totals(self) -> dict[str, int]:
        """What was counted since the start."""
        with self._lock:
            return dict(self._totals)

    def rates(self, seconds: float = 10.0) -> dict[str, Rates]:
        """How each class fared in the last seconds, at most a minute."""
        with self._lock:
            return self._window.rates(self._wall(), seconds)

    def standing(self) -> list[Standing]:
        """Who waits and runs now, by class, highest rank first; classes stay once they were seen."""
        with self._lock:
            found = self._standing()
        return sorted(found, key=lambda one: -one.rank)

    def _standing(self) -> list[Standing]:
        offset = self._offset or 0.0
        return [
            Standing(
                name,
                line.rank,
                len(line.waiting),
                line.running,
                next((one.arrived_at + offset for one in line.waiting), None),
            )
            for name, line in self._lines.items()
        ]

    def reading(self, seconds: float = 10.0) -> Reading:
        """Read everything at one instant, so that no two numbers of it can contradict each other."""
        with self._lock:
            standing, totals = self._standing(), dict(self._totals)
            tenants = [Share(name, *counts) for name, counts in self._tenants.items()]
            rates = self._window.rates(self._wall(), seconds)
        standing.sort(key=lambda one: -one.rank)
        return Reading(standing, totals, _busiest(tenants, MOST_TENANTS), rates)

    def first_waiting(self, most: int) -> list[Ticket]:
        """Those who wait now, across classes: who came first, first."""
        with self._lock:
            found = [one for line in self._lines.values() for one in islice(line.waiting, most)]
        return nsmallest(most, found, key=lambda one: (one.arrived_at, one.seq))

    def tenants(self, most: int = 20) -> list[Share]:
        """Who waits and runs now, by tenant: those with the most."""
        with self._lock:
            found = [Share(name, *counts) for name, counts in self._tenants.items()]
        return _busiest(found, most)

    # Writing

    def note(self, tickets: Iterable[Ticket], now: float) -> None:
        """Look at tickets that a verb may have changed."""
        with self._lock:
            if self._offset is None:
                tickets = list(tickets)
                if not tickets:
                    return  # before its first ticket a gate may have no clock yet
                self._offset = self._wall() - now
            t = now + self._offset
            for ticket in tickets:
                state, line = ticket.state, self._places.get(ticket)
                if state is RUNNING:
                    if line is None or ticket in line.waiting:
                        self._begin(ticket, line, t)
                elif state is WAITING:
                    if line is None:
                        self._place(ticket).waiting[ticket] = None
                        self._count(ticket, 1, 0)
                elif state is EVICTED:
                    self._evict(ticket, line, t)
                else:
                    self._end(ticket, line, t, state.value)

    def commit(self, ticket: Ticket) -> None:
        """Note that nobody may preempt a ticket from now on."""
        with self._lock:
            if ticket in self._places:
                self._committed.setdefault(ticket, self._wall())

    def turn_away(self, ticket: Ticket, now: float) -> None:
        """Note a ticket that its door turned away before a gate saw it; its state says how, its reason why."""
        self.note((ticket,), now)

    def end(self, ticket: Ticket, now: float, outcome: Outcome) -> None:
        """Note the end of work; of a ticket that held nothing any more there is nothing to note."""
        with self._lock:
            line = self._places.get(ticket)
            if line is not None:
                state = ticket.state.value
                if outcome is Outcome.LOST:
                    state = "lost"
                elif state == "done":
                    state = ENDS[outcome]
                self._end(ticket, line, now + (self._offset or 0.0), state)

    def adopt(self, tickets: Iterable[Ticket], now: float) -> None:
        """Note tickets that run already: another gate had started them."""
        with self._lock:
            if self._offset is None:
                self._offset = self._wall() - now
            for ticket in tickets:
                if ticket not in self._places:
                    self._place(ticket).running += 1
                    self._count(ticket, 0, 1)

    def forget(self, tickets: Iterable[Ticket]) -> None:
        """Let go of tickets that another gate goes on with."""
        with self._lock:
            for ticket in tickets:
                line = self._places.pop(ticket, None)
                self._committed.pop(ticket, None)
                if line is not None:
                    self._leave(ticket, line)

    def _place(self, ticket: Ticket) -> _Line:
        line = self._places[ticket] = self._line(ticket)
        return line

    def _line(self, ticket: Ticket) -> _Line:
        name = self.class_of(ticket)
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _Line(name, ticket.rank)
        return line

    def _count(self, ticket: Ticket, waiting: int, running: int) -> None:
        tenant = self.tenant_of(ticket)
        counts = self._tenants.setdefault(tenant, [0, 0])
        counts[0] += waiting
        counts[1] += running
        if not (counts[0] or counts[1]):
            del self._tenants[tenant]

    def _leave(self, ticket: Ticket, line: _Line) -> None:
        if ticket in line.waiting:
            del line.waiting[ticket]
            self._count(ticket, -1, 0)
        else:
            line.running -= 1
            line.evicted.pop(ticket, None)
            self._count(ticket, 0, -1)

    def _begin(self, ticket: Ticket, line: _Line | None, t: float) -> _Line:
        if line is None:
            line = self._place(ticket)
            self._count(ticket, 0, 1)
        else:
            del line.waiting[ticket]
            self._count(ticket, -1, 1)
        line.running += 1
        waited = max(0.0, ticket.started_at - ticket.arrived_at)
        self._totals["admitted"] += 1
        self._window.tally(t, line.name).start(waited)
        if ticket.promoted:
            self._totals["promoted"] += 1
        self._decide(ticket, line.name, t, "promoted" if ticket.promoted else "started", waited)
        return line

    def _evict(self, ticket: Ticket, line: _Line | None, t: float) -> None:
        if line is None or ticket in line.waiting:  # it started and was evicted within one verb
            line = self._begin(ticket, line, t)
        if ticket in line.evicted:
            return
        line.evicted[ticket] = None
        self._totals["evicted"] += 1
        waited = ticket.started_at - ticket.arrived_at
        self._decide(ticket, line.name, t, "evicted", waited, self._held(ticket, t))

    def _end(self, ticket: Ticket, line: _Line | None, t: float, state: str) -> None:
        if ticket.started_at < inf and (line is None or ticket in line.waiting):
            line = self._begin(ticket, line, t)  # it started and ended within one verb
        if line is None:
            name = self._line(ticket).name
        else:
            name = line.name
            del self._places[ticket]
            self._leave(ticket, line)
        committed = self._committed.pop(ticket, None)
        offset = self._offset or 0.0
        started = or_none(ticket.started_at + offset)
        arrived = t if ticket.arrived_at == UNSET else ticket.arrived_at + offset
        if state == "withdrawn" and ticket.reason == MOVED:
            state = "moved"
        if state != "evicted":  # that was counted, and decided, before
            self._totals["completed" if state == "done" else state] += 1
        if state in ("refused", "expired"):
            self._window.tally(t, name).refused += 1
        self._row += 1
        while self._rows and self._rows[0].ended < t - self._seconds:
            self._rows.popleft()
        self._rows.append(
            Passed(
                self.name,
                self._row,
                _key_of(ticket),
                name,
                ticket.rank,
                self.tenant_of(ticket),
                ticket.workload,
                ticket.cost,
                ticket.priority,
                or_none(ticket.deadline + offset),
                arrived,
                started,
                t,
                state,
                reason_of(ticket.reason),
                ticket.promoted,
                ticket.estimate,
                None if self.more_of is None else self.more_of(ticket),
                ticket.patience,
                ticket.seq,
                None if committed is None or started is None else max(0.0, committed - started),
            )
        )
        if state != "evicted":
            waited = (t if started is None else started) - arrived
            what = "done" if state == "lost" else state
            self._decide(ticket, name, t, what, waited, self._held(ticket, t))

    def _held(self, ticket: Ticket, t: float) -> float | None:
        started = or_none(ticket.started_at + (self._offset or 0.0))
        return None if started is None else t - started

    def _decide(
        self,
        ticket: Ticket,
        name: str,
        t: float,
        what: str,
        waited: float,
        held: float | None = None,
    ) -> None:
        who = (_key_of(ticket), name, ticket.rank, self.tenant_of(ticket), ticket.workload)
        self._decisions.append(
            (next(self._numbers), t, self.name, *who, what, waited, held, ticket.reason)
        )


def _busiest(tenants: Iterable[Share], most: int) -> list[Share]:
    return nlargest(most, tenants, key=lambda one: (one.running + one.waiting, one.waiting))


def _key_of(ticket: Ticket) -> Hashable:
    return ticket.seq if ticket.key is None else ticket.key


class _Line:
    """Those of one class; `waiting` is in the order of arrival."""

    __slots__ = ("evicted", "name", "rank", "running", "waiting")

    def __init__(self, name: str, rank: int) -> None:
        self.name, self.rank = name, rank
        self.waiting: dict[Ticket, None] = {}
        self.evicted: dict[Ticket, None] = {}  # they run until they have ended
        self.running = 0
