"""The built-in scheduler of streams, for the simulator: queue, partitions, gate and order are the door's own.

An arrival is a record, or as many as its cost says, which then stay together; its workload is the topic.  Records wait
in their partition, and the next batch of a partition is cut when the one before it has ended.  A batch works through
its records one after another.  What comes at one instant is read together, as by one poll.  With `by_key`, which stands
for `parallel_by`, records of one key keep their order, and others of their partition run beside them.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Annotated, Any
from zlib import crc32

from pydantic import Field

from fairlead.config import shown
from fairlead.core import Gate
from fairlead.core.ticket import DONE, RUNNING, WAITING
from fairlead.documents.values import Flag, Model
from fairlead.errors import ConfigError
from fairlead.sim.site import SimTicket, Site
from fairlead.streams.broker import Batch, Tp
from fairlead.streams.consumer import Consumer
from fairlead.streams.gating import GateScheduler
from fairlead.streams.holdings import Holding
from fairlead.streams.jobs import CONSUMPTION, Job
from fairlead.streams.queue import JobsQueue
from fairlead.streams.settings import DEFAULT_BATCH, MOST_MESSAGES, Topic
from fairlead.streams.shapes import Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from fairlead.runtime import MakeGate
    from fairlead.sim.reading import Draft
    from fairlead.sim.result import Arrival

# Labels of a record.
PARTITION = "partition"  # into which partition it goes
# Which others it keeps its order with, where that is by key; without it, the tenant says.
KEY = "key"
KEYLESS = "keyless"  # it has a key, and which is not known
COST = "cost"  # what it counts among others, where its consumer would tell; without it, one


class TopicSettings(Model):
    """What `app.topic` takes that decides who goes next, and how many partitions are read."""

    priority: Annotated[int, Field(strict=True, ge=0, le=100)] = 50
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    batch_size: Annotated[int, Field(strict=True, ge=1, le=MOST_MESSAGES)] = DEFAULT_BATCH
    partitions: Annotated[int, Field(strict=True, ge=1, le=100_000)] = 1
    by_key: Flag = False


class StreamsSettings(Model):
    """Workers, and the topics they consume."""

    concurrency: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 8
    topics: Annotated[dict[str, TopicSettings], Field(min_length=1)]


class _Records(Batch):
    """What one arrival brings: as many records as its cost says; looked at, they are its ticket."""

    __slots__ = ("_size", "_ticket")

    def __init__(self, tp: Tp, ticket: SimTicket) -> None:
        self.tp = tp
        self.first = self.last = 0
        self._ticket = ticket
        self._size = int(ticket.cost)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        yield self._ticket


class _Keyed:
    """One record where order is kept by key."""

    __slots__ = ("offset", "ticket")

    def __init__(self, offset: int, ticket: SimTicket) -> None:
        self.offset = offset
        self.ticket = ticket


def _key_of(record: Any) -> str:
    labels = record.ticket.labels
    return str(record.ticket.tenant if labels is None else labels.get(KEY, record.ticket.tenant))


def _charge(ticket: SimTicket) -> float:
    labels = ticket.labels
    return ticket.cost if labels is None or COST not in labels else float(labels[COST])


class StreamGate:
    """The verbs of a gate, as the built-in scheduler carries them out."""

    def __init__(self, said: StreamsSettings, make: MakeGate = Gate) -> None:
        shape = Shape(Consumer)
        self._time = 0.0
        self._begun: list[Any] = []  # what a verb has started
        self.queue = JobsQueue(said.concurrency, self._start, clock=lambda: self._time)
        weights = {name: topic.weight for name, topic in said.topics.items()}
        self.scheduler = GateScheduler(self.queue, weights=weights, gate=make)
        self._holdings: dict[Tp, Holding] = {}
        for name, one in said.topics.items():
            topic = Topic(
                name,
                shape,
                one.priority,
                one.weight,
                batch_size=one.batch_size,
                parallel_by=_key_of if one.by_key else None,
            )
            for number in range(one.partitions):
                tp = Tp(name, number)
                self._holdings[tp] = Holding(topic, tp, 0, said.concurrency)
        self._read: dict[Holding, None] = {}  # have had records since the last round
        self._working: dict[int, tuple[Job, Iterator[Any]]] = {}  # by the record that is worked on
        self._offset = 0
        self.charged: set[str] = set()  # topics with records that do not count as one
        self.due = inf

    def offer(self, ticket: Any, now: float) -> Sequence[Any]:
        """Let records wait in their partition until the round of this instant."""
        holding = self._holdings[ticket.place]
        holding.partition.deliver(self._records(holding, ticket))
        ticket.state, ticket.arrived_at, ticket.place = WAITING, now, None
        self._read[holding] = None
        self._time = self.due = now
        return ()

    def advance(self, now: float) -> Sequence[Any]:
        """Give the scheduler what was read, all of it together."""
        self._time, self.due = now, inf
        read, self._read = self._read, {}
        self._give([job for holding in read for job in self._taken(holding)])
        return self._changed()

    def next_wakeup(self, now: float) -> float:
        """Tell when to call `advance`."""
        return self.due

    def finish(self, ticket: Any, now: float) -> Sequence[Any]:
        """Go on to the next record of the batch; after the last one the batch has ended."""
        self._time = now
        ticket.state = DONE
        job, rest = self._working.pop(ticket.work)
        if not self._work_on(job, rest):
            self._end(job)
        return self._changed()

    def lent(self, now: float) -> None:
        """Use slots of a pool that were lent; what they start is told by `advance`, at this instant."""
        self._time = self.due = now
        self.scheduler.gate.rouse()

    def withdraw(self, tickets: Iterable[Any], now: float) -> Sequence[Any]:
        """Nobody takes a record back."""
        raise NotImplementedError

    def commit(self, ticket: Any) -> bool:
        """Nobody preempts a batch."""
        return True

    # Batches

    def _records(self, holding: Holding, ticket: Any) -> Batch:
        if holding.topic.parallel_by is None:
            return _Records(ticket.place, ticket)
        self._offset += 1
        record: Any = _Keyed(self._offset, ticket)
        return Batch(ticket.place, [record])

    def _taken(self, holding: Holding) -> list[Job]:
        jobs = []
        while (taken := holding.partition.take(self._time)) is not None:
            job = Job(CONSUMPTION, holding, taken, blocking=True)
            if job.topic in self.charged:
                job.cost = sum(map(_charge, self._tickets(job)))
            jobs.append(job)
        return jobs

    def _tickets(self, job: Job) -> Iterator[Any]:
        records: Iterator[Any] = iter(job.messages)
        if job.holding.topic.parallel_by is None:
            return records
        return (record.ticket for record in records)

    def _give(self, jobs: list[Job]) -> None:
        if jobs:
            self.queue.give(jobs)
            self.scheduler.on_schedule_consumption(jobs)

    def _start(self, job: Job) -> None:
        self._work_on(job, self._tickets(job))

    def _work_on(self, job: Job, rest: Iterator[Any]) -> bool:
        """Begin the next record of a batch; False if it was the last."""
        ticket = next(rest, None)
        if ticket is None:
            return False
        ticket.state, ticket.started_at = RUNNING, self._time
        self._working[ticket.work] = (job, rest)
        self._begun.append(ticket)
        return True

    def _end(self, job: Job) -> None:
        """As the door does it: the partition's next batch waits before the room of the last one is given back."""
        holding = job.holding
        assert job.taken is not None  # noqa: S101
        holding.partition.finish(job.taken)
        self.queue.done(job)
        self._give(self._taken(holding))
        self.scheduler.settle(job)
        job.ticket = None  # no circle is left: nobody looks for them while a simulation runs

    def _changed(self) -> list[Any]:
        begun, self._begun = self._begun, []
        return begun


