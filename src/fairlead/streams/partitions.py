"""One partition while this process holds it: what was delivered, what runs, what failed, and what may be committed.

A pure state machine: no clock, no thread, no broker.  Each assignment makes a new one with its own generation; when
the partition goes, the object is left to whoever still runs a job of it, and what they do to it reaches nobody.

**Order.** Records wait in *lanes*, each a line of its own.  Ordinarily there is one; with `parallel_by` one per
key, made when a key appears and dropped when it has nothing left.  A lane is in at most one running call, so its
records never run beside each other nor out of order.  A call may take several lanes: as many as it needs for all to
have a turn in `calls` calls at once.

**Commits.** `position` is the offset after the longest run of finished records, from the first delivered on.
Offsets may have gaps; contiguity is over what was delivered.  With one lane, finishing is always the next in line
and costs nothing per record; with more, what finished early is remembered until the gap before it closes.

**Failure.** A call that fails puts its records back in their lanes, which rest for `backoff · 2^(failures − 1)`, at
most `MOST_BACKOFF`.  Which of several records was at fault is not known, so they go one by one from then on.  A
record that has failed more than `max_retries` times (a failed call of many counts for each of them) is to be
*buried*, if there is somewhere to bury it: its lane stands still until `bury`, and then goes on after it.  A record
is never buried on account of a call it shared with others.

**Deaths.** Up to `doubted_to` records go one by one, because a process died while they ran; `tries` are what a record
has had in processes that died while it ran alone.  They count as failures (see marks.py).
"""

from __future__ import annotations

from collections import deque
from math import ceil, inf
from typing import TYPE_CHECKING, Any

from fairlead.streams.broker import Batch
from fairlead.streams.joining import Joined

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from fairlead.streams.broker import Message, Tp

    KeyOf = Callable[[Message], Hashable]

MOST_BACKOFF = 60.0  # seconds; a longer first back-off is its own limit


class Lane:
    """Records in line, and how the first of them has fared."""

    __slots__ = ("burying", "busy", "failures", "key", "line", "suspects", "until")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.line: deque[Any] = deque()  # batches in an ordered partition, messages in a keyed one
        self.busy = False
        self.failures = 0  # of the first record
        self.suspects = 0  # how many of the first records have to go one by one
        self.until = -inf  # rests until this instant
        self.burying: Message | None = None


class Taken:
    """What one call was given; by key also how many records of each lane."""

    __slots__ = ("lanes", "messages", "sizes")

    def __init__(
        self, messages: Batch, lanes: tuple[Lane, ...], sizes: tuple[int, ...] = ()
    ) -> None:
        self.messages = messages
        self.lanes = lanes
        self.sizes = sizes


