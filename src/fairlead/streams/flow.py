"""How much is read: which partitions are paused, and when reading stops.

Records that wait are bounded: a partition should hold its next batch, and stops being read at `high` of them, which
shrinks when many partitions are held.  Pausing throws away what was fetched, so short delays are borne by not
reading at all; a partition is paused when it is full and another one has too little, when not reading has lasted for a
second, while it rests after a failure, and while a long-running job of it waits or runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairlead.streams.broker import Batch, Client, Tp
    from fairlead.streams.holdings import Holding

BATCHES = 4  # of a partition may wait
# Or so many records, if batches are small: a pause makes the client read again what it had, so it should be rare.
RECORDS = 8_000
TOTAL = 50_000  # records of a listener may wait, about
BYTES = 64_000_000  # of these, judged by the first record of each batch
PRESSED = 1.0  # seconds


class Flow:
    """The reading of one listener.  All but `reconcile` and `may_read` under the listener's lock."""

    def __init__(self, holdings: Mapping[Tp, Holding]) -> None:
        self._holdings = holdings
        self._watched: dict[Holding, None] = {}  # paused, or with a reason to be
        self._heavy: dict[Holding, None] = {}  # had enough when something was last delivered
        self._share = TOTAL
        self._bytes = BYTES

    def resize(self) -> None:
        """The number of partitions has changed."""
        partitions = max(1, len(self._holdings))
        self._share = TOTAL // partitions
        self._bytes = BYTES // partitions

    def high(self, holding: Holding) -> int:
        """Tell how many records of a partition are enough."""
        enough = min(max(BATCHES * holding.topic.batch_size, RECORDS), self._share)
        if holding.size * enough > self._bytes:
            enough = self._bytes // holding.size
        return max(1, enough)

    def low(self, holding: Holding) -> int:
        """Tell with how many records a full partition is read again."""
        return min(holding.topic.batch_size, self.high(holding) // 2)

    def delivered(self, holding: Holding, batch: Batch) -> None:
        """Records have come."""
        first = batch[0]
        holding.size = max(holding.size // 2, len(first.value or b"") + len(first.key or b""))
        if holding.topic.long_running:
            self._watched[holding] = None
        if holding.partition.buffered >= self.high(holding):
            self._heavy[holding] = None

    def watch(self, holding: Holding) -> None:
        """There may be a reason to pause a partition."""
        self._watched[holding] = None

    def forget(self, holding: Holding) -> None:
        """A partition is gone."""
        self._watched.pop(holding, None)
        self._heavy.pop(holding, None)

    def may_read(self, now: float, read_at: float) -> bool:
        """Say whether to poll; partitions that are in the way of it are marked as full."""
        if not self._heavy:
            return True
        full = []
        for holding in list(self._heavy):
            if holding.paused or holding.partition.buffered < self.high(holding):
                self._heavy.pop(holding, None)
            else:
                full.append(holding)
        if not full:
            return True
        if now - read_at < PRESSED and not self._hungry():
            return False
        for holding in full:
            holding.full = True
            self._watched[holding] = None
        return True

    def narrow(self, wanted: int) -> bool:
        """Say whether so few partitions have records that more should be read before any is run.

        A client hands out long runs of one partition.  Where nothing is read while something runs, what was read
        from one partition alone would keep one worker busy and the others idle.
        """
        if not wanted or self._heavy:
            return False
        open_ones = [one.partition for one in self._holdings.values() if not one.paused]
        return sum(bool(one.buffered) for one in open_ones) < min(wanted, len(open_ones))

    def _hungry(self) -> bool:
        return any(
            not holding.paused and holding.partition.buffered <= self.low(holding)
            for holding in self._holdings.values()
        )

    def _wants_pause(self, holding: Holding, now: float) -> bool:
        partition = holding.partition
        if holding.full and partition.buffered <= self.low(holding):
            holding.full = False
        if holding.full or partition.resting(now):
            return True
        return holding.topic.long_running and bool(partition.calls or partition.buffered)

    def reconcile(self, client: Client, now: float, *, stop: bool = False) -> None:
        """Pause and resume what should be; with `stop`, pause everything, also what comes."""
        if stop:
            going = [one for one in self._holdings.values() if not one.paused]
            if going:
                client.pause([one.tp for one in going])
                for one in going:
                    one.paused = True
                    self._watched[one] = None
            return
        if not self._watched:
            return
        pause, resume = [], []
        for holding in list(self._watched):
            wanted = self._wants_pause(holding, now)
            if wanted and not holding.paused:
                pause.append(holding)
            elif not wanted:
                self._watched.pop(holding, None)
                if holding.paused:
                    resume.append(holding)
        if pause:
            client.pause([one.tp for one in pause])
        if resume:
            client.resume([one.tp for one in resume])
        for one in pause:
            one.paused = True
        for one in resume:
            one.paused = False
