"""The port over confluent-kafka: its contract on a real wire, then what only a wire can do to it."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from fairlead.errors import BrokerFault, CommitRefused, ConfigError
from fairlead.streams.broker import Broker, Tp
from fairlead.streams.kafka import KafkaBroker
from fairlead.streams.kafka_settings import ClientLog, consumer_settings, producer_settings
from tests.sizes import REPEATS
from tests.streams.mock_cluster import (
    FETCH,
    JOIN_GROUP,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    MockCluster,
    freeze,
)
from tests.streams.port_contract import PATIENCE, PortContract, Reader, group, join, numbers

__all__ = ["group", "join"]

REAL = os.environ.get("FAIRLEAD_TEST_KAFKA", "")
on_mock = pytest.mark.skipif(bool(REAL), reason="only the mock cluster can be made to fail")
# The shortest session that a loaded machine keeps; the mock needs it less a second for a rebalance.
SESSION: dict[str, Any] = {"session.timeout.ms": 6000 if REAL else 2000}


class RealCluster:
    """A broker that somebody gave us."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.made = 0

    def fresh(self, partitions: int) -> str:
        self.made += 1
        name = f"fairlead-{os.getpid()}-{time.time_ns()}-{self.made}"
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(PATIENCE)
        return name

    def close(self) -> None:
        pass


class KafkaRig:
    def __init__(self, cluster: MockCluster | RealCluster) -> None:
        self.cluster = cluster
        self.producer = Producer({"bootstrap.servers": cluster.bootstrap}, logger=ClientLog())

    def broker(self, *, eager: bool = False, kafka: dict[str, Any] | None = None) -> Broker:
        more: dict[str, Any] = {"partition.assignment.strategy": "range"} if eager else {}
        return KafkaBroker(self.cluster.bootstrap, kafka=SESSION | more | (kafka or {}))

    def short_interval(self) -> Broker:
        return self.broker(kafka={"max.poll.interval.ms": SESSION["session.timeout.ms"]})

    def outstay(self) -> None:
        # The client looks once a second whether it was polled.
        time.sleep(SESSION["session.timeout.ms"] / 1000 + 1.2)

    def topic(self, partitions: int) -> str:
        return self.cluster.fresh(partitions)

    def write(self, topic, partition, values) -> None:
        for value in values:
            self.producer.produce(topic, value, partition=partition)
        assert self.producer.flush(PATIENCE) == 0


@pytest.fixture(scope="module")
def cluster():
    made = RealCluster(REAL) if REAL else MockCluster()
    yield made
    made.close()


@pytest.fixture
def rig(cluster):
    return KafkaRig(cluster)


class TestKafkaPort(PortContract):
    pass


class NewProtocolRig(KafkaRig):
    """Groups that the broker itself shares out (KIP-848)."""

    def broker(self, *, eager: bool = False, kafka: dict[str, Any] | None = None) -> Broker:
        return KafkaBroker(
            self.cluster.bootstrap, kafka={"group.protocol": "consumer"} | (kafka or {})
        )


@pytest.mark.slow
class TestNewGroupProtocol(PortContract):
    @pytest.fixture
    def rig(self, cluster):
        return NewProtocolRig(cluster)

    def test_an_eager_group_gives_up_everything_and_gets_its_share(self, rig, join):
        pytest.skip("there are none")


@on_mock
def test_a_refused_commit_says_whether_to_try_again(rig, join, cluster):
    topic = rig.topic(2)
    tps = [Tp(topic, 0), Tp(topic, 1)]
    reader = join(rig.broker(), topic)
    reader.until(lambda: len(reader.owned) == 2)
    for code, retriable, fatal in (
        (KafkaError.REBALANCE_IN_PROGRESS, True, False),
        (KafkaError.ILLEGAL_GENERATION, True, False),
        (KafkaError.UNKNOWN_MEMBER_ID, False, False),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, False, False),
    ):
        cluster.errors(OFFSET_COMMIT, [code] * 3)
        with pytest.raises(CommitRefused, match=r"were not stored") as refused:
            reader.client.commit(dict.fromkeys(tps, 1))
        cluster.no_errors(OFFSET_COMMIT)
        assert (refused.value.retriable, refused.value.fatal) == (retriable, fatal), code
        assert refused.value.refused == tuple(tps)


