"""Traces: spans of tickets that ended, sampled, with their own times; to a collector over HTTP."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fairlead import Slots
from fairlead.core import Ticket
from fairlead.observe import Feed
from fairlead.policies import FIFO
from fairlead.server.settings import Otel
from fairlead.server.tracing import Tracing
from tests.server.rig import HERE, configured, run, served


def told(sample: float, count: int) -> tuple[Any, ...]:
    feed = Feed()
    gate = feed.gate("tasks/demo", lambda ticket: "bulk")(FIFO(limit=0), Slots(1))
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = Tracing(feed, Otel(sample=sample), provider)
    for number in range(count):
        ticket, late = Ticket(f"t{number}", tenant="acme"), Ticket("late")
        gate.offer(ticket, 10.0 * number)
        gate.offer(late, 10.0 * number + 1)
        gate.finish(ticket, 10.0 * number + 4)
    tracing.follow()
    assert tracing.follow() == 0  # each is told once
    tracing.close()
    return exporter.get_finished_spans()


def test_a_span_has_the_times_and_the_fate_of_its_ticket():
    spans = {span.attributes["fairlead.outcome"]: span for span in told(1.0, 1)}
    assert set(spans) == {"done", "refused"}
    done, refused = spans["done"], spans["refused"]
    assert done.name == "tasks/demo bulk"
    assert done.end_time - done.start_time == pytest.approx(4e9, abs=1e6)
    assert done.attributes["fairlead.tenant"] == "acme"
    assert done.status.is_ok or done.status.is_unset
    assert not refused.status.is_ok
    assert "is full" in refused.status.description


def test_only_a_part_is_told():
    whole, part, none = (len(told(sample, 100)) for sample in (1.0, 0.1, 0.0))
    assert whole == 200
    assert 10 <= part <= 40
    assert none == 0


def test_spans_reach_a_collector(tmp_path: Path):
    got: list[bytes] = []

    async def collect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length: ")[1].split("\r\n")[0])
        got.append(head.encode() + await reader.readexactly(length))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async def test() -> None:
        collector = await asyncio.start_server(collect, "127.0.0.1", 0)
        port = collector.sockets[0].getsockname()[1]
        otel = {"endpoint": f"http://127.0.0.1:{port}/v1/traces", "sample": 1.0}
        server = {"listen": HERE, "shutdown_grace": "2s", "otel": otel}
        async with served(configured(tmp_path, server=server)) as client:
            proxy = client.server.doors[0].links()["proxy"]
            async with client.session.get(f"{proxy}/v1/x") as answer:
                assert answer.status == 200
                await answer.read()
        collector.close()

    run(test)
    assert got
    assert got[0].startswith(b"post /v1/traces")
    assert b"gateway/default" in b"".join(got)
