"""Membership on a real wire: who keeps its partitions though it works for long, who is polled and who is not."""

import threading
import time

import pytest

from fairlead.streams import StreamApp, StreamScheduler
from fairlead.streams.kafka import KafkaBroker
from tests.streams.chaos.ledger import ASSIGNED, COMMITTING, GONE, Ledger, read
from tests.streams.chaos.spy import SpyBroker
from tests.streams.mock_cluster import MockCluster
from tests.streams.staging import Book, running, until, writing
from tests.streams.test_kafka_port import REAL, KafkaRig, RealCluster

# Seconds that a member may go without polling; the session is as long.
INTERVAL = 6.0 if REAL else 2.0


@pytest.fixture(scope="module")
def rig():
    cluster = RealCluster(REAL) if REAL else MockCluster()
    yield KafkaRig(cluster)
    cluster.close()


class Withholds(StreamScheduler):
    """Lets go of everything but the jobs of one group."""

    def schedule_consumption(self, jobs):
        for job in jobs:
            if job.group_id == "withheld":
                self.queue.lock(job)
            else:
                self.queue << job


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", [None, Withholds], ids=["gate", "own"])
def test_a_long_running_job_outlasts_the_poll_interval_and_keeps_its_partitions(
    rig, tmp_path, scheduler
):
    reports, orders = rig.topic(2), rig.topic(1)
    for partition in (0, 1):
        rig.write(reports, partition, [b"1", b"2"])
    book, go = Book(), threading.Event()

    def consume(self, messages):
        book.write("begun", self.partition)
        assert go.wait(60.0)
        book.write("done", self.partition, [message.offset for message in messages])

    kafka = {
        "max.poll.interval.ms": int(INTERVAL * 1000),
        "session.timeout.ms": int(INTERVAL * 1000),
    }
    ledger = Ledger(tmp_path / "ledger")
    broker = SpyBroker(KafkaBroker(rig.cluster.bootstrap, kafka=kafka), ledger)
    app = StreamApp(
        broker=broker,
        group=f"long-{time.time_ns()}",
        kafka=kafka,
        scheduler=scheduler,
        commit_interval="50ms",
    )
    app.topic(reports, writing(book, consume=consume), long_running=True)
    app.topic(orders, writing(book))
    with running(app):
        book.wait_for("begun", 2)
        began = time.monotonic()
        until(lambda: time.monotonic() > began + 2 * INTERVAL)  # the client looks once a second
        rig.write(orders, 0, [b"3"])
        book.wait_for("record")  # others of its group go on meanwhile
        assert not [line for line in read(tmp_path / "ledger") if line.what == GONE]
        go.set()
        until(lambda: committed(tmp_path, reports) == {f"{reports}:0": 2, f"{reports}:1": 2})
    ledger.close()
    lines = read(tmp_path / "ledger")
    given = [at for line in lines if line.what == ASSIGNED for at in line.more["at"]]
    assert sorted(given) == sorted([f"{reports}:0", f"{reports}:1", f"{orders}:0"])
    done = [(partition, offset) for partition, offsets in book.of("done") for offset in offsets]
    assert sorted(done) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def committed(folder, topic):
    """What was last committed of each partition of a topic."""
    found: dict[str, int] = {}
    for line in read(folder / "ledger"):
        if line.what == COMMITTING:
            found |= {at: n for at, n in line.more["offsets"].items() if at.startswith(topic)}
    return found


@pytest.mark.slow
def test_a_withheld_group_is_not_polled_while_others_are(rig):
    kept, free = rig.topic(1), rig.topic(1)
    rig.write(kept, 0, [b"1"])
    rig.write(free, 0, [b"1"])
    book = Book()
    polls = dict.fromkeys(("withheld", "free"), 0)

    class Counted(SpyBroker):
        """Counts the polls of each listener."""

        def client(self, group, *, name="", eof=False):
            client = super().client(group, name=name, eof=eof)
            poll = client.poll

            def counted(timeout, most):
                polls[name] += 1
                return poll(timeout, most)

            client.poll = counted  # type: ignore[method-assign]
            return client

    session = {"session.timeout.ms": int(INTERVAL * 1000)}
    broker = Counted(KafkaBroker(rig.cluster.bootstrap, kafka=session), Silent())
    app = StreamApp(broker=broker, group=f"kept-{time.time_ns()}", scheduler=Withholds)
    app.topic(kept, writing(book), subscription_group="withheld")
    app.topic(free, writing(book), subscription_group="free")
    with running(app):
        until(lambda: app.statistics().withheld)
        book.wait_for("record")
        before = dict(polls)
        for number in range(20):
            rig.write(free, 0, [b"%d" % number])
            book.wait_for("record", number + 2)
        assert polls["withheld"] == before["withheld"]
        assert polls["free"] >= before["free"] + 20
        assert {line[0] for line in book.of("record")} == {free}


class Silent(Ledger):
    """A ledger that keeps nothing."""

    def __init__(self) -> None:
        pass

    def write(self, what, **more):
        pass