@on_mock
def test_a_broker_away_brings_nothing_and_its_return_everything(join):
    with MockCluster() as cluster:
        rig = KafkaRig(cluster)
        topic = rig.topic(1)
        tp = Tp(topic, 0)
        rig.write(topic, 0, numbers(5))
        reader = join(rig.broker(), topic).read(5)
        cluster.down()
        reader.quiet(0.5)
        with pytest.raises(CommitRefused) as refused:
            reader.client.commit({tp: 5})
        assert refused.value.retriable
        cluster.up()
        rig.write(topic, 0, numbers(5, 5))
        reader.until(lambda: max(reader.offsets(tp)) == 9)
        reader.client.commit({tp: 10})
        assert reader.client.committed([tp]) == {tp: 10}
        reader.client.close()


@on_mock
@pytest.mark.parametrize("eager", [False, True])
def test_a_partition_whose_start_could_not_be_found_is_read_all_the_same(rig, join, cluster, eager):
    """The client asks for committed offsets once, and then holds the partition and never reads it."""
    topic = rig.topic(2)
    rig.write(topic, 0, numbers(5))
    rig.write(topic, 1, numbers(5))
    cluster.errors(OFFSET_FETCH, [KafkaError.NOT_COORDINATOR] * 2)
    reader = join(rig.broker(eager=eager), topic)
    faults = read_despite_faults(reader, 10)
    assert {fault.retriable for fault in faults} == {True}
    assert reader.told("assigned") == [Tp(topic, 0), Tp(topic, 1)], "and nobody was told twice"


@on_mock
@pytest.mark.parametrize("eager", [False, True])
def test_a_paused_partition_whose_start_could_not_be_found_stays_paused(rig, join, cluster, eager):
    topic = rig.topic(2)
    rig.write(topic, 0, numbers(5))
    rig.write(topic, 1, numbers(5))
    cluster.errors(OFFSET_FETCH, [KafkaError.NOT_COORDINATOR] * 2)
    reader = join(rig.broker(eager=eager), topic)
    reader.on_assigned = lambda tps: reader.client.pause([Tp(topic, 0)])
    read_despite_faults(reader, 5)
    reader.quiet()
    assert reader.offsets(Tp(topic, 0)) == []
    reader.client.resume([Tp(topic, 0)])
    reader.read(10)


class Spied:
    """A client's consumer, and who was paused or resumed between its assignment and its first record."""

    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer
        self.starting: set[Tp] = set()
        self.turned: list[tuple[str, Tp]] = []
        self.crossed: list[tuple[str, Tp]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.consumer, name)

    def consume(self, *args: Any) -> Any:
        raws = self.consumer.consume(*args)
        self.starting -= {Tp(raw.topic(), raw.partition()) for raw in raws}
        return raws

    def _assign(self, verb: str, parts: Any) -> None:
        self.starting |= {Tp(part.topic, part.partition) for part in parts}
        getattr(self.consumer, verb)(parts)

    def assign(self, parts: Any) -> None:
        self._assign("assign", parts)

    def incremental_assign(self, parts: Any) -> None:
        self._assign("incremental_assign", parts)

    def _turn(self, verb: str, parts: Any) -> None:
        turned = [(verb, Tp(part.topic, part.partition)) for part in parts]
        self.turned += turned
        self.crossed += [(verb, tp) for verb, tp in turned if tp in self.starting]
        getattr(self.consumer, verb)(parts)

    def pause(self, parts: Any) -> None:
        self._turn("pause", parts)

    def resume(self, parts: Any) -> None:
        self._turn("resume", parts)


