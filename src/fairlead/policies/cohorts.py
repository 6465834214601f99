"""Tickets that rise and fall together, so that one move moves them all.

A *cohort* is what one queue holds of one group (the jobs of one DAG, say) that shares everything an order may look at
but the size and the arrival of each ticket.  Whatever changes a rank, time or a group that comes into play, changes
that of the whole cohort: the head is ranked, and what stands behind it follows."""

from __future__ import annotations

from array import array
from collections import deque
from heapq import heapify, heappop, heappush
from math import floor, inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

    from fairlead.core.ticket import Ticket
    from fairlead.policies.ranked import Ranked, Section

WIDTH = 1.0  # seconds of one page of a calendar


class Rest(list["tuple[Any, float, int, Ticket]"]):
    """What stands behind a head: a heap by (size, arrival)."""

    __slots__ = ("dead",)

    def __init__(self) -> None:
        self.dead = 0  # tickets in it that were removed


class Cohort:
    """One ticket, or a heap of them by (size, arrival)."""

    # Of tickets with an SLA each there is one for each: what a single ticket does not need is kept elsewhere.
    __slots__ = ("entry", "head", "noted", "rest", "section", "size")

    def __init__(self, section: Section) -> None:
        self.section = section
        self.head: Any = None  # a ticket, or None when nobody is left
        self.size: Any = None  # of the head
        self.rest: Rest | None = None
        self.entry: Any = None  # the one valid entry in its section
        self.noted: Any = None  # where the calendar has noted it, if it has

    def add(self, ticket: Ticket, size: Any) -> bool:
        """Add; say whether it is the head now."""
        ticket.place = self
        head = self.head
        if head is None:
            self.head, self.size = ticket, size
            return True
        if self.rest is None:
            self.rest = Rest()
        if (size, ticket.arrived_at, ticket.seq) < (self.size, head.arrived_at, head.seq):
            heappush(self.rest, (self.size, head.arrived_at, head.seq, head))
            self.head, self.size = ticket, size
            return True
        heappush(self.rest, (size, ticket.arrived_at, ticket.seq, ticket))
        return False

    def pop(self) -> None:
        """Take the head out."""
        rest = self.rest
        while rest:
            self.size, _, _, ticket = heappop(rest)
            if ticket.place is self:
                self.head = ticket
                return
            rest.dead -= 1
        self.head = self.rest = None

    def discard(self) -> None:
        """One ticket of the rest was removed: its place is no longer this."""
        rest: Any = self.rest
        rest.dead += 1
        if 2 * rest.dead > len(rest) + 16:
            rest[:] = [entry for entry in rest if entry[3].place is self]
            heapify(rest)
            rest.dead = 0

    def __len__(self) -> int:
        if self.head is None:
            return 0
        return 1 if self.rest is None else 1 + len(self.rest) - self.rest.dead

    def __iter__(self) -> Iterator[Ticket]:
        if self.head is not None:
            yield self.head
            for entry in self.rest or ():
                if entry[3].place is self:
                    yield entry[3]


class Page:
    """A second of a calendar: cohorts, and beside them when each rises; one that was removed stays a while."""

    __slots__ = ("cohorts", "left", "number", "times")

    def __init__(self, number: int) -> None:
        self.number = number
        self.cohorts: list[Cohort] = []
        self.times = array("d")
        self.left = 0  # that were not removed

    def add(self, at: float, cohort: Cohort) -> None:
        cohort.noted = self
        self.cohorts.append(cohort)
        self.times.append(at)
        self.left += 1

    def remove(self) -> None:
        """One of its cohorts is no longer noted here."""
        self.left -= 1
        if self.left and len(self.cohorts) > 2 * self.left + 16:
            kept = list(self.take())
            self.cohorts, self.times, self.left = [], array("d"), 0
            for at, cohort in kept:
                self.add(at, cohort)

    def take(self) -> Iterator[tuple[float, Cohort]]:
        """Tell each cohort that is noted here, once, by what was noted last; from then on it is noted nowhere."""
        for at, cohort in zip(reversed(self.times), reversed(self.cohorts), strict=True):
            if cohort.noted is self:
                cohort.noted = None
                yield at, cohort


