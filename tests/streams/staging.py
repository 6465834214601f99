"""A stage for stream tests: consumers that write down what they see, apps on the in-memory broker, and waiting."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fairlead.streams import Consumer, StreamApp
from fairlead.streams.broker import Batch, Message, Tp
from fairlead.streams.holdings import Holding
from fairlead.streams.jobs import CONSUMPTION, Job, Kind
from fairlead.streams.settings import read_topic
from fairlead.testing.stream_client import MemoryClient
from fairlead.testing.streams import MemoryBroker

PATIENCE = 20.0  # seconds; a busy machine gets its time


class Book:
    """What consumers have seen; tests wait for what is written in it."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.lines: list[tuple[Any, ...]] = []

    def write(self, *line: Any) -> None:
        with self.changed:
            self.lines.append(line)
            self.changed.notify_all()

    def of(self, what: str) -> list[tuple[Any, ...]]:
        with self.changed:
            return [line[1:] for line in self.lines if line[0] == what]

    def wait(self, happened: Callable[[], Any], seconds: float = PATIENCE) -> None:
        with self.changed:
            assert self.changed.wait_for(happened, seconds), self.lines[-20:]

    def wait_for(self, what: str, number: int = 1, seconds: float = PATIENCE) -> None:
        self.wait(lambda: sum(line[0] == what for line in self.lines) >= number, seconds)


def until(happened: Callable[[], Any], seconds: float = PATIENCE) -> None:
    """Look again and again until a claim holds that nobody announces."""
    by = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < by, "it never happened"
        time.sleep(0.002)


def writing(book: Book, **more: Any) -> type[Consumer]:
    """Make a consumer class that writes down each record; `more` are its other members."""

    def consume(self: Consumer, messages: Any) -> None:
        for message in messages:
            book.write("record", message.topic, message.partition, message.offset, message.value)

    return type("Writing", (Consumer,), {"consume": consume} | more)


def holding(topic: str = "orders", partition: int = 0, **options: Any) -> Holding:
    read = read_topic(topic, writing(Book()), options)
    return Holding(read, Tp(topic, partition), 1, 4)


def job(
    topic: str = "orders",
    partition: int = 0,
    size: int = 1,
    kind: Kind = CONSUMPTION,
    **options: Any,
) -> Job:
    held = holding(topic, partition, **options)
    if kind is not CONSUMPTION:
        return Job(kind, held)
    held.partition.deliver(
        Batch(held.tp, [Message(topic, partition, offset) for offset in range(size)])
    )
    return Job(kind, held, held.partition.take(0.0), blocking=not held.topic.long_running)


@contextmanager
def running(app: StreamApp, grace: float = 5.0) -> Iterator[StreamApp]:
    app.start()
    try:
        yield app
    finally:
        app.stop(grace)


def app_on(broker: MemoryBroker, **options: Any) -> StreamApp:
    usual: dict[str, Any] = {
        "group": "g",
        "commit_interval": "20ms",
        "tick_interval": "50ms",
        "concurrency": 4,
    }
    return StreamApp(broker=broker, **(usual | options))


def filled(topics: dict[str, int], records: int, **how: Any) -> MemoryBroker:
    """Make a broker with so many records in each partition."""
    broker = MemoryBroker(topics, **how)
    for name, partitions in topics.items():
        for number in range(partitions):
            for offset in range(records):
                broker.write(name, f"{name}-{number}-{offset}".encode(), partition=number)
    return broker


def wait_committed(broker: MemoryBroker, total: int, group: str = "g") -> None:
    """Wait until offsets of a group add up: before its members have joined, nothing lags."""
    happened = broker.wait_for(lambda: sum(broker.offsets(group).values()) == total, PATIENCE)
    assert happened, broker.offsets(group)


def client_of(app: StreamApp, group_id: str = "default") -> MemoryClient:
    """The member of the in-memory broker that a listener is now."""
    client = app.runtime.listeners[group_id]._client
    assert isinstance(client, MemoryClient)
    return client


def scheduler_of(app: StreamApp) -> Any:
    """The scheduler, as what its own class makes it."""
    return app.runtime.calls.scheduler
