"""An order that moves with time and with what has begun, kept without ever sorting everything.

A ticket's rank is, smallest first,

    (band, −score, middle, is its group new, size, is its group no longer fresh, arrival)

(or with size and freshness the other way round), and a `Ranking` says what these are.  Only the score moves with time,
and only upwards; only groups that come into play, or cease to be fresh, change the rest.  Cohorts
(`fairlead.policies.cohorts`) share all but size and arrival, so each is ranked by its head: one entry per cohort in the
heap of its *section*, and one per section in a heap above.  Entries are always exact: a rank that changes is entered
anew, and its old entry dropped when it surfaces.

A section is what the same scopes keep out, and is blocked as a whole: of 100,000 tickets of new groups, when no further
group may come into play, one is asked."""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from typing import TYPE_CHECKING, Any

from fairlead.core.capacity import STOP
from fairlead.core.policy import Policy
from fairlead.policies.cohorts import Calendar, Cohort, Register

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from fairlead.core.policy import Admit
    from fairlead.core.ticket import Ticket

    Fits = Callable[[Ticket], bool]

Entry = tuple[Any, ...]  # the rank, in eight places, then its cohort
ARRIVED, COHORT, TICKET = 6, 8, 9  # the ticket only where a cohort is gone through


class Ranking:
    """What a rank is made of; the defaults serve the longest estimates of each tenant last, begun tenants first."""

    prefers_begun = True  # do groups in play go before new ones, and fresh ones before others?
    size_first = True  # does the size go before being fresh?

    def group(self, ticket: Ticket) -> Hashable:
        """Tell the group of a ticket."""
        return ticket.tenant

    def standing(self, ticket: Ticket, now: float) -> tuple[Any, float, Any]:
        """Tell band, −score and middle.  Only the score changes, and it never falls as time passes."""
        return 0, 0.0, 0

    def terms(self, ticket: Ticket) -> tuple[Hashable, ...]:
        """Tell all that standing and section are made of: tickets of equal terms never part."""
        return (ticket.scopes,)

    def changes_at(self, ticket: Ticket, now: float) -> float:
        """Tell when the score rises next."""
        return inf

    def size(self, ticket: Ticket) -> Any:
        """Rank by this the tickets of new groups, and those of begun ones; it never changes."""
        return inf if ticket.estimate is None else ticket.estimate

    def section(self, ticket: Ticket, begun: bool) -> Hashable:
        """Name the section: whatever refuses one of its tickets by a scope refuses all of it."""
        return ticket.scopes

    def shared(self, scope: Hashable) -> bool:
        """Say whether a scope refuses everybody in the queue."""
        return False


class Section:
    """Cohorts that the same scopes keep out."""

    __slots__ = ("blocked", "dead", "entry", "heap", "name", "queue")

    def __init__(self, queue: Ranked, name: Hashable) -> None:
        self.queue = queue
        self.name = name
        self.heap: list[Any] = []  # of entries
        self.dead = 0
        self.entry: Any = None  # its one valid entry in the heap above
        self.blocked: Hashable | None = None

    def first(self) -> Entry | None:
        """Tell the entry of the best cohort."""
        heap = self.heap
        while heap:
            entry: Entry = heap[0]
            valid: object = entry[COHORT].entry
            if valid is entry:
                return entry
            heappop(heap)
            self.dead -= 1
        return None

    def forget(self) -> None:
        """One entry is no longer valid."""
        self.dead += 1
        if 2 * self.dead > len(self.heap) + 64:
            self.heap = [entry for entry in self.heap if entry[COHORT].entry is entry]
            heapify(self.heap)
            self.dead = 0


