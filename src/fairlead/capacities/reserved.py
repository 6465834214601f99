"""Slots with reservations: a class can count on its floor, and everybody uses what it leaves.

    used         = Σ inflight
    held(h)      = max(0, reserved[h] − inflight[h])  while class h has demand, else 0
    headroom(c)  = max(0, total − used − Σ over classes h above c of held(h))

A class gets a slot while its headroom is positive.  Its own reservation never reduces its own headroom; reservations of
lower classes never hold back higher ones; one in use stops being held.  A hold is *lent* while its class has shown no
demand: nothing waiting, nothing running, and `linger` seconds gone since either.  A promoted ticket ignores holds,
never the total.

    asked[c]     = min(total, max(floor[c], ⌈share[c] · total⌉))       shares are decimals: 0.07 of 100 is 7
    reserved     = asked, granted from the highest class down while slots last

Slots that are lost for a while are lost from the lowest class up: an outage is when the highest class needs its
reservation most.  A table that asks for more than there ever is would by the same rule leave the lower classes nothing
for good.  So where the number of slots is *declared*, what is asked of so many is first scaled into them:

    scaled[c]    = ⌊asked[c] · declared / Σ asked⌋              Σ scaled ≤ declared, since each is rounded down

and of the slots that rounding left, each class that would get none gets one, the highest first.  With fewer slots than
declared, `reserved` is the smaller of `asked` and `scaled`, granted from the highest class down; slots beyond what is
declared count as declared.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, inf
from typing import TYPE_CHECKING

from fairlead.core.capacity import FULL, Capacity, Hold, Later
from fairlead.core.checks import is_number
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping, Sequence

    from fairlead.core.ticket import Ticket


def scaled(asked: Sequence[int], total: int) -> tuple[int, ...]:
    """Scale reservations, lowest class first, into so many slots; what fits stays as it is.

    >>> scaled((0, 7, 64, 32), 64)
    (0, 4, 39, 19)
    >>> scaled((0, 1, 5, 5), 5)
    (0, 1, 2, 2)
    """
    wanted = sum(asked)
    if wanted <= total:
        return tuple(asked)
    kept = [one * total // wanted for one in asked]
    spare = total - sum(kept)
    for rank in reversed(range(len(kept))):
        if spare and asked[rank] and not kept[rank]:
            kept[rank] = 1
            spare -= 1
    return tuple(kept)


class Reserved(Capacity):
    """Slots with a floor and a share per class, lowest class first, as ranks count.

    >>> Reserved(256, floors=(0, 0, 128, 32), shares=(0, 0.10, 0.25, 0)).reserved
    (0, 26, 128, 32)
    """

    scoped = True
    watches = True

    def __init__(
        self,
        total: int,
        floors: Sequence[int],
        shares: Sequence[float | str] = (),
        *,
        linger: float | Sequence[float] = 0.0,
        lend: bool = True,
        name: str = "slots",
    ) -> None:
        count = len(floors)
        self.name = name
        self.total = self.declared = 0
        self._set(floors, shares, linger, lend, count)
        self.inflight = [0] * count
        self.waiting = [0] * count
        self._waiters = 0  # of all classes: without any no scope is closed, nobody is to be told
        self._demand_ended = [-inf] * count
        self._ranks = count
        self._scopes = tuple((Hold(rank),) for rank in range(count))
        # Of each class the scopes that open when it, and so all above it, may have gained room.
        holds = [Hold(rank) for rank in range(count - 1)]
        self._holds = [holds[rank:] for rank in range(count)]
        self.used = 0
        self.resize(total)
        if (wanted := sum(self.asked)) > total > 0:
            raise ConfigError(
                f"reservations need {wanted} slots but the capacity is {total}; lower floors or shares"
            )

    def _set(
        self,
        floors: Sequence[int],
        shares: Sequence[float | str],
        linger: float | Sequence[float],
        lend: bool,
        count: int,
    ) -> None:
        try:
            parts = tuple(Fraction(str(share)) for share in shares or (0,) * count)
        except ValueError:
            raise ConfigError(
                f"shares must be decimals such as 0.25; got {tuple(shares)}"
            ) from None
        lingers = (linger,) * count if isinstance(linger, int | float) else tuple(linger)
        if not all(is_number(each, 0) for each in lingers):
            raise ConfigError(
                f"linger must be seconds, 0 or more, one number or one per class; got {linger!r}"
            )
        if not count or any(len(given) != count for given in (floors, parts, lingers)):
            raise ConfigError("floors, shares and linger need one value per class, lowest first")
        if any(type(floor) is not int for floor in floors):
            raise ConfigError(f"floors must be whole numbers of slots; got {tuple(floors)}")
        if min(floors) < 0 or min(parts) < 0:
            raise ConfigError("floors and shares must be 0 or more")
        self._floors, self._shares, self._linger = tuple(floors), parts, lingers
        self.lend = lend

    def reserve(
        self,
        floors: Sequence[int],
        shares: Sequence[float | str] = (),
        linger: float | Sequence[float] = 0.0,
        lend: bool = True,
    ) -> None:
        """Change what is reserved; what no longer fits is cut, lowest class first."""
        self._set(floors, shares, linger, lend, len(self.inflight))
        self.resize(self.total, self.declared)

    def _asked_of(self, total: int) -> tuple[int, ...]:
        return tuple(
            min(total, max(floor, ceil(share * total)))
            for floor, share in zip(self._floors, self._shares, strict=True)
        )

    def resize(self, total: int, declared: int = 0) -> None:
        """Change the number of slots, and how many are declared, 0 for none; reservations follow."""
        for slots in (total, declared):
            if type(slots) is not int or slots < 0:
                raise ConfigError(
                    f"the number of slots must be a whole number, 0 or more; got {slots!r}"
                )
        self.total, self.declared = total, declared
        self.asked = kept = self._asked_of(total)
        if declared:
            most = max(total, declared)
            kept = scaled(self._asked_of(most), most)
        reserved, left = [], total
        for asked, most in zip(reversed(self.asked), reversed(kept), strict=True):
            reserved.append(min(asked, most, left))
            left -= reserved[-1]
        self.reserved = tuple(reversed(reserved))
        # The most that classes above could hold: with more than that free, nobody need look what they do.
        ranks = range(len(reserved))
        self._above = [sum(self.reserved[rank + 1 :]) for rank in ranks]
        # Who they are.
        self._holding = [[one for one in ranks[rank + 1 :] if self.reserved[one]] for rank in ranks]
        self._opened()

    def _opened(self, lowest: int = 0) -> None:
        """Tell that classes from that one up may have gained room."""
        opened, holds = self.opened, self._holds[lowest]
        if not opened or opened[-len(holds) :] != holds:  # else they are told already
            opened.extend(holds)  # a list of another kind, where doors share

    def scopes(self, ticket: Ticket) -> tuple[Hashable, ...]:
        rank = ticket.rank
        if 0 <= rank < self._ranks:
            return self._scopes[rank]
        raise ConfigError(f"rank must be 0..{len(self._scopes) - 1} (a class); got {rank!r}")

    def _held(self, rank: int, now: float) -> int:
        if self.lend and not (self.inflight[rank] or self.waiting[rank]):
            ended = self._demand_ended[rank] + self._linger[rank]
            if now >= ended:
                return 0
        return max(0, self.reserved[rank] - self.inflight[rank])

    def kept(self, rank: int, now: float) -> tuple[int, float | None]:
        """Return how many slots are kept free for a class, and when they are lent; None while it has demand."""
        if not self.lend or self.inflight[rank] or self.waiting[rank]:
            return self._held(rank, now), None
        return self._held(rank, now), self._demand_ended[rank] + self._linger[rank]

    def _held_without(self, rank: int) -> int:
        """The hold of a class once one of its tickets had given back: its demand, if it ends, ends just then."""
        left = self.inflight[rank] - 1
        if self.lend and not (left or self.waiting[rank] or self._linger[rank]):
            return 0
        return max(0, self.reserved[rank] - left)

    def headroom(self, rank: int, now: float, without: Ticket | None = None) -> int:
        """Tell how many more tickets of a class would be admitted."""
        return max(0, self._left_for(rank, now, without))

    def _left_for(self, rank: int, now: float, without: Ticket | None = None) -> int:
        """What is free beyond the holds above a class; below 0, what it lacks: also after a shrink."""
        gone = -1 if without is None else without.rank
        free = self.total - self.used + (without is not None)
        inflight = self.inflight
        for above in self._holding[rank]:
            if above == gone:
                free -= self._held_without(above)
            elif inflight[above] < self.reserved[above]:
                free -= self._held(above, now)
        return free

    def refusal(self, ticket: Ticket, now: float, without: Ticket | None = None) -> Hashable | None:
        used = self.used if without is None else self.used - 1
        free = self.total - used
        if free <= 0:
            return FULL
        if free > self._above[ticket.rank] or ticket.promoted:
            return None
        if self._left_for(ticket.rank, now, without) > 0:
            return None
        return self._scopes[ticket.rank][0]

    def admit(self, ticket: Ticket, now: float) -> Hashable | None:
        used, rank = self.used, ticket.rank
        # With more free than all above could hold, nobody need look what they do.
        free = self.total - used
        if free <= self._above[rank]:
            if free <= 0:
                return FULL
            if not ticket.promoted and self._left_for(rank, now) <= 0:
                return self._scopes[rank][0]
        self.used = used = used + 1
        self.inflight[rank] += 1
        self.full = used >= self.total
        return None

    def take(self, ticket: Ticket, now: float) -> bool:
        self.used = used = self.used + 1
        self.inflight[ticket.rank] += 1
        return used >= self.total

    def give(self, ticket: Ticket, now: float) -> None:
        rank = ticket.rank
        self.used -= 1
        self.inflight[rank] = left = self.inflight[rank] - 1
        if not self._waiters:
            if not left:
                self._demand_ended[rank] = now
            return
        # Within its reservation what a class gives back it holds: lower classes gain nothing.
        self._opened(0 if left >= self.reserved[rank] else rank)
        if not left and not self.waiting[rank]:
            self._end_demand(rank, now)

    def enter(self, ticket: Ticket, now: float) -> None:
        self._waiters += 1
        self.waiting[ticket.rank] += 1

    def leave(self, ticket: Ticket, now: float) -> None:
        rank = ticket.rank
        self._waiters -= 1
        self.waiting[rank] -= 1
        if not self.waiting[rank] and not self.inflight[rank]:
            self._end_demand(rank, now)

    def _end_demand(self, rank: int, now: float) -> None:
        """A class has nothing left: its hold is lent to those below, when it has lingered."""
        self._demand_ended[rank] = now
        if not self._waiters:
            return
        if not self._linger[rank]:
            self._opened()
        elif self.lend:
            at = now + self._linger[rank]
            self.opened.extend([Later(hold, at) for hold in self._holds[0][:rank]])

    def ready_at(self, ticket: Ticket, now: float, scope: Hashable) -> float:
        """The holds that linger without demand end one by one: when have enough of them ended?"""
        if type(scope) is not Hold or not self.lend:
            return inf
        missing = 1 - self._left_for(ticket.rank, now)
        ends = sorted(
            (self._demand_ended[above] + self._linger[above], self._held(above, now))
            for above in range(ticket.rank + 1, len(self.reserved))
            if not self.inflight[above] and not self.waiting[above]
        )
        for end, held in ends:
            if end > now:
                missing -= held
                if missing <= 0:
                    return end
        return inf

    def room(self) -> Mapping[Hashable, float]:
        return {self.name: max(0, self.total - self.used)}

    def describe(self, ticket: Ticket, now: float, refusal: Hashable) -> str:
        if refusal is FULL:
            return f"all {self.total} {self.name} are in use"
        free = self.total - self.used
        return f"{free} of {self.total} {self.name} are free but reserved for higher classes"

    def audit(self, holders: Collection[Ticket]) -> str | None:
        by_rank = [0] * len(self.inflight)
        for ticket in holders:
            by_rank[ticket.rank] += 1
        if by_rank != self.inflight or self.used != len(holders):
            return f"{self.name}: {self.inflight} in flight by class, holders say {by_rank}"
        return None
