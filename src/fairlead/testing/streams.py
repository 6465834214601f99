"""A Kafka broker in memory, for tests: partitions, consumer groups, rebalances, commits, and faults on demand.

It keeps the contract of fairlead/streams/broker.py without a wire, and nothing in it happens by chance: a member
learns of a rebalance when it polls, records come in the same order every time, and the only clock is the one it is
given.  Tests write records, bring members in and throw them out, make calls fail, and read what was committed.
"""

from __future__ import annotations

import threading
import time
import zlib
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from operator import attrgetter
from typing import Literal, NamedTuple

from fairlead.errors import BrokerFault, ConfigError
from fairlead.streams.broker import Message, Tp
from fairlead.testing.groups import Group, Member
from fairlead.testing.stream_client import MemoryClient

Verb = Literal["poll", "commit", "committed", "watermarks", "partitions", "send"]


class Commit(NamedTuple):
    """One partition of one commit that was stored; `owned` says whether its member held the partition then."""

    group: str
    member: str
    tp: Tp
    offset: int
    owned: bool


class Log:
    """The records of one partition; offsets may have gaps, as after compaction."""

    def __init__(self) -> None:
        self.records: list[Message] = []
        self.start = 0
        self.end = 0

    def read(self, offset: int, most: int) -> list[Message]:
        at = bisect_left(self.records, offset, key=attrgetter("offset"))
        return self.records[at : at + most]


