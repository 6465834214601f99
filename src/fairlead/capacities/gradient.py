"""How much may be in flight at once, learned from latency: a gradient limiter.  No clock, no I/O.

Samples are gathered into periods, of calls that began in them.  At the end of each, with L the limit, b the latency of
the unloaded server and m the mean latency of the period,

    g = clamp(tolerance·b/m, 0.5, 2)        L' = (1 − s)·L + s·(g·L + √L),  kept within [floor, ceiling]

(Envoy's adaptive concurrency; Netflix's Gradient2).  While latency is near b the limit grows; it rests where
g = 1 − 1/√L, that is at m ≈ tolerance·b·(1 + 1/√L): a short queue at the server, never a long one.  √L is the queue
always allowed, so that a limit that fell can rise again.  A limit that is not used says nothing about the server: with
less than L/2 in flight it does not grow.  s smooths: a step shows in latency only after a while, so that full steps
would overshoot.

b must be measured while the server is not loaded by ourselves, or it would drift up with the queue we cause.  So the
limiter starts at its floor, and every `remeasure` seconds quarters itself until `fewest` calls have both begun and been
answered so.  At a server that runs K at once, m = b·L/K above K, so the limit rests near L − √L = 1.5·K, and a quarter
of that queues nothing.  Between measurements b only falls, to the mean of a faster period.
"""

from __future__ import annotations

from math import inf, isfinite, sqrt

from fairlead.errors import ConfigError

ENOUGH = 100  # samples, however high the limit
STEEPEST, FASTEST = 0.5, 2.0  # the bounds of the gradient


class Gradient:
    """A limit that follows latency.

    >>> limiter = Gradient(floor=3, initial=20)
    >>> limiter.sample(0.120, inflight=2, now=0.0)
    >>> limiter.limit
    3
    """

    def __init__(
        self,
        *,
        initial: float = 20,
        floor: float = 3,
        ceiling: float = 1024,
        tolerance: float = 1.5,
        smoothing: float = 0.25,
        period: float = 0.1,
        fewest: int = 10,
        remeasure: float = 60.0,
    ) -> None:
        if not 1 <= floor <= initial <= ceiling < inf:
            raise ConfigError(
                f"the limits must be 1 <= floor <= initial <= ceiling; got {floor}, {initial}, {ceiling}"
            )
        for name, value in (("period", period), ("fewest", fewest), ("remeasure", remeasure)):
            if not 0 < value < inf:
                raise ConfigError(f"{name} must be a finite number above 0; got {value!r}")
        if not 1 <= tolerance < inf:
            raise ConfigError(f"tolerance must be a finite number, 1 or more; got {tolerance!r}")
        if not 0 < smoothing <= 1:
            raise ConfigError(f"smoothing must be above 0 and at most 1; got {smoothing!r}")
        self._floor, self._ceiling = float(floor), float(ceiling)
        self._tolerance, self._smoothing = tolerance, smoothing
        self._period, self._fewest, self._remeasure = period, fewest, remeasure
        self._limit = float(floor)
        self._resume: float | None = float(initial)  # the limit to go back to after measuring
        self._clear_at: float | None = None  # since when no more is in flight than is measured at
        self._unloaded: float | None = None
        self._measured_at = -inf
        self._since: float | None = None  # the period: its beginning and its sums
        self._count, self._sum, self._busiest = 0, 0.0, 0

    @property
    def limit(self) -> int:
        """How many may be in flight now."""
        return int(self._limit)

    @property
    def unloaded(self) -> float | None:
        """The latency taken for that of the server without a queue; None before the first measurement."""
        return self._unloaded

    def sample(self, latency: float, inflight: int, now: float) -> None:
        """Take account of an answered call: its latency, and how many were in flight then, itself included."""
        if not (isfinite(latency) and latency > 0 and isfinite(now)):
            return
        if self._resume is not None:
            self._measure(latency, inflight, now)
            return
        if self._since is None or now < self._since:
            self._begin(now)
        if now - latency < (self._since or 0.0):
            return  # it began under another limit, and would tell of that one
        self._count += 1
        self._sum += latency
        self._busiest = max(self._busiest, inflight)
        # The first calls of a period still meet the queue of the last one; half a limit's worth evens that out.
        enough = max(self._fewest, min(self._limit / 2, ENOUGH))
        if self._count >= enough and now - (self._since or 0.0) >= self._period:
            self._step(self._sum / self._count, now)

    def _begin(self, now: float) -> None:
        self._since = now
        self._count, self._sum, self._busiest = 0, 0.0, 0

    def _measure(self, latency: float, inflight: int, now: float) -> None:
        if self._clear_at is None:
            if inflight <= self._limit:
                self._clear_at = now
            return
        if now - latency < self._clear_at:
            return  # it may have waited behind what was in flight before
        self._count += 1
        self._sum += latency
        if self._count >= self._fewest:
            self._unloaded = self._sum / self._count
            self._measured_at = now
            self._limit, self._resume = self._resume or self._limit, None
            self._begin(now)

    def _step(self, mean: float, now: float) -> None:
        unloaded = self._unloaded = min(mean, self._unloaded or inf)
        gradient = max(STEEPEST, min(FASTEST, self._tolerance * unloaded / mean))
        wanted = gradient * self._limit + sqrt(self._limit)
        wanted = self._limit + self._smoothing * (wanted - self._limit)
        if self._busiest < self._limit / 2:
            wanted = min(wanted, self._limit)
        self._limit = max(self._floor, min(self._ceiling, wanted))
        self._begin(now)
        if now - self._measured_at >= self._remeasure:
            self._resume, self._clear_at = self._limit, None
            self._limit = max(self._floor, self._limit / 4)