@pytest.mark.parametrize("eager", [False, True])
def test_no_pause_or_resume_crosses_with_the_start_of_a_partition(rig, join, eager):
    """librdkafka drops one of the two if they do: a partition that is ours and never read (its issue 5591)."""
    topic = rig.topic(2)
    rig.write(topic, 0, numbers(3))
    rig.write(topic, 1, numbers(3))
    broker = rig.broker(eager=eager)
    first = join(broker, topic)
    client: Any = first.client
    spied = client._consumer = Spied(client._consumer)
    first.on_assigned = first.client.pause
    first.until(lambda: len(spied.turned) == 2)
    second = join(broker, topic)
    second.until(lambda: len(second.owned) == 1 == len(first.owned), first)
    away = next(iter(second.owned))
    second.client.close()
    second.owned.clear()
    first.until(lambda: len(first.owned) == 2 and not spied.starting)
    first.quiet()
    assert spied.crossed == first.messages == []
    assert [verb for verb, tp in spied.turned if tp == away][:3] == ["pause", "resume", "pause"]
    first.client.resume(first.owned)
    first.read(6)


@on_mock
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("paused", [False, True])
def test_a_start_that_was_given_outlives_a_start_that_could_not_be_found(
    rig, join, cluster, eager, paused
):
    """An eager group starts all anew for the sake of one, also those that the client tells no position of."""
    topic = rig.topic(2)
    tps = [Tp(topic, 0), Tp(topic, 1)]
    rig.write(topic, 0, numbers(5))
    rig.write(topic, 1, numbers(5))
    broker = rig.broker(eager=eager)
    first = join(broker, topic).read(10)
    first.client.commit(dict.fromkeys(tps, 5))
    first.client.close()
    first.owned.clear()
    cluster.errors(OFFSET_FETCH, [KafkaError.NOT_COORDINATOR])
    reader = join(broker, topic)
    client: Any = reader.client
    spied = client._consumer = Spied(client._consumer)

    def arrive(_tps: list[Tp]) -> None:
        reader.client.seek(tps[0], 2)
        if paused:
            reader.client.pause([tps[0]])

    reader.on_assigned = arrive
    rig.write(topic, 1, numbers(1))
    read_despite_faults(reader, 1 if paused else 4)
    reader.client.resume([tps[0]])
    reader.read(4)
    reader.quiet()
    assert reader.offsets(tps[0]) == [2, 3, 4]
    assert reader.offsets(tps[1]) == [5]
    assert spied.crossed == []


def test_what_came_of_others_is_handed_on_though_a_pause_cannot_be_seen_to(rig, join):
    topic = rig.topic(2)
    tps = [Tp(topic, 0), Tp(topic, 1)]
    for tp in tps:
        rig.write(topic, tp.partition, numbers(5))
    reader = join(rig.broker(), topic)
    reader.on_assigned = lambda _tps: reader.client.pause([tps[0]])
    client: Any = reader.client
    client._consumer = failing = FailsToSeek(client._consumer)
    faults = read_despite_faults(reader, 5)
    assert reader.offsets(tps[1]) == list(range(5))
    assert len(faults) + len(client._due) == failing.failed == 1
    while client._due:
        with pytest.raises(BrokerFault, match="seeking"):
            reader.poll()
    reader.client.resume([tps[0]])
    reader.read(10)
    assert reader.offsets(tps[0]) == list(range(5))


def test_a_client_has_left_the_group_when_it_is_closed(rig, join):
    """Else the last callback may never be answered, with the interpreter's lock held (librdkafka's issue 4884)."""
    topic = rig.topic(4)
    first = join(rig.broker(), topic)
    first.until(lambda: len(first.owned) == 4)
    second = join(rig.broker(), topic)
    client: Any = first.client
    held: list[Any] = []

    class Leaving(Spied):
        def close(self) -> None:
            held.append(self.consumer.assignment())
            self.consumer.close()

    client._consumer = Leaving(client._consumer)
    second.quiet(0.2)  # its coming is news to the first, who does not poll
    first.client.close()
    assert held == [[]]
    first.owned.clear()
    second.until(lambda: len(second.owned) == 4)


