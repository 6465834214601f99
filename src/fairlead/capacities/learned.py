"""How much may be in flight at once, learned from latency and drops: Vegas, Gradient2 and AIMD.  No clock, no I/O.

Samples are gathered into windows of a second and of at least ten samples; what took less than 100 µs is no work and is
left out (a drop counts however fast it was, unless it began before drops last lowered the limit).  At the end of each
window the limit is moved once, by r = its mean latency, n = the most in flight in it, and whether anything was dropped.
The numbers are those of Netflix's concurrency-limits.  A limit that is not used says nothing about the server: with
n < L/2 none of them grows.  No limit leaves [floor, ceiling].

At a server that runs K at once and answers in b when unloaded, r = b·L/K for L > K.  There

- Vegas rests where the queue L·(1 − b/r) = L − K is within [α, β]: at L = K + 3g … K + 6g;
- Gradient2 approaches L = K·long/b + 4 by a fifth of the distance each window.  Its yardstick, a mean over 600 windows,
  follows a lasting overload slowly upwards; the ceiling ends that, and a quiet minute undoes it;
- AIMD sees no latency below `timeout`; it probes for drops, and saws between 0.9·L and L.
"""

from __future__ import annotations

from math import ceil, floor, inf, isfinite, log10

from fairlead.errors import ConfigError

GOLDEN = 0.6180339887498949  # its multiples fill (0, 1) evenly: chance without a source of chance


class LearnedLimit:
    """The base: windows of samples, and a limit within bounds.  A subclass says how one window moves it."""

    def __init__(
        self,
        *,
        initial: float,
        floor: float,
        ceiling: float,
        window: float = 1.0,
        fewest: int = 10,
        shortest: float = 100e-6,
    ) -> None:
        if not 1 <= floor <= initial <= ceiling < inf:
            raise ConfigError(
                f"the limits must be 1 <= floor <= initial <= ceiling; got {floor}, {initial}, {ceiling}"
            )
        for name, value in (("window", window), ("fewest", fewest)):
            if not 0 < value < inf:
                raise ConfigError(f"{name} must be a finite number above 0; got {value!r}")
        self.floor, self.ceiling = float(floor), float(ceiling)
        self._limit = float(initial)
        self._window, self._fewest, self._shortest = window, fewest, shortest
        self._since: float | None = None  # the window: its beginning, its counts and its sums
        self._count = self._timed = 0
        self._sum = self._most = 0.0
        self._dropped = False
        self._cut_at = -inf  # when drops last lowered the limit

    @property
    def limit(self) -> int:
        """How many may be in flight now."""
        return int(self._limit)

    def sample(self, latency: float, inflight: float, now: float, *, dropped: bool = False) -> int:
        """Take account of an ended call and tell the limit; `inflight` counts the call itself."""
        if not (isfinite(latency) and isfinite(now)):
            return self.limit
        if latency < self._shortest and not dropped:
            return self.limit
        if dropped and now - latency < self._cut_at:
            return self.limit  # it began under the limit that has been lowered since
        if self._since is None or now < self._since:
            self._begin(now)
        self._count += 1
        self._most = max(self._most, inflight)
        if dropped:
            self._dropped = True
        else:
            self._timed += 1
            self._sum += latency
        if self._count >= self._fewest and now - (self._since or 0.0) >= self._window:
            self._close(now)
        return self.limit

    def _begin(self, now: float) -> None:
        self._since = now
        self._count = self._timed = 0
        self._sum = self._most = 0.0
        self._dropped = False

    def _close(self, now: float) -> None:
        mean = self._sum / self._timed if self._timed else None
        wanted = self._moved(self._limit, mean, self._most, self._dropped)
        if self._dropped and wanted < self._limit:
            self._cut_at = now
        self._limit = max(self.floor, min(self.ceiling, wanted))
        self._begin(now)

    def _moved(self, limit: float, mean: float | None, most: float, dropped: bool) -> float:
        """Tell where a window moves the limit; `mean` is None if everything was dropped."""
        raise NotImplementedError


