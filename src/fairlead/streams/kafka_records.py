"""Records of confluent-kafka as the door's messages, made when somebody looks at them.

An object per record costs more than reading the record did, so a batch keeps the client's own objects, asks the
first and the last for their offsets, and wraps the others when a handler iterates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, overload

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, TopicPartition
from confluent_kafka import Message as Raw

from fairlead.streams.broker import Batch, Headers, Message, Tp


def _timestamp(raw: Raw[Any, Any]) -> float | None:
    kind, milliseconds = raw.timestamp()
    return None if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds / 1000


class KafkaMessage(Message):
    """A `Message` that asks the client's record each time."""

    __slots__ = ("_raw",)

    def __init__(self, raw: Raw[Any, Any]) -> None:
        self._raw = raw

    # Properties, because a slot would have to be filled; Any, because the class above has plain attributes.
    topic: Any = property(lambda self: self._raw.topic())
    partition: Any = property(lambda self: self._raw.partition())
    offset: Any = property(lambda self: self._raw.offset())
    key: Any = property(lambda self: self._raw.key())
    value: Any = property(lambda self: self._raw.value())
    headers: Any = property(lambda self: self._raw.headers() or [])
    timestamp: Any = property(lambda self: _timestamp(self._raw))

    def __reduce__(self) -> tuple[type[Message], tuple[Any, ...]]:
        # To another process goes a plain message: the client's own objects cannot be copied.
        headers: Headers = self.headers
        fields = (
            self.topic,
            self.partition,
            self.offset,
            self.key,
            self.value,
            headers,
            self.timestamp,
        )
        return Message, fields


class KafkaBatch(Batch):
    """A `Batch` over the client's records."""

    __slots__ = ("_raws", "_made")

    def __init__(self, tp: Tp, raws: Sequence[Raw[Any, Any]]) -> None:
        self.tp = tp
        if raws:
            self.first = _offset(raws[0])
            self.last = _offset(raws[-1])
        self._raws = raws
        self._made: list[Message] | None = None

    @property
    def offsets(self) -> list[int]:
        return list(map(_offset, self._raws))

    def __len__(self) -> int:
        return len(self._raws)

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages_made())

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Batch: ...
    def __getitem__(self, index: int | slice) -> Message | Batch:
        if isinstance(index, slice):
            return KafkaBatch(self.tp, self._raws[index])
        if self._made is None:
            return KafkaMessage(self._raws[index])  # a look at one does not make them all
        return self._made[index]

    def __reduce__(self) -> tuple[type[Batch], tuple[Tp, list[Message]]]:
        return Batch, (self.tp, self._messages_made())

    def _messages_made(self) -> list[Message]:
        if self._made is None:
            self._made = list(map(KafkaMessage, self._raws))
        return self._made


_topic: Any = Raw.topic
_partition: Any = Raw.partition
_offset: Any = Raw.offset
failed: Any = Raw.error


def sort_out(raws: list[Raw[Any, Any]], only: str | None = None) -> Iterator[KafkaBatch]:
    """Cut what was read into runs of one partition; `only` is the topic, where there is but one."""
    start = 0
    topics = [(only, len(raws))] if only is not None else _runs(map(_topic, raws))
    for topic, size in topics:
        # By numbers and slices: to group the records themselves takes three times as long.
        for partition, length in _runs(map(_partition, raws[start : start + size])):
            yield KafkaBatch(Tp(topic, partition), raws[start : start + length])
            start += length


def _runs(values: Iterable[Any]) -> Iterator[tuple[Any, int]]:
    """Tell each value and how often it comes in a row."""
    return ((value, len(list(run))) for value, run in groupby(values))


def tp_read(raw: Raw[Any, Any]) -> Tp:
    return Tp(_topic(raw), _partition(raw))


def tp_of(part: TopicPartition) -> Tp:
    return Tp(part.topic, part.partition)


def parts_of(tps: Iterable[Tp]) -> list[TopicPartition]:
    return [TopicPartition(*tp) for tp in tps]
