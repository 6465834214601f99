"""A group whose scheduler failed begins again where it had finished, and stays the member it was."""

import threading

import pytest

from fairlead.errors import BrokerFault
from fairlead.streams.broker import Tp
from fairlead.testing.streams import MemoryBroker
from tests.streams.mock_cluster import MockCluster
from tests.streams.staging import (
    Book,
    app_on,
    client_of,
    filled,
    running,
    scheduler_of,
    until,
    wait_committed,
    writing,
)
from tests.streams.test_scheduler_zoo import AsTheyCome


class Often(AsTheyCome):
    """Fails every third time in one method."""

    method = ""

    def __init__(self, queue):
        super().__init__(queue)
        self.calls = 0
        self.left = 4

    def _fail(self, method):
        self.calls += method == self.method
        if method == self.method and self.left and not self.calls % 3:
            self.left -= 1
            raise RuntimeError("cannot schedule")

    def misbehave(self, job):
        self._fail("schedule_consumption")

    def manage(self):
        self._fail("manage")


class OftenInConsumption(Often):
    method = "schedule_consumption"


class OftenInManage(Often):
    method = "manage"


OFTEN = [OftenInConsumption, OftenInManage]


@pytest.mark.parametrize("parallel_by", [None, lambda message: message.offset % 3])
@pytest.mark.parametrize("scheduler", OFTEN)
def test_a_raise_causes_no_rebalance_and_nothing_is_lost_or_out_of_order(scheduler, parallel_by):
    broker = filled({"orders": 2, "reports": 2}, 60)
    book = Book()
    more = {"revoked": lambda self: book.write("revoked")}
    app = app_on(broker, scheduler=scheduler)
    how = {"parallel_by": parallel_by, "batch_size": 7}
    app.topic("orders", writing(book, **more), subscription_group="bad", **how)
    app.topic("reports", writing(book, **more), subscription_group="good", **how)
    with running(app):
        until(lambda: len(broker.holders("g")) == 4 and not broker.rebalancing("g"))
        members = [client_of(app, name) for name in ("bad", "good")]
        round_ = broker.group("g").round
        wait_committed(broker, 240)
        until(lambda: app.runtime.calls.raised == 4)  # several may be one reset
        until(lambda: sum(one.resets for one in app.statistics().groups.values()))
        assert broker.group("g").round == round_
        assert members == [client_of(app, name) for name in ("bad", "good")]
        assert not book.of("revoked")
    seen: dict[tuple[str, int, int], list[int]] = {}
    for topic, partition, offset, _ in book.of("record"):
        seen.setdefault((topic, partition, offset % 3 if parallel_by else 0), []).append(offset)
    for (_, _, lane), offsets in seen.items():
        wanted = [at for at in range(60) if not parallel_by or at % 3 == lane]
        assert sorted(set(offsets)) == wanted
        firsts = list(dict.fromkeys(offsets))
        assert firsts == wanted, "a record was seen before one that precedes it"


@pytest.mark.parametrize("parallel_by", [None, lambda message: message.key])
def test_what_ran_when_the_group_was_reset_reaches_nobody_and_is_run_again_after_it(parallel_by):
    class RaisesOnDemand(AsTheyCome):
        fail = threading.Event()

        def manage(self):
            if self.fail.is_set():
                self.fail.clear()
                raise RuntimeError("cannot schedule")

    go = threading.Event()
    book = Book()

    def consume(self, messages):
        book.write("begun", [message.offset for message in messages])
        assert go.wait(20.0)
        book.write("ended", [message.offset for message in messages])

    broker = filled({"orders": 1}, 5)
    app = app_on(broker, scheduler=RaisesOnDemand, tick_interval="10ms")
    shutdown = {"shutdown": lambda self: book.write("shutdown")}
    app.topic("orders", writing(book, consume=consume, **shutdown), parallel_by=parallel_by)
    with running(app):
        book.wait_for("begun")
        listener = app.runtime.listeners["default"]
        generation = listener.holdings[Tp("orders", 0)].partition.generation
        RaisesOnDemand.fail.set()
        until(lambda: listener.counts.resets)
        until(lambda: app.runtime.queue.statistics["enqueued"])
        assert listener.holdings[Tp("orders", 0)].partition.generation > generation
        assert len(book.of("begun")) == 1, "two calls at once of one partition, or key"
        commits = listener.counts.commits
        go.set()
        book.wait_for("ended", 2)
        wait_committed(broker, 5)
        assert listener.counts.commits == commits + 1
    assert [line[0] for line in book.lines] == ["begun", "ended"] * 2 + ["shutdown"]


