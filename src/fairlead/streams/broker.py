"""What the streams door needs of a broker, and nothing of how one is reached.

A `Client` is one member of one consumer group.  It belongs to one thread, its listener's: nobody else may call
it, and every callback of a rebalance runs inside its `poll` or `close`.  What happens on the wire (Kafka, in
kafka.py) or in memory (fairlead/testing/streams.py) is held to one contract, tests/streams/port_contract.py:

- Records of one partition come in order of their offsets, and none twice unless a `seek`, or a new assignment, says so.
- `assigned` comes before the first record of a partition; after `revoked` or `lost` none of it comes, not even
  what was already fetched, until it is assigned again.  A partition is told of once: either `revoked` or `lost`.
- A partition that comes starts at its committed offset, at full flow: no pause outlives an assignment.
- Offsets are the next to read.  `commit` has stored all it was given when it returns, or it raises `CommitRefused`.

Records come in batches, one partition each, because a Python object per record is most of what reading costs: a
`Batch` knows its offsets at once and makes its messages when somebody looks at them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, overload

from fairlead.errors import BrokerFault, CommitRefused

if TYPE_CHECKING:
    from concurrent.futures import Future

Headers = list[tuple[str, bytes]]


class Tp(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


class Message:
    """One record; equal to another if it is the same record of the same partition.

    >>> message = Message("orders", 0, 17, key=b"ann", value=b"42")
    >>> message.offset, message.value
    (17, b'42')
    """

    __slots__ = ("topic", "partition", "offset", "key", "value", "headers", "timestamp")

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Headers | None = None,
        timestamp: float | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.key = key
        self.value = value
        self.headers: Headers = headers if headers is not None else []
        self.timestamp = timestamp
        """Seconds since 1970, as its producer or its broker wrote it; None if neither did."""

    @property
    def tp(self) -> Tp:
        return Tp(self.topic, self.partition)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return self._place == other._place

    def __hash__(self) -> int:
        return hash(self._place)

    @property
    def _place(self) -> tuple[int, int, str]:
        return self.offset, self.partition, self.topic

    def __repr__(self) -> str:
        return f"<Message {self.topic}[{self.partition}] offset {self.offset}>"


class Batch(Sequence[Message]):
    """Records of one partition in order of their offsets, which may have gaps.  Never changed.

    `first` and `last` are offsets; `next_offset` is what to commit when all is done.  A slice is a batch again, and
    only a slice is ever empty: that one has none of the three.

    >>> batch = Batch(Tp("orders", 0), [Message("orders", 0, offset) for offset in (4, 5, 9)])
    >>> len(batch), batch.first, batch.next_offset, batch[:2].offsets
    (3, 4, 10, [4, 5])
    """

    __slots__ = ("tp", "first", "last", "_messages")

    def __init__(self, tp: Tp, messages: Sequence[Message]) -> None:
        self.tp = tp
        if messages:
            self.first = messages[0].offset
            self.last = messages[-1].offset
        self._messages = messages

    @property
    def next_offset(self) -> int:
        return self.last + 1

    @property
    def offsets(self) -> list[int]:
        return [message.offset for message in self._messages]

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Batch: ...
    def __getitem__(self, index: int | slice) -> Message | Batch:
        if isinstance(index, slice):
            return Batch(self.tp, self._messages[index])
        return self._messages[index]

    def __repr__(self) -> str:
        if not len(self):
            return f"<Batch {self.tp} empty>"
        return f"<Batch {self.tp} offsets {self.first} to {self.last}, {len(self)} messages>"


class Eof(NamedTuple):
    """The end of a partition was reached: `offset` will be the next record's.  Only where it was asked for."""

    tp: Tp
    offset: int


Told = Callable[[list[Tp]], None]
"""A callback of a rebalance: only the partitions that come, or go, never an empty list."""


NO_NOTES: Mapping[Tp, str] = {}