class FailsToSeek(Spied):
    """Hands out the first records of two partitions together, and refuses the first seek."""

    failed = 0

    def consume(self, *args: Any) -> Any:
        raws = super().consume(*args)
        until = time.monotonic() + PATIENCE
        while raws and self.starting and time.monotonic() < until:
            raws += super().consume(100, 0.05)
        return raws

    def seek(self, part: Any) -> None:
        if not self.failed:
            self.failed += 1
            raise KafkaException(KafkaError(KafkaError._PREV_IN_PROGRESS))
        self.consumer.seek(part)


@on_mock
def test_nothing_is_read_twice_or_left_out_because_a_fetch_failed(rig, join, cluster):
    topic = rig.topic(1)
    rig.write(topic, 0, numbers(20))
    cluster.errors(FETCH, [KafkaError.INVALID_MSG])
    reader = join(rig.broker(), topic)
    faults = read_despite_faults(reader, 20)
    assert [(fault.retriable, fault.fatal) for fault in faults] == [(False, False)]
    assert f"reading {topic} failed" in str(faults[0])
    assert reader.offsets(Tp(topic, 0)) == list(range(20))


def read_despite_faults(reader: Reader, count: int) -> list[BrokerFault]:
    faults: list[BrokerFault] = []
    until = time.monotonic() + PATIENCE
    while len(reader.messages) < count and time.monotonic() < until:
        try:
            reader.poll()
        except BrokerFault as fault:
            faults.append(fault)
    assert len(reader.messages) == count
    return faults


@on_mock
def test_a_fatal_fault_stays(join):
    with MockCluster() as own:  # where nobody else joins
        rig = KafkaRig(own)
        topic = rig.topic(1)
        own.errors(JOIN_GROUP, [KafkaError.FENCED_INSTANCE_ID])
        reader = join(rig.broker(), topic)
        for _ in range(2):
            with pytest.raises(BrokerFault, match="fenced") as fault:
                reader.until(lambda: False)
            assert fault.value.fatal
        reader.client.close()


@pytest.mark.slow
@pytest.mark.parametrize("eager", [False, True])
def test_members_that_come_and_go_under_load_skip_nothing(rig, join, eager):
    """`Reader` refuses every record that comes after its partition went, however much was fetched ahead."""
    topic = rig.topic(8)
    broker = rig.broker(eager=eager)
    seen: dict[Tp, set[int]] = {Tp(topic, number): set() for number in range(8)}
    written = 0
    refusals: list[CommitRefused] = []

    def go_on(readers: list[Reader], seconds: float) -> None:
        nonlocal written
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for number in range(8):
                rig.write(topic, number, numbers(20, written))
            written += 20
            for reader in readers:
                reader.poll(0.01, most=1000)
                for message in reader.messages:
                    seen[message.tp].add(message.offset)
                reader.messages.clear()
                try:
                    reader.client.commit(
                        {tp: reader.next[tp] for tp in reader.owned if tp in reader.next}
                    )
                except CommitRefused as refused:
                    refusals.append(refused)

    def go_on_until(readers: list[Reader], happened: Callable[[], Any]) -> None:
        patience = time.monotonic() + PATIENCE
        while not happened():
            assert time.monotonic() < patience, [reader.events for reader in readers]
            go_on(readers, 0.1)

    stayer = join(broker, topic)
    go_on_until([stayer], lambda: len(stayer.owned) == 8)
    for _ in range(2 * REPEATS):
        guest = join(broker, topic)
        go_on_until([stayer, guest], lambda: guest.told("assigned"))  # noqa: B023
        go_on([stayer, guest], 0.3)
        guest.client.close()
        go_on_until([stayer], lambda: len(stayer.owned) == 8)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and any(len(offsets) < written for offsets in seen.values()):
        if stayer.poll(0.05, most=1000):
            until = time.monotonic() + PATIENCE
        for message in stayer.messages:
            seen[message.tp].add(message.offset)
        stayer.messages.clear()
    assert [len(offsets) for offsets in seen.values()] == [written] * 8
    assert not any(refused.fatal for refused in refusals)


