"""Token buckets: a rate with a burst, one bucket or one per label value.

A bucket is its level after the last use and the instant it fills from; between uses nothing is computed.  `refusal` and
`ready_at` are one expression over the two, so they never disagree by a rounding, which would make a timer spin at one
instant.

*Continuous fill*: a cost above the level is possible from  at + (cost − level)/rate  on.
*Interval fill*: `rate·interval` tokens arrive at once at the end of each interval, counted from the first use of the
bucket; the instant kept is that of the last counted fill.
*Delayed fill* (`delay_initial_fill`): a draw from a completely full bucket puts that instant off by the time a whole
burst takes to fill, so that the first such time yields the burst, and not the burst and its refill.

The debt rule is explicit: a cost above the burst is refused for good (`oversize="refuse"`), or admitted when the bucket
is full, leaving a debt that later tickets wait out (`oversize="debt"`).

Buckets per label value are kept in order of use.  A full one is as good as none and may be given up at any use of
another (its intervals then count anew from its next use); one unused for `max_idle_time` counts
as full; beyond `max_keys` the one unused longest is given up.  Each use looks at the two oldest, so the table is
cleared as fast as it grows.
"""

from __future__ import annotations

from itertools import islice
from math import ceil, floor, inf
from typing import TYPE_CHECKING, Literal

from fairlead.core.capacity import FULL, NEVER, STOP, Capacity
from fairlead.core.checks import is_number, read_by
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from fairlead.core.ticket import Ticket


# Its level after the last use, the instant it fills from (with a delay, one to come), and that of the last use: a list,
# for that is changed in less time than a tuple is made (benchmarks/flows.py).
Bucket = list[float]


