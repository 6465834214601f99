"""Where a load controller's signal comes from.  Each source has one verb, `read(now)`: a number, or None: *not known*.

Load control passes everything through while its signal is not known, so a source says None rather than guess.  Sources
that are fed (latencies, posted values) are handed `now` with each value; only `CpuUtilization` looks outside, at
`/proc/stat`.
"""

from __future__ import annotations

import os
import re
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fairlead.config import shown
from fairlead.errors import ConfigError
from fairlead.flows.window import Percentile, WindowMean

if TYPE_CHECKING:
    from collections.abc import Callable

LARGEST = 1e300  # what is larger may become infinite in a sum or a quotient


class Signal(Protocol):
    """What a controller reads."""

    def read(self, now: float) -> float | None:
        """Tell the signal, or None if it is not known."""


class CpuUtilization:
    """The busy share of all processors between two reads, 0 to 1; None at the first.

    Of the whole machine where there is a `/proc/stat` (Linux); elsewhere of this process alone, (user + system time) /
    (time passed · processors).  Two reads within `shortest` seconds give the same answer.

    >>> CpuUtilization().read(now=0.0)
    """

    def __init__(
        self,
        path: str | os.PathLike[str] = "/proc/stat",
        *,
        process: Callable[[], os.times_result] = os.times,
        processors: int | None = None,
        shortest: float = 0.05,
    ) -> None:
        self._path = Path(path)
        self._process = process
        self._processors = processors or os.cpu_count() or 1
        self._shortest = shortest
        self._before: tuple[str, float, float] | None = None
        self._read_at = 0.0
        self._value: float | None = None

    def read(self, now: float) -> float | None:
        """Tell the share, or None."""
        if self._before is not None and 0 <= now - self._read_at < self._shortest:
            return self._value
        spent = self._machine() or self._own(now)
        before, self._before, self._read_at = self._before, spent, now
        self._value = None
        if before is not None and before[0] == spent[0] and spent[2] > before[2]:
            share = (spent[1] - before[1]) / (spent[2] - before[2])
            self._value = max(0.0, min(1.0, share))
        return self._value

    def _machine(self) -> tuple[str, float, float] | None:
        """Busy and all time of the machine; the two guest columns are counted in user and nice already."""
        try:
            with self._path.open(encoding="ascii") as stat:
                name, *columns = stat.readline().split()
            ticks = [int(column) for column in columns[:8]]
        except (OSError, ValueError):
            return None
        if name != "cpu" or len(ticks) < 5:
            return None
        return "machine", float(sum(ticks) - ticks[3] - ticks[4]), float(sum(ticks))

    def _own(self, now: float) -> tuple[str, float, float]:
        times = self._process()
        return "process", times.user + times.system, now * self._processors


class Reading:
    """A number that can be asked for: a queue's length, a pool's connections.

    >>> queue = [1, 2, 3]
    >>> Reading(lambda: len(queue)).read(now=0.0)
    3.0
    """

    def __init__(self, ask: Callable[[], float | None]) -> None:
        self._ask = ask

    def read(self, now: float) -> float | None:
        """Ask; what is no finite number is not known."""
        return finite(self._ask())


class Latency:
    """A percentile of the latencies of the last `window` seconds, in seconds.

    >>> p95 = Latency(0.95)
    >>> p95.add(0.2, now=0.0)
    >>> round(p95.read(now=1.0), 2)
    0.2
    """

    def __init__(self, share: float = 0.95, *, window: float = 30.0) -> None:
        self._recent = Percentile(share, window=window)

    def add(self, latency: float, now: float) -> None:
        """Note how long an ended flow's work took."""
        self._recent.add(latency, now)

    def read(self, now: float) -> float | None:
        """Tell the percentile, or None if nothing ended."""
        return self._recent.read(now)


