"""The pure state of a partition: order, contiguous positions, failures, burials; by hand and against a model."""

from math import inf

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fairlead.streams.broker import Batch, Message, Tp
from fairlead.streams.partitions import MOST_BACKOFF, KeyedPartition, Partition, Taken

TP = Tp("orders", 3)


def batch(*offsets: int, keys: str = "") -> Batch:
    named = dict(zip(offsets, keys, strict=bool(keys))) if keys else {}
    return Batch(
        TP,
        [
            Message("orders", 3, at, key=named[at].encode() if at in named else None)
            for at in offsets
        ],
    )


def keyed(**how) -> KeyedPartition:
    how = {"most_calls": 4, "batch_size": 10, "backoff": 1.0} | how
    return KeyedPartition(TP, key=lambda message: message.key, **how)


def take(partition: Partition, now: float = 0.0) -> Taken:
    taken = partition.take(now)
    assert taken is not None
    return taken


def offsets(taken: Taken | None) -> list[int] | None:
    return None if taken is None else [message.offset for message in taken.messages]


def test_batches_come_in_order_cut_to_size_and_small_ones_joined():
    partition = Partition(TP, batch_size=3)
    partition.deliver(batch(0, 1))
    partition.deliver(batch(2))
    partition.deliver(batch(3, 4, 5, 6))
    seen = []
    while (taken := partition.take(0.0)) is not None:
        assert partition.take(0.0) is None
        seen.append(offsets(taken))
        partition.finish(taken)
    assert seen == [[0, 1, 2], [3, 4, 5], [6]]
    assert partition.position == 7
    assert partition.at_rest


def test_an_empty_slice_of_what_a_call_is_given_is_empty():
    partition = Partition(TP, batch_size=3)
    partition.deliver(batch(0))
    partition.deliver(batch(1, 2))
    messages = take(partition).messages
    assert [len(messages[at:]) for at in (0, 1, 2, 3, 4)] == [3, 2, 1, 0, 0]
    assert len(batch(0)[1:]) == 0


def test_the_position_passes_over_gaps():
    partition = Partition(TP)
    partition.deliver(batch(4, 9, 30))
    partition.finish(take(partition))
    assert partition.position == 31


def test_after_a_failure_records_go_one_by_one_and_then_together_again():
    partition = Partition(TP, batch_size=3, backoff=2.0)
    partition.deliver(batch(0, 1, 2, 3, 4, 5))
    assert partition.fail(take(partition), 10.0) is None
    assert partition.position is None
    assert partition.take(11.9) is None
    assert partition.resting(11.9)
    assert partition.rests_until() == 12.0
    for at in (0, 1, 2):
        taken = take(partition, 12.0)
        assert offsets(taken) == [at]
        partition.finish(taken)
        assert partition.position == at + 1
    assert offsets(partition.take(12.0)) == [3, 4, 5]


def test_back_off_doubles_up_to_a_limit_and_without_burial_nothing_is_skipped():
    partition = Partition(TP, backoff=0.5, max_retries=0)
    partition.deliver(batch(7))
    now, waits = 0.0, []
    for _ in range(12):
        assert partition.fail(take(partition, now), now) is None
        waits.append(partition.rests_until() - now)
        now = partition.rests_until()
    assert waits[:4] == [0.5, 1.0, 2.0, 4.0]
    assert waits[-1] == MOST_BACKOFF
    assert partition.position is None
    partition.finish(take(partition, now))
    assert partition.position == 8


@pytest.mark.parametrize("size", [1, 4])
def test_two_retries_are_three_tries_of_the_record_at_fault(size: int):
    partition = Partition(TP, backoff=1.0, max_retries=2, buries=True)
    partition.deliver(batch(*range(size)))
    now, tries, buried = 0.0, 0, None
    while buried is None:
        taken = take(partition, now)
        if any(message.offset == size - 1 for message in taken.messages):
            tries += 1
            buried = partition.fail(taken, now)
            now += 100.0
        else:
            partition.finish(taken)
    assert tries == 3
    assert buried.offset == size - 1
    assert partition.position == (size - 1 or None)
    assert partition.take(now) is None
    assert partition.resting(now)
    assert not partition.at_rest
    partition.bury(buried)
    assert partition.position == size
    assert partition.at_rest


def test_a_record_is_never_buried_for_a_call_it_shared():
    partition = Partition(TP, backoff=0.0, max_retries=0, buries=True)
    partition.deliver(batch(0, 1))
    assert partition.fail(take(partition), 0.0) is None
    assert offsets(partition.take(0.0)) == [0]


def test_keys_run_beside_each_other_and_never_in_two_calls():
    partition = keyed(most_calls=2)
    partition.deliver(batch(0, 1, 2, 3, 4, keys="abacb"))
    first, second = take(partition), take(partition)
    assert partition.take(0.0) is None
    keys = [{message.key for message in taken.messages} for taken in (first, second)]
    assert not keys[0] & keys[1]
    partition.deliver(batch(5, 6, keys="ab"))
    assert partition.take(0.0) is None
    partition.finish(first)
    again = take(partition)
    assert offsets(again) == [5, 6]


