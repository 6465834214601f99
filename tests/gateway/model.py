"""What the gateway should do, written as plainly as possible: lists, searched from one end to the other.

One pool, one tenant, nobody starved; reservations are not lent, or until the first demand of their class.  The rules
are those of spec/gateway.md §6 and of DESIGN.md, "Reservation, promotion, preemption"; the code is nobody else's.
"""

from dataclasses import dataclass, field
from math import ceil, inf

IMMUNE_AFTER = 3


@dataclass(eq=False)
class Request:
    """One request and where it stands: waiting, running, evicted, or the status it ended with."""

    path: str
    rank: int
    wait_until: float
    can_preempt: bool
    evictable: bool
    evictions: int = 0
    stubborn: bool = False
    immune: bool = False  # committed, or started on a claim
    state: str | int = "new"


@dataclass
class Model:
    """A pool of slots."""

    total: int
    queue_sizes: list[int]
    timeouts: list[float]
    floors: list[int]
    shares: list[float]
    can_preempt: list[bool]
    lend: bool
    demanded: set[int] = field(default_factory=set)  # classes that have asked for anything yet
    now: float = 0.0
    running: list[Request] = field(default_factory=list)  # in the order they started
    waiting: list[Request] = field(default_factory=list)  # in the order they came
    claims: list[Request] = field(default_factory=list)
    prompt: list[Request] = field(default_factory=list)  # evicted, about to come to their end
    hunting: bool = False
    preemptions: int = 0
    admitted: int = 0

    # Room

    def inflight(self, rank: int) -> int:
        return sum(one.rank == rank for one in self.running)

    def depth(self, rank: int) -> int:
        return sum(one.rank == rank for one in [*self.waiting, *self.claims])

    def reserved(self) -> list[int]:
        left = self.total
        granted = [0, 0, 0, 0]
        for rank in (3, 2, 1, 0):
            share = ceil(round(self.shares[rank] * self.total, 9))
            wanted = min(self.total, max(self.floors[rank], share))
            granted[rank] = min(wanted, left)
            left -= granted[rank]
        return granted

    def has_room(self, rank: int, without: int = 0) -> bool:
        """Whether one more of this class would be admitted, if so many of a lower class were gone."""
        used = len(self.running) - without
        held = sum(
            max(0, self.reserved()[above] - self.inflight(above))
            for above in range(rank + 1, 4)
            if above in self.demanded or not self.lend
        )
        return used < self.total and self.total - used - held > 0

    # What happens

    def arrive(self, request: Request) -> None:
        if not self.total:
            request.state = 503
            return
        request.state = "waiting"
        self.waiting.append(request)
        self.demanded.add(request.rank)
        if request.can_preempt:
            self.hunting = True
        self.settle()
        if request in self.waiting:
            ahead = sum(one.rank == request.rank for one in self.waiting)
            if ahead > self.queue_sizes[request.rank]:
                self.drop(request, 429)
                self.settle()
        self.end_evicted()

    def finish(self, request: Request, status: int | str) -> None:
        self.running.remove(request)
        request.state = status
        self.settle()
        self.end_evicted()

    def commit(self, request: Request) -> None:
        request.immune = True

    def withdraw(self, request: Request) -> None:
        self.drop(request, "gone")
        self.settle()
        self.end_evicted()

    def adjust(self) -> None:
        """Something was changed."""
        self.hunting = True
        self.settle()

    def advance(self, to: float) -> None:
        while (soonest := min([one.wait_until for one in self.waits()], default=inf)) <= to:
            self.now = max(self.now, soonest)
            self.settle()
            self.end_evicted()
        self.now = to

    def waits(self) -> list[Request]:
        return [*self.waiting, *self.claims]

    # Consequences

    def settle(self) -> None:
        """Start what may start, let go what waited too long, then evict one at most."""
        while True:
            while self.start_one():
                pass
            late = [one for one in self.waits() if one.wait_until <= self.now]
            if not late:
                break
            for one in late:
                self.drop(one, 408)
        if self.waits() and self.hunting:
            self.hunting = False
            self.hunt()

    def start_one(self) -> bool:
        for claim in self.claims:
            if self.has_room(claim.rank):
                self.claims.remove(claim)
                claim.immune = True
                self.start(claim)
                return True
        for rank in (3, 2, 1, 0):
            line = [one for one in self.waiting if one.rank == rank]
            if line and self.has_room(rank):
                self.waiting.remove(line[0])
                self.start(line[0])
                return True
        return False

    def start(self, request: Request) -> None:
        request.state = "running"
        self.running.append(request)
        self.admitted += 1
        if request.evictable:
            self.hunting = True

    def drop(self, request: Request, state: int | str) -> None:
        if request in self.claims:
            self.claims.remove(request)
            self.hunting = True
        else:
            self.waiting.remove(request)
        request.state = state

    def hunt(self) -> None:
        if not self.waiting:
            return
        top = max(one.rank for one in self.waiting)
        head = next(one for one in self.waiting if one.rank == top)
        if not head.can_preempt or self.has_room(top) or not self.has_room(top, without=1):
            return
        dying = [one for one in self.running if one.state == "evicted"]
        if len(dying) <= len(self.claims):  # else one was evicted whose room nobody waits for
            below = [
                one
                for one in self.running
                if one.rank < top
                and one.state == "running"
                and one.evictable
                and not one.immune
                and one.evictions < IMMUNE_AFTER
            ]
            if not below:
                return
            lowest = min(one.rank for one in below)
            victim = [one for one in below if one.rank == lowest][-1]
            victim.state = "evicted"
            self.preemptions += 1
            if not victim.stubborn:
                self.prompt.append(victim)
        self.waiting.remove(head)
        self.claims.append(head)

    def end_evicted(self) -> None:
        while self.prompt:
            victim = self.prompt.pop(0)
            self.running.remove(victim)
            victim.state = 503
            self.settle()
