"""A record that kills its process is noticed by its next owner, runs alone, and is buried; no other record is."""

import json
import os
import random
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from confluent_kafka import Consumer as Onlooker
from confluent_kafka import TopicPartition

from fairlead.streams.broker import Batch, Message, Tp
from fairlead.streams.marks import ALONE, BESIDE, Marks, Note, Run, doubt, read_note, write_note
from fairlead.streams.partitions import KeyedPartition, Partition
from fairlead.testing.streams import MemoryBroker
from tests.sizes import times
from tests.streams.mock_cluster import MockCluster
from tests.streams.staging import (
    PATIENCE,
    Book,
    app_on,
    filled,
    running,
    until,
    wait_committed,
    writing,
)
from tests.streams.test_kafka_port import KafkaRig

ORDERS = Tp("orders", 0)


def left_by_the_dead(broker: MemoryBroker, tp: Tp, note: str, offset: int = 0) -> None:
    with broker.changing():
        broker.group("g").offsets[tp] = offset
        broker.group("g").notes[tp] = note


def test_a_partition_is_noted_while_it_is_held_and_no_more_when_its_member_has_left():
    broker, book = filled({"orders": 2}, 3), Book()
    app = app_on(broker)
    app.topic("orders", writing(book))
    with running(app):
        wait_committed(broker, 6)
        held = [read_note(note) for note in broker.notes("g").values()]
    assert [note is not None and (note.deaths, note.runs) for note in held] == [(0, ())] * 2
    assert list(broker.notes("g").values()) == ["", ""]


def test_while_nothing_dies_a_call_costs_no_commit():
    broker, book = filled({"orders": 1}, 100), Book()
    app = app_on(broker, commit_interval="1h")
    app.topic("orders", writing(book), batch_size=1)
    with running(app):
        book.wait_for("record", 100)
        until(lambda: app.statistics().busy == 0)
        assert len(broker.commits) == 1
    assert len(broker.commits) == 2


@pytest.mark.parametrize("keyed", [False, True])
def test_what_ran_when_a_process_died_runs_one_by_one_with_nothing_beside_it(keyed):
    broker = filled({"orders": 2, "others": 2}, 20)
    left_by_the_dead(broker, ORDERS, write_note(1, [Run(0, 9, 0, BESIDE)]))
    left_by_the_dead(broker, Tp("others", 1), write_note(0, []))
    lock, inside, calls, wrong = threading.Lock(), [0], [], []

    def consume(self, messages):
        doubted = self.topic == "orders" and self.partition == 0 and messages[0].offset <= 9
        with lock:
            inside[0] += 1
            before = inside[0]
        time.sleep(0.001)
        with lock:
            alone = inside[0] == before == 1
            if doubted:
                calls.append(len(messages))
            if doubted and not (alone and len(messages) == 1):
                wrong.append((messages[0].offset, len(messages), before, inside[0]))
            inside[0] -= 1

    app = app_on(broker)
    how = {"parallel_by": lambda message: message.offset % 5} if keyed else {}
    for topic in ("orders", "others"):
        app.topic(topic, writing(Book(), consume=consume), batch_size=4, **how)
    with running(app):
        wait_committed(broker, 80)
    assert not wrong
    assert calls == [1] * 10


def test_explain_says_that_others_wait_for_the_record_that_runs_alone():
    broker, go_on = filled({"orders": 1, "others": 1}, 1), threading.Event()
    left_by_the_dead(broker, ORDERS, write_note(1, [Run(0, 0, 0, BESIDE)]))
    book = Book()

    def consume(self, messages):
        book.write(self.topic)
        go_on.wait(PATIENCE)

    app = app_on(broker)
    app.topic("orders", writing(book, consume=consume), priority=90)
    app.topic("others", writing(book, consume=consume))
    with running(app):
        until(lambda: book.of("orders") or book.of("others"))
        other = "others" if book.of("orders") else "orders"
        until(lambda: "alone" in app.explain(other, 0))
        go_on.set()
        wait_committed(broker, 2)


def test_a_record_that_had_its_tries_is_buried_without_another_and_says_why(caplog):
    broker, book = filled({"orders": 1, "dead": 1}, 0), Book()
    for number in range(4):
        broker.write("orders", b"%d" % number)
    left_by_the_dead(broker, ORDERS, write_note(2, [Run(1, 1, 2, ALONE)]), 1)
    app = app_on(broker)
    app.topic("orders", writing(book), max_retries=2, dead_letter="dead")
    with running(app):
        wait_committed(broker, 4)
    assert [offset for *_, offset, _ in book.of("record")] == [2, 3]
    (letter,) = broker.records("dead")
    assert (
        b"the process died while it ran this record, 3 times"
        in dict(letter.headers)["fairlead-error"]
    )
    assert "a process that held orders[0] died" in caplog.text


