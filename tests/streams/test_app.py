"""Batches end to end on the in-memory broker: commits, retries, dead letters, keys, ticks, ends, and going away."""

import asyncio
import threading
import time
from itertools import pairwise
from typing import Any

import pytest

from fairlead.errors import BrokerFault, ConfigError, FairleadError, Misuse
from fairlead.streams import Consumer, StreamScheduler
from fairlead.streams.broker import Tp
from fairlead.streams.schedulers import FairByTopic, OneAtATime
from fairlead.testing.streams import MemoryBroker
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

EVERY = pytest.mark.parametrize("scheduler", [None, FairByTopic, OneAtATime])


@EVERY
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_every_record_is_consumed_in_order_and_committed(scheduler, kind):
    broker = filled({"orders": 3, "reports": 2}, 250)
    book = Book()
    threads = set()

    class Coroutines(Consumer):
        async def consume(self, messages):
            threads.add(threading.current_thread().name)
            await asyncio.sleep(0)
            for message in messages:
                book.write("record", message.topic, message.partition, message.offset)

    consumer = Coroutines if kind == "async" else writing(book)
    app = app_on(broker, scheduler=scheduler)
    app.topic("orders", consumer, batch_size=40)
    app.topic("reports", consumer, subscription_group="slow", long_running=True)
    with running(app):
        wait_committed(broker, 1250)
        assert dict(app.runtime.assignments) == {"orders": (0, 1, 2), "reports": (0, 1)}
    by_partition: dict[tuple[str, int], list[int]] = {}
    for topic, partition, offset, *_ in book.of("record"):
        by_partition.setdefault((topic, partition), []).append(offset)
    assert len(by_partition) == 5
    assert all(offsets == list(range(250)) for offsets in by_partition.values())
    assert all(commit.owned for commit in broker.commits)
    if kind == "async":
        assert threads == {"fairlead-stream-loop"}


@EVERY
def test_a_record_that_fails_is_tried_again_alone_and_the_others_go_on(scheduler):
    broker = filled({"orders": 2}, 5)
    book = Book()

    def consume(self, messages):
        for message in messages:
            book.write("try", message.partition, message.offset, time.monotonic())
            if (message.partition, message.offset) == (0, 3) and len(tries(book, 0, 3)) < 4:
                raise ValueError("not yet")
            book.write("record", message.partition, message.offset)

    app = app_on(broker, scheduler=scheduler)
    app.topic("orders", writing(book, consume=consume), retry_backoff="40ms", max_retries=1)
    with running(app):
        wait_committed(broker, 10)
        at = tries(book, 0, 3)
        assert len(at) == 4
        gaps = [after - before for before, after in pairwise(at)]
        assert [gap >= least for gap, least in zip(gaps, (0.04, 0.08, 0.16), strict=True)] == [
            True
        ] * 3
        assert app.statistics().groups["default"].failures == 3
    assert [offset for partition, offset in book.of("record") if partition == 1] == list(range(5))


def tries(book: Book, partition: int, offset: int) -> list[float]:
    return [line[2] for line in book.of("try") if line[:2] == (partition, offset)]


@EVERY
def test_a_dead_letter_keeps_key_and_value_and_says_why(scheduler):
    broker = MemoryBroker({"orders": 1, "dead": 1})
    for number in range(6):
        broker.write("orders", b"%d" % number, key=b"k%d" % number, headers=[("own", b"1")])
    book = Book()

    def consume(self, messages):
        for message in messages:
            book.write("try", 0, message.offset, time.monotonic())
            if message.value == b"2":
                raise ValueError("poison")
            book.write("record", message.offset)

    app = app_on(broker, scheduler=scheduler)
    app.topic(
        "orders",
        writing(book, consume=consume),
        max_retries=2,
        retry_backoff="1ms",
        dead_letter="dead",
    )
    with running(app):
        wait_committed(broker, 6)
        assert app.statistics().groups["default"].dead_letters == 1
    (letter,) = broker.records("dead")
    assert (letter.key, letter.value) == (b"k2", b"2")
    headers = dict(letter.headers)
    assert headers["own"] == b"1"
    assert b"poison" in headers["fairlead-error"]
    assert headers["fairlead-topic"] == b"orders"
    assert headers["fairlead-partition"] == b"0"
    assert headers["fairlead-offset"] == b"2"
    assert len(tries(book, 0, 2)) == 3
    assert {offset for (offset,) in book.of("record")} == {0, 1, 3, 4, 5}


