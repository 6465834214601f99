"""Options are checked when they are given, and every error names its option."""

from typing import Any

import pytest

from fairlead import Classes, FairQueue, Level, Slots
from fairlead.errors import ConfigError, SchedulerFailed
from fairlead.streams import Consumer, StreamApp, StreamScheduler
from fairlead.streams.schedulers import FairByTopic
from fairlead.testing.streams import MemoryBroker
from tests.streams.staging import Book, writing

GOOD: dict[str, Any] = {"group": "billing", "broker": MemoryBroker()}


class Orders(Consumer):
    async def consume(self, messages): ...


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("concurrency", 0),
        ("concurrency", -1),
        ("concurrency", 2.5),
        ("concurrency", True),
        ("concurrency", "8"),
        ("group", ""),
        ("group", None),
        ("group", 5),
        ("tick_interval", "5"),
        ("tick_interval", "0s"),
        ("tick_interval", "soon"),
        ("tick_interval", -1),
        ("commit_interval", "5x"),
        ("commit_interval", None),
        ("grace", "-1s"),
        ("withheld_limit", 0),
        ("kafka", "client.id=a"),
        ("kafka", {1: 2}),
        ("kafka", {"enable.auto.commit": True}),
        ("kafka", {"enable.auto.commit": False}),
        ("kafka", {"group.id": "x"}),
        ("kafka", {"bootstrap.servers": "x"}),
        ("scheduler", "FairByTopic"),
        ("scheduler", object),
        ("scheduler", Orders),
        ("policy", "fair"),
        ("policy", FairQueue),
        ("capacity", 5),
        ("capacity", Slots),
        ("concurency", 8),
        ("topics", ["orders"]),
    ],
)
def test_a_wrong_option_of_the_app_is_named(option, value):
    with pytest.raises(ConfigError, match=option):
        StreamApp(**{**GOOD, option: value})


def test_servers_or_a_broker_are_needed():
    with pytest.raises(ConfigError, match="bootstrap_servers"):
        StreamApp(group="billing")
    with pytest.raises(ConfigError, match="bootstrap_servers"):
        StreamApp(bootstrap_servers=9092, group="billing")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"enable\.auto\.commit"):
        StreamApp(bootstrap_servers="x:1", group="g", kafka={"enable.auto.commit": "true"})


def test_an_instance_of_a_scheduler_is_refused_with_advice():
    instance = FairByTopic.__new__(FairByTopic)
    with pytest.raises(ConfigError, match="scheduler=FairByTopic"):
        StreamApp(**GOOD | {"scheduler": instance})


def test_a_typing_error_gets_a_suggestion():
    with pytest.raises(ConfigError, match="did you mean concurrency"):
        StreamApp(**GOOD, concurency=8)


@pytest.mark.parametrize("option", ["policy", "capacity"])
def test_policy_and_capacity_belong_to_the_built_in_scheduler(option):
    value = FairQueue() if option == "policy" else Slots(3)
    with pytest.raises(ConfigError, match=f"{option} or scheduler"):
        StreamApp(**GOOD | {"scheduler": FairByTopic, option: value})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("priority", 101),
        ("priority", -1),
        ("priority", "high"),
        ("weight", 0),
        ("weight", -2),
        ("weight", float("nan")),
        ("weight", float("inf")),
        ("weight", "3"),
        ("weight", True),
        ("long_running", "yes"),
        ("parallel_by", "key"),
        ("batch_size", 0),
        ("batch_size", 1.5),
        ("max_retries", -1),
        ("max_retries", None),
        ("retry_backoff", "1"),
        ("retry_backoff", "fast"),
        ("dead_letter", ""),
        ("dead_letter", 5),
        ("dead_letter", "orders"),
        ("subscription_group", ""),
        ("subscription_group", None),
        ("wieght", 3),
        ("rank", -1),
        ("rank", 1.0),
        ("rank", True),
    ],
)
def test_a_wrong_option_of_a_topic_is_named_with_the_topic(option, value):
    app = StreamApp(**GOOD)
    with pytest.raises(ConfigError, match=f"orders.*{option}"):
        app.topic("orders", Orders, **{option: value})
    assert not app.topics


