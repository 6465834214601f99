"""What the docs tell of the streams suite; `make bench ARGS="streams --docs"` puts it there."""

from __future__ import annotations

from benchmarks.figures import Chapter, Figures, Row
from benchmarks.harness import figure
from benchmarks.streams import (
    AIOKAFKA,
    ALONE,
    FASTSTREAM,
    FLOODED,
    HELD,
    HELD_EARLY,
    HELD_LATE,
    OURS,
    QUIXSTREAMS,
    RAW,
    SCHEDULING,
)
from benchmarks.streams_zoo import BASES

INTRODUCTION = """
Records of 100 bytes through handlers that do nothing, with scheduling and safe commits on. The broker is librdkafka's
mock cluster, on real sockets in a process of its own; every case is a process of its own beside it, on the same two
cores. No real Kafka was measured.
"""
DRAIN, COST, ZOOS = "Streams: draining", "Streams: what scheduling", "Streams: a group whose"
URGENT, MEMORY = "Streams: p99", "Streams: memory"


def rows(figures: Figures) -> list[Row]:
    """What was measured, in words: the figure and its target."""
    found: list[Row] = []
    for peer, words, least in (
        (RAW, "confluent-kafka's `consume(100)` alone", "≥ 0.5×"),
        (AIOKAFKA, "aiokafka's `getmany`", "≥ 1.5×"),
        (FASTSTREAM, "FastStream, batches", "≥ 4×"),
        (QUIXSTREAMS, "QuixStreams", "≥ 4×"),
    ):
        if figures.has(DRAIN, peer) and figures.has(DRAIN, OURS):
            ratio = figures.ratio(DRAIN, peer, OURS)
            found.append((f"of the rate of {words}", f"{figure(ratio)}×", least))
    for name in SCHEDULING:
        if figures.has(COST, name):
            value = f"{figure(figures.of(COST, name))} µs"
            found.append((f"scheduling of a batch, {name}", value, "≤ 30 µs"))
    rates = [
        figures.ratio(ZOOS, base, name)
        for name, base in BASES.items()
        if figures.has(ZOOS, name) and figures.has(ZOOS, base)
    ]
    if rates:
        words = "of its rate keeps a group whose scheduler is bad to another, at worst"
        found.append((words, f"{min(rates) * 100:.0f} %", "≥ 95 %"))
    if figures.has(URGENT, FLOODED):
        ratio = figures.ratio(URGENT, FLOODED, ALONE)
        found.append(("p99 of an urgent topic under a flood", f"{figure(ratio)}×", "≤ 1.5×"))
    if figures.has(MEMORY, HELD_LATE):
        ratio = figures.ratio(MEMORY, HELD_LATE, HELD_EARLY)
        words = f"memory with {HELD:,} partitions, late in a drain to early"
        found.append((words, f"{figure(ratio)}×", "≤ 1.1×"))
    return found


CHAPTER = Chapter("streams", "Streams", INTRODUCTION, ("docs/streams.md",), rows)