@pytest.mark.parametrize("parallel_by", [None, lambda message: b"one"])
def test_without_retries_each_record_is_tried_once_and_the_bad_one_alone_is_buried(parallel_by):
    broker = filled({"orders": 1}, 6)
    book = Book()

    def consume(self, messages):
        for message in messages:
            book.write("try", message.offset)
            if message.offset == 2:
                raise ValueError("poison")

    app = app_on(broker)
    app.topic(
        "orders",
        writing(book, consume=consume),
        max_retries=0,
        dead_letter="dead",
        parallel_by=parallel_by,
    )
    with running(app):
        wait_committed(broker, 6)
    assert book.of("try") == [(offset,) for offset in range(6)]
    assert [letter.value for letter in broker.records("dead")] == [b"orders-0-2"]


def test_a_dead_letter_that_is_refused_is_sent_again_and_nothing_is_skipped(monkeypatch):
    monkeypatch.setattr("fairlead.streams.burials.AGAIN", 0.01)
    broker = filled({"orders": 1}, 1)
    broker.fail("send", BrokerFault("full", retriable=True), times=3)
    app = app_on(broker)
    app.topic("orders", failing(), max_retries=0, retry_backoff="1ms", dead_letter="dead")
    with running(app):
        assert broker.wait_for(lambda: broker.offsets("g").get(Tp("orders", 0)) == 1)
    assert [letter.value for letter in broker.records("dead")] == [b"orders-0-0"] * 1


@pytest.mark.parametrize("dead_letter", [None, "dead"])
def test_an_error_that_cannot_tell_its_text_fails_its_record_and_frees_its_worker(dead_letter):
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    broker = filled({"orders": 2}, 1)
    book = Book()

    def consume(self, messages):
        book.write("try", self.partition)
        if self.partition == 0 and (dead_letter or len(book.of("try")) < 4):
            raise Mute

    app = app_on(broker, concurrency=1)
    app.topic(
        "orders",
        writing(book, consume=consume),
        retry_backoff="1ms",
        max_retries=1,
        dead_letter=dead_letter,
    )
    with running(app):
        wait_committed(broker, 2)
    for letter in broker.records("dead") if dead_letter else ():
        assert dict(letter.headers)["fairlead-error"] == b"Mute, whose text cannot be told"


def failing() -> type[Consumer]:
    class Failing(Consumer):
        def consume(self, messages):
            raise ValueError("no")

    return Failing


def test_without_a_dead_letter_topic_a_failing_partition_never_skips():
    broker = filled({"orders": 1}, 3)
    book = Book()

    def consume(self, messages):
        book.write("try", [message.offset for message in messages])
        raise ValueError("no")

    app = app_on(broker)
    app.topic("orders", writing(book, consume=consume), max_retries=0, retry_backoff="1ms")
    with running(app):
        book.wait_for("try", 6)
    assert book.of("try")[0] == ([0, 1, 2],)
    assert all(offsets == [0] for (offsets,) in book.of("try")[1:])
    assert not any(broker.offsets("g").values())