def test_a_partition_that_comes_while_a_group_rests_is_read():
    class RaisesOnce(AsTheyCome):
        raised = False

        def misbehave(self, job):
            if not self.raised:
                self.raised = True
                raise RuntimeError("cannot schedule")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fairlead.streams.recovery.FIRST", 0.4)
        broker = MemoryBroker({"orders": 2})
        broker.add_member("g", ["orders"])
        book = Book()
        app = app_on(broker, scheduler=RaisesOnce)
        app.topic("orders", writing(book), subscription_group="bad")
        with running(app):
            until(lambda: len(app.runtime.assignments.get("orders", ())) == 1)
            for number in range(2):
                broker.write("orders", b"1", partition=number)
            listener = app.runtime.listeners["bad"]
            until(lambda: listener.counts.resets)
            broker.remove_member("g")
            until(lambda: len(app.runtime.assignments["orders"]) == 2)
            wait_committed(broker, 2)


def test_a_client_that_is_broken_leaves_and_another_one_joins():
    broker = filled({"orders": 1}, 3)
    app = app_on(broker)
    app.topic("orders", writing(Book()))
    with running(app):
        wait_committed(broker, 3)
        first = client_of(app)
        broker.fail("poll", BrokerFault("gone", fatal=True))
        until(lambda: app.runtime.listeners["default"]._client not in (None, first))
        broker.write("orders", b"1", partition=0)
        wait_committed(broker, 4)


@pytest.mark.parametrize("scheduler", OFTEN)
def test_on_the_wire_the_other_group_sees_no_rebalance(scheduler):
    pytest.importorskip("confluent_kafka")
    from confluent_kafka import Producer

    from fairlead.streams import StreamApp

    with MockCluster() as cluster:
        topics = [cluster.topic(name, 2) for name in ("orders", "reports")]
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        for number in range(400):
            producer.produce(topics[number % 2], b"%d" % number, partition=number // 2 % 2)
        assert not producer.flush(20)
        book = Book()
        app = StreamApp(
            cluster.bootstrap,
            "g",
            scheduler=scheduler,
            kafka={"session.timeout.ms": 2000},
            commit_interval="50ms",
        )
        app.topic("orders", writing(book), subscription_group="bad", batch_size=10)
        app.topic("reports", writing(book), subscription_group="good", batch_size=10)
        with running(app, 10.0):
            listeners = app.runtime.listeners.values()
            until(lambda: sum(len(one.holdings) for one in listeners) == 4, 30.0)
            until(lambda: app.runtime.calls.raised == 4, 30.0)
            until(lambda: sum(one.counts.resets for one in listeners), 30.0)
            wanted = {(topic, part, at) for topic in topics for part in (0, 1) for at in range(100)}
            book.wait(lambda: {line[1:4] for line in book.lines} == wanted, 30.0)
            # One each, as they joined; the mock may need a second to even things out.
            assert all(one.counts.rebalances <= 2 for one in listeners)
            assert not any(one.lost for each in listeners for one in each.holdings.values())


def test_partitions_that_go_at_the_very_end_are_told_farewell_all_of_them():
    book = Book()
    slow = threading.Event()

    def revoked(self):
        slow.wait(0.05)
        book.write("revoked", self.partition)

    broker = filled({"orders": 4}, 1)
    app = app_on(broker, concurrency=1)
    app.topic("orders", writing(book, revoked=revoked))
    app.start()
    wait_committed(broker, 4)
    queue = app.runtime.queue
    drain = queue.drain

    def drained(timeout):
        ended = drain(timeout)
        if ended:
            broker.lose(client_of(app))
            until(lambda: queue.statistics["busy"])
        return ended

    queue.drain = drained  # type: ignore[method-assign]
    app.stop(10.0)
    assert sorted(book.of("revoked")) == [(0,), (1,), (2,), (3,)]
    assert queue.statistics["busy"] == 0


def test_the_end_of_an_empty_partition_is_told_though_the_group_is_reset_before():
    """The broker says it once: nothing is read again of a partition of which nothing was read."""

    class WithholdsTheFirst(AsTheyCome):
        withheld = 0

        def schedule_eofed(self, jobs):
            if self.withheld:
                self._push(jobs)
                return
            for job in jobs:
                self.queue.lock(job)
            self.withheld = len(jobs)

    book = Book()
    app = app_on(MemoryBroker({"orders": 2}), scheduler=WithholdsTheFirst)
    app.topic("orders", writing(book, eofed=lambda self: book.write("eofed", self.partition)))
    with running(app):
        scheduler = scheduler_of(app)
        until(lambda: scheduler.withheld)
        first = scheduler.withheld
        app.runtime.reset("default", "by the test")
        book.wait_for("eofed", 2)
        until(lambda: app.statistics().groups["default"].resets == 1)
        app.runtime.reset("default", "again")
        until(lambda: app.statistics().groups["default"].resets == 2)
    assert first
    assert sorted(book.of("eofed")) == [(0,), (1,)]
