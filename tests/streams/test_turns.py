"""Slots that an app with a scheduler of its own shares with others: a batch that was pushed needs one to run."""

import time

import pytest

from fairlead.capacities import Both, Slots
from fairlead.core import Change, Gate
from fairlead.streams import Consumer
from fairlead.streams.jobs import Job, Kind
from fairlead.streams.queue import JobsQueue
from fairlead.streams.schedulers import FairByTopic, OneAtATime
from fairlead.streams.turns import Turns
from tests.streams.staging import Book, app_on, filled, job, running, until, wait_committed, writing


class Desk:
    """A queue of four workers, for whose batches there are `slots`."""

    def __init__(self, slots: int) -> None:
        self.started: list[Job] = []
        self.queue = JobsQueue(4, self.started.append)
        self.shared = Slots(slots, name="shared")
        self.turns = self.queue.turns = Turns(
            self.queue, lambda policy, workers: Gate(policy, Both(workers, self.shared))
        )

    def push(self, *jobs: Job) -> None:
        self.queue.give(jobs)
        for one in jobs:
            self.queue.push(one)

    def lend(self, slots: int) -> None:
        with self.turns.gate.lock:
            self.turns.gate.adjust(Change("shared", "resize", (slots,)))

    @property
    def counts(self) -> tuple[int, int]:
        told = self.queue.statistics
        assert self.turns.gate.gate.active == sum(one.kind is Kind.CONSUMPTION for one in self.busy)
        return told["busy"], told["enqueued"]

    @property
    def busy(self) -> list[Job]:
        return self.queue.running()


def test_a_batch_without_a_slot_waits_in_the_order_it_was_pushed():
    desk, jobs = Desk(1), [job(partition=number) for number in range(3)]
    desk.push(*jobs)
    assert desk.started == jobs[:1]
    assert desk.counts == (1, 2)
    assert jobs[1].state == "queued"
    assert "1 shared" in str(desk.turns.explain(jobs[1], 0.0))
    assert desk.turns.explain(jobs[0], 0.0) is None
    desk.queue.done(jobs[0])
    assert desk.started == jobs[:2]
    desk.lend(2)
    assert desk.started == jobs
    for one in jobs[1:]:
        desk.queue.done(one)
    assert desk.counts == (0, 0)


def test_farewells_pass_those_who_wait_for_a_slot():
    desk, batches = Desk(0), [job(partition=number) for number in range(6)]
    farewell = job(partition=9, kind=Kind.REVOCATION)
    desk.push(*batches, farewell)
    assert desk.started == [farewell]
    desk.queue.done(farewell)
    desk.lend(9)
    assert desk.started == [farewell, *batches[:4]]  # there are four workers


def test_what_waits_for_a_slot_is_handed_back_at_the_end():
    desk, (first, second) = Desk(1), (job(partition=0), job(partition=1))
    desk.push(first, second)
    desk.queue.stop()
    assert second.handed_back
    assert desk.queue.handed_back == 1
    desk.lend(5)
    assert desk.started == [first]
    desk.queue.done(first)
    assert desk.queue.drain(0)
    assert desk.counts == (0, 0)


def test_a_group_that_starts_anew_waits_for_no_slot_any_more():
    desk, (first, second) = Desk(1), (job(partition=0), job(partition=1))
    desk.push(first, second)
    assert desk.queue.clear(second.group_id) == [second]
    assert desk.counts == (1, 0)
    desk.queue.done(first)
    assert desk.started == [first]
    assert desk.counts == (0, 0)


@pytest.mark.parametrize("scheduler", [OneAtATime, FairByTopic])
def test_an_app_with_its_own_scheduler_works_through_all_with_what_there_is(scheduler):
    shared, book, broker = Slots(1, name="shared"), Book(), filled({"orders": 3, "audit": 2}, 6)

    def consume(self: Consumer, messages: object) -> None:
        book.write("in")
        assert shared.used == 1
        book.write("out")

    app = app_on(broker, scheduler=scheduler)
    app.topic("orders", writing(book, consume=consume), batch_size=2)
    app.topic("audit", writing(book, consume=consume), batch_size=2)
    app.shares = lambda policy, workers: Gate(policy, Both(workers, shared))
    with running(app):
        wait_committed(broker, 30)
        until(lambda: not shared.used)
    assert [line[0] for line in book.lines] == ["in", "out"] * 15


def test_a_batch_that_waits_for_a_slot_says_so():
    shared, broker = Slots(0, name="shared"), filled({"orders": 1}, 2)
    app = app_on(broker, scheduler=FairByTopic)
    app.topic("orders", writing(Book()))
    app.shares = lambda policy, workers: Gate(policy, Both(workers, shared))
    with running(app):
        until(lambda: app.runtime.queue.statistics["enqueued"])
        assert "is queued, and waits" in app.explain("orders", 0)
        begun = time.monotonic()
    assert time.monotonic() - begun < 5.0  # nobody waited for it at the end
    assert broker.offsets("g") == {}
