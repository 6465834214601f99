"""The built-in scheduler is a gate: priorities that age, shares by weight, policies, planners, capacities."""

import threading
import time
from datetime import datetime
from decimal import Decimal
from math import inf
from typing import Any

import pytest

from fairlead import (
    Classes,
    ConfigError,
    FairQueue,
    Level,
    Planner,
    Policy,
    Scheduler,
    Slots,
    ThreadScheduler,
    Ticket,
    TokenBucket,
)
from fairlead.capacities import Both
from fairlead.core import Gate
from fairlead.streams import Consumer
from fairlead.streams.gating import GateScheduler
from fairlead.streams.ordering import TopicOrder
from fairlead.streams.queue import JobsQueue
from fairlead.testing import CheckedGate, PolicyContract
from tests.streams.staging import Book, app_on, filled, job, running, until, wait_committed, writing

WEIGHTS = {"a": 3.0, "b": 1.0}


class TestTopicOrder(PolicyContract):
    def make(self):
        return TopicOrder(WEIGHTS)


def test_the_highest_priority_goes_first_and_a_lower_one_rises():
    gate = Gate(TopicOrder({}), Slots(1))
    first = Ticket("first", 50)
    low = Ticket("low", 20, workload="low")
    gate.offer(first, 0.0)
    gate.offer(low, 0.0)
    high = low
    for number, now in enumerate((1.0, 10.0, 29.0, 31.0)):
        high = Ticket(f"high-{number}", 80, workload="high")
        gate.offer(high, now)
        (started,) = gate.finish(first, now)
        if now < 30.0:
            assert started is high
        else:
            assert started is low
        first = started
    text = gate.explain(high, 32.0).text
    assert "priority 80 has aged to 82" in text


def test_equal_priorities_share_by_weight_counted_in_messages():
    gate = Gate(TopicOrder(WEIGHTS), Slots(1))
    current = Ticket("x", 50, workload="a", cost=10)
    gate.offer(current, 0.0)
    served = {"a": 0, "b": 0}
    sizes = {"a": 10, "b": 70}
    for topic in "ab":
        gate.offer(Ticket(None, 50, sizes[topic], workload=topic), 0.0)
    for _ in range(2000):
        (current,) = gate.finish(current, 0.0)
        served[str(current.workload)] += int(current.cost)
        gate.offer(Ticket(None, 50, current.cost, workload=current.workload), 0.0)
    assert served["a"] / served["b"] == pytest.approx(3.0, rel=0.02)


class Hands:
    """Workers that finish when they are told."""

    def __init__(self, concurrency: int = 1, **options):
        self.started: list[Any] = []
        self.queue = JobsQueue(concurrency, self.started.append)
        self.scheduler = GateScheduler(self.queue, **options)

    def give(self, *args, **options):
        made = job(*args, **options)
        self.queue.give([made])
        self.scheduler.on_schedule_consumption([made])
        return made

    def end(self, made):
        self.queue.done(made)
        self.scheduler.settle(made)


def test_what_waits_is_locked_and_released_when_there_is_room():
    hands = Hands(concurrency=1)
    first, second = hands.give("a"), hands.give("b")
    assert hands.started == [first]
    assert second.locked
    assert second.withheld_since is not None
    assert "all 1 workers are in use" in hands.scheduler.explain(second, time.monotonic())
    hands.end(first)
    assert hands.started == [first, second]
    assert not second.locked


def test_several_batches_given_at_once_start_in_order_of_rank():
    hands = Hands(concurrency=2)
    jobs = [job("t", number, priority=priority) for number, priority in enumerate((10, 90, 50))]
    hands.queue.give(jobs)
    hands.scheduler.on_schedule_consumption(jobs)
    assert hands.started == [jobs[1], jobs[2]]


def test_a_policy_of_the_users_orders_batches():
    class Smallest(Policy):
        def key(self, ticket):
            return ticket.cost

    hands = Hands(policy=Smallest())
    assert not hands.scheduler.inline
    first = hands.give("a", 0, 5)
    big, small = hands.give("a", 1, 50), hands.give("b", 0, 5)
    hands.end(first)
    assert hands.started == [first, small]
    hands.end(small)
    assert hands.started == [first, small, big]


def test_classes_order_batches_by_the_rank_of_their_topic():
    hands = Hands(policy=Classes(Level("bulk"), Level("interactive")))
    first = hands.give("bulk", 0)
    bulk, interactive = hands.give("bulk", 1, priority=100), hands.give("chats", rank=1, priority=0)
    hands.end(first)
    assert hands.started == [first, interactive]
    hands.end(interactive)
    assert hands.started == [first, interactive, bulk]


