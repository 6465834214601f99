"""A spy between Fairlead and its broker client: it writes down what passes, and changes nothing.

Each record is marked with the generation it was delivered in, so that a consumer can say in which one it ran.
"""

import itertools
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairlead.streams.broker import NO_NOTES, Batch, Broker, Client, Eof, Message, Outbox, Told, Tp
from tests.streams.chaos.ledger import (
    ASSIGNED,
    COMMITTED,
    COMMITTING,
    DELIVERED,
    GONE,
    Ledger,
)


def name(tp: Tp) -> str:
    return f"{tp.topic}:{tp.partition}"


class Marked(Message):
    """A record and the generation it was delivered in."""

    __slots__ = ("generation",)

    generation: int


def marked(message: Message, generation: int) -> Marked:
    copy = Marked(
        message.topic, message.partition, message.offset, message.key, message.value, [], None
    )
    copy.generation = generation
    return copy


class SpyBroker:
    """A broker whose clients are watched."""

    def __init__(self, broker: Broker, ledger: Ledger) -> None:
        self._broker = broker
        self._ledger = ledger
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def client(self, group: str, *, name: str = "", eof: bool = False) -> Client:
        return SpyClient(self._broker.client(group, name=name, eof=eof), self._ledger, self.number)

    def outbox(self) -> Outbox:
        return self._broker.outbox()

    def number(self) -> int:
        """A number that nobody in this process has had."""
        with self._lock:
            return next(self._numbers)


class SpyClient:
    """A client that is watched."""

    def __init__(self, client: Client, ledger: Ledger, number: Any) -> None:
        self._client = client
        self._ledger = ledger
        self._number = number
        self._owned: dict[Tp, int] = {}

    def subscribe(
        self, topics: Sequence[str], *, assigned: Told, revoked: Told, lost: Told
    ) -> None:
        def comes(tps: list[Tp]) -> None:
            fresh = {tp: self._number() for tp in tps}
            self._owned.update(fresh)
            self._ledger.write(ASSIGNED, at={name(tp): new for tp, new in fresh.items()})
            assigned(tps)

        def is_revoked(tps: list[Tp]) -> None:
            try:
                revoked(tps)  # it still holds them, and may commit
            finally:
                self._gone(tps, "revoked")

        def is_lost(tps: list[Tp]) -> None:
            self._gone(tps, "lost")
            lost(tps)

        self._client.subscribe(topics, assigned=comes, revoked=is_revoked, lost=is_lost)

    def _gone(self, tps: Iterable[Tp], how: str) -> None:
        going = {name(tp): self._owned.pop(tp) for tp in tps if tp in self._owned}
        self._ledger.write(GONE, at=going, how=how)

    def poll(self, timeout: float, most: int) -> list[Batch | Eof]:
        found: list[Batch | Eof] = []
        for event in self._client.poll(timeout, most):
            if isinstance(event, Batch):
                generation = self._owned[event.tp]
                self._ledger.write(
                    DELIVERED, at=name(event.tp), generation=generation, offsets=event.offsets
                )
                event = Batch(event.tp, [marked(message, generation) for message in event])
            found.append(event)
        return found

    def notes(self, tps: Iterable[Tp]) -> dict[Tp, tuple[int | None, str]]:
        return self._client.notes(tps)

    def commit(self, offsets: Mapping[Tp, int], notes: Mapping[Tp, str] = NO_NOTES) -> None:
        number = self._number()
        self._ledger.write(
            COMMITTING,
            number=number,
            offsets={name(tp): at for tp, at in offsets.items()},
            generations={name(tp): self._owned.get(tp) for tp in offsets},
        )
        self._client.commit(offsets, notes)
        self._ledger.write(COMMITTED, number=number)

    def close(self) -> None:
        try:
            self._client.close()
        finally:
            self._gone(list(self._owned), "closed")

    def pause(self, tps: Iterable[Tp]) -> None:
        self._client.pause(tps)

    def resume(self, tps: Iterable[Tp]) -> None:
        self._client.resume(tps)

    def seek(self, tp: Tp, offset: int) -> None:
        self._client.seek(tp, offset)

    def committed(self, tps: Iterable[Tp]) -> dict[Tp, int | None]:
        return self._client.committed(tps)

    def watermarks(self, tp: Tp) -> tuple[int, int]:
        return self._client.watermarks(tp)

    def ends(self, tps: Iterable[Tp]) -> dict[Tp, int]:
        return self._client.ends(tps)

    def partitions(self, topic: str) -> int:
        return self._client.partitions(topic)

    def assignment(self) -> list[Tp]:
        return self._client.assignment()
