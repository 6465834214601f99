"""Tokens that are handed out elsewhere and lent to this process in blocks.

The books of such a limit are kept by a ledger that all processes share.  The gate decides with what has been lent, and
never waits for the ledger: grants come as adjustments, and `wants` tells the ledger's exchanger what to ask for.

*Free* tokens of a block may be used by anybody.  *Marked* ones were granted for tickets of one workload that wait,
because the ledger divides what is scarce between the workloads of all processes; only that workload may use them, until
none of it waits.  A block is void from its deadline on.  Nothing here comes by itself, so `ready_at` is inf, except in
a loss of the ledger, when a local bucket stands in (`local`), everything passes (`open`), or nothing (`closed`).
"""

from __future__ import annotations

from math import inf, isfinite
from typing import TYPE_CHECKING, Literal

from fairlead.capacities.block import DUST, Block
from fairlead.capacities.bucket import TokenBucket
from fairlead.capacities.demand import Leased, by_workload
from fairlead.core.capacity import FULL, NEVER, STOP, Capacity
from fairlead.core.ticket import RUNNING
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from fairlead.capacities.block import TokenWant
    from fairlead.capacities.demand import FlowOf
    from fairlead.core.ticket import Ticket

MOST = 100_000  # keys whose spending in a loss is remembered; workloads whose scopes are


