"""A stream app in the server: it is hurried like the other doors, and its lag is known where nothing is read."""

import asyncio
import threading
import time

from fairlead.observe.watched import Feed
from fairlead.server.hosted_streams import HostedStreams
from fairlead.testing.streams import MemoryBroker
from tests.streams.staging import Book, app_on, filled, until, writing


def test_hurry_waits_for_nothing_that_runs():
    go = threading.Event()
    book = Book()

    def consume(self, messages):
        book.write("begun")
        go.wait(60.0)

    app = app_on(filled({"orders": 1}, 1), grace="50s")
    app.topic("orders", writing(book, consume=consume))
    door = HostedStreams(app, Feed())

    async def live() -> float:
        await door.start()
        await asyncio.to_thread(book.wait_for, "begun")
        since = time.monotonic()
        ending = asyncio.create_task(door.stop(50.0))
        await asyncio.to_thread(until, lambda: app.runtime.stopped)
        door.hurry()
        await ending
        return time.monotonic() - since

    try:
        assert asyncio.run(live()) < 20.0
    finally:
        go.set()


def test_the_lag_of_what_was_never_read_is_asked_for():
    app = app_on(MemoryBroker({"orders": 1}))
    app.topic("orders", writing(Book()))
    door = HostedStreams(app, Feed())

    def lags() -> list[int | None]:
        held = [each.holdings.values() for each in app.runtime.listeners.values()]
        return [one.lag for some in held for one in some]

    async def live() -> None:
        await door.start()
        await asyncio.to_thread(until, lambda: lags() == [0])
        await door.stop(1.0)

    asyncio.run(live())