def test_keys_run_in_parallel_in_order_and_never_twice_at_once():
    broker = MemoryBroker({"orders": 1})
    keys = [b"a", b"b", b"c", b"d"]
    for number in range(200):
        broker.write("orders", b"%d" % number, key=keys[number % 4])
    book = Book()
    lock, most = threading.Lock(), [0]
    inside: list[set[Any]] = []
    barrier = threading.Barrier(4)

    def consume(self, messages):
        own = {message.key for message in messages}
        with lock:
            assert not own & {key for call in inside for key in call}, "one key in two calls"
            inside.append(own)
            most[0] = max(most[0], len(inside))
        if not book.of("record"):
            barrier.wait(10.0)  # only if all four run at once
        for message in messages:
            book.write("record", message.key, message.offset)
        with lock:
            inside.remove(own)

    app = app_on(broker, concurrency=4)
    app.topic("orders", writing(book, consume=consume), parallel_by=lambda m: m.key, batch_size=10)
    with running(app):
        wait_committed(broker, 200)
    assert most[0] == 4
    for key in keys:
        own = [offset for named, offset in book.of("record") if named == key]
        assert own == sorted(own)
        assert len(own) == 50


@EVERY
def test_running_calls_never_exceed_concurrency(scheduler):
    broker = filled({"orders": 6}, 60)
    lock, inside, most = threading.Lock(), [0], [0]

    class Counting(Consumer):
        async def consume(self, messages):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            await asyncio.sleep(0.002)
            with lock:
                inside[0] -= 1

    app = app_on(broker, concurrency=3, scheduler=scheduler)
    app.topic("orders", Counting, batch_size=10, parallel_by=lambda message: message.offset % 5)
    with running(app):
        wait_committed(broker, 360)
    assert most[0] == (1 if scheduler is OneAtATime else 3)


def test_what_is_committed_is_never_beyond_the_contiguous_prefix_with_keys():
    broker = MemoryBroker({"orders": 1})
    for number in range(6):
        broker.write("orders", key=b"slow" if number == 2 else b"k%d" % number)
    go = threading.Event()
    book = Book()

    def consume(self, messages):
        if any(message.key == b"slow" for message in messages):
            book.write("slow")
            assert go.wait(10.0)
        for message in messages:
            book.write("record", message.offset)

    app = app_on(broker, concurrency=8)
    app.topic("orders", writing(book, consume=consume), parallel_by=lambda m: m.key)
    with running(app):
        book.wait_for("record", 5)
        assert broker.wait_for(lambda: broker.offsets("g").get(Tp("orders", 0)) == 2)
        go.set()
        wait_committed(broker, 6)
    assert list(dict.fromkeys(commit.offset for commit in broker.commits)) == [0, 2, 6]


class Withholding(StreamScheduler):
    """Locks what it is given until it is told to let go."""

    def __init__(self, queue):
        super().__init__(queue)
        self.held = []
        self.open = False

    def schedule_consumption(self, jobs):
        for job in jobs:
            if job.topic == "orders" and not self.open:
                self.queue.lock(job)
                self.held.append(job)
            else:
                self.queue << job

    def manage(self):
        if self.open:
            held, self.held = self.held, []
            for job in held:
                self.queue.release(job)


def test_a_withheld_group_is_not_polled_and_other_groups_are():
    broker = filled({"orders": 1, "reports": 1}, 3)
    book = Book()
    app = app_on(broker, scheduler=Withholding, withheld_limit="50ms")
    app.topic("orders", writing(book))
    app.topic("reports", writing(book), subscription_group="other")
    with running(app):
        scheduler = scheduler_of(app)
        until(lambda: scheduler.held)
        book.wait_for("record", 3)
        polled = app.runtime.listeners["default"].polled_at
        for number in range(50):
            broker.write("reports", b"%d" % number, partition=0)
        book.wait_for("record", 53)
        assert app.runtime.listeners["default"].polled_at == polled
        (held,) = app.statistics().withheld
        assert (held.topic, held.state) == ("orders", "locked")
        assert "locked by Withholding" in app.explain(scheduler.held[0])
        until(lambda: app.runtime.withheld_reports)
        scheduler.open = True
        wait_committed(broker, 56)


