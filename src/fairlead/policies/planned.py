"""An order made elsewhere, in its own time; what it leaves out is withheld, but not for ever.

Whoever plans is shown what waits (`Guide.candidates`), and answers with an order (`Guide.follow`).  A newcomer makes
the answer void: it may belong before all others.  What was shown and left out is withheld for `max_withheld` seconds,
and then goes all the same, after what is planned; and if no answer comes for as long, or if planning failed, everybody
goes in the order of `ranking`, in which candidates are shown as well."""

from __future__ import annotations

from heapq import heappop, heappush, merge
from itertools import islice
from math import inf
from typing import TYPE_CHECKING

from fairlead.core.capacity import STOP
from fairlead.core.policy import Policy
from fairlead.policies.ranked import Ranked

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from fairlead.core.policy import Admit
    from fairlead.core.ticket import Ticket
    from fairlead.policies.cohorts import Register
    from fairlead.policies.ranked import Entry, Fits, Ranking


class Guide:
    """The plan for one or several queues that are planned together."""

    def __init__(self, max_withheld: float, ask_again: float = 1.0) -> None:
        self.max_withheld = max_withheld
        self.ask_again = ask_again  # of one who left out somebody who had room
        self.queues: dict[Planned, None] = {}  # those in which somebody waits
        self.stale = True  # somebody has come whom the one who plans was not shown
        self.moved = False  # somebody has gone, or gained room, since
        self.dry = False  # there was room for more than was planned
        self.failed = False  # the last answer was that there is none
        self.asked_at = -inf
        self.asked_since = inf  # since when an answer is due
        self.overdue = 0  # went past the plan because it was withheld for too long
        self._shown: dict[Ticket, None] = {}

    def wanted_at(self) -> float:
        """Tell when a new answer is wanted; while one is due, none is."""
        if self.asked_since < inf:
            return inf
        if self.stale or (self.dry and self.moved):
            return -inf
        return self.asked_at + self.ask_again if self.dry else inf

    def ask(self, now: float) -> None:
        """Note that an answer is asked for."""
        self.asked_at = now
        if self.asked_since == inf:
            self.asked_since = now
            for queue in self.queues:
                queue.rouse_above()  # in time it has something to offer without an answer

    def candidates(self, now: float, limit: int, fits: Fits) -> list[Ticket]:
        """Tell the first of those who wait and would have room."""
        orders = [order for queue in self.queues for order in queue.in_order(now, fits)]
        fitting = (ticket for _, ticket in merge(*orders) if fits(ticket))
        shown = list(islice(fitting, limit))
        self._shown = dict.fromkeys(shown)
        self.stale = False
        return shown

    def follow(self, plan: Sequence[Ticket] | None, now: float) -> None:
        """Serve in this order from now on; None if planning failed."""
        self.moved = self.dry = False
        self.asked_since = inf
        self.failed = plan is None
        for queue in self.queues:
            queue.forget_plan()
        shown, self._shown = self._shown, {}
        if plan is None:
            return
        for position, ticket in enumerate(plan):
            shown.pop(ticket, None)
            if ticket.place is not None:
                _queue_of(ticket).plan(position, ticket)
        for ticket in shown:
            if ticket.place is not None:
                _queue_of(ticket).withhold(ticket, now)

    def void(self) -> None:
        """Forget the rest of the plan if somebody has come whom it does not know."""
        if self.stale:
            for queue in self.queues:
                queue.forget_plan()


def _queue_of(ticket: Ticket) -> Planned:
    planned: Planned = ticket.place.section.queue.owner
    return planned


class _Order(Ranked):
    """What waits in a planned queue, in the order in which it is shown."""

    owner: Planned