class MemoryBroker:
    """A broker that lives in the process.

    `assignor` is "cooperative" or "eager".  A member that was not polled for `max_poll_interval` seconds of `clock`
    is expelled, at the next thing that happens.  A topic that is not there is made with `partitions` partitions;
    give `partitions=0` to have it refused.

    >>> broker = MemoryBroker({"orders": 2})
    >>> broker.write("orders", b"42", partition=1)
    <Message orders[1] offset 0>
    """

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        *,
        assignor: Literal["cooperative", "eager"] = "cooperative",
        clock: Callable[[], float] = time.monotonic,
        max_poll_interval: float = 300.0,
        partitions: int = 4,
        reset: Literal["earliest", "latest"] = "earliest",
    ) -> None:
        if topics is not None and not isinstance(topics, Mapping):
            raise ConfigError(
                f'topics are partitions by name, such as {{"orders": 2}}; got {topics!r}'
            )
        if assignor not in ("cooperative", "eager"):
            raise ConfigError(f"assignor is {assignor!r}; give 'cooperative' or 'eager'")
        self.clock = clock
        self.max_poll_interval = max_poll_interval
        self.changed = threading.Condition()
        """Held while anything is read or changed; notified at every change."""
        self.commits: list[Commit] = []
        """Every offset that was stored, in order."""
        self.is_down = False
        self._eager = assignor == "eager"
        self._partitions = partitions
        self._reset = reset
        self._logs: dict[Tp, Log] = {}
        self._counts: dict[str, int] = {}
        self._groups: dict[str, Group] = {}
        self._faults: defaultdict[str, deque[tuple[str | None, BrokerFault]]] = defaultdict(deque)
        self._spread: defaultdict[str, int] = defaultdict(int)  # records without a key, by topic
        self._made = 0
        for name, number in (topics or {}).items():
            self.topic(name, number)

    # The port

    def client(self, group: str, *, name: str = "", eof: bool = False) -> MemoryClient:
        with self.changing():
            self._made += 1
            named = f"{name or 'client'}-{self._made}"
            return MemoryClient(self, self.group(group), named, eof=eof)

    def outbox(self) -> MemoryOutbox:
        return MemoryOutbox(self)

    # Topics and records

    def topic(self, name: str, partitions: int) -> None:
        """Make a topic, or give one more partitions; groups that read it rebalance."""
        with self.changing():
            self._counts[name] = max(partitions, self._counts.get(name, 0))
            for number in range(self._counts[name]):
                self._logs.setdefault(Tp(name, number), Log())
            for group in self._groups.values():
                if any(name in member.topics for member in group.members.values()):
                    group.begin(self._counts)

    def write(
        self,
        topic: str,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
        timestamp: float | None = None,
    ) -> Message:
        """Append a record: to the partition named, else to the key's, else to each in turn."""
        with self.changing():
            self.expect([topic])
            number = self._counts.get(topic, 0)
            if partition is None and number:
                self._spread[topic] += key is None
                partition = (self._spread[topic] if key is None else zlib.crc32(key)) % number
            log = self._logs.get(Tp(topic, partition or 0))
            if log is None or partition is None:
                raise BrokerFault(f"{topic}[{partition}] does not exist; make it with topic()")
            message = Message(topic, partition, log.end, key, value, list(headers), timestamp)
            log.records.append(message)
            log.end += 1
            return message

    def skip(self, tp: Tp, offsets: int) -> None:
        """Leave a gap in the offsets of a partition, as compaction and transactions do."""
        with self.changing():
            self._logs[tp].end += offsets

    def trim(self, tp: Tp, before: int) -> None:
        """Forget the records before an offset, as retention does."""
        with self.changing():
            log = self._logs[tp]
            log.start = max(log.start, min(before, log.end))
            log.records = log.read(log.start, len(log.records))

    def records(self, topic: str) -> list[Message]:
        """Read all of a topic, partition by partition: dead letters, for one."""
        with self.changed:
            return [
                m for tp in sorted(self._logs) if tp.topic == topic for m in self._logs[tp].records
            ]

    # Groups

    def group(self, name: str) -> Group:
        return self._groups.setdefault(name, Group(name, eager=self._eager))

    def offsets(self, group: str) -> dict[Tp, int]:
        """Say what a group has committed."""
        with self.changed:
            return dict(self.group(group).offsets)

    def notes(self, group: str) -> dict[Tp, str]:
        """Return what a group has stored beside its offsets."""
        with self.changed:
            return dict(self.group(group).notes)

    def holders(self, group: str) -> dict[Tp, str]:
        """Say which member holds which partition now."""
        with self.changed:
            members = self.group(group).members.values()
            return {tp: member.name for member in members for tp in sorted(member.held)}

    def lag(self, group: str) -> int:
        """Count what the group has not committed, over every partition it reads or has committed."""
        with self.changed:
            known = self.group(group)
            topics = {topic for member in known.members.values() for topic in member.topics}
            tps = [tp for tp in self._logs if tp.topic in topics or tp in known.offsets]
            behind = {tp: max(known.offsets.get(tp, 0), self._logs[tp].start) for tp in tps}
            return sum(max(0, self._logs[tp].end - at) for tp, at in behind.items())

    def rebalancing(self, group: str) -> bool:
        """Say whether some member has yet to do its part."""
        with self.changed:
            self.expel_silent()
            return self.group(group).rebalancing

    def add_member(self, group: str, topics: Iterable[str], name: str = "ghost") -> None:
        """Bring in a member that plays by the rules, takes its share and reads nothing."""
        with self.changing():
            topics = list(topics)
            self.expect(topics)
            if name in self.group(group).members:
                raise ConfigError(
                    f"group {group!r} has a member {name!r} already; give another name"
                )
            ghost = Member(name, frozenset(topics), self.clock(), ghost=True)
            self.group(group).enter(ghost, self._counts)

    def remove_member(self, group: str, name: str = "ghost") -> None:
        """Let a member that `add_member` brought in leave."""
        with self.changing():
            ghost = self.group(group).members[name]
            ghost.held.clear()
            self.group(group).leave(ghost, self._counts)

    def rebalance(self, group: str) -> None:
        """Begin a round for no reason: eager members give up everything and get it back."""
        with self.changing():
            self.group(group).begin(self._counts)

    def revoke(self, client: MemoryClient, tps: Iterable[Tp] | None = None) -> None:
        """Take partitions (all, unless named) from a client when it next polls; it gets them again at the one after."""
        with self.changing():
            held = client.member.held
            client.member.to_revoke |= set(held if tps is None else tps) & set(held)

    def lose(self, client: MemoryClient, tps: Iterable[Tp] | None = None) -> None:
        """As `revoke`, without the chance to commit."""
        with self.changing():
            held = client.member.held
            client.member.to_lose |= set(held if tps is None else tps) & set(held)

    def expire(self, client: MemoryClient) -> None:
        """Expel a member at once, as if it had not polled for `max_poll_interval`; it rejoins when it polls."""
        with self.changing():
            self._expel(client.group, client.member)

    def expel_silent(self) -> None:
        """Expel whoever has not polled in time; a poll that comes too late saves nobody."""
        limit = self.clock() - self.max_poll_interval
        for group in self._groups.values():
            for member in list(group.members.values()):
                if not member.ghost and member.polled_at < limit:
                    self._expel(group, member)

    def _expel(self, group: Group, member: Member) -> None:
        if group.members.get(member.name) is member:
            member.expelled = True
            group.leave(member, self._counts)
            self.changed.notify_all()

    # Faults

    def fail(
        self, verb: Verb, fault: BrokerFault, *, times: int = 1, group: str | None = None
    ) -> None:
        """Let the next calls of a verb fail, of one group or of all; a fatal `poll` fault ends its client."""
        with self.changing():
            self._faults[verb].extend([(group, fault)] * times)

    def take_fault(self, verb: Verb, group: str | None) -> BrokerFault | None:
        waiting = self._faults[verb]
        for index, (whose, fault) in enumerate(waiting):
            if whose is None or whose == group:
                del waiting[index]
                return fault
        return None

    def down(self) -> None:
        """Be away: polls bring nothing, everything else fails and may be tried again."""
        with self.changing():
            self.is_down = True

    def up(self) -> None:
        """Come back."""
        with self.changing():
            self.is_down = False

    # Waiting, and what clients ask

    def wait_for(self, happened: Callable[[], bool], timeout: float = 10.0) -> bool:
        """Wait until a claim about this broker holds, looking again at every change; False if it never does."""
        with self.changed:
            return self.changed.wait_for(happened, timeout)

    @contextmanager
    def changing(self) -> Iterator[MemoryBroker]:
        with self.changed:
            try:
                yield self
            finally:
                self.changed.notify_all()

    @contextmanager
    def asked(self, verb: Verb, group: str | None) -> Iterator[MemoryBroker]:
        with self.changed:
            if self.is_down:
                raise BrokerFault("the broker cannot be reached", retriable=True)
            if fault := self.take_fault(verb, group):
                raise fault
            yield self

    def expect(self, topics: Iterable[str]) -> None:
        """Make the topics that are not there, if that is allowed."""
        for name in topics:
            if name not in self._counts and self._partitions:
                self.topic(name, self._partitions)

    def partition_counts(self) -> dict[str, int]:
        return self._counts

    def log(self, tp: Tp) -> Log | None:
        return self._logs.get(tp)

    def start_of(self, group: Group, tp: Tp) -> int:
        offset = group.offsets.get(tp)
        return self.reset_of(tp) if offset is None else offset

    def reset_of(self, tp: Tp) -> int:
        return self._logs[tp].start if self._reset == "earliest" else self._logs[tp].end

    def note_commit(
        self, group: Group, member: Member, tp: Tp, offset: int, note: str = ""
    ) -> None:
        # As Kafka does it: any member may store any offset; whether it should have is for tests to say.
        group.offsets[tp] = offset
        group.notes[tp] = note
        self.commits.append(Commit(group.name, member.name, tp, offset, tp in member.held))


class MemoryOutbox:
    """An `Outbox` that writes into the broker's topics at once."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._closed = False

    def send(
        self,
        topic: str,
        *,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
    ) -> Future[Tp]:
        written: Future[Tp] = Future()
        try:
            with self._broker.asked("send", None):
                if self._closed:
                    raise BrokerFault(f"a record for {topic!r} was not sent: the outbox is closed")
                message = self._broker.write(topic, value, key=key, headers=headers)
        except BrokerFault as fault:
            written.set_exception(fault)
        else:
            written.set_result(message.tp)
        return written

    def flush(self, timeout: float) -> bool:
        return True

    def close(self) -> None:
        self._closed = True
