"""What may be asked of a Kafka cluster, by a member of a group or by nobody in particular."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from fairlead.errors import BrokerFault
from fairlead.streams.broker import Tp
from fairlead.streams.kafka_calls import BoundedCalls
from fairlead.streams.kafka_faults import fault_of
from fairlead.streams.kafka_records import parts_of, tp_of

ASKING = 10.0  # seconds that a question to the brokers may take
NO_SUCH_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}


class Questions:
    """The part of a client that changes nothing."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._calls = BoundedCalls()

    def committed(self, tps: Iterable[Tp]) -> dict[Tp, int | None]:
        return {tp: offset for tp, (offset, _) in self.notes(tps).items()}

    def notes(self, tps: Iterable[Tp]) -> dict[Tp, tuple[int | None, str]]:
        with self._asking("asking for committed offsets"):
            answers = self._consumer.committed(parts_of(tps), timeout=ASKING)
        for part in answers:
            if part.error:
                raise fault_of(f"asking for the committed offset of {tp_of(part)}", part.error)
        return {
            tp_of(part): (part.offset if part.offset >= 0 else None, part.metadata or "")
            for part in answers
        }

    def watermarks(self, tp: Tp) -> tuple[int, int]:
        with self._asking(f"asking for the ends of {tp}"):
            low, high = self._consumer.get_watermark_offsets(TopicPartition(*tp), timeout=ASKING)
        return low, high

    def ends(self, tps: Iterable[Tp]) -> dict[Tp, int]:
        found: dict[Tp, int] = {}
        if self._calls.stuck:
            return found
        for tp in tps:
            with self._asking(f"asking for the end of {tp}"):
                marks = self._consumer.get_watermark_offsets(TopicPartition(*tp), cached=True)
            if marks[1] >= 0:
                found[tp] = marks[1]
        return found

    def partitions(self, topic: str) -> int:
        with self._asking(f"asking for the partitions of {topic!r}"):
            known = self._consumer.list_topics(topic, timeout=ASKING).topics.get(topic)
        if known is None:
            return 0
        if known.error is not None and known.error.code() not in NO_SUCH_TOPIC:
            raise fault_of(f"asking for the partitions of {topic!r}", known.error)
        return len(known.partitions)

    @contextmanager
    def _asking(self, doing: str) -> Iterator[None]:
        if self._calls.stuck:
            raise BrokerFault(f"{doing} failed: the broker has not answered", retriable=True)
        try:
            yield
        except KafkaException as error:
            raise fault_of(doing, error) from error