class Ranked(Policy):
    """Serve by rank; queues that share a register share what they know of groups.

    >>> from fairlead.core import Gate, Ticket
    >>> from fairlead.capacities import Slots
    >>> gate = Gate(Ranked(Ranking()), Slots(1))
    """

    rouses = True

    def __init__(
        self,
        ranking: Ranking,
        register: Register | None = None,
        *,
        name: str = "",
        limit: int | None = None,
    ) -> None:
        self.ranking = ranking
        self.name = name
        self.limit = limit
        self._register = Register() if register is None else register
        self._calendar = Calendar()
        self._rises_at = inf
        self._sections: dict[Hashable, Section] = {}
        # A cohort that moves may leave an entry behind that ranks as its new one: the count tells them apart.
        self._top: list[tuple[Entry, int, Section]] = []
        self._count = 0
        self._blocked: dict[Hashable, dict[Section, None]] = {}

    def cohort_key(self, ticket: Ticket) -> Hashable:
        """Name the cohort of a ticket within its group."""
        return (self, *self.ranking.terms(ticket))

    def push(self, ticket: Ticket, now: float) -> None:
        ranking, register = self.ranking, self._register
        group = ranking.group(ticket)
        size = ranking.size(ticket)
        found = register.cohorts.get(group)
        # Groups of one ticket are not kept by key, so theirs need not be made.
        key = None if found is None else self.cohort_key(ticket)
        cohort = None if found is None else register.find(group, key)
        if cohort is None:
            section = self._section(ticket, group)
            cohort = Cohort(section)
            if found is None:
                register.cohorts[group] = cohort
            else:
                register.enter(group, key, cohort)
            cohort.add(ticket, size)
            self._enter(cohort, now)
        elif cohort.add(ticket, size):
            self._enter(cohort, now)
        self._size += 1

    def _name(self, ticket: Ticket, begun: bool) -> Hashable:
        return begun, self.ranking.section(ticket, begun)

    def _section(self, ticket: Ticket, group: Hashable) -> Section:
        name = self._name(ticket, group in self._register.since)
        section = self._sections.get(name)
        if section is None:
            section = self._sections[name] = Section(self, name)
        return section

    def _enter(self, cohort: Cohort, now: float) -> None:
        """Rank a cohort whose head, score or group has changed."""
        section = cohort.section
        ranking = self.ranking
        head: Ticket = cohort.head
        if cohort.entry is not None:
            cohort.entry = None
            section.forget()
        else:
            at = ranking.changes_at(head, now)
            if at < inf:
                self._calendar.add(at, cohort)
                if at < self._rises_at:
                    self._rises_at = at
        new = late = False
        if ranking.prefers_begun:
            since = self._register.since.get(ranking.group(head))
            new = since is None
            late = since is None or now >= since + self._register.burst
        cohort.entry = entry = (
            *ranking.standing(head, now),
            new,
            *((cohort.size, late) if ranking.size_first else (late, cohort.size)),
            head.arrived_at,
            head.seq,
            cohort,
        )
        heappush(section.heap, entry)
        if section.blocked is None and (section.entry is None or entry < section.entry):
            self._put_up(section, entry)

    def _put_up(self, section: Section, entry: Entry) -> None:
        """A section competes with a new best cohort."""
        section.entry = entry
        self._count += 1
        heappush(self._top, (entry, self._count, section))

    def _take_down(self, section: Section) -> None:
        """A section has nobody to offer."""
        section.entry = None

    def _behind(self, entry: Entry, size: Any, ticket: Ticket) -> Entry:
        """Rank another ticket of a cohort that has this entry."""
        if self.ranking.size_first:
            return (*entry[:4], size, entry[5], ticket.arrived_at, ticket.seq, entry[COHORT])
        return (*entry[:5], size, ticket.arrived_at, ticket.seq, entry[COHORT])

    def rank_anew(self, cohort: Cohort, now: float) -> None:
        """Its group has come into play, gone out of it, or is no longer fresh."""
        head: Ticket = cohort.head
        section = self._section(head, self.ranking.group(head))
        old = cohort.section
        if section is not old:
            cohort.entry = None
            old.forget()
            cohort.section = section
            self._calendar.remove(cohort)
            self._drop_if_empty(old)
            if section.blocked is None and self.rouse is not None:
                self.rouse()
        self._enter(cohort, now)

    def _update(self, now: float) -> None:
        """Bring the order to `now`."""
        self._register.settle(now)
        if now >= self._rises_at:
            for cohort in self._calendar.due(now):
                if cohort.entry is not None:
                    cohort.entry = None
                    cohort.section.forget()
                self._enter(cohort, now)
            self._rises_at = self._calendar.soonest()

    def _best(self, now: float) -> Section | None:
        """Tell the section of the best that is not blocked; its `entry` is that of the best cohort."""
        top = self._top
        while top:
            entry, count, section = top[0]
            if section.entry is not entry:
                heappop(top)
                continue
            first = section.first()
            if first is entry:
                return section
            section.entry = first
            if first is None:
                heappop(top)
                self._drop_if_empty(section)
            else:
                heapreplace(top, (first, count, section))
        return None

    def _drop_if_empty(self, section: Section) -> None:
        if len(section.heap) == section.dead and self._sections.get(section.name) is section:
            self._take_down(section)
            del self._sections[section.name]
            if section.blocked is not None:
                group = self._blocked[section.blocked]
                del group[section]
                if not group:
                    del self._blocked[section.blocked]

    def pick(self, admit: Admit, now: float) -> Ticket | None:
        self._update(now)
        while (section := self._best(now)) is not None:
            cohort: Cohort = section.entry[COHORT]
            ticket: Ticket = cohort.head
            refusal = admit(ticket)
            if refusal is None:
                self._take_head(cohort, ticket, now)
                return ticket
            if refusal is STOP or self.ranking.shared(refusal):
                return None
            self._take_down(section)
            section.blocked = refusal
            self._blocked.setdefault(refusal, {})[section] = None
        return None

    def _take_head(self, cohort: Cohort, ticket: Ticket, now: float) -> None:
        """The head leaves; it stands at the top of its section's heap, if it was picked."""
        ticket.place = None
        self._size -= 1
        section = cohort.section
        cohort.pop()
        head = cohort.head
        old = cohort.entry
        if head is None:
            cohort.entry = None
            if section.heap[0] is old:
                heappop(section.heap)
            else:
                section.forget()
            self._calendar.remove(cohort)
            self._register.leave(self.ranking.group(ticket), self, ticket)
            self._drop_if_empty(section)
        else:
            entry = self._behind(old, cohort.size, head)
            cohort.entry = entry
            if section.heap[0] is old:
                heapreplace(section.heap, entry)
            else:
                section.forget()
                heappush(section.heap, entry)

    def open(self, scope: Hashable, now: float) -> None:
        for section in self._blocked.pop(scope, ()):
            section.blocked = None
            first = section.first()
            if first is not None:
                self._put_up(section, first)

    def remove(self, ticket: Ticket, now: float) -> None:
        cohort: Cohort = ticket.place
        if cohort.head is ticket:
            self._take_head(cohort, ticket, now)
        else:
            ticket.place = None
            self._size -= 1
            cohort.discard()

    def head(self, now: float) -> Ticket | None:
        self._update(now)
        section = self._best(now)
        head: Ticket | None = None if section is None else section.entry[COHORT].head
        return head

    def in_order(self, now: float, fits: Fits) -> Iterator[tuple[Entry, Ticket]]:
        """Go through tickets by rank, but for sections whose first does not fit; nothing may change meanwhile."""
        self._update(now)
        heap: list[Entry] = []
        for section in self._sections.values():
            first = section.first()
            if first is not None and fits(first[COHORT].head):
                heap += (entry for entry in section.heap if entry[COHORT].entry is entry)
        heapify(heap)
        places: dict[Cohort, Iterator[tuple[Any, float, int, Ticket]]] = {}
        while heap:
            entry = heap[0]
            cohort: Cohort = entry[COHORT]
            if cohort not in places:
                yield entry, cohort.head
                places[cohort] = iter(sorted(cohort.rest or ()))
            else:
                yield entry, entry[TICKET]
            for size, _, _, ticket in places[cohort]:
                if ticket.place is cohort:
                    heapreplace(heap, (*self._behind(entry, size, ticket), ticket))
                    break
            else:
                heappop(heap)

    def before(self, ticket: Ticket, now: float, most: int) -> int | None:
        """Count those of this queue who rank before a ticket; None if there are more than `most`."""
        for place, (_, other) in enumerate(self.in_order(now, lambda first: True)):
            if other is ticket:
                return place
            if place >= most:
                break
        return None

    def cohorts(self) -> Iterator[Cohort]:
        """Go through all cohorts."""
        for section in self._sections.values():
            for entry in section.heap:
                if entry[COHORT].entry is entry:
                    yield entry[COHORT]

    def __iter__(self) -> Iterator[Ticket]:
        for cohort in self.cohorts():
            yield from cohort
