"""Under a user's scheduler nothing is read while something runs: a round has to bring work for every worker."""

import threading

import pytest

from fairlead.streams.broker import Batch, Eof
from fairlead.streams.schedulers import FairByTopic
from fairlead.testing.streams import MemoryBroker
from tests.streams.staging import Book, app_on, running, wait_committed, writing


class LongRuns(MemoryBroker):
    """Hands out one partition at a time, as a client does that has fetched a lot of each."""

    def client(self, group, *, name="", eof=False):
        client = super().client(group, name=name, eof=eof)
        poll = client.poll
        kept: list[Batch | Eof] = []

        def one_of(timeout, most):
            if not kept:
                kept.extend(poll(timeout, most))
            return [kept.pop(0)] if kept else []

        client.poll = one_of  # type: ignore[method-assign]
        return client


@pytest.mark.parametrize("scheduler", [None, FairByTopic])
def test_one_partition_at_a_time_still_keeps_every_worker_busy(scheduler):
    broker = LongRuns({"orders": 4})
    for number in range(40):
        broker.write("orders", b"%d" % number, partition=number % 4)
    together = threading.Barrier(4)
    book = Book()

    def consume(self, messages):
        together.wait(20.0)
        book.write("done", self.partition)

    app = app_on(broker, scheduler=scheduler)
    app.topic("orders", writing(book, consume=consume), batch_size=10)
    with running(app):
        wait_committed(broker, 40)
    assert sorted(book.of("done")) == [(0,), (1,), (2,), (3,)]
