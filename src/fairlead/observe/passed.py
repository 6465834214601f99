"""What is remembered of tickets that passed a gate: rows, decisions, and how long each class waited lately.

Times are seconds of the wall clock, so that rows of several gates lie on one line.  Everything is bounded.
"""

from __future__ import annotations

from collections import deque
from math import inf, log2
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.core.ticket import Evicted, QueueLimit

if TYPE_CHECKING:
    from collections.abc import Hashable

REMEMBERED = 900.0  # seconds
MOST_ROWS = 200_000  # of one gate
MOST_DECISIONS = 5_000  # of one gate
MOST_TENANTS = 100  # in one reading: those with the most
WINDOW = 60  # seconds of which waits are counted, each by itself
SHORTEST = 1e-6  # seconds; a wait below it is none
STEPS = 8  # per doubling: a percentile is right to 5 %


class Passed(NamedTuple):
    """One ticket, from its arrival to its end.

    `state` is how it ended: done, failed, disconnected (its client left while it ran), refused, expired, evicted,
    withdrawn, moved (offered elsewhere), or lost: started, but never really.
    """

    gate: str
    number: int  # counts the rows of its gate
    key: Hashable
    cls: str
    rank: int
    tenant: Hashable
    workload: Hashable
    cost: float
    priority: int
    deadline: float | None
    arrived: float
    started: float | None
    ended: float
    state: str
    reason: str | None
    promoted: bool
    estimate: float | None = None  # seconds its work was thought to take
    more: Any = None  # what its door tells of it beside, for a replay
    patience: float | None = None  # seconds it would wait, by its own account
    seq: int = 0  # its place among the arrivals: a loop's clock gives many the same instant
    committed: float | None = None  # seconds after its start from when on nobody could preempt it


class Decision(NamedTuple):
    """One thing a gate did with a ticket, and why.

    `what`: started, promoted (started out of turn, because its class starved), refused, expired, evicted, withdrawn,
    moved, done, failed, disconnected.  `number` counts the decisions of all gates of a feed.
    """

    number: int
    t: float
    gate: str
    key: Hashable
    cls: str
    rank: int
    tenant: Hashable
    workload: Hashable
    what: str
    waited: float
    held: float | None
    reason: Any

    @property
    def why(self) -> str:
        """The reason, as a sentence."""
        said = reason_of(self.reason)
        if self.what in ("refused", "expired", "evicted", "moved"):
            return said or self.what
        if self.what == "failed":
            return said or "its work failed"
        if self.what == "disconnected":
            return f"its client left after {self.held or 0.0:.3f} s"
        if self.what == "promoted":
            return f"its class had starved: promoted after {self.waited:.3f} s"
        if self.what == "started":
            return "there was room at once" if self.waited <= 0 else f"waited {self.waited:.3f} s"
        if self.what == "withdrawn":
            return f"stopped waiting after {self.waited:.3f} s"
        return said or "its work ended"


def reason_of(reason: Any) -> str | None:
    """Put the reason on a ticket into words."""
    if isinstance(reason, QueueLimit):
        return f"queue for {reason.queue!r} is full ({reason.waiting} of {reason.limit})"
    if isinstance(reason, Evicted):
        return f"evicted {reason}"
    return None if reason is None else str(reason)


class Rates(NamedTuple):
    """How one class fared lately: what started and was turned away per second, and how long what started had waited."""

    admitted_per_s: float
    refused_per_s: float
    p50: float | None
    p95: float | None
    p99: float | None


class Standing(NamedTuple):
    """How one class stands now."""

    name: str
    rank: int
    waiting: int
    running: int
    oldest: float | None  # when the first of those who wait arrived


class Share(NamedTuple):
    """How one tenant stands now."""

    name: Hashable
    waiting: int
    running: int


class Reading(NamedTuple):
    """What a gate's channel knows, all of one instant."""

    standing: list[Standing]
    totals: dict[str, int]
    tenants: list[Share]
    rates: dict[str, Rates]

    @property
    def running(self) -> int:
        """Return how many tickets hold room."""
        return sum(one.running for one in self.standing)


class Tally:
    """What happened to one class within one second."""

    __slots__ = ("admitted", "refused", "waits")

    def __init__(self) -> None:
        self.admitted = self.refused = 0
        self.waits: dict[int, int] = {}  # how many started, by the step their wait falls in

    def start(self, wait: float) -> None:
        """Count one that started."""
        self.admitted += 1
        step = 0 if wait <= SHORTEST else int(log2(wait / SHORTEST) * STEPS) + 1
        self.waits[step] = self.waits.get(step, 0) + 1


class Window:
    """The last minute, second by second."""

    __slots__ = ("_now", "_second", "_slots")

    def __init__(self) -> None:
        self._slots: deque[tuple[int, dict[str, Tally]]] = deque(maxlen=WINDOW + 1)
        self._second = -1
        self._now: dict[str, Tally] = {}

    def tally(self, t: float, cls: str) -> Tally:
        """The tally of a class at that time."""
        if int(t) > self._second:
            self._second, self._now = int(t), {}
            self._slots.append((self._second, self._now))
        found = self._now.get(cls)
        if found is None:
            found = self._now[cls] = Tally()
        return found

    def rates(self, now: float, seconds: float) -> dict[str, Rates]:
        """Read the last seconds, the present one with them."""
        since = now - seconds
        sums: dict[str, Tally] = {}
        for second, tallies in self._slots:
            if second + 1 <= since:
                continue
            for cls, tally in tallies.items():
                total = sums.setdefault(cls, Tally())
                total.admitted += tally.admitted
                total.refused += tally.refused
                for step, count in tally.waits.items():
                    total.waits[step] = total.waits.get(step, 0) + count
        return {
            cls: Rates(
                total.admitted / seconds,
                total.refused / seconds,
                *(_quantile(total, part) for part in (0.5, 0.95, 0.99)),
            )
            for cls, total in sums.items()
        }


def _quantile(total: Tally, part: float) -> float | None:
    left = part * total.admitted
    for step in sorted(total.waits):
        left -= total.waits[step]
        if left <= 0:
            return SHORTEST * 2 ** ((step - 0.5) / STEPS) if step else 0.0
    return None


def or_none(instant: float) -> float | None:
    """Tell an instant, or None where there is none."""
    return None if instant in (inf, -inf) else instant
