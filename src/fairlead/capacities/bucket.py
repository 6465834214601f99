"""Token buckets: a rate with a burst, one bucket or one per label value.

A bucket is its level after the last use and the instant of it; between uses nothing is computed.  `refusal` and
`ready_at` are one expression over the two, so they never disagree by a rounding, which would make a timer spin at one
instant.

*Continuous fill*: a cost above the level is possible from  at + (cost − level)/rate  on.
*Interval fill*: `rate·interval` tokens arrive at once at the end of each interval, counted from the first use of the
bucket; the instant kept is that of the last counted fill.

The debt rule is explicit: a cost above the burst is refused for good (`oversize="refuse"`), or admitted when the bucket
is full, leaving a debt that later tickets wait out (`oversize="debt"`).
"""

from __future__ import annotations

from math import ceil, floor, inf, isfinite
from typing import TYPE_CHECKING, Literal

from fairlead.core.capacity import NEVER, STOP, Capacity
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from fairlead.core.ticket import Ticket


class TokenBucket(Capacity):
    """Admit `rate` tokens per second with bursts of `burst`; `by` names the label, None of it bypasses the limit.

    >>> per_key = TokenBucket(10, burst=30, by=lambda ticket: ticket.tenant)
    >>> per_minute = TokenBucket(1.0, burst=60, interval=60.0)
    """

    def __init__(
        self,
        rate: float,
        burst: float,
        *,
        by: Callable[[Ticket], Hashable] | None = None,
        interval: float | None = None,
        oversize: Literal["refuse", "debt"] = "refuse",
        name: str = "tokens",
    ) -> None:
        for what, value in (("rate", rate), ("burst", burst), ("interval", interval)):
            if value is not None and not (isfinite(value) and value > 0):
                raise ConfigError(f"{what} must be a finite number above 0; got {value!r}")
        if oversize not in ("refuse", "debt"):
            raise ConfigError(f'oversize must be "refuse" or "debt"; got {oversize!r}')
        self.name = name
        self.rate = rate
        self.burst = burst
        self.interval = interval
        self.oversize = oversize
        self._by = by
        self.scoped = by is not None
        # key -> (level, at).  A full bucket is as good as none: it is dropped, oldest use first.
        self._buckets: dict[Hashable, tuple[float, float]] = {}

    def scopes(self, ticket: Ticket) -> tuple[Hashable, ...]:
        key = self._key(ticket)
        return () if self._by is None or key is None else ((self.name, key),)

    def _key(self, ticket: Ticket) -> Hashable:
        return self.name if self._by is None else self._by(ticket)

    def _possible_at(self, key: Hashable, cost: float, now: float) -> float:
        bucket = self._buckets.get(key)
        if bucket is None:
            return now
        needed = min(cost, self.burst)  # more than the burst is in order only with the debt rule
        level, at = bucket
        if level >= needed:
            return now
        if self.interval is None:
            return at + (needed - level) / self.rate
        fills = ceil((needed - level) / (self.rate * self.interval))
        return at + fills * self.interval

    def refusal(self, ticket: Ticket, now: float, without: Ticket | None = None) -> Hashable | None:
        key = self._key(ticket)
        if key is None:
            return None
        if ticket.cost > self.burst and self.oversize == "refuse":
            return NEVER
        if self._possible_at(key, ticket.cost, now) <= now:
            return None
        return STOP if self._by is None else (self.name, key)

    def ready_at(self, ticket: Ticket, now: float, scope: Hashable) -> float:
        return self._possible_at(self._key(ticket), ticket.cost, now)

    def take(self, ticket: Ticket, now: float) -> None:
        key = self._key(ticket)
        if key is not None:
            self._draw(key, ticket.cost, now)
            self._drop_full(now)

    def give(self, ticket: Ticket, now: float) -> None:
        """Tokens are used up by starting; nothing comes back at the end."""

    def refund(self, ticket: Ticket, amount: float, now: float) -> None:
        key = self._key(ticket)
        if key is not None:
            self._draw(key, -amount, now)
            if amount > 0:
                self.opened.append(STOP if self._by is None else (self.name, key))

    def top_up(self, amount: float, key: Hashable = None) -> None:
        """Add tokens from outside, up to the burst (an adjustment)."""
        if not 0 <= amount < inf:
            raise ConfigError(f"a top-up must be a finite number, 0 or more; got {amount!r}")
        key = self.name if self._by is None else key
        bucket = self._buckets.get(key)
        if bucket is not None:
            self._buckets[key] = (min(self.burst, bucket[0] + amount), bucket[1])
            self.opened.append(STOP if self._by is None else (self.name, key))

    def level(self, now: float, key: Hashable = None) -> float:
        """Tell how many tokens a bucket holds; negative is debt."""
        bucket = self._buckets.get(self.name if self._by is None else key)
        return self.burst if bucket is None else self._filled(bucket, now)[0]

    def _draw(self, key: Hashable, cost: float, now: float) -> None:
        bucket = self._buckets.pop(key, None)  # put back last: the dict is in order of use
        level, at = (self.burst, now) if bucket is None else self._filled(bucket, now)
        self._buckets[key] = (min(self.burst, level - cost), at)

    def _filled(self, bucket: tuple[float, float], now: float) -> tuple[float, float]:
        level, at = bucket
        if self.interval is None:
            return min(self.burst, level + max(0.0, now - at) * self.rate), max(now, at)
        fills = max(0, floor((now - at) / self.interval))
        # The division may round across an edge; the edges themselves are what `ready_at` promises.
        while at + (fills + 1) * self.interval <= now:
            fills += 1
        while fills and at + fills * self.interval > now:
            fills -= 1
        return min(
            self.burst, level + fills * self.rate * self.interval
        ), at + fills * self.interval

    def _drop_full(self, now: float) -> None:
        for key in list(_first(self._buckets, 2)):
            if self.level(now, key if self._by is not None else None) >= self.burst:
                del self._buckets[key]

    def describe(self, ticket: Ticket, now: float, refusal: Hashable) -> str:
        if refusal is NEVER:
            return f"its cost {ticket.cost:g} is larger than bucket {self.burst:g}: it can never be admitted"
        key = self._key(ticket)
        whose = "" if self._by is None else f" of {key!r}"
        have = self.level(now, None if self._by is None else key)
        return f"it needs {ticket.cost:g} {self.name}{whose} and there are {have:g}"


def _first(keys: Iterable[Hashable], count: int) -> list[Hashable]:
    return [key for key, _ in zip(keys, range(count), strict=False)]
