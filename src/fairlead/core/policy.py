"""Who is next?  The contract every policy keeps, and the policy that needs only a key.

`pick(admit, now)` is the hinge between order and room: the policy offers candidates to `admit` in its own order.
`admit` answers None (taken: forget it and return it), STOP (ask nobody else) or a scope (nobody in that scope; go on
with others).  A pick that returns None has changed nothing but who is parked."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Self

from fairlead.core.capacity import STOP
from fairlead.core.checks import is_number
from fairlead.core.lanes import KeyLane, Lane, Order
from fairlead.core.part import Part
from fairlead.core.ticket import QueueLimit
from fairlead.errors import ConfigError, PolicyError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from fairlead.core.ticket import Ticket

    Admit = Callable[[Ticket], Hashable | None]


class Policy(Part):
    """Order by `key(ticket)`, smallest first, arrival among equals; the base of every other policy.

    >>> class ShortestFirst(Policy):
    ...     def key(self, ticket):
    ...         return ticket.estimate or 60.0
    """

    name = ""
    shortcut = True  # False: the policy may withhold, so even a lone newcomer has to be picked
    withholds = True  # False: skips() is always True
    steady = False  # True: who is first changes by verbs only, never as time passes
    charges = False  # True: charge() matters
    timed = False  # True: wakes_at() matters
    limited = False  # True: overflow() matters
    nests = False  # True: there may be limits inside
    rouses = False  # True: rouse() may be called
    # Set by the policy this one is part of; to be called when it has something to offer though no scope has opened.
    rouse: Callable[[], None] | None = None

    # While its order is arrival and nobody has scopes: its tickets, which whoever nests it may add and take himself.
    only_lane: Lane | None = None

    _lane_type: type[Lane] = KeyLane
    _limit: int | None = None
    _lanes: dict[Hashable, Lane]
    _parked: dict[Hashable, Order]
    _ready: Order
    _size: int

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # Set up here, so that a subclass with its own __init__ need not call ours.
        self = super().__new__(cls)
        self._lanes = {}
        self._parked = {}
        self._ready = Order()
        self._size = 0
        return self

    def _new_order(self) -> Order:
        return Order()

    @property
    def limit(self) -> int | None:
        """How many may wait here; None: any number."""
        return self._limit

    @limit.setter
    def limit(self, limit: int | None) -> None:
        if limit is not None and (isinstance(limit, bool) or not is_number(limit, 0)):
            raise ConfigError(f"a queue limit must be 0 or more, or None for none; got {limit!r}")
        self._limit = limit
        self.limited = limit is not None or self.nests

    def key(self, ticket: Ticket) -> Any:
        """Rank a ticket: smallest goes first.  Asked once, when the ticket starts to wait."""
        return ticket.seq

    def skips(self, ticket: Ticket) -> bool:
        """Say whether a ticket may start past this policy when nobody waits."""
        return self.shortcut

    def outranks(self, ticket: Ticket, now: float) -> bool:
        """Say whether a ticket that comes now would be picked before everybody who waits; False is always right."""
        return False

    def push(self, ticket: Ticket, now: float) -> bool | None:
        """Let a ticket wait.  May return True to say that it ranks after one who waited before."""
        key = self.key(ticket)
        if key != key:
            raise PolicyError(
                f"{type(self).__name__}.key({ticket!r}) is {key!r}, which cannot be ordered"
            )
        self._insert(ticket, ticket.scopes, key)
        return None

    def _insert(self, ticket: Ticket, name: Hashable, key: Any) -> None:
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = self._lane_type(name, bool(ticket.scopes))
        ticket.place = lane
        first = lane.add(ticket, key)
        self._size += 1
        if first or lane.order is None:
            # Also if it was parked: a newcomer that heads it ranks before the one refused.
            self._ready.add(lane)

    def pick(self, admit: Admit, now: float) -> Ticket | None:
        """Offer candidates to `admit` in order; return the one it took, or None."""
        while (lane := self._ready.best(now)) is not None:
            ticket = lane.head()
            refusal = admit(ticket)
            if refusal is None:
                lane.pop()
                ticket.place = None
                self._size -= 1
                if len(lane.entries) == lane.dead:
                    self._drop(lane)
                if lane.woken_by is not None:
                    self._pass_on(lane, None, now)
                return ticket
            if refusal is STOP:
                return None
            self._park(lane, refusal)
            if lane.woken_by is not None:
                self._pass_on(lane, refusal, now)
        return None

    def _park(self, lane: Lane, scope: Hashable) -> None:
        group = self._parked.get(scope)
        if group is None:
            group = self._parked[scope] = self._new_order()
        group.add(lane)

    def _pass_on(self, lane: Lane, refusal: Hashable | None, now: float) -> None:
        """A woken lane has been asked: unless its own scope refused it again, the next may be asked too."""
        scope, lane.woken_by = lane.woken_by, None
        if scope != refusal:
            self.open(scope, now)

    def open(self, scope: Hashable, now: float) -> None:
        """A scope has gained room: ask the best-ranked of those parked under it again."""
        group = self._parked.get(scope)
        if group is None:
            return
        lane = group.best(now)
        if lane is None:
            del self._parked[scope]
            return
        lane.woken_by = scope
        self._ready.add(lane)

    def remove(self, ticket: Ticket, now: float) -> None:
        """Forget a waiting ticket: it was withdrawn, expired, or holds a claim now."""
        lane: Lane = ticket.place
        ticket.place = None
        self._size -= 1
        lane.discard()
        if len(lane.entries) == lane.dead:
            self._drop(lane)
            if lane.woken_by is not None:
                self._pass_on(lane, None, now)

    def _drop(self, lane: Lane) -> None:
        lane.order = lane.entry = None
        if lane.scoped:
            del self._lanes[lane.name]  # label values come and go without end

    def charge(self, ticket: Ticket, amount: float, now: float) -> None:
        """Account for work that starts past this policy, or, of a ticket that has started, for a correction."""

    def renew(self) -> bool:
        """Be as new: nobody waits, and what was before is void.  False: it cannot, another is to be made."""
        return False

    def head(self, now: float) -> Ticket | None:
        """Tell the first candidate that is not parked."""
        lane = self._ready.best(now)
        return None if lane is None else lane.head()

    def wakes_at(self, now: float) -> float:
        """Tell when a ticket could be offered that is not offered now, though no scope opens."""
        return inf

    def overflow(self, ticket: Ticket) -> QueueLimit | None:
        """Say which limit the ticket, already pushed, stands beyond."""
        limit = self._limit
        if limit is not None and len(self) > limit:
            return QueueLimit(self.name, len(self) - 1, limit)
        return None

    def explain(self, ticket: Ticket, now: float) -> str | None:
        """Say what this policy itself holds against the ticket, beyond its order."""
        return None

    def part(self, name: str) -> Policy | None:
        """Find this policy, or one inside it, by name."""
        return self if name == self.name else None

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Ticket]:
        for lane in self._lanes.values():
            yield from lane


def title(policy: Policy) -> str:
    """Name a policy in an error."""
    return f"policy {policy.name!r}" if policy.name else f"policy {type(policy).__name__}"