def test_under_a_users_scheduler_batches_come_in_rounds_with_a_poll_between():
    broker = filled({"orders": 2}, 3)
    go = threading.Event()
    book = Book()

    def consume(self, messages):
        book.write("begun", self.partition, messages[0].offset)
        if (self.partition, messages[0].offset) == (1, 0):
            assert go.wait(10.0)

    app = app_on(broker, scheduler=FairByTopic)
    app.topic("orders", writing(book, consume=consume), batch_size=1)
    with running(app):
        book.wait_for("begun", 2)
        listener = app.runtime.listeners["default"]
        until(lambda: len(app.runtime.queue.running()) == 1)
        polls, beat = client_of(app).polls, listener.beat_at
        until(lambda: listener.beat_at > beat + 0.15)
        assert sorted(book.of("begun")) == [(0, 0), (1, 0)]
        assert client_of(app).polls == polls
        go.set()
        wait_committed(broker, 6)
        assert client_of(app).polls > polls + 1


def test_a_long_running_job_keeps_its_partition_paused_and_its_membership(caplog):
    broker = filled({"reports": 1, "orders": 1}, 2, max_poll_interval=0.3)
    go = threading.Event()
    book = Book()

    def consume(self, messages):
        book.write("begun")
        assert go.wait(10.0)
        for message in messages:
            book.write("record", message.offset)

    app = app_on(broker, scheduler=FairByTopic)
    app.topic("reports", writing(book, consume=consume), long_running=True, batch_size=1)
    with running(app):
        book.wait_for("begun")
        (held,) = app.runtime.listeners["default"].holdings.values()
        assert held.paused
        time.sleep(0.7)  # longer than a member may go without polling
        assert not held.lost
        go.set()
        assert broker.wait_for(lambda: broker.offsets("g").get(Tp("reports", 0)) == 2)
        until(lambda: not held.paused)
    assert book.of("record") == [(0,), (1,)]
    assert all(commit.owned for commit in broker.commits)


@EVERY
def test_a_partition_lost_in_mid_run_skips_user_code_and_never_commits(scheduler):
    broker = filled({"orders": 1}, 4)
    go = threading.Event()
    book = Book()

    def consume(self, messages):
        first = not book.of("begun")
        book.write("begun")
        if first:
            assert go.wait(10.0)
            book.write("lost", self.lost)
        book.write("record", [message.offset for message in messages])

    app = app_on(broker, scheduler=scheduler, concurrency=1)
    app.topic(
        "orders",
        writing(book, consume=consume, revoked=lambda self: book.write("revoked")),
        long_running=True,
        batch_size=2,
    )
    with running(app):
        book.wait_for("begun")
        listener = app.runtime.listeners["default"]
        (old,) = listener.holdings.values()
        broker.lose(client_of(app))
        until(lambda: old.lost)
        go.set()
        book.wait_for("revoked")
        wait_committed(broker, 4)
        (new,) = listener.holdings.values()
        assert new.partition.generation > old.partition.generation
    assert book.of("lost") == [(True,)]
    # The first batch is run again by its new owner; what the old one did was not committed.
    assert book.of("record")[:3] == [([0, 1],), ([0, 1],), ([2, 3],)]
    assert next(one.offset for one in broker.commits if one.offset) in (2, 4)


