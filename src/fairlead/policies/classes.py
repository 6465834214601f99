"""Strict classes: the highest class that may go, goes; with a bounded cure for starvation.

A class is *starved* when its first candidate has waited for the class's threshold.  Promotions let it past higher
classes and past reservations, never past capacity, and are budgeted: at most one in `budget` dispatches, in turn over
the starved classes.  Without the budget the cure inverts priority in exactly the overload it is meant for.  When nobody
else may go and there was no dispatch at all for its threshold, a starved class needs no budget, or a reserved and idle
pool would keep it waiting for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from fairlead.core.capacity import STOP, Hold
from fairlead.core.checks import is_number
from fairlead.core.policy import Policy
from fairlead.errors import ConfigError
from fairlead.policies.fifo import FIFO

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

    from fairlead.core.policy import Admit
    from fairlead.core.ticket import QueueLimit, Ticket


@dataclass(frozen=True, slots=True)
class Level:
    """One class: its name, the order inside it, and its limits (seconds; `starvation` is the threshold)."""

    name: str
    inside: Callable[[], Policy] = FIFO
    queue_limit: int | None = None
    wait_limit: float = inf
    starvation: float = inf

    def __post_init__(self) -> None:
        for what, value in (("wait_limit", self.wait_limit), ("starvation", self.starvation)):
            if not is_number(value, 0):
                raise ConfigError(
                    f"{what} of class {self.name!r} must be seconds, 0 or more; got {value!r}"
                )
        if self.queue_limit is not None and not is_number(self.queue_limit, 0):
            raise ConfigError(
                f"queue_limit of class {self.name!r} must be 0 or more, or None for none; "
                f"got {self.queue_limit!r}"
            )

    def plain(self) -> dict[str, Any]:
        """Tell what may be changed later in plain values, which `Classes.retune` takes too."""
        limits = ("name", "queue_limit", "wait_limit", "starvation")
        return {name: getattr(self, name) for name in limits}


class Classes(Policy):
    """Serve the highest class first; a ticket's `rank` is the index of its level, lowest first.

    >>> classes = Classes(Level("bulk", starvation=30.0), Level("interactive", queue_limit=1000))
    >>> classes.rank("interactive")
    1
    """

    charges = True
    nests = True

    def __init__(
        self, *levels: Level, budget: int = 4, name: str = "", limit: int | None = None
    ) -> None:
        self._set(levels, budget)
        self.name = name
        self.promotions = 0
        self._queues = [level.inside() for level in levels]
        self._own_limits = [queue.limit for queue in self._queues]  # which go before the level's
        for level, queue in zip(levels, self._queues, strict=True):
            queue.name = queue.name or level.name
        self._set_limits()
        self.limit = limit
        self._sizes = [0] * len(levels)
        self._highest = -1  # the highest class in which somebody waits; -1: nobody does
        # When the oldest of each class may be starved, or sooner.
        self._soonest = [inf] * len(levels)
        self._top = len(levels) - 1
        self._held: dict[int, Hold] = {}  # classes a reservation keeps out, until its scope opens
        self._since = budget  # dispatches since the last promotion
        self._last_dispatch = -inf
        self._turn = 0
        # No class can be starved before this instant.  A lower bound, so that no verb looks at every queue.
        self._starving_at = inf
        self._stopped = False
        self._promoting = False
        self._rank = 0
        self._admit: Admit | None = None
        self._asker = self._ask
        self._inner_timed = any(queue.timed for queue in self._queues)
        self.withholds = any(queue.withholds for queue in self._queues)
        # While nothing has scopes and nothing inside withholds, only a STOP refuses: who is first is first of all.
        self._direct = not self.withholds
        self._note_time()

    def _set(self, levels: tuple[Level, ...], budget: int) -> None:
        if not levels or not all(isinstance(level, Level) for level in levels):
            raise ConfigError(
                f'Classes needs at least one Level, such as Level("bulk"); got {levels!r}'
            )
        if len({level.name for level in levels}) < len(levels):
            raise ConfigError(f"two levels share a name: {[level.name for level in levels]}")
        if type(budget) is not int or budget < 1:
            raise ConfigError(
                f"budget must be a whole number of dispatches per promotion, 1 or more; got {budget!r}"
            )
        self.levels = levels
        self.budget = budget

    def _note_time(self) -> None:
        starves = any(level.starvation < inf for level in self.levels)
        self.timed = self._inner_timed or starves
        self.steady = not self.timed and all(queue.steady for queue in self._queues)

    def _set_limits(self) -> None:
        for level, queue, own in zip(self.levels, self._queues, self._own_limits, strict=True):
            queue.limit = level.queue_limit if own is None else own
        self.nests = any(queue.limited for queue in self._queues)
        self.limit = self.limit  # with that, `limited` may be another

    def retune(self, levels: Sequence[Level | Mapping[str, Any]], budget: int = 4) -> None:
        """Change limits, thresholds and budget; the same classes, with what waits in them.

        Limits hold for what arrives from now on: nobody who waits is turned away.
        """
        read = tuple(each if isinstance(each, Level) else Level(**each) for each in levels)
        if [level.name for level in read] != [level.name for level in self.levels]:
            raise ConfigError(
                f"the classes are {[level.name for level in self.levels]} and stay so; "
                f"got {[level.name for level in read]}"
            )
        self._set(read, budget)
        self._set_limits()
        self._soonest = [-inf] * len(levels)
        self._starving_at = -inf
        self._note_time()

    def rank(self, name: str) -> int:
        """Tell the rank of a class by its name."""
        for rank, level in enumerate(self.levels):
            if level.name == name:
                return rank
        raise ConfigError(
            f"there is no class {name!r}; known: {[level.name for level in self.levels]}"
        )

    def _unknown(self, rank: int) -> ConfigError:
        return ConfigError(f"rank must be 0..{self._top} (a class); got {rank!r}")

    def skips(self, ticket: Ticket) -> bool:
        return 0 <= ticket.rank <= self._top and self._queues[ticket.rank].skips(ticket)

    def outranks(self, ticket: Ticket, now: float) -> bool:
        rank = ticket.rank
        if now >= self._starving_at or not self._highest < rank <= self._top:
            return False
        return self._queues[rank].skips(ticket)

    def push(self, ticket: Ticket, now: float) -> bool | None:
        rank = ticket.rank
        if rank < 0 or rank > self._top:
            raise self._unknown(rank)
        if ticket.scopes:
            self._direct = False
        level = self.levels[rank]
        # First what can fail: what is refused must not stay in the queue.
        if level.wait_limit < inf:
            ticket.wait_until = min(ticket.wait_until, ticket.arrived_at + level.wait_limit)
        queue = self._queues[rank]
        lane = queue.only_lane
        if lane is None or ticket.scopes:
            behind = queue.push(ticket, now)
        else:
            ticket.place = lane
            lane.entries.append(ticket)
            behind = self._sizes[rank] > 0
        sizes = self._sizes
        at = ticket.arrived_at + level.starvation
        if at < self._soonest[rank] or not sizes[rank]:
            self._soonest[rank] = at
        if at < self._starving_at and rank < self._top:
            self._starving_at = at
        sizes[rank] += 1
        self._size += 1
        if rank < self._highest:
            return True
        self._highest = rank
        return behind

    def _left(self, rank: int) -> None:
        """One of a class waits no longer."""
        sizes = self._sizes
        sizes[rank] = left = sizes[rank] - 1
        self._size -= 1
        if not left and rank == self._highest:
            while rank >= 0 and not sizes[rank]:
                rank -= 1
            self._highest = rank

    def _ask(self, ticket: Ticket) -> Hashable | None:
        if self._promoting:
            ticket.promoted = True
        refusal = self._admit(ticket)  # type: ignore[misc]
        if refusal is None:
            return None
        ticket.promoted = False
        if refusal is STOP:
            self._stopped = True
        elif type(refusal) is Hold:
            self._held[self._rank] = refusal
            return STOP  # nobody else of this class; other classes are asked
        return refusal

    def pick(self, admit: Admit, now: float) -> Ticket | None:
        if self._direct and now < self._starving_at:
            rank = self._highest
            return self._pick_from(rank, admit, now) if rank >= 0 else None
        self._admit = admit
        self._stopped = False
        starving = now >= self._starving_at and self._find_starving(now) <= now
        if starving:
            ticket = self._promote(now, last_resort=False)
            if ticket is not None or self._stopped:
                return ticket
        rank = self._highest
        while rank >= 0:
            if self._sizes[rank] and rank not in self._held:
                ticket = self._pick_from(rank, self._asker, now)
                if ticket is not None or self._stopped:
                    return ticket
            rank -= 1
        return self._promote(now, last_resort=True) if starving else None

    def _pick_from(self, rank: int, admit: Admit, now: float) -> Ticket | None:
        self._rank = rank
        queue = self._queues[rank]
        lane = queue.only_lane
        if lane is None:
            ticket = queue.pick(admit, now)
        else:  # the steps of a lane, and of `_left`, are written out: benchmarks/gate.py
            ticket = lane.entries[0]
            if ticket.place is not lane:
                ticket = lane.head()
            if admit(ticket) is None:
                lane.entries.popleft()
                ticket.place = None
            else:
                ticket = None
        if ticket is not None:
            self._size -= 1
            sizes = self._sizes
            sizes[rank] = left = sizes[rank] - 1
            if not left and rank == self._highest:
                while rank >= 0 and not sizes[rank]:
                    rank -= 1
                self._highest, rank = rank, self._rank
            self._since += 1
            self._last_dispatch = now
            if self._soonest[rank] < self._starving_at:
                self._note_head(rank, now)
        return ticket

    def _note_head(self, rank: int, now: float) -> None:
        """The first candidate of a class is another now, and may have come before the one that was first."""
        if rank < self._top and now < self._starving_at:  # else all are looked at before the next
            at = self._soonest[rank]
            if at <= now:
                at = self._starved_at(rank, now)
            if at < self._starving_at:
                self._starving_at = at

    def _promote(self, now: float, *, last_resort: bool) -> Ticket | None:
        """Serve a starved class: past a higher one, or as a last resort past a reservation, when nobody else may go."""
        for turn in range(self._top):
            rank = (self._turn + turn) % self._top
            if not (last_resort or rank < self._highest):
                continue  # it has nobody to overtake
            if not self._may_promote(rank, now, last_resort):
                continue
            self._promoting = True
            try:
                ticket = self._pick_from(rank, self._asker, now)
            finally:
                self._promoting = False
            if ticket is not None:
                self._since = 1  # the promotion itself counts
                self._turn = (rank + 1) % self._top
                self.promotions += 1
                return ticket
            if self._stopped:
                return None
        return None

    def _may_promote(self, rank: int, now: float, last_resort: bool) -> bool:
        silent = last_resort and now >= self._last_dispatch + self.levels[rank].starvation
        return (self._since >= self.budget or silent) and now >= self._starved_at(rank, now)

    def _starved_at(self, rank: int, now: float) -> float:
        starvation = self.levels[rank].starvation
        if starvation == inf or not self._sizes[rank]:
            return inf
        head = self._queues[rank].head(now)
        return inf if head is None else head.arrived_at + starvation

    def _find_starving(self, now: float) -> float:
        self._starving_at = min(
            (self._starved_at(rank, now) for rank in range(self._top)), default=inf
        )
        return self._starving_at

    def open(self, scope: Hashable, now: float) -> None:
        if type(scope) is Hold:
            for rank in [rank for rank, hold in self._held.items() if hold == scope]:
                del self._held[rank]
        else:
            for queue in self._queues:
                queue.open(scope, now)
            self._starving_at = -inf  # a head may have been parked until now

    def remove(self, ticket: Ticket, now: float) -> None:
        self._queues[ticket.rank].remove(ticket, now)
        self._left(ticket.rank)
        if self.levels[ticket.rank].starvation < inf:
            # An older one may be first now; looked for later, as many may leave at once.
            self._starving_at = -inf

    def charge(self, ticket: Ticket, amount: float, now: float) -> None:
        rank = ticket.rank
        if rank < 0 or rank > self._top:
            raise self._unknown(rank)
        queue = self._queues[rank]
        if amount > 0 and ticket.started_at == inf:
            self._since += 1
            self._last_dispatch = now
        if queue.charges:
            queue.charge(ticket, amount, now)
            if self._sizes[rank]:
                self._note_head(rank, now)

    def head(self, now: float) -> Ticket | None:
        for rank in range(self._highest, -1, -1):
            if self._sizes[rank]:
                head = self._queues[rank].head(now)
                if head is not None:
                    return head
        return None

    def wakes_at(self, now: float) -> float:
        """Tell when a promotion may next be due; one that is due already was tried in this very dispatch."""
        soonest = inf
        if self._size and now < self._starving_at:
            soonest = self._starving_at
        elif self._size:
            for rank in range(self._top):
                at = self._starved_at(rank, now)
                if self._since < self.budget:
                    at = max(at, self._last_dispatch + self.levels[rank].starvation)
                if now < at < soonest:
                    soonest = at
        if self._inner_timed:
            soonest = min(soonest, *(queue.wakes_at(now) for queue in self._queues))
        return soonest

    def overflow(self, ticket: Ticket) -> QueueLimit | None:
        return super().overflow(ticket) or self._queues[ticket.rank].overflow(ticket)

    def explain(self, ticket: Ticket, now: float) -> str | None:
        level = self.levels[ticket.rank]
        above = sum(self._sizes[ticket.rank + 1 :])
        text = f"class {level.name!r} stands behind {above} of higher classes"
        if level.starvation < inf and ticket.rank < self._top:
            text += f" and may be promoted after {level.starvation:g} s"
        inner = self._queues[ticket.rank].explain(ticket, now)
        return f"{text}; {inner}" if inner else text

    def part(self, name: str) -> Policy | None:
        if name == self.name:
            return self
        parts = (queue.part(name) for queue in self._queues)
        return next((part for part in parts if part is not None), None)

    def __iter__(self) -> Iterator[Ticket]:
        for queue in self._queues:
            yield from queue
