"""How the room of a gate was shared among its tenants: by samples over the last 10 s, minute and five minutes.

At one instant eight slots make shares of 0, 12, 25 %: such a figure moves although nothing has changed.  So a share is
a mean over a window, and it is judged with hysteresis:

    share  = Σ running · dt / Σ used · dt       over the samples of the window
    fair   = Σ max-min part · dt / Σ used · dt  the part by weight that each sample's demand entitles to

A sample stands for the time since the sample before.  A tenant becomes `above` or `below` when its share leaves its
fair share by more than LEAVES, and is `fair` again when it is back within RETURNS.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    Verdict = Literal["above", "fair", "below"]

WINDOWS = (10.0, 60.0, 300.0)  # seconds
JUDGED = 60.0  # the window whose share is judged
LONGEST_STEP = (
    5.0  # seconds that one sample can stand for: a process that stood still has seen nothing
)
FEWEST = 10.0  # seconds of samples before anything is judged
LEAVES = 0.05
RETURNS = 0.02


class Held(NamedTuple):
    """One tenant at one instant, in slots."""

    name: Hashable
    waiting: int
    running: int
    fair: float


class Part(NamedTuple):
    """What a tenant had in a window, and what would have been fair: parts of what all used."""

    share: float
    fair: float


class Tenant(NamedTuple):
    """One tenant of a gate, now and over the windows; the verdict is None before there are enough samples."""

    name: Hashable
    waiting: int
    running: int
    parts: dict[float, Part]
    verdict: Verdict | None


class Fairness:
    """The shares of one gate.

    >>> shares = Fairness()
    >>> for second in range(20):
    ...     shares.sample(second, [Held("acme", 3, 6, 4.0), Held("globex", 0, 2, 4.0)])
    >>> [(one.name, one.parts[10.0].share, one.verdict) for one in shares.tenants(20)]
    [('acme', 0.75, 'above'), ('globex', 0.25, 'below')]
    """

    def __init__(self, windows: Iterable[float] = WINDOWS, judged: float = JUDGED) -> None:
        self._windows = {seconds: _Window(seconds) for seconds in windows}
        self._longest = self._windows[max(self._windows)]
        self._judged = self._windows[judged]
        self._verdicts: dict[Hashable, Verdict] = {}
        self._now: dict[Hashable, Held] = {}
        self._at: float | None = None

    def sample(self, now: float, held: Sequence[Held]) -> None:
        """Note the tenants that wait or run at this instant of a clock that never goes back."""
        step = 0.0 if self._at is None else min(LONGEST_STEP, max(0.0, now - self._at))
        self._at = now if self._at is None else max(now, self._at)
        self._now = {one.name: one for one in held}
        for window in self._windows.values():
            window.add(self._at, step, held)
        self._judge()

    def _judge(self) -> None:
        if self._judged.covered < FEWEST:
            return
        for name in self._judged.names():
            part = self._judged.part(name)
            self._verdicts[name] = _verdict(part.share - part.fair, self._verdicts.get(name))
        for name in [one for one in self._verdicts if one not in self._longest.sums]:
            del self._verdicts[name]

    def tenants(self, most: int) -> list[Tenant]:
        """Return the tenants with the most demand in the longest window, by name."""
        demands = {name: one.demand for name, one in self._longest.sums.items()}
        for name, one in self._now.items():
            demands[name] = demands.get(name, 0.0) + 1e-9 * (one.waiting + one.running)
        chosen = sorted(demands, key=lambda name: (-demands[name], _text(name)))[:most]
        return [self._tenant(name) for name in sorted(chosen, key=_text)]

    def _tenant(self, name: Hashable) -> Tenant:
        now = self._now.get(name)
        parts = {seconds: window.part(name) for seconds, window in self._windows.items()}
        if not self._longest.covered and now is not None:  # one sample is no time: as it is now
            used = sum(one.running for one in self._now.values())
            if used:
                parts = dict.fromkeys(parts, Part(now.running / used, now.fair / used))
        waiting, running = (0, 0) if now is None else (now.waiting, now.running)
        return Tenant(name, waiting, running, parts, self._verdicts.get(name))


def _text(name: Hashable) -> tuple[str, str]:
    return str(name), repr(name)


def _verdict(gap: float, before: Verdict | None) -> Verdict:
    if gap > (RETURNS if before == "above" else LEAVES):
        return "above"
    if -gap > (RETURNS if before == "below" else LEAVES):
        return "below"
    return "fair"


class _Sum:
    __slots__ = ("demand", "fair", "running", "samples")

    def __init__(self) -> None:
        self.samples = 0
        self.demand = self.fair = self.running = 0.0

    def add(self, one: Held, seconds: float, samples: int) -> None:
        self.samples += samples
        self.demand += (one.waiting + one.running) * seconds
        self.running += one.running * seconds
        self.fair += one.fair * seconds


class _Window:
    """The samples of the last seconds, summed up; a tenant that is in none of them is forgotten."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._samples: deque[tuple[float, float, Sequence[Held]]] = deque()
        self.sums: dict[Hashable, _Sum] = {}
        self.covered = 0.0

    def add(self, now: float, step: float, held: Sequence[Held]) -> None:
        samples = self._samples
        while samples and samples[0][0] <= now - self._seconds:
            _, old_step, old = samples.popleft()
            self._count(old, -old_step, -1)
        samples.append((now, step, held))
        self._count(held, step, 1)
        if len(samples) == 1:  # nothing else is left: what rounding has left is gone with it
            self.covered = step

    def _count(self, held: Sequence[Held], seconds: float, samples: int) -> None:
        self.covered += seconds
        for one in held:
            found = self.sums.get(one.name)
            if found is None:
                found = self.sums[one.name] = _Sum()
            found.add(one, seconds, samples)
            if not found.samples:
                del self.sums[one.name]

    def names(self) -> list[Hashable]:
        return list(self.sums)

    def part(self, name: Hashable) -> Part:
        used = sum(one.running for one in self.sums.values())
        found = self.sums.get(name)
        if found is None or used <= 1e-9:
            return Part(0.0, 0.0)
        return Part(max(0.0, found.running / used), max(0.0, found.fair / used))


def fair_shares(demands: Sequence[float], weights: Sequence[float], room: float) -> list[float]:
    """Divide room by weight: no part is larger than its demand, and what is left over goes to the others.

    >>> fair_shares([1, 10, 10], [1, 1, 2], 10)
    [1.0, 3.0, 6.0]
    """
    given = [0.0] * len(demands)
    hungry = [index for index, demand in enumerate(demands) if demand > 0]
    left = float(room)
    while hungry and left > 1e-9:
        each = left / sum(weights[index] for index in hungry)
        full = [one for one in hungry if demands[one] - given[one] <= each * weights[one]]
        for index in full or hungry:
            part = demands[index] - given[index] if full else each * weights[index]
            given[index] += part
            left -= part
        if not full:
            break
        hungry = [index for index in hungry if index not in full]
    return given