class Vegas(LearnedLimit):
    """Keep a short queue at the server: with g = ⌊log₁₀ L⌋ (at least 1), α = 3g, β = 6g, q = ⌈L·(1 − fastest/r)⌉,

        q ≤ g: L + β        q < α: L + g        a drop: L − g        q > β: L − max(g, (q − β)/2)        else L

    (The original falls by g only: after a step of load a server that runs hundreds takes fifty windows to settle.)
    What is fastest is forgotten after 30·L windows (times a share in [0.5, 1], so that many do not do it together) and
    measured anew at half the limit.  To measure it in passing, as the original does, takes the queue we cause for the
    server's own time, and the limit climbs by a queue with each measurement.

    >>> limit = Vegas()
    >>> limit.limit
    20
    """

    def __init__(
        self,
        *,
        initial: float = 20,
        floor: float = 1,
        ceiling: float = 1000,
        seed: float = 0.0,
        window: float = 1.0,
        fewest: int = 10,
    ) -> None:
        super().__init__(
            initial=initial, floor=floor, ceiling=ceiling, window=window, fewest=fewest
        )
        self._fastest = inf
        self._share = seed
        self._windows = 0
        self._draining = 0  # windows until the fastest is measured

    @property
    def limit(self) -> int:
        """How many may be in flight now; half of the limit while it is measured."""
        return int(max(self.floor, self._limit / 2) if self._draining else self._limit)

    def _moved(self, limit: float, mean: float | None, most: float, dropped: bool) -> float:
        gentle = max(1, floor(log10(limit)))
        if mean is None:
            return limit - gentle
        if self._draining:
            self._draining -= 1
            if not self._draining:
                self._fastest = mean
            return limit - gentle if dropped else limit
        self._windows += 1
        if self._windows >= 30 * limit * (0.5 + 0.5 * (self._share % 1)):
            self._windows = 0
            self._share += GOLDEN
            self._draining = 2  # the first still has calls in it that began under the full limit
            return limit
        if mean < self._fastest:
            self._fastest = mean
            return limit - gentle if dropped else limit
        queue = ceil(limit * (1 - self._fastest / mean))
        if dropped:
            return limit - gentle
        if most * 2 < limit:
            return limit
        if queue <= gentle:
            return limit + 6 * gentle
        if queue < 3 * gentle:
            return limit + gentle
        excess = queue - 6 * gentle
        return limit - max(gentle, excess / 2) if excess > 0 else limit


class Mean:
    """An exponential mean over `span` samples, α = 2/(span + 1); of the first `warmup` the plain mean.

    >>> mean = Mean(600)
    >>> mean.add(1.0), mean.add(2.0)
    (1.0, 1.5)
    """

    def __init__(self, span: int, warmup: int = 10) -> None:
        self._alpha = 2 / (span + 1)
        self._warmup = warmup
        self._count = 0
        self.value = 0.0

    def add(self, sample: float) -> float:
        """Add a sample and tell the mean."""
        self._count = min(self._warmup + 1, self._count + 1)
        warm = self._count > self._warmup
        self.value += (sample - self.value) * (self._alpha if warm else 1 / self._count)
        return self.value


class Gradient2(LearnedLimit):
    """Compare the latency r with its long mean: with g = clamp(long/r, 0.5, 1),  L' = 0.8·L + 0.2·(g·L + 4).

    `long` is the mean over 600 windows; while it is more than twice r it is cut by a tenth each window, so that it
    comes back from an overload.  With less than L/2 in flight the limit stays.

    >>> limit = Gradient2(floor=10)
    >>> limit.limit
    20
    """

    def __init__(
        self,
        *,
        initial: float = 20,
        floor: float = 20,
        ceiling: float = 200,
        window: float = 1.0,
        fewest: int = 10,
    ) -> None:
        super().__init__(
            initial=initial, floor=floor, ceiling=ceiling, window=window, fewest=fewest
        )
        self._long = Mean(600)

    def _moved(self, limit: float, mean: float | None, most: float, dropped: bool) -> float:
        if mean is None:
            return limit
        long = self._long.add(mean)
        if long > 2 * mean:
            self._long.value *= 0.9
        if most < limit / 2:
            return limit
        gradient = max(0.5, min(1.0, long / mean))
        return 0.8 * limit + 0.2 * (gradient * limit + 4)


class AIMDLimit(LearnedLimit):
    """Add one each window; after a drop or a latency above `timeout` take a tenth, at least one.

    >>> limit = AIMDLimit(timeout=2.0)
    >>> limit.limit
    20
    """

    def __init__(
        self,
        *,
        initial: float = 20,
        floor: float = 1,
        ceiling: float = 200,
        timeout: float = 5.0,
        window: float = 1.0,
        fewest: int = 10,
    ) -> None:
        super().__init__(
            initial=initial, floor=floor, ceiling=ceiling, window=window, fewest=fewest
        )
        if not timeout > 0:
            raise ConfigError(f"timeout must be above 0 seconds; got {timeout!r}")
        self._timeout = timeout

    def _moved(self, limit: float, mean: float | None, most: float, dropped: bool) -> float:
        if dropped or (mean or 0.0) > self._timeout:
            return min(limit - 1, 0.9 * limit)
        return limit + 1 if most * 2 >= limit else limit