class StreamsSite(Site):
    """An app that consumes topics."""

    def __init__(self, said: StreamsSettings, make: MakeGate = Gate) -> None:
        self._stream = StreamGate(said, make)
        super().__init__(self._stream)
        self.slots = said.concurrency
        self._topics = said.topics
        self._next = dict.fromkeys(said.topics, 0)

    def ticket(self, number: int, arrival: Arrival, now: float) -> Any:
        ticket = SimTicket(number, arrival, now, arrival.cost)
        topic = _topic(arrival)
        ticket.priority = self._topics[topic].priority
        ticket.place = Tp(topic, self._partition(topic, arrival))
        if arrival.labels is not None and COST in arrival.labels:
            self._stream.charged.add(topic)
        return ticket

    def _partition(self, topic: str, arrival: Arrival) -> int:
        """As a producer chooses: the one that is named, else by key, which is the tenant, else in turn."""
        count = self._topics[topic].partitions
        if arrival.labels is not None and PARTITION in arrival.labels:
            return int(arrival.labels[PARTITION])
        if arrival.tenant:
            return crc32(arrival.tenant.encode()) % count
        self._next[topic] += 1
        return (self._next[topic] - 1) % count

    def check(self, arrivals: Iterable[Arrival], numbers: Sequence[int] | None = None) -> None:
        wrong: dict[str, None] = {}
        seen: set[tuple[Any, ...]] = set()  # one of each kind is enough
        for one in arrivals:
            said = {} if one.labels is None else one.labels
            labels = (
                said.get(PARTITION),
                said.get(COST),
                KEY in said or bool(one.tenant),
                KEYLESS in said,
            )
            kind = (_topic(one), one.cost, labels, one.patience is None, one.leaves is None)
            if kind not in seen:
                seen.add(kind)
                message = self.refuses(one)
                if message is not None:
                    wrong[message] = None
        if wrong:
            raise ConfigError("\n".join([*wrong][:20]))

    def refuses(self, arrival: Arrival) -> str | None:
        topic = _topic(arrival)
        said = self._topics.get(topic)
        if said is None:
            topics = ", ".join(self._topics)
            return f"the policy has no topic {shown(topic)}; its topics are {topics}"
        labels = arrival.labels or {}
        if said.by_key and KEYLESS in labels:
            return (
                f"the keys of some records in {topic} were not kept: there were too many; "
                "take a shorter time, or replay it with by_key: false"
            )
        if arrival.patience is not None or arrival.leaves is not None:
            return "records wait as long as it takes: leave patience and leaves out"
        if arrival.cost < 1 or arrival.cost != int(arrival.cost):
            return f"cost is a number of records here, 1 or more; got {arrival.cost:g}"
        if arrival.cost > said.batch_size:
            return (
                f"{arrival.cost:g} records come together in {topic}, and a batch of it has "
                f"{said.batch_size} at most; raise batch_size, or let them come one by one"
            )
        if arrival.cost > 1 and said.by_key:
            return f"{arrival.cost:g} records come together in {topic}; by key let them come one by one"
        if not _counts(labels.get(COST, "1")):
            return f"the label {COST} of a record in {topic} must be a number, 0 or more"
        if said.by_key and PARTITION in labels and KEY not in labels and not arrival.tenant:
            return (
                f"{topic} is by key, and its records do not tell theirs; give them the label {KEY}"
            )
        label = labels.get(PARTITION, "0")
        if not label.isdecimal() or int(label) >= said.partitions:
            last = said.partitions - 1
            return f"{topic} has no partition {shown(label)}; its partitions are 0 to {last}"
        return None


def _counts(text: str) -> bool:
    try:
        return 0 <= float(text) < inf
    except ValueError:
        return False


def _topic(arrival: Arrival) -> str:
    return arrival.workload or arrival.cls


def read(draft: Draft, own: Iterable[str]) -> Callable[[], Site] | None:
    """Read workers and topics."""
    said = draft.read(StreamsSettings, without=own)
    return None if said is None else lambda: StreamsSite(said)
