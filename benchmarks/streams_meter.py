"""What every case of the streams suite tells: the pace from the first record it was given to the last."""

from __future__ import annotations

import threading
import time

Figures = dict[str, float]

# Names of figures.
WALL = "wall"  # µs per record
CPU = "cpu"  # CPU µs per record of the process, its client library's threads included


class Meter:
    """Counts records; those of the first batch start the clock, and are not counted."""

    def __init__(self, records: int) -> None:
        self.records = records
        self.done = threading.Event()
        self._lock = threading.Lock()
        self._seen = 0
        self._first = 0
        self._began = self._cpu = 0.0
        self._took = self._used = 0.0

    def hit(self, records: int) -> bool:
        """So many have come; says whether that was the last."""
        with self._lock:
            if not self._seen:
                self._first = records
                self._began, self._cpu = time.perf_counter(), time.process_time()
            self._seen += records
            if self._seen >= self.records and not self.done.is_set():
                self._took = time.perf_counter() - self._began
                self._used = time.process_time() - self._cpu
                self.done.set()
            return self.done.is_set()

    def figures(self) -> Figures:
        if not self.done.is_set():
            raise RuntimeError(f"only {self._seen} of {self.records} records came")
        counted = self._seen - self._first
        return {WALL: self._took / counted * 1e6, CPU: self._used / counted * 1e6}
