"""Two topics, one process: payments are handled before the reports that came earlier.

With --bootstrap it consumes the topics `payments` and `reports` of that cluster until Ctrl-C. Without, it brings a
broker in memory, writes a backlog of reports and then some payments, and shows in which order they were done.

    python examples/kafka_priorities.py
    python examples/kafka_priorities.py --bootstrap localhost:9092
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

from fairlead.streams import Consumer, Message, StreamApp
from fairlead.testing.streams import MemoryBroker

done: list[str] = []


class Handler(Consumer):
    """The work: a millisecond per record, on one of the app's threads."""

    def consume(self, messages: Sequence[Message]) -> None:
        for message in messages:
            time.sleep(0.001)
            done.append(message.topic)


def make_app(**where: Any) -> StreamApp:
    app = StreamApp(group="billing", concurrency=2, **where)
    app.topic("payments", Handler, priority=80, batch_size=10)
    app.topic(
        "reports", Handler, priority=20, batch_size=10, max_retries=5, dead_letter="reports-dead"
    )
    return app


def in_memory(reports: int, payments: int) -> dict[str, float]:
    """Consume a backlog; return each topic's mean place in the order of work, from 0 (first) to 1 (last)."""
    broker = MemoryBroker({"payments": 2, "reports": 2, "reports-dead": 1})
    for number in range(reports):
        broker.write("reports", b"%d" % number, partition=number % 2)
    for number in range(payments):
        broker.write("payments", b"%d" % number, partition=number % 2)
    total = reports + payments
    with make_app(broker=broker, commit_interval="100ms"):
        finished = broker.wait_for(lambda: sum(broker.offsets("billing").values()) == total, 60.0)
    if not finished:
        raise SystemExit(f"only {len(done)} of {total} records were handled")
    places = {
        topic: statistics.mean(place / total for place, name in enumerate(done) if name == topic)
        for topic in ("payments", "reports")
    }
    for topic, place in places.items():
        print(
            f"{topic:9} {done.count(topic):4} records, all committed; mean place {place:.2f} of 0 (first) to 1 (last)"
        )
    return places


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--bootstrap", help="brokers, such as localhost:9092")
    parser.add_argument("--reports", type=int, default=600)
    parser.add_argument("--payments", type=int, default=100)
    options = parser.parse_args()
    if options.bootstrap:
        make_app(bootstrap_servers=options.bootstrap).run()
    else:
        in_memory(options.reports, options.payments)
