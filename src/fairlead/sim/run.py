"""Arrivals through a gate on virtual time: the very gates, policies and capacities that the doors use.

At one instant what ends, ends first; then what comes, comes; and last the gate does what is due by time alone.  Between
two such instants nothing happens, so time leaps from one to the next.
"""

from __future__ import annotations

import gc
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Any

from fairlead.core.ticket import EVICTED, EXPIRED, RUNNING, WAITING, WITHDRAWN
from fairlead.errors import ConfigError, PolicyError
from fairlead.sim.arrivals import MOST_ARRIVALS
from fairlead.sim.graphs import followers_of
from fairlead.sim.writing import written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fairlead.sim.arrivals import Client
    from fairlead.sim.building import PolicySpec
    from fairlead.sim.graphs import Followers
    from fairlead.sim.result import Arrival, Result
    from fairlead.sim.scenario import Scenario
    from fairlead.sim.site import Site

# What an event is.
END, LEAVE, COMMIT, COME, RETRY = range(5)
QUICKEST = 0.001  # seconds between two visits of one client, at least: no instant lasts for ever
MOST_IDLE = 10_000  # wake-ups in a row that change nothing and move no time
REPORT = 8191  # units of work between two reports of progress

BLOCKED = "what it depends on did not get done"


def simulate(
    scenario: Scenario,
    policy: PolicySpec,
    seed: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Result:
    """Run a scenario under a policy; the same seed gives the same result.

    `progress` is told now and then which part of the work has come, from 0 to 1.
    """
    seed = scenario.seed if seed is None else seed
    arrivals = scenario.arrivals(seed)
    clients = scenario.clients(seed)
    site = policy.build()
    site.check(arrivals)
    collecting = gc.isenabled()
    gc.disable()  # nothing here is in a circle; to look for some takes half of the time
    try:
        run = Run(site, arrivals, clients, scenario, progress)
        run.go()
        return written(run, policy.name, seed, scenario.name)
    finally:
        if collecting:
            gc.enable()


class Run:
    """One simulation under way."""

    def __init__(
        self,
        site: Site,
        arrivals: list[Arrival],
        clients: list[Client],
        scenario: Scenario,
        progress: Callable[[float], None] | None,
    ) -> None:
        self.site = site
        self.gate = site.gate
        self.arrivals = arrivals
        self.clients = clients
        self.seconds = scenario.seconds
        self.until = scenario.until
        self.most = inf if scenario.count is None else scenario.count
        self.progress = progress
        self.now = 0.0
        self.open = len(arrivals)  # the first so many come by themselves; others are clients'
        self.events: list[tuple[float, int, int, Any]] = []
        self.order = 0
        self.tickets: list[Any] = [None] * len(arrivals)
        self.owner: dict[int, int] = {}  # which client an arrival is of
        self.retries = self.preemptions = 0
        self.lost: list[tuple[float, float, float]] = []  # work that a preemption undid
        self.waits_for: list[int] = []
        self.followers: Followers = {}
        if any(arrival.deps for arrival in arrivals):
            self.waits_for = [len(arrival.deps) + 1 for arrival in arrivals]  # and for its time
            self.followers = followers_of(arrivals)

    # Time

    def go(self) -> None:
        """Let all of it happen."""
        for number, client in enumerate(self.clients):
            self.later(client.first, COME, number)
        arrivals, events, gate, until = self.arrivals, self.events, self.gate, self.until
        coming, total, idle = 0, self.open, 0
        while True:
            at = arrivals[coming][0] if coming < total else inf
            ends = bool(events) and events[0][0] <= at
            if ends:
                at = events[0][0]
            if gate.due < at:
                due = gate.next_wakeup(self.now)
                if due < at:
                    if due > until:
                        break
                    idle = idle + 1 if due <= self.now else 0
                    if idle > MOST_IDLE:
                        raise PolicyError(
                            f"the gate is due at {due:g} s again and again and changes nothing; "
                            "does a capacity's ready_at agree with its refusal?"
                        )
                    if due > self.now:
                        self.now = due
                    changed = gate.advance(self.now)
                    if changed:
                        idle = 0
                        self.follow(changed)
                    continue
            if at == inf or at > until:
                break
            idle = 0
            if ends:
                _, _, kind, what = heappop(events)
                if kind == END:
                    if not what.over:
                        self.now = at
                        self.finish(what)
                else:
                    self.happen(at, kind, what)
            else:
                self.now = at
                if self.waits_for:
                    self.ripen(coming)
                else:
                    self.ask(coming)
                coming += 1
                if not coming & REPORT and self.progress is not None:
                    self.progress(self.part(coming))
        if self.progress is not None:
            self.progress(1.0)
        if until < inf:
            self.now = until

    def part(self, coming: int) -> float:
        """Tell which part of the arrivals has come."""
        if self.clients and self.seconds < inf:
            return min(1.0, self.now / self.seconds)
        return coming / max(1, self.open)

    def later(self, at: float, kind: int, what: Any) -> None:
        """Let something happen at an instant."""
        self.order += 1
        heappush(self.events, (at, self.order, kind, what))

    def happen(self, at: float, kind: int, what: Any) -> None:
        """Do what an event says, other than the end of work; what is void by now moves no time."""
        if kind == COME:
            self.come(at, what)
        elif kind == RETRY:
            self.now = at
            self.ask(what[0], what[1])
        elif kind == COMMIT:
            if what.state is RUNNING and not what.over:
                self.gate.commit(what)
        elif what.state is WAITING:
            self.now = at
            changed = self.gate.withdraw([what], self.now)
            if what.state is WITHDRAWN:
                self.gone(what)
            self.follow(changed)

    # Asking

    def ripen(self, number: int) -> None:
        """One thing less that an arrival waits for; when there is none left, it asks."""
        self.waits_for[number] -= 1
        if not self.waits_for[number] and self.tickets[number] is None:
            self.ask(number)

    def ask(self, number: int, former: Any = None) -> None:
        """Offer a ticket for an arrival: its first, or after a preemption the next."""
        arrival = self.arrivals[number]
        now = self.now
        ticket = self.site.ticket(number, arrival, now)
        if former is not None:
            ticket.evictions = former.evictions + 1
            ticket.asked = former.asked  # type: ignore[attr-defined]
        self.tickets[number] = ticket
        changed = self.gate.offer(ticket, now)
        if ticket.state is RUNNING:
            self.start(ticket)
        elif ticket.state is not WAITING:
            self.gone(ticket)
        elif arrival[13] is not None:
            self.later(now + arrival[13], LEAVE, ticket)
        if changed:
            self.follow(changed)

    def come(self, at: float, number: int) -> None:
        """Let a client ask, unless it does not come any more."""
        arrival = self.clients[number].come(at) if len(self.arrivals) < self.most else None
        if arrival is None:
            return
        self.now = at
        if len(self.arrivals) >= MOST_ARRIVALS:
            raise ConfigError(
                f"the clients have come {MOST_ARRIVALS:,} times by {self.now:g} s; "
                "give them time to think, or less time in all"
            )
        refusal = self.site.refuses(arrival)
        if refusal is not None:
            raise ConfigError(refusal)
        mine = len(self.arrivals)
        self.arrivals.append(arrival)
        self.tickets.append(None)
        self.owner[mine] = number
        if not mine & REPORT and self.progress is not None:
            self.progress(self.part(mine))
        self.ask(mine)

    # Verdicts

    def follow(self, changed: Iterable[Any]) -> None:
        """Carry out what a verb has changed."""
        for ticket in changed:
            state = ticket.state
            if state is RUNNING:
                self.start(ticket)
            elif state is EVICTED:
                self.evict(ticket)
            elif state is EXPIRED and ticket.started_at < inf:
                pass  # its room was given to others; its work goes on
            else:
                self.gone(ticket)

    def start(self, ticket: Any) -> None:
        """Let work begin: its end is known."""
        arrival = self.arrivals[ticket.work]
        began = ticket.started_at
        self.order += 1
        heappush(self.events, (began + arrival[1], self.order, END, ticket))
        if arrival[14] is not None and ticket.evictable:
            self.later(began + arrival[14], COMMIT, ticket)

    def finish(self, ticket: Any) -> None:
        """Let work end."""
        ticket.over = True
        ticket.ended_at = now = self.now
        changed = self.gate.finish(ticket, now)
        if changed:
            self.follow(changed)
        if self.waits_for:
            for follower in self.followers.get(ticket.work, ()):
                self.ripen(follower)
        if self.clients:
            self.answered(ticket)

    def evict(self, ticket: Any) -> None:
        """Cancel work that has to make room; it may come back."""
        self.preemptions += 1
        ticket.over = True
        ticket.ended_at = now = self.now
        self.lost.append((ticket.started_at, now, ticket.cost if self.site.weighs else 1.0))
        number = ticket.work
        arrival = self.arrivals[number]
        if ticket.evictions < arrival.retries:
            self.retries += 1
            self.later(now + arrival.pause, RETRY, (number, ticket))
            self.follow(self.gate.finish(ticket, now))
            return
        self.follow(self.gate.finish(ticket, now))
        self.gone(ticket)

    def gone(self, ticket: Any) -> None:
        """An arrival came to its end without being done; what depends on it will not be done either."""
        ticket.over = True
        ticket.ended_at = self.now
        if self.waits_for:
            self.block(ticket.work)
        if self.clients:
            self.answered(ticket)

    def block(self, number: int) -> None:
        """Give up whatever depends on an arrival."""
        stack = list(self.followers.get(number, ()))
        while stack:
            follower = stack.pop()
            if self.tickets[follower] is None:
                arrival = self.arrivals[follower]
                ticket: Any = self.site.ticket(follower, arrival, max(self.now, arrival.at))
                ticket.state, ticket.reason = WITHDRAWN, BLOCKED
                ticket.over, ticket.ended_at = True, ticket.asked
                self.tickets[follower] = ticket
                stack += self.followers.get(follower, ())

    def answered(self, ticket: Any) -> None:
        """Let the client whose work this was think, and come again."""
        number = self.owner.pop(ticket.work, None)
        if number is not None:
            again = self.clients[number].again(self.now)
            self.later(max(again, ticket.asked + QUICKEST), COME, number)
