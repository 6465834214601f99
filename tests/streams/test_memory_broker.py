"""The in-memory broker: the contract of the port, then what tests can do with it."""

import threading

import pytest

from fairlead.errors import BrokerFault, CommitRefused, ConfigError, Misuse
from fairlead.streams.broker import Batch, Message, Tp
from fairlead.testing import ManualClock
from fairlead.testing.streams import Commit, MemoryBroker
from tests.streams.port_contract import PortContract, Reader, group, join, numbers

__all__ = ["group", "join"]


class MemoryRig:
    def __init__(self):
        self.clock = ManualClock()
        self.made = {
            eager: MemoryBroker(
                assignor="eager" if eager else "cooperative",
                clock=self.clock,
                max_poll_interval=60,
            )
            for eager in (False, True)
        }
        self.topics = 0

    def broker(self, *, eager=False):
        return self.made[eager]

    def short_interval(self):
        return self.made[False]

    def outstay(self):
        self.clock.advance(61)

    def topic(self, partitions):
        self.topics += 1
        for broker in self.made.values():
            broker.topic(f"topic-{self.topics}", partitions)
        return f"topic-{self.topics}"

    def write(self, topic, partition, values):
        values = list(values)
        for broker in self.made.values():
            for value in values:
                broker.write(topic, value, partition=partition)


@pytest.fixture
def rig():
    return MemoryRig()


class TestMemoryPort(PortContract):
    pass


A, B, C, D = (Tp("t", number) for number in range(4))


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def broker(clock):
    return MemoryBroker({"t": 4}, clock=clock, max_poll_interval=10)


def member(broker, **options):
    reader = Reader(broker, "g", ["t"], **options)
    reader.poll(0)
    return reader


def test_one_poll_tells_one_step_of_a_rebalance(broker):
    first = member(broker)
    second = member(broker)
    assert (first.owned, second.owned) == ({A, B, C, D}, set())
    assert broker.rebalancing("g")
    first.poll(0)
    assert first.owned == {A, B}
    second.poll(0)
    assert second.owned == {C, D}
    assert not broker.rebalancing("g")
    assert broker.holders("g") == dict.fromkeys([A, B], first.client.name) | dict.fromkeys(
        [C, D], second.client.name
    )


def test_a_member_that_does_not_poll_holds_up_the_others_until_it_is_expelled(broker, clock):
    first = member(broker)
    second = member(broker)
    second.poll(0)
    assert second.owned == set()
    clock.advance(9)
    second.poll(0)
    clock.advance(2)
    second.poll(0)
    assert second.owned == {A, B, C, D}
    assert first.client.assignment() == [A, B, C, D], "it does not know yet"
    first.poll(0)
    assert first.events[-1] == ("lost", [A, B, C, D])


def test_a_commit_is_refused_while_the_group_rebalances_and_for_good_afterwards(broker, clock):
    first = member(broker)
    member(broker)
    with pytest.raises(
        CommitRefused, match=r"t\[0\], t\[1\] were not stored.*rebalancing"
    ) as refused:
        first.client.commit({B: 1, A: 1})
    assert (refused.value.retriable, refused.value.refused) == (True, (A, B))
    broker.expire(first.client)
    with pytest.raises(CommitRefused, match="generation is gone") as refused:
        first.client.commit({A: 1})
    assert not refused.value.retriable
    assert broker.commits == []


def test_an_eager_group_refuses_the_commit_of_what_is_being_revoked():
    broker = MemoryBroker({"t": 4}, assignor="eager")
    first = member(broker)
    broker.rebalance("g")
    refused = []

    def revoked(tps):
        with pytest.raises(CommitRefused) as caught:
            first.client.commit({A: 1})
        refused.append(caught.value.retriable)

    first.on_revoked = revoked
    first.poll(0)
    assert (refused, first.owned) == ([True], set())
    first.poll(0)
    assert first.owned == {A, B, C, D}
    first.on_revoked = lambda tps: first.client.commit({A: 1})
    first.client.close()
    assert broker.offsets("g") == {A: 1}, "leaving is no rebalance"


