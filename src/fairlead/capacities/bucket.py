"""Token buckets: a rate with a burst, one bucket or one per label value.

A bucket is kept as a time, not as a level, so that `refusal` and `ready_at` are one expression and never disagree by a rounding.

*Continuous fill*: z is the instant at which the bucket was (or will be) empty; its level is min(burst, (now − z)·rate).  Taking c
moves z to  max(z, now − burst/rate) + c/rate, and is possible from that instant on.  (GCRA by another name.)
*Interval fill*: `rate·interval` tokens arrive at once at the end of each interval, counted from the first use of the bucket; its level
after the last counted fill and the time of that fill are kept.

The debt rule is explicit: a cost above the burst is refused for good (`oversize="refuse"`), or admitted when the bucket is full,
leaving a debt that later tickets wait out (`oversize="debt"`).
"""

from __future__ import annotations

from math import ceil, floor, inf, isfinite
from typing import TYPE_CHECKING, Any, Literal

from fairlead.core.capacity import NEVER, STOP, Capacity
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

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
        # key -> z, or (level, filled_at).  A full bucket is as good as none: it is dropped, oldest use first.
        self._buckets: dict[Hashable, Any] = {}

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
        if self.interval is None:
            full_at: float = bucket + self.burst / self.rate
            return now if full_at <= now else bucket + needed / self.rate
        level, filled_at = bucket
        if level >= needed:
            return now
        fills = ceil((needed - level) / (self.rate * self.interval))
        return float(filled_at + fills * self.interval)

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
        key = self.name if self._by is None else key
        bucket = self._buckets.get(key)
        if bucket is not None:
            if self.interval is None:
                self._buckets[key] = bucket - amount / self.rate
            else:
                self._buckets[key] = (min(self.burst, bucket[0] + amount), bucket[1])
        self.opened.append(STOP if self._by is None else (self.name, key))

    def level(self, now: float, key: Hashable = None) -> float:
        """Tell how many tokens a bucket holds; negative is debt."""
        bucket = self._buckets.get(self.name if self._by is None else key)
        if bucket is None:
            return self.burst
        if self.interval is None:
            return float(min(self.burst, (now - bucket) * self.rate))
        return self._filled(bucket, now)[0]

    def _draw(self, key: Hashable, cost: float, now: float) -> None:
        bucket = self._buckets.pop(key, None)  # put back last: the dict is in order of use
        if self.interval is None:
            full = now - self.burst / self.rate
            empty_at = full if bucket is None else max(bucket, full)
            self._buckets[key] = max(empty_at + cost / self.rate, full)
        else:
            level, filled_at = (self.burst, now) if bucket is None else self._filled(bucket, now)
            self._buckets[key] = (min(self.burst, level - cost), filled_at)

    def _filled(self, bucket: tuple[float, float], now: float) -> tuple[float, float]:
        level, filled_at = bucket
        interval = self.interval or inf
        fills = max(0, floor((now - filled_at) / interval))
        # The division may round across an edge; the edges themselves are what `ready_at` promises.
        while filled_at + (fills + 1) * interval <= now:
            fills += 1
        while fills and filled_at + fills * interval > now:
            fills -= 1
        return min(self.burst, level + fills * self.rate * interval), filled_at + fills * interval

    def _drop_full(self, now: float) -> None:
        for key in list(_first(self._buckets, 2)):
            if self.level(now, key if self._by is not None else None) >= self.burst:
                del self._buckets[key]

    def room(self) -> Mapping[Hashable, float]:
        return {}

    def describe(self, ticket: Ticket, now: float, refusal: Hashable) -> str:
        if refusal is NEVER:
            return f"its cost {ticket.cost:g} is larger than bucket {self.burst:g}: it can never be admitted"
        key = self._key(ticket)
        whose = "" if self._by is None else f" of {key!r}"
        have = self.level(now, None if self._by is None else key)
        return f"it needs {ticket.cost:g} {self.name}{whose} and there are {have:g}"


def _first(keys: Mapping[Hashable, Any], count: int) -> list[Hashable]:
    return [key for key, _ in zip(keys, range(count), strict=False)]