class Partition:
    """A partition in which order is kept: one lane.

    >>> from fairlead.streams.broker import Batch, Message, Tp
    >>> partition = Partition(Tp("orders", 0), batch_size=2)
    >>> partition.deliver(Batch(Tp("orders", 0), [Message("orders", 0, offset) for offset in (4, 5, 9)]))
    >>> taken = partition.take(now=0.0)
    >>> partition.finish(taken)
    >>> partition.position, partition.buffered
    (6, 1)
    """

    def __init__(
        self,
        tp: Tp,
        generation: int = 0,
        *,
        batch_size: int = 100,
        max_retries: int = 0,
        backoff: float = 1.0,
        buries: bool = False,
    ) -> None:
        self.tp = tp
        self.generation = generation
        self.batch_size = batch_size
        self.max_retries = max_retries
        self.backoff = backoff
        self.buries = buries
        self.position: int | None = None  # what may be committed; None: nothing yet
        self.buffered = 0  # records that wait
        self.calls = 0  # calls that run
        self.doubted_to = (
            -1
        )  # up to this offset records go one by one: a process died while they ran
        self.tries: dict[int, int] = {}  # by offset, of records that are to blame for that
        self._lane = Lane(None)

    def deliver(self, batch: Batch) -> None:
        """Let records wait that follow all those delivered before."""
        self._lane.line.append(batch)
        self.buffered += len(batch)

    def take(self, now: float) -> Taken | None:
        """Take what the next call is given; None if nothing may run now."""
        lane = self._lane
        if lane.busy or not lane.line or now < lane.until or lane.burying is not None:
            return None
        single = lane.suspects or lane.line[0].first <= self.doubted_to
        messages = self._cut(lane.line, 1 if single else self.batch_size)
        if self.tries:
            lane.failures = max(lane.failures, self.tries.pop(messages.first, 0))
        lane.busy = True
        self.calls = 1
        self.buffered -= len(messages)
        return Taken(messages, (lane,))

    def _cut(self, line: deque[Batch], most: int) -> Batch:
        first = line.popleft()
        if len(first) > most:
            line.appendleft(first[most:])
            return first[:most]
        if not line or len(first) + len(line[0]) > most:
            return first
        parts, size = [first], len(first)
        while line and size + len(line[0]) <= most:
            size += len(line[0])
            parts.append(line.popleft())
        return Joined(parts)

    def ready_at(self) -> float:
        """Tell from when `take` gives something, if nothing else happens; inf: never."""
        lane = self._lane
        idle = lane.busy or not lane.line or lane.burying is not None
        return inf if idle else lane.until

    def rests_until(self) -> float:
        """Tell when the first of what rests may go on; inf if nothing does."""
        lane = self._lane
        return lane.until if lane.line and lane.until > -inf and not lane.busy else inf

    def resting(self, now: float) -> bool:
        """Say whether a failed record is being waited for: the partition should not be read meanwhile."""
        return now < self._lane.until or self._lane.burying is not None

    @property
    def burying(self) -> int:
        """How many records wait for the broker to have their dead letter."""
        return int(self._lane.burying is not None)

    @property
    def failures(self) -> int:
        """How often what rests has failed."""
        return self._lane.failures

    @property
    def at_rest(self) -> bool:
        """Say that nothing waits, runs, or is to be buried."""
        return not (self.buffered or self.calls or self._lane.burying is not None)

    def finish(self, taken: Taken) -> None:
        """A call has succeeded."""
        (lane,) = taken.lanes
        lane.busy = False
        self.calls = 0
        self._succeed(lane, len(taken.messages))
        self.position = taken.messages.next_offset

    def fail(self, taken: Taken, now: float) -> Message | None:
        """A call has failed: its records wait again.  Return the record that is to be buried, if there is one."""
        (lane,) = taken.lanes
        lane.busy = False
        self.calls = 0
        size = len(taken.messages)
        if self._give_up(lane, size, now, alone=size == 1):
            lane.burying = taken.messages[0]
            return lane.burying
        lane.line.appendleft(taken.messages)
        self.buffered += len(taken.messages)
        return None

    def condemn(self) -> Message | None:
        """Take out a record that has had its tries in processes that died; it is to be buried."""
        lane = self._lane
        if not self.tries or lane.busy or not lane.line or lane.burying is not None:
            return None
        if not self._had_its_tries(lane.line[0].first):
            return None
        self.buffered -= 1
        lane.burying = self._cut(lane.line, 1)[0]
        return lane.burying

    def _had_its_tries(self, offset: int) -> bool:
        return self.buries and self.tries.get(offset, 0) > self.max_retries

    def bury(self, message: Message) -> None:
        """A record has been buried: it counts as finished."""
        self.tries.pop(message.offset, None)
        lane = self._lane
        lane.burying = None
        self._succeed(lane, 1)
        self.position = message.offset + 1

    def _succeed(self, lane: Lane, size: int) -> None:
        lane.until = -inf
        if lane.suspects:
            lane.suspects = max(0, lane.suspects - size)
        lane.failures = 1 if lane.suspects else 0

    def _give_up(self, lane: Lane, size: int, now: float, *, alone: bool) -> bool:
        """Count a failure; say whether the lane's first record is to be buried, else let the lane rest."""
        lane.failures += 1
        lane.suspects = max(lane.suspects, size)
        if self.buries and alone and lane.failures > self.max_retries:
            return True
        lane.until = now + self.delay(lane.failures)
        return False

    def delay(self, failures: int) -> float:
        """Tell how long a record rests after so many failures."""
        most = max(self.backoff, MOST_BACKOFF)
        return float(min(most, self.backoff * 2.0 ** min(failures - 1, 60)))