class Planned(Policy):
    """Serve what the guide plans."""

    shortcut = False
    timed = True
    rouses = True

    def __init__(self, guide: Guide, ranking: Ranking, register: Register) -> None:
        self.guide = guide
        self._waiting = _Order(ranking, register)
        self._late = _Order(ranking, register)  # withheld for too long
        self._waiting.owner = self._late.owner = self
        self._waiting.rouse = self._late.rouse = self.rouse_above
        self._plan: list[tuple[int, Ticket]] = []
        self._aside: dict[Hashable, list[tuple[int, Ticket]]] = {}
        self._withheld: dict[Ticket, float] = {}  # until when, in order

    def rouse_above(self) -> None:
        """Have this queue asked again."""
        if self.rouse is not None:
            self.rouse()

    def plan(self, position: int, ticket: Ticket) -> None:
        """Serve a ticket at this position."""
        self._withheld.pop(ticket, None)
        heappush(self._plan, (position, ticket))

    def forget_plan(self) -> None:
        """A new plan is made."""
        self._plan.clear()
        self._aside.clear()
        self.rouse_above()

    def withhold(self, ticket: Ticket, now: float) -> None:
        """A plan left a ticket out."""
        if ticket not in self._withheld and ticket.place.section.queue is self._waiting:
            self._withheld[ticket] = now + self.guide.max_withheld

    def push(self, ticket: Ticket, now: float) -> None:
        self._waiting.push(ticket, now)
        self._size += 1
        guide = self.guide
        guide.queues[self] = None
        guide.stale = True
        for queue in guide.queues:
            queue._plan.clear()
            queue._aside.clear()

    def in_order(self, now: float, fits: Fits) -> list[Iterator[tuple[Entry, Ticket]]]:
        """Tell all who wait and may fit, by rank."""
        return [self._late.in_order(now, fits), self._waiting.in_order(now, fits)]

    def _overdue(self, now: float) -> bool:
        """Say whether everybody may go, planned or not."""
        guide = self.guide
        return guide.failed or now >= guide.asked_since + guide.max_withheld

    def _release(self, now: float) -> None:
        """Those withheld for too long are withheld no longer."""
        withheld = self._withheld
        while withheld:
            ticket = next(iter(withheld))
            if ticket.place is None:
                del withheld[ticket]
                continue
            if withheld[ticket] > now:
                break
            del withheld[ticket]
            self._waiting.remove(ticket, now)
            self._late.push(ticket, now)

    def pick(self, admit: Admit, now: float) -> Ticket | None:
        self._release(now)
        plan = self._plan
        while plan:
            position, ticket = plan[0]
            if ticket.place is None:
                heappop(plan)
                continue
            refusal = admit(ticket)
            if refusal is None:
                heappop(plan)
                ticket.place.section.queue.remove(ticket, now)
                return self._served(ticket)
            if refusal is STOP or self._waiting.ranking.shared(refusal):
                return None
            heappop(plan)
            self._aside.setdefault(refusal, []).append((position, ticket))
        late = self._late.pick(admit, now)
        if late is not None:
            self.guide.overdue += 1
            return self._served(late)
        if self._overdue(now):
            unplanned = self._waiting.pick(admit, now)
            if unplanned is not None:
                return self._served(unplanned)
        elif self._size:
            self.guide.dry = True
        return None

    def _served(self, ticket: Ticket) -> Ticket:
        self._withheld.pop(ticket, None)
        self._left()
        return ticket

    def _left(self) -> None:
        self._size -= 1
        self.guide.moved = True
        if not self._size:
            self.guide.queues.pop(self, None)

    def open(self, scope: Hashable, now: float) -> None:
        self.guide.moved = True
        for entry in self._aside.pop(scope, ()):
            heappush(self._plan, entry)
        self._waiting.open(scope, now)
        self._late.open(scope, now)

    def remove(self, ticket: Ticket, now: float) -> None:
        ticket.place.section.queue.remove(ticket, now)
        self._withheld.pop(ticket, None)
        self._left()

    def head(self, now: float) -> Ticket | None:
        for _, ticket in sorted(self._plan):
            if ticket.place is not None:
                return ticket
        late = self._late.head(now)
        return late if late is not None or not self._overdue(now) else self._waiting.head(now)

    def wakes_at(self, now: float) -> float:
        if not self._size:
            return inf
        soonest = next(iter(self._withheld.values()), inf)
        asked = self.guide.asked_since + self.guide.max_withheld
        return min(at for at in (soonest, asked, inf) if at > now)

    def explain(self, ticket: Ticket, now: float) -> str | None:
        for place, (_, planned) in enumerate(sorted(self._plan), 1):
            if planned is ticket:
                return f"the planner puts it at position {place}"
        if ticket in self._withheld:
            left = max(0.0, self._withheld[ticket] - now)
            return f"the planner leaves it out; in {left:g} s it goes all the same"
        if ticket.place.section.queue is self._late or self._overdue(now):
            return "the planner left it out for too long; it goes all the same"
        return "the planner has not ranked it yet"

    def __iter__(self) -> Iterator[Ticket]:
        yield from self._late
        yield from self._waiting