class Client(Protocol):
    """One member of one consumer group; used by one thread."""

    def subscribe(
        self, topics: Sequence[str], *, assigned: Told, revoked: Told, lost: Told
    ) -> None:
        """Join the group for these topics, once.

        `revoked` still owns what it names: it may `commit`.  `lost` does not any more.  A callback may also
        `pause` and `seek` what it was told of.  What it raises comes out of that `poll`, or of the next one if that
        had records, or out of `close`; the rebalance goes on all the same.
        """

    def poll(self, timeout: float, most: int) -> list[Batch | Eof]:
        """Wait up to `timeout` seconds for something, then take what is there, at most `most` records.

        A partition may come in several batches.  Raise `BrokerFault`, with nothing lost: what was read before
        the fault is handed out first.
        """

    def pause(self, tps: Iterable[Tp]) -> None:
        """Stop reading these; what was fetched of them is thrown away and read again on `resume`.

        Partitions that are not assigned are passed over, as in `resume`.
        """

    def resume(self, tps: Iterable[Tp]) -> None:
        """Read these again, from after the last record handed out, or from where `seek` put them."""

    def seek(self, tp: Tp, offset: int) -> None:
        """Go on at `offset`, also of a paused partition.  Passed over if it is not assigned."""

    def commit(self, offsets: Mapping[Tp, int], notes: Mapping[Tp, str] = NO_NOTES) -> None:
        """Store the next offset to read of each, and wait for it; raise `CommitRefused`.

        A note is stored beside its offset; without one, the note that was there is blank from then on.
        """

    def committed(self, tps: Iterable[Tp]) -> dict[Tp, int | None]:
        """Ask what is stored of each, None for nothing.  Needs no subscription; raises `BrokerFault`."""

    def notes(self, tps: Iterable[Tp]) -> dict[Tp, tuple[int | None, str]]:
        """Ask what is stored of each, as `committed`, with the note beside it; raises `BrokerFault`."""

    def watermarks(self, tp: Tp) -> tuple[int, int]:
        """Ask for the offset of the first record kept and of the next to be written; raises `BrokerFault`."""

    def ends(self, tps: Iterable[Tp]) -> dict[Tp, int]:
        """Say what the last fetch said of each one's end, without asking; what is not known is left out."""

    def partitions(self, topic: str) -> int:
        """Ask how many partitions a topic has, 0 if there is none of that name; raises `BrokerFault`."""

    def assignment(self) -> list[Tp]:
        """Say what is assigned now, sorted."""

    def close(self) -> None:
        """Leave the group, within a bound; `revoked` runs inside for what is still held.  Once or often."""


class Outbox(Protocol):
    """Where dead letters go.  Thread-safe."""

    def send(
        self,
        topic: str,
        *,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
    ) -> Future[Tp]:
        """Write one record; the future ends when the broker has it, or with `BrokerFault`.

        The fault is retriable if the cluster is away; if not, this record or its topic is refused.

        Its callbacks run on the outbox's own thread.
        """

    def flush(self, timeout: float) -> bool:
        """Wait until all that was sent has ended; False if some has not in time."""

    def close(self) -> None:
        """Flush within a bound; what has not ended by then ends with `BrokerFault`."""


class Broker(Protocol):
    """Where clients and outboxes come from; thread-safe."""

    def client(self, group: str, *, name: str = "", eof: bool = False) -> Client:
        """Make a member of a group, not yet joined.

        `name` tells the listeners of one process apart, in the broker's logs and for static membership; `eof`
        asks for `Eof`.
        """

    def outbox(self) -> Outbox:
        """Make a way to write dead letters."""


Settings = Mapping[str, Any]
"""What a user gives as `kafka={…}`: names and values of the client library."""

__all__ = [
    "Batch",
    "Broker",
    "BrokerFault",
    "Client",
    "CommitRefused",
    "Eof",
    "Headers",
    "Message",
    "Outbox",
    "Settings",
    "Told",
    "Tp",
]
