"""A consumer is a class, a partial of one, a factory or an instance; one that cannot be made is refused at once."""

import abc
import asyncio
import dataclasses
import threading
from functools import partial
from typing import Any, cast

import pytest

from fairlead.errors import ConfigError
from fairlead.streams import Consumer, StreamApp
from fairlead.streams.broker import Tp
from fairlead.testing.streams import MemoryBroker
from tests.streams.staging import (
    PATIENCE,
    Book,
    app_on,
    client_of,
    filled,
    running,
    until,
    wait_committed,
)


class Stores(Consumer):
    """Writes each record into a book that it is given."""

    def __init__(self, book: Book) -> None:
        self.book = book

    def consume(self, messages):
        for message in messages:
            self.book.write("record", self.topic, self.partition, message.partition, id(self))


@dataclasses.dataclass(frozen=True)
class Frozen(Consumer):
    book: Book

    async def consume(self, messages):
        await asyncio.sleep(0)
        for message in messages:
            self.book.write("record", self.topic, self.partition, message.partition, id(self))


GIVEN = {
    "partial": lambda book: partial(Stores, book),
    "factory": lambda book: lambda: Stores(book),
    "method": lambda book: type("Pool", (), {"make": lambda self: Stores(book)})().make,
    "instance": lambda book: Stores(book),
    "frozen partial": lambda book: partial(Frozen, book),
    "frozen instance": lambda book: Frozen(book),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_a_consumer_with_what_it_depends_on_is_taken_and_knows_its_partition(kind):
    book, broker = Book(), filled({"orders": 3}, 5)
    app = app_on(broker)
    app.topic("orders", GIVEN[kind](book))
    with running(app):
        wait_committed(broker, 15)
    records = book.of("record")
    assert len(records) == 15
    assert all(topic == "orders" and own == of for topic, own, of, _ in records)
    assert len({one for *_, one in records}) == (1 if kind.endswith("instance") else 3)


def test_calls_of_one_instance_overlap_across_partitions_and_never_within_one():
    both, inside = threading.Barrier(2), Book()

    class Meets(Consumer):
        def consume(self, messages):
            assert self.partition == messages[0].partition
            inside.write("in", self.partition)
            both.wait(PATIENCE)
            assert self.partition == messages[0].partition

    broker = filled({"orders": 2}, 1)
    app = app_on(broker)
    app.topic("orders", Meets())
    with running(app):
        wait_committed(broker, 2)
    assert sorted(inside.of("in")) == [(0,), (1,)]


def test_lost_is_that_of_the_call_where_partitions_share_an_instance():
    book, go_on = Book(), threading.Event()

    class Waits(Consumer):
        def consume(self, messages):
            book.write("in", self.partition)
            assert go_on.wait(PATIENCE)
            book.write("lost", self.partition, self.lost)

    broker = filled({"orders": 2}, 1)
    app = app_on(broker)
    app.topic("orders", Waits(), long_running=True)
    with running(app):
        book.wait_for("in", 2)
        holding = app.runtime.listeners["default"].holdings[Tp("orders", 1)]
        broker.lose(client_of(app), [holding.tp])
        broker.wait_for(lambda: holding.lost, PATIENCE)
        go_on.set()
        book.wait(lambda: {(0, False), (1, True)} <= set(book_of(book)))


def book_of(book: Book):
    return [line[1:] for line in book.lines if line[0] == "lost"]


def test_what_a_factory_made_when_it_was_given_serves_the_first_partition():
    made = []

    class Counted(Consumer):
        def __init__(self):
            made.append(self)

        def consume(self, messages): ...

    broker = filled({"orders": 2}, 1)
    app = app_on(broker)
    app.topic("orders", lambda: Counted())
    assert len(made) == 1
    with running(app):
        wait_committed(broker, 2)
    assert len(made) == 2


class Needs(Consumer):
    def __init__(self, db): ...

    def consume(self, messages): ...


class Abstract(Consumer, abc.ABC):
    @abc.abstractmethod
    def store(self): ...

    def consume(self, messages): ...


class Apart(Consumer):
    processes = True

    def __init__(self, db=None): ...

    def consume(self, messages): ...


async def made_by_a_coroutine():
    return Needs(1)


def raises():
    raise RuntimeError("no database")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Needs, r"Needs cannot be made without arguments \(missing a required argument: 'db'\)"),
        (partial[Any](Needs), "cannot be made without arguments"),
        (partial(cast(Any, Needs), 1, 2), "too many positional"),
        (lambda db: Needs(db), "cannot be made without arguments"),
        (Abstract, "Abstract is abstract; it has to define store"),
        (raises, "the factory raises made no consumer: RuntimeError: no database"),
        (lambda: 7, "it made 7"),
        (lambda: Needs, "it made"),
        (made_by_a_coroutine, "is a coroutine function"),
        (partial(Apart, 1), "processes = True"),
        (Apart(), "processes = True"),
        (lambda: Apart(), "processes = True"),
        (partial(dict, a=1), "must be a class derived from Consumer"),
        (Consumer(), "has to define consume"),
    ],
)
def test_a_consumer_that_cannot_be_made_is_refused_when_it_is_given(given, said):
    app = StreamApp(broker=MemoryBroker({"orders": 1}), group="g")
    with pytest.raises(ConfigError, match=f"'orders'.*{said}"):
        app.topic("orders", given)
    assert not app.topics


def test_a_factory_that_makes_something_else_later_fails_the_call_and_says_so(caplog):
    later = [Stores(Book())]
    factory: Any = lambda: later.pop() if later else "nothing"  # noqa: E731
    broker = filled({"orders": 2}, 1)
    app = app_on(broker)
    app.topic("orders", factory, retry_backoff="10ms")
    said = "the factory made 'nothing'; it has to make a Stores each time"
    with running(app):
        until(lambda: said in caplog.text)
    assert sum(broker.offsets("g").values()) <= 1