@pytest.mark.parametrize("going", ["revoke", "lose"])
@pytest.mark.parametrize("long_running", [True, False])
@pytest.mark.parametrize("parallel_by", [None, lambda message: message.key])
def test_a_partition_that_comes_back_waits_for_what_still_runs_of_it(
    parallel_by, long_running, going
):
    broker = filled({"orders": 1}, 3)
    go = threading.Event()
    book = Book()

    def consume(self, messages):
        book.write("begun", [message.offset for message in messages])
        assert go.wait(20.0)
        book.write("ended", self.lost)

    told = {name: lambda self, name=name: book.write(name) for name in ("revoked", "shutdown")}
    app = app_on(broker, concurrency=4)
    app.topic(
        "orders",
        writing(book, consume=consume, **told),
        long_running=long_running,
        parallel_by=parallel_by,
    )
    with running(app):
        book.wait_for("begun")
        listener = app.runtime.listeners["default"]
        (old,) = listener.holdings.values()
        getattr(broker, going)(client_of(app))
        until(lambda: old.lost)
        until(lambda: app.runtime.queue.statistics["enqueued"] == 2)
        assert "waits for another job of orders[0] to end" in app.explain("orders", 0)
        assert book.lines == [("begun", [0, 1, 2])]
        go.set()
        wait_committed(broker, 3)
    assert book.lines == [
        ("begun", [0, 1, 2]),
        ("ended", True),
        ("revoked",),
        ("begun", [0, 1, 2]),
        ("ended", False),
        ("shutdown",),
    ]


def test_a_partition_that_comes_back_to_a_call_that_never_ends_keeps_nobody_from_stopping():
    broker = filled({"orders": 1}, 3)
    go = threading.Event()
    book = Book()

    def consume(self, messages):
        book.write("begun")
        go.wait(20.0)

    app = app_on(broker, concurrency=4)
    app.topic("orders", writing(book, consume=consume), long_running=True)
    with running(app, grace=0.2):
        book.wait_for("begun")
        (old,) = app.runtime.listeners["default"].holdings.values()
        broker.lose(client_of(app))
        until(lambda: old.lost)
        until(lambda: app.runtime.queue.statistics["enqueued"] == 2)
    assert app.state == "stopped"
    assert not broker.holders("g")
    go.set()
    assert book.of("begun") == [()]


@pytest.mark.parametrize("scheduler", [FairByTopic, OneAtATime, None])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_job_whose_partition_is_lost_before_it_starts_runs_no_user_code(scheduler, kind):
    broker = filled({"orders": 1, "reports": 1}, 1)
    go = threading.Event()
    book = Book()

    def consume(self, messages):
        book.write("begun", self.topic, self.lost)
        if len(book.of("begun")) == 1:
            assert go.wait(10.0)

    async def consume_async(self, messages):
        book.write("begun", self.topic, self.lost)
        while len(book.of("begun")) == 1 and not go.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    chosen = writing(book, consume=consume if kind == "sync" else consume_async)
    app = app_on(broker, scheduler=scheduler, concurrency=1)
    app.topic("orders", chosen, long_running=True)
    app.topic("reports", chosen, long_running=True)
    with running(app):
        book.wait_for("begun")
        until(lambda: len(app.runtime.queue.given()) == 2)
        ((first, _),) = book.of("begun")
        other = Tp("reports" if first == "orders" else "orders", 0)
        old = app.runtime.listeners["default"].holdings[other]
        broker.lose(client_of(app), [other])
        until(lambda: old.lost)
        go.set()
        wait_committed(broker, 2)
    assert book.of("begun") == [(first, False), (other.topic, False)]


def test_a_late_failure_of_a_lost_partition_buries_nothing():
    broker = filled({"orders": 1}, 1)
    go = threading.Event()
    book = Book()

    def consume(self, messages):
        book.write("begun")
        if len(book.of("begun")) == 1:
            assert go.wait(10.0)
            book.write("failed")
            raise ValueError("late")

    app = app_on(broker, concurrency=2)
    app.topic(
        "orders",
        writing(book, consume=consume),
        long_running=True,
        max_retries=0,
        dead_letter="dead",
    )
    with running(app):
        book.wait_for("begun")
        (old,) = app.runtime.listeners["default"].holdings.values()
        broker.lose(client_of(app))
        until(lambda: old.lost)
        go.set()
        book.wait_for("failed")
        wait_committed(broker, 1)
    assert not broker.records("dead")
    assert not old.partition.resting(0.0)


