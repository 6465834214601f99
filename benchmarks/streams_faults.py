"""What others do to a topic: a flood of less urgent work, very many partitions.

Each case runs in a process of its own.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.streams_meter import Figures, Meter
from benchmarks.streams_peers import group
from fairlead.streams import Consumer, StreamApp

P99 = "p99"  # ms
EARLY, LATE = "early", "late"  # MB of the process
HIGH_EVERY = 0.005  # seconds between two urgent records
WORK = 0.01  # seconds of a call, where it is to take any


def urgent(servers: str, topic: str, records: int, look: bool) -> Figures:
    """The p99 from writing an urgent record to its end; `topic` names both: urgent,flood."""
    from confluent_kafka import Producer

    logging.disable(logging.WARNING)
    high, low = topic.split(",")
    took: list[float] = []
    done = threading.Event()

    class Urgent(Consumer):
        async def consume(self, messages: Sequence[Any]) -> None:
            await asyncio.sleep(WORK)
            now = time.perf_counter()
            took.extend(now - float(message.value) for message in messages)
            if len(took) >= records:
                done.set()

    class Flood(Consumer):
        async def consume(self, messages: Sequence[Any]) -> None:
            await asyncio.sleep(WORK)

    app = StreamApp(servers, group(), kafka={"session.timeout.ms": 2000})
    app.topic(high, Urgent, priority=80, batch_size=20)
    app.topic(low, Flood, priority=20, batch_size=20)
    app.start()
    while not app.runtime.listeners["default"].holdings:
        time.sleep(0.05)
    time.sleep(0.5)  # let the flood rise
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
    for _ in range(records):
        producer.produce(high, b"%.9f" % time.perf_counter())
        producer.poll(HIGH_EVERY)
        time.sleep(HIGH_EVERY)
    if not done.wait(60):
        raise RuntimeError(f"{len(took)} of {records} urgent records came")
    return {P99: sorted(took)[int(len(took) * 0.99)] * 1000}


def hold(servers: str, topic: str, records: int, look: bool) -> Figures:
    """The memory of a process that holds every partition of a topic, early and late in a long drain."""
    logging.disable(logging.WARNING)
    meter = Meter(records)
    early: list[float] = []
    first = Meter(records // 5)

    class Both(Consumer):
        async def consume(self, messages: Sequence[Any]) -> None:
            if first.hit(len(messages)) and not early:
                early.append(resident())
            meter.hit(len(messages))

    app = StreamApp(servers, group())
    app.topic(topic, Both, batch_size=20)
    app.start()
    if not meter.done.wait(200):
        raise RuntimeError("the records did not come")
    return {EARLY: early[0], LATE: resident()}


def resident() -> float:
    """The memory of this process, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6
