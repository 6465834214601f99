"""Work that outlasts `max.poll.interval.ms`: it is named with its cure, `self.lost` is true in it, others go on."""

import threading

import pytest

from fairlead.streams.schedulers import OneAtATime
from fairlead.testing.streams import MemoryBroker
from tests.streams.staging import PATIENCE, Book, app_on, running, until, writing

INTERVAL = 0.4  # seconds
KAFKA = {"max.poll.interval.ms": int(INTERVAL * 1000)}


def waits_until_lost(book: Book, go_on: threading.Event):
    def consume(self, messages):
        book.write("begun", self.topic, self.partition)
        until(lambda: self.lost or go_on.is_set())
        book.write("ended", self.lost)
        if not go_on.is_set():
            go_on.wait(PATIENCE)

    return writing(book, consume=consume)


@pytest.mark.parametrize("scheduler", [None, OneAtATime], ids=["gate", "own"])
def test_the_first_late_call_sees_that_it_is_lost_and_its_topic_is_named_once(scheduler, caplog):
    broker = MemoryBroker({"videos": 1}, max_poll_interval=INTERVAL)
    broker.write("videos", b"1")
    book, go_on = Book(), threading.Event()
    app = app_on(broker, kafka=KAFKA, scheduler=scheduler)
    app.topic("videos", waits_until_lost(book, go_on), batch_size=7)
    with running(app):
        book.wait_for("ended")
        assert book.of("ended")[0] == (True,)
        go_on.set()
        assert broker.wait_for(lambda: sum(broker.offsets("g").values()) == 1, PATIENCE)
    named = [one for one in caplog.messages if "long_running=True" in one]
    assert len(named) == 1
    for word in ("Writing.consume has run for", "videos[0]", "'videos'", "(0.4 s)", "than 7"):
        assert word in named[0]
    assert any("starts anew: Writing.consume has run for" in one for one in caplog.messages)


def test_other_partitions_of_the_group_go_on_beside_late_work():
    broker = MemoryBroker({"videos": 1, "orders": 1}, max_poll_interval=INTERVAL)
    broker.write("videos", b"1")
    book, go_on = Book(), threading.Event()
    app = app_on(broker, kafka=KAFKA)
    app.topic("videos", waits_until_lost(book, go_on))
    app.topic("orders", writing(book))
    with running(app):
        book.wait_for("ended")
        broker.write("orders", b"2")
        book.wait_for("record")
        go_on.set()
        assert broker.wait_for(lambda: sum(broker.offsets("g").values()) == 2, PATIENCE)


def test_work_of_a_long_running_topic_is_never_late(caplog):
    broker = MemoryBroker({"videos": 1}, max_poll_interval=INTERVAL)
    broker.write("videos", b"1")
    book, go_on = Book(), threading.Event()
    app = app_on(broker, kafka=KAFKA)
    app.topic("videos", waits_until_lost(book, go_on), long_running=True)
    with running(app):
        book.wait_for("begun")
        listener = app.runtime.listeners["default"]
        began = listener.polled_at
        until(lambda: listener.polled_at > began + 3 * INTERVAL)
        go_on.set()
        assert broker.wait_for(lambda: sum(broker.offsets("g").values()) == 1, PATIENCE)
    assert book.of("ended") == [(False,)]
    assert not [one for one in caplog.messages if "long_running" in one or "anew" in one]
