"""Why does it wait?  Every reason a batch can have, in sentences; and the document that shows all of them."""

import json
import re
import threading
import time
from typing import Any

import pytest

from fairlead.errors import BrokerFault, ConfigError, Misuse
from fairlead.streams import Consumer, StreamApp, StreamScheduler
from fairlead.streams.lag import LagWatch
from fairlead.streams.schedulers import OneAtATime
from fairlead.streams.snapshots import WITHHELD
from fairlead.testing.streams import MemoryBroker
from tests.streams.staging import Book, app_on, filled, running, scheduler_of, until, writing


class Keeps(StreamScheduler):
    """Locks everything, until it is told to let go."""

    def __init__(self, queue: Any) -> None:
        super().__init__(queue)
        self.held: list[Any] = []

    def schedule_consumption(self, jobs: Any) -> None:
        for job in jobs:
            self.queue.lock(job)
            self.held.append(job)


class Forgets(Keeps):
    def schedule_consumption(self, jobs: Any) -> None:
        self.held += jobs


class Waiting:
    """A consumer that waits until it is let go."""

    def __init__(self) -> None:
        self.book = Book()
        self.go = threading.Event()

        def consume(consumer: Consumer, messages: Any) -> None:
            self.book.write("begun", consumer.topic, consumer.partition)
            self.go.wait(20)

        self.consumer = type("Waits", (Consumer,), {"consume": consume})


@pytest.fixture
def waiting():
    made = Waiting()
    yield made
    made.go.set()


def test_a_job_locked_by_a_users_scheduler():
    app = app_on(filled({"orders": 1}, 3), scheduler=Keeps, tick_interval="5s")
    app.topic("orders", writing(Book()))
    with running(app):
        until(lambda: scheduler_of(app).held)
        text = app.explain("orders", 0)
        (job,) = scheduler_of(app).held
        assert app.explain(job).startswith("orders[0] (3 messages) waits: locked by Keeps")
        assert "orders[0] (3 messages) waits: locked by Keeps for 0." in text
        assert "0 of 4 workers are busy, so workers are not what it waits for" in text
        assert "Keeps.manage() looks again when a job finishes, and every 5 s" in text
        assert "Group 'default' is not polled before it has run" in text


def test_a_job_that_was_forgotten_names_the_duty():
    app = app_on(filled({"orders": 1}, 3), scheduler=Forgets)
    app.topic("orders", writing(Book()))
    with running(app):
        until(lambda: scheduler_of(app).held)
        text = app.explain(scheduler_of(app).held[0])
        assert "Forgets was given it 0." in text
        assert "neither locked nor pushed it. Forgets has to push every job" in text


def test_a_job_that_finished_and_is_still_locked():
    app = app_on(filled({"orders": 1}, 3), scheduler=Keeps)
    book = Book()
    app.topic("orders", writing(book))
    with running(app):
        until(lambda: scheduler_of(app).held)
        (job,) = scheduler_of(app).held
        app.runtime.queue.push(job)
        until(lambda: job.finished)
        assert "has finished, and Keeps has not unlocked it" in app.explain(job)
        app.runtime.queue.unlock(job)
        assert app.explain(job) == "orders[0] (3 messages) has finished."


def test_a_partition_behind_a_group_that_is_blocked(waiting):
    broker = filled({"orders": 1}, 3)
    app = app_on(broker, scheduler=Keeps)
    app.topic("orders", waiting.consumer)
    app.topic("reports", waiting.consumer)
    with running(app):
        until(lambda: scheduler_of(app).held)
        broker.write("reports", b"x", partition=0)
        LagWatch(app).look(time.monotonic())  # the group is not read: somebody else has to ask
        text = app.explain("reports", 0)
        assert (
            "reports[0] is not read: group 'default' is blocked by orders[0], which waits" in text
        )
        assert "locked by Keeps" in text


def test_a_batch_that_waits_in_the_gate(waiting):
    app = app_on(filled({"orders": 1, "bulk": 1}, 3), concurrency=1)
    app.topic("orders", waiting.consumer, priority=80)
    app.topic("bulk", waiting.consumer, priority=10)
    with running(app):
        waiting.book.wait_for("begun")
        until(lambda: app.runtime.queue.statistics["waiting"] == 1)
        (running_topic,) = {line[0] for line in waiting.book.of("begun")}
        other = "bulk" if running_topic == "orders" else "orders"
        text = app.explain(other, 0)
        assert f"{other}[0] (3 messages) has waited in the gate for" in text
        assert "all 1 workers are in use" in text
        assert "it is the next to start" in text
        assert f"the priority or the weight of topic '{other}'" in text
        assert "has been running for" in app.explain(running_topic, 0)
        assert "in Waits.consume" in app.explain(running_topic, 0)
        waiting.go.set()


