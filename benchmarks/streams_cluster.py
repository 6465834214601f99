"""The cluster of the streams suite: librdkafka's mock, in a child process."""

from __future__ import annotations

import itertools
from typing import Any, Self

from confluent_kafka import Producer

from tests.streams.mock_cluster import MockCluster

VALUE = b"x" * 100


class Cluster:
    """A cluster and its topics."""

    def __init__(self) -> None:
        self._mock = MockCluster()
        self._numbers = itertools.count(1)
        self.servers = self._mock.bootstrap

    def topic(self, partitions: int) -> str:
        """Make an empty topic."""
        return self._mock.topic(f"bench-{next(self._numbers)}", partitions)

    def filled(self, partitions: int, records: int) -> str:
        """Make a topic with records evenly in its partitions."""
        topic = self.topic(partitions)
        settings: dict[str, Any] = {
            "bootstrap.servers": self.servers,
            "queue.buffering.max.messages": 2_000_000,
            "linger.ms": 50,
            "batch.num.messages": 1000,
            "log_level": 0,
        }
        producer = Producer(settings)
        for number in range(records):
            producer.produce(topic, VALUE, partition=number * partitions // records)
            if not number % 10_000:
                producer.poll(0)
        if producer.flush(120):
            raise RuntimeError("the mock cluster did not take all records")
        return topic

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._mock.close()