def test_ghosts_take_their_share_and_give_it_back(broker):
    reader = member(broker)
    broker.add_member("g", ["t"])
    reader.poll(0)
    assert reader.owned == {A, B}
    assert broker.holders("g") == {A: "client-1", B: "client-1", C: "ghost", D: "ghost"}
    assert not broker.rebalancing("g")
    with pytest.raises(ConfigError, match="already"):
        broker.add_member("g", ["t"])
    broker.remove_member("g")
    reader.poll(0)
    assert reader.owned == {A, B, C, D}


def test_revokes_and_loses_what_a_test_names(broker):
    reader = member(broker)
    broker.revoke(reader.client, [A, Tp("x", 1)])
    broker.lose(reader.client, [B])
    reader.poll(0)
    assert reader.events[1:] == [("lost", [B]), ("revoked", [A])]
    reader.poll(0)
    assert reader.events[3:] == [("assigned", [A, B])]


def test_members_of_one_group_may_read_different_topics(broker):
    broker.topic("u", 2)
    first = Reader(broker, "g", ["t"])
    second = Reader(broker, "g", ["u"])
    for reader in (first, second, first):
        reader.poll(0)
    assert first.owned == {A, B, C, D}
    assert second.owned == {Tp("u", 0), Tp("u", 1)}


def test_a_topic_that_grows_is_shared_out_again(broker):
    reader = member(broker)
    broker.topic("t", 6)
    reader.poll(0)
    assert reader.events[1:] == [("assigned", [Tp("t", 4), Tp("t", 5)])]


def test_notes_each_commit_and_whether_its_member_held_the_partition(broker):
    reader = member(broker)
    broker.add_member("g", ["t"])
    reader.poll(0)
    reader.client.commit({A: 3, C: 5})
    assert broker.commits == [
        Commit("g", "client-1", A, 3, True),
        Commit("g", "client-1", C, 5, False),
    ]
    assert broker.offsets("g") == {A: 3, C: 5}


def test_faults_come_in_turn_and_only_to_the_group_named(broker):
    reader = member(broker)
    broker.fail("poll", BrokerFault("hiccup", retriable=True), times=2, group="g")
    broker.fail("commit", BrokerFault("full"), group="other")
    broker.fail("commit", BrokerFault("busy", retriable=True))
    for _ in range(2):
        with pytest.raises(BrokerFault, match="hiccup"):
            reader.poll(0)
    reader.poll(0)
    with pytest.raises(CommitRefused, match="busy"):
        reader.client.commit({A: 1})
    reader.client.commit({A: 1})
    broker.fail("watermarks", BrokerFault("slow"))
    with pytest.raises(BrokerFault, match="slow"):
        reader.client.watermarks(A)
    broker.fail("send", BrokerFault("no room"))
    assert str(broker.outbox().send("dead").exception()) == "no room"
    assert broker.records("dead") == []


def test_a_fatal_fault_ends_its_client(broker):
    reader = member(broker)
    broker.fail("poll", BrokerFault("fenced", fatal=True))
    for _ in range(2):
        with pytest.raises(BrokerFault, match="fenced"):
            reader.poll(0)
    with pytest.raises(CommitRefused) as refused:
        reader.client.commit({A: 1})
    assert refused.value.fatal
    reader.client.close()
    assert broker.holders("g") == {}


def test_records_without_a_key_go_to_each_partition_in_turn_topic_by_topic():
    broker = MemoryBroker({"orders": 2, "reports": 2})
    for _ in range(4):
        broker.write("orders", b"x")
        broker.write("reports", b"x")
    for topic in ("orders", "reports"):
        assert [message.partition for message in broker.records(topic)] == [0, 0, 1, 1]


def test_a_broker_that_is_away_brings_nothing_and_refuses(broker):
    reader = member(broker)
    broker.write("t", b"x", partition=0)
    broker.down()
    assert reader.poll(0.01) == 0
    with pytest.raises(CommitRefused) as refused:
        reader.client.commit({A: 1})
    assert refused.value.retriable
    with pytest.raises(BrokerFault, match="cannot be reached"):
        reader.client.committed([A])
    broker.up()
    assert reader.poll(0) == 1


