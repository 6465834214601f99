"""A partition that is held, with everything that goes with holding it: its state, its consumer, whose turn it is.

`Holding.lost` is the fence.  It is set, once, before anybody else can be given the partition, and asked before user
code is run and before anything is committed; a new assignment is a new holding, of a new generation.  When a group
begins again without losing its partitions, they are *renewed*: of a new generation, with the same consumer.  Either
way, what still runs of an old generation runs beside nothing of the new one (`Turns`).  Records and results are written
under the `lock` of its listener, turns under that of the queue.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from fairlead.streams.jobs import Job, Kind
from fairlead.streams.marks import Marks
from fairlead.streams.partitions import KeyedPartition, Partition

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from fairlead.streams.broker import Message, Tp
    from fairlead.streams.consumer import Consumer
    from fairlead.streams.settings import Topic

log = logging.getLogger("fairlead.streams")


class Turns:
    """Who may run now of one partition, over all its assignments here: what still runs of a lost one goes on alone.

    Called by the queue, under its lock.
    """

    __slots__ = ("_aside", "_by_key", "_exclusive", "_sharing", "_together")

    def __init__(self, topic: Topic) -> None:
        self._by_key = topic.parallel_by is not None
        self._sharing = 0
        self._together = -1  # the generation of those that share
        self._exclusive = False
        self._aside: deque[Job] = deque()

    def enter(self, job: Job) -> bool:
        """Say whether a job may start; if not, it stands aside until `leave` returns it."""
        shares = self._shares(job.kind)
        beside = shares and job.generation == self._together
        if self._exclusive or self._aside or (self._sharing and not beside):
            self._aside.append(job)
            return False
        if shares:
            self._sharing += 1
            self._together = job.generation
        else:
            self._exclusive = True
        return True

    def leave(self, kind: Kind) -> list[Job]:
        """End a job's turn; return those that stood aside, in order, to be asked again."""
        if self._shares(kind):
            self._sharing -= 1
        else:
            self._exclusive = False
        if not self._aside or self._sharing:
            return []
        aside = list(self._aside)
        self._aside.clear()
        return aside

    def drop(self, job: Job) -> bool:
        """Take out a job that stands aside; say whether it did."""
        if job in self._aside:
            self._aside.remove(job)
            return True
        return False

    def _shares(self, kind: Kind) -> bool:
        return self._by_key and kind is Kind.CONSUMPTION


class Holding:
    """One assignment of one partition."""

    __slots__ = (
        "_consumer",
        "_end",
        "_make",
        "_making",
        "committed",
        "end_at",
        "eof",
        "full",
        "had_records",
        "listener",
        "lost",
        "marks",
        "partition",
        "paused",
        "read",
        "size",
        "start",
        "topic",
        "tp",
        "trouble",
        "turns",
    )

    def __init__(
        self,
        topic: Topic,
        tp: Tp,
        generation: int,
        concurrency: int,
        listener: Any = None,
        turns: Turns | None = None,
    ) -> None:
        self.topic = topic
        self.tp = tp
        self.listener = listener
        self.lost = False
        self.paused = False  # as the broker's client was told
        self.full = False  # paused because too many of its records wait
        self.eof = False  # the end was reached, and nobody has been told yet
        self.had_records = False
        self.trouble = ""  # what its consumer raised last
        self.size = 0  # bytes of one of its records, about
        self.committed: int | None = None  # as far as this holding has committed
        self.start: int | None = None  # where it began to read
        self.read = 0  # the offset after the last record that was read
        self._end: int | None = None  # of the partition, when the broker last said so
        self.end_at = -inf  # when that was
        # Without retries a record has one try; shared with others, it would not be known who failed it.
        once = topic.dead_letter is not None and not topic.max_retries
        how: dict[str, Any] = {
            "batch_size": 1 if once else topic.batch_size,
            "max_retries": topic.max_retries,
            "backoff": topic.retry_backoff,
            "buries": topic.dead_letter is not None,
        }
        self._make: Callable[..., Partition] = partial(Partition, tp, **how)
        if topic.parallel_by is not None:
            how |= {"key": safe_key(topic.name, topic.parallel_by), "most_calls": concurrency}
            self._make = partial(KeyedPartition, tp, **how)
        self.partition = self._make(generation=generation)
        self.marks = Marks()
        self._consumer: Consumer | None = None
        self._making = threading.Lock()
        # Of the assignment before it, if there was one: its last call may still run.
        self.turns = Turns(topic) if turns is None else turns

    def renew(self, generation: int) -> int | None:
        """Forget what is not finished; tell where to read on, None if nothing was read.  Under the listener's lock."""
        before = self.partition
        done = before.position
        self.partition = self._make(generation=generation)
        self.partition.position = done
        self.partition.doubted_to, self.partition.tries = before.doubted_to, before.tries
        self.marks.runs.clear()
        self.full = False
        if not self.had_records:
            return None
        self.eof = False
        return self.start if done is None else done

    @property
    def place(self) -> int:
        """Where its next owner would begin: what may be committed, or was, or where it began to read."""
        if self.partition.position is not None:
            return self.partition.position
        return (self.start or 0) if self.committed is None else self.committed

    @property
    def consumer(self) -> Consumer:
        """The consumer of this partition; made when it is first needed."""
        if self._consumer is None:
            with self._making:
                if self._consumer is None:
                    made = self.topic.shape.make()
                    if not self.topic.shape.shared:
                        object.__setattr__(made, "_holding", self)  # its class may be frozen
                    self._consumer = made
        return self._consumer

    def note_end(self, end: int, at: float | None) -> None:
        """Remember where the partition ends; `at` is None if that may have been true long ago."""
        if self._end is None or end > self._end or at is not None:
            self._end = end
            self.end_at = self.end_at if at is None else at

    @property
    def end(self) -> int | None:
        """Where the partition ends, as far as is known: what was read or done since the broker said so counts too."""
        return (
            None if self._end is None else max(self._end, self.read, self.partition.position or 0)
        )

    @property
    def lag(self) -> int | None:
        """How many offsets before the end nothing is done yet, as far as is known."""
        end, done = self.end, self.partition.position
        done = self.start if done is None else done
        return None if done is None or end is None else max(0, end - done)


def safe_key(
    topic: str, parallel_by: Callable[[Message], Hashable]
) -> Callable[[Message], Hashable]:
    """Let records whose key cannot be told share one lane, and say so once."""
    told: list[bool] = []

    def key(message: Message) -> Hashable:
        try:
            found = parallel_by(message)
            hash(found)
        except Exception as error:
            if not told:
                told.append(True)
                log.error(
                    "parallel_by of topic %s raised %r for %r; "
                    "records without a key are run in order, one call at a time",
                    topic,
                    error,
                    message,
                )
            return _UNKEYED
        return found

    return key


_UNKEYED = object()
