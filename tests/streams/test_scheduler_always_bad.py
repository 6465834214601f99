"""Schedulers that are bad for long: others do no work twice, and are told farewell."""

import logging
import time

import pytest

from fairlead.streams.broker import Tp
from tests.streams.staging import (
    Book,
    app_on,
    filled,
    running,
    until,
    writing,
)
from tests.streams.test_scheduler_zoo import AsTheyCome, Forgets


def reports_of(book: Book) -> list[tuple[object, ...]]:
    return [line for line in book.lines if line[:2] == ("record", "reports")]


class RaisesAlways(AsTheyCome):
    def misbehave(self, job):
        raise RuntimeError("never")


class PushesTwiceAlways(AsTheyCome):
    def misbehave(self, job):
        self.queue << job << job


class KeepsEveryJob(AsTheyCome):
    def __init__(self, queue):
        super().__init__(queue)
        self.kept = []

    def misbehave(self, job):
        self.kept.append(job)
        raise RuntimeError("never")

    def manage(self):
        if self.kept:
            self.queue << self.kept.pop()


ALWAYS = [RaisesAlways, PushesTwiceAlways, KeepsEveryJob, Forgets]


@pytest.mark.parametrize("scheduler", ALWAYS, ids=lambda one: one.__name__)
def test_a_scheduler_that_is_always_bad_to_one_group_costs_the_others_no_work(scheduler):
    """Counted, not timed; `make bench ARGS=streams` times it.  However often the bad group starts anew, no batch of the
    others is given twice or run twice, and they do not start anew."""
    broker = filled({"orders": 2, "reports": 2}, 2000)
    given: list[int] = []

    class Counting(scheduler):  # type: ignore[misc,valid-type]
        def schedule_consumption(self, jobs):
            given.extend(len(job.messages) for job in jobs if job.group_id == "good")
            super().schedule_consumption(jobs)

    book = Book()
    app = app_on(broker, scheduler=Counting, commit_interval="5ms")
    app.topic("orders", writing(book), subscription_group="bad", batch_size=50)
    app.topic("reports", writing(book), subscription_group="good", batch_size=50)
    done = {Tp("reports", 0): 2000, Tp("reports", 1): 2000}
    logging.getLogger("fairlead.streams").disabled = True
    try:
        with running(app):
            assert broker.wait_for(
                lambda: {tp: at for tp, at in broker.offsets("g").items() if tp in done} == done
            )
            figures = app.statistics().groups["good"]
    finally:
        logging.getLogger("fairlead.streams").disabled = False
    assert sum(given) == 4000
    assert len(given) <= 80 / 0.95
    assert len(reports_of(book)) == 4000
    assert figures.resets == 0


def test_stopping_in_the_midst_of_a_reset_still_says_farewell_to_each_partition():
    class RaisesOnce(AsTheyCome):
        raised = False

        def manage(self):
            if not self.raised:
                self.raised = True
                raise RuntimeError("cannot schedule")

    broker = filled({"orders": 3}, 5)
    book = Book()
    more = {
        "revoked": lambda self: book.write("farewell", self.partition),
        "shutdown": lambda self: book.write("farewell", self.partition),
    }
    app = app_on(broker, scheduler=RaisesOnce)
    app.topic("orders", writing(book, **more))
    with running(app):
        listener = app.runtime.listeners["default"]
        clear = app.runtime.calls.clear

        def stops(group_id):
            listener.drain()
            listener.finish(time.monotonic() + 10.0)
            clear(group_id)

        app.runtime.calls.clear = stops  # type: ignore[method-assign]
        until(lambda: listener.closed)
    assert sorted(book.of("farewell")) == [(0,), (1,), (2,)]
