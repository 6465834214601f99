"""The cases of the streams suite that are Fairlead's, each in a process of its own."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from benchmarks.streams_meter import Figures, Meter
from benchmarks.streams_peers import group
from fairlead.streams import Consumer, StreamApp, StreamScheduler
from fairlead.streams.schedulers import FairByTopic, OneAtATime

SCHEDULERS: dict[str, type[StreamScheduler] | None] = {
    "gate": None,
    "FairByTopic": FairByTopic,
    "OneAtATime": OneAtATime,
}


def handler(meter: Meter, look: bool, *, threads: bool) -> type[Consumer]:
    """A consumer that does nothing, or looks at every value."""

    def handle(messages: Sequence[Any]) -> None:
        if look:
            for message in messages:
                message.value  # noqa: B018
        meter.hit(len(messages))

    class OnLoop(Consumer):
        async def consume(self, messages: Sequence[Any]) -> None:
            handle(messages)

    class OnThreads(Consumer):
        def consume(self, messages: Sequence[Any]) -> None:
            handle(messages)

    return OnThreads if threads else OnLoop


def drain(
    servers: str,
    topic: str,
    records: int,
    look: bool,
    *,
    scheduler: str = "gate",
    threads: bool = False,
    **options: Any,
) -> Figures:
    """Everything as it is by default: batches of 500 at most, eight at once, commits every five seconds."""
    logging.disable(logging.WARNING)
    meter = Meter(records)
    app = StreamApp(servers, group(), scheduler=SCHEDULERS[scheduler])
    app.topic(topic, handler(meter, look, threads=threads), **options)
    app.start()
    if not meter.done.wait(120):
        raise RuntimeError("the records did not come")
    return meter.figures()