class KeyedPartition(Partition):
    """A partition in which order is kept within each key, and up to `most_calls` calls run at once."""

    def __init__(
        self, tp: Tp, generation: int = 0, *, key: KeyOf, most_calls: int, **how: Any
    ) -> None:
        super().__init__(tp, generation, **how)
        self._key = key
        self._most_calls = most_calls
        self._lanes: dict[Hashable, Lane] = {}
        self._ready: dict[Lane, None] = {}  # with something to do, in turn
        self._resting: dict[Lane, None] = {}  # have failed; may be ready by now
        self._burials: dict[int, Lane] = {}
        # Delivered, not known to be finished, or behind one that is not.
        self._open: deque[int] = deque()
        self._early: set[int] = set()  # finished before one delivered earlier
        # By offset, of what is not finished: a key is asked for once.
        self._lane_of: dict[int, Lane] = {}

    def deliver(self, batch: Batch) -> None:
        key_of, lanes = self._key, self._lanes
        for message in batch:
            key = key_of(message)
            lane = lanes.get(key)
            if lane is None:
                lane = lanes[key] = Lane(key)
            lane.line.append(message)
            if not lane.busy and lane not in self._resting and lane.burying is None:
                self._ready[lane] = None
            self._open.append(message.offset)
            self._lane_of[message.offset] = lane
        self.buffered += len(batch)

    def take(self, now: float) -> Taken | None:
        if self.calls >= self._most_calls:
            return None
        if self._resting:
            self._rouse(now)
        if not self._ready:
            return None
        share = ceil(len(self._ready) / (self._most_calls - self.calls))
        lanes: list[Lane] = []
        sizes: list[int] = []
        messages: list[Message] = []
        for lane in list(self._ready)[: max(1, share)]:
            room = self.batch_size - len(messages)
            first = lane.line[0].offset
            single = lane.suspects or first <= self.doubted_to
            if room <= 0 or (single and messages):
                break
            if self.tries:
                lane.failures = max(lane.failures, self.tries.pop(first, 0))
            lanes.append(lane)
            del self._ready[lane]
            lane.busy = True
            many = min(1 if single else room, len(lane.line))
            sizes.append(many)
            messages.extend(lane.line.popleft() for _ in range(many))
            if single:
                break
        messages.sort(key=_offset)
        self.calls += 1
        self.buffered -= len(messages)
        return Taken(Batch(self.tp, messages), tuple(lanes), tuple(sizes))

    def _rouse(self, now: float) -> None:
        for lane in [lane for lane in self._resting if lane.until <= now]:
            del self._resting[lane]
            self._ready[lane] = None

    def ready_at(self) -> float:
        if self.calls >= self._most_calls:
            return inf
        if self._ready:
            return -inf
        return min((lane.until for lane in self._resting), default=inf)

    def rests_until(self) -> float:
        return min((lane.until for lane in self._resting), default=inf)

    def resting(self, now: float) -> bool:
        return bool(self._burials) or any(lane.until > now for lane in self._resting)

    @property
    def burying(self) -> int:
        return len(self._burials)

    @property
    def failures(self) -> int:
        return max((lane.failures for lane in self._resting), default=0)

    @property
    def at_rest(self) -> bool:
        return not (self.buffered or self.calls or self._burials)

    def finish(self, taken: Taken) -> None:
        self.calls -= 1
        for lane, size in zip(taken.lanes, taken.sizes, strict=True):
            lane.busy = False
            self._succeed(lane, size)
            self._go_on(lane)
        self._close(taken.messages.offsets)

    def _go_on(self, lane: Lane) -> None:
        if lane.line:
            self._ready[lane] = None
        elif self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]  # keys come and go without end

    def _close(self, offsets: Iterable[int]) -> None:
        early, pending = self._early, self._open
        for offset in offsets:
            early.add(offset)
            del self._lane_of[offset]
        while pending and pending[0] in early:
            offset = pending.popleft()
            early.discard(offset)
            self.position = offset + 1

    def fail(self, taken: Taken, now: float) -> Message | None:
        self.calls -= 1
        alone = len(taken.messages) == 1
        for lane, size in zip(taken.lanes, taken.sizes, strict=True):
            lane.busy = False
            if self._give_up(lane, size, now, alone=alone):
                lane.burying = taken.messages[0]
                self._burials[lane.burying.offset] = lane
                return lane.burying
            self._resting[lane] = None
        for message in reversed(taken.messages):
            self._lane_of[message.offset].line.appendleft(message)
        self.buffered += len(taken.messages)
        return None

    def condemn(self) -> Message | None:
        for offset in self.tries:
            lane = self._lane_of.get(offset)
            if lane is None or lane.busy or lane.burying is not None:
                continue
            if lane.line[0].offset == offset and self._had_its_tries(offset):
                self._ready.pop(lane, None)
                self._resting.pop(lane, None)
                self.buffered -= 1
                lane.burying = lane.line.popleft()
                self._burials[offset] = lane
                return lane.burying
        return None

    def bury(self, message: Message) -> None:
        self.tries.pop(message.offset, None)
        lane = self._burials.pop(message.offset)
        lane.burying = None
        self._succeed(lane, 1)
        self._go_on(lane)
        self._close([message.offset])


def _offset(message: Message) -> int:
    return message.offset
