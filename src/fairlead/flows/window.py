"""What happened lately, in slots of equal width: token rates, accepted shares, means, percentiles.  No clock, no I/O.

Slot k covers [k·width, (k+1)·width).  A window is its last `slots` complete slots and the current one; older slots are
dropped, so memory is bounded whatever the traffic.  Reading changes nothing, and a clock that steps back stands still.
"""

from __future__ import annotations

from collections import Counter, deque
from math import ceil, floor, inf, isfinite, log
from typing import TYPE_CHECKING, Generic, TypeVar

from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Slot = TypeVar("Slot")


class Ring(Generic[Slot]):
    """The current slot, and the `slots` before it that have anything in them."""

    def __init__(self, slots: int, width: float, empty: Callable[[], Slot]) -> None:
        if slots < 1 or not 0 < width < inf:
            raise ConfigError(
                f"a window needs 1 slot or more of some width; got {slots!r} of {width!r} seconds"
            )
        self.slots, self.width = slots, width
        self._empty = empty
        self._kept: deque[tuple[int, Slot]] = deque(maxlen=slots + 1)

    def tick(self, now: float) -> int:
        """Number the slot of an instant."""
        return floor(now / self.width)

    def current(self, now: float) -> Slot:
        """The slot to write in."""
        tick, kept = self.tick(now), self._kept
        if not kept or kept[-1][0] < tick:
            kept.append((tick, self._empty()))
        return kept[-1][1]

    def complete(self, now: float) -> Iterator[Slot]:
        """The slots of the window before the current one."""
        last = self.tick(now)
        return (slot for tick, slot in self._kept if last - self.slots <= tick < last)

    def recent(self, now: float) -> Iterator[Slot]:
        """The slots of the window and the current one."""
        first = self.tick(now) - self.slots
        return (slot for tick, slot in self._kept if first <= tick)


class IncomingWindow:
    """The rate of incoming tokens over 30 × 1 s; None while it is bootstrapping.

    rate = Σ of the complete slots / (slots·width).  It bootstraps until the ring of slots + 1 has wrapped, when the
    first slot, which may be a part of one, is out of the window; and again once that many slots had no token.

    >>> window = IncomingWindow()
    >>> for second in range(62):
    ...     window.count(7.0, second / 2)
    >>> window.rate(30.9), window.rate(31.0), window.rate(61.0)
    (None, 14.0, None)
    """

    def __init__(self, slots: int = 30, width: float = 1.0) -> None:
        self._ring: Ring[list[float]] = Ring(slots, width, lambda: [0.0])
        self._first: int | None = None  # the ticks of the first and the last count
        self._last: int | None = None

    def count(self, tokens: float, now: float) -> None:
        """Count tokens that ask for admission, whether or not they get it."""
        tick = self._ring.tick(now)
        if self._last is None or tick - self._last > self._ring.slots:
            self._first = self._last = tick
        elif tick > self._last:
            self._last = tick
        self._ring.current(now)[0] += tokens

    def bootstrapping(self, now: float) -> bool:
        """Tell whether too little is known for a rate."""
        if self._first is None or self._last is None:
            return True
        tick, slots = self._ring.tick(now), self._ring.slots
        return tick - self._first <= slots or tick - self._last > slots

    def rate(self, now: float) -> float | None:
        """Tell the tokens per second, or None."""
        if self.bootstrapping(now):
            return None
        total = sum(slot[0] for slot in self._ring.complete(now))
        return total / (self._ring.slots * self._ring.width)