def test_a_pause_among_fetched_records_loses_and_repeats_none(rig, join):
    topic = rig.topic(1)
    rig.write(topic, 0, [b"x" * 1000] * 500)
    reader = join(rig.broker(), topic)
    reader.until(lambda: bool(reader.messages))
    for _ in range(3):
        reader.client.pause([Tp(topic, 0)])
        reader.client.resume([Tp(topic, 0)])
        reader.poll()
    reader.read(500)
    assert reader.offsets(Tp(topic, 0)) == list(range(500))


@on_mock
def test_a_broker_that_freezes_holds_nobody_up_for_long(join, monkeypatch):
    monkeypatch.setattr("fairlead.streams.kafka_client.COMMITTING", 0.5)
    monkeypatch.setattr("fairlead.streams.kafka_client.LEAVING", 0.5)
    with MockCluster() as cluster:
        rig = KafkaRig(cluster)
        topic = rig.topic(2)
        tps = [Tp(topic, 0), Tp(topic, 1)]
        rig.write(topic, 0, numbers(5))
        long = {"session.timeout.ms": 30_000}
        reader = join(rig.broker(kafka=long), topic).read(5)
        leaver = join(rig.broker(kafka=long), topic, group="leaver").read(5)
        freeze(cluster.pid)
        try:
            began = time.monotonic()
            with pytest.raises(
                CommitRefused, match="may not be stored: the broker has not answered"
            ) as late:
                reader.client.commit({tps[0]: 5})
            assert late.value.retriable
            assert reader.poll(0.05) == 0
            assert reader.client.ends(tps) == {}
            reader.client.pause([tps[0]])
            reader.seek(tps[0], 3)
            with pytest.raises(BrokerFault, match="has not answered"):
                reader.client.watermarks(tps[0])
            leaver.client.close()
            assert leaver.told("revoked") == tps
            assert time.monotonic() - began < 5
        finally:
            os.kill(cluster.pid, signal.SIGCONT)
        rig.write(topic, 1, numbers(2))
        reader.read(7)
        assert reader.client.committed(tps) == {tps[0]: 5, tps[1]: None}
        assert len(reader.offsets(tps[0])) == 5, "the pause was remembered"
        reader.client.resume([tps[0]])
        reader.read(9)
        assert reader.offsets(tps[0])[5:] == [3, 4], "and so was the seek"
        reader.client.close()


FROZEN = """
import sys
from fairlead.streams.broker import Tp
from fairlead.streams import kafka, kafka_client
from tests.streams.mock_cluster import freeze
kafka_client.COMMITTING = kafka_client.LEAVING = 0.3
# A rebalance of the mock takes the session less a second.
broker = kafka.KafkaBroker(sys.argv[1], kafka={"session.timeout.ms": 2000})
client = broker.client("frozen")
client.subscribe([sys.argv[2]], assigned=print, revoked=print, lost=print)
while not client.assignment():
    client.poll(0.05, 10)
freeze(int(sys.argv[3]))
try:
    client.commit({Tp(sys.argv[2], 0): 1})
except kafka_client.CommitRefused:
    print("refused")
client.close()
"""


@on_mock
def test_a_process_ends_although_its_broker_is_frozen():
    with MockCluster() as cluster:
        topic = cluster.fresh(1)
        try:
            ended = subprocess.run(
                [sys.executable, "-c", FROZEN, cluster.bootstrap, topic, str(cluster.pid)],
                capture_output=True,
                text=True,
                timeout=60,
                cwd=Path(__file__).parents[2],
            )
        finally:
            os.kill(cluster.pid, signal.SIGCONT)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count(topic) == 2
    assert "refused" in ended.stdout


def test_auto_commit_is_refused_by_name():
    for name in ("enable.auto.commit", "enable.auto.offset.store", "auto.commit.interval.ms"):
        with pytest.raises(ConfigError, match=f"'{name}'.*Fairlead commits what has finished"):
            KafkaBroker("localhost:1", kafka={name: True})
    for name, hint in (("group.id", "use group="), ("bootstrap.servers", "use bootstrap_servers=")):
        with pytest.raises(ConfigError, match=f"'{name}'.*{hint}"):
            KafkaBroker("localhost:1", kafka={name: "x"})


