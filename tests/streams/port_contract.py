"""What every broker behind the port must do, over the wire and in memory.

A test module gives a fixture `rig`; `Reader` is a member that notes what it is told and holds every batch against
the contract's invariants as it comes.
"""

import itertools
import pickle
import time
from collections.abc import Callable, Iterable
from typing import Protocol

import pytest

from fairlead.errors import BrokerFault, CommitRefused, Misuse
from fairlead.streams.broker import Batch, Broker, Client, Eof, Message, Outbox, Tp

PATIENCE = 20.0


class Rig(Protocol):
    """A broker under test, and what a test may do behind its back."""

    def broker(self, *, eager: bool = False) -> Broker: ...
    def topic(self, partitions: int) -> str: ...
    def write(self, topic: str, partition: int, values: Iterable[bytes]) -> None: ...
    def short_interval(self) -> Broker: ...
    def outstay(self) -> None:
        """Let more than the poll interval of `short_interval` pass."""


class Reader:
    """A member of a group, and everything it saw."""

    def __init__(self, broker: Broker, group: str, topics: list[str], *, eof: bool = False) -> None:
        self.client: Client = broker.client(group, eof=eof)
        self.events: list[tuple[str, list[Tp]]] = []
        self.messages: list[Message] = []
        self.ends: list[Eof] = []
        self.on_assigned: Callable[[list[Tp]], None] = lambda tps: None
        self.on_revoked: Callable[[list[Tp]], None] = lambda tps: None
        self.owned: set[Tp] = set()
        self.next: dict[Tp, int] = {}
        self.client.subscribe(
            topics,
            assigned=lambda tps: self._told("assigned", tps),
            revoked=lambda tps: self._told("revoked", tps),
            lost=lambda tps: self._told("lost", tps),
        )

    def _told(self, what: str, tps: list[Tp]) -> None:
        assert tps == sorted(set(tps)) != []
        self.events.append((what, tps))
        if what == "assigned":
            assert not self.owned.intersection(tps), "assigned twice"
            self.owned.update(tps)
            for tp in tps:
                self.next.pop(tp, None)
            self.on_assigned(tps)
        else:
            assert self.owned.issuperset(tps), "taken away twice"
            if what == "revoked":
                self.on_revoked(tps)
            self.owned.difference_update(tps)

    def poll(self, timeout: float = 0.05, most: int = 100) -> int:
        """Poll once and hold what comes against the contract; say how many records came."""
        found = self.client.poll(timeout, most)
        assert self.client.assignment() == sorted(self.owned)
        count = 0
        for part in found:
            assert part.tp in self.owned, f"{part} is not assigned"
            if isinstance(part, Eof):
                self.ends.append(part)
                continue
            assert part.offsets == sorted(set(part.offsets))
            assert part.first == part.offsets[0] >= self.next.get(part.tp, 0), "read twice"
            assert part.next_offset == part.offsets[-1] + 1
            self.next[part.tp] = part.next_offset
            self.messages += part
            count += len(part)
        assert count <= most
        return count

    def read(self, count: int) -> "Reader":
        """Poll until so many records have come in all."""
        return self.until(lambda: len(self.messages) >= count)

    def until(self, happened: Callable[[], bool], *others: "Reader") -> "Reader":
        """Poll, and let the others poll, until something has happened."""
        until = time.monotonic() + PATIENCE
        while not happened():
            assert time.monotonic() < until, f"never happened: {self.events}"
            for reader in (self, *others):
                reader.poll()
        return self

    def quiet(self, seconds: float = 0.4) -> int:
        """Poll for a while; count what came."""
        until = time.monotonic() + seconds
        count = 0
        while time.monotonic() < until:
            count += self.poll()
        return count

    def seek(self, tp: Tp, offset: int) -> None:
        self.next[tp] = offset
        self.client.seek(tp, offset)

    def offsets(self, tp: Tp) -> list[int]:
        return [message.offset for message in self.messages if message.tp == tp]

    def told(self, what: str) -> list[Tp]:
        return sorted(tp for name, tps in self.events for tp in tps if name == what)