class AcceptedShare:
    """Accepted tokens / (accepted + rejected) over 30 s: the observed load multiplier; None if there were none.

    >>> share = AcceptedShare()
    >>> share.accepted(3, now=0.0), share.rejected(1, now=0.5), share.read(now=1.0)
    (None, None, 0.75)
    """

    def __init__(self, slots: int = 30, width: float = 1.0) -> None:
        self._ring: Ring[list[float]] = Ring(slots, width, lambda: [0.0, 0.0])

    def accepted(self, tokens: float, now: float) -> None:
        """Count tokens admitted."""
        self._ring.current(now)[0] += tokens

    def rejected(self, tokens: float, now: float) -> None:
        """Count tokens refused, expired or withdrawn."""
        self._ring.current(now)[1] += tokens

    def read(self, now: float) -> float | None:
        """Tell the share, or None."""
        yes = no = 0.0
        for accepted, rejected in self._ring.recent(now):
            yes += accepted
            no += rejected
        return yes / (yes + no) if yes + no > 0 else None


class WindowMean:
    """The mean of what was added over `window` seconds; it moves when a slot of `refresh` seconds is complete.

    >>> mean = WindowMean(window=1800, refresh=30)
    >>> mean.add(2.0, now=0.0), mean.add(4.0, now=29.9)
    (None, None)
    >>> mean.read(now=29.9), mean.read(now=30.0)
    (None, 3.0)
    """

    def __init__(self, window: float = 1800.0, refresh: float = 30.0) -> None:
        if not 0 < refresh <= window < inf:
            raise ConfigError(
                f"a mean needs 0 < refresh <= window in seconds; got {refresh!r}, {window!r}"
            )
        self._ring: Ring[list[float]] = Ring(ceil(window / refresh), refresh, lambda: [0.0, 0.0])
        self._read: tuple[int | None, float | None] = (None, None)  # in which slot, and the mean

    def add(self, value: float, now: float) -> None:
        """Add a value."""
        slot = self._ring.current(now)
        slot[0] += value
        slot[1] += 1

    def read(self, now: float) -> float | None:
        """Tell the mean, or None if the window is empty; summed up once a slot, for each flow may ask."""
        tick = self._ring.tick(now)
        if tick != self._read[0]:
            self._read = tick, self._mean(now)
        return self._read[1]

    def _mean(self, now: float) -> float | None:
        total = count = 0.0
        for values, number in self._ring.complete(now):
            total += values
            count += number
        return total / count if count else None


class Percentile:
    """A percentile of the last `window` seconds, within 1 % of an exact one, in bounded memory.

    Values are counted in bins that grow by γ = 1.02: bin i holds (γ^(i−1), γ^i] and stands for 2·γ^i/(γ + 1), which is
    within (γ − 1)/(γ + 1) of all of it (DDSketch).  Below a microsecond and above 10⁶ s all values are alike, so that
    there are at most 1,400 bins to a slot.  The rank is ⌈share·n⌉, counted from 1.

    >>> p95 = Percentile(0.95)
    >>> for millisecond in range(1, 101):
    ...     p95.add(millisecond / 1000, now=0.0)
    >>> round(p95.read(now=0.0), 2)
    0.1
    """

    GROWTH = 1.02
    LEAST, MOST = 1e-6, 1e6

    def __init__(self, share: float, *, window: float = 30.0, slots: int = 10) -> None:
        if not 0 < share <= 1:
            raise ConfigError(f"a percentile is a share above 0 and up to 1; got {share!r}")
        self.share = share
        self._ring: Ring[Counter[int]] = Ring(slots, window / slots, Counter)
        self._log = log(self.GROWTH)

    def add(self, value: float, now: float) -> None:
        """Add a value; what is no number is left out."""
        if isfinite(value):
            kept = max(self.LEAST, min(self.MOST, value))
            self._ring.current(now)[ceil(log(kept) / self._log)] += 1

    def read(self, now: float) -> float | None:
        """Tell the percentile, or None if the window is empty."""
        bins: Counter[int] = Counter()
        for slot in self._ring.recent(now):
            bins.update(slot)
        rank = ceil(self.share * bins.total())
        for index in sorted(bins):
            rank -= bins[index]
            if rank <= 0:
                return 2 * self.GROWTH**index / (self.GROWTH + 1)
        return None