def test_a_batch_behind_another_is_told_whom(waiting):
    app = app_on(filled({"orders": 3}, 2), concurrency=1)
    app.topic("orders", waiting.consumer)
    with running(app):
        until(lambda: app.runtime.queue.statistics["waiting"] == 2)
        texts = [app.explain("orders", number) for number in range(3)]
        assert sum("it is the next to start" in text for text in texts) == 1
        assert sum("it is behind orders[" in text for text in texts) == 1
        waiting.go.set()


class Pushes(StreamScheduler):
    def schedule_consumption(self, jobs: Any) -> None:
        for job in jobs:
            self.queue << job


def test_a_queued_job_knows_its_place(waiting):
    app = app_on(filled({"orders": 3}, 2), concurrency=1, scheduler=Pushes)
    app.topic("orders", waiting.consumer)
    with running(app):
        until(lambda: app.runtime.queue.statistics["enqueued"] >= 1)
        text = " ".join(app.explain("orders", number) for number in range(3))
        assert "is queued, next in line: all 1 workers are busy" in text
        waiting.go.set()


def test_a_partition_that_rests_says_what_failed_and_until_when():
    def fails(self: Consumer, messages: Any) -> None:
        raise ValueError("no paper")

    bad = type("Fails", (Consumer,), {"consume": fails})
    app = app_on(filled({"orders": 1, "bulk": 1}, 1))
    app.topic("orders", bad, retry_backoff="30s", max_retries=5, dead_letter="dead")
    app.topic("bulk", bad, retry_backoff="30s", parallel_by=lambda message: message.key)
    with running(app):
        until(lambda: "rests" in app.explain("orders", 0) and "rests" in app.explain("bulk", 0))
        text = app.explain("orders", 0)
        assert re.search(r"orders\[0\] rests for (29|30)\.\d s more", text)
        assert "Fails.consume failed once, last with ValueError: no paper" in text
        assert "after 5 retries its record goes to 'dead'" in text
        assert "tried for ever: without dead_letter nothing is skipped" in app.explain("bulk", 0)


def test_a_dead_letter_on_its_way():
    def fails(self: Consumer, messages: Any) -> None:
        raise ValueError("no paper")

    broker = filled({"orders": 1}, 1)
    broker.fail("send", BrokerFault("away", retriable=True), times=1000)
    app = app_on(broker)
    app.topic(
        "orders", type("Fails", (Consumer,), {"consume": fails}), max_retries=0, dead_letter="dead"
    )
    with running(app, grace=0.2):
        until(lambda: "dead letter in 'dead' (ValueError: no paper)" in app.explain("orders", 0))


def test_a_scheduler_that_hangs_is_named():
    go = threading.Event()

    class Hangs(StreamScheduler):
        def schedule_consumption(self, jobs: Any) -> None:
            go.wait(20)
            for job in jobs:
                self.queue << job

    app = app_on(filled({"orders": 1}, 1), scheduler=Hangs)
    app.topic("orders", writing(Book()))
    with running(app):
        until(lambda: "Hangs.schedule_consumption has not returned for" in app.explain("orders", 0))
        go.set()


def test_a_scheduler_may_give_its_own_reasons_and_failing_at_it_hurts_nobody():
    class Tells(Keeps):
        def explain(self, job: Any, now: float) -> str:
            if job.partition:
                raise RuntimeError("no words")
            return "the moon is not full"

    app = app_on(filled({"orders": 2}, 1), scheduler=Tells)
    app.topic("orders", writing(Book()))
    with running(app):
        until(lambda: len(scheduler_of(app).held) == 2)
        assert "orders[0] (1 messages) waits: the moon is not full." in app.explain("orders", 0)
        assert "orders[1] (1 messages) waits: locked by Tells for" in app.explain("orders", 1)


