"""What the Kafka client makes of things that no cluster can be made to do at the right moment."""

from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka import Message as Raw

from fairlead.errors import BrokerFault, CommitRefused
from fairlead.streams.broker import Batch, Eof, Tp
from fairlead.streams.kafka_client import KafkaClient
from fairlead.streams.kafka_settings import consumer_settings

A, B = Tp("t", 0), Tp("t", 1)


class ScriptedConsumer:
    """Stands for confluent-kafka's Consumer: each `consume` runs the next step of a script."""

    def __init__(self):
        self.steps = []
        self.stored = []
        self.asked = []
        self.answers = []

    def subscribe(self, topics, *, on_assign, on_revoke, on_lost):
        self.assign_now = lambda *tps: on_assign(self, [TopicPartition(*tp) for tp in tps])
        self.revoke_now = lambda *tps: on_revoke(self, [TopicPartition(*tp) for tp in tps])
        self.lose_now = lambda *tps: on_lost(self, [TopicPartition(*tp) for tp in tps])

    def consume(self, most, timeout):
        self.asked.append((most, timeout))
        return self.steps.pop(0)() if self.steps else []

    def commit(self, *, offsets, asynchronous):
        assert not asynchronous
        self.stored += offsets
        return self.answers

    def nothing(self, *args):
        pass

    incremental_assign = incremental_unassign = unsubscribe = pause = resume = seek = nothing
    assignment = close = nothing


def record(tp, offset):
    return Raw(topic=tp.topic, partition=tp.partition, offset=offset, key=None, value=b"x")


def news(code, tp=None, offset=None):
    error = KafkaError(code)
    if tp is None:
        return Raw(error=error)
    return Raw(topic=tp.topic, partition=tp.partition, offset=offset, error=error)


@pytest.fixture
def told():
    return []


@pytest.fixture
def client(told):
    made: Any = KafkaClient(consumer_settings("", "g", {}, name="", eof=True), cooperative=True)
    made._consumer.close()
    made._consumer = ScriptedConsumer()
    made.subscribe(
        ["t"],
        assigned=lambda tps: told.append(("assigned", tps)),
        revoked=lambda tps: told.append(("revoked", tps)),
        lost=lambda tps: told.append(("lost", tps)),
    )
    made._consumer.assign_now(A, B)
    told.clear()
    yield made
    made.close()


def shown(found):
    return [(part.tp, part.offsets) if isinstance(part, Batch) else part for part in found]


def test_records_of_a_partition_revoked_in_the_same_call_are_not_handed_out(client, told):
    def step():
        client._consumer.revoke_now(A)
        return [record(A, 1), record(B, 1)]

    client._consumer.steps = [step]
    assert shown(client.poll(0, 10)) == [(B, [1])]
    assert told == [("revoked", [A])]


def test_a_record_read_before_its_partition_went_and_came_back_is_not_handed_out(client):
    def second():
        client._consumer.lose_now(A)
        client._consumer.assign_now(A)
        return [record(A, 1), record(B, 7)]

    client._consumer.steps = [list, lambda: [record(A, 5)], second]
    assert shown(client.poll(0.1, 10)) == [(A, [1]), (B, [7])]
    assert client._consumer.asked == [(10, 0), (1, 0.1), (9, 0)]


def test_being_too_slow_loses_everything_at_once_and_only_once(client, told):
    client._consumer.steps = [
        lambda: [record(A, 1), news(KafkaError._MAX_POLL_EXCEEDED), record(B, 1)],
        lambda: [record(B, 2)],
        lambda: client._consumer.lose_now(A, B) or [],
    ]
    assert client.poll(0, 10) == []
    assert told == [("lost", [A, B])]
    assert client.assignment() == []
    assert client.poll(0, 10) == []
    assert client.poll(0, 10) == []
    assert told == [("lost", [A, B])]


def test_what_has_just_come_is_not_lost_to_old_news(client, told):
    def step():
        client._consumer.lose_now(A, B)
        client._consumer.assign_now(A)
        return [news(KafkaError._MAX_POLL_EXCEEDED), record(A, 4)]

    client._consumer.steps = [step]
    assert shown(client.poll(0, 10)) == [(A, [4])]
    assert told == [("lost", [A, B]), ("assigned", [A])]


def test_records_come_before_the_fault_that_came_with_them(client):
    client._consumer.steps = [lambda: [record(A, 1), news(KafkaError._TRANSPORT), record(A, 2)]]
    assert shown(client.poll(0, 10)) == [(A, [1]), (A, [2])]
    with pytest.raises(BrokerFault, match="reading failed") as fault:
        client.poll(0, 10)
    assert fault.value.retriable
    assert client.poll(0, 10) == []


def test_an_end_stays_between_the_records_around_it(client):
    client._consumer.steps = [
        lambda: [record(A, 1), news(KafkaError._PARTITION_EOF, A, 2), record(A, 2), record(B, 5)]
    ]
    assert shown(client.poll(0, 10)) == [(A, [1]), Eof(A, 2), (A, [2]), (B, [5])]


def test_a_commit_refused_for_one_partition_names_that_one(client):
    stored, refused = TopicPartition(*A, 3), TopicPartition(*B, 3)
    client._consumer.answers = [stored, refused]
    client.commit({A: 3, B: 3})

    class Answer:
        topic, partition, error = "t", 1, KafkaError(KafkaError.REBALANCE_IN_PROGRESS)

    client._consumer.answers = [stored, Answer]
    with pytest.raises(CommitRefused, match=r"offsets of t\[1\] were not stored") as caught:
        client.commit({A: 3, B: 3})
    assert (caught.value.refused, caught.value.retriable) == ((B,), True)
