"""One capacity for two doors: a stream and the calls of a program share four connections to one database.

`Slots(4)` is given to a `StreamApp` and to a `ThreadScheduler`. Never do more than four of them work at once, whichever
door they came through, and the program's calls (priority 90) go before batches of the stream (priority 20).

    python examples/shared_capacity.py
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fairlead import Slots, ThreadScheduler
from fairlead.streams import Consumer, Message, StreamApp
from fairlead.testing.streams import MemoryBroker

CONNECTIONS = 4


class Database:
    """What is scarce: it counts who uses it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.inside = 0
        self.most = 0
        self.used: Counter[str] = Counter()

    @contextmanager
    def connection(self, who: str) -> Iterator[None]:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.used[who] += 1
        yield
        with self._lock:
            self.inside -= 1


database = Database()


class Events(Consumer):
    """Write batches of events to the database."""

    def consume(self, messages: Sequence[Message]) -> None:
        with database.connection("stream"):
            time.sleep(0.004)


def look_up(number: int) -> float:
    """Answer a user; return when it was done."""
    with database.connection("calls"):
        time.sleep(0.002)
    return time.monotonic()


def main(records: int, calls: int) -> None:
    broker = MemoryBroker({"events": 8})
    for number in range(records):
        broker.write("events", b"%d" % number, partition=number % 8)
    shared = Slots(CONNECTIONS)
    with ThreadScheduler.bounded(capacity=shared) as scheduler:
        # The app runs up to 8 batches by itself; the shared capacity is what holds it.
        app = StreamApp(
            group="loader", broker=broker, concurrency=8, capacity=shared, commit_interval="100ms"
        )
        app.topic("events", Events, priority=20, batch_size=10)
        with app:
            broker.wait_for(lambda: bool(broker.offsets("loader")), 30.0)
            began = time.monotonic()
            futures = [scheduler.spawn(90, look_up, number) for number in range(calls)]
            answered = max(future.result(timeout=30.0) for future in futures) - began
            broker.wait_for(lambda: sum(broker.offsets("loader").values()) == records, 60.0)
            drained = time.monotonic() - began
    print(f"most at once: {database.most} of {CONNECTIONS}; used by {dict(database.used)}")
    print(f"all calls answered after {answered:.2f} s, the backlog drained after {drained:.2f} s")
    if database.most > CONNECTIONS:
        raise SystemExit("the limit was not held")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=4000)
    parser.add_argument("--calls", type=int, default=40)
    options = parser.parse_args()
    main(options.records, options.calls)
