"""The load bucket: a token bucket whose rate is moved from outside; until it is told to limit, everything passes.

It limits from `set_rate(rate, now, until)` on and until `until`, or until `pass_through()`.  A burst is one second of
rate.  With ρ the rate, l the level after the last use at instant a, and c the cost, room comes at

    min(until, a + (min(c, ρ) − l)/ρ)          and with ρ = 0 at `until`

so a controller that dies leaves the door open: its last rate ends by itself, and the gate's timer knows when.  A bucket
that begins to limit is full: whoever was not limited a moment ago meets no cliff.  A change of rate keeps the level, up
to the new burst.  A cost above the burst goes when the bucket is full and leaves a debt, for the rate may be anything
tomorrow and nobody can be told *never*.  What started while everything passed has drawn nothing, and gets nothing back.
"""

from __future__ import annotations

from math import inf, isfinite
from typing import TYPE_CHECKING

from fairlead.capacities.bucket import TokenBucket
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Hashable

    from fairlead.core.ticket import Ticket


class LoadBucket(TokenBucket):
    """Admit everything until a rate is set; then that many tokens per second, with one second of burst.

    >>> bucket = LoadBucket()
    >>> bucket.passes(0.0)
    True
    >>> bucket.set_rate(5.0, 10.0, until=60.0)
    >>> bucket.passes(10.0), bucket.level(10.0), bucket.passes(60.0)
    (False, 5.0, True)
    """

    def __init__(self, *, name: str = "load") -> None:
        super().__init__(1.0, burst=1.0, oversize="debt", name=name)
        self.rate = self.burst = 0.0
        self._until = -inf
        self._since = inf  # since when it limits; tickets from before have drawn nothing

    def passes(self, now: float) -> bool:
        """Tell whether everything passes now."""
        return now >= self._until

    def set_rate(self, rate: float, now: float, until: float = inf) -> None:
        """Limit to `rate` tokens per second from now until `until`; a rate of 0 admits nothing (an adjustment)."""
        if not (isfinite(rate) and rate >= 0):
            raise ConfigError(f"the rate must be a finite number, 0 or more; got {rate!r}")
        if not (isfinite(now) and until >= now):
            raise ConfigError(f"a rate holds from a time until a later one; got {now!r}, {until!r}")
        if self.passes(now):
            level, self._since = rate, now
        else:
            level = min(rate, self.level(now))
        self.rate = self.burst = rate
        self._until = until
        self.set_level(level, now)

    def pass_through(self) -> None:
        """Let everything pass until a rate is set again (an adjustment)."""
        self._until = -inf

    def inherit(self, former: TokenBucket, now: float) -> None:
        """Limit as another does, with what it holds; an adjustment."""
        if isinstance(former, LoadBucket):
            self.rate, self.burst = former.rate, former.burst
            self._until, self._since = former._until, former._since
        super().inherit(former, now)

    def _possible_at(self, key: Hashable, cost: float, now: float) -> float:
        if cost <= 0 or self.passes(now):
            return now
        if self.rate == 0:
            return self._until
        return min(super()._possible_at(key, cost, now), self._until)

    def take(self, ticket: Ticket, now: float) -> None:
        if not self.passes(now):
            super().take(ticket, now)

    def refund(self, ticket: Ticket, amount: float, now: float) -> None:
        if not self.passes(now) and ticket.started_at > self._since:
            super().refund(ticket, amount, now)

    def adopt(self, ticket: Ticket, now: float) -> None:
        """What it drew, if anything, it drew elsewhere."""

    def describe(self, ticket: Ticket, now: float, refusal: Hashable) -> str:
        if self.rate == 0:
            return "load control admits nothing just now"
        return (
            f"it needs {ticket.cost:g} tokens and there are {self.level(now):g}; "
            f"load control admits {self.rate:g} per second"
        )