def test_what_was_lost_is_not_committed_and_comes_again():
    broker = filled({"orders": 1}, 3)
    book = Book()
    app = app_on(broker, commit_interval="1h")
    app.topic("orders", writing(book))
    with running(app):
        book.wait_for("record", 3)
        listener = app.runtime.listeners["default"]
        until(lambda: any(one.partition.position == 3 for one in listener.holdings.values()))
        broker.lose(client_of(app))
        book.wait_for("record", 6)
        assert not any(commit.offset for commit in broker.commits)
    assert broker.offsets("g") == {Tp("orders", 0): 3}


def test_a_revocation_commits_what_is_finished_and_calls_revoked_once_for_those_with_records():
    broker = filled({"orders": 1}, 3)
    broker.topic("orders", 2)
    book = Book()
    app = app_on(broker, commit_interval="1h")
    app.topic("orders", writing(book, revoked=lambda self: book.write("revoked", self.partition)))
    with running(app):
        book.wait_for("record", 3)
        listener = app.runtime.listeners["default"]
        until(lambda: any(one.partition.position == 3 for one in listener.holdings.values()))
        broker.revoke(client_of(app))
        book.wait_for("revoked")
        assert broker.offsets("g") == {Tp("orders", 0): 3}
    assert book.of("revoked") == [(0,)]
    assert len(book.of("record")) == 3


def test_ticks_come_also_when_idle_and_eofed_after_the_last_record():
    broker = filled({"orders": 2}, 3)
    book = Book()

    async def eofed(self):
        book.write("eofed", self.topic, self.partition)

    consumer = writing(
        book, tick=lambda self: book.write("tick", self.topic, self.partition), eofed=eofed
    )
    app = app_on(broker, tick_interval="20ms")
    app.topic("orders", consumer)
    app.topic("empty", consumer)
    with running(app):
        book.wait(
            lambda: {line[1] for line in book.lines if line[0] == "tick"} == {"orders", "empty"}
        )
        book.wait(lambda: sum(line[:3] == ("tick", "orders", 1) for line in book.lines) >= 3)
        book.wait(lambda: {("eofed", "orders", 0), ("eofed", "orders", 1)} <= set(book.lines))
    for partition in (0, 1):
        wanted = [(what, "orders", partition) for what in ("record", "eofed")]
        own = [line[0] for line in book.lines if line[:3] in wanted]
        assert own[:4] == ["record", "record", "record", "eofed"]


def test_shutdown_runs_for_partitions_with_records_and_commits():
    broker = filled({"orders": 1, "empty": 2}, 0)
    broker.write("orders", b"1", partition=0)
    book = Book()
    app = app_on(broker, commit_interval="1h")
    consumer = writing(book, shutdown=lambda self: book.write("shutdown", self.topic))
    app.topic("orders", consumer)
    app.topic("empty", consumer)
    with running(app):
        book.wait_for("record")
    assert book.of("shutdown") == [("orders",)]
    assert broker.offsets("g") == {Tp("orders", 0): 1}
    assert not broker.holders("g")


@EVERY
def test_stopping_lets_running_jobs_finish_starts_nothing_new_and_hands_back(scheduler):
    broker = filled({"orders": 3}, 1)
    go = threading.Event()
    book = Book()

    def consume(self, messages):
        book.write("begun", self.partition)
        assert go.wait(10.0)

    app = app_on(broker, concurrency=1, scheduler=scheduler, commit_interval="1h")
    app.topic("orders", writing(book, consume=consume))
    app.start()
    book.wait_for("begun")
    stopping = threading.Thread(target=app.stop, args=(10.0,))
    stopping.start()
    until(lambda: app.runtime.queue.stopping)
    go.set()
    stopping.join(20.0)
    assert not stopping.is_alive()
    ((partition,),) = book.of("begun")
    assert {tp: at for tp, at in broker.offsets("g").items() if at} == {Tp("orders", partition): 1}