class Learned:
    """A signal against what is usual for it: its value / (mean of the last `window` seconds · `tolerance`).

    So the setpoint of its controller is 1.  Every `refresh` seconds one value goes into the mean; until the first such
    slot is complete nothing is usual yet, and the signal is not known.

    >>> relative = Learned(Reading(lambda: 50.0))
    >>> relative.read(now=0.0), relative.read(now=30.0)
    (None, 0.8)
    """

    def __init__(
        self,
        source: Signal,
        *,
        window: float = 1800.0,
        tolerance: float = 1.25,
        refresh: float = 30.0,
    ) -> None:
        if not (isfinite(tolerance) and tolerance > 0):
            raise ConfigError(f"tolerance must be a finite number above 0; got {tolerance!r}")
        self._source = source
        self._tolerance = tolerance
        self._refresh = refresh
        self._mean = WindowMean(window, refresh)
        self._learned: float | None = None  # the slot whose value is in the mean

    def setpoint(self, now: float) -> float | None:
        """Tell the value that counts as 1, or None."""
        mean = self._mean.read(now)
        return None if mean is None else mean * self._tolerance

    def read(self, now: float) -> float | None:
        """Tell the value relative to the setpoint, or None."""
        value = self._source.read(now)
        if value is None:
            return None
        slot = now // self._refresh
        if self._learned is None or slot > self._learned:
            self._learned = slot
            self._mean.add(value, now)
        setpoint = self.setpoint(now)
        return value / setpoint if setpoint else None


class Posted:
    """A signal that somebody posts; it is not known from `expire_after` seconds after the last post on.

    >>> posted = Posted()
    >>> posted.post(0.7, now=0.0)
    >>> posted.read(now=49.9), posted.read(now=50.0)
    (0.7, None)
    """

    def __init__(self, *, expire_after: float = 50.0) -> None:
        if not expire_after > 0:
            raise ConfigError(f"expire_after must be above 0 seconds; got {expire_after!r}")
        self._expire_after = expire_after
        self._value: float | None = None
        self._until = 0.0

    def post(self, value: float, now: float) -> None:
        """Take a new value; NaN and infinities are refused, and the last value stands."""
        known = finite(value)
        if known is None:
            raise ConfigError(
                f"a signal must be a finite number, from -1e300 to 1e300; got {value!r}"
            )
        self._value, self._until = known, now + self._expire_after

    def read(self, now: float) -> float | None:
        """Tell the value, or None if it is too old."""
        return self._value if now < self._until else None


class PostedSignals:
    """Posted signals by name.  A name exists once a controller asked for it, so posts cannot fill the memory.

    >>> signals = PostedSignals()
    >>> gpu = signals.named("gpu")
    >>> signals.post("gpu", 0.9, now=0.0), signals.post("gpo", 0.9, now=0.0), gpu.read(now=1.0)
    (True, False, 0.9)
    """

    def __init__(self, *, expire_after: float = 50.0) -> None:
        self._expire_after = expire_after
        self._signals: dict[str, Posted] = {}

    def named(self, name: str) -> Posted:
        """Find or make the signal of that name."""
        if name not in self._signals:
            self._signals[name] = Posted(expire_after=self._expire_after)
        return self._signals[name]

    def post(self, name: str, value: float, now: float) -> bool:
        """Hand a value to the signal of that name; False if nobody listens to it."""
        signal = self._signals.get(name)
        if signal is not None:
            signal.post(value, now)
        return signal is not None

    def names(self) -> list[str]:
        """The names that are listened to, sorted."""
        return sorted(self._signals)


def percentile_of(name: str) -> float | None:
    """Read the share that a signal's name asks for; None if it is none of latencies.

    >>> percentile_of("latency_p95"), percentile_of("latency_pump")
    (0.95, None)
    """
    found = re.fullmatch(r"latency_p([0-9]+(?:\.[0-9]+)?)", name)
    if found is None:
        return None
    if not 0 < float(found[1]) <= 100:
        raise ConfigError(
            f"must be a percentile above 0 and up to 100, such as latency_p95; got {shown(name)}"
        )
    return float(found[1]) / 100


def finite(value: object) -> float | None:
    """Read a number; None if it is none, or not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= LARGEST else None
