"""Random lives of groups on the in-memory broker: nobody shares a partition, nothing is skipped, shares are even."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fairlead.errors import CommitRefused
from fairlead.streams.broker import Tp
from fairlead.testing import ManualClock
from fairlead.testing.streams import MemoryBroker
from tests.streams.port_contract import Reader

TPS = [Tp("t", number) for number in range(5)]


class Groups(RuleBasedStateMachine):
    """Readers come, go, stall and commit; `Reader` itself checks every batch and callback."""

    @initialize(assignor=st.sampled_from(["cooperative", "eager"]))
    def begin(self, assignor):
        self.clock = ManualClock()
        self.broker = MemoryBroker(
            {"t": len(TPS)}, assignor=assignor, clock=self.clock, max_poll_interval=10
        )
        self.readers: list[Reader] = []
        self.written = 0
        self.seen: dict[Tp, set[int]] = {tp: set() for tp in TPS}

    def take(self, reader: Reader) -> None:
        reader.poll(0, most=3)
        for message in reader.messages:
            self.seen[message.tp].add(message.offset)
        reader.messages.clear()

    @precondition(lambda self: len(self.readers) < 4)
    @rule()
    def come(self):
        self.readers.append(Reader(self.broker, "g", ["t"]))

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def go(self, data):
        reader = data.draw(st.sampled_from(self.readers))
        self.readers.remove(reader)
        reader.client.close()

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), times=st.integers(1, 3))
    def poll(self, data, times):
        reader = data.draw(st.sampled_from(self.readers))
        for _ in range(times):
            self.take(reader)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def commit(self, data):
        reader = data.draw(st.sampled_from(self.readers))
        done = {tp: offset for tp, offset in reader.next.items() if tp in reader.owned}
        before = self.broker.offsets("g")
        refused = False
        try:
            reader.client.commit(done)
        except CommitRefused:
            refused = True
        assert self.broker.offsets("g") == (before if refused else before | done)

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), how=st.sampled_from(["revoke", "lose", "expire"]))
    def disturb(self, data, how):
        reader = data.draw(st.sampled_from(self.readers))
        getattr(self.broker, how)(reader.client)

    @rule(tp=st.sampled_from(TPS), count=st.integers(1, 5))
    def write(self, tp, count):
        for _ in range(count):
            self.broker.write("t", partition=tp.partition)

    @rule(seconds=st.sampled_from([1.0, 6.0, 11.0]))
    def wait(self, seconds):
        self.clock.advance(seconds)

    @precondition(lambda self: self.readers)
    @rule()
    def settle(self):
        """Whoever polls long enough sees everything, and has an even share."""
        for _ in range(3 * len(self.readers) + 3):
            for reader in self.readers:
                self.take(reader)
        assert not self.broker.rebalancing("g")
        shares = [len(reader.owned) for reader in self.readers]
        assert sum(shares) == len(TPS)
        assert max(shares) - min(shares) <= 1
        for _ in range(60):
            for reader in self.readers:
                self.take(reader)
        for tp in TPS:
            log = self.broker.log(tp)
            assert log is not None
            skipped = set(range(log.end)) - self.seen[tp]
            assert not skipped, f"{tp}: {skipped}"

    @invariant()
    def nobody_shares_a_partition(self):
        holders = self.broker.group("g").members.values() if hasattr(self, "broker") else ()
        held = [tp for member in holders for tp in member.held]
        assert len(held) == len(set(held))

    @invariant()
    def commits_come_from_those_who_hold(self):
        if hasattr(self, "broker"):
            assert all(commit.owned for commit in self.broker.commits)


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
