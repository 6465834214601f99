"""Highest response ratio next: (waited + size) / size, an order that turns with time, without looking at everybody.

The ratio of a ticket is 1 + (now − arrived) / size: a line in time.  Of one size the oldest is always first, so each
size is a section of its own, in order of arrival, and only the heads of sections compete.  Sections of nearly one size
share a *shelf*; none on it can have a higher ratio than its oldest head would have at its least size, so most shelves
are passed over with one comparison.

What has no size has the ratio 1, and so has an infinite size; a size of 0 has an infinite one.  Among these, and among
equal ratios, the rest of the rank decides.
"""

from __future__ import annotations

from math import frexp, inf
from typing import TYPE_CHECKING, Any

from fairlead.policies.ranked import ARRIVED, COHORT, Ranked, Ranking, Section

if TYPE_CHECKING:
    from collections.abc import Hashable

    from fairlead.core.ticket import Ticket
    from fairlead.policies.cohorts import Cohort

SHELVES = 64  # for each doubling of the size


class RatioRanking(Ranking):
    """What a rank is made of, besides the ratio."""

    def length(self, ticket: Ticket) -> float | None:
        """Tell the size in seconds, 0 or more; None if it is not known."""
        return ticket.estimate

    def level(self, ticket: Ticket) -> Any:
        """Rank equal ratios by this first; it never changes."""
        return 0

    def score(self, ticket: Ticket, now: float) -> float:
        """Score equal ratios and levels: more goes first.  It never falls as time passes."""
        return 0.0

    def age(self, ticket: Ticket) -> float:
        """Tell when it arrived, if that makes a difference."""
        length = self.length(ticket)
        return 0.0 if length == 0 or length == inf else ticket.arrived_at

    def standing(self, ticket: Ticket, now: float) -> tuple[Any, float, Any]:
        return (self.age(ticket), self.level(ticket)), -self.score(ticket, now), 0

    def terms(self, ticket: Ticket) -> tuple[Hashable, ...]:
        return self.length(ticket), self.age(ticket), self.level(ticket), ticket.scopes


class Shelf:
    """Sections of nearly one size."""

    __slots__ = ("least", "oldest", "sections")

    def __init__(self, least: float) -> None:
        self.least = least
        # Nobody on it came before; a bound, made exact when it is looked through.
        self.oldest = -inf
        self.sections: dict[Section, None] = {}


class Ratio(Ranked):
    """Serve the highest response ratio first.

    >>> from fairlead.core import Gate, Ticket
    >>> from fairlead.capacities import Slots
    >>> gate = Gate(Ratio(RatioRanking()), Slots(1))
    """

    ranking: RatioRanking

    def __init__(self, ranking: RatioRanking, *args: Any, **kwargs: Any) -> None:
        super().__init__(ranking, *args, **kwargs)
        self._shelves: dict[Hashable, Shelf] = {}
        self._first: Hashable = None  # the shelf of the one served last: likely a good one

    def _name(self, ticket: Ticket, begun: bool) -> Hashable:
        return super()._name(ticket, begun), self.ranking.length(ticket)

    def _shelf(self, section: Section) -> tuple[Hashable, float]:
        length: float | None = section.name[1]  # type: ignore[index]
        if length is None or length == 0 or length == inf:
            return length, 0.0
        fraction, exponent = frexp(length)
        step = int(fraction * 2 * SHELVES)
        return (exponent, step), min(length, step / (2 * SHELVES) * 2.0**exponent)

    def _put_up(self, section: Section, entry: Any) -> None:
        """A section has a new best cohort."""
        section.entry = entry
        name, least = self._shelf(section)
        shelf = self._shelves.get(name)
        if shelf is None:
            shelf = self._shelves[name] = Shelf(least)
            shelf.oldest = entry[ARRIVED]
        elif entry[ARRIVED] < shelf.oldest:
            shelf.oldest = entry[ARRIVED]
        shelf.sections[section] = None

    def _take_down(self, section: Section) -> None:
        section.entry = None
        name, _ = self._shelf(section)
        shelf = self._shelves.get(name)
        if shelf is not None:
            shelf.sections.pop(section, None)
            if not shelf.sections:
                del self._shelves[name]

    def before(self, ticket: Ticket, now: float, most: int) -> int | None:
        if len(self) > 10 * most:
            return None  # to count them takes a look at each
        self._update(now)
        own = self._whole_key(ticket, now)
        ahead = sum(self._whole_key(other, now) < own for other in self)
        return ahead if ahead <= most else None

    def _whole_key(self, ticket: Ticket, now: float) -> tuple[Any, ...]:
        cohort: Cohort = ticket.place
        entry = self._behind(cohort.entry, self.ranking.size(ticket), ticket)
        ratio, rest = self._ratio(cohort, entry, now, 0.0)
        return -ratio, rest

    def _best(self, now: float) -> Section | None:
        best: Section | None = None
        highest, first, winner = 0.0, None, None
        shelves = list(self._shelves.items())
        if self._first in self._shelves:
            shelves.insert(0, (self._first, self._shelves[self._first]))
        for name, shelf in shelves:
            if shelf.least and 1.0 + max(0.0, now - shelf.oldest) / shelf.least < highest:
                continue
            if name == self._first and best is not None:
                continue  # it was looked through first of all
            oldest = inf
            for section in list(shelf.sections):
                entry = section.first()
                if entry is None:
                    self._take_down(section)
                    self._drop_if_empty(section)
                    continue
                section.entry = entry
                oldest = min(oldest, entry[ARRIVED])
                ratio, key = self._ratio(entry[COHORT], entry, now, highest)
                if ratio > highest or (ratio == highest and (first is None or key < first)):
                    best, highest, first = section, ratio, key
                    winner = name
            shelf.oldest = oldest
        if best is not None:
            self._first = winner
        return best

    def _ratio(self, cohort: Cohort, entry: Any, now: float, least: float) -> tuple[float, Any]:
        """Tell the ratio, and the rest of the key unless the ratio is too low to need it."""
        waited = max(0.0, now - entry[ARRIVED])
        length = self.ranking.length(cohort.head)
        second = 0.0
        if length is None:
            ratio, second = 1.0, -waited
        elif length == 0:
            ratio = inf if waited else 1.0
        else:
            ratio = 1.0 if length == inf else 1.0 + waited / length
        return ratio, None if ratio < least else (second, entry[0][1], *entry[1:COHORT])