def test_what_outlasts_the_grace_is_left_and_not_committed():
    broker = filled({"orders": 1, "reports": 1}, 1)
    go = threading.Event()
    book = Book()
    cancelled = []

    class Endless(Consumer):
        async def consume(self, messages):
            book.write("begun")
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

    def consume(self, messages):
        book.write("begun")
        go.wait(20.0)

    app = app_on(broker)
    app.topic("orders", Endless)
    app.topic("reports", writing(book, consume=consume))
    app.start()
    book.wait_for("begun", 2)
    since = time.monotonic()
    app.stop(0.2)
    assert time.monotonic() - since < 5.0
    go.set()
    assert cancelled
    assert not any(broker.offsets("g").values())


def test_a_refused_commit_is_tried_again_at_the_next_interval_and_within_the_grace():
    broker = filled({"orders": 1}, 3)
    broker.fail("commit", BrokerFault("rebalance in progress", retriable=True), times=2)
    book = Book()
    app = app_on(broker)
    app.topic("orders", writing(book))
    with running(app):
        wait_committed(broker, 3)
        assert app.statistics().groups["default"].refused_commits == 2
        broker.fail("commit", BrokerFault("rebalance in progress", retriable=True), times=3)
        app.runtime.listeners["default"]._commit_at += 3600
        broker.write("orders", b"last", partition=0)
        book.wait_for("record", 4)
        until(lambda: app.runtime.listeners["default"].intake.dirty)
    assert broker.lag("g") == 0


def test_the_broker_may_be_away_for_a_while_and_a_dead_client_is_replaced():
    broker = filled({"orders": 2}, 50)
    book = Book()
    app = app_on(broker)
    app.topic("orders", writing(book), batch_size=5)
    with running(app):
        book.wait_for("record", 20)
        broker.down()
        broker.up()
        broker.fail("poll", BrokerFault("fatal", fatal=True))
        for number in range(50):
            broker.write("orders", b"%d" % number)
        wait_committed(broker, 150)
        assert app.statistics().groups["default"].resets == 1
    assert len({line[1:3] for line in book.of("record")}) == 150


def test_it_starts_once_and_topics_come_before():
    broker = MemoryBroker({"orders": 1})
    app = app_on(broker)
    with pytest.raises(ConfigError, match="no topic"):
        app.start()
    with pytest.raises(Misuse, match="does not run"):
        app.statistics()
    app.topic("orders", writing(Book()))
    with running(app):
        with pytest.raises(Misuse, match="runs already"):
            app.start()
        with pytest.raises(Misuse, match="too late"):
            app.topic("more", writing(Book()))
    app.stop()


def test_a_scheduler_that_cannot_be_made_names_its_class_and_error():
    class Broken(StreamScheduler):
        def __init__(self, queue):
            raise RuntimeError("no config")

    app = app_on(MemoryBroker({"orders": 1}), scheduler=Broken)
    app.topic("orders", writing(Book()))
    with pytest.raises(FairleadError, match=r"Broken.*RuntimeError: no config"):
        app.run()


def test_a_job_that_should_be_quick_costs_the_membership_and_its_result_is_not_committed():
    broker = filled({"orders": 1}, 1, max_poll_interval=0.2)
    go = threading.Event()
    book = Book()

    def consume(self, messages):
        book.write("begun")
        if len(book.of("begun")) == 1:
            assert go.wait(10.0)
            book.write("late", self.lost)

    app = app_on(broker, kafka={"max.poll.interval.ms": 200})
    app.topic("orders", writing(book, consume=consume))
    with running(app):
        book.wait_for("begun")
        broker.add_member("g", ["orders"], "other")
        until(lambda: broker.rebalancing("g") or broker.holders("g"))
        until(lambda: not broker.rebalancing("g") and "other" in broker.holders("g").values())
        go.set()
        book.wait_for("late")
        until(lambda: not app.runtime.listeners["default"].holdings)
        assert not any(broker.offsets("g").values())
        broker.remove_member("g", "other")
        book.wait_for("begun", 2)
        wait_committed(broker, 1)


