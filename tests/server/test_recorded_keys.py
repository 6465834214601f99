"""Keys of batches in a recording: told by numbers, in little memory, and never at the cost of a verb."""

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from fairlead.errors import ConfigError
from fairlead.observe.watched import Feed
from fairlead.server import batch_keys
from fairlead.server.batch_keys import BatchKeys, Held
from fairlead.server.hosted_streams import WORKERS, HostedStreams
from fairlead.server.whatif import _replayed
from fairlead.serving.http import Problem
from fairlead.streams.broker import Batch, Message, Tp
from fairlead.streams.holdings import Holding
from fairlead.streams.jobs import CONSUMPTION, Job
from fairlead.streams.settings import read_topic
from fairlead.testing.streams import MemoryBroker
from tests.server.rig import run
from tests.streams.staging import Book, app_on, until, wait_committed, writing


class Key:
    """A key of the user's own, which has no name to show."""

    def __init__(self, name: Any) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        raise ValueError("no name")


class Fickle(Key):
    """One that is told apart when it is read, and no longer when it is recorded."""

    broken = False

    def __hash__(self) -> int:
        if Fickle.broken:
            raise TypeError("unhashable")
        return hash(self.name)


class Batches:
    """Batches of a topic by key, as the gate sees them."""

    def __init__(self) -> None:
        told = {"parallel_by": lambda message: message.key, "batch_size": 1000}
        topic = read_topic("orders", writing(Book()), told)
        self.holding = Holding(topic, Tp("orders", 0), 1, 1)
        self.offset = 0

    def ticket(self, *keys: Any) -> Any:
        """A batch with a record of each of these keys."""
        records = []
        for key in keys:
            records.append(Message("orders", 0, self.offset, key=key))
            self.offset += 1
        self.holding.partition.deliver(Batch(self.holding.tp, records))
        taken = self.holding.partition.take(0.0)
        assert taken is not None
        job = Job(CONSUMPTION, self.holding, taken, blocking=True)
        self.holding.partition.finish(taken)
        return SimpleNamespace(work=job)


def counts(held: Held) -> list[int]:
    assert held.keys is not None
    told = held.keys.counts()
    assert told is not None
    return list(told.values())


def names(held: Held) -> set[str]:
    assert held.keys is not None
    told = held.keys.counts()
    assert told is not None
    return set(told)


def test_equal_keys_have_one_number_and_others_have_others():
    batches, keys = Batches(), BatchKeys()
    first = keys.held_by(batches.ticket(Key("a"), Key("b"), Key("a")))
    second = keys.held_by(batches.ticket(Key("c"), Key("b")))
    assert counts(first) == [2, 1]
    assert len(names(first) & names(second)) == 1
    assert len(names(first) | names(second)) == 3
    assert (first.records, second.records) == (3, 2)


def test_a_key_that_cannot_be_told_apart_is_left_out():
    batches, keys = Batches(), BatchKeys()
    ticket = batches.ticket(Fickle("a"), Fickle("b"))
    Fickle.broken = True
    try:
        held = keys.held_by(ticket)
    finally:
        Fickle.broken = False
    assert held.records == 2
    assert held.keys is not None
    assert held.keys.counts() is None
    assert counts(keys.held_by(batches.ticket(Fickle("a")))) == [1]


def test_what_is_kept_of_keys_is_bounded_and_the_latest_are_told(monkeypatch):
    monkeypatch.setattr(batch_keys, "MOST_COUNTS", 100)
    batches, keys = Batches(), BatchKeys()
    kept = [keys.held_by(batches.ticket(*(f"{n}-{k}" for k in range(10)))) for n in range(100)]
    known = [held.keys is not None and held.keys.counts() is not None for held in kept]
    assert known[-10:] == [True] * 10
    assert sum(known) <= 20
    assert known == sorted(known)  # the oldest go first
    told = [name for held, known in zip(kept, known, strict=True) if known for name in names(held)]
    assert len(told) == len(set(told))