class LeasedTokens(Capacity, Leased):
    """A token bucket kept by a ledger; `burst` is its size, beyond which a cost can never be paid.

    `flow` tells a ticket's workload, weight and user.

    >>> tokens = LeasedTokens(30, by=lambda ticket: ticket.tenant)
    >>> tokens.grant("ann", 5, {}, until=10.0)
    """

    scoped = True
    watches = True

    def __init__(
        self,
        burst: float,
        *,
        by: Callable[[Ticket], Hashable] | None = None,
        flow: FlowOf = by_workload,
        name: str = "tokens",
    ) -> None:
        self.name = name
        Leased.__init__(self)
        self._by = by
        self._flow = flow
        self._blocks: dict[Hashable, Block] = {}
        self._local: TokenBucket | None = None
        # Scopes by workload, if there is one key.
        self._own: dict[Hashable, tuple[Hashable, ...]] = {}
        self.set_burst(burst)

    @property
    def keys(self) -> int:
        """The number of keys there is something to remember of."""
        return len(self._blocks)

    def _key(self, ticket: Ticket) -> Hashable:
        return self.name if self._by is None else self._by(ticket)

    def scopes(self, ticket: Ticket) -> tuple[Hashable, ...]:
        key = self._key(ticket)
        if key is None:
            return ()
        workload = self._flow(ticket)[0]
        if self._by is not None:
            return ((self.name, key, workload), (self.name, key))
        found = self._own.get(workload)
        if found is None:
            if len(self._own) > MOST:
                self._own.clear()
            found = self._own[workload] = ((self.name, key, workload),)
        return found

    # Is there room?

    def admit(self, ticket: Ticket, now: float) -> Hashable | None:
        # The short way, for tokens that are at hand: benchmarks/ledger.py.
        block = self._blocks.get(self.name if self._by is None else self._by(ticket))
        if block is not None and self.mode == "leased" and not block.marks:
            level = block.level - ticket.cost
            if level >= 0 and now < block.until:
                block.level = level
                block.used += ticket.cost
                if level < block.low:
                    self._stir(self._key(ticket))
                return None
        return super().admit(ticket, now)

    def refusal(self, ticket: Ticket, now: float, without: Ticket | None = None) -> Hashable | None:
        key = self.name if self._by is None else self._by(ticket)
        block = self._blocks.get(key)
        if block is not None and ticket.cost <= block.level and now < block.until:
            return None  # the short way again: in a loss no block has a level
        if key is None:
            return None
        if ticket.cost > self.burst:
            return NEVER
        if self.mode == "leased":
            if block is not None and now < block.until:
                at_hand = block.level + DUST
                if ticket.cost <= at_hand:
                    return None
                workload = self._flow(ticket)[0]
                if block.marks and ticket.cost <= at_hand + block.marks.get(workload, 0.0):
                    return None
            elif ticket.cost <= 0:
                return None
            return (self.name, key, self._flow(ticket)[0])
        if self.mode == "open":
            return None
        if self._local is not None:
            return self._local.refusal(ticket, now)
        return STOP if self._by is None else (self.name, key)

    def ready_at(self, ticket: Ticket, now: float, scope: Hashable) -> float:
        if self.mode == "local" and self._local is not None:
            return self._local.ready_at(ticket, now, scope)
        return inf

    def expected_at(self, ticket: Ticket, now: float) -> float:
        """Guess when it may be worth asking again: for hints to callers, never for timers."""
        if self.mode != "leased":
            at = self.ready_at(ticket, now, None)
            return at if at < inf else now
        block = self._blocks.get(self._key(ticket))
        return now if block is None else max(now, block.expected_at)

    def take(self, ticket: Ticket, now: float) -> None:
        key = self._key(ticket)
        if key is None:
            return
        cost = ticket.cost
        if self.mode != "leased":
            if key in self._blocks or len(self._blocks) < MOST:
                self._block(key, now).spent += cost
            if self._local is not None:
                self._local.take(ticket, now)
            return
        block = self._block(key, now)
        block.used += cost
        if block.marks:
            workload = self._flow(ticket)[0]
            marked = block.marks.get(workload, 0.0)
            if marked > cost + DUST:
                block.marks[workload] = marked - cost
                return
            block.marks.pop(workload, None)
            cost -= marked
        block.level = max(0.0, block.level - cost)
        if block.level < block.low:
            self._stir(key)

    def give(self, ticket: Ticket, now: float) -> None:
        """Tokens are used up by starting; nothing comes back at the end."""

    def refund(self, ticket: Ticket, amount: float, now: float) -> None:
        key = self._key(ticket)
        if key is None:
            return
        block = self._block(key, now)
        if self.mode != "leased":
            block.spent -= amount
            if self._local is not None:
                self._local.refund(ticket, amount, now)
                self.opened.append(STOP if self._by is None else (self.name, key))
        elif amount < 0:
            block.debit -= amount
        elif now < block.until:
            block.level += amount
            self._open(key, block)
        else:
            block.back += amount
        self._stir(key)

    def adopt(self, ticket: Ticket, now: float) -> None:
        """What it used was lent elsewhere."""

    def enter(self, ticket: Ticket, now: float) -> None:
        key = self._key(ticket)
        if key is None:
            return
        block = self._block(key, now)
        workload, weight, user = self._flow(ticket)
        block.waiting.add(workload, weight, user, ticket.cost)
        if now >= block.dry_until:
            self._stir(key)

    def leave(self, ticket: Ticket, now: float) -> None:
        key = self._key(ticket)
        if key is None:
            return
        block = self._blocks[key]
        workload, _, user = self._flow(ticket)
        if ticket.state is not RUNNING and ticket.cost <= self.burst:
            block.missed += ticket.cost
        if block.waiting.remove(workload, user, ticket.cost):
            if (freed := block.marks.pop(workload, 0.0)) > 0:
                block.level += freed
                self._open(key, block)
            if not block.waiting.lines:
                self._stir(key)
                return
        if not block.told and now >= block.dry_until:
            self._stir(key)  # it may have used what the others would have had

    def stand_in(
        self, rate: float, burst: float, interval: float | None, delay_initial_fill: bool = False
    ) -> TokenBucket:
        """Make the bucket that keeps these keys while the ledger is lost; costs above its burst leave a debt."""
        return TokenBucket(
            rate,
            burst,
            by=self._by,
            interval=interval,
            delay_initial_fill=delay_initial_fill,
            oversize="debt",
            name=self.name,
        )

    def inherit(self, former: LeasedTokens) -> None:
        """Go on with what was lent to another for the same keys, of which nobody waits any more; an adjustment."""
        self.mode, self._local = former.mode, former._local
        if self._local is not None:
            self._local.report_to(self.opened)
        self._blocks, former._blocks = former._blocks, {}
        self._stirred.update(dict.fromkeys(self._blocks))
        self.opened.append(FULL)

    # Adjustments: what the ledger brings

    def grant(
        self, key: Hashable, tokens: float, marks: Mapping[Hashable, float], until: float
    ) -> None:
        """Lend tokens, free ones and those for workloads that wait; the block is void from `until` on."""
        if not (0 <= tokens < inf and all(0 <= mark < inf for mark in marks.values())):
            raise ConfigError(f"tokens must be finite, 0 or more; got {tokens!r} and {marks!r}")
        block = self._block(key, -inf)
        block.level += tokens
        for workload, mark in marks.items():
            if workload in block.waiting.lines:
                block.marks[workload] = block.marks.get(workload, 0.0) + mark
            else:
                block.level += mark
        block.until = until
        self._open(key, block)

    def dry(self, key: Hashable, until: float, expected_at: float) -> None:
        """Note that there is nothing to ask for before `until`, and when the ledger expects to have some."""
        block = self._blocks.get(key)
        if block is not None:
            block.dry_until, block.expected_at = until, expected_at
            if until == -inf:
                block.told = False  # all it was told of has been met

    def recall(self, key: Hashable, tokens: float) -> None:
        """Put free tokens aside, to be given back to the ledger."""
        block = self._blocks.get(key)
        if block is not None:
            tokens = min(tokens, block.level)
            block.level -= tokens
            block.back += tokens
            self._stir(key)

    def lose(self, mode: Literal["local", "closed", "open"], local: TokenBucket | None) -> None:
        """The ledger is lost: go on by `mode`, for `local` with that bucket.  What was lent is void."""
        if (mode == "local") != (local is not None):
            raise ConfigError("the mode local, and no other, comes with a bucket")
        self.mode = mode
        if local is not None:
            local.report_to(self.opened)
        self._local = local
        for block in self._blocks.values():
            block.empty()
        self.opened.append(FULL)

    def regain(self) -> None:
        """The ledger is back: what it lends counts again."""
        self.mode = "leased"
        self._local = None
        self._stirred.update(dict.fromkeys(self._blocks))
        self.opened.append(FULL)

    def retune_local(self, rate: float, burst: float, interval: float | None, now: float) -> None:
        """Change the bucket that stands in while the ledger is lost."""
        if self._local is not None:
            self._local.retune(rate, burst, interval, now)

    def set_burst(self, burst: float) -> None:
        """Change the size of the bucket."""
        if not (isfinite(burst) and burst > 0):
            raise ConfigError(f"burst must be a finite number above 0; got {burst!r}")
        self.burst = burst
        self.opened.append(FULL)

    # What to ask for

    def wants(self, now: float, *, all_keys: bool = False) -> list[TokenWant]:
        """Tell what to ask the ledger for, of the keys where something happened, or of all.

        What came back or was overdrawn is handed over: if it does not reach the ledger, say so with `unsent`.
        """
        stirred = self._look()
        keys = list(self._blocks) if all_keys else stirred
        wants = []
        for key in keys:
            block = self._blocks.get(key)
            if block is None:
                continue
            want = block.want(key, now)
            if want is not None:
                wants.append(want)
            elif block.idle(now):
                del self._blocks[key]
        return wants

    def unsent(self, want: TokenWant) -> None:
        """Take back what a want told, for it may not have reached the ledger; what came back is written off."""
        block = self._blocks.get(want.key)
        if block is not None:
            block.debit += want.debit
            block.spent += want.spent

    def surplus(self) -> list[tuple[Hashable, float]]:
        """Tell which free tokens are more than will soon be used, to be recalled."""
        found = ((key, block.surplus()) for key, block in self._blocks.items())
        return [(key, tokens) for key, tokens in found if tokens > 0]

    # Books

    def level(self, key: Hashable = None) -> float:
        """Tell the free tokens lent for a key."""
        block = self._blocks.get(self.name if self._by is None else key)
        return 0.0 if block is None else block.level

    def room(self) -> Mapping[Hashable, float]:
        return {key: block.level for key, block in self._blocks.items()}

    def describe(self, ticket: Ticket, now: float, refusal: Hashable) -> str:
        if refusal is NEVER:
            return f"its cost {ticket.cost:g} is larger than bucket {self.burst:g}: it can never be admitted"
        if self._local is not None:
            return f"{self._local.describe(ticket, now, refusal)} while the ledger is lost"
        if self.mode == "closed":
            return f"the ledger of {self.name} is lost, and without it nothing is admitted"
        key = self._key(ticket)
        whose = "" if self._by is None else f" of {key!r}"
        have = self.level(key)
        return f"it needs {ticket.cost:g} {self.name}{whose} and {have:g} are lent to this process"

    def _block(self, key: Hashable, now: float) -> Block:
        block = self._blocks.get(key)
        if block is None:
            block = self._blocks[key] = Block(now)
        return block

    def _open(self, key: Hashable, block: Block) -> None:
        self.opened.extend((self.name, key, workload) for workload in block.waiting.lines)