@pytest.mark.parametrize(
    ("kafka", "told"),
    [
        ({"no.such.thing": 1}, "no.such.thing"),
        ({"session.timeout.ms": "soon"}, "session.timeout.ms"),
        ({"fetch.wait.max.ms": -5}, "fetch.wait.max.ms"),
        ({7: 1}, "the key 7"),
        (
            {"partition.assignment.strategy": "range,cooperative-sticky"},
            "mixes cooperative and eager",
        ),
        ({"acks": 0}, "'acks': 0"),
        ({"acks": "1"}, "'acks': '1'"),
        ({"request.required.acks": 1}, "'request.required.acks': 1"),
        ({"compression.type": "nope"}, "nope"),
        ({"linger.ms": -5}, "value -5"),
        ({"delivery.report.only.error": True}, "delivery.report.only.error"),
    ],
)
def test_settings_that_librdkafka_would_refuse_are_refused_at_construction(kafka, told):
    with pytest.raises(ConfigError, match=told):
        KafkaBroker("localhost:1", kafka=kafka)


@pytest.mark.parametrize("acks", ["all", "-1", -1])
def test_dead_letters_are_acknowledged_by_all_however_that_is_said(acks):
    for name in ("acks", "request.required.acks"):
        broker = KafkaBroker("localhost:1", kafka={name: acks})
        assert producer_settings("s:1", broker.kafka)[name] == acks


@pytest.mark.parametrize("servers", ["", "  ", None])
def test_servers_must_be_named(servers):
    with pytest.raises(ConfigError, match="bootstrap_servers"):
        KafkaBroker(servers)


def test_a_users_setting_wins_over_our_default_and_goes_to_the_side_it_is_for():
    kafka = {"queued.min.messages": 7, "linger.ms": 3, "client.id": "me", "session.timeout.ms": 900}
    consumer = consumer_settings("s:1", "g", kafka, name="x", eof=False)
    assert consumer["queued.min.messages"] == 7
    assert consumer["client.id"] == "me"
    assert consumer["heartbeat.interval.ms"] == 300, (
        "a third of the session, or no session would last"
    )
    assert "linger.ms" not in consumer
    assert consumer["partition.assignment.strategy"] == "cooperative-sticky"
    producer = producer_settings("s:1", kafka)
    assert "queued.min.messages" not in producer
    assert (producer["linger.ms"], producer["acks"]) == (3, "all")


def test_each_listener_of_a_static_member_has_its_own_name():
    kafka = {"group.instance.id": "host-1"}
    assert (
        consumer_settings("s", "g", kafka, name="a", eof=False)["group.instance.id"] == "host-1-a"
    )
    assert consumer_settings("s", "g", kafka, name="", eof=False)["group.instance.id"] == "host-1"


def test_the_new_group_protocol_chooses_its_own_assignor():
    settings = consumer_settings("s", "g", {"group.protocol": "consumer"}, name="", eof=False)
    assert "partition.assignment.strategy" not in settings


def test_the_clients_complaints_are_logged_once_in_a_while(caplog):
    log = ClientLog()
    with caplog.at_level(logging.DEBUG, "fairlead.streams.kafka"):
        for number in range(3):
            log.log(logging.ERROR, "%s [%s] %s", "FAIL", "rdkafka", f"refused {number}")
        log.log(logging.INFO, "%s [%s] %s", "NOTE", "rdkafka", "hello")
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.WARNING, logging.DEBUG, logging.DEBUG, logging.INFO]


@on_mock
def test_an_outbox_whose_broker_is_away_says_so():
    with MockCluster() as cluster:
        bootstrap = cluster.bootstrap
    box = KafkaBroker(bootstrap, kafka={"message.timeout.ms": 300}).outbox()
    sent = box.send("dead", value=b"x")
    fault = sent.exception(PATIENCE)
    assert isinstance(fault, BrokerFault)
    assert "writing to 'dead' failed" in str(fault)
    assert fault.retriable
    box.close()