def test_a_batch_of_more_keys_than_are_kept_takes_nothing_from_others(monkeypatch):
    monkeypatch.setattr(batch_keys, "MOST_KEYS", 10)
    batches, keys = Batches(), BatchKeys()
    first = keys.held_by(batches.ticket("a", "b"))
    large = [keys.held_by(batches.ticket(*range(11))) for _ in range(3)]
    assert [held.keys is not None and held.keys.counts() for held in large] == [None] * 3
    assert counts(first) == [1, 1]


def test_a_key_that_is_still_told_of_keeps_its_number(monkeypatch):
    monkeypatch.setattr(batch_keys, "MOST_COUNTS", 50)
    batches, keys = Batches(), BatchKeys()
    kept = [keys.held_by(batches.ticket("always", *range(n * 9, n * 9 + 9))) for n in range(60)]
    numbers = [
        next(iter(held.keys.counts()))  # type: ignore[arg-type]
        for held in kept
        if held.keys is not None and held.keys.counts() is not None
    ]
    assert len(numbers) >= 5
    assert len(set(numbers)) == 1


def test_a_row_of_many_keys_takes_little():
    batches, keys = Batches(), BatchKeys()
    held = keys.held_by(batches.ticket(*range(500)))
    assert sum(map(sys.getsizeof, (held, held.keys, *(held.keys or ())))) < 500


def recorded(parallel_by: Any, keys: list[bytes], batch_size: int = 12) -> tuple[list[Any], Any]:
    """Consume with one worker; tell the lines of the recording, and the policy."""
    broker = MemoryBroker({"orders": 1})
    for key in keys:
        broker.write("orders", b"", key=key, partition=0)
    app = app_on(broker, concurrency=1)
    app.topic("orders", writing(Book()), batch_size=batch_size, parallel_by=parallel_by)
    feed = Feed()
    door = HostedStreams(app, feed)

    async def live() -> Any:
        await door.start()
        try:
            await asyncio.to_thread(wait_committed, broker, len(keys))
            scheduler: Any = app.runtime.calls.scheduler
            await asyncio.to_thread(until, lambda: not scheduler.gate.gate.active)
            return list(await door.recorded(feed.rows(WORKERS))), door.policy(WORKERS)
        finally:
            await door.stop(5.0)

    found: tuple[list[Any], Any] = run(live)
    return found


def test_a_real_app_whose_keys_have_no_name_is_recorded_and_its_slots_are_free():
    lines, _ = recorded(lambda message: Key(message.key), [b"a"] * 8, batch_size=2)
    assert sum(line["tokens"] for line in lines) == 8
    assert {key for line in lines for key in line["keys"]} == {"1"}  # in turn: nothing of its name


def test_what_if_says_that_keys_are_no_longer_known(monkeypatch):
    monkeypatch.setattr(batch_keys, "MOST_COUNTS", 4)
    keys = [b"%d" % number for number in range(40)]
    lines, policy = recorded(lambda message: message.key, keys, batch_size=4)
    assert None in [line["keys"] for line in lines]
    with pytest.raises(Problem, match="keys of some records in orders were not kept"):
        _replayed(lines, policy, {}, 1, lambda part: None)
    # Without the order by key nobody has to know them.
    policy["topics"]["orders"]["by_key"] = False
    found = _replayed(lines, policy, {}, 1, lambda part: None)
    assert found["before"]["groups"]["all"]["all"]["done"] == 40


def test_what_if_refuses_more_records_by_key_than_it_replays(monkeypatch):
    lines, policy = recorded(lambda message: message.key, [b"a", b"b"] * 20)
    monkeypatch.setattr("fairlead.server.whatif.MOST_TICKETS", 30)
    with pytest.raises(Problem, match=r"40 records by key, .* 30 at most; take a shorter time"):
        _replayed(lines, policy, {}, 1, lambda part: None)


def test_keys_too_many_to_replay_are_a_sentence_of_the_configuration():
    from fairlead.sim.records import arrivals_of

    line = {"t": 0.0, "class": "orders", "tokens": 9, "service_ms": 9, "partition": 0}
    by_key = line | {"keys": {"a": 6, "b": 3}}
    assert len(arrivals_of([by_key, line], most=10)) == 10  # those without keys stay together
    with pytest.raises(ConfigError, match="9 records by key"):
        arrivals_of([by_key], most=8)