def test_without_a_dead_letter_it_is_tried_on_alone():
    broker, book = filled({"orders": 1}, 3), Book()
    left_by_the_dead(broker, ORDERS, write_note(9, [Run(0, 0, 9, ALONE)]))
    app = app_on(broker)
    app.topic("orders", writing(book))
    with running(app):
        wait_committed(broker, 3)
    assert len(book.of("record")) == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "{}",
        "[]",
        "7",
        "[" * 9999,
        '{"fairlead":1}',
        '{"fairlead":1,"deaths":-1,"runs":[]}',
        '{"fairlead":1,"deaths":0,"runs":[[1]]}',
        '{"fairlead":1,"deaths":0,"runs":[[1,2,"a",0]]}',
        '{"fairlead":1,"deaths":true,"runs":[]}',
        '{"fairlead":1,"deaths":0,"runs":7}',
    ],
)
def test_a_note_of_others_is_no_note(text):
    assert read_note(text) is None


def test_a_note_fits_beside_a_commit_whatever_runs():
    rng = random.Random(1)
    runs = [Run(at := rng.randrange(10**15), at + 500, 3, BESIDE) for _ in range(1000)]
    text = write_note(3, runs)
    assert len(text) < 4096
    note = read_note(text)
    assert note is not None
    assert note.runs[0].first == min(run.first for run in runs)
    assert len(write_note(10**6, runs[:40])) < 4096


doubted = doubt  # as mutants change it


class World:
    """Partitions, their commits and notes, and processes that die of poison."""

    def __init__(self, rng: random.Random, keyed: bool) -> None:
        self.rng, self.keyed = rng, keyed
        self.size = rng.randrange(1, 25)
        self.places = [Tp("t", number) for number in range(rng.randrange(1, 4))]
        self.poison = {(rng.choice(self.places), rng.randrange(self.size)) for _ in range(2)}
        self.committed = dict.fromkeys(self.places, 0)
        self.notes = dict.fromkeys(self.places, "")
        self.done: set[tuple[Tp, int]] = set()
        self.buried: set[tuple[Tp, int]] = set()
        self.most = rng.randrange(0, 4)  # retries

    def partition(self, tp: Tp) -> Partition:
        how = {"batch_size": 5, "max_retries": self.most, "buries": True}
        if self.keyed:
            return KeyedPartition(tp, key=lambda m: m.offset % 3, most_calls=2, **how)
        return Partition(tp, **how)  # type: ignore[arg-type]

    def live(self) -> bool:
        """Run one process; return whether it has done everything."""
        held, marks = {}, {}
        for tp in self.places:
            held[tp], marks[tp] = self.partition(tp), Marks()
            note = marks[tp].found(self.notes[tp], 0.0)
            if note is not None:
                doubted(held[tp], note)
            batch = [Message(*tp, at) for at in range(self.committed[tp], self.size)]
            if batch:
                held[tp].deliver(Batch(tp, batch))
                self.commit(tp, held, marks)
        while True:
            for tp, partition in held.items():
                while partition.tries and (message := partition.condemn()) is not None:
                    self.buried.add((tp, message.offset))
                    partition.bury(message)
            calls: list[Any] = []
            for tp in self.rng.sample(self.places, len(self.places)):
                partition = held[tp]
                if calls and calls[0][2]:
                    break
                was = partition.doubted_to
                if (taken := partition.take(0.0)) is not None:
                    alone = taken.messages.first <= was
                    if alone and calls:
                        partition.fail(taken, -1000.0)  # waits until nothing runs
                        taken.lanes[0].failures = 0
                        continue
                    calls.append((tp, taken, alone))
            if not calls:
                return all(one.at_rest for one in held.values())
            for tp, taken, alone in calls:
                if marks[tp].careful:
                    how = ALONE if alone and len(taken.messages) == 1 else BESIDE
                    tries = max(taken.lanes[0].failures, marks[tp].deaths) if how == ALONE else 0
                    run = Run(taken.messages.first, taken.messages.last, tries, how)
                    marks[tp].runs[taken] = run
                    self.commit(tp, held, marks)
            if any(
                (tp, at) in self.poison for tp, taken, _ in calls for at in taken.messages.offsets
            ):
                return False  # dies
            for tp, taken, _ in calls:
                marks[tp].runs.pop(taken, None)
                held[tp].finish(taken)
                self.done.update((tp, at) for at in taken.messages.offsets)
                if (held[tp].position or 0) > held[tp].doubted_to >= 0:
                    held[tp].doubted_to, marks[tp].deaths = -1, 0
                if marks[tp].careful or self.rng.random() < 0.3:
                    self.commit(tp, held, marks)

    def commit(self, tp, held, marks) -> None:
        position = held[tp].position
        self.committed[tp] = self.committed[tp] if position is None else position
        self.notes[tp] = marks[tp].note(held[tp])


