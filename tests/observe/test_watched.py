"""Watched gates: they decide like plain ones, and what they tell is true, of every ticket once."""

import threading
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from fairlead.capacities import Reserved, Slots
from fairlead.core import Change, Gate, Outcome, State, Ticket
from fairlead.observe import Feed, WatchedGate
from fairlead.observe.passed import MOST_DECISIONS
from fairlead.policies import FIFO, Classes, Level
from tests.properties.machine import CheckedRecorder, GateMachine


class Wall:
    """A wall clock that stands where a test puts it."""

    def __init__(self, at: float = 1_000_000.0) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


class WatchedRecorder(WatchedGate, CheckedRecorder):
    """Tells a feed of its own, checks every verb and records it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Nothing is too old to be remembered: a random life may take hours.
        feed = Feed(seconds=1e9, wall=lambda: 0.0)
        super().__init__(*args, channel=feed.channel("one"), **kwargs)


class WatchedMachine(GateMachine):
    """Random verbs; after each, what the feed tells is compared with the tickets themselves."""

    gate_type = WatchedRecorder

    def do(self, *args: Any, **kwargs: Any) -> None:
        super().do(*args, **kwargs)
        self.compare()

    def compare(self) -> None:
        gate, channel = self.gate, self.gate.channel
        waiting = self.waiting()
        standing = {one.name: one for one in channel.standing()}
        for rank in range(3):
            one = standing.get(str(rank))
            held = sum(ticket.rank == rank for ticket in gate.holders)
            mine = [ticket for ticket in waiting if ticket.rank == rank]
            assert ((one.waiting, one.running) if one else (0, 0)) == (len(mine), held)
        tenants = {one.name: one for one in channel.tenants()}
        for tenant in "ab":
            one = tenants.get(tenant)
            held = sum(ticket.tenant == tenant for ticket in gate.holders)
            mine = [ticket for ticket in waiting if ticket.tenant == tenant]
            assert ((one.waiting, one.running) if one else (0, 0)) == (len(mine), held)

    def let_go(self) -> None:
        super().let_go()
        self.compare()
        channel = self.gate.channel
        # "bad 7" is another's.
        rows = [row for row in channel._rows if not isinstance(row.key, str)]
        assert sorted(row.key for row in rows) == [ticket.key for ticket in self.tickets]
        for row in rows:
            ticket = self.tickets[row.key]
            told = "done" if row.state in ("failed", "disconnected") else row.state
            assert told in (ticket.state.value, "lost")
            assert (row.started is None) is (ticket.started_at == float("inf"))
            assert row.rank == ticket.rank
            assert row.tenant == ticket.tenant
            assert row.arrived <= (row.ended if row.started is None else row.started) <= row.ended
        totals = channel.totals()
        started = sum(ticket.started_at < float("inf") for ticket in self.tickets)
        assert totals["admitted"] >= started  # the odd ones of another class too
        assert not channel._places
        assert not channel._tenants


def test_what_it_tells_is_true_under_random_verbs():
    run_state_machine_as_test(
        WatchedMachine, settings=settings(max_examples=60, stateful_step_count=30)
    )


def forgetful(note: Any) -> Any:
    def noted(self: Any, tickets: Any, now: float) -> None:
        note(self, [one for one in tickets if one.state is not State.EXPIRED], now)

    return noted


def doubled(end: Any) -> Any:
    def ended(self: Any, ticket: Any, now: float, outcome: Any) -> None:
        end(self, ticket, now, outcome)
        if ticket.state is State.DONE:
            self._end(ticket, None, now, "done")

    return ended


@pytest.mark.parametrize(("verb", "broken"), [("note", forgetful), ("end", doubled)])
def test_a_feed_that_loses_or_doubles_a_ticket_is_caught(monkeypatch, verb, broken):
    from fairlead.observe.channel import Channel

    monkeypatch.setattr(Channel, verb, broken(getattr(Channel, verb)))
    with pytest.raises((AssertionError, ExceptionGroup)):
        run_state_machine_as_test(
            WatchedMachine,
            settings=settings(
                max_examples=120, stateful_step_count=30, database=None, phases=[Phase.generate]
            ),
        )


def watched(slots: int = 1, wall: Any = None, **given: Any) -> tuple[Feed, WatchedGate]:
    feed = Feed(wall=wall or Wall(), **given)
    return feed, feed.gate("tasks/demo")(FIFO(), Slots(slots))


def test_a_row_tells_a_whole_life_on_the_wall_clock():
    feed, gate = watched()
    first = Ticket("first", 70, 2, tenant="acme", workload="report", deadline=50.0, estimate=4)
    first.wait_until = 25.0
    second = Ticket("second")
    gate.offer(first, 10.0)
    gate.offer(second, 11.0)
    gate.finish(first, 13.0)
    gate.finish(second, 14.0, Outcome.LOST)
    one, two = feed.rows("tasks/demo")
    start = 1_000_000.0
    assert tuple(one) == (
        *("tasks/demo", 1, "first", "0", 0, "acme", "report", 2, 70, start + 40),
        *(start, start, start + 3, "done", None, False, 4, None, 15.0, 1, None),
    )
    assert (two.arrived, two.started, two.ended) == (start + 1, start + 3, start + 4)
    assert (two.state, two.deadline, two.number) == ("lost", None, 2)
    assert feed.rows("tasks/demo", since=start + 3.5) == [two]
    with pytest.raises(KeyError):
        feed.rows("tasks/nobody")


def test_decisions_say_what_and_why():
    feed, gate = watched()
    first, second, third = (Ticket(name, wait_until=5.0) for name in ("a", "b", "c"))
    gate.offer(first, 0.0)
    gate.offer(second, 0.0)
    gate.offer(third, 1.0)
    gate.withdraw([third], 2.0)
    gate.advance(6.0)
    gate.finish(first, 7.0)
    told = feed.decisions()
    assert [(one.key, one.what, one.waited, one.held) for one in told] == [
        ("a", "started", 0.0, None),
        ("c", "withdrawn", 1.0, None),
        ("b", "expired", 6.0, None),
        ("a", "done", 0.0, 7.0),
    ]
    assert [one.why for one in told] == [
        "there was room at once",
        "stopped waiting after 1.000 s",
        "waited as long as it may",
        "its work ended",
    ]
    assert feed.decisions(after=told[1].number) == told[2:]
    assert feed.decisions(most=1) == told[3:]
    assert feed.decisions(most=0) == []


def test_refusals_evictions_and_promotions_are_told():
    feed = Feed(wall=Wall())
    names = ("bulk", "interactive")
    make = feed.gate("gateway/default", lambda ticket: names[ticket.rank])
    levels = [Level("bulk", FIFO, 0, 60.0, 5.0), Level("interactive", FIFO, 9, 60.0, 5.0)]
    gate = make(Classes(*levels, budget=4), Reserved(1, (0, 0), (0.0, 0.0)))
    running = Ticket("r", rank=0, evictable=True)
    gate.offer(running, 0.0)
    gate.offer(Ticket("turned away", rank=0), 0.0)
    gate.offer(Ticket("urgent", rank=1, can_preempt=True), 1.0)
    gate.finish(running, 2.0)
    told = {one.key: (one.what, one.cls, one.why) for one in feed.decisions()}
    assert told["turned away"] == ("refused", "bulk", "queue for 'bulk' is full (0 of 0)")
    assert told["r"] == ("evicted", "bulk", "evicted for 'urgent' of a higher class")
    assert told["urgent"] == ("started", "interactive", "waited 1.000 s")
    assert [row.state for row in feed.rows("gateway/default")] == ["refused", "evicted"]
    totals = feed.channels["gateway/default"].totals()
    assert totals == {
        **dict.fromkeys(totals, 0),
        "admitted": 2,
        "refused": 1,
        "evicted": 1,
    }


def test_percentiles_of_the_last_seconds():
    wall = Wall()
    feed, gate = watched(1000, wall)
    channel = feed.channels["tasks/demo"]
    for number in range(100):  # one waits 0.01 s, the next 0.02 s ...
        gate.adjust(Change("slots", "resize", (0,)), 0.0)
        gate.offer(Ticket(number, arrived_at=-0.01 * (number + 1)), 0.0)
        gate.adjust(Change("slots", "resize", (1000,)), 0.0)
    (rates,) = channel.rates(10.0).values()
    assert rates.admitted_per_s == 10.0
    for told, right in ((rates.p50, 0.5), (rates.p95, 0.95), (rates.p99, 0.99)):
        assert told == pytest.approx(right, rel=0.06)
    wall.at += 12.0
    assert channel.rates(10.0) == {}


def test_what_is_remembered_is_bounded():
    wall = Wall()
    feed, gate = watched(1, wall, seconds=60.0, most=50)
    for number in range(MOST_DECISIONS):
        ticket = Ticket(number)
        gate.offer(ticket, number * 0.1)
        gate.finish(ticket, number * 0.1)
        wall.at += 0.1
    rows = feed.rows("tasks/demo")
    assert [row.key for row in rows] == list(range(MOST_DECISIONS - 50, MOST_DECISIONS))
    assert len(feed.decisions(most=10 * MOST_DECISIONS)) == MOST_DECISIONS
    wall.at += 61.0
    assert feed.rows("tasks/demo") == []


def test_a_gate_of_the_same_name_goes_on_with_those_that_run():
    feed, gate = watched(2)
    held, other = Ticket("held"), Ticket("other")
    gate.offer(held, 0.0)
    gate.offer(other, 0.0)
    next_gate = feed.gate("tasks/demo")(FIFO(), Slots(1))
    next_gate.adopt(gate.surrender(), 1.0)
    channel = feed.channels["tasks/demo"]
    assert channel.gate is next_gate
    assert [(one.waiting, one.running) for one in channel.standing()] == [(0, 2)]
    next_gate.finish(held, 2.0)
    next_gate.finish(other, 2.0)
    next_gate.finish(other, 2.0)  # late
    assert [row.key for row in feed.rows("tasks/demo")] == ["held", "other"]


def test_it_can_be_read_while_another_thread_writes():
    feed, gate = watched(2)
    done = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            while not done.is_set():
                feed.rows("tasks/demo")
                feed.decisions()
                channel = feed.channels["tasks/demo"]
                channel.standing(), channel.tenants(), channel.rates()
        except BaseException as error:
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(5_000):
        ticket = Ticket(number, tenant=number % 7)
        gate.offer(ticket, float(number))
        gate.finish(ticket, float(number))
    done.set()
    reader.join()
    assert not failures
    assert feed.channels["tasks/demo"].totals()["completed"] == 5_000


def test_the_plain_gate_knows_nothing_of_it():
    assert not hasattr(Gate(FIFO(), Slots(1)), "channel")
