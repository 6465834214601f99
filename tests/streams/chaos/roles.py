"""What the processes of a stream storm do: each is one member of the group, and may be killed at any moment."""

import asyncio
import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from fairlead.streams import Consumer, StreamApp
from fairlead.streams.kafka import KafkaBroker
from tests.streams.chaos import broken
from tests.streams.chaos.ledger import END, FAILED, NOTE, START, UP, Ledger
from tests.streams.chaos.spy import Marked, SpyBroker

CALLS = itertools.count(1)


class Unlucky(Exception):
    """As it should: a part of the calls fails."""


class Member:
    """What the consumers of this process have in common."""

    ledger: Ledger
    random: Random
    work: tuple[float, float]  # seconds of a call, from and to
    unlucky = 0.0  # the part of calls that fails
    stall = 0.0  # seconds that one call hangs; once
    stall_at = 0.0  # the instant from which on

    @classmethod
    @contextmanager
    def call(cls, messages: Sequence[Any], keyed: bool) -> Iterator[float]:
        """Write down a call, and say how long it is to take."""
        first: Marked = messages[0]
        number = next(CALLS)
        cls.ledger.write(
            START,
            at=f"{first.topic}:{first.partition}",
            generation=first.generation,
            offsets=[message.offset for message in messages],
            keys=[message.key.decode() for message in messages] if keyed else None,
            call=number,
        )
        try:
            yield cls.seconds()
            if cls.random.random() < cls.unlucky:
                raise Unlucky
        except BaseException:
            cls.ledger.write(FAILED, call=number)
            raise
        cls.ledger.write(END, call=number)

    @classmethod
    def seconds(cls) -> float:
        if cls.stall and time.monotonic() > cls.stall_at:
            seconds, cls.stall = cls.stall, 0.0
            cls.ledger.write(NOTE, text="stalls")
            return seconds
        return cls.random.uniform(*cls.work)


class Ordered(Consumer):
    """A plain function, on a thread."""

    def consume(self, messages: Sequence[Any]) -> None:
        with Member.call(messages, keyed=False) as seconds:
            time.sleep(seconds)


class Keyed(Consumer):
    """A coroutine; a topic by key."""

    async def consume(self, messages: Sequence[Any]) -> None:
        with Member.call(messages, keyed=True) as seconds:
            await asyncio.sleep(seconds)


def play(role: str, settings: dict[str, Any]) -> int:
    """Be a member until SIGTERM."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    Member.ledger = ledger = Ledger(Path(settings["ledger"]))
    Member.random = Random(settings["seed"])
    Member.work = (settings["work"][0], settings["work"][1])
    Member.unlucky = settings["unlucky"]
    Member.stall = settings["stall"]
    Member.stall_at = time.monotonic() + settings["stall_after"]
    if settings["broken"]:
        getattr(broken, settings["broken"])()
    broker = KafkaBroker(settings["bootstrap"], kafka=settings["kafka"])
    app = StreamApp(
        broker=SpyBroker(broker, ledger),
        group=settings["group"],
        concurrency=settings["concurrency"],
        scheduler=broken.SCHEDULERS[settings["scheduler"]],
        commit_interval=settings["commit_interval"],
        grace="20s",
        kafka=settings["kafka"],
    )
    how: dict[str, Any] = {"batch_size": settings["batch_size"], "retry_backoff": "50ms"}
    app.topic(settings["ordered"], Ordered, **how, **settings["options"])
    app.topic(
        settings["keyed"],
        Keyed,
        parallel_by=lambda message: message.key,
        subscription_group=settings["second_group"],
        **how,
        **settings["options"],
    )
    ledger.write(UP, role=role)
    app.run()
    return 0