def test_partitions_without_anything_to_wait_for():
    broker = filled({"orders": 1}, 2)
    app = app_on(broker)
    book = Book()
    app.topic("orders", writing(book))
    with pytest.raises(Misuse, match="does not run"):
        app.explain("orders", 0)
    with running(app):
        book.wait_for("record", 2)
        until(lambda: "waits for nothing" in app.explain("orders", 0))
        assert app.explain("orders", 0).endswith("all that was written is done.")
        assert "orders[7] is not assigned to this process" in app.explain("orders", 7)
        with pytest.raises(ConfigError, match="topic 'order' is none of this app's; it has orders"):
            app.explain("order", 0)
        with pytest.raises(ConfigError, match="a topic and the number of a partition"):
            app.explain("orders")
    assert "the app stops" in app.explain("orders", 0)


def test_a_snapshot_is_json_in_every_state():
    broker = filled({"orders": 2}, 5)
    app = app_on(broker, scheduler=OneAtATime)
    book = Book()
    app.topic("orders", writing(book), priority=80, dead_letter="dead")
    new = app.snapshot()
    assert (new["state"], new["group"], new["partitions"]) == ("new", "g", [])
    assert new["topics"]["orders"]["priority"] == 80
    with running(app):
        book.wait_for("record", 10)
        until(lambda: app.snapshot()["topics"]["orders"]["lag"] == 0)
        found = app.snapshot()
        assert found["state"] == "running"
        assert [one["partition"] for one in found["partitions"]] == [0, 1]
        assert all(
            (one["position"], one["end"], one["lag"]) == (5, 5, 0) for one in found["partitions"]
        )
        assert found["topics"]["orders"]["consumed"] == found["topics"]["orders"]["records"] == 10
        assert found["scheduler"]["name"] == "OneAtATime"
        assert found["groups"]["default"]["connected"]
        json.dumps(found, allow_nan=False)
    ended = app.snapshot()
    assert ended["state"] == "stopped"
    json.dumps([new, ended], allow_nan=False)


def test_a_snapshot_lists_the_oldest_withheld_and_counts_the_others():
    app = app_on(filled({"orders": WITHHELD + 5}, 1), scheduler=Keeps)
    app.topic("orders", writing(Book()))
    with running(app):
        until(lambda: app.snapshot()["withheld_count"] == WITHHELD + 5)
        found = app.snapshot()
        assert len(found["withheld"]) == WITHHELD
        ages = [one["age"] for one in found["withheld"]]
        assert ages == sorted(ages, reverse=True)
        assert all("locked by Keeps" in one["explain"] for one in found["withheld"])
        assert found["withheld_oldest"] >= ages[0]


def test_a_snapshot_lists_something_of_every_topic():
    broker = filled({"orders": WITHHELD + 5}, 1)
    app = app_on(broker, scheduler=Keeps)
    app.topic("orders", writing(Book()))
    app.topic("bulk", writing(Book()), subscription_group="late")
    with running(app):
        until(lambda: app.snapshot()["withheld_count"] == WITHHELD + 5)
        broker.write("bulk", b"x")  # younger than all that would be listed
        until(lambda: app.snapshot()["withheld_count"] == WITHHELD + 6)
        found = app.snapshot()
        assert {one["topic"] for one in found["withheld"]} == {"orders", "bulk"}
        assert len(found["withheld"]) == WITHHELD
        assert found["groups"]["default"]["blocked"]


def test_snapshots_may_be_taken_by_many_while_everything_moves():
    broker = filled({"orders": 4, "bulk": 4}, 200)
    app = app_on(broker, concurrency=3)
    book = Book()
    for topic in ("orders", "bulk"):
        app.topic(topic, writing(book), batch_size=3)
    wrong: list[BaseException] = []
    ended = threading.Event()

    def look() -> None:
        try:
            while not ended.is_set():
                json.dumps(app.snapshot(), allow_nan=False)
                app.explain("orders", 1)
        except BaseException as error:
            wrong.append(error)

    with running(app):
        lookers = [threading.Thread(target=look) for _ in range(3)]
        for one in lookers:
            one.start()
        for _ in range(5):
            broker.rebalance("g")
        book.wait_for("record", 1600, 60)
        ended.set()
        for one in lookers:
            one.join()
    assert not wrong


def test_an_app_without_topics_has_a_snapshot():
    assert StreamApp(broker=MemoryBroker(), group="g").snapshot()["topics"] == {}
