"""Tokens in flight, as many as a ledger that all processes share has lent to this one.

What is lent may be used until a deadline of this process's own clock, which lies before the instant from which the
ledger could lend it to others; a holder keeps its room to its end or expiry, and the ledger counts on that too.  Under
contention the ledger takes back as it lends: the room lent shrinks, at once or as holders end, and never below them.
In a loss of the ledger this process goes on with its part of the limit (`local`), without any (`open`), or starts
nothing (`closed`).  Its part is an even one, by the number of processes that were there; where processes *keep* what
they were lent, it is that, so that all parts together never exceed the limit.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Literal, NamedTuple

from fairlead.capacities.demand import Claim, Demand, Leased, by_workload, claim_of
from fairlead.capacities.inflight import InFlight
from fairlead.core.capacity import FULL
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from fairlead.capacities.demand import FlowOf
    from fairlead.core.ticket import Ticket

RENEW = 0.25  # seconds after which the ledger is told anew, though nothing changed
# The same where room is kept: a process that is idle gives back then what another needs.
RENEW_KEPT = 0.1
REMEMBERED = 1.0  # seconds for which what was used counts as needed, where room is kept


class SlotWant(NamedTuple):
    """What to tell the ledger of one key: what runs and waits, what to keep ahead of need, what is held and used."""

    key: Hashable
    claims: list[Claim]
    ahead: float
    held: float
    used: float
    limit: float
    keeps: bool


class Loan:
    """The room lent for one key, who uses it and who waits for it."""

    __slots__ = (
        "room",
        "limit",
        "until",
        "short",
        "dry_until",
        "waiting",
        "running",
        "peak",
        "last_peak",
        "peaks_at",
        "told",
        "told_at",
    )

    def __init__(self) -> None:
        self.room = 0.0
        self.limit = 0.0  # of all processes, when this was lent
        self.until = -inf
        self.short = False  # the ledger has no more to lend
        self.dry_until = -inf  # the ledger has nothing to say before this instant
        self.waiting = Demand()
        self.running = Demand()
        # The most that was in flight since the last look, and between the two before.
        self.peak = self.last_peak = 0.0
        self.peaks_at = -inf
        self.told = 0.0  # what the ledger believes to be held
        self.told_at = -inf

    def room_of(self, limit: float) -> float:
        """Return the room that is left of what was lent, now that this is the limit."""
        if limit >= self.limit:
            return self.room
        return self.room * limit // self.limit

    def claims(self) -> list[Claim]:
        """Sum up what runs and what waits, by workload."""
        waiting, running = self.waiting.lines, self.running.lines
        claims = []
        for workload in dict.fromkeys((*running, *waiting)):
            lines = (waiting.get(workload), running.get(workload))
            claims.append(claim_of(workload, [line for line in lines if line is not None]))
        return claims


class LeasedSlots(InFlight, Leased):
    """At most `limit` tokens in flight in all processes; a ticket larger than that goes alone.

    `flow` tells a ticket's workload, weight and user.  With `keeps` a loss leaves each process what it was lent.

    >>> slots = LeasedSlots(10, expire_after=60.0)
    >>> slots.lend("in flight", 4, until=100.0)
    >>> slots.room()
    {'in flight': 4}
    """

    watches = True

    def __init__(
        self,
        limit: float,
        *,
        by: Callable[[Ticket], Hashable] | None = None,
        flow: FlowOf = by_workload,
        expire_after: float = inf,
        name: str = "in flight",
        keeps: bool = False,
    ) -> None:
        if keeps and by is not None:
            raise ConfigError("room is kept for one key only: give either by or keeps")
        Leased.__init__(self)
        self.keeps = keeps
        self._flow = flow
        self._loans: dict[Hashable, Loan] = {}
        self._nodes = 1
        self._rank = 0
        super().__init__(limit, by=by, expire_after=expire_after, name=name)
        if keeps:
            self._loan(self.name)  # the ledger counts a process that is idle too

    @property
    def keys(self) -> int:
        """The number of keys there is something to remember of."""
        return len(self._loans)

    # Is there room?

    def refusal(self, ticket: Ticket, now: float, without: Ticket | None = None) -> Hashable | None:
        key = self._key(ticket)
        if key is None or self.mode == "open":
            return None
        used = self._used.get(key, 0)
        if without is not None and self._key(without) == key:
            used -= without.cost
        room = self._room(key, now)
        if used + ticket.cost <= room:
            return None
        if used <= 0 < room and (room >= self.limit or self.mode == "local"):
            return None  # larger than all the room there is, it goes alone
        return self._scope(key)

    def _room(self, key: Hashable, now: float) -> float:
        if self.mode == "local" and not self.keeps:
            return self.share
        loan = self._loans.get(key)
        if loan is None or self.mode == "closed":
            return 0.0
        if self.mode == "leased" and now >= loan.until:
            return 0.0
        return loan.room_of(self.limit) if self.keeps else loan.room

    @property
    def share(self) -> float:
        """This process's part of the limit in a loss, if it keeps none: parts are whole and add up to the limit."""
        if self._nodes == 1:
            return self.limit
        each, rest = divmod(self.limit, self._nodes)
        return each + (self._rank < rest)

    def take(self, ticket: Ticket, now: float) -> None:
        super().take(ticket, now)
        key = self._key(ticket)
        if key is None:
            return
        loan = self._loan(key)
        workload, weight, user = self._flow(ticket)
        loan.running.add(workload, weight, user, ticket.cost)
        loan.peak = max(loan.peak, self._used[key])

    def give(self, ticket: Ticket, now: float) -> None:
        super().give(ticket, now)
        key = self._key(ticket)
        if key is None:
            return
        loan = self._loans[key]
        workload, _, user = self._flow(ticket)
        loan.running.remove(workload, user, ticket.cost)
        if loan.told > loan.room:
            self._stir(key)  # the ledger waits for it

    def enter(self, ticket: Ticket, now: float) -> None:
        key = self._key(ticket)
        if key is not None:
            workload, weight, user = self._flow(ticket)
            loan = self._loan(key)
            loan.waiting.add(workload, weight, user, ticket.cost)
            if now >= loan.dry_until:
                self._stir(key)

    def leave(self, ticket: Ticket, now: float) -> None:
        key = self._key(ticket)
        if key is not None:
            loan = self._loans[key]
            workload, _, user = self._flow(ticket)
            if loan.waiting.remove(workload, user, ticket.cost) and not loan.waiting.lines:
                self._stir(key)

    def inherit(self, former: LeasedSlots) -> None:
        """Go on with what was lent to another for the same keys, whose holders are here by now; an adjustment."""
        self.mode, self._nodes, self._rank = former.mode, former._nodes, former._rank
        for key, lent in former._loans.items():
            loan = self._loan(key)
            loan.room, loan.until, loan.dry_until = lent.room, lent.until, lent.dry_until
            loan.limit, loan.short = lent.limit, lent.short
            loan.told, loan.told_at = lent.told, lent.told_at
            loan.peak, loan.last_peak = max(loan.peak, lent.peak), lent.last_peak
        self._stirred.update(dict.fromkeys(self._loans))
        self.opened.append(FULL)

    # Adjustments: what the ledger brings

    def lend(self, key: Hashable, tokens: float, until: float, limit: float | None = None) -> None:
        """Set how much of `limit` may be in flight, for starts before `until`."""
        if not 0 <= tokens < inf:
            raise ConfigError(f"tokens must be a finite number, 0 or more; got {tokens!r}")
        loan = self._loan(key)
        loan.room, loan.until = tokens, until
        loan.limit = self.limit if limit is None else limit
        self.opened.append(self._scope(key))

    def lose(self, mode: Literal["local", "closed", "open"], nodes: int, rank: int) -> None:
        """The ledger is lost: go on by `mode`; of `nodes` processes this is number `rank`, from 0."""
        if not 0 <= rank < nodes:
            raise ConfigError(f"rank must be from 0 to below {nodes}; got {rank!r}")
        self.mode, self._nodes, self._rank = mode, nodes, rank
        for loan in self._loans.values():
            loan.told = 0.0
            if not self.keeps:
                loan.room = 0.0
            loan.until = loan.dry_until = loan.told_at = -inf
        self.opened.append(FULL)

    def regain(self) -> None:
        """The ledger is back: what it lends counts again."""
        self.mode = "leased"
        self._stirred.update(dict.fromkeys(self._loans))
        self.opened.append(FULL)

    # What to ask for

    def wants(self, now: float, *, all_keys: bool = False) -> list[SlotWant]:
        """Tell what to ask the ledger for, of the keys where something happened, or of all."""
        stirred = self._look()
        keys = list(self._loans) if all_keys else stirred
        renew = RENEW_KEPT if self.keeps else RENEW
        wants = []
        for key in keys:
            loan = self._loans.get(key)
            if loan is None:
                continue
            used = self._used.get(key, 0.0)
            claims = loan.claims()
            asked = sum(claim.tokens for claim in claims)
            ahead = max(0.0, max(loan.peak, loan.last_peak) - asked)
            if all_keys and now >= loan.peaks_at:
                loan.last_peak, loan.peak = loan.peak, used
                loan.peaks_at = now + REMEMBERED if self.keeps else -inf
            held = self.held(key)
            if not (claims or held or loan.told or ahead or self.keeps):
                del self._loans[key]
            elif not all_keys or held != loan.told or now - loan.told_at >= renew:
                loan.told, loan.told_at = held, now
                wants.append(SlotWant(key, claims, ahead, held, used, self.limit, self.keeps))
        return wants

    def held(self, key: Hashable) -> float:
        """Return what is in flight, or may be without another word of the ledger."""
        loan = self._loans.get(key)
        used = self._used.get(key, 0.0)
        return used if loan is None else max(used, loan.room)

    def dry(self, key: Hashable, until: float, *, short: bool = False) -> None:
        """Note that there is nothing to ask for before `until`; `short` if the ledger has no more to lend."""
        loan = self._loans.get(key)
        if loan is not None:
            loan.dry_until, loan.short = until, short

    def believed(self, key: Hashable, held: float) -> None:
        """Note what the ledger believes to be held here."""
        loan = self._loans.get(key)
        if loan is not None:
            loan.told = held

    def surplus(self) -> list[tuple[Hashable, float]]:
        """Tell what to reduce the room of which keys to: what has not been used of late, and is not asked for."""
        found: list[tuple[Hashable, float]] = []
        if self.keeps:
            return found  # the ledger asks for it
        for key, loan in self._loans.items():
            used = self._used.get(key, 0.0)
            soon = max(used, loan.peak, loan.last_peak)
            if not loan.waiting.lines and loan.room > soon:
                found.append((key, soon))
        return found

    def deadline(self, key: Hashable) -> float:
        """Tell until when what is lent may be used."""
        return self._loan(key).until

    # Books

    def room(self) -> Mapping[Hashable, float]:
        if self.mode == "leased":
            rooms = {key: loan.room for key, loan in self._loans.items()}
        elif self.keeps and self.mode == "local":
            rooms = {key: loan.room_of(self.limit) for key, loan in self._loans.items()}
        else:
            rooms = dict.fromkeys(self._used, self.share if self.mode == "local" else 0.0)
        return {key: max(0, room - self._used.get(key, 0)) for key, room in rooms.items()}

    def describe(self, ticket: Ticket, now: float, refusal: Hashable) -> str:
        if self.mode == "closed":
            return f"the ledger of {self.name} is lost, and without it nothing is admitted"
        key = self._key(ticket)
        whose = "" if self._by is None else f" for {key!r}"
        used, room = self._used.get(key, 0), self._room(key, now)
        return (
            f"it needs {ticket.cost:g} beside {used:g} of {room:g} {self.name}{whose}, "
            f"this process's part of {self.limit:g}"
        )

    def _loan(self, key: Hashable) -> Loan:
        loan = self._loans.get(key)
        if loan is None:
            loan = self._loans[key] = Loan()
        return loan