def test_what_waits_is_bounded_and_a_slow_topic_does_not_keep_others_from_being_read(monkeypatch):
    monkeypatch.setattr("fairlead.streams.flow.RECORDS", 0)
    broker = filled({"slow": 1, "quick": 1}, 3000)
    go = threading.Event()
    book = Book()

    def consume(self, messages):
        book.write("begun")
        assert go.wait(20.0)

    app = app_on(broker)
    app.topic("slow", writing(book, consume=consume), batch_size=10)
    app.topic("quick", writing(book), batch_size=10)
    with running(app):
        book.wait_for("record", 3000)
        listener = app.runtime.listeners["default"]
        buffered = max(one.partition.buffered for one in listener.holdings.values())
        assert buffered <= 40 + listener.most
        assert listener.holdings[Tp("slow", 0)].paused
        go.set()
        wait_committed(broker, 6000)
        until(lambda: not listener.holdings[Tp("slow", 0)].paused)


def test_large_records_are_bounded_by_their_bytes(monkeypatch):
    monkeypatch.setattr("fairlead.streams.flow.BYTES", 100_000)
    broker = MemoryBroker({"orders": 1})
    for number in range(600):
        broker.write("orders", b"x" * 10_000, key=b"%d" % number, partition=0)
    go = threading.Event()
    book = Book()

    def consume(self, messages):
        book.write("begun", len(messages))
        assert go.wait(20.0)

    app = app_on(broker)
    app.topic("orders", writing(book, consume=consume), batch_size=1)
    with running(app):
        book.wait_for("begun")
        listener = app.runtime.listeners["default"]
        until(lambda: listener.holdings[Tp("orders", 0)].paused)  # after a second of pressure
        assert listener.holdings[Tp("orders", 0)].partition.buffered <= 10 + listener.most
        go.set()
        wait_committed(broker, 600)


def test_a_key_that_cannot_be_told_is_a_key_of_its_own(caplog):
    broker = filled({"orders": 1}, 20)
    book = Book()
    app = app_on(broker)
    app.topic("orders", writing(book), parallel_by=lambda message: message.value["no"])
    with running(app):
        wait_committed(broker, 20)
    assert [line[2] for line in book.of("record")] == list(range(20))
    assert caplog.text.count("parallel_by of topic orders raised TypeError") == 1


def test_a_consumer_that_cannot_be_made_or_is_no_coroutine_fails_its_records(caplog):
    broker = filled({"orders": 1, "reports": 1}, 1)
    book = Book()
    tries = []

    def init(self):
        tries.append(1)
        if len(tries) < 3:
            raise RuntimeError("no database")

    async def forgotten():
        raise AssertionError("never awaited")

    app = app_on(broker)
    members = {"__init__": init, "shutdown": lambda self: forgotten()}
    app.topic("orders", writing(book, **members), retry_backoff="1ms")
    app.topic(
        "reports",
        writing(book, consume=lambda self, messages: forgotten()),
        retry_backoff="1ms",
        max_retries=0,
        dead_letter="dead",
    )
    with running(app):
        wait_committed(broker, 2)
    assert len(book.of("record")) == 1
    assert b"write it with async def" in dict(broker.records("dead")[0].headers)["fairlead-error"]
    assert "Writing.shutdown returned a coroutine, and is no coroutine function" in caplog.text


def test_stopping_twice_and_before_starting_is_fine():
    app = app_on(MemoryBroker({"orders": 1}))
    app.stop()
    app.topic("orders", writing(Book()))
    app.start()
    app.stop(1.0)
    app.stop(1.0)