def test_a_planner_may_withhold_and_see_topic_and_messages():
    seen: list[Any] = []

    def plan(waiting, now):
        seen.extend((ticket.topic, len(ticket.work.messages)) for ticket in waiting)
        return [ticket for ticket in waiting if ticket.topic != "b"]

    hands = Hands(policy=Planner(plan))
    held = hands.give("b", 0, 7)
    first = hands.give("a", 0, 2)
    assert hands.started == [first]
    assert ("b", 7) in seen
    assert "withholds it" in hands.scheduler.explain(held, time.monotonic())


def test_longest_expected_first_by_what_batches_took():
    class Longest(Policy):
        def key(self, ticket):
            return -(ticket.estimate or 0.0)

    hands = Hands(concurrency=2, policy=Longest())
    for topic, seconds in (("quick", 0.001), ("slow", 1.0)):
        made = hands.give(topic)
        made.started_at -= seconds
        hands.end(made)
    running = [hands.give("quick", 1), hands.give("quick", 2)]
    quick, slow = hands.give("quick", 3, 5), hands.give("slow", 3, 5)
    hands.end(running[0])
    assert hands.started[-1] is slow
    assert quick.locked


def test_a_capacity_that_counts_tokens_lets_a_batch_go_in_time():
    capacity = Both(Slots(4, name="workers"), TokenBucket(200.0, 10.0))
    hands = Hands(concurrency=4, capacity=capacity)
    first, second = hands.give("a", 0, 10), hands.give("b", 0, 10)
    assert hands.started == [first]
    by = time.monotonic() + 10.0
    while len(hands.started) < 2:  # the gate's own timer
        assert time.monotonic() < by
        time.sleep(0.001)
    assert hands.started == [first, second]
    hands.scheduler.close()


def test_a_batch_that_can_never_fit_runs_and_is_told(caplog):
    hands = Hands(capacity=TokenBucket(10.0, 5.0))
    made = hands.give("a", 0, 50)
    assert hands.started == [made]
    assert "run without room" in caplog.text
    hands.end(made)
    hands.scheduler.close()


def test_clear_gives_back_the_room_of_what_was_queued_and_never_started():
    hands = Hands(concurrency=2)
    hands.queue.concurrency = 1  # a tick has taken a worker
    first = hands.give("a", subscription_group="two")
    queued = hands.give("b", subscription_group="one")
    assert hands.scheduler.gate.gate.active == 2
    hands.queue.clear("one")
    hands.scheduler.on_clear("one")
    assert queued.cleared
    assert hands.scheduler.gate.gate.active == 1
    hands.end(first)
    assert hands.scheduler.gate.gate.active == 0


def test_clear_withdraws_what_waits_and_gives_back_what_never_started():
    hands = Hands(concurrency=1)
    first = hands.give("a", subscription_group="one")
    waiting = hands.give("b", subscription_group="one")
    other = hands.give("c", subscription_group="two")
    hands.queue.clear("one")
    hands.scheduler.on_clear("one")
    assert waiting.cleared
    hands.end(first)
    assert hands.started == [first, other]
    hands.end(other)
    assert hands.scheduler.gate.gate.active == hands.scheduler.gate.gate.waiting == 0


def test_one_capacity_shared_by_two_apps_holds_for_both():
    shared = Slots(2)
    broker = filled({"a": 3, "b": 3}, 20)
    lock, inside, most = threading.Lock(), [0], [0]
    book = Book()

    def consume(self, messages):
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        time.sleep(0.002)
        with lock:
            inside[0] -= 1
        for message in messages:
            book.write("record", message.offset)

    apps = []
    for topic in "ab":
        app = app_on(broker, group=topic, capacity=shared)
        app.topic(topic, writing(book, consume=consume), batch_size=5)
        apps.append(app)
    with running(apps[0]), running(apps[1]):
        wait_committed(broker, 60, "a")
        wait_committed(broker, 60, "b")
    assert most[0] == 2


def shares(concurrency: int, **topics: dict[str, Any]) -> dict[str, int]:
    """Run until a part of the backlog is done; count the messages of each topic by then."""
    broker = filled(dict.fromkeys(topics, 2), 3000)
    served = dict.fromkeys(topics, 0)
    enough = threading.Event()
    lock = threading.Lock()

    class Slow(Consumer):
        def consume(self, messages):
            time.sleep(0.0003)
            with lock:
                if sum(served.values()) < 5000:
                    served[self.topic] += len(messages)
                else:
                    enough.set()

    app = app_on(broker, concurrency=concurrency)
    for name, options in topics.items():
        app.topic(name, Slow, batch_size=20, **options)
    with running(app):
        assert enough.wait(30.0)
    return served