def test_the_position_of_keys_waits_for_the_gap():
    partition = keyed()
    partition.deliver(batch(0, 1, 2, keys="abc"))
    taken = {taken.messages[0].key: taken for taken in (take(partition) for _ in range(3))}
    partition.finish(taken[b"b"])
    partition.finish(taken[b"c"])
    early = partition.position
    partition.finish(taken[b"a"])
    assert (early, partition.position) == (None, 3)
    assert partition.at_rest
    assert not partition._lanes
    assert not partition._early


def test_a_failed_key_rests_alone():
    partition = keyed(backoff=5.0)
    partition.deliver(batch(0, 1, 2, keys="aba"))
    first, second = take(partition), take(partition)
    partition.fail(first, 0.0)
    partition.finish(second)
    partition.deliver(batch(3, keys="b"))
    assert offsets(partition.take(1.0)) == [3]
    assert partition.take(1.0) is None
    assert offsets(partition.take(5.0)) == [0]


class Against(RuleBasedStateMachine):
    """Random deeds, and a model that knows each record's fate and nothing of lanes, batches or attempts."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.next = 0
        self.delivered: list[int] = []
        self.done: set[int] = set()
        self.key: dict[int, bytes | None] = {}
        self.running: list[Taken] = []
        self.to_bury: list[Message] = []
        self.failed: dict[int, int] = {}
        self.partition = self.make()

    def make(self) -> Partition:
        return Partition(TP, batch_size=3, max_retries=1, backoff=1.0, buries=True)

    @rule(
        gaps=st.lists(st.integers(1, 3), min_size=1, max_size=6),
        keys=st.lists(st.sampled_from("abc"), min_size=6, max_size=6),
    )
    def deliver(self, gaps, keys):
        found = []
        for gap, key in zip(gaps, keys, strict=False):
            self.next += gap
            self.key[self.next] = key.encode()
            found.append(Message("orders", 3, self.next, key=key.encode()))
            self.delivered.append(self.next)
        self.partition.deliver(Batch(TP, found))

    @rule()
    def take(self):
        taken = self.partition.take(self.now)
        if taken is None:
            return
        numbers = offsets(taken)
        busy = {self.lane(at) for other in self.running for at in offsets(other) or ()}
        lanes = {self.lane(at) for at in numbers or ()}
        assert not busy & lanes, "one lane in two calls"
        assert not lanes & {self.lane(message.offset) for message in self.to_bury}
        for lane in lanes:
            own = [at for at in numbers or () if self.lane(at) == lane]
            open_ = [at for at in self.delivered if self.lane(at) == lane and at not in self.done]
            assert own == open_[: len(own)], "not the next of its lane, in order"
        assert 1 <= len(taken.messages) <= 3
        self.running.append(taken)

    def lane(self, offset: int) -> object:
        return None

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 9))
    def finish(self, which):
        taken = self.running.pop(which % len(self.running))
        self.partition.finish(taken)
        self.done.update(offsets(taken) or ())

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 9))
    def fail(self, which):
        taken = self.running.pop(which % len(self.running))
        buried = self.partition.fail(taken, self.now)
        for at in offsets(taken) or ():
            self.failed[at] = self.failed.get(at, 0) + 1
        if buried is not None:
            assert offsets(taken) == [buried.offset]
            assert self.failed[buried.offset] >= 2
            self.to_bury.append(buried)
        else:
            assert len(taken.messages) > 1 or self.failed[taken.messages[0].offset] <= 2

    @precondition(lambda self: self.to_bury)
    @rule()
    def bury(self):
        message = self.to_bury.pop(0)
        self.partition.bury(message)
        self.done.add(message.offset)

    @rule(step=st.sampled_from((0.5, 1.0, 70.0)))
    def wait(self, step):
        self.now += step

    @invariant()
    def the_position_is_the_contiguous_prefix(self):
        prefix = None
        for at in self.delivered:
            if at not in self.done:
                break
            prefix = at + 1
        assert self.partition.position == prefix

    @invariant()
    def the_counts_are_right(self):
        held = sum(len(taken.messages) for taken in self.running)
        waiting = len(self.delivered) - len(self.done) - held - len(self.to_bury)
        assert self.partition.buffered == waiting
        assert self.partition.calls == len(self.running)
        assert self.partition.at_rest == (len(self.done) == len(self.delivered))
        assert self.partition.resting(self.now) or not self.to_bury

    def teardown(self):
        for _ in range(10 * len(self.delivered) + 10):
            while self.to_bury:
                self.bury()
            self.take()
            while self.running:
                self.finish(0)
            self.now = max(self.now, min(self.partition.ready_at(), self.now + 1000.0))
        assert len(self.done) == len(self.delivered), "records were left behind"
        assert self.partition.ready_at() == inf


class AgainstKeyed(Against):
    def make(self) -> Partition:
        return keyed(batch_size=3, most_calls=2, max_retries=1, buries=True)

    def lane(self, offset: int) -> object:
        return self.key[offset]


TestOrdered = Against.TestCase
TestOrdered.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestKeyed = AgainstKeyed.TestCase
TestKeyed.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
