"""How long jobs waited and ran: histograms by task and executor, bounded whatever tasks there are."""

from __future__ import annotations

from bisect import bisect_left

BOUNDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0)
MOST = 200  # pairs of a task and an executor; the rest is told together
OTHERS = ("other", "other")

Labels = tuple[str, str]  # a task, an executor


class Histogram:
    """Counts by `BOUNDS`, the last one beyond them all."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0


class Timings:
    """Histograms by task and executor.

    >>> timings = Timings()
    >>> timings.saw("extract", "ocr", 0.2)
    >>> timings.histograms["extract", "ocr"].total
    0.2
    """

    def __init__(self) -> None:
        self.histograms: dict[Labels, Histogram] = {}

    def saw(self, task: str, executor: str, seconds: float) -> None:
        """Note one."""
        labels = (task, executor)
        found = self.histograms.get(labels)
        if found is None:
            if len(self.histograms) >= MOST:
                labels = OTHERS
            found = self.histograms.setdefault(labels, Histogram())
        found.counts[bisect_left(BOUNDS, seconds)] += 1
        found.total += seconds