def test_gaps_and_trimmed_records_are_passed_over(broker):
    reader = member(broker)
    for _ in range(4):
        broker.write("t", partition=0)
    broker.skip(A, 5)
    broker.write("t", partition=0)
    broker.trim(A, 2)
    reader.poll(0)
    assert reader.offsets(A) == [2, 3, 9]
    assert reader.client.watermarks(A) == (2, 10)
    reader.seek(A, 99)
    reader.next.clear()
    reader.poll(0)
    assert reader.offsets(A)[3:] == [2, 3, 9], "out of range begins anew"


def test_begins_at_the_end_where_that_is_wanted():
    broker = MemoryBroker({"t": 1}, reset="latest")
    broker.write("t", b"old")
    reader = member(broker)
    broker.write("t", b"new")
    reader.poll(0)
    assert [m.value for m in reader.messages] == [b"new"]


def test_every_partition_gets_its_turn(broker):
    for tp in (A, B, C):
        for _ in range(10):
            broker.write("t", partition=tp.partition)
    reader = Reader(broker, "g", ["t"])
    for _ in range(4):
        reader.poll(0, most=5)
    assert [m.partition for m in reader.messages[::5]] == [0, 1, 2, 0]


def test_a_key_stays_in_its_partition_and_others_go_round(broker):
    keyed = {broker.write("t", key=b"ann").partition for _ in range(5)}
    assert len(keyed) == 1
    assert sorted(broker.write("t").partition for _ in range(8)) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_missing_topic_is_complained_of_once_and_read_when_it_is_there():
    broker = MemoryBroker(partitions=0)
    reader = Reader(broker, "g", ["t"])
    with pytest.raises(BrokerFault, match="topic 't' does not exist") as fault:
        reader.poll(0)
    assert fault.value.retriable
    assert reader.poll(0) == 0
    with pytest.raises(BrokerFault, match="does not exist"):
        broker.write("t")
    broker.topic("t", 1)
    broker.write("t")
    assert reader.poll(0) == 1


def test_lag_counts_what_is_not_committed(broker):
    reader = member(broker)
    for tp in (A, A, A, B):
        broker.write("t", partition=tp.partition)
    assert broker.lag("g") == 4
    reader.client.commit({A: 2})
    assert broker.lag("g") == 2
    broker.trim(B, 1)
    assert broker.lag("g") == 1


def test_a_waiting_poll_wakes_for_a_record_and_for_a_rebalance(broker):
    reader = member(broker)
    polled: list[int] = []

    def listen():
        polled.append(reader.poll(10))

    thread = threading.Thread(target=listen)
    thread.start()
    broker.add_member("g", ["t"])
    assert broker.wait_for(
        lambda: len(broker.holders("g")) == 4 and "ghost" in broker.holders("g").values()
    )
    broker.write("t", partition=0)
    thread.join(10)
    assert polled == [1]
    assert reader.owned == {A, B}


def test_two_threads_in_one_client_are_refused(broker):
    reader = member(broker)
    caught = []

    def intrude():
        try:
            reader.client.commit({A: 1})
        except Misuse as error:
            caught.append(str(error))

    def revoked(tps):
        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join()

    reader.on_revoked = revoked
    broker.revoke(reader.client)
    reader.poll(0)
    assert caught == [
        "client 'client-1' is used by two threads at once; only its listener may call it"
    ]
    reader.poll(0)
    intrude()
    assert len(caught) == 1, "one thread after another is fine"


def test_counts_polls_so_that_a_test_can_see_none(broker):
    reader = member(broker)
    before = reader.client.polls
    reader.poll(0)
    assert reader.client.polls == before + 1


def test_a_wrong_assignor_is_refused():
    with pytest.raises(ConfigError, match="assignor is 'lazy'"):
        MemoryBroker(assignor="lazy")  # type: ignore[arg-type]


def test_a_batch_of_plain_messages():
    batch = Batch(A, [Message("t", 0, offset) for offset in (4, 5, 9)])
    assert (len(batch), batch.first, batch.last, batch.next_offset) == (3, 4, 9, 10)
    assert batch[1:].offsets == [5, 9]
    assert repr(batch) == "<Batch t[0] offsets 4 to 9, 3 messages>"
    assert numbers(2, 3) == [b"3", b"4"]
