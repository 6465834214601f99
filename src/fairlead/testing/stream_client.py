"""One member of a group of the in-memory broker: what `poll` does step by step, under the broker's lock."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fairlead.errors import BrokerFault, CommitRefused, Misuse
from fairlead.streams.broker import NO_NOTES, Batch, Eof, Told, Tp
from fairlead.testing.groups import Group, Member, Place

if TYPE_CHECKING:
    from fairlead.testing.streams import MemoryBroker


class MemoryClient:
    """A `Client` of `MemoryBroker`; make one with `broker.client(group)`."""

    def __init__(self, broker: MemoryBroker, group: Group, name: str, *, eof: bool) -> None:
        self.name = name
        self.group = group
        self.eof = eof
        self.closed = False
        self.polls = 0
        """How often it was polled: a group that is not to be polled has a count that stands still."""
        self._broker = broker
        self._member = Member(name, frozenset(), broker.clock())
        self._told: tuple[Told, Told, Told] | None = None
        self._revoking = False
        self._dead: BrokerFault | None = None
        self._served: Tp | None = None
        self._user: int | None = None
        self._depth = 0
        self._complained: set[str] = set()

    # The verbs of the port

    def subscribe(
        self, topics: Sequence[str], *, assigned: Told, revoked: Told, lost: Told
    ) -> None:
        with self._alone(), self._broker.changing() as broker:
            if self._told is not None:
                raise Misuse(f"client {self.name!r} has subscribed already; make another client")
            self._told = (assigned, revoked, lost)
            self._member.topics = frozenset(topics)
            self._member.polled_at = broker.clock()
            broker.expect(topics)
            self.group.enter(self._member, broker.partition_counts())

    def poll(self, timeout: float, most: int) -> list[Batch | Eof]:
        with self._alone():
            self.polls += 1
            until = time.monotonic() + timeout
            while True:
                self._catch_up()
                with self._broker.changed:
                    found = self._read(most)
                    left = until - time.monotonic()
                    if found or left <= 0:
                        return found
                    if self._broker.is_down or not self._pending():
                        self._broker.changed.wait(left)

    def pause(self, tps: Iterable[Tp]) -> None:
        self._flag(tps, True)

    def resume(self, tps: Iterable[Tp]) -> None:
        self._flag(tps, False)

    def seek(self, tp: Tp, offset: int) -> None:
        with self._alone(), self._broker.changing():
            if place := self._member.held.get(tp):
                place.position = offset
                place.eof_told_at = None

    def commit(self, offsets: Mapping[Tp, int], notes: Mapping[Tp, str] = NO_NOTES) -> None:
        with self._alone(), self._broker.changing() as broker:
            broker.expel_silent()
            refusal = self._refusal() or broker.take_fault("commit", self.group.name)
            if refusal is not None:
                text = (
                    f"offsets of {', '.join(map(str, sorted(offsets)))} were not stored: {refusal}"
                )
                raise CommitRefused(
                    text, refused=sorted(offsets), retriable=refusal.retriable, fatal=refusal.fatal
                ) from refusal
            for tp, offset in sorted(offsets.items()):
                broker.note_commit(self.group, self._member, tp, offset, notes.get(tp, ""))

    def committed(self, tps: Iterable[Tp]) -> dict[Tp, int | None]:
        return {tp: offset for tp, (offset, _) in self.notes(tps).items()}

    def notes(self, tps: Iterable[Tp]) -> dict[Tp, tuple[int | None, str]]:
        with self._alone(), self._broker.asked("committed", self.group.name):
            offsets, notes = self.group.offsets, self.group.notes
            return {tp: (offsets.get(tp), notes.get(tp, "")) for tp in tps}

    def watermarks(self, tp: Tp) -> tuple[int, int]:
        with self._alone(), self._broker.asked("watermarks", self.group.name) as broker:
            log = broker.log(tp)
            if log is None:
                raise BrokerFault(f"{tp} does not exist; check the topic's name and partitions")
            return log.start, log.end

    def ends(self, tps: Iterable[Tp]) -> dict[Tp, int]:
        with self._alone(), self._broker.changed:
            logs = {tp: self._broker.log(tp) for tp in tps}
            return {tp: log.end for tp, log in logs.items() if log is not None}

    def partitions(self, topic: str) -> int:
        with self._alone(), self._broker.asked("partitions", self.group.name) as broker:
            return broker.partition_counts().get(topic, 0)

    def assignment(self) -> list[Tp]:
        with self._broker.changed:
            return sorted(self._member.held)

    def close(self) -> None:
        with self._alone():
            if self.closed:
                return
            try:
                self._let_go_for_good()
            finally:
                with self._broker.changing() as broker:
                    self.closed = True
                    self._member.held.clear()
                    self.group.leave(self._member, broker.partition_counts())

    # Membership

    @property
    def member(self) -> Member:
        return self._member

    def _catch_up(self) -> None:
        """Tell, in turn, what was lost, what goes and what comes; then raise the fault that is due, if any."""
        with self._broker.changing() as broker:
            assigned, _, lost = self._ready()
            broker.expel_silent()
            self._member.polled_at = broker.clock()
            if broker.is_down:
                return
            gone = sorted(self._member.held if self._member.expelled else self._member.to_lose)
            self.group.give_up(self._member, gone)
            if self._member.expelled:
                self._member.to_revoke.clear()
                self.group.enter(self._member, broker.partition_counts())
        if gone:
            lost(gone)
        left = self._give_up_leaving()
        with self._broker.changing() as broker:
            came = [] if left or gone or self._member.expelled else self.group.coming(self._member)
            for tp in came:
                self._member.held[tp] = Place(broker.start_of(self.group, tp))
        if came:
            assigned(came)
        with self._broker.changing() as broker:
            fault = self._missing_topics() or broker.take_fault("poll", self.group.name)
            if fault is not None:
                self._dead = fault if fault.fatal else None
                raise fault

    def _ready(self) -> tuple[Told, Told, Told]:
        if self.closed or self._told is None:
            state = "closed" if self.closed else "not subscribed"
            raise Misuse(f"client {self.name!r} is {state} and cannot be polled")
        if self._dead is not None:
            raise self._dead
        return self._told

    def _missing_topics(self) -> BrokerFault | None:
        """Complain, once, of topics that are not there; they are read as soon as they are."""
        missing = sorted(
            self._member.topics - self._broker.partition_counts().keys() - self._complained
        )
        self._complained |= set(missing)
        if not missing:
            return None
        return BrokerFault(
            f"topic {', '.join(map(repr, missing))} does not exist; make it, or check its name",
            retriable=True,
        )

    def _give_up_leaving(self) -> list[Tp]:
        with self._broker.changing():
            leaving = [] if self._member.expelled else self.group.leaving(self._member)
        try:
            if leaving:
                self._tell_revoked(leaving)
        finally:
            with self._broker.changing():
                if not self._member.expelled:
                    self.group.give_up(self._member, leaving)
                    self._member.joined = self.group.round
                    self.group.settle_ghosts()
        return leaving

    def _let_go_for_good(self) -> None:
        with self._broker.changing():
            held = sorted(self._member.held)
            expelled = self._member.expelled
        if not held or self._told is None:
            return
        if expelled:
            self._told[2](held)
        else:
            self._tell_revoked(held)

    def _tell_revoked(self, tps: list[Tp]) -> None:
        assert self._told is not None
        self._revoking = True
        try:
            self._told[1](tps)
        finally:
            self._revoking = False

    def _pending(self) -> bool:
        """Say whether the next step of a rebalance is this member's."""
        member = self._member
        return bool(
            member.expelled
            or member.to_lose
            or member.joined < self.group.round
            or self.group.leaving(member)
            or self.group.coming(member)
        )

    def _refusal(self) -> BrokerFault | None:
        if self._dead is not None:
            return self._dead
        if self.closed or self._member.expelled or self._told is None:
            return BrokerFault("the member is not in the group any more (its generation is gone)")
        if self._broker.is_down:
            return BrokerFault("the broker cannot be reached", retriable=True)
        # The last chance to commit is granted by cooperative groups only, as librdkafka's cluster does it.
        if self.group.rebalancing and (self.group.eager or not self._revoking):
            return BrokerFault("the group is rebalancing", retriable=True)
        return None

    # Records

    def _read(self, most: int) -> list[Batch | Eof]:
        found: list[Batch | Eof] = []
        if self._broker.is_down or self._member.expelled:
            return found
        for tp in self._in_turn():
            place = self._member.held[tp]
            log = self._broker.log(tp)
            if place.paused or log is None:
                continue
            if place.position > log.end:
                place.position = self._broker.reset_of(tp)
            records = log.read(place.position, most)
            if records:
                place.position = records[-1].offset + 1
                place.eof_told_at = None
                found.append(Batch(tp, records))
                most -= len(records)
                self._served = tp
            if self.eof and place.position >= log.end and place.eof_told_at != log.end:
                place.eof_told_at = log.end
                found.append(Eof(tp, log.end))
            if most <= 0:
                break
        return found

    def _in_turn(self) -> list[Tp]:
        """What is held, beginning after the partition served last, so that none starves behind another."""
        tps = sorted(self._member.held)
        at = next((i for i, tp in enumerate(tps) if self._served and tp > self._served), 0)
        return tps[at:] + tps[:at]

    def _flag(self, tps: Iterable[Tp], paused: bool) -> None:
        with self._alone(), self._broker.changing():
            for tp in tps:
                if place := self._member.held.get(tp):
                    place.paused = paused

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Refuse a second thread: a real client would make it wait for the first one's poll."""
        me = threading.get_ident()
        with self._broker.changed:
            if self._user not in (None, me):
                raise Misuse(
                    f"client {self.name!r} is used by two threads at once; only its listener may call it"
                )
            self._user = me
            self._depth += 1
        try:
            yield
        finally:
            with self._broker.changed:
                self._depth -= 1
                if not self._depth:
                    self._user = None