@pytest.mark.parametrize("enough", [0, 8000], ids=["little ahead", "much ahead"])
@pytest.mark.parametrize("concurrency", [1, 2])
def test_topics_share_by_weight_across_polls(concurrency, enough, monkeypatch):
    monkeypatch.setattr("fairlead.streams.flow.RECORDS", enough)
    served = shares(concurrency, a={"weight": 3}, b={"weight": 1})
    if concurrency == 1:
        assert served["a"] / sum(served.values()) == pytest.approx(0.75, abs=0.0375)
    else:
        # Two partitions of one topic can fill both workers, so weights still decide.
        assert served["a"] / sum(served.values()) == pytest.approx(0.75, abs=0.06)


def test_a_higher_priority_is_served_first_across_polls():
    served = shares(1, a={"priority": 80}, b={"priority": 20})
    assert served["a"] > 0.95 * sum(served.values())


def test_tenants_share_when_the_policy_says_so():
    broker = filled({"t": 4}, 1000)
    served = {"big": 0, "small": 0}
    enough = threading.Event()

    class Tenants(Consumer):
        def tenant(self, messages):
            return "small" if self.partition == 0 else "big"

        def cost(self, messages):
            return 2.0 * len(messages)

        def consume(self, messages):
            time.sleep(0.0002)
            if sum(served.values()) < 1500:
                served[self.tenant(messages)] += len(messages)
            else:
                enough.set()

    app = app_on(broker, concurrency=1, policy=FairQueue("tenant"))
    app.topic("t", Tenants, batch_size=20)
    with running(app):
        assert enough.wait(30.0)
    assert served["small"] / sum(served.values()) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    ("said", "cost"),
    [({"cost": Decimal(2)}, 2), ({"cost": "much"}, 1), ({"deadline": datetime(2030, 1, 1)}, 1)],  # noqa: DTZ001
)
def test_what_a_consumer_says_of_a_batch_is_read_as_numbers_or_named(said, cost, caplog):
    broker = filled({"t": 1}, 4)
    seen = []

    class Noting(FairQueue):
        def push(self, ticket, now):
            seen.append((ticket.cost + 0.0, ticket.deadline + 0.0))
            return super().push(ticket, now)

    members = {name: lambda self, messages, value=value: value for name, value in said.items()}
    app = app_on(broker, concurrency=1, policy=Noting("tenant"))
    app.topic("t", writing(Book(), **members), batch_size=1)
    with running(app):
        wait_committed(broker, 4)
        assert app.statistics().groups["default"].resets == 0
    assert set(seen) <= {(cost, inf)}
    assert ("could not describe a batch" in caplog.text) is (cost == 1)


def test_a_limit_is_shared_with_another_door():
    shared = Slots(1)
    broker = filled({"a": 1}, 3)
    book = Book()
    with ThreadScheduler.bounded(capacity=shared) as tasks:
        app = app_on(broker, capacity=shared)
        app.topic("a", writing(book))
        go, begun = threading.Event(), threading.Event()

        def work():
            begun.set()
            assert go.wait(10.0)
            assert not book.lines
            book.write("task")

        result = tasks.spawn(50, work)
        assert begun.wait(10.0)
        with running(app):
            until(lambda: app.statistics().withheld)
            (held,) = [made for made, _ in app.runtime.withheld()]
            assert "all 1 slots are in use" in app.explain(held)
            go.set()
            result.result(10.0)
            wait_committed(broker, 3)
    assert [line[0] for line in book.lines] == ["task", *["record"] * 3]


def test_a_shared_gate_has_one_policy_and_one_on_a_loop_cannot_be_shared():
    shared = Slots(1)
    Hands(capacity=shared)
    with pytest.raises(ConfigError, match="policy: the capacity is shared"):
        Hands(capacity=shared, policy=FairQueue("tenant"))
    with pytest.raises(ConfigError, match="capacity: it has a gate already"):
        Hands(capacity=shared, gate=CheckedGate)  # of which nothing would come
    on_a_loop = Slots(1)
    Scheduler.bounded(capacity=on_a_loop)
    with pytest.raises(ConfigError, match="capacity has a gate on an event loop"):
        app_on(filled({"a": 1}, 0), capacity=on_a_loop)