class Calendar:
    """When cohorts rise by themselves: pages of a second, of which only the present one is kept in order."""

    __slots__ = ("_count", "_numbers", "_pages", "_present", "_turned")

    def __init__(self) -> None:
        self._pages: dict[int, Page] = {}
        self._numbers: list[int] = []
        self._turned: float = -inf  # pages up to this one are in `_present`
        self._present: list[tuple[float, int, Cohort]] = []
        self._count = 0

    def add(self, at: float, cohort: Cohort) -> None:
        """Note when a cohort rises next; it is noted nowhere else."""
        if at == inf:
            cohort.noted = None
            return
        number = floor(at / WIDTH)
        if number <= self._turned:
            self._push(at, cohort)
            return
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = Page(number)
            heappush(self._numbers, number)
        page.add(at, cohort)

    def _push(self, at: float, cohort: Cohort) -> None:
        self._count += 1
        cohort.noted = entry = (at, self._count, cohort)
        heappush(self._present, entry)

    def remove(self, cohort: Cohort) -> None:
        """Forget a cohort."""
        noted, cohort.noted = cohort.noted, None
        if type(noted) is Page:  # of the present one it is dropped when it surfaces
            noted.remove()
            if not noted.left:
                del self._pages[noted.number]  # its number is passed over when it comes up

    def soonest(self) -> float:
        """Tell the earliest time at which one may rise."""
        numbers = self._numbers
        while numbers and numbers[0] not in self._pages:
            heappop(numbers)
        page = numbers[0] * WIDTH if numbers else inf
        return min(self._present[0][0], page) if self._present else page

    def due(self, now: float) -> Iterator[Cohort]:
        """Take out those that rise by now."""
        numbers, present = self._numbers, self._present
        while numbers and numbers[0] * WIDTH <= now:
            number = heappop(numbers)
            page = self._pages.pop(number, None)
            if page is not None:
                for at, cohort in page.take():
                    self._push(at, cohort)
            self._turned = max(self._turned, number)
        while present and present[0][0] <= now:
            entry = heappop(present)
            cohort = entry[2]
            if cohort.noted is entry:
                cohort.noted = None
                yield cohort


class Register:
    """Which groups are in play since when, and which cohorts are theirs, in whatever queue.

    Queues that share a register look into it before they choose; it is told of changes at any time.  A group is *fresh*
    for `burst` seconds after it came into play.
    """

    def __init__(self, burst: float = 0.0) -> None:
        self.burst = burst
        self.since: dict[Hashable, float] = {}
        self.cohorts: dict[Hashable, Cohort | dict[Hashable, Cohort]] = {}
        self._news: list[Hashable] = []
        self._bursts: deque[tuple[float, Hashable]] = deque()

    def tell(self, group: Hashable, since: float | None) -> None:
        """A group has come into play, or (None) gone out of it."""
        if since is not None:
            self.since[group] = since
            if group in self.cohorts:
                self._news.append(group)
            if self.burst > 0:
                self._bursts.append((since + self.burst, group))
        elif self.since.pop(group, None) is not None and group in self.cohorts:
            self._news.append(group)

    def fresh(self, group: Hashable, now: float) -> bool:
        """Say whether a group came into play a moment ago."""
        since = self.since.get(group)
        return since is not None and now < since + self.burst

    def recent(self, now: float) -> list[Hashable]:
        """Tell the groups that came into play a moment ago."""
        groups = (group for _, group in self._bursts)
        return [group for group in dict.fromkeys(groups) if self.fresh(group, now)]

    def of(self, group: Hashable) -> Iterable[Cohort]:
        """Tell a group's cohorts."""
        found = self.cohorts.get(group)
        if found is None:
            return ()
        return (found,) if isinstance(found, Cohort) else list(found.values())

    def settle(self, now: float) -> None:
        """Rank anew what has changed since the last look."""
        news, bursts = self._news, self._bursts
        if news:
            self._news = []
            for group in dict.fromkeys(news):
                for cohort in self.of(group):
                    cohort.section.queue.rank_anew(cohort, now)
        while bursts and bursts[0][0] <= now:
            _, group = bursts.popleft()
            for cohort in self.of(group):
                cohort.section.queue.rank_anew(cohort, now)

    def find(self, group: Hashable, key: Hashable) -> Cohort | None:
        """Find a cohort."""
        found = self.cohorts.get(group)
        if found is None:
            return None
        if isinstance(found, Cohort):
            return found if self._key(found) == key else None
        return found.get(key)

    def enter(self, group: Hashable, key: Hashable, cohort: Cohort) -> None:
        """Note a new cohort."""
        found = self.cohorts.get(group)
        if found is None:
            self.cohorts[group] = cohort
        elif isinstance(found, Cohort):
            self.cohorts[group] = {self._key(found): found, key: cohort}
        else:
            found[key] = cohort

    def leave(self, group: Hashable, queue: Ranked, ticket: Ticket) -> None:
        """Forget the cohort of a ticket: nobody is left in it."""
        found = self.cohorts[group]
        if isinstance(found, dict):
            del found[queue.cohort_key(ticket)]
            if found:
                return
        del self.cohorts[group]

    def _key(self, cohort: Cohort) -> Hashable:
        queue: Ranked = cohort.section.queue
        return queue.cohort_key(cohort.head)
