"""Which backends answer with faults, how long they are left out, and how full a backend counts that fails or is slow.

A backend is *ejected* when it fails `consecutive` times in a row, or `error_rate` of the last `window` and of at least
`requests`.  Its time out is `first`, doubled with each ejection that follows on the one before, up to `longest`.  When
the time is over, one request is sent as a *probe*: the first byte of a good answer brings the backend back, a fault
doubles the time, also if it comes after that byte.  At no moment are more than `share` of the healthy backends of a
pool out, so a single backend never is.

Only faults of the backend count: an answer of 500 or above, a broken connection, silence.  A 503 with `Retry-After` is
full, an answer like any other here; what the client did wrong (4xx) is an answer too.

Requests and faults are counted with weights that halve with each `window` that passes (an exponential average); one
request that never was stands beside them, so that a lone fault is not a rate of 100 %:

    rate = faults / (requests + 1)

A backend counts as fuller than it is by its *penalty*, from 0 to 2 times its capacity:

    penalty = max(rate, streak / consecutive) + slowness        what is below 0.05 counts as 0
    slowness = min(1, (t / fastest - 2) / 8) * n / (n + 1)      0 where t - fastest < 50 ms

where streak is the weight of its faults since its last good answer, t its average time to the first byte, `fastest`
the least of its pool, and n the weight of its samples.  After a busy hour the rate is slow to rise, the streak is not:
a first fault sends the next requests elsewhere, where there is room.  So backends that are equally well are told apart
by their load alone; one that fails every call counts as full; and as all weights fade, each gets another chance.

The state of one backend is a `Record`; nothing here waits or reads a clock.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlead.gateway.settings import Outliers as Settings

# How one try at a backend ended: with a status below 500; with 503 and `Retry-After`, for the backend is full; with
# another status from 500; or without an answer: not connected, reset, malformed, or silent for too long.
Outcome = Literal["ok", "full", "error", "failed"]

FAULTS = frozenset({"error", "failed"})
NEGLIGIBLE = 0.05  # penalty
SLOW = 2.0  # times the fastest of its pool
SLOWEST = 10.0  # from here on it counts as full
NOTICEABLE = 0.05  # seconds to the first byte that make a difference


class Record:
    """What is known of the faults and the speed of one backend."""

    __slots__ = (
        "_at",
        "_first_byte",
        "_samples",
        "consecutive",
        "ejections",
        "errors",
        "faults",
        "out_for",
        "penalty",
        "probe",
        "proof",
        "requests",
        "returned_at",
        "streak",
        "tries",
        "until",
    )

    def __init__(self) -> None:
        self.tries = self.errors = 0  # since the backend was added
        self.consecutive = 0  # faults in a row
        self.ejections = 0  # in a row, without a good time between
        self.until: float | None = None  # it is left out; when that time is over, a probe may go
        self.out_for = 0.0  # how long that is
        self.returned_at = -inf
        self.probe: int | None = None  # the number of the try that is the probe
        self.proof: int | None = None  # the number of the probe that brought it back
        self.penalty = 0.0
        self._forget(0.0)

    def _forget(self, now: float) -> None:
        self.requests = self.faults = 0.0  # with weights
        self._first_byte = self._samples = self.streak = 0.0
        self._at = now

    @property
    def ejected(self) -> bool:
        """Whether it is left out."""
        return self.until is not None

    def due(self, now: float) -> bool:
        """Return whether the next request may be its probe."""
        return self.until is not None and self.probe is None and now >= self.until

    def rate(self) -> float:
        """Return the part of its latest requests that were faults."""
        return self.faults / (self.requests + 1.0)

    def first_byte(self) -> float | None:
        """Return its average time to the first byte; None without a recent sample."""
        return self._first_byte / self._samples if self._samples > NEGLIGIBLE else None

    def fade(self, now: float, window: float) -> None:
        """Halve the weights for each window that has passed."""
        if now > self._at:
            left = 0.5 ** ((now - self._at) / window)
            self.requests *= left
            self.faults *= left
            self.streak *= left
            self._first_byte *= left
            self._samples *= left
            self._at = now


class Outliers:
    """Ejects and readmits the backends of a gateway; each verb is handed the time."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def chosen(self, record: Record, number: int, now: float) -> None:
        """Note that a try with this number goes to a backend: if a probe is due, it is the probe."""
        if record.due(now):
            record.probe = number

    def answered(self, record: Record, first_byte: float, now: float, number: int | None) -> bool:
        """Note the first byte of a good answer, in seconds after the request; return whether an ejection ended.

        The answer counts from here on, not from its end: a stream may take minutes.
        """
        record.fade(now, self.settings.window)
        record._first_byte += first_byte
        record._samples += 1.0
        if record.until is not None:
            if not self._is_probe(record, number):
                return False  # sent before it was ejected: no news
            record.proof = record.probe
            self._readmit(record, now)
            return True
        record.requests += 1.0
        record.consecutive = 0
        record.streak = 0.0
        return False

    def tried(
        self,
        record: Record,
        outcome: Outcome,
        now: float,
        number: int | None,
        peers: Sequence[Record],
    ) -> bool:
        """Note how a try ended; return whether its backend is now out or back.

        `peers` are the records of the healthy backends of its pool, its own among them.
        """
        record.tries += 1
        fault = outcome in FAULTS
        record.errors += fault
        if record.until is not None:
            if not self._is_probe(record, number):
                return False  # sent before it was ejected: no news
            if fault:
                self._eject(record, now)
            else:
                self._readmit(record, now)
            return True
        if not fault:
            if outcome == "ok":
                record.consecutive = 0
                record.streak = 0.0
            return False
        record.fade(now, self.settings.window)
        record.requests += 1.0
        record.faults += 1.0
        record.consecutive += 1
        record.streak += 1.0
        disproved = number is not None and number == record.proof
        if not (disproved or self._failing(record)) or not self._may_lose_another(peers):
            return False
        self._eject(record, now)
        return True

    def finished(self, record: Record, number: int | None) -> None:
        """Note that a try is over, told or not: a probe without a result makes way for another."""
        if self._is_probe(record, number):
            record.probe = None

    def keep_bound(self, peers: Iterable[Record], now: float) -> bool:
        """Readmit those next to return until no more are out than may be; return whether any was."""
        peers = list(peers)
        out = sorted(
            (one for one in peers if one.until is not None),
            key=lambda one: one.until or 0.0,
        )
        spare = len(out) - self._most(len(peers))
        for record in out[: max(0, spare)]:
            self._readmit(record, now)
        return spare > 0

    def weigh(self, peers: Iterable[Record], now: float) -> None:
        """Set the penalties of the backends of one pool."""
        peers = list(peers)
        for record in peers:
            record.fade(now, self.settings.window)
        if not self.settings.enabled:
            for record in peers:
                record.penalty = 0.0
            return
        times = [time for one in peers if (time := one.first_byte()) is not None]
        fastest = min(times, default=0.0)
        for record in peers:
            streak = min(1.0, record.streak / self.settings.consecutive)
            penalty = max(record.rate(), streak) + _slowness(record, fastest)
            record.penalty = penalty if penalty >= NEGLIGIBLE else 0.0

    def _is_probe(self, record: Record, number: int | None) -> bool:
        return record.probe is not None and (number is None or number == record.probe)

    def _failing(self, record: Record) -> bool:
        said = self.settings
        if record.consecutive >= said.consecutive:
            return True
        requests = record.requests
        return requests >= said.requests and record.faults >= said.error_rate * requests

    def _may_lose_another(self, peers: Sequence[Record]) -> bool:
        out = sum(one.until is not None for one in peers)
        return self.settings.enabled and out < self._most(len(peers))

    def _most(self, healthy: int) -> int:
        return int(healthy * self.settings.share + 1e-9) if self.settings.enabled else 0

    def _eject(self, record: Record, now: float) -> None:
        said = self.settings
        # A backend that stayed for longer than it was out starts anew.
        if record.until is None and now - record.returned_at > record.out_for:
            record.ejections = 0
        record.ejections += 1
        record.out_for = min(said.longest, said.first * 2.0 ** min(record.ejections - 1, 60))
        record.until = now + record.out_for
        record.probe = None

    def _readmit(self, record: Record, now: float) -> None:
        record.until = record.probe = None
        record.returned_at = now
        record.consecutive = 0
        record._forget(now)


def _slowness(record: Record, fastest: float) -> float:
    time = record.first_byte()
    if time is None or time - fastest < NOTICEABLE:
        return 0.0
    times = time / fastest if fastest > 0.0 else SLOWEST
    slow = min(1.0, max(0.0, (times - SLOW) / (SLOWEST - SLOW)))
    return slow * record._samples / (record._samples + 1.0)