class TokenBucket(Capacity):
    """Admit `rate` tokens per second with bursts of `burst`; `by` names the label, None of it bypasses the limit.

    >>> per_key = TokenBucket(10, burst=30, by=lambda ticket: ticket.tenant)
    >>> per_minute = TokenBucket(1.0, burst=60, interval=60.0)
    """

    lasts = True
    spends = True
    foretells = True

    def __init__(
        self,
        rate: float,
        burst: float,
        *,
        by: str | Callable[[Ticket], Hashable] | None = None,
        interval: float | None = None,
        delay_initial_fill: bool = False,
        oversize: Literal["refuse", "debt"] = "refuse",
        max_idle_time: float = inf,
        max_keys: int = 1_000_000,
        name: str = "tokens",
    ) -> None:
        _check(rate, burst, interval)
        if oversize not in ("refuse", "debt"):
            raise ConfigError(f'oversize must be "refuse" or "debt"; got {oversize!r}')
        if not (is_number(max_idle_time) and max_idle_time > 0):
            raise ConfigError(f"max_idle_time must be above 0 seconds; got {max_idle_time!r}")
        if not is_number(max_keys, 1):
            raise ConfigError(f"max_keys must be 1 or more; got {max_keys!r}")
        self.name = name
        self.rate = rate
        self.burst = burst
        self.interval = interval
        self.delay_initial_fill = delay_initial_fill
        self._stepwise = interval is not None or delay_initial_fill  # not the usual fill
        self.oversize = oversize
        self.max_idle_time = max_idle_time
        self.max_keys = max_keys
        self._by = None if by is None else read_by(by)
        self.scoped = by is not None
        self._buckets: dict[Hashable, Bucket] = {}  # in order of use
        # That of all tickets, once it is used, if its fill is the usual one.
        self._only: Bucket | None = None

    @property
    def keys(self) -> int:
        """The number of buckets remembered; all others are full."""
        return len(self._buckets)

    def scopes(self, ticket: Ticket) -> tuple[Hashable, ...]:
        key = self._key(ticket)
        return () if self._by is None or key is None else ((self.name, key),)

    def _key(self, ticket: Ticket) -> Hashable:
        return self.name if self._by is None else self._by(ticket)

    def _scope(self, key: Hashable) -> Hashable:
        return STOP if self._by is None else (self.name, key)

    def _possible_at(self, key: Hashable, cost: float, now: float) -> float:
        bucket = self._buckets.get(key)
        if bucket is None:
            return now
        # No min() and max() from here to `_filled`: they cost more than all the rest (benchmarks/flows.py).
        if cost > self.burst:
            cost = self.burst  # more than the burst is in order only with the debt rule
        level, at, used_at = bucket
        if level >= cost:
            return now
        if self.interval is None:
            filled_at = at + (cost - level) / self.rate
        else:
            fills = ceil((cost - level) / (self.rate * self.interval))
            filled_at = at + fills * self.interval
        if filled_at > used_at + self.max_idle_time:
            return used_at + self.max_idle_time
        return filled_at

    def refusal(self, ticket: Ticket, now: float, without: Ticket | None = None) -> Hashable | None:
        key = self._key(ticket)
        if key is None:
            return None
        if ticket.cost > self.burst and self.oversize == "refuse":
            return NEVER
        if self._possible_at(key, ticket.cost, now) <= now:
            return None
        return self._scope(key)

    def admit(self, ticket: Ticket, now: float) -> Hashable | None:
        # `refusal` and `_draw` in one step, with the usual fill written out: benchmarks/flows.py.
        cost, burst, bucket = ticket.cost, self.burst, self._only
        by = key = None
        if bucket is None:
            by = self._by
            key = self.name if by is None else by(ticket)
            if key is None:
                return None
            bucket = self._buckets.get(key)
            if bucket is None or self._stepwise:
                return self._admit_slowly(key, cost, now)
        if cost > burst and self.oversize == "refuse":
            return NEVER
        level, at, used_at = bucket
        if level < cost:  # as of `at`
            needed = burst if cost > burst else cost  # noqa: FURB136 - a call costs more
            if level < needed:
                ends_at = at + (needed - level) / self.rate
                if ends_at > used_at + self.max_idle_time:
                    ends_at = used_at + self.max_idle_time
                if now < ends_at:
                    self.ends_at = ends_at
                    return STOP if by is None else (self.name, key)
        if now > at:
            level += (now - at) * self.rate
            at = now
        if level > burst or used_at + self.max_idle_time <= now:
            level = burst
        bucket[0], bucket[1], bucket[2] = level - cost, at, now
        if by is not None:
            del self._buckets[key]  # put back last: the dict is in order of use
            self._buckets[key] = bucket
            self._drop_idle(now)
        return None

    def _admit_slowly(self, key: Hashable, cost: float, now: float) -> Hashable | None:
        if cost > self.burst and self.oversize == "refuse":
            return NEVER
        self.ends_at = self._possible_at(key, cost, now)
        if self.ends_at > now:
            return self._scope(key)
        self._draw(key, cost, now)
        if self._by is not None:
            self._drop_idle(now)
        return None

    def ready_at(self, ticket: Ticket, now: float, scope: Hashable) -> float:
        by = self._by
        return self._possible_at(self.name if by is None else by(ticket), ticket.cost, now)

    def take(self, ticket: Ticket, now: float) -> None:
        key = self._key(ticket)
        if key is not None:
            self._draw(key, ticket.cost, now)
            if self._by is not None:
                self._drop_idle(now)

    def give(self, ticket: Ticket, now: float) -> None:
        """Tokens are used up by starting; nothing comes back at the end."""

    def refund(self, ticket: Ticket, amount: float, now: float) -> None:
        key = self._key(ticket)
        if key is not None:
            self._correct(key, amount, now)

    def _correct(self, key: Hashable, amount: float, now: float) -> None:
        self._draw(key, -amount, now)
        if amount > 0:
            self.opened.append(self._scope(key))

    # Adjustments

    def correct(self, amount: float, key: Hashable, now: float) -> None:
        """Refund (or, if negative, charge) a ticket that is gone; by key, for who has none drew nothing."""
        key = self.name if self._by is None else key
        if key is not None:
            self._correct(key, amount, now)

    def top_up(self, amount: float, key: Hashable = None) -> None:
        """Add tokens from outside, up to the burst."""
        if not 0 <= amount < inf:
            raise ConfigError(f"a top-up must be a finite number, 0 or more; got {amount!r}")
        key = self.name if self._by is None else key
        bucket = self._buckets.get(key)
        if bucket is not None:
            bucket[0] = min(self.burst, bucket[0] + amount)
            self.opened.append(self._scope(key))

    def retune(self, rate: float, burst: float, interval: float | None, now: float) -> None:
        """Change the settings from `now` on: each bucket keeps what it holds then, up to the new burst.

        A bucket that is full stays full, whatever that is worth now.  Intervals count anew if their length changes.
        """
        _check(rate, burst, interval)
        held = {key: (self._filled(bucket, now), bucket) for key, bucket in self._buckets.items()}
        for key, ((level, at), bucket) in held.items():
            if level >= self.burst:
                del self._buckets[key]
                continue
            kept = at if interval == self.interval else max(now, at)
            self._buckets[key] = [min(burst, level), kept, bucket[2]]
        self.rate, self.burst, self.interval = rate, burst, interval
        self._stepwise = interval is not None or self.delay_initial_fill
        self._only = None if self._by or self._stepwise else self._buckets.get(self.name)
        self.opened.append(FULL)

    def inherit(self, former: TokenBucket, now: float) -> None:
        """Begin with what the buckets of another hold, by the same keys, up to the burst; an adjustment.

        What is full stays full.  Fills come when they would have come there, unless their intervals have another length
        or they are no longer delayed: these count from now.
        """
        undelayed = former.delay_initial_fill and not self.delay_initial_fill
        for name, bucket in former._buckets.items():
            level, at = former._filled(bucket, now)
            if undelayed:
                at = min(at, now)
            if self.interval != former.interval:
                at = max(at, now)
            key = self.name if self._by is None else name
            held = self.burst if level >= former.burst else min(level, self.burst)
            self._keep(key, held, at, bucket[2])  # they stay in order of use
            self.opened.append(self._scope(key))

    def set_level(
        self, level: float, now: float, key: Hashable = None, fills_from: float | None = None
    ) -> None:
        """Say what a bucket holds now, and if it does not fill from now on, from when."""
        key = self.name if self._by is None else key
        if level < self.burst:
            self._keep(key, level, now if fills_from is None else fills_from, now)
        else:
            self._buckets.pop(key, None)
            self._only = None
        self.opened.append(self._scope(key))

    # Books

    def level(self, now: float, key: Hashable = None) -> float:
        """Tell how many tokens a bucket holds; negative is debt."""
        bucket = self._buckets.get(self.name if self._by is None else key)
        return self.burst if bucket is None else self._filled(bucket, now)[0]

    def _draw(self, key: Hashable, cost: float, now: float) -> None:
        bucket = self._buckets.get(key)
        burst = self.burst
        level, at = (burst, now) if bucket is None else self._filled(bucket, now)
        if self.delay_initial_fill and cost > 0 and level >= burst:
            at = now + self._time_to_fill()
        level -= cost
        if level > burst:  # a refund
            level = burst
        self._keep(key, level, at, now)

    def _keep(self, key: Hashable, level: float, at: float, used_at: float) -> None:
        self._buckets.pop(key, None)  # put back last: the dict is in order of use
        bucket = self._buckets[key] = [level, at, used_at]
        if self._by is None and not self._stepwise:
            self._only = bucket

    def _time_to_fill(self) -> float:
        """Tell how long after a draw from a full bucket to count fills from, if they are delayed."""
        if self.interval is None:
            return self.burst / self.rate
        return (ceil(self.burst / (self.rate * self.interval)) - 1) * self.interval

    def _filled(self, bucket: Bucket, now: float) -> tuple[float, float]:
        level, at, used_at = bucket
        if used_at + self.max_idle_time <= now:
            return self.burst, now
        if self.interval is None:
            if now > at:
                level, at = level + (now - at) * self.rate, now
            if level > self.burst:
                level = self.burst
            return level, at
        fills = max(0, floor((now - at) / self.interval))
        # The division may round across an edge; the edges themselves are what `ready_at` promises.
        while at + (fills + 1) * self.interval <= now:
            fills += 1
        while fills and at + fills * self.interval > now:
            fills -= 1
        filled = level + fills * self.rate * self.interval
        return min(self.burst, filled), at + fills * self.interval

    def _drop_idle(self, now: float) -> None:
        buckets = self._buckets
        for key in list(islice(buckets, 2)):
            if self._filled(buckets[key], now)[0] >= self.burst:
                del buckets[key]
            elif len(buckets) > self.max_keys:
                del buckets[key]
                self.opened.append(self._scope(key))  # it counts as full now

    def describe(self, ticket: Ticket, now: float, refusal: Hashable) -> str:
        if refusal is NEVER:
            return f"its cost {ticket.cost:g} is larger than bucket {self.burst:g}: it can never be admitted"
        key = self._key(ticket)
        whose = "" if self._by is None else f" of {key!r}"
        have = self.level(now, None if self._by is None else key)
        return f"it needs {ticket.cost:g} {self.name}{whose} and there are {have:g}"


def _check(rate: float, burst: float, interval: float | None) -> None:
    for what, value in (("rate", rate), ("burst", burst), ("interval", interval)):
        if value is not None and not (is_number(value) and 0 < value < inf):
            raise ConfigError(f"{what} must be a finite number above 0; got {value!r}")