def test_a_rank_without_a_class_is_refused_and_named():
    app = StreamApp(**GOOD, policy=Classes(Level("bulk"), Level("interactive")))
    app.topic("chats", Orders, rank=1)
    with pytest.raises(ConfigError, match=r"'orders': rank must be 0 to 1, .*; got 2"):
        app.topic("orders", Orders, rank=2)
    assert app.snapshot()["topics"]["chats"]["rank"] == 1


@pytest.mark.parametrize("consumer", [object, object(), "Orders", None, Consumer, Consumer()])
def test_a_consumer_has_consume(consumer):
    with pytest.raises(ConfigError, match="orders"):
        StreamApp(**GOOD).topic("orders", consumer)


def _yields(self, messages=None):
    yield


async def _yields_async(self, messages=None):
    yield


@pytest.mark.parametrize("method", ["consume", "revoked", "shutdown", "tick", "eofed"])
@pytest.mark.parametrize("generator", [_yields, _yields_async])
def test_a_method_that_would_run_nothing_when_called_is_refused(method, generator):
    consumer = writing(Book(), **{method: generator})
    with pytest.raises(ConfigError, match=rf"Writing\.{method} .*yield"):
        StreamApp(**GOOD).topic("orders", consumer)


def test_dead_letters_may_go_along_a_chain_but_not_round_a_ring():
    app = StreamApp(**GOOD)
    app.topic("final", Orders)
    app.topic("orders", Orders, dead_letter="retry")
    app.topic("retry", Orders, dead_letter="final")
    ring = StreamApp(**GOOD)
    ring.topic("orders", Orders, dead_letter="retry")
    ring.topic("retry", Orders, dead_letter="last")
    with pytest.raises(ConfigError, match="'last', 'orders', 'retry' go round in a ring"):
        ring.topic("last", Orders, dead_letter="orders")


def test_a_topic_is_named_and_not_matched():
    with pytest.raises(ConfigError, match="is a pattern"):
        StreamApp(**GOOD).topic("^orders.*", Orders)


def test_a_topic_is_given_once():
    app = StreamApp(**GOOD)
    app.topic("orders", Orders)
    with pytest.raises(ConfigError, match="'orders' is given twice"):
        app.topic("orders", writing(Book()))


def test_durations_are_read():
    app = StreamApp(**GOOD, tick_interval="200ms", commit_interval=2, grace="1m")
    settings = app.settings
    assert (settings.tick_interval, settings.commit_interval, settings.grace) == (0.2, 2.0, 60.0)
    assert StreamApp(**GOOD).settings.concurrency == 8
    assert StreamApp(**GOOD, kafka={"max.poll.interval.ms": 6000}).settings.max_poll_interval == 6.0


def test_a_scheduler_has_to_say_what_it_does_with_batches():
    class Nothing(StreamScheduler):
        pass

    for one in (Nothing, StreamScheduler):
        with pytest.raises(
            ConfigError, match=rf"{one.__name__} has to define schedule_consumption\(self, jobs\)"
        ):
            StreamApp(**GOOD, scheduler=one)

    class Made(StreamScheduler):
        complete = False

        def __init__(self, queue):
            super().__init__(queue)
            if self.complete:
                setattr(self, "schedule_consumption", self._push)  # noqa: B010

    app = StreamApp(**GOOD, scheduler=Made)
    app.topic("orders", Orders)
    with pytest.raises(SchedulerFailed, match=r"Made has to define schedule_consumption\(self"):
        app.start()
    Made.complete = True
    app.start().stop()

    class OnlyTheTwin(StreamScheduler):
        def on_schedule_consumption(self, jobs):
            self._push(jobs)

    assert StreamApp(**GOOD, scheduler=OnlyTheTwin).settings.scheduler is OnlyTheTwin
