"""Peers of the streams door, each as its own documentation starts it, handing records to a function that does nothing.

Each runs in a process of its own (streams_run.py) as the only member of a new group.  QuixStreams wants an older
client library than ours, so it lives in an environment of its own (streams_quix.py).
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from benchmarks.streams_meter import Figures, Meter

MOST = 1000  # records of one getmany


def group() -> str:
    """A group nobody has had."""
    return f"bench-{time.time_ns()}"


def raw(servers: str, topic: str, records: int, look: bool) -> Figures:
    """confluent-kafka alone: `consume(100)`, the client commits by itself."""
    from confluent_kafka import Consumer

    meter = Meter(records)

    def handle(messages: list[Any]) -> None:
        if look:
            for message in messages:
                message.value()

    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": group(), "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    while True:
        messages = consumer.consume(100, 0.1)
        if messages:
            handle(messages)
            if meter.hit(len(messages)):
                return meter.figures()


def aiokafka(servers: str, topic: str, records: int, look: bool) -> Figures:
    """`getmany`, and a coroutine for what each partition brought; the client commits by itself."""
    from aiokafka import AIOKafkaConsumer

    meter = Meter(records)

    async def handle(messages: list[Any]) -> None:
        if look:
            for message in messages:
                message.value  # noqa: B018

    async def run() -> None:
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=servers, group_id=group(), auto_offset_reset="earliest"
        )
        await consumer.start()
        while not meter.done.is_set():
            for messages in (await consumer.getmany(timeout_ms=100, max_records=MOST)).values():
                await handle(messages)
                meter.hit(len(messages))

    asyncio.run(run())
    return meter.figures()


def faststream(servers: str, topic: str, records: int, look: bool, *, batch: bool) -> Figures:
    """A subscriber of messages, or of batches; it acknowledges by itself."""
    from faststream.kafka import KafkaBroker

    meter = Meter(records)
    broker = KafkaBroker(servers, logger=None)
    options: dict[str, Any] = {"batch": True, "max_records": MOST} if batch else {}
    subscriber = broker.subscriber(topic, group_id=group(), auto_offset_reset="earliest", **options)

    async def one(message: bytes) -> None:
        meter.hit(1)

    async def many(messages: list[bytes]) -> None:
        if look:
            for message in messages:
                message  # noqa: B018
        meter.hit(len(messages))

    subscriber(many if batch else one)

    async def run() -> None:
        await broker.start()
        await asyncio.to_thread(meter.done.wait)

    asyncio.run(run())
    return meter.figures()
