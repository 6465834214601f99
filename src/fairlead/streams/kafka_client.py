"""One consumer of confluent-kafka, as a listener wants it.

Three habits of the client shape this module.  `consume(n, t)` waits the whole of t unless n records come, so a poll
takes what is there, and only if nothing is waits for one.  An exception in a callback makes the client throw away
what it had just read, so callbacks are wrapped and speak up afterwards.  And records may come out of one call
together with the news that their partition is gone, so every batch is held against what is owned when the poll ends.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Any

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as Raw

from fairlead.errors import BrokerFault, CommitRefused, Misuse
from fairlead.streams.broker import NO_NOTES, Batch, Eof, Settings, Told, Tp
from fairlead.streams.kafka_calls import Late, leave
from fairlead.streams.kafka_faults import error_of, fault_of, refusal_of, some
from fairlead.streams.kafka_questions import Questions
from fairlead.streams.kafka_records import failed, parts_of, sort_out, tp_of, tp_read
from fairlead.streams.kafka_settings import LOG, ClientLog

COMMITTING = 10.0  # seconds that a commit may take
LEAVING = 5.0  # and leaving the group
STARTING = 1.0  # until a partition whose start could not be found is tried again
ASSIGNED, REVOKED, LOST, CLOSING = range(4)  # whom to tell; closing revokes


class KafkaClient(Questions):
    """A `Client` over one confluent-kafka `Consumer`."""

    def __init__(self, settings: Settings, *, cooperative: bool) -> None:
        self._trouble: KafkaError | None = None
        theirs = settings.get("error_cb")

        def heard(error: KafkaError) -> None:
            # Connections come and go; what matters reaches `poll` or the call that it makes fail.
            self._trouble = error
            LOG.debug("librdkafka: %s", error)
            if theirs is not None:
                theirs(error)

        super().__init__(Consumer({**settings, "error_cb": heard}, logger=ClientLog()))
        self._cooperative = cooperative
        self._poll_interval = float(settings.get("max.poll.interval.ms", 300_000)) / 1000
        self._polled_at = math.inf  # never yet
        self._inside = False  # a callback, and so a call of the client
        self._told: tuple[Told, Told, Told] | None = None
        self._only: str | None = None  # the topic, if it is one and no pattern
        self._owned: set[Tp] = set()
        self._paused: set[Tp] = set()
        self._halted: set[Tp] = set()  # paused in the client as well
        self._arrived: set[Tp] = set()  # in this poll
        # Nothing came of these yet, so the client may still be about to start them.  A pause or a resume that
        # crosses with the start makes it drop one of the two without a word (librdkafka #5591): it waits.
        self._fresh: set[Tp] = set()
        self._gone: set[Tp] = set()  # since it was cleared
        self._starts: dict[Tp, int] | None = None  # where those that arrive now begin
        self._seeks: dict[Tp, int] = {}  # not yet taken by the client
        # Where those begin of which nothing came since: until then the client does not tell their position.
        self._begins: dict[Tp, int] = {}
        self._stalled: dict[Tp, float] = {}  # where nobody knows where to begin; when to try again
        self._missed = False  # pauses and resumes, because the client is stuck
        self._due: deque[Exception] = deque()
        self._dead: BrokerFault | None = None
        self._closed = False

    def subscribe(
        self, topics: Sequence[str], *, assigned: Told, revoked: Told, lost: Told
    ) -> None:
        if self._told is not None:
            raise Misuse("this client has subscribed already; make another one")
        self._told = (assigned, revoked, lost)
        if len(topics) == 1 and not topics[0].startswith("^"):
            self._only = topics[0]
        try:
            self._consumer.subscribe(
                list(topics),
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )
        except KafkaException as error:
            raise fault_of(f"subscribing to {', '.join(topics)}", error) from error

    def poll(self, timeout: float, most: int) -> list[Batch | Eof]:
        if self._told is None or self._closed:
            state = "closed" if self._closed else "not subscribed"
            raise Misuse(f"a client that is {state} cannot be polled")
        if self._dead is not None:
            raise self._dead
        if self._due:
            raise self._due.popleft()
        if not self._free(timeout):
            return []
        if self._seeks:
            self._seek_again()
        self._arrived.clear()
        self._polled_at = time.monotonic()
        if self._stalled:
            self._start_again()
        found = self._sorted(self._consume(timeout, most))
        if self._due and not found:
            raise self._due.popleft()
        return found

    def _free(self, timeout: float) -> bool:
        """Wait for a call that is late; once it is back, do what could not be done meanwhile."""
        if not self._calls.wait(timeout):
            return False
        if self._missed:
            self._missed = False
            for verb, paused in (("resume", False), ("pause", True)):
                begun = self._owned - self._fresh
                self._turn(verb, [tp for tp in begun if (tp in self._paused) == paused])
        return True

    def _consume(self, timeout: float, most: int) -> list[Raw[Any, Any]]:
        consume = self._consumer.consume
        try:
            raws = consume(most, 0)
            if raws or timeout <= 0:
                return raws
            raws = consume(1, timeout)
            if raws and most > 1:
                self._gone.clear()
                more = consume(most - 1, 0)
                if self._gone:
                    raws = [raw for raw in raws if raw.error() or tp_read(raw) not in self._gone]
                raws += more
            return raws
        except KafkaException as error:
            self._fail(fault_of("reading", error))
            return []

    def _sorted(self, raws: list[Raw[Any, Any]]) -> list[Batch | Eof]:
        """Make batches of what was read, less what is not ours any more."""
        found: list[Batch | Eof] = []
        if any(map(failed, raws)):
            # By a truth value: the client's errors cannot be compared with None.
            for is_news, run in groupby(raws, lambda raw: raw.error() is not None):
                part = list(run)
                found += self._ends(part) if is_news else sort_out(part, self._only)
        else:
            found += sort_out(raws, self._only)
        here = self._owned - self._seeks.keys() if self._seeks else self._owned
        ours = [part for part in found if part.tp in here]
        return self._begun(ours) if ours and (self._fresh or self._begins) else ours

    def _begun(self, parts: list[Batch | Eof]) -> list[Batch | Eof]:
        """Note that these partitions are being read; pause those that should not be, where they began."""
        early: dict[Tp, int] = {}
        for part in parts:
            if part.tp in self._fresh and part.tp in self._paused:
                early[part.tp] = part.offset if isinstance(part, Eof) else part.first
            self._fresh.discard(part.tp)
            self._begins.pop(part.tp, None)
        if early:
            # Noted before the first call, and no call ends the poll: what came of others would be skipped.
            self._seeks.update(early)
            try:
                self._turn("pause", list(early))
                self._seek_again()
            except BrokerFault as fault:
                self._fresh.update(early.keys() - self._halted)
                self._fail(fault)
        return [part for part in parts if part.tp not in early]

    def _ends(self, news: Iterable[Raw[Any, Any]]) -> Iterator[Eof]:
        """Act on what is no record: faults, and that we were too slow; hand on the ends of partitions."""
        for raw in news:
            error = raw.error()
            if error is None:
                continue
            if error.code() == KafkaError._PARTITION_EOF:
                yield Eof(tp_read(raw), int(raw.offset() or 0))
            elif error.code() == KafkaError._MAX_POLL_EXCEEDED:
                LOG.warning("not polled for max.poll.interval.ms: every partition was taken away")
                self._let_go(self._owned - self._arrived, LOST)
            else:
                where = f" {raw.topic()}" if raw.topic() else ""
                self._fail(fault_of(f"reading{where}", error))
                if raw.topic() and tp_read(raw) in self._owned and raw.offset() is None:
                    self._stalled[tp_read(raw)] = time.monotonic() + STARTING

    def _fail(self, fault: BrokerFault) -> None:
        if fault.fatal:
            self._dead = fault
        self._due.append(fault)

    # Rebalances

    def _on_assign(self, _consumer: Consumer, parts: list[TopicPartition]) -> None:
        if self._closed:
            return  # the client takes them by itself, to give them up at once
        tps = sorted(map(tp_of, parts))
        self._arrived.update(tps)
        self._fresh.update(tps)
        self._owned.update(tps)
        self._paused.difference_update(tps)
        self._starts = dict.fromkeys(tps, OFFSET_INVALID)
        self._tell(ASSIGNED, tps)
        starts, self._starts = self._starts, None
        self._begins.update((tp, at) for tp, at in starts.items() if at != OFFSET_INVALID)
        coming = [TopicPartition(*tp, starts[tp]) for tp in tps]
        with self._complaining("taking partitions"):
            if self._cooperative:
                self._consumer.incremental_assign(coming)
            else:
                self._consumer.assign(coming)

    def _on_revoke(self, _consumer: Consumer, parts: list[TopicPartition]) -> None:
        self._let_go(map(tp_of, parts), REVOKED)
        self._unassign(parts)

    def _on_lost(self, _consumer: Consumer, parts: list[TopicPartition]) -> None:
        self._let_go(map(tp_of, parts), LOST)
        self._unassign(parts)

    def _unassign(self, parts: list[TopicPartition]) -> None:
        with self._complaining("giving partitions up"):
            # Once closed there will be no other assignment, and each call here may meet the client's end.
            if not self._closed:
                self._unpause(map(tp_of, parts))
            if self._cooperative:
                self._consumer.incremental_unassign(parts)
            else:
                self._consumer.unassign()

    def _unpause(self, tps: Iterable[Tp]) -> None:
        """End the pauses of partitions about to stop: the client remembers them beyond the assignment."""
        if halted := self._halted.intersection(tps):
            self._halted -= halted
            self._consumer.resume(parts_of(halted))

    def _start_again(self) -> None:
        """Assign anew what the client holds and never reads: its committed offset could not be fetched.

        A coordinator that moves at that moment is enough, and the client tries just once.
        """
        due = [tp for tp, at in self._stalled.items() if at <= self._polled_at]
        if not due:
            return
        for tp in due:
            del self._stalled[tp]
        with self._complaining("taking partitions again"):
            again = due if self._cooperative else sorted(self._owned)
            # From after the last record handed out, if there was one.
            starts = self._consumer.position(parts_of(again))
            for part in starts:
                part.offset = self._begins.get(tp_of(part), part.offset)
                part.offset = self._seeks.pop(tp_of(part), part.offset)
                if part.offset >= 0:
                    self._begins[tp_of(part)] = part.offset
            self._unpause(again)
            self._fresh.update(again)
            if self._cooperative:
                self._consumer.incremental_unassign(parts_of(due))
                self._consumer.incremental_assign(starts)
            else:
                self._consumer.assign(starts)

    def _let_go(self, tps: Iterable[Tp], how: int) -> None:
        """Tell of what is still ours, once."""
        ours = sorted(self._owned.intersection(tps))
        if how == LOST:
            self._owned.difference_update(ours)
        self._tell(how, ours)
        self._owned.difference_update(ours)
        self._paused.difference_update(ours)
        self._fresh.difference_update(ours)
        self._gone.update(ours)
        for tp in ours:
            self._seeks.pop(tp, None)
            self._begins.pop(tp, None)
            self._stalled.pop(tp, None)

    def _tell(self, how: int, tps: list[Tp]) -> None:
        if not tps or self._told is None:
            return
        inside, self._inside = self._inside, how != CLOSING
        try:
            self._told[REVOKED if how == CLOSING else how](tps)
        except Exception as error:
            self._due.append(error)
        finally:
            self._inside = inside

    @contextmanager
    def _complaining(self, doing: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            self._fail(fault_of(doing, error))

    # Flow

    def pause(self, tps: Iterable[Tp]) -> None:
        self._flow(tps, "pause", self._paused.update)

    def resume(self, tps: Iterable[Tp]) -> None:
        self._flow(tps, "resume", self._paused.difference_update)

    def _flow(self, tps: Iterable[Tp], verb: str, note: Callable[[Iterable[Tp]], None]) -> None:
        ours = [tp for tp in tps if tp in self._owned]
        note(ours)
        here = [tp for tp in ours if tp not in self._fresh]
        if self._calls.stuck:
            self._missed = True
        else:
            self._turn(verb, here)

    def _turn(self, verb: str, tps: list[Tp]) -> None:
        if tps:
            with self._asking(f"{verb} of {', '.join(map(str, tps))}"):
                getattr(self._consumer, verb)(parts_of(tps))
            (self._halted.update if verb == "pause" else self._halted.difference_update)(tps)

    def seek(self, tp: Tp, offset: int) -> None:
        if tp not in self._owned:
            return
        if self._starts is not None and tp in self._starts:
            self._starts[tp] = offset
            return
        self._seeks[tp] = offset
        if not self._calls.stuck:
            self._seek_again()

    def _seek_again(self) -> None:
        """Seek where that is possible: not before the client has found out where a partition begins."""
        for tp, offset in list(self._seeks.items()):
            try:
                self._consumer.seek(TopicPartition(*tp, offset))
            except KafkaException as error:
                # It stays to be done: to read on without it would skip records.
                if error_of(error).code() != KafkaError._STATE:
                    raise fault_of(f"seeking in {tp}", error) from error
            else:
                self._begins[tp] = self._seeks.pop(tp)

    # Offsets

    def commit(self, offsets: Mapping[Tp, int], notes: Mapping[Tp, str] = NO_NOTES) -> None:
        if not offsets:
            return
        if time.monotonic() - self._polled_at > self._poll_interval:
            # The group has taken our partitions away, or is about to; not every broker would refuse.
            late = KafkaError(KafkaError._MAX_POLL_EXCEEDED, "not polled for max.poll.interval.ms")
            raise refusal_of(offsets, [late])
        wanted = [TopicPartition(*tp, at, notes.get(tp, "")) for tp, at in offsets.items()]

        def store() -> list[TopicPartition]:
            return self._consumer.commit(offsets=wanted, asynchronous=False) or []

        try:
            # In a callback this thread is inside the client already, and another would wait for it.
            answers = store() if self._inside else self._calls.run(store, COMMITTING)
        except Late:
            raise CommitRefused(
                f"offsets of {some(sorted(offsets))} may not be stored: the broker has not answered",
                refused=sorted(offsets),
                retriable=True,
            ) from None
        except KafkaException as error:
            raise refusal_of(offsets, [error_of(error)]) from error
        refused = {tp_of(part): part.error for part in answers if part.error}
        if refused:
            raise refusal_of(refused, refused.values())

    def assignment(self) -> list[Tp]:
        return sorted(self._owned)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._due.clear()
        # Told here and not by the client, because inside the client nothing has a bound.
        self._let_go(self._owned, LOST if self._calls.stuck else CLOSING)
        try:
            with self._complaining("leaving the group"):
                if self._dead is None:
                    self._calls.run(partial(leave, self._consumer, LEAVING / 2), LEAVING)
                else:  # it never ends its farewell
                    self._calls.run(self._consumer.close, 0.1)
        except Late:
            LOG.info("leaving the group took too long: it will notice when the session ends")
        if self._due:
            raise self._due.popleft()