def judge(seed: int, keyed: bool) -> None:
    world = World(random.Random(seed), keyed)
    lives = 1
    while not world.live():
        lives += 1
        assert lives < 60, (seed, world.poison, world.notes)
    assert world.buried == world.poison, seed
    everything = {(tp, at) for tp in world.places for at in range(world.size)}
    assert world.done | world.buried == everything, seed


@pytest.mark.parametrize("keyed", [False, True])
def test_over_random_worlds_every_poison_is_buried_and_nothing_else_is(keyed):
    for seed in range(times(1000, 200)):
        judge(seed, keyed)


def _blames_company(partition: Partition, note: Note) -> None:
    runs = tuple(run._replace(how=ALONE if run.how == BESIDE else run.how) for run in note.runs)
    doubt(partition, Note(note.deaths, runs))


def _blames_each_of_a_call(partition: Partition, note: Note) -> None:
    doubt(partition, note)
    for run in note.runs:
        partition.tries.update((at, note.deaths + 1) for at in range(run.first, run.last + 1))


def _forgets(partition: Partition, note: Note) -> None: ...


def _doubts_without_tries(partition: Partition, note: Note) -> None:
    doubt(partition, note)
    partition.tries.clear()


@pytest.mark.parametrize(
    "mutant", [_blames_company, _blames_each_of_a_call, _forgets, _doubts_without_tries]
)
def test_a_wrong_way_to_doubt_is_caught(mutant, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "doubted", mutant)
    with pytest.raises(AssertionError):
        for seed in range(200):
            judge(seed, False)


APP = """
import json, os, sys
from fairlead.streams import Consumer, StreamApp

class Work(Consumer):
    def consume(self, messages):
        for message in messages:
            if message.value == b"die":
                os.kill(os.getpid(), 9)

given = json.loads(sys.argv[1])
app = StreamApp(given["boot"], "g", commit_interval="200ms", grace="2s", kafka=given["kafka"])
app.topic(given["topic"], Work, batch_size=5, max_retries=2, dead_letter=given["dead"])
app.run()
"""


def test_a_record_that_kills_its_process_reaches_the_dead_letter_and_all_others_are_done():
    with MockCluster() as cluster:
        rig = KafkaRig(cluster)
        topic, dead = rig.topic(4), rig.topic(1)
        for number in range(4):
            values = [b"die" if (number, at) == (2, 7) else b"x" for at in range(20)]
            rig.write(topic, number, values)
        kafka = {"session.timeout.ms": 1500}
        given = {"boot": cluster.bootstrap, "kafka": kafka, "topic": topic, "dead": dead}
        script = [sys.executable, "-c", APP, json.dumps(given)]
        onlooker = Onlooker({"bootstrap.servers": cluster.bootstrap, "group.id": "g"})
        places = [TopicPartition(topic, number) for number in range(4)]

        def committed() -> int:
            return sum(max(0, one.offset) for one in onlooker.committed(places, timeout=10))

        deaths, ended = 0, None
        while ended is None:
            child = subprocess.Popen(
                script, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            )
            try:
                until(lambda: child.poll() is not None or committed() == 80, 30.0)  # noqa: B023
                if child.poll() is None:
                    child.terminate()
                    ended = child.wait(20)
                else:
                    assert child.returncode == -9
                    deaths += 1
                    assert deaths < 5
            finally:
                child.kill()
                child.wait()
        onlooker.close()
        reader = Onlooker(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": "o",
                "auto.offset.reset": "earliest",
            }
        )
        reader.assign([TopicPartition(dead, 0, 0)])
        (letter,) = reader.consume(1, 10.0)
        reader.close()
    assert (ended, deaths) == (0, 3)
    headers: dict[str, Any] = dict(letter.headers() or [])
    assert (letter.value(), headers["fairlead-offset"], headers["fairlead-partition"]) == (
        b"die",
        b"7",
        b"2",
    )
    assert b"the process died while it ran this record" in headers["fairlead-error"]