_numbers = itertools.count()


@pytest.fixture
def group() -> str:
    return f"group-{time.time_ns()}-{next(_numbers)}"


@pytest.fixture
def join(group):
    """Make readers, and close them however the test ends."""
    made: list[Reader] = []

    def make(broker: Broker, *topics: str, group: str = group, eof: bool = False) -> Reader:
        made.append(Reader(broker, group, list(topics), eof=eof))
        return made[-1]

    yield make
    for reader in made:
        reader.on_revoked = lambda tps: None
        reader.client.close()


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


class PortContract:
    """Inherit, and give a fixture `rig`."""

    def test_reads_every_record_in_order_after_it_was_assigned(self, rig, join):
        topic = rig.topic(3)
        for partition in range(3):
            rig.write(topic, partition, numbers(40))
        reader = join(rig.broker(), topic).read(120)
        tps = [Tp(topic, partition) for partition in range(3)]
        assert reader.told("assigned") == tps
        assert [reader.offsets(tp) for tp in tps] == [list(range(40))] * 3
        assert [m.value for m in reader.messages if m.partition == 1] == numbers(40)

    def test_a_batch_is_a_sequence_of_messages_and_its_slices_are_batches(self, rig, join):
        topic = rig.topic(1)
        rig.write(topic, 0, numbers(10))
        reader = join(rig.broker(), topic)
        found: list[Batch] = []
        until = time.monotonic() + PATIENCE
        while sum(map(len, found)) < 10 and time.monotonic() < until:
            found += [part for part in reader.client.poll(0.05, 100) if isinstance(part, Batch)]
        batch = max(found, key=len)
        assert list(batch) == [batch[index] for index in range(len(batch))]
        assert (
            [m.offset for m in batch] == batch.offsets == list(range(batch.first, batch.last + 1))
        )
        assert batch[-1].value == b"%d" % batch.last
        part = batch[: len(batch) // 2 + 1]
        assert isinstance(part, Batch)
        assert (part.tp, part.first, part.next_offset) == (
            batch.tp,
            batch.first,
            batch.first + len(part),
        )
        rest = batch[len(batch) :]
        assert isinstance(rest, Batch)
        assert (list(rest), len(rest), rest.offsets, rest.tp) == ([], 0, [], batch.tp)
        assert repr(rest) == f"<Batch {batch.tp} empty>"
        assert batch[0] == batch[0]
        assert batch[0] in batch
        assert len({batch[0], next(iter(batch)), batch[-1], "else"}) == min(len(batch), 2) + 1
        copies = pickle.loads(pickle.dumps([batch, batch[0]]))
        assert copies[1] == batch[0]
        assert [m.value for m in copies[0]] == [m.value for m in batch]
        assert repr(copies[1]) == repr(batch[0])

    def test_never_hands_out_more_than_asked_for(self, rig, join):
        topic = rig.topic(2)
        rig.write(topic, 0, numbers(30))
        rig.write(topic, 1, numbers(30))
        reader = join(rig.broker(), topic)
        while len(reader.messages) < 60:
            reader.poll(0.05, most=7)
        assert reader.offsets(Tp(topic, 0)) == list(range(30))

    def test_a_poll_waits_for_the_first_record_and_no_longer(self, rig, join):
        topic = rig.topic(1)
        reader = join(rig.broker(), topic)
        reader.until(lambda: bool(reader.owned))
        reader.quiet(0.2)
        began = time.monotonic()
        assert reader.poll(0.2) == 0
        assert time.monotonic() - began > 0.1
        rig.write(topic, 0, numbers(3))
        began = time.monotonic()
        assert reader.poll(10.0) > 0
        assert time.monotonic() - began < 9.0

    def test_a_group_goes_on_at_its_committed_offsets(self, rig, join):
        topic = rig.topic(2)
        tps = [Tp(topic, 0), Tp(topic, 1)]
        for tp in tps:
            rig.write(topic, tp.partition, numbers(10))
        reader = join(rig.broker(), topic).read(20)
        assert reader.client.committed(tps) == dict.fromkeys(tps)
        reader.client.commit({})
        reader.client.commit({tps[0]: 4})
        assert reader.client.committed(tps) == {tps[0]: 4, tps[1]: None}
        reader.client.close()
        again = join(rig.broker(), topic).read(16)
        assert again.offsets(tps[0]) == list(range(4, 10))
        assert again.offsets(tps[1]) == list(range(10))

    def test_groups_know_nothing_of_each_other(self, rig, join, group):
        topic = rig.topic(1)
        rig.write(topic, 0, numbers(5))
        first = join(rig.broker(), topic).read(5)
        first.client.commit({Tp(topic, 0): 5})
        other = join(rig.broker(), topic, group=f"{group}-other").read(5)
        assert other.client.committed([Tp(topic, 0)]) == {Tp(topic, 0): None}

    def test_a_paused_partition_rests_and_goes_on_where_it_was(self, rig, join):
        topic = rig.topic(2)
        still, flowing = Tp(topic, 0), Tp(topic, 1)
        rig.write(topic, 0, numbers(5))
        reader = join(rig.broker(), topic).read(5)
        reader.client.pause([still])
        rig.write(topic, 0, numbers(5, 5))
        rig.write(topic, 1, numbers(5))
        reader.read(10)
        reader.quiet()
        assert (len(reader.offsets(still)), len(reader.offsets(flowing))) == (5, 5)
        reader.client.resume([still])
        reader.read(15)
        assert reader.offsets(still) == list(range(10))

    def test_seeks_back_and_again_from_a_pause(self, rig, join):
        topic = rig.topic(1)
        tp = Tp(topic, 0)
        rig.write(topic, 0, numbers(10))
        reader = join(rig.broker(), topic).read(10)
        reader.seek(tp, 6)
        reader.read(14)
        assert reader.offsets(tp)[10:] == [6, 7, 8, 9]
        reader.client.pause([tp])
        reader.seek(tp, 8)
        assert reader.quiet() == 0
        reader.client.resume([tp])
        reader.read(16)
        assert reader.offsets(tp)[14:] == [8, 9]
        assert reader.quiet(0.2) == 0

    def test_a_partition_may_be_paused_and_moved_as_it_is_assigned(self, rig, join):
        topic = rig.topic(2)
        moved, paused = Tp(topic, 0), Tp(topic, 1)
        rig.write(topic, 0, numbers(10))
        rig.write(topic, 1, numbers(10))
        reader = join(rig.broker(), topic)

        def arrive(tps):
            reader.client.pause([paused])
            reader.client.seek(moved, 7)

        reader.on_assigned = arrive
        reader.until(lambda: 9 in reader.offsets(moved))
        reader.quiet()
        assert not reader.offsets(paused)
        # Twice, if a machine under load had the group expel it meanwhile.
        assert set(reader.offsets(moved)) == {7, 8, 9}
        reader.on_assigned = lambda tps: None
        reader.client.resume([paused])
        reader.until(lambda: 9 in reader.offsets(paused))
        assert reader.offsets(paused)[:10] == list(range(10))

    def test_what_is_not_assigned_is_passed_over(self, rig, join):
        topic = rig.topic(1)
        reader = join(rig.broker(), topic)
        foreign = Tp(topic, 7)
        reader.client.pause([foreign])
        reader.client.resume([foreign])
        reader.client.seek(foreign, 3)
        rig.write(topic, 0, numbers(2))
        reader.read(2)
        assert reader.client.assignment() == [Tp(topic, 0)]

    def test_a_second_member_takes_its_share_from_where_the_first_committed(self, rig, join):
        topic = rig.topic(4)
        for partition in range(4):
            rig.write(topic, partition, numbers(10))
        first = join(rig.broker(), topic).read(40)
        first.client.commit({Tp(topic, n): 5 for n in range(4)})
        begins: dict[Tp, int] = {}

        def leave(tps: list[Tp]) -> None:
            try:
                first.client.commit(dict.fromkeys(tps, 6))
            except CommitRefused as refused:
                if not refused.retriable:  # the group may be in its next rebalance already
                    raise
                begins.update(dict.fromkeys(tps, 5))
            else:
                begins.update(dict.fromkeys(tps, 6))

        first.on_revoked = leave
        second = join(rig.broker(), topic)
        second.until(lambda: len(second.owned) == 2 and len(second.messages) >= 8, first)
        gone = first.told("revoked")
        assert len(gone) == 2
        assert sorted(second.owned) == gone
        assert sorted(first.owned | second.owned) == [Tp(topic, n) for n in range(4)]
        second.until(lambda: all(second.next.get(tp) == 10 for tp in gone), first)
        assert [second.offsets(tp) for tp in gone] == [list(range(begins[tp], 10)) for tp in gone]
        assert len(first.messages) == 40, "what stays is not read again"
        assert first.told("lost") == second.told("lost") == []

    def test_an_eager_group_gives_up_everything_and_gets_its_share(self, rig, join):
        topic = rig.topic(4)
        for partition in range(4):
            rig.write(topic, partition, numbers(5))
        broker = rig.broker(eager=True)
        first = join(broker, topic).read(20)
        first.client.commit({Tp(topic, partition): 5 for partition in range(4)})
        second = join(broker, topic)
        second.until(lambda: len(second.owned) == 2 == len(first.owned), first)
        # Then perhaps its share too: a group may come together again before everyone has seen it whole.
        assert first.events[1] == ("revoked", [Tp(topic, n) for n in range(4)])
        rig.write(topic, 0, numbers(1))
        rig.write(topic, 3, numbers(1))
        second.until(lambda: len(first.messages) + len(second.messages) == 22, first)

    def test_no_pause_outlives_an_assignment(self, rig, join):
        topic = rig.topic(2)
        tps = [Tp(topic, 0), Tp(topic, 1)]
        first = join(rig.broker(), topic)
        first.until(lambda: len(first.owned) == 2)
        first.client.pause(tps)
        second = join(rig.broker(), topic)
        second.until(lambda: len(second.owned) == 1 == len(first.owned), first)
        away = sorted(second.owned)
        second.client.close()
        second.owned.clear()
        first.until(lambda: len(first.owned) == 2)
        for tp in tps:
            rig.write(topic, tp.partition, numbers(3))
        first.read(3)
        first.quiet()
        assert [m.tp for m in first.messages] == away * 3, "what stayed is still paused"

    def test_closing_revokes_and_leaves_the_rest_to_others(self, rig, join):
        topic = rig.topic(2)
        rig.write(topic, 0, numbers(5))
        first = join(rig.broker(), topic).read(5)
        first.on_revoked = lambda tps: first.client.commit({Tp(topic, 0): 3})
        first.client.close()
        first.client.close()
        assert first.told("revoked") == [Tp(topic, 0), Tp(topic, 1)]
        assert first.client.assignment() == []
        with pytest.raises(Misuse, match="closed"):
            first.client.poll(0, 1)
        second = join(rig.broker(), topic).read(2)
        assert second.offsets(Tp(topic, 0)) == [3, 4]

    def test_whoever_was_not_polled_in_time_loses_everything_and_begins_again(self, rig, join):
        topic = rig.topic(2)
        tps = [Tp(topic, 0), Tp(topic, 1)]
        for tp in tps:
            rig.write(topic, tp.partition, numbers(5))
        reader = join(rig.short_interval(), topic).read(10)
        reader.client.commit({tps[0]: 5})
        rig.outstay()
        with pytest.raises(CommitRefused) as refused:
            reader.client.commit({tps[1]: 5})
        assert refused.value.refused == (tps[1],)
        reader.until(lambda: reader.told("lost") == tps)
        reader.read(15)
        assert reader.told("revoked") == []
        assert reader.offsets(tps[0]) == list(range(5))
        assert reader.offsets(tps[1]) == [*range(5), *range(5)]

    def test_the_end_is_told_to_those_who_ask(self, rig, join, group):
        topic = rig.topic(1)
        tp = Tp(topic, 0)
        rig.write(topic, 0, numbers(3))
        reader = join(rig.broker(), topic, eof=True)
        reader.until(lambda: bool(reader.ends))
        assert len(reader.messages) == 3
        reader.quiet()
        assert reader.ends == [Eof(tp, 3)]
        rig.write(topic, 0, numbers(1))
        reader.until(lambda: len(reader.ends) > 1)
        assert (len(reader.messages), reader.ends[1:]) == (4, [Eof(tp, 4)])
        other = join(rig.broker(), topic, group=f"{group}-other").read(4)
        other.quiet()
        assert other.ends == []

    def test_what_a_callback_raises_comes_out_and_the_rebalance_goes_on(self, rig, join):
        topic = rig.topic(1)
        rig.write(topic, 0, numbers(3))
        reader = join(rig.broker(), topic)

        def arrive(tps):
            raise ZeroDivisionError

        reader.on_assigned = arrive
        with pytest.raises(ZeroDivisionError):
            reader.read(4)
        reader.read(3)
        reader.on_revoked = arrive
        with pytest.raises(ZeroDivisionError):
            reader.client.close()
        assert reader.client.assignment() == []

    def test_answers_questions_without_a_subscription(self, rig, group):
        topic = rig.topic(3)
        rig.write(topic, 1, numbers(7))
        client = rig.broker().client(group)
        try:
            assert client.partitions(topic) == 3
            assert client.watermarks(Tp(topic, 1)) == (0, 7)
            assert client.watermarks(Tp(topic, 2)) == (0, 0)
            assert client.committed([Tp(topic, 1)]) == {Tp(topic, 1): None}
            assert client.assignment() == []
            with pytest.raises(Misuse, match="not subscribed"):
                client.poll(0, 1)
        finally:
            client.close()

    def test_knows_the_ends_of_what_it_reads_without_asking(self, rig, join):
        topic = rig.topic(1)
        rig.write(topic, 0, numbers(7))
        reader = join(rig.broker(), topic).read(7)
        assert reader.client.ends([Tp(topic, 0), Tp("elsewhere", 0)]) == {Tp(topic, 0): 7}

    def test_an_outbox_writes_what_it_is_given(self, rig, join):
        topic = rig.topic(2)
        box: Outbox = rig.broker().outbox()
        sent = [
            box.send(topic, key=b"ann", value=b"42", headers=[("error", b"too late"), ("n", b"")]),
            box.send(topic, key=b"ann", value=None),
            box.send(topic),
        ]
        assert box.flush(PATIENCE)
        tps = [future.result(PATIENCE) for future in sent]
        assert tps[0] == tps[1]
        reader = join(rig.broker(), topic).read(3)
        first, second = (m for m in reader.messages if m.key == b"ann")
        assert (first.value, first.headers) == (b"42", [("error", b"too late"), ("n", b"")])
        assert (second.value, second.headers) == (None, [])
        assert [m.key for m in reader.messages].count(None) == 1
        box.close()
        box.close()
        assert isinstance(box.send(topic).exception(PATIENCE), BrokerFault)

    def test_subscribes_once(self, rig, join):
        topic = rig.topic(1)
        reader = join(rig.broker(), topic)
        nobody = {"assigned": print, "revoked": print, "lost": print}
        with pytest.raises(Misuse, match="already"):
            reader.client.subscribe([topic], **nobody)
